"""What is loaded, and is it healthy: models, their states and instances, what they do now, what happened lately."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from workbench.charts.strips import StripInfo, draw_strip, update_strip
from workbench.charts.style import Chart
from workbench.panels.base import Panel, error_html, stale_badge
from workbench.panels.html import NONE, cells, chip, escape, number, state_chip, table
from workbench.panels.routing import answer_while_busy
from workbench.panels.views import all_models_throughput, history_of, recent

if TYPE_CHECKING:
    from workbench.session.results import ModelRow
    from workbench.session.server import Server
    from workbench.session.state import SessionSnapshot

COLUMNS = (  # model … failed; beside an open sidebar of JupyterLab there are some 750 px
    "minmax(110px,2fr) 84px minmax(74px,1fr) minmax(48px,62px) 58px 54px 44px minmax(46px,66px) "
    "minmax(50px,58px) minmax(50px,58px) minmax(34px,44px)"
)
HEADERS = (
    "model",
    "state",
    "backend",
    "batching",
    "max batch",
    "instances",
    "waiting",
    "infer/s",
    "p50 (ms)",
    "p99 (ms)",
    "failed",
)
EVENTS = 9
KINDS = {"process": "background process", "kernel": "in this kernel", "remote": "remote server"}


class OverviewPanel(Panel):
    """The table of models with load, reload and unload; the throughput of all; the last events."""

    title = "Overview"

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._head = W.HTML()
        self._rows: dict[tuple[str, str], _Row] = {}
        self._table = W.VBox([], layout=W.Layout(width="100%"))
        self._result = W.HTML()
        self._throughput = self._chart(draw_strip, update_strip, _throughput(None))
        self._events = W.HTML()
        below = W.HBox(
            [
                W.Box([self._throughput.view], layout=W.Layout(width="46%")),
                W.Box([self._events], layout=W.Layout(width="54%", padding="2px 0 0 12px")),
            ],
            layout=W.Layout(width="100%", overflow="hidden"),
        )
        self._build([self._head, self._table, self._result, W.HTML('<div class="wb-rule"></div>'), below])

    # ------------------------------------------------------------ showing

    def _show(self, snapshot: SessionSnapshot) -> None:
        self._head.value = head_html(snapshot)
        self._show_models(snapshot)
        self._throughput.show(_throughput(snapshot))
        self._events.value = events_html(snapshot)

    def _show_models(self, snapshot: SessionSnapshot) -> None:
        keys = [(row.name, row.version) for row in snapshot.models]
        if list(self._rows) != keys:
            self._rows = {key: self._rows.get(key) or _Row(self, key[0]) for key in keys}
            top = cells((text, i > 3) for i, text in enumerate(HEADERS))
            line = W.HTML(f'<div class="wb-row wb-top" style="grid-template-columns:{COLUMNS}">{top}</div>')
            space = W.Box(layout=W.Layout(width=_BUTTONS, flex="0 0 auto"))
            line.layout.flex = "1 1 0"
            header = W.HBox([line, space], layout=W.Layout(width="100%"))
            self._table.children = (header, *(row.box for row in self._rows.values()))
        for row in snapshot.models:
            self._rows[row.name, row.version].show(row, row_html(row, snapshot))

    def _static(self) -> list[str | Chart]:
        snapshot = self.state.snapshot()
        rows = [[c for c, _ in _cells(row, snapshot)] for row in snapshot.models]
        return [
            head_html(snapshot),
            table(HEADERS, rows, left=4),
            self._throughput.draw_again(),
            events_html(snapshot),
        ]

    def _text(self) -> str:
        snapshot = self.state.snapshot()
        return f"{self.server.name} at {self.server.url or 'this kernel'}\n{snapshot.models!r}"

    # ------------------------------------------------------------ doing

    def act(self, verb: str, model: str) -> None:
        """Queues ``load`` (also a reload) or ``unload`` of a model and says how it went."""
        action = {"load": self.server.load, "reload": self.server.load, "unload": self.server.unload}[verb]
        self._result.value = chip(f"{verb} {model} …", "busy")

        def done(_: Any) -> None:
            self._result.value = chip(f"{verb} {model}: done", "ok")

        def failed(error: Exception) -> None:
            self._result.value = f"{escape(verb)} {escape(model)}: {error_html(error)}"

        self._command(f"{verb} {model}", lambda: action(model), done, failed)


_BUTTONS = "148px"


class _Row:
    """One line of the table: the cells, and the buttons that fit the state."""

    def __init__(self, panel: OverviewPanel, model: str) -> None:
        self._cells = W.HTML(layout=W.Layout(flex="1 1 0", min_width="0"))
        self._first = W.Button(description="Reload", layout=W.Layout(width="66px"))
        self._second = W.Button(description="Unload", layout=W.Layout(width="66px"))
        self._first.on_click(lambda _: panel.act(self._first.description.lower(), model))
        self._second.on_click(lambda _: panel.act("unload", model))
        for button in (self._first, self._second):
            button.tooltip = f"{button.description} {model}"
        buttons = W.HBox(
            [self._first, self._second], layout=W.Layout(width=_BUTTONS, flex="0 0 auto", justify_content="flex-end")
        )
        self.box = W.HBox([self._cells, buttons], layout=W.Layout(width="100%", align_items="center"))
        self.box.add_class("wb-line")
        answer_while_busy(self.box)

    def show(self, row: ModelRow, cells: str) -> None:
        self._cells.value = cells
        loaded = row.state in ("READY", "UNLOADING")
        busy = row.state in ("LOADING", "UNLOADING")
        self._first.description = "Reload" if loaded else "Load"
        self._first.disabled = busy
        self._second.disabled = busy or not loaded


def _throughput(snapshot: SessionSnapshot | None) -> StripInfo:
    info = all_models_throughput(snapshot)
    return StripInfo(
        "Throughput of all models", info.quantity, info.unit, info.seconds, info.series, info.empty, height=190
    )


def head_html(snapshot: SessionSnapshot) -> str:
    """The line about the server: name, address, kind, process, control mode, health."""
    about = snapshot.server
    states = Counter(row.state for row in snapshot.models)
    ready = states.get("READY", 0)
    bad = states.get("UNAVAILABLE", 0)
    health = chip(f"{ready} of {len(snapshot.models)} ready", "ok" if ready == len(snapshot.models) else "warn")
    facts = [KINDS.get(str(about.get("kind")), str(about.get("kind")))]
    if about.get("pid"):
        facts.append(f"process {about['pid']}")
    if about.get("control_mode"):
        facts.append(f"model control: {about['control_mode']}")
    url = f'<span class="wb-mono">{escape(about["url"])}</span>' if about.get("url") else ""
    failed = (
        chip(f"{bad} failed to load", "bad")
        if any(r.state == "UNAVAILABLE" and _failed(r) for r in snapshot.models)
        else ""
    )
    return (
        f'<div class="wb-head"><b>{escape(about["name"])}</b>{url}'
        f'<span class="wb-muted">{escape(" · ".join(facts))}</span>'
        f"{health}{failed}{stale_badge(snapshot)}</div>"
    )


def _failed(row: ModelRow) -> bool:
    return bool(row.reason.strip()) and row.reason.strip() != "unloaded"


def _cells(row: ModelRow, snapshot: SessionSnapshot) -> list[tuple[str, bool]]:
    """The cells of a line as (HTML, is a figure)."""
    columns = history_of(snapshot, row.name)
    ready = row.state == "READY"
    dirty = " " + chip("edited", "warn", "the configuration is applied but not saved") if row.dirty else ""
    batching = batching_text(row) if ready else ""
    instances = NONE
    if row.instances >= 0 and ready:
        tone = "ok" if row.healthy == row.instances else "bad"
        instances = str(row.instances) if tone == "ok" else chip(f"{row.healthy}/{row.instances}", tone, "healthy/all")
    version = f' <span class="wb-muted">v{escape(row.version)}</span>' if row.version else ""
    failed = str(row.failures) if not row.failures else chip(str(row.failures), "bad")
    return [
        (f"<b>{escape(row.name)}</b>{version}{dirty}", False),
        (state_chip(row.state), False),
        (f'<span class="wb-muted" title="{escape(_details_text(row))}">{escape(row.backend)}</span>', False),
        (f'<span class="wb-muted" title="{escape(batching)}">{escape(batching)}</span>', False),
        (str(row.max_batch_size) if ready else NONE, True),
        (instances, True),
        (str(row.pending) if ready else NONE, True),
        (number(recent(columns, "throughput")) if ready else NONE, True),
        (number(recent(columns, "p50_ms"), 2) if ready else NONE, True),
        (number(recent(columns, "p99_ms"), 2) if ready else NONE, True),
        (failed if ready else NONE, True),
    ]


def _details_text(row: ModelRow) -> str:
    return ", ".join(f"{about}: {text}" for about, text in row.details.items())


def row_html(row: ModelRow, snapshot: SessionSnapshot) -> str:
    """One line of the table; under it what is wrong with a model or its instances, or the steps of an ensemble."""
    reason = row.reason.strip() if _failed(row) else ""
    below = f'<span class="wb-wide">{escape(reason[:400])}</span>' if reason else steps_html(row, snapshot)
    return f'<div class="wb-row" style="grid-template-columns:{COLUMNS}">{cells(_cells(row, snapshot))}{below}</div>'


def steps_html(row: ModelRow, snapshot: SessionSnapshot) -> str:
    """Where the time of an ensemble's requests goes, now: queue and compute of each step; empty for another model.

    An ensemble has no queue of its own. The figures are those of the steps' models, whoever asks them.
    """
    if not row.steps or row.state != "READY":
        return ""
    parts = []
    for step in row.steps:
        columns = history_of(snapshot, step)
        queue = recent(columns, "queue_ms")
        compute = sum(recent(columns, f"compute_{part}_ms") for part in ("input", "infer", "output"))
        figures = f" <b>{number(queue, 2)}</b> + <b>{number(compute, 2)}</b> ms" if queue == queue else ""
        parts.append(f"{escape(step)}{figures}")
    text = " → ".join(parts)
    return f'<span class="wb-steps wb-muted" title="queue + compute of each step, last 3 s">{text}</span>'


def batching_text(row: ModelRow) -> str:
    """How a model batches, in a word."""
    if row.max_batch_size <= 0:
        return "none"
    return "off" if row.batching in ("", "none") else row.batching


def events_html(snapshot: SessionSnapshot, count: int = EVENTS) -> str:
    """The last events, newest first; what models log and print is in the panel ``logs``."""
    lines = ["<b>Last events</b>"]
    told = [event for event in snapshot.events if event.data.get("source", "error") == "error"]
    for event in told[-count:][::-1]:
        clock = datetime.fromtimestamp(event.wall_ms / 1000, UTC).astimezone().strftime("%H:%M:%S")
        tone = {"error": "bad", "warning": "warn"}.get(event.level, "")
        kind = chip(event.kind, tone) if tone else f'<span class="wb-muted">{escape(event.kind)}</span>'
        text = f"<b>{escape(event.model)}</b> {escape(event.text)}" if event.model else escape(event.text)
        lines.append(
            f'<div class="wb-event" title="{escape(event.text)}"><span class="wb-mono wb-muted">{clock}</span>'
            f"<span>{kind}</span><span>{text}</span></div>"
        )
    if len(lines) == 1:
        lines.append('<div class="wb-muted">Nothing has happened yet</div>')
    return "".join(lines)
