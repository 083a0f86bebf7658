"""The same quantities of several ways to do a thing, beside each other: the median of the rounds and their range."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource

from workbench.charts.palette import QUANTITY
from workbench.charts.style import (
    FONT,
    MUTED,
    TEXT,
    Chart,
    Columns,
    Frame,
    LegendEntry,
    add_empty_text,
    add_hover,
    make_figure,
    models,
)

HEIGHT = 260
TALLEST = 2.0
"""Times the highest bar: a range that goes beyond ends there, with an arrow, or the bars could not be told apart."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One quantity of one way: the median of its rounds, the least and the greatest of them."""

    way: str
    quantity: str
    middle: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True, slots=True)
class SideBySideInfo:
    """Bars in the order of the ways; ``by`` says what a way is, ``axis`` and ``unit`` what is drawn."""

    title: str
    by: str
    bars: tuple[Bar, ...]
    note: str = ""
    axis: str = "latency (ms)"
    unit: str = "ms"
    middle: str = "median"


def side_by_side_info(
    rounds: Iterable[Mapping[str, Any]], by: str, quantities: Sequence[str], *, title: str
) -> SideBySideInfo:
    """From measured rounds, mappings that have the way under ``by`` and latencies under names like ``p50_ms``."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for each in rounds:
        found.setdefault(str(each[by]), []).append(each)
    bars = []
    for way, own in found.items():
        for name in quantities:
            figures = np.array([float(each[name]) for each in own])
            low, middle, high = np.percentile(figures, (0, 50, 100))
            bars.append(Bar(way, name.removesuffix("_ms"), float(middle), float(low), float(high), len(own)))
    note = f"bars: the median of the rounds; lines: their range (n = {bars[0].rounds})" if bars else ""
    return SideBySideInfo(title, f"{by} (percentile of latency)", tuple(bars), note)


def draw_side_by_side(info: SideBySideInfo) -> Chart:
    """The figure with its sources ``bars`` and ``ranges``."""
    frame = Frame(
        info.by,
        info.axis,
        HEIGHT,
        x_range=models.FactorRange(*_factors(info), range_padding=0.1, group_padding=0.6),
    )
    fig = make_figure(frame)
    source, ranges = ColumnDataSource(_bars(info)), ColumnDataSource(_ranges(info))
    bars = fig.vbar("at", top="middle", width=0.8, source=source, fill_color="colour", line_color=None)
    fig.multi_line("xs", "ys", source=ranges, line_color=TEXT, line_width=1.5, line_dash="solid")
    fig.add_layout(
        models.LabelSet(
            x="at", y="top", text="text", source=source, text_align="center", text_baseline="bottom", y_offset=3,
            text_font=value(FONT), text_font_size="12px", text_color=TEXT,
        )
    )  # fmt: skip
    fig.y_range.range_padding = 0.2
    fig.y_range.start = 0
    fig.xaxis.group_text_font_size = "12px"
    fig.xaxis.group_text_color = MUTED
    shown = f"@low{{0,0.000}} … @high{{0,0.000}} {info.unit}"
    tips = [("", "@quantity"), (info.middle, f"@middle{{0,0.000}} {info.unit}"), ("range", shown)]
    add_hover(fig, [bars], [*tips, ("rounds", "@rounds")])
    empty = add_empty_text(fig, "Nothing measured")
    empty.visible = not info.bars
    return Chart(
        fig,
        {"bars": source, "ranges": ranges},
        info.title,
        HEIGHT,
        note=info.note,
        legend=_legend(info),
        parts={"empty": empty},
    )


def update_side_by_side(chart: Chart, info: SideBySideInfo) -> None:
    """Brings a drawn chart up to date."""
    fig: Any = chart.figure
    factors = _factors(info)
    if list(fig.x_range.factors) != factors:
        fig.x_range.factors = factors
    chart.title, chart.note, chart.legend = info.title, info.note, _legend(info)
    chart.fill("bars", _bars(info))
    chart.fill("ranges", _ranges(info))
    empty: Any = chart.parts["empty"]
    empty.visible = not info.bars


def _factors(info: SideBySideInfo) -> list[Any]:
    """Where the bars stand: by their ways, and within those by quantity where there are several."""
    several = len({bar.quantity for bar in info.bars}) > 1
    return [(bar.way, bar.quantity) if several else bar.way for bar in info.bars]


def _bars(info: SideBySideInfo) -> Columns:
    columns: Columns = {name: [] for name in ("middle", "text", "colour", "quantity", "low", "high", "top", "rounds")}
    columns["at"] = _factors(info)
    limit = _limit(info)
    for bar in info.bars:
        columns["middle"].append(bar.middle)
        text = f"{bar.middle:,.1f}" if bar.middle >= 10 else f"{bar.middle:,.2f}"
        columns["text"].append(f"{text} ↑" if bar.high > limit else text)
        columns["top"].append(min(bar.high, limit))
        columns["colour"].append(QUANTITY.get(bar.quantity, QUANTITY["mean"]))
        columns["quantity"].append(bar.quantity)
        columns["low"].append(bar.low)
        columns["high"].append(bar.high)
        columns["rounds"].append(bar.rounds)
    return columns


def _ranges(info: SideBySideInfo) -> Columns:
    limit = _limit(info)
    return {
        "xs": [[at, at] for at in _factors(info)],
        "ys": [[bar.low, min(bar.high, limit)] for bar in info.bars],
    }


def _limit(info: SideBySideInfo) -> float:
    return TALLEST * max((bar.middle for bar in info.bars), default=0.0)


def _legend(info: SideBySideInfo) -> tuple[LegendEntry, ...]:
    shown = dict.fromkeys(bar.quantity for bar in info.bars)
    return tuple(LegendEntry(name, QUANTITY.get(name, QUANTITY["mean"])) for name in shown)
