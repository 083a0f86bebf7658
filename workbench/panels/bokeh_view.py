"""BokehView: one Bokeh figure in any notebook, drawn without a CDN and fed without a server.

The figure lives in a Bokeh ``Document`` in the kernel. Whatever is done to it (``source.stream``,
``source.data = ...``) is collected and sent by :meth:`BokehView.flush`: new rows of numbers as one binary frame,
everything else in Bokeh's own patch form. BokehJS comes from the installed ``bokeh`` package, once a page, as
one compressed message; it and the data never enter the saved notebook. A view asks for a snapshot when it appears, so a
chart that is shown late, twice, or after a page reload is complete.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import anywidget
import bokeh
import numpy as np
import traitlets
from bokeh.core.json_encoder import serialize_json
from bokeh.core.serialization import Serialized, Serializer
from bokeh.document import Document
from bokeh.document.events import ColumnsStreamedEvent, DocumentPatchedEvent, TitleChangedEvent
from bokeh.embed import json_item
from bokeh.models import LayoutDOM, Range
from bokeh.util.paths import bokehjs_path

from workbench.panels.routing import answer_while_busy

RangeCallback = Callable[[str, float, float], None]
"""Called as ``callback(range id, start, end)`` when a person has zoomed or panned."""

SelectCallback = Callable[[str, Any], None]
"""Called as ``callback(source id, key)`` when a person has clicked on a glyph."""


@lru_cache(maxsize=1)
def bokehjs_gzip() -> bytes:
    """The installed ``bokeh.min.js``, compressed (about 340 KB)."""
    path = bokehjs_path() / "js" / "bokeh.min.js"
    return gzip.compress(path.read_bytes(), compresslevel=6, mtime=0)


class BokehView(anywidget.AnyWidget):
    """A widget that draws one Bokeh figure or layout.

    Args:
        figure: the figure or layout; it must belong to no other document (one figure, one view object; the view object
            itself may be shown many times).
        label: what the chart shows, in words, for screen readers and for the text form.
        height: the height in pixels that is kept free until the chart is drawn.
        watch: ranges whose changes by the mouse are reported to ``on_range``.
        header: title, note and legend as text above the figure, as ``Chart.header`` gives them.
        on_views: called when a view appears in a page or goes (see :attr:`views`).
        on_range: called with a range's id, start and end at most every 60 ms while a person pans or zooms.
        select: sources whose glyphs can be clicked (the figure has Bokeh's tool ``tap``), each with the column whose
            value is the key of a row.
        on_select: called with a source's id and the key of what was clicked.

    Documents are not thread-safe: change the figure inside ``with view.lock`` and call :meth:`flush`, or pass the
    change to :meth:`update`, from any thread.
    """

    _esm = Path(__file__).parent / "bokeh_view.js"
    _css = Path(__file__).parent / "bokeh_view.css"
    _bokeh_version = traitlets.Unicode(bokeh.__version__).tag(sync=True)
    _height = traitlets.Int(300).tag(sync=True)
    _label = traitlets.Unicode("").tag(sync=True)
    _header = traitlets.Dict().tag(sync=True)
    _watch = traitlets.List(traitlets.Unicode()).tag(sync=True)
    _select = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        figure: LayoutDOM,
        *,
        label: str = "",
        height: int = 300,
        watch: Sequence[Range] = (),
        on_range: RangeCallback | None = None,
        header: dict[str, Any] | None = None,
        on_views: Callable[[], None] | None = None,
        select: Mapping[str, str] | None = None,
        on_select: SelectCallback | None = None,
    ) -> None:
        super().__init__(
            _height=height, _label=label, _watch=[r.id for r in watch], _header=header or {}, _select=dict(select or {})
        )
        self.figure = figure
        self.lock = threading.RLock()
        self._on_range = on_range
        self._on_views = on_views
        self._on_select = on_select
        self._views: set[str] = set()
        self._pending: list[Any] = []
        self._seq = 0
        self._closing = False
        self._document = Document()
        self._document.add_root(figure)
        self._document.on_change(self._collect)
        self.layout.width = "100%"
        self.on_msg(self._receive)
        answer_while_busy(self)

    # ------------------------------------------------------------ from Python to the page

    @property
    def views(self) -> int:
        """How many views in the page have asked for this chart and have not said goodbye."""
        return len(self._views)

    def update(self, change: Callable[[], None]) -> None:
        """Runs ``change`` alone with the figure, then sends what it changed."""
        with self.lock:
            change()
            self.flush()

    def set_header(self, header: dict[str, Any]) -> None:
        """Changes title, note and legend above the figure; sends nothing where they are the same."""
        if header != self._header:
            self._header = header

    def flush(self) -> None:
        """Sends everything that changed since the last call: at most two messages; none where nobody looks."""
        with self.lock:
            events, self._pending = self._pending, []
            if not events or not self._views or self._closing:
                return
            # Order is kept: rows that were streamed after another change must not overtake it.
            run: list[Any] = []
            for event in events:
                if run and (_is_numeric_stream(event) != _is_numeric_stream(run[0])):
                    self._send_run(run)
                    run = []
                run.append(event)
            self._send_run(run)

    def _send_run(self, events: list[Any]) -> None:
        self._seq += 1
        if _is_numeric_stream(events[0]):
            parts: list[dict[str, Any]] = []
            numbers: list[Any] = []
            for event in events:
                columns = {name: np.asarray(values, dtype=np.float64) for name, values in event.data.items()}
                parts.append(
                    {
                        "id": event.model.id,
                        "cols": list(columns),
                        "n": len(next(iter(columns.values()))),
                        "roll": event.rollover,
                    }
                )
                numbers.extend(columns.values())
            self.send({"type": "s", "seq": self._seq, "parts": parts}, [np.concatenate(numbers).tobytes()])
            return
        # Only the list of events goes through the serializer: a dict would come out as a Bokeh "map".
        serializer = Serializer(references=self._document.models.synced_references, deferred=True)
        encoded = serializer.encode(events)
        buffers = serializer.buffers
        # A text, because Bokeh's own encoder knows what stands for a buffer.
        patch = serialize_json(Serialized({"events": encoded}, buffers))
        self._document.models.flush_synced()
        message = {"type": "p", "seq": self._seq, "patch": patch, "ids": [b.id for b in buffers]}
        self.send(message, [b.to_bytes() for b in buffers])

    def _collect(self, event: Any) -> None:
        """Keeps a change for the next flush; what came from the page is not sent back to it."""
        if isinstance(event, TitleChangedEvent) or not isinstance(event, DocumentPatchedEvent):
            return  # json_item() touches the document's title each time
        if event.setter is self:
            return
        with self.lock:
            if self._views:
                self._pending.append(event)

    def _snapshot(self, view: str) -> None:
        with self.lock:
            self.flush()
            self._views.add(view)
            item = json_item(self.figure)
            self._document.models.flush_synced()
            self._pending.clear()
            self.send({"type": "snap", "view": view, "seq": self._seq, "item": item})

    # ------------------------------------------------------------ from the page to Python

    def _receive(self, _widget: object, message: dict[str, Any], _buffers: list[bytes]) -> None:
        kind = message.get("type")
        if kind == "lib?":
            self.send({"type": "lib"}, [bokehjs_gzip()])
        elif kind == "ready":
            self._snapshot(str(message["view"]))
            self._tell_views()
        elif kind == "bye":
            with self.lock:
                self._views.discard(str(message["view"]))
            self._tell_views()
        elif kind == "range":
            self._range_changed(str(message["id"]), message["start"], message["end"])
        elif kind == "select" and message["id"] in self._select and self._on_select is not None:
            self._on_select(str(message["id"]), message["key"])

    def _tell_views(self) -> None:
        if self._on_views is not None and not self._closing:
            self._on_views()

    def _range_changed(self, range_id: str, start: float | None, end: float | None) -> None:
        if range_id not in self._watch or start is None or end is None:
            return
        with self.lock:
            if self._on_range is not None:
                self._on_range(range_id, float(start), float(end))
            self.flush()

    # ------------------------------------------------------------ the rest

    def close(self) -> None:
        """Takes the chart out of the page; the figure can then be used elsewhere."""
        if self._closing:
            return
        with self.lock:
            self._closing = True
            self._views.clear()
            self._pending.clear()
            self._document.remove_on_change(self._collect)
            self._document.clear()
        super().close()

    def __repr__(self) -> str:
        return f"<chart: {self._label or 'Bokeh figure'}>"


def _is_numeric_stream(event: Any) -> bool:
    """True where the event is new rows of nothing but numbers: those travel as raw float64."""
    if not isinstance(event, ColumnsStreamedEvent) or not event.data:
        return False
    return all(np.asarray(values).dtype.kind in "fiub" for values in event.data.values())
