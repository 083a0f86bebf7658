"""Before and after, side by side: what the tuning brought."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bokeh.core.properties import value
from bokeh.layouts import row
from bokeh.models import ColumnDataSource

from workbench.charts.palette import QUANTITY
from workbench.charts.rows import PointRow
from workbench.charts.style import FONT, MUTED, TEXT, Chart, Columns, Frame, LegendEntry, add_hover, make_figure, models

HEIGHT = 240


@dataclass(frozen=True, slots=True)
class BeforeAfterInfo:
    """Throughput and latency of two points, and their ratios (after / before)."""

    before: PointRow
    after: PointRow
    throughput_ratio: float
    p99_ratio: float

    @property
    def text(self) -> str:
        """The result in one sentence."""
        return (
            f"throughput × {self.throughput_ratio:.2f} ({self.before.throughput:,.1f} → {self.after.throughput:,.1f} "
            f"infer/s), p99 × {self.p99_ratio:.2f} ({self.before.p99_ms:,.2f} → {self.after.p99_ms:,.2f} ms)"
        )


def before_after_info(before: PointRow, after: PointRow) -> BeforeAfterInfo:
    """Compares two measured points."""

    def ratio(new: float, old: float) -> float:
        return new / old if old else float("nan")

    return BeforeAfterInfo(
        before, after, ratio(after.throughput, before.throughput), ratio(after.p99_ms, before.p99_ms)
    )


def draw_before_after(info: BeforeAfterInfo) -> Chart:
    """Two figures in a row, throughput and latency, with their sources ``throughput`` and ``latency``."""
    throughput, fast = _bars(
        "throughput (infer/s)",
        "configuration (before, after)",
        {"throughput": (info.before.throughput, info.after.throughput)},
        "infer/s",
    )
    latency, slow = _bars(
        "latency (ms)",
        "percentile (before, after)",
        {"p50": (info.before.p50_ms, info.after.p50_ms), "p99": (info.before.p99_ms, info.after.p99_ms)},
        "ms",
    )
    layout = row([throughput, latency], sizing_mode="stretch_width")
    legend = tuple(LegendEntry(when, QUANTITY[when]) for when in ("before", "after"))
    return Chart(
        layout, {"throughput": fast, "latency": slow}, "Before and after", HEIGHT, note=info.text, legend=legend
    )


def _bars(y_label: str, x_label: str, pairs: dict[str, tuple[float, float]], unit: str) -> tuple[Any, ColumnDataSource]:
    factors = [(name, when) for name in pairs for when in ("before", "after")]
    frame = Frame(x_label, y_label, HEIGHT, x_range=models.FactorRange(*factors, range_padding=0.1, group_padding=0.6))
    fig = make_figure(frame)
    columns: Columns = {"at": [], "figure": [], "text": [], "colour": [], "when": []}
    for name, pair in pairs.items():
        for when, figure in zip(("before", "after"), pair, strict=True):
            columns["at"].append((name, when))
            columns["figure"].append(figure)
            columns["text"].append(f"{figure:,.1f}" if figure >= 10 else f"{figure:,.2f}")
            columns["colour"].append(QUANTITY[when])
            columns["when"].append(when)
    source = ColumnDataSource(columns)
    bars = fig.vbar("at", top="figure", width=0.8, source=source, fill_color="colour", line_color=None)
    fig.add_layout(
        models.LabelSet(
            x="at",
            y="figure",
            text="text",
            source=source,
            text_align="center",
            text_baseline="bottom",
            y_offset=3,
            text_font=value(FONT),
            text_font_size="12px",
            text_color=TEXT,
        )
    )
    fig.y_range.range_padding = 0.2
    fig.xaxis.group_text_font_size = "12px"
    fig.xaxis.group_text_color = MUTED
    add_hover(fig, [bars], [("", "@when"), (y_label.partition(" (")[0], f"@figure{{0,0.000}} {unit}")])
    return fig, source
