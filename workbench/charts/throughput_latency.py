"""Throughput against latency: one line a configuration, the goal drawn, what must not be believed hollow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource

from workbench.charts.palette import MARKER_SIGN, QUANTITY, configuration_style
from workbench.charts.rows import PointRow, configurations
from workbench.charts.style import Chart, Columns, Frame, LegendEntry, add_empty_text, add_hover, make_figure, models

HEIGHT = 330


@dataclass(frozen=True, slots=True)
class ConfigurationLine:
    """One configuration's points, in the order of their throughput as measured (by load)."""

    configuration: str
    colour: str
    marker: str
    throughput: tuple[float, ...]
    p50_ms: tuple[float, ...]
    p99_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ThroughputLatencyInfo:
    """What the chart shows: lines, points, the goal, the best point."""

    lines: tuple[ConfigurationLine, ...]
    rows: tuple[PointRow, ...]
    goal_p99_ms: float | None
    best: PointRow | None
    empty: str


def throughput_latency_info(
    rows: Sequence[PointRow],
    *,
    goal_p99_ms: float | None = None,
    best: PointRow | None = None,
    empty: str = "No point measured yet",
) -> ThroughputLatencyInfo:
    """Groups points into lines; a point that is not valid is shown but no line runs through it."""
    lines = []
    for index, name in enumerate(configurations(rows)):
        colour, marker = configuration_style(index)
        mine = [row for row in rows if row.configuration == name and row.valid and np.isfinite(row.p99_ms)]
        lines.append(
            ConfigurationLine(
                name,
                colour,
                marker,
                tuple(row.throughput for row in mine),
                tuple(row.p50_ms for row in mine),
                tuple(row.p99_ms for row in mine),
            )
        )
    return ThroughputLatencyInfo(tuple(lines), tuple(rows), goal_p99_ms, best, empty)


def draw_throughput_latency(info: ThroughputLatencyInfo) -> Chart:
    """The figure and its sources ``lines``, ``points`` and ``goal``."""
    fig = make_figure(
        Frame(
            x_label="throughput (infer/s)",
            y_label="latency, log scale (ms)",
            log_y=True,
            height=HEIGHT,
            tools="pan,box_zoom,wheel_zoom,reset,save",
        )
    )
    fig.x_range.start = 0
    fig.x_range.range_padding = 0.08
    lines = ColumnDataSource({"xs": [], "ys": [], "colour": [], "dash": [], "width": [], "configuration": []})
    points = ColumnDataSource(_point_columns(throughput_latency_info([])))
    fig.multi_line("xs", "ys", source=lines, line_color="colour", line_dash="dash", line_width="width", line_alpha=0.9)
    marks = fig.scatter(
        "throughput",
        "latency",
        source=points,
        marker="marker",
        size="size",
        line_color="colour",
        line_width=1.6,
        fill_color="colour",
        fill_alpha="fill",
    )
    add_hover(
        fig,
        [marks],
        [
            ("configuration", "@configuration"),
            ("load", "@load"),
            ("throughput", "@throughput{0,0.0} infer/s"),
            ("p50 · p99", "@p50{0,0.000} · @p99{0,0.000} ms"),
            ("mean batch", "@mean_batch{0.00} rows"),
            ("requests", "@n{0,0}"),
            ("verdict", "@verdict"),
        ],
    )
    goal = models.Span(
        location=0, dimension="width", line_color=QUANTITY["goal"], line_dash="dashed", line_width=1.5, visible=False
    )
    fig.add_layout(goal)
    # A span does not widen an axis: an invisible line has the goal in view, wherever the points are.
    reach = ColumnDataSource({"x": [], "y": []})
    fig.line("x", "y", source=reach, line_alpha=0)
    chart = Chart(
        fig,
        {"lines": lines, "points": points, "goal": reach},
        "Throughput against latency",
        HEIGHT,
        note="p99 solid, p50 dotted; hollow: not valid",
        parts={"goal": goal, "empty": add_empty_text(fig, info.empty)},
    )
    update_throughput_latency(chart, info)
    return chart


def update_throughput_latency(chart: Chart, info: ThroughputLatencyInfo) -> None:
    """Brings a drawn chart up to date."""
    chart.fill("points", _point_columns(info))
    chart.fill("lines", _line_columns(info))
    goal: Any = chart.parts["goal"]
    goal.visible = info.goal_p99_ms is not None
    if info.goal_p99_ms is not None:
        goal.location = info.goal_p99_ms
    shown = info.goal_p99_ms is not None and bool(info.rows)
    at = [row.throughput for row in info.rows if np.isfinite(row.throughput)][:1] if shown else []
    chart.fill("goal", {"x": at, "y": [info.goal_p99_ms] * len(at)})
    empty: Any = chart.parts["empty"]
    empty.text = info.empty
    empty.visible = not info.rows
    entries = [LegendEntry(line.configuration, line.colour, MARKER_SIGN[line.marker]) for line in info.lines]
    if info.goal_p99_ms is not None:
        entries.append(LegendEntry(f"goal: p99 ≤ {info.goal_p99_ms:g} ms", QUANTITY["goal"], "dashed"))
    chart.legend = tuple(entries)


def _line_columns(info: ThroughputLatencyInfo) -> Columns:
    columns: Columns = {"xs": [], "ys": [], "colour": [], "dash": [], "width": [], "configuration": []}
    for line in info.lines:
        for ys, dash, width in ((line.p99_ms, "solid", 2.0), (line.p50_ms, "dotted", 1.6)):
            columns["xs"].append(list(line.throughput))
            columns["ys"].append(list(ys))
            columns["colour"].append(line.colour)
            columns["dash"].append(dash)
            columns["width"].append(width)
            columns["configuration"].append(line.configuration)
    return columns


def _point_columns(info: ThroughputLatencyInfo) -> Columns:
    style = {line.configuration: (line.colour, line.marker) for line in info.lines}
    names = ("throughput", "latency", "p50", "p99", "mean_batch", "n", "colour", "marker", "fill", "size")
    columns: Columns = {name: [] for name in (*names, "configuration", "load", "verdict")}
    for row in info.rows:
        colour, marker = style[row.configuration]
        best = row is info.best
        for latency, small in ((row.p99_ms, False), (row.p50_ms, True)):
            columns["throughput"].append(row.throughput)
            columns["latency"].append(latency)
            columns["p50"].append(row.p50_ms)
            columns["p99"].append(row.p99_ms)
            columns["mean_batch"].append(row.mean_batch)
            columns["n"].append(row.n)
            columns["colour"].append(colour)
            columns["marker"].append("star" if best and not small else marker)
            columns["fill"].append(1.0 if row.valid else 0.0)
            columns["size"].append(5 if small else (17 if best else 9))
            columns["configuration"].append(row.configuration)
            columns["load"].append(row.load)
            columns["verdict"].append(_verdict(row, best))
    return columns


def _verdict(row: PointRow, best: bool) -> str:
    if not row.valid:
        return f"not valid: {row.why_not or 'no reason given'}"
    if row.note:
        return row.note
    return "best under the goal" if best else "valid"
