"""``server.logs()``: what models and server said, beside the requests that they said it for.

A line is an event of the server (``server.events()``); the end of a request is a row of its record
(``server.records()``). A ``LogBook`` takes both as they come, keeps the latest, and puts them together: each line gets
the response time and status of its requests, and a request that said something, failed or was slow gets a line for its
end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from workbench.clock import sleep
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.records.columns import REQUEST_COLUMNS
from workbench.records.log_settings import LEVELS
from workbench.session.results import _table

if TYPE_CHECKING:
    import pandas as pd

    from workbench.records import Event, RecordColumns
    from workbench.session.telling import TellingServer

LINES = 5000
REQUESTS = 20_000
"""What a book keeps: the latest lines, and of the latest requests how they ended."""

LAST = 500
FOLLOW_EVERY_S = 0.2
_SHOWN = 40
_FAILED = frozenset(("BACKEND", "REJECTED", "OTHER"))


class LogCursor(NamedTuple):
    """How far a result of ``logs`` goes: give it as ``after`` for what comes behind."""

    event: int = -1
    record: int = -1


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line.

    ``wall_ms`` is the time since the epoch. ``source`` is ``logger`` (``pb_utils.Logger``), ``stdout`` or ``stderr``
    (printed), ``error`` (raised; with the Python ``traceback``), ``server``, or ``request``: the end of the requests
    ``seqs``. ``seqs`` (numbers of the records) and ``request_ids`` are the requests of the batch that was executed;
    ``response_ms`` is the longest of their response times, NaN before they have ended, and ``status`` is ``ok`` or how
    one of them failed, empty before.
    """

    wall_ms: int
    level: str
    source: str
    model: str
    text: str
    version: int = 0
    instance: str = ""
    seqs: tuple[int, ...] = ()
    request_ids: tuple[str, ...] = ()
    batch_seq: int = -1
    file: str = ""
    line: int = 0
    traceback: str = ""
    response_ms: float = math.nan
    status: str = ""
    time_ns: int = 0
    key: str = ""

    @property
    def time(self) -> str:
        """The time of day, UTC."""
        return f"{datetime.fromtimestamp(self.wall_ms / 1000, UTC):%H:%M:%S.%f}"[:-3]

    @property
    def where(self) -> str:
        """File and line, where they are known."""
        return f"{self.file}:{self.line}" if self.file else ""

    @property
    def request(self) -> str:
        """The request in a few words: its number and id; of several the first, and how many more."""
        if not self.seqs:
            return ""
        ids = f' "{self.request_ids[0][:40]}"' if self.request_ids and self.request_ids[0] else ""
        more = f" +{len(self.seqs) - 1}" if len(self.seqs) > 1 else ""
        return f"{self.seqs[0]}{ids}{more}"

    @property
    def response(self) -> str:
        """The response time and, where it is not ok, the status."""
        if math.isnan(self.response_ms):
            return ""
        return f"{self.response_ms:.1f} ms" + ("" if self.status == "ok" else f" {self.status}")

    def __str__(self) -> str:
        parts = (self.time, self.level, self.model, f"[{self.request}]" if self.seqs else "", self.where, self.text)
        text = " ".join(part for part in parts if part)
        return text + (f"\n{self.traceback}" if self.traceback else "")


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which lines are wanted; see ``Server.logs``.

    Raises:
        InvalidRequest: there is no such level, or a time or a request that is none.
    """

    model: str | None = None
    level: str = "verbose"
    request: int | str | None = None
    text: str = ""
    slower_than_ms: float | None = None
    last: int | None = LAST

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise InvalidRequest(f"no level {self.level!r}", where="logs()", hint=f"there are: {', '.join(LEVELS)}")
        if isinstance(self.request, bool) or not isinstance(self.request, int | np.integer | str | None):
            raise InvalidRequest(
                f"request is the number of a record or an id, got {self.request!r:.80}",
                where="logs()",
                hint="seq of a row of records(), or the id as a text",
            )
        if self.slower_than_ms is not None and not self.slower_than_ms >= 0:
            raise InvalidRequest(f"slower_than_ms is a time, got {self.slower_than_ms!r}", where="logs()")
        if self.last is not None and self.last < 1:
            raise InvalidRequest(f"last is how many lines, got {self.last!r}", where="logs()")

    def takes(self, line: LogLine) -> bool:
        """Whether a line is wanted by its model, level, text and response time."""
        return (
            (self.model is None or line.model == self.model)
            and LEVELS.index(line.level) >= LEVELS.index(self.level)
            and (not self.text or self.text.lower() in f"{line.text}\n{line.traceback}".lower())
            and (self.slower_than_ms is None or line.response_ms >= self.slower_than_ms)
        )


class LogLines(Sequence[LogLine]):
    """Lines, the newest last. ``cursor`` is where they end."""

    def __init__(self, lines: Sequence[LogLine], cursor: LogCursor, server: str = "") -> None:
        self._lines = tuple(lines)
        self.cursor = cursor
        self._server = server

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, key: int) -> LogLine: ...
    @overload
    def __getitem__(self, key: slice) -> LogLines: ...
    def __getitem__(self, key: int | slice) -> LogLine | LogLines:
        found = self._lines[key]
        return found if isinstance(found, LogLine) else LogLines(found, self.cursor, self._server)

    def to_frame(self) -> pd.DataFrame:
        """One row a line: the fields of ``LogLine``, with ``time`` (UTC) first."""
        import pandas as pd

        names = [each.name for each in fields(LogLine) if each.name not in ("wall_ms", "key")]
        frame = pd.DataFrame([{name: getattr(line, name) for name in names} for line in self._lines], columns=names)
        frame.insert(0, "time", pd.to_datetime([line.wall_ms for line in self._lines], unit="ms", utc=True))
        return frame

    def __repr__(self) -> str:
        if not self._lines:
            return "no lines"
        shown = self._lines[-_SHOWN:]
        rows = [
            (line.time, line.level, line.model, line.request, line.response, line.where, _first(line.text, 110))
            for line in shown
        ]
        text = _table(("time", "level", "model", "request", "response", "where", "text"), rows)
        if len(shown) < len(self._lines):
            text = f"the last {len(shown)} of {len(self._lines)} lines\n{text}"
        raised = next((line for line in reversed(shown) if line.traceback), None)
        if raised is not None:
            text += f"\n\nthe error at {raised.time}:\n" + "\n".join(raised.traceback.splitlines()[-24:])
        return text


def _first(text: str, limit: int) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"


class LogBook:
    """The latest lines and ends of requests of one server. Not thread-safe: its owner has a lock."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.cursor = LogCursor()
        self._lines: dict[str, LogLine] = {}
        self._open: set[str] = set()  # keys of lines whose requests have not all ended
        self._parents: dict[int, int] = {}  # of requests that said something
        self._outcomes: dict[int, tuple[float, str, str]] = {}  # seq: response time in ms, status, id
        self._chunks: list[dict[str, Any]] = []

    def add(self, events: Sequence[Event], columns: RecordColumns | None, ahead_ms: float) -> bool:
        """Takes what is new; ``ahead_ms`` is how far the wall clock is ahead of the records'. Whether there was any."""
        if events and events[-1].seq < self.cursor.event:
            self._clear()  # the server has started anew
        before = event, record = self.cursor
        for each in events:
            if each.seq > event:
                event = each.seq
                self._add_event(each)
            ahead_ms = max(ahead_ms, each.wall_ms - each.time_ns / 1e6)
        if columns is not None:
            record = columns.last_seq
            self._add_ends(columns.requests, ahead_ms)
        self.cursor = LogCursor(event, record)
        self._close_lines()
        return self.cursor != before

    def _add_event(self, event: Event) -> None:
        line = _of_event(event)
        if event.kind == "instance" and any(
            (each.model, each.text) == (line.model, line.text)
            for each in itertools.islice(reversed(self._lines.values()), 50)
        ):
            return  # the log has said it
        self._lines[line.key] = line
        if line.seqs:
            self._open.add(line.key)
            self._parents.update(zip(line.seqs, event.data.get("parents", ()), strict=False))
        if len(self._lines) > LINES:
            self._open.discard(key := next(iter(self._lines)))
            gone = self._lines.pop(key)
            for seq in gone.seqs:
                self._parents.pop(seq, None)

    def _add_ends(self, requests: Mapping[str, Any], ahead_ms: float) -> None:
        new = [seq not in self._outcomes for seq in requests["seq"].tolist()]
        if not any(new):
            return
        chunk = {name: requests[name][new] for name in REQUEST_COLUMNS}
        chunk["wall_ms"] = chunk["end"] / 1e6 + ahead_ms
        chunk["response_ms"] = (chunk["end"] - chunk["arrival"]) / 1e6
        self._chunks.append(chunk)
        outcomes = zip(chunk["response_ms"].tolist(), chunk["status"], chunk["request_id"], strict=True)
        self._outcomes.update(zip(chunk["seq"].tolist(), outcomes, strict=True))
        while len(self._outcomes) - len(self._chunks[0]["seq"]) >= REQUESTS:
            for seq in self._chunks.pop(0)["seq"].tolist():
                del self._outcomes[seq]

    def _close_lines(self) -> None:
        """Gives lines the response time, status and ids of their requests, once all of those have ended."""
        for key in list(self._open):
            line = self._lines[key]
            ends = [self._outcomes[seq] for seq in line.seqs if seq in self._outcomes]
            if len(ends) < len(line.seqs):
                continue
            times, statuses, ids = zip(*ends, strict=True)
            status = next((each for each in statuses if each != "ok"), "ok")
            ids = ids if any(ids) else ()
            self._lines[key] = replace(line, response_ms=max(times), status=status, request_ids=ids)
            self._open.discard(key)

    def select(self, wanted: LogFilter, told: frozenset[int] = frozenset()) -> list[LogLine]:
        """The lines that a filter takes, by time; those for the ends of requests without the requests in ``told``."""
        lines = list(self._lines.values())
        ended = self._ended()
        seqs = ended["seq"]
        raised = {seq for line in lines if line.source == "error" for seq in line.seqs}
        if wanted.request is not None:
            family = self._family(wanted.request, ended)
            lines = [line for line in lines if not family.isdisjoint(line.seqs)]
            chosen = np.isin(seqs, list(family))
        else:
            spoke = {seq for line in lines if line.source != "server" for seq in line.seqs}
            chosen = np.isin(ended["status"], list(_FAILED)) | np.isin(seqs, list(spoke))
            if wanted.slower_than_ms is not None:
                chosen |= ended["response_ms"] >= wanted.slower_than_ms
        if told:
            chosen &= ~np.isin(seqs, list(told))
        lines += _ends(np.flatnonzero(chosen), ended, raised)
        lines = sorted((line for line in lines if wanted.takes(line)), key=lambda line: line.time_ns)
        return lines if wanted.last is None else lines[-wanted.last :]

    def known(self, seqs: Iterable[int]) -> frozenset[int]:
        """Which of these requests have ended, as far as that is kept."""
        return frozenset(self._outcomes.keys() & set(seqs))

    def request(self, seq: int) -> dict[str, Any] | None:
        """The record of a request that has ended, with ``response_ms``; ``children`` are of requests made for it."""
        ended = self._ended()
        found = np.flatnonzero(ended["seq"] == seq)
        if not len(found):
            return None
        row = {name: ended[name][found[-1]] for name in ended}
        made = np.flatnonzero(ended["parent_seq"] == seq)
        row["children"] = [{name: ended[name][index] for name in ended} for index in made]
        return row

    def _ended(self) -> dict[str, Any]:
        if len(self._chunks) > 1:
            self._chunks = [{name: np.concatenate([each[name] for each in self._chunks]) for name in self._chunks[0]}]
        if not self._chunks:
            return {name: np.empty(0, np.int64) for name in (*REQUEST_COLUMNS, "wall_ms", "response_ms")}
        return self._chunks[0]

    def _family(self, request: int | str, ended: Mapping[str, Any]) -> set[int]:
        """The numbers of the requests of a number or an id, and of all that were made for them."""
        if isinstance(request, str):
            family = set(ended["seq"][ended["request_id"] == request].tolist())
            for line in self._lines.values():
                family |= {seq for seq, id in zip(line.seqs, line.request_ids, strict=False) if id == request}
        else:
            family = {int(request)}
        new = family
        while new:
            made = set(ended["seq"][np.isin(ended["parent_seq"], list(new))].tolist())
            made |= {seq for seq, parent in self._parents.items() if parent in new}
            new = made - family
            family = family | new
        return family


