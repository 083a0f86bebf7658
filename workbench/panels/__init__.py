"""Views of a session's state in a notebook: ipywidgets forms and Bokeh charts.

``panel(server, "overview")`` gives the widget. What there is: ``PANELS``. ``before_after(point, point)`` compares two
measured points.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from workbench.errors import NotFound

if TYPE_CHECKING:
    from workbench.panels.base import ChartView, Panel
    from workbench.profiling import Point
    from workbench.session.server import Server

PANELS: dict[str, tuple[str, str]] = {
    "overview": ("workbench.panels.overview", "OverviewPanel"),
    "config": ("workbench.panels.config", "ConfigPanel"),
    "live": ("workbench.panels.live", "LivePanel"),
    "sweep": ("workbench.panels.sweep", "SweepPanel"),
    "devices": ("workbench.panels.devices", "DevicesPanel"),
}
"""Name → (module, class)."""


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


__all__ = ["PANELS", "before_after", "panel"]
