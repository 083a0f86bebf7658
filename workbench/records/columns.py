"""Request and batch records as columns: the ring that the engine writes, and their form on the wire.

Times are nanoseconds of ``CLOCK_MONOTONIC``; a stamp that a request never reached (it was rejected, say) is 0.
Writing is what every request pays for, so it is a number drawn and one tuple, without a lock; what the requests of a
batch have in common is written once, and making columns of the tuples is left to who reads them. Each row carries its
number: a reader sees by it which rows have been overwritten meanwhile and which are still being written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.clock import monotonic_ns, sleep
from workbench.errors import InvalidRequest

if TYPE_CHECKING:
    import pandas as pd

REQUEST_COLUMNS: dict[str, str] = {
    "seq": "int64",
    "model": "str",
    "version": "int64",
    "epoch": "int64",
    "request_id": "str",
    "client": "str",
    "parent_seq": "int64",
    "priority": "int64",
    "rows": "int64",
    "shape_key": "str",
    "arrival": "int64",
    "queue_start": "int64",
    "compute_start": "int64",
    "compute_input_end": "int64",
    "compute_output_start": "int64",
    "compute_end": "int64",
    "end": "int64",
    "batch_seq": "int64",
    "instance": "str",
    "status": "str",
    "error": "str",
}
"""Columns of one request: name -> numpy dtype, or ``str``. ``status`` is ``ok`` or what kind of failure it was."""

BATCH_COLUMNS: dict[str, str] = {
    "batch_seq": "int64",
    "model": "str",
    "epoch": "int64",
    "instance": "str",
    "rows": "int64",
    "requests": "int64",
    "reason": "str",
    "acquired": "int64",
    "done": "int64",
}
"""Columns of one executed batch. ``reason`` is one of ``workbench.scheduling.interface.Reason``."""

Columns = dict[str, NDArray[Any]]

MAX_ID = 1024
MAX_ERROR = 4096
"""What is kept of a request's id and of an error's text: clients and models choose them, and the ring must be bounded.
"""

MAX_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records read from a ring.

    ``requests`` and ``batches`` map column names to arrays of one length each (int64, or object arrays of ``str``).
    ``last_seq`` is the cursor to read on from (it counts requests and batches together; not the ``seq`` column).
    ``lost`` says how many rows after the asked cursor were overwritten before they could be read.
    """

    requests: Columns
    batches: Columns
    last_seq: int
    lost: int = 0

    def to_frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The same as two DataFrames: requests, batches."""
        import pandas as pd

        return pd.DataFrame(self.requests), pd.DataFrame(self.batches)


Row = tuple[Any, ...]
"""A row of a ring: its number, then what it says. A batch, or what stands for one, has ``_BATCH_ROW``; a request has
the row of its batch in the second place and then ``_REQUEST_ROW``: requests of a batch have its part in common."""

_BATCH_ROW = (
    "batch_seq", "model", "version", "epoch", "instance", "rows", "requests", "reason", "acquired", "done",
    "compute_start", "compute_input_end", "compute_output_start", "compute_end",
)  # fmt: skip
_REQUEST_ROW = (
    "seq", "request_id", "client", "parent_seq", "priority", "rows", "shape_key", "arrival", "queue_start", "end",
    "status", "error",
)  # fmt: skip

_NEVER: Row = (-1,)
_CHUNK = 1024
"""Rows that become columns at once: more would keep the interpreter from other threads for longer."""

_IN_FLIGHT = 64
"""Threads that may have drawn a number and not yet written its row: so far a look goes past a row that is not there."""

_TRIES, _TRY_S = 10, 0.0005
_GIVE_UP_NS = 1_000_000_000


def _as_columns(columns: Mapping[str, str], chunks: Sequence[Mapping[str, Sequence[Any]]]) -> Columns:
    """Rows that have been turned into lists by name, as arrays."""
    out: Columns = {}
    for name, kind in columns.items():
        make = _text_array if kind == "str" else _int_array
        arrays = [make(chunk[name]) for chunk in chunks]
        out[name] = np.concatenate(arrays) if arrays else make(())
    return out


def _by_name(names: Sequence[str], rows: Sequence[Row], begin: int) -> dict[str, Sequence[Any]]:
    return dict(zip(names, list(zip(*rows, strict=True))[begin:], strict=True))


def _request_columns(rows: list[Row]) -> Columns:
    pieces = [rows[at : at + _CHUNK] for at in range(0, len(rows), _CHUNK)]
    # a request's own fields come last: it has ``rows`` too
    return _as_columns(
        REQUEST_COLUMNS,
        [_by_name(_BATCH_ROW, [row[1] for row in piece], 1) | _by_name(_REQUEST_ROW, piece, 2) for piece in pieces],
    )


def _batch_columns(rows: list[Row]) -> Columns:
    pieces = [rows[at : at + _CHUNK] for at in range(0, len(rows), _CHUNK)]
    return _as_columns(BATCH_COLUMNS, [_by_name(_BATCH_ROW, piece, 1) for piece in pieces])


def _int_array(values: Sequence[Any]) -> NDArray[Any]:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array([min(value, MAX_INT64) for value in values], dtype=np.int64)


def _text_array(values: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(values), dtype=np.object_)
    array[:] = values if set(map(type, values)) <= {str} else _as_texts(values)
    return array


def _as_texts(values: Sequence[Any]) -> list[str]:
    """Texts of values that are few and often the same (shape keys)."""
    known = {value: "" if value is None else str(value) for value in set(values)}
    return [known[value] for value in values]


def shortened(text: str, limit: int) -> str:
    """A text, or the beginning of a longer one with how much is left out."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit} more characters)"


