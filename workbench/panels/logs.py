"""What models and server say: a live list to filter, and of a line's request the record and where its time went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ipywidgets as W

from workbench.charts.style import Chart
from workbench.charts.waterfall import PHASE_COLOUR
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.panels.base import Panel, error_html, stale_badge
from workbench.panels.html import chip, escape, number, table
from workbench.panels.log_view import KEEP, LogView
from workbench.panels.model_choice import ALL, offer_models
from workbench.records.log_settings import LEVELS
from workbench.records.waterfall import phases_of
from workbench.session.logs import LogCursor, LogFilter, LogLine, LogLines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.session.server import Server
    from workbench.session.state import SessionSnapshot

EMPTY = "Nothing has been logged yet. A model logs with pb_utils.Logger and print; what it raises appears by itself."
EMPTY_FILTERED = "No line fits these filters."
STATIC_LINES = 60


class LogsPanel(Panel):
    """Lines by model, level, request, text and response time; a click shows the request's record and how to replay it.

    Args:
        server: what is shown.
        model: of this model alone, to begin with.
        level: the least important lines that are shown, to begin with.
        request: of this request alone, to begin with: a number of a record, or an id as a text.
        text: lines with this text, to begin with.
        slower_than_ms: of requests that took so long, to begin with.
    """

    title = "Logs"

    def __init__(
        self,
        server: Server,
        *,
        model: str | None = None,
        level: str = "verbose",
        request: int | str | None = None,
        text: str = "",
        slower_than_ms: float | None = None,
    ) -> None:
        super().__init__(server)
        start = LogFilter(model, level, request, text, slower_than_ms, KEEP)  # says what is wrong with it
        self._wanted = start
        self._shown: tuple[LogFilter, LogCursor] | None = None
        self._lines = LogLines((), LogCursor())
        self._selected: int | None = None
        self._complaint = ""
        self._head = W.HTML(layout=W.Layout(flex="1 1 auto"))
        self._model = W.Dropdown(options=[ALL, *([model] if model else [])], value=model or ALL, layout=_box("150px"))
        self._level = W.Dropdown(
            options=[(_LEVEL_WORDS[each], each) for each in LEVELS], value=level, layout=_box("150px")
        )
        shown = f'"{request}"' if isinstance(request, str) and request.isdigit() else request
        self._request = _text_box("" if shown is None else str(shown), "request: number or id", "150px")
        self._words = _text_box(text, "text", "150px")
        self._slower = _text_box("" if slower_than_ms is None else f"{slower_than_ms:g}", "slower than (ms)", "120px")
        self._follow = W.ToggleButton(
            value=True,
            description="Following",
            icon="play",
            tooltip="Show new lines as they come",
            layout=_box("104px"),
        )
        self._clear = W.Button(description="All lines", tooltip="Take the filters away", layout=_box("84px"))
        self._list = LogView(on_select=self._clicked, on_views=self._views_changed)
        self._detail = W.HTML()
        self._only = W.Button(description="Only this request", layout=_box("140px"))
        self._detail_box = W.VBox([self._detail, self._only], layout=W.Layout(width="100%", display="none"))
        for widget in (self._model, self._level, self._request, self._words, self._slower):
            widget.observe(lambda _: self._filter(), "value")
        self._follow.observe(lambda _: self._toggle(), "value")
        self._clear.on_click(lambda _: self._clear_filters())
        self._only.on_click(lambda _: self._only_selected())
        filters = [self._model, self._level, self._request, self._words, self._slower, self._clear, self._follow]
        row = W.HBox(filters, layout=W.Layout(width="100%", flex_flow="row wrap", margin="4px 0 6px", grid_gap="6px"))
        self._build([self._head, row, self._list, self._detail_box])

    def _watched(self) -> list[Any]:
        return [self._list]

    # ------------------------------------------------------------ showing

    def _show(self, snapshot: SessionSnapshot) -> None:
        offer_models(self._model, snapshot.models.names)
        badge = self._complaint + stale_badge(snapshot)
        if not self._follow.value and self._shown is not None:
            self._head.value = _head_html(self._lines, f"paused {badge}")
            return
        try:
            lines = self.state.logs(self._wanted)
        except WorkbenchError as error:
            self._head.value = error_html(error)
            self._list.show((), anew=True, empty="")
            return
        key = self._wanted, lines.cursor
        if key != self._shown:
            anew = self._shown is None or self._shown[0] != self._wanted
            self._list.show(lines, anew=anew, empty=EMPTY if self._wanted == _EVERYTHING else EMPTY_FILTERED)
            self._shown, self._lines = key, lines
        self._head.value = _head_html(lines, badge)

    def _filter(self) -> None:
        """A filter was changed: the list is another one."""
        with self._lock:
            try:
                wanted = self._read_filters()
            except InvalidRequest as error:
                self._complaint = error_html(error)
            else:
                self._complaint = ""
                if wanted != self._wanted:
                    self._wanted, self._shown = wanted, None
        self.refresh()

    def _read_filters(self) -> LogFilter:
        slower = self._slower.value.strip().replace(",", ".")
        try:
            slower_ms = float(slower) if slower else None
        except ValueError:
            raise InvalidRequest(f"'{slower}' is no time", hint="slower than: milliseconds, such as 50") from None
        model = None if self._model.value == ALL else self._model.value
        request = as_request(self._request.value)
        return LogFilter(model, self._level.value, request, self._words.value, slower_ms, KEEP)

    def _clear_filters(self) -> None:
        with self._lock:
            for box in (self._request, self._words, self._slower):
                box.value = ""
            self._level.value, self._model.value = LEVELS[0], ALL
        self._filter()

    def _toggle(self) -> None:
        follows = self._follow.value
        self._follow.description = "Following" if follows else "Paused"
        self._follow.icon = "play" if follows else "pause"
        self.refresh()

    # ------------------------------------------------------------ a line's request

    def _clicked(self, key: str) -> None:
        with self._lock:
            line = next((line for line in self._lines if line.key == key), None)
        if line is not None:
            self.select(line)

    def select(self, line: LogLine) -> None:
        """Shows the record of a line's request; of several the slowest, with the others beside it."""
        if not line.seqs:
            self._show_detail("", None)
            return

        def look_up() -> tuple[list[dict[str, Any]], set[int]]:
            rows = [row for seq in line.seqs if (row := self.state.request(seq)) is not None]
            return rows, {each.seq for each in self.server.captured()} if rows else set()

        def done(found: tuple[list[dict[str, Any]], set[int]]) -> None:
            rows, kept = found
            if not rows:
                text = f"Request {line.request} of {line.model} runs, or ended too long ago for its record to be kept."
                self._show_detail(f'<span class="wb-muted">{escape(text)}</span>', line.seqs[0])
                return
            rows.sort(key=lambda row: -row["response_ms"])
            self._show_detail(record_html(rows[0], rows, int(rows[0]["seq"]) in kept), int(rows[0]["seq"]))

        self._command(
            f"show request {line.request}", look_up, done, lambda error: self._show_detail(error_html(error), None)
        )

    def _show_detail(self, html: str, seq: int | None) -> None:
        self._detail.value = html
        self._selected = seq
        self._detail_box.layout.display = None if html else "none"
        self._only.layout.display = None if seq is not None else "none"

    def _only_selected(self) -> None:
        if self._selected is not None:
            self._request.value = str(self._selected)

    # ------------------------------------------------------------ without a page

    def _static(self) -> list[str | Chart]:
        shown = self._lines[-STATIC_LINES:]
        rows = [[escape(text) for text in _cells(line)] for line in shown]
        blocks: list[str | Chart] = [_head_html(self._lines, ""), table(_HEADERS, rows, left=len(_HEADERS))]
        traces = [f'<pre class="wb-mono">{escape(line.traceback)}</pre>' for line in shown if line.traceback]
        return [*blocks, *traces[-3:], self._detail.value]

    def _text(self) -> str:
        return f"{self.title} of {self.server.name}\n{self._lines!r}"