def _of_event(event: Event) -> LogLine:
    data = event.data
    return LogLine(
        wall_ms=event.wall_ms,
        level=event.level if event.level in LEVELS else "info",
        source=data.get("source", "server"),
        model=event.model,
        text=event.text,
        version=int(data.get("version") or 0),
        instance=str(data.get("instance", "")),
        seqs=tuple(data.get("seqs", ())),
        request_ids=tuple(data.get("request_ids", ())),
        batch_seq=int(data.get("batch_seq", -1)),
        file=str(data.get("file", "")),
        line=int(data.get("line", 0)),
        traceback=str(data.get("traceback", "")),
        time_ns=event.time_ns,
        key=f"e{event.seq}",
    )


def _ends(rows: Any, ended: Mapping[str, Any], raised: set[int]) -> list[LogLine]:
    """A line for the end of each request; those of one batch, or that failed alike one after the other, share one."""
    groups: list[list[int]] = []
    before: Any = None
    for row in rows.tolist():
        batch = ended["batch_seq"][row]
        same = ended["model"][row], ended["version"][row], batch, ended["status"][row], ended["error"][row]
        if same == before and (batch >= 0 or ended["status"][row] != "ok"):
            groups[-1].append(row)
        else:
            groups.append([row])
        before = same
    return [_end(group, ended, raised) for group in groups]