def _settled() -> None:
    """Rows are written as things happen."""


class RecordRing:
    """The last ``capacity`` requests, and the batches that they were in: twice as many rows of either kind.

    They are fewer where requests are in several batches each, as those of an iterative sequence, in one a step.

    Adding is O(1), about 0.4 microseconds in a busy engine; reading never stops who adds. Thread-safe. A row takes some
    250 bytes.

    The engine, for which a call is dear, writes rows itself: ``number = draw()``, then ``rows[number % size]``. To draw
    is one call of a built-in, which no other thread can interrupt. While ``writing`` is False, it writes none.
    """

    def __init__(self, capacity: int = 65536) -> None:
        if capacity < 2:
            raise InvalidRequest(f"a record ring needs a capacity of at least 2, got {capacity}")
        self.capacity = capacity
        self.size = 2 * capacity
        self.rows: list[Row] = [_NEVER] * self.size
        self.draw = count().__next__
        self.writing = True
        self.settle: Callable[[], object] = _settled
        """Called before a look: waits for rows of what has happened already."""
        self._known = 0  # the number after a row that was there when somebody looked
        self._missing: dict[int, int] = {}  # rows that readers have missed, and since when

    @property
    def last_seq(self) -> int:
        """The cursor of the newest row; -1 when nothing has been written."""
        return self._end() - 1

    def add_request(
        self,
        model: str,
        version: int,
        epoch: int,
        request_id: str,
        client: str,
        parent_seq: int,
        priority: int,
        rows: int,
        shape_key: object,
        arrival: int,
        queue_start: int,
        compute_start: int,
        compute_input_end: int,
        compute_output_start: int,
        compute_end: int,
        end: int,
        batch_seq: int,
        instance: str,
        status: str,
        error: str = "",
        seq: int = -1,
    ) -> int:
        """Writes one request that has ended and gives its ``seq``.

        ``seq`` may be given by a caller that numbers requests as they arrive (so that children can name their parent
        before the parent ends); -1 takes the next free number. ``shape_key`` may be anything with a ``str`` form.
        A priority, on the wire an unsigned number of 64 bits, is read as the largest that the column holds if it is
        beyond that.
        """
        number = self.draw()
        if seq < 0:
            seq = number
        if error or request_id:
            error, request_id = shortened(error, MAX_ERROR), shortened(request_id, MAX_ID)
        batch = (
            -1, batch_seq, model, version, epoch, instance, 0, 0, "", 0, 0, compute_start, compute_input_end,
            compute_output_start, compute_end,
        )  # fmt: skip
        self.rows[number % self.size] = (
            number, batch, seq, request_id, client, parent_seq, priority, rows, shape_key, arrival, queue_start, end,
            status, error,
        )  # fmt: skip
        return seq

    def add_batch(
        self,
        batch_seq: int,
        model: str,
        epoch: int,
        instance: str,
        rows: int,
        requests: int,
        reason: str,
        acquired: int,
        done: int,
    ) -> None:
        """Writes one executed batch."""
        number = self.draw()
        self.rows[number % self.size] = (
            number, batch_seq, model, 0, epoch, instance, rows, requests, reason, acquired, done, 0, 0, 0, done,
        )  # fmt: skip

    def read(self, after_seq: int = -1) -> RecordColumns:
        """What was written after the cursor ``after_seq`` (``last_seq`` of an earlier read; -1: everything kept).

        A cursor from the future (of a server that has restarted since) or below -1 reads everything. A row that another
        thread is writing right now is waited for, a few milliseconds at most; after that it and what came behind it is
        left for the next read.
        """
        self.settle()
        end = self._end()
        if after_seq >= end or after_seq < -1:
            after_seq = -1
        for attempt in range(_TRIES + 1):
            found, missing = self._between(max(after_seq + 1, end - self.size), end)
            if not missing:
                break
            if attempt < _TRIES:
                sleep(_TRY_S)
            elif (first := self._first_awaited(missing)) >= 0:
                end = first
                found = [row for row in found if row[0] < end]
        requests = [row for row in found if row[1].__class__ is tuple]
        batches = [row for row in found if row[1].__class__ is not tuple]
        lost = end - 1 - after_seq - len(found)
        return RecordColumns(_request_columns(requests), _batch_columns(batches), end - 1, lost)

    def _end(self) -> int:
        """The number after the newest row."""
        rows, size, end = self.rows, self.size, self._known
        while True:
            number = rows[end % size][0]
            if number >= end:
                low, high = number + 1, number + size  # the newest is not a whole round further
                while low < high:
                    middle = (low + high) // 2
                    if rows[middle % size][0] >= middle:
                        low = middle + 1
                    else:
                        high = middle
                end = low
            further = range(end + 1, end + min(_IN_FLIGHT, size))
            beyond = next((number for number in further if rows[number % size][0] >= number), -1)
            if beyond < 0:
                self._known = end
                return end
            end = beyond

    def _between(self, first: int, end: int) -> tuple[list[Row], list[int]]:
        """The rows of these numbers that are (still) there, in order; the numbers of those that are not there yet."""
        if first >= end:
            return [], []
        start, stop = first % self.size, (end - 1) % self.size + 1
        rows = self.rows[start:stop] if start < stop else self.rows[start:] + self.rows[:stop]
        numbers = [row[0] for row in rows]
        if numbers == list(range(first, end)):
            return rows, []
        missing: list[int] = []
        for index, number in enumerate(numbers):
            if number > first + index:  # overwritten meanwhile; and so were those before it
                missing.clear()
            elif number < first + index:
                missing.append(first + index)
        return [row for index, row in enumerate(rows) if row[0] == first + index], missing

    def _first_awaited(self, missing: list[int]) -> int:
        """The first of these rows that may still come, or -1: a thread that was interrupted does not write its own."""
        now, since = monotonic_ns(), self._missing
        oldest = missing[-1] - self.size
        kept = {number: when for number, when in since.items() if number > oldest}  # else overwritten by now
        self._missing = kept | {number: kept.get(number, now) for number in missing}
        return next((number for number in missing if now - kept.get(number, now) < _GIVE_UP_NS), -1)


