"""How large the executed batches were, and why each was formed when it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bokeh.models import ColumnDataSource, FactorRange

from workbench.charts.palette import REASON, REASON_LABEL
from workbench.charts.style import Chart, Columns, Frame, LegendEntry, add_empty_text, add_hover, make_figure

HEIGHT = 220
MAX_BARS = 20
REASONS = tuple(REASON)


@dataclass(frozen=True, slots=True)
class BatchHistogramInfo:
    """Executed batches by size and reason.

    ``labels`` are sizes in rows, or ranges of sizes where there are many; ``counts[reason]`` has one figure a label.
    """

    title: str
    labels: tuple[str, ...]
    counts: dict[str, tuple[int, ...]]
    batches: int
    mean_rows: float
    empty: str

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons that occur."""
        return tuple(reason for reason in REASONS if sum(self.counts[reason]))


def batch_histogram_info(
    histogram: Mapping[tuple[int, str], int], *, title: str = "Batch sizes", empty: str = "No batch executed"
) -> BatchHistogramInfo:
    """Bins counts of (rows, reason); more than 20 different sizes are put into ranges of equal width."""
    known = {key: count for key, count in histogram.items() if count > 0}
    sizes = sorted({rows for rows, _ in known})
    width = max(1, -(-(sizes[-1]) // MAX_BARS)) if sizes and len(sizes) > MAX_BARS else 1
    bins = sorted({(rows - 1) // width for rows in sizes})
    labels = tuple(str(b + 1) if width == 1 else f"{b * width + 1}–{(b + 1) * width}" for b in bins)
    place = {b: i for i, b in enumerate(bins)}
    counts = {reason: [0] * len(bins) for reason in REASONS}
    for (rows, reason), count in known.items():
        counts.get(reason, counts["unknown"])[place[(rows - 1) // width]] += count
    batches = sum(known.values())
    mean = sum(rows * count for (rows, _), count in known.items()) / batches if batches else float("nan")
    return BatchHistogramInfo(title, labels, {r: tuple(c) for r, c in counts.items()}, batches, mean, empty)


def draw_batch_histogram(info: BatchHistogramInfo) -> Chart:
    """The figure and its source ``batches``; one layer a reason, only those that occur are in the legend."""
    fig = make_figure(
        Frame(
            x_label="batch size (rows)",
            y_label="executed batches (count)",
            height=HEIGHT,
            x_range=FactorRange(range_padding=0.08),
        )
    )
    source = ColumnDataSource({"label": [], "total": [], **{reason: [] for reason in REASONS}})
    bars = fig.vbar_stack(
        list(REASONS),
        x="label",
        width=0.8,
        source=source,
        fill_color=[REASON[reason] for reason in REASONS],
        line_color=None,
    )
    for reason, bar in zip(REASONS, bars, strict=True):
        tips = [("batch size", "@label rows"), (REASON_LABEL[reason], f"@{{{reason}}}{{0,0}}"), ("all", "@total{0,0}")]
        add_hover(fig, [bar], tips)
    empty = add_empty_text(fig, info.empty)
    chart = Chart(fig, {"batches": source}, info.title, HEIGHT, parts={"empty": empty})
    update_batch_histogram(chart, info)
    return chart


def update_batch_histogram(chart: Chart, info: BatchHistogramInfo) -> None:
    """Brings a drawn chart up to date."""
    fig: Any = chart.figure
    if list(fig.x_range.factors) != list(info.labels):
        fig.x_range.factors = list(info.labels)
    chart.title = info.title
    chart.note = f"{info.batches:,} batches, mean {info.mean_rows:.2f} rows" if info.batches else ""
    chart.legend = tuple(LegendEntry(REASON_LABEL[reason], REASON[reason]) for reason in info.reasons)
    chart.fill("batches", _columns(info))
    empty: Any = chart.parts["empty"]
    empty.text = info.empty
    empty.visible = not info.labels


def _columns(info: BatchHistogramInfo) -> Columns:
    columns: Columns = {"label": list(info.labels)}
    columns["total"] = [sum(info.counts[r][i] for r in REASONS) for i in range(len(info.labels))]
    for reason in REASONS:
        columns[reason] = list(info.counts[reason])
    return columns
