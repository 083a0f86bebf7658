"""What all charts share: the frame, fonts, the header above the data, the words where there is nothing to draw.

The title and the legend are not part of the figure: whoever shows a chart puts them above it as text
(:meth:`Chart.header`), so they wrap with the page, never cover data and are read by screen readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import bokeh.models
import numpy as np
from bokeh.models import ColumnDataSource, FactorRange, LayoutDOM, Model, NumeralTickFormatter
from bokeh.plotting import figure

models: Any = bokeh.models
"""Bokeh's models, untyped: its stubs describe the generated initialisers wrongly or leave models out."""

Columns = dict[str, Any]
"""Column name -> values, all of one length."""

LOG_TICKS = [m * 10.0**power for power in range(-3, 6) for m in (1, 2, 3, 5)]
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
TEXT, MUTED, LINE, GRID = "#1f2933", "#52606d", "#9aa5b1", "#e4e7eb"


Mark = Literal["line", "dotted", "dashed", "box"]
"""How a legend entry is drawn; any other text (such as "▲") is shown itself, in the entry's colour."""


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """One entry of a legend."""

    label: str
    colour: str
    mark: str = "box"


@dataclass(slots=True)
class Chart:
    """A drawn chart: ``figure`` for a page, ``sources`` for the data, ``parts`` for what an update has to touch.

    Unpacks as ``figure, sources``. ``title``, ``note`` and ``legend`` are shown above the figure.
    """

    figure: LayoutDOM
    sources: dict[str, ColumnDataSource]
    title: str
    height: int
    note: str = ""
    legend: tuple[LegendEntry, ...] = ()
    parts: dict[str, Model] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Any]:
        yield self.figure
        yield self.sources

    @property
    def header(self) -> dict[str, Any]:
        """Title, note and legend as plain values."""
        entries = [{"label": e.label, "colour": e.colour, "mark": e.mark} for e in self.legend]
        return {"title": self.title, "note": self.note, "legend": entries}

    def fill(self, name: str, columns: Columns) -> None:
        """Replaces the data of one source, unless it is what is there already."""
        source = self.sources[name]
        data: Any = source.data
        if not _same(data, columns):
            source.data = columns


@dataclass(frozen=True, slots=True)
class Frame:
    """How the frame of a chart is made."""

    x_label: str
    y_label: str
    height: int
    x_range: Any = None
    y_max: float | None = None
    tools: str = ""
    log_y: bool = False


def _same(old: Mapping[str, Any], new: Columns) -> bool:
    if set(old) != set(new):
        return False
    for name, values in new.items():
        before = old[name]
        if len(before) != len(values):
            return False
        if isinstance(values, np.ndarray) and values.dtype.kind == "f":
            if not np.array_equal(np.asarray(before, dtype=float), values, equal_nan=True):
                return False
        elif list(before) != list(values):
            return False
    return True


def make_figure(frame: Frame) -> Any:
    """An empty figure in the house's style; its y axis starts at 0 unless it is logarithmic, its
    width follows the page."""
    ranges: dict[str, Any] = {} if frame.x_range is None else {"x_range": frame.x_range}
    if frame.y_max is not None:
        ranges["y_range"] = models.Range1d(0, frame.y_max)
    fig: Any = figure(
        height=frame.height,
        sizing_mode="stretch_width",
        tools=frame.tools,
        toolbar_location="right" if frame.tools else None,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_left=58,
        min_border_right=12,
        y_axis_type="log" if frame.log_y else "linear",
        **ranges,
    )
    if frame.y_max is None:
        if not frame.log_y:
            fig.y_range.start = 0
        fig.y_range.range_padding = 0.08
        fig.y_range.only_visible = True
    fig.toolbar.logo = None
    fig.toolbar.autohide = True
    fig.xaxis.axis_label = frame.x_label
    fig.yaxis.axis_label = frame.y_label
    for axis in fig.axis:
        axis.axis_label_text_font = FONT
        axis.axis_label_text_font_size = "12px"
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_color = MUTED
        axis.axis_label_standoff = 6
        axis.major_label_text_font = FONT
        axis.major_label_text_font_size = "11px"
        axis.major_label_text_color = MUTED
        axis.axis_line_color = LINE
        axis.major_tick_line_color = LINE
        axis.major_tick_in = 0
        axis.major_tick_out = 4
        axis.minor_tick_line_color = None
    fig.yaxis.formatter = NumeralTickFormatter(format="0,0.[000]")
    if frame.log_y:
        # Bokeh's own ticks are spaced evenly below two decades, and leave the lower half of the axis without a number.
        fig.yaxis.ticker = models.FixedTicker(ticks=LOG_TICKS)
        fig.ygrid.ticker = models.FixedTicker(ticks=LOG_TICKS)
    else:
        fig.yaxis.ticker.desired_num_ticks = 5
    if not isinstance(fig.x_range, FactorRange):
        fig.xaxis.formatter = NumeralTickFormatter(format="0,0.[00]")
    fig.grid.grid_line_color = GRID
    fig.xgrid.grid_line_color = None
    return fig


def add_empty_text(fig: Any, text: str) -> Any:
    """Words in the middle of the frame, shown while there is nothing to draw."""
    label = models.Label(
        x=models.Node(target="frame", symbol="center"),
        y=models.Node(target="frame", symbol="center"),
        text=text,
        text_align="center",
        text_baseline="middle",
        text_font=FONT,
        text_font_size="12px",
        text_color=MUTED,
        level="overlay",
    )
    fig.add_layout(label)
    return label


def add_hover(fig: Any, renderers: Sequence[Any], tooltips: Sequence[tuple[str, str]], mode: str = "mouse") -> None:
    """A tooltip with the exact figures of what is under the pointer."""
    fig.add_tools(models.HoverTool(renderers=list(renderers), tooltips=list(tooltips), mode=mode, visible=False))


def has_unit(label: str) -> bool:
    """Whether an axis label ends with a unit in brackets."""
    return label.endswith(")") and "(" in label and not label.endswith("()")
