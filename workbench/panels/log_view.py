"""A live list of log lines for a page: a small anywidget that is sent what is new, and says which line was clicked."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from workbench.panels.routing import answer_while_busy
from workbench.session.logs import LogLine

KEEP = 500
"""Lines in the page."""


class LogView(anywidget.AnyWidget):
    """The list. ``show`` sends what differs from what the page has.

    Args:
        on_select: is told the key of a line that was clicked.
        on_views: is told that a view came or went.
    """

    _esm = Path(__file__).parent / "log_view.js"
    _css = Path(__file__).parent / "log_view.css"
    _empty = traitlets.Unicode("").tag(sync=True)

    def __init__(self, *, on_select: Callable[[str], None], on_views: Callable[[], None]) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._rows: dict[str, dict[str, Any]] = {}
        self._views: set[str] = set()
        self._on_select = on_select
        self._on_views = on_views
        self.layout.width = "100%"
        self.on_msg(self._receive)
        answer_while_busy(self)

    @property
    def views(self) -> int:
        """How many views in the page show the list."""
        return len(self._views)

    def show(self, lines: Sequence[LogLine], *, anew: bool, empty: str) -> None:
        """Brings the page up to date; ``anew`` where this is not the same list grown. ``empty``: what no line means."""
        with self._lock:
            rows = {line.key: as_row(line) for line in lines[-KEEP:]}
            changed = [row for key, row in rows.items() if anew or self._rows.get(key) != row]
            self._rows = rows
            if self._empty != empty:
                self._empty = empty
            if self._views and (changed or anew):
                self._send_rows("", changed, anew)

    def _send_rows(self, view: str, rows: Sequence[Mapping[str, Any]], reset: bool) -> None:
        self.send({"type": "rows", "view": view, "reset": reset, "rows": list(rows), "keep": KEEP})

    def _receive(self, _widget: object, message: dict[str, Any], _buffers: list[bytes]) -> None:
        kind = message.get("type")
        if kind == "select":
            self._on_select(str(message["key"]))
        elif kind in ("ready", "bye"):
            view = str(message["view"])
            with self._lock:
                if kind == "ready":
                    self._views.add(view)
                    self._send_rows(view, list(self._rows.values()), True)
                else:
                    self._views.discard(view)
            self._on_views()

    def close(self) -> None:
        """Takes the list out of the page."""
        self._views.clear()
        super().close()


def as_row(line: LogLine) -> dict[str, Any]:
    """A line as the page takes it."""
    return {
        "k": line.key, "n": line.time_ns / 1e3, "t": line.time, "l": line.level, "s": line.source, "m": line.model,
        "q": line.request, "r": "" if math.isnan(line.response_ms) else line.response, "w": line.where, "x": line.text,
        "b": line.traceback, "f": line.status not in ("", "ok"),
    }  # fmt: skip