def encode_columns(columns: RecordColumns) -> tuple[bytes, list[bytes]]:
    """The wire form: a JSON header and raw little-endian buffers in the header's order.

    Numbers are int64; strings are int32 codes into a list of distinct values that the header carries.
    """
    import orjson

    buffers: list[bytes] = []
    header: dict[str, Any] = {"last_seq": columns.last_seq, "lost": columns.lost}
    for table_name, table in (("requests", columns.requests), ("batches", columns.batches)):
        described = []
        for name, array in table.items():
            entry: dict[str, Any] = {"name": name, "n": len(array)}
            if array.dtype == np.object_:
                codes, values = _codes(array)
                entry.update(datatype="str", values=values)
                raw = codes.astype("<i4", copy=False).tobytes()
            else:
                entry["datatype"] = "int64"
                raw = array.astype("<i8", copy=False).tobytes()
            entry["bytes"] = len(raw)
            buffers.append(raw)
            described.append(entry)
        header[table_name] = described
    return orjson.dumps(header), buffers


def _codes(array: NDArray[Any]) -> tuple[NDArray[np.int32], list[str]]:
    values: list[str] = array.tolist()
    distinct = list(dict.fromkeys(values))
    if len(distinct) == 1:
        return np.zeros(len(values), dtype=np.int32), distinct
    index = {value: code for code, value in enumerate(distinct)}
    return np.fromiter(map(index.__getitem__, values), dtype=np.int32, count=len(values)), distinct


def decode_columns(header: bytes, body: bytes | memoryview | Sequence[bytes]) -> RecordColumns:
    """Reads what ``encode_columns`` wrote; ``body`` is the buffers, one after the other or as a list.

    Raises:
        InvalidRequest: the header and the buffers do not fit each other.
    """
    import orjson

    joined = memoryview(body if isinstance(body, bytes | memoryview) else b"".join(body))
    try:
        described = orjson.loads(header)
        offset = 0
        tables: dict[str, Columns] = {}
        for table_name in ("requests", "batches"):
            table: Columns = {}
            for entry in described[table_name]:
                part = joined[offset : offset + entry["bytes"]]
                if len(part) != entry["bytes"]:
                    raise InvalidRequest(f"records end too early in column '{entry['name']}'")
                offset += entry["bytes"]
                table[entry["name"]] = _decode_column(entry, part)
            tables[table_name] = table
        return RecordColumns(tables["requests"], tables["batches"], int(described["last_seq"]), int(described["lost"]))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InvalidRequest(f"cannot read records: {type(error).__name__}: {error}") from error


def _decode_column(entry: Mapping[str, Any], part: memoryview) -> NDArray[Any]:
    if entry["datatype"] != "str":
        return np.frombuffer(part, dtype="<i8").astype(np.int64)
    values = np.empty(len(entry["values"]), dtype=np.object_)
    values[:] = entry["values"]
    codes = np.frombuffer(part, dtype="<i4")
    return values[codes] if len(values) else np.empty(0, dtype=np.object_)
