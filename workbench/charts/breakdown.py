"""Where the time of a request goes at each measured point: queue, compute input, infer and output, stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, FactorRange

from workbench.charts.palette import QUANTITY
from workbench.charts.rows import COMPONENT_LABEL, COMPONENTS, PointRow
from workbench.charts.style import Chart, Columns, Frame, LegendEntry, add_empty_text, add_hover, make_figure

HEIGHT = 220


@dataclass(frozen=True, slots=True)
class BreakdownInfo:
    """One bar a point; ``parts[name]`` has the milliseconds of each point."""

    title: str
    labels: tuple[str, ...]
    parts: dict[str, tuple[float, ...]]
    empty: str
    note: str = ""


def breakdown_info(
    rows: Sequence[PointRow], *, title: str = "Where the time goes", empty: str = "No point measured yet"
) -> BreakdownInfo:
    """Bars of the points whose split is known, labelled by load; loads that repeat are numbered."""
    known = [row for row in rows if np.isfinite(row.queue_ms)]
    labels: list[str] = []
    for row in known:
        repeats = sum(1 for earlier in labels if earlier.split(" #")[0] == row.load)
        labels.append(row.load if not repeats else f"{row.load} #{repeats + 1}")
    parts = {name: tuple(float(np.nan_to_num(getattr(row, f"{name}_ms"))) for row in known) for name in COMPONENTS}
    return BreakdownInfo(title, tuple(labels), parts, empty)


def steps_info(steps: Mapping[str, Mapping[str, float]], *, title: str) -> BreakdownInfo:
    """Bars of the steps of a pipeline: milliseconds of each part (``queue_ms``, ...) by step."""
    parts = {name: tuple(float(np.nan_to_num(step[f"{name}_ms"])) for step in steps.values()) for name in COMPONENTS}
    note = ", ".join(f"{name} {sum(parts[part][at] for part in COMPONENTS):,.1f} ms" for at, name in enumerate(steps))
    return BreakdownInfo(title, tuple(steps), parts, "No request was recorded", note)


def draw_breakdown(info: BreakdownInfo, *, x_label: str = "load (requests in flight)") -> Chart:
    """The figure and its source ``breakdown``."""
    fig = make_figure(
        Frame(
            x_label=x_label,
            y_label="time per request (ms)",
            height=HEIGHT,
            x_range=FactorRange(range_padding=0.08),
        )
    )
    source = ColumnDataSource({"label": [], "total": [], **{name: [] for name in COMPONENTS}})
    bars = fig.vbar_stack(
        list(COMPONENTS),
        x="label",
        width=0.7,
        source=source,
        fill_color=[QUANTITY[name] for name in COMPONENTS],
        line_color=None,
    )
    tips = [(COMPONENT_LABEL[name], f"@{name}{{0,0.000}} ms") for name in COMPONENTS]
    add_hover(fig, bars, [(x_label.partition(" (")[0], "@label"), *tips, ("together", "@total{0,0.000} ms")])
    chart = Chart(
        fig,
        {"breakdown": source},
        info.title,
        HEIGHT,
        note=info.note,
        legend=tuple(LegendEntry(COMPONENT_LABEL[name], QUANTITY[name]) for name in COMPONENTS),
        parts={"empty": add_empty_text(fig, info.empty)},
    )
    update_breakdown(chart, info)
    return chart


def update_breakdown(chart: Chart, info: BreakdownInfo) -> None:
    """Brings a drawn chart up to date."""
    fig: Any = chart.figure
    if list(fig.x_range.factors) != list(info.labels):
        fig.x_range.factors = list(info.labels)
    chart.title = info.title
    chart.note = info.note
    chart.fill("breakdown", _columns(info))
    empty: Any = chart.parts["empty"]
    empty.text = info.empty
    empty.visible = not info.labels


def _columns(info: BreakdownInfo) -> Columns:
    columns: Columns = {"label": list(info.labels)}
    columns["total"] = [sum(info.parts[name][i] for name in COMPONENTS) for i in range(len(info.labels))]
    for name in COMPONENTS:
        columns[name] = list(info.parts[name])
    return columns