_EVERYTHING = LogFilter(last=KEEP)
_HEADERS = ("time", "level", "model", "request", "response", "where", "text")
_LEVEL_WORDS = {"verbose": "all levels", "info": "info and above", "warning": "warnings, errors", "error": "errors"}


def _box(width: str) -> W.Layout:
    return W.Layout(width=width)


def _text_box(value: str, placeholder: str, width: str) -> W.Text:
    return W.Text(value=value, placeholder=placeholder, continuous_update=False, layout=_box(width))


def as_request(text: str) -> int | str | None:
    """What is typed for a request: digits are the number of a record, anything else, or in quotes, an id."""
    text = text.strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def _cells(line: LogLine) -> tuple[str, ...]:
    return line.time, line.level, line.model, line.request, line.response, line.where, line.text[:300]


def _head_html(lines: LogLines, state: str) -> str:
    errors = sum(line.level == "error" for line in lines)
    count = f"{len(lines)} lines" if len(lines) < KEEP else f"the last {KEEP} lines"
    tone = chip(f"{errors} errors", "bad") if errors else ""
    return f'<div class="wb-head"><b>Logs</b> <span class="wb-muted">{count}</span> {tone} {state}</div>'


def record_html(row: Mapping[str, Any], batch: list[dict[str, Any]], kept: bool) -> str:
    """A request's record: what it was, where its time went, what was made for it, and how to run it again.

    Args:
        row: the record, as ``SessionState.request`` gives it.
        batch: the records of all requests that the line belongs to.
        kept: whether its inputs are kept for ``replay``.
    """
    seq, status = int(row["seq"]), str(row["status"])
    state = chip("ok", "ok") if status == "ok" else chip(status.lower(), "bad")
    about = [f"<b>Request {seq}</b>", state, f"<b>{number(float(row['response_ms']), 2)} ms</b>"]
    facts = [
        ("model", f"{row['model']} version {row['version']}"), ("id", row["request_id"]), ("instance", row["instance"]),
        ("rows", row["rows"]), ("client", row["client"]), ("epoch", row["epoch"]),
        ("made for request", row["parent_seq"] if row["parent_seq"] >= 0 else ""),
    ]  # fmt: skip
    about += [f'<span class="wb-muted">{name}</span> {escape(value)}' for name, value in facts if value != ""]
    parts = [f'<div class="wb-head">{" ".join(f"<span>{each}</span>" for each in about)}</div>', split_html(row)]
    ways = [f"server.waterfall({seq})", f"server.logs(request={seq})"]
    if kept:
        ways.insert(0, f"server.replay({seq})")
    note = (
        "" if kept else ' <span class="wb-muted">its inputs are not kept: replay takes failed and slowest ones</span>'
    )
    parts.append(f'<div class="wb-source">{escape(chr(10).join(ways))}</div>{note}')
    for title, rows in (("made for it", row["children"]), (f"in the same batch of {len(batch)}", batch[1:])):
        if rows:
            shown = ", ".join(
                f"{each['seq']} {each['model']} {float(each['response_ms']):.1f} ms" for each in rows[:12]
            )
            more = f" and {len(rows) - 12} more" if len(rows) > 12 else ""
            parts.append(f'<div><span class="wb-muted">{title}:</span> {escape(shown + more)}</div>')
    if row["error"]:
        parts.append(f'<div class="wb-source">{escape(row["error"])}</div>')
    return "".join(parts)


def split_html(row: Mapping[str, Any]) -> str:
    """Where the time of a request went: a bar and its parts; stamps that it never reached are left out."""
    whole = max(1, int(row["end"]) - int(row["arrival"]))
    found = [(name, end - begin, PHASE_COLOUR[name]) for name, begin, end in phases_of(row)]
    box = "display:inline-block;height:10px"
    bar = "".join(
        f'<span title="{name}" style="{box};width:{100 * ns / whole:.3f}%;background:{colour}"></span>'
        for name, ns, colour in found
    )
    words = "".join(
        f'<span><span style="color:{colour}">■</span> {name} <b>{number(ns / 1e6, 2)}</b> ms</span>'
        for name, ns, colour in found
        if ns * 1000 >= whole
    )
    return (
        f'<div style="margin:4px 0;line-height:10px;white-space:nowrap">{bar}</div><div class="wb-head">{words}</div>'
    )
