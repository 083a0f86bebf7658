"""Views of a session's state in a notebook: ipywidgets forms and Bokeh charts.

``panel(server, "overview")`` gives the widget. What there is: ``PANELS``. ``before_after(point, point)`` compares two
measured points, ``side_by_side(rounds)`` several ways to do a thing, ``steps(breakdown)`` the steps of a pipeline.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from workbench.errors import NotFound

if TYPE_CHECKING:
    import pandas as pd

    from workbench.charts.style import Chart
    from workbench.panels.base import ChartView, Panel
    from workbench.profiling import Point
    from workbench.session.server import Server

PANELS: dict[str, tuple[str, str]] = {
    "overview": ("workbench.panels.overview", "OverviewPanel"),
    "config": ("workbench.panels.config", "ConfigPanel"),
    "live": ("workbench.panels.live", "LivePanel"),
    "sweep": ("workbench.panels.sweep", "SweepPanel"),
    "compare": ("workbench.panels.compare", "ComparePanel"),
    "ensemble": ("workbench.panels.ensemble", "EnsemblePanel"),
    "logs": ("workbench.panels.logs", "LogsPanel"),
    "timeline": ("workbench.panels.timeline", "TimelinePanel"),
    "devices": ("workbench.panels.devices", "DevicesPanel"),
}
"""Name → (module, class)."""

_LATENCIES = ("p50_ms", "p99_ms")


def panel(server: Server, name: str = "overview", **options: Any) -> Panel:
    """A panel over a server, to be shown as the last thing of a cell.

    Args:
        server: what ``serve``, ``Engine``, ``connect`` or ``attach`` gave.
        name: one of ``PANELS``.
        options: those of the panel, such as ``model="tokenizer"``.

    Raises:
        NotFound: no panel has this name.
    """
    if name not in PANELS:
        raise NotFound(f"no panel {name!r}", where="panel()", hint=f"there are: {', '.join(PANELS)}")
    module, kind = PANELS[name]
    made: Panel = getattr(importlib.import_module(module), kind)(server, **options)
    return made


def before_after(before: Point, after: Point) -> ChartView:
    """Two measured points side by side: throughput and latency before and after tuning."""
    from workbench.charts.before_after import before_after_info, draw_before_after
    from workbench.panels.base import ChartView
    from workbench.panels.sweep_view import point_row

    return ChartView(draw_before_after, before_after_info(point_row(before), point_row(after)))


def side_by_side(rounds: pd.DataFrame, *, by: str, title: str, quantities: Sequence[str] = _LATENCIES) -> ChartView:
    """Several ways to do a thing beside each other: for each the median of its rounds, and their range.

    Args:
        rounds: one row a measured round.
        by: the column that says which way a round is of.
        title: what is shown above the chart.
        quantities: columns in milliseconds.
    """
    from workbench.charts.side_by_side import draw_side_by_side, side_by_side_info
    from workbench.panels.base import ChartView

    rows: Any = rounds.to_dict("records")
    return ChartView(draw_side_by_side, side_by_side_info(rows, by, quantities, title=title))


def steps(breakdown: pd.DataFrame, *, title: str = "Where the time of a request goes") -> ChartView:
    """What ``server.breakdown(model)`` gave, as bars: queue and compute of each step."""
    from workbench.charts.breakdown import draw_breakdown, steps_info
    from workbench.panels.base import ChartView

    shown = breakdown.iloc[:-1]
    columns: Any = {str(step): row for step, row in shown.dropna(subset="queue_ms").iterrows()}
    return ChartView(partial(draw_breakdown, x_label="step (of a request)"), steps_info(columns, title=title))


def chart_bundle(draw: Callable[[Any], Chart], info: Any, text: str, still: Any = None) -> Any:
    """A chart as what a notebook's cell shows, for results below this room: the chart, its picture, ``text``."""
    from workbench.panels.base import ChartView

    return ChartView(draw, info, text=text, still=still)._repr_mimebundle_()


__all__ = ["PANELS", "before_after", "chart_bundle", "panel", "side_by_side", "steps"]
