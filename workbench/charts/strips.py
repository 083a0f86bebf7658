"""Quantities over the last seconds: throughput, latency, where the time goes, devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, SingleIntervalTicker
from numpy.typing import NDArray

from workbench.charts.palette import QUANTITY
from workbench.charts.rows import COMPONENT_LABEL, COMPONENTS
from workbench.charts.style import Chart, Columns, Frame, LegendEntry, add_empty_text, add_hover, make_figure, models

HEIGHT = 220
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Series:
    """One line or layer: a figure for each of the strip's ``seconds``, NaN where nothing was measured."""

    name: str
    label: str
    values: Floats

    @property
    def colour(self) -> str:
        """The colour of the quantity."""
        return QUANTITY.get(self.name, QUANTITY["pending"])


@dataclass(frozen=True, slots=True)
class StripInfo:
    """Quantities of one unit against the time before now.

    ``seconds`` is not positive and grows to 0 (now); ``unit`` is that of all series; ``y_max`` fixes the scale.
    """

    title: str
    quantity: str
    unit: str
    seconds: Floats
    series: tuple[Series, ...]
    empty: str
    stacked: bool = False
    window_s: float = 60.0
    y_max: float | None = None
    height: int = HEIGHT

    @property
    def has_data(self) -> bool:
        """Whether there is one figure to draw."""
        shown = self.seconds >= -self.window_s
        return any(bool(np.isfinite(s.values[shown]).any()) for s in self.series)


def throughput_strip(seconds: Floats, throughput: Floats, window_s: float = 60.0) -> StripInfo:
    """Inferences (rows) a second."""
    return StripInfo(
        "Throughput",
        "throughput",
        "infer/s",
        seconds,
        (Series("throughput", "throughput", throughput),),
        f"No request in the last {window_s:g} s",
        window_s=window_s,
    )


def latency_strip(seconds: Floats, values: Mapping[str, Floats], window_s: float = 60.0) -> StripInfo:
    """Time from arrival to answer at the server: any of mean, p50, p90, p95, p99, in ms."""
    series = tuple(Series(name, name, values[name]) for name in ("mean", "p50", "p90", "p95", "p99") if name in values)
    return StripInfo(
        "Latency at the server",
        "latency",
        "ms",
        seconds,
        series,
        f"No request answered in the last {window_s:g} s",
        window_s=window_s,
    )


def breakdown_strip(seconds: Floats, components: Mapping[str, Floats], window_s: float = 60.0) -> StripInfo:
    """Mean time of a request in queue, compute input, compute infer and compute output, stacked, in ms."""
    series = tuple(Series(name, COMPONENT_LABEL[name], components[name]) for name in COMPONENTS)
    return StripInfo(
        "Where the time goes",
        "time per request",
        "ms",
        seconds,
        series,
        f"No request answered in the last {window_s:g} s",
        stacked=True,
        window_s=window_s,
    )


def device_strip(
    title: str, unit: str, seconds: Floats, series: Sequence[Series], *, y_max: float | None = None
) -> StripInfo:
    """Use of one device; ``y_max`` is its size (100 for percent)."""
    return StripInfo(
        title, "use", unit, seconds, tuple(series), "No sample yet", y_max=y_max, height=180, window_s=120.0
    )


def draw_strip(info: StripInfo) -> Chart:
    """The figure and its source ``strip``; lines, or layers where the strip is stacked."""
    fig = make_figure(
        Frame(
            x_label="time relative to now (s)",
            y_label=f"{info.quantity} ({info.unit})",
            height=info.height,
            x_range=models.Range1d(-info.window_s, 0),
            y_max=info.y_max,
        )
    )
    fig.xaxis.ticker = SingleIntervalTicker(interval=info.window_s / 6)
    source = ColumnDataSource({"seconds": [], **{s.name: [] for s in info.series}})
    if info.stacked:
        names = [s.name for s in info.series]
        fig.varea_stack(names, x="seconds", source=source, color=[s.colour for s in info.series], alpha=0.9)
    else:
        for s in info.series:
            fig.line("seconds", s.name, source=source, line_color=s.colour, line_width=2)
    # An invisible line carries the tooltip: areas have none, and one tooltip for all series is easier to read.
    top = info.series[-1].name if not info.stacked else info.series[0].name
    probe = fig.line("seconds", top, source=source, line_alpha=0)
    tips = [(s.label, f"@{s.name}{{0,0.00}} {info.unit}") for s in info.series]
    add_hover(fig, [probe], [("time", "@seconds{0.0} s"), *tips], mode="vline")
    mark = "box" if info.stacked else "line"
    legend = tuple(LegendEntry(s.label, s.colour, mark) for s in info.series) if len(info.series) > 1 else ()
    empty = add_empty_text(fig, info.empty)
    chart = Chart(fig, {"strip": source}, info.title, info.height, legend=legend, parts={"empty": empty})
    update_strip(chart, info)
    return chart


def update_strip(chart: Chart, info: StripInfo) -> None:
    """Brings a drawn strip up to date; the series must be those it was drawn with."""
    chart.fill("strip", strip_columns(info))
    empty: Any = chart.parts["empty"]
    empty.visible = not info.has_data


def strip_columns(info: StripInfo) -> Columns:
    """The columns of the source: what lies in the window; layers get 0 where nothing was measured."""
    shown = info.seconds >= -info.window_s - 1.0
    if not info.has_data:
        shown = np.zeros_like(shown)  # nothing but NaN would leave the chart without axes
    columns: Columns = {"seconds": info.seconds[shown]}
    for s in info.series:
        values = s.values[shown].astype(np.float64)
        columns[s.name] = np.nan_to_num(values, nan=0.0) if info.stacked else values
    return columns
