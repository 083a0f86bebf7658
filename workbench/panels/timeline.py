"""The last seconds request by request: latencies, the batches of each instance, queues; a click explains one."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np

from workbench.charts.style import Chart
from workbench.charts.timeline import TimelineInfo, draw_timeline, timeline_info, update_timeline
from workbench.charts.waterfall import draw_waterfall, update_waterfall
from workbench.errors import InvalidRequest, NotFound, WorkbenchError
from workbench.panels.base import Panel, error_html, stale_badge
from workbench.panels.logs import as_request
from workbench.panels.model_choice import ALL, offer_models
from workbench.records import RecordColumns, RecordRing
from workbench.records.timeline import ended_since, timeline_of
from workbench.records.waterfall import WaterfallData, waterfall_of

if TYPE_CHECKING:
    from workbench.session.server import Server
    from workbench.session.state import SessionSnapshot

WINDOWS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
LIVE_BARS = 1200
"""Batches, and requests, drawn while the panel follows: all of them are sent at each turn."""
MARGIN_S = 1.0
"""Records before the window that are looked at, too: what its first requests waited for."""


class TimelinePanel(Panel):
    """The last seconds of one model, or of all; a click on a request or a batch shows a request's waterfall.

    Args:
        server: what is shown.
        model: of this model and what is made for it, to begin with; None is all.
        seconds: how much time is shown, to begin with.
        request: a request whose waterfall is shown, to begin with: ``seq`` of a record, or an id as a text.
    """

    title = "Timeline"

    def __init__(
        self, server: Server, *, model: str | None = None, seconds: float = 2.0, request: int | str | None = None
    ) -> None:
        super().__init__(server)
        if not 0 < seconds <= WINDOWS[-1]:
            raise InvalidRequest(f"seconds must be above 0 and at most {WINDOWS[-1]:g}, got {seconds!r:.40}")
        names = [ALL, *server.session.snapshot().models.names]
        if model is not None and model not in names:
            names.append(model)
        self._model = W.Dropdown(options=names, value=model or ALL, layout=W.Layout(width="190px"))
        windows = sorted({*WINDOWS, float(seconds)})
        self._window = W.Dropdown(
            options=[(f"last {each:g} s", each) for each in windows], value=float(seconds),
            layout=W.Layout(width="110px"),
        )  # fmt: skip
        self._request = W.Text(
            placeholder="request: number or id", continuous_update=False, layout=W.Layout(width="170px")
        )
        self._follow = W.ToggleButton(
            value=True, description="Following", icon="play", tooltip="Show what comes, or hold still to look closely",
            layout=W.Layout(width="104px"),
        )  # fmt: skip
        self._head = W.HTML(layout=W.Layout(flex="1 1 auto"))
        self._said = W.HTML()
        self._records: tuple[RecordColumns, int] = (RecordRing(2).read(), 0)
        self._times = self._chart(
            draw_timeline, update_timeline, self._info(), select={"requests": "seq", "batches": "batch_seq"},
            on_select=self._clicked,
        )  # fmt: skip
        nothing: WaterfallData | None = None
        self._falls = self._chart(draw_waterfall, update_waterfall, nothing)
        for widget in (self._model, self._window):
            widget.observe(lambda _: self._changed(), "value")
        self._follow.observe(lambda _: self._toggle(), "value")
        self._request.observe(lambda _: self._typed(), "value")
        row = W.HBox(
            [self._model, self._window, self._follow, self._request, self._head],
            layout=W.Layout(width="100%", flex_flow="row wrap", grid_gap="6px", align_items="center"),
        )
        self._build([row, self._times.view, self._said, self._falls.view])
        if request is not None:
            self.select(request)

    @property
    def model(self) -> str | None:
        """The model that is shown; None is all."""
        return None if self._model.value == ALL else str(self._model.value)

    # ------------------------------------------------------------ showing

    def _show(self, snapshot: SessionSnapshot) -> None:
        offer_models(self._model, snapshot.models.names)
        self._head.value = f'<div class="wb-head">{stale_badge(snapshot)}</div>'
        if self._follow.value:
            try:
                self._records = self.state.recent_records(float(self._window.value) + MARGIN_S)
            except WorkbenchError as error:
                self._said.value = error_html(error)
                return
            self._times.show(self._info())

    def _info(self) -> TimelineInfo:
        columns, now = self._records
        seconds = float(self._window.value)
        requests = columns.requests
        mine = requests["end"] if self.model is None else requests["end"][requests["model"] == self.model]
        newest = int(mine.max(initial=0))
        idle_s = (now - newest) / 1e9 if newest else 0.0
        if idle_s > seconds:  # what came last stays to be looked at
            now = newest
        columns = ended_since(columns, now - int((seconds + MARGIN_S) * 1e9))
        try:
            data = timeline_of(columns, now, model=self.model, last_s=seconds)
        except NotFound:  # of this model; of others there may be records
            data = timeline_of(RecordRing(2).read(), now, last_s=seconds)
        info = timeline_info(data, window_s=seconds, limit=LIVE_BARS)
        if idle_s <= seconds:
            return info
        note = f"nothing ended for {idle_s:,.0f} s, shown is what came before: {info.note}"
        return replace(info, note=note, x_label="time relative to the newest request (ms)")

    def _changed(self) -> None:
        if self._follow.value:
            self.refresh()
            return
        with self._lock:
            self._times.show(self._info())

    def _toggle(self) -> None:
        follows = self._follow.value
        self._follow.description = "Following" if follows else "Paused"
        self._follow.icon = "play" if follows else "pause"
        if not follows:
            with contextlib.suppress(WorkbenchError), self._lock:  # for a longer window, chosen later
                self._records = (self.state.recent_records(WINDOWS[-1] + MARGIN_S)[0], self._records[1])
        self.refresh()

    # ------------------------------------------------------------ one request

    def _typed(self) -> None:
        wanted = as_request(self._request.value)
        if wanted is not None:
            self.select(wanted)

    def _clicked(self, source: str, key: Any) -> None:
        if source == "requests":
            self.select(int(key))
            return
        with self._lock:
            requests = self._records[0].requests
        inside = np.flatnonzero(requests["batch_seq"] == int(key))
        if int(key) >= 0 and len(inside):  # of a batch the request that took longest
            took = (requests["end"] - requests["arrival"])[inside]
            self.select(int(requests["seq"][inside[np.argmax(took)]]))

    def select(self, request: int | str) -> None:
        """Shows the waterfall of a request: the ``seq`` of its record, or its id as a text."""

        def look_up() -> WaterfallData:
            try:
                with self._lock:
                    columns = self._records[0]
                return waterfall_of(columns, request)
            except NotFound:  # longer ago
                return self.server.waterfall(request).data

        def done(found: WaterfallData) -> None:
            self._said.value = ""
            self._falls.show(found)

        def failed(error: Exception) -> None:
            self._said.value = error_html(error)

        self._command(f"show request {request}", look_up, done, failed)

    # ------------------------------------------------------------ without a page

    def _static(self) -> list[str | Chart]:
        blocks: list[str | Chart] = [self._head.value, self._times.draw_again(), self._said.value]
        return blocks if self._falls.info is None else [*blocks, self._falls.draw_again()]

    def _text(self) -> str:
        info = self._times.info
        lines = [f"{info.title}, last {self._window.value:g} s: {info.note}"]
        if self._falls.info is not None:
            lines += ["", self._falls.info.to_text()]
        return "\n".join(lines)