def _end(rows: Sequence[int], ended: Mapping[str, Any], raised: set[int]) -> LogLine:
    first, last = rows[0], rows[-1]
    status = str(ended["status"][first])
    times = [float(ended["response_ms"][row]) for row in rows]
    seqs = tuple(int(ended["seq"][row]) for row in rows)
    verb = "ok in" if status == "ok" else "cancelled after" if status == "CANCELED" else "failed after"
    if len(rows) == 1:
        text = f"{verb} {times[0]:.1f} ms"
        start = ended["compute_start"][first]
        if start:
            queued = (start - ended["queue_start"][first]) / 1e6
            text += f" (queue {queued:.1f}, compute {(ended['compute_end'][first] - start) / 1e6:.1f})"
    else:
        text = f"{len(rows)} requests {verb} {min(times):.1f} to {max(times):.1f} ms"
    if ended["error"][first] and seqs[0] not in raised:  # else the line of what was raised says it
        text += f": {ended['error'][first]}"
    ids = tuple(str(ended["request_id"][row]) for row in rows)
    return LogLine(
        wall_ms=int(ended["wall_ms"][last]),
        level="error" if status in _FAILED else "info",
        source="request",
        model=str(ended["model"][first]),
        text=text,
        version=int(ended["version"][first]),
        instance=str(ended["instance"][first]),
        seqs=seqs,
        request_ids=ids if any(ids) else (),
        batch_seq=int(ended["batch_seq"][first]),
        response_ms=max(times),
        status=status,
        time_ns=int(ended["end"][last]),
        key=f"r{seqs[0]}",
    )


