"""One request as a waterfall: its phases, what it waited for, what was made for it, who shared its batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bokeh.models import ColumnDataSource, FixedTicker

from workbench.charts.palette import GREY, QUANTITY
from workbench.charts.style import Chart, Columns, Frame, LegendEntry, add_empty_text, add_hover, make_figure, models
from workbench.records.waterfall import Bar, WaterfallData

ROW_HEIGHT = 20
LEFT = 168
LETTERS = 26
EMPTY = "Click on a request (dot) or a batch (bar) to see where its time went"
PHASE_COLOUR: dict[str, str] = {
    "before the queue": GREY,
    "queue": QUANTITY["queue"],
    "compute input": QUANTITY["compute_input"],
    "compute infer": QUANTITY["compute_infer"],
    "compute output": QUANTITY["compute_output"],
    "answer": GREY,
    "steps": "#B9C2CB",
    "other batch": "#D8A48F",
}
"""Colour of each phase of a request."""

_LEGEND = {
    "before the queue": "before the queue, answer",
    "answer": "before the queue, answer",
    "steps": "its steps",
    "other batch": "another batch on its instance",
}
_COLUMNS = ("left", "right", "row", "colour", "alpha", "what", "phase", "took", "about")
_ABOUT = {"request": "the request", "mate": "in the same batch", "child": "made for it", "before": "it waited for this"}


def draw_waterfall(data: WaterfallData | None) -> Chart:
    """The figure and its source ``phases``; without a request the words say how to choose one."""
    fig = make_figure(Frame("time (ms)", "", 80, x_range=models.Range1d(0, 1), y_max=1))
    fig.min_border_left = LEFT
    fig.ygrid.grid_line_color = None
    source = ColumnDataSource({name: [] for name in _COLUMNS})
    bars = fig.hbar(
        y="row", left="left", right="right", height=0.7, source=source, fill_color="colour", fill_alpha="alpha",
        line_color=None,
    )  # fmt: skip
    add_hover(fig, [bars], [("", "@what, @about"), ("@phase", "@took{0,0.000} ms")])
    empty = add_empty_text(fig, EMPTY)
    chart = Chart(fig, {"phases": source}, "Waterfall", 80, parts={"empty": empty})
    update_waterfall(chart, data)
    return chart


def update_waterfall(chart: Chart, data: WaterfallData | None) -> None:
    """Shows another request."""
    fig: Any = chart.figure
    bars = data.bars if data is not None else ()
    columns, labels, whole = _columns(bars)
    axis: Any = fig.yaxis[0]
    axis.ticker = FixedTicker(ticks=sorted(labels))
    axis.major_label_overrides = labels
    fig.y_range.end = max(1, len(bars))
    fig.x_range.end = whole
    fig.height = chart.height = 52 + ROW_HEIGHT * max(1, len(bars))
    chart.fill("phases", columns)
    entries = {_LEGEND.get(name, name): PHASE_COLOUR[name] for name in PHASE_COLOUR if name in columns["phase"]}
    chart.legend = tuple(LegendEntry(label, colour) for label, colour in entries.items())
    chart.title = data.title if data is not None else "Waterfall"
    chart.note = " ".join((data.sentence, *data.notes)) if data is not None else ""
    empty: Any = chart.parts["empty"]
    empty.visible = not bars
    for part in (fig.xaxis, fig.yaxis):
        part.visible = bool(bars)


def _columns(bars: Sequence[Bar]) -> tuple[Columns, dict[float, str], float]:
    """The source's columns, the names of the rows, and how long all of it is (ms)."""
    begin = min((start for bar in bars for _, start, _ in bar.phases), default=0)
    end = max((stop for bar in bars for _, _, stop in bar.phases), default=begin + 1)
    columns: Columns = {name: [] for name in _COLUMNS}
    labels = {}
    for index, bar in enumerate(bars):
        row = len(bars) - 0.5 - index
        labels[row] = _label(bar)
        for name, start, stop in bar.phases:
            columns["left"].append((start - begin) / 1e6)
            columns["right"].append((stop - begin) / 1e6)
            columns["row"].append(row)
            columns["colour"].append(PHASE_COLOUR[name])
            columns["alpha"].append(0.5 if bar.kind == "mate" else 1.0)
            columns["what"].append(bar.label.strip())
            columns["phase"].append(name)
            columns["took"].append((stop - start) / 1e6)
            columns["about"].append(_ABOUT[bar.kind] + (f", {bar.rows} rows" if bar.kind == "before" else ""))
    return columns, labels, max(1e-6, (end - begin) / 1e6)


def _label(bar: Bar) -> str:
    text = f"{'↳' * bar.depth} {bar.label.strip()}".strip()
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 8]}…{text[-7:]}"