def read_into(book: LogBook, server: TellingServer) -> bool:
    """Brings a book up to date; whether there was anything new.

    Raises:
        Unsupported: a remote Triton tells neither lines nor records.
    """
    state = server.state()
    # in this order: of a request whose end is known, every line is known too
    columns = server.record_columns(book.cursor.record)
    events = server.events(book.cursor.event)
    return book.add(events, columns, wall_ahead_ms(state))


def wall_ahead_ms(state: Mapping[str, Any]) -> float:
    """How far the wall clock of a server is ahead of that of its records, from ``Server.state``."""
    return int(state["wall_ms"]) - int(state["time_ns"]) / 1e6


def read(server: TellingServer, wanted: LogFilter, after: LogCursor | None) -> LogLines:
    """See ``Server.logs``."""
    book = LogBook()
    book.cursor = after or LogCursor()
    read_into(book, server)
    return LogLines(book.select(wanted), book.cursor, server.name)


def follow(server: TellingServer, wanted: LogFilter, after: LogCursor | None) -> Iterator[LogLine]:
    """See ``Server.logs``."""
    book = LogBook()
    book.cursor = after or LogCursor()
    whole, kept = replace(wanted, last=None), wanted.last
    seen: set[str] = set()
    told: frozenset[int] = frozenset()  # requests whose end has been said: those that end alike later have a new line
    while True:
        try:
            new = read_into(book, server)
        except WorkbenchError:
            if server.closed:
                return
            raise
        if new:
            lines = book.select(whole, told)
            fresh = [line for line in lines if line.key not in seen]
            seen = {line.key for line in lines if line.source != "request"}
            told = book.known(told.union(*(line.seqs for line in lines if line.source == "request")))
            yield from fresh if kept is None else fresh[-kept:]
        kept = None
        sleep(FOLLOW_EVERY_S)
