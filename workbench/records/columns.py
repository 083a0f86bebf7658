"""Request and batch records as columns: the ring that the engine writes, and their form on the wire.

Times are nanoseconds of ``CLOCK_MONOTONIC``; a stamp that a request never reached (it was rejected, say) is 0.
Writing is what every request pays for, so it is one tuple and two numbers drawn, without a lock; making columns of the
tuples is left to who reads them. Each row carries its number: a reader sees by it which rows have been overwritten
meanwhile and which are still being written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
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
"""A row's cursor, its number in its table, and its columns in their order."""

_NEVER: Row = (-1, -1)
_CHUNK = 1024
"""Rows that become columns at once: more would keep the interpreter from other threads for longer."""

_TRIES, _TRY_S = 10, 0.0005
_GIVE_UP_NS = 1_000_000_000


class _Table:
    """A ring of rows. Any thread adds, any reads.

    ``draw`` gives a row its number and its cursor. Both come from one call of a built-in, which no other thread can
    interrupt: so rows have their cursors in the order of their numbers.
    """

    def __init__(self, columns: Mapping[str, str], capacity: int, cursors: Iterator[int]) -> None:
        self.columns = columns
        self.capacity = capacity
        self.draw = zip(count(), cursors, strict=False).__next__
        self.rows: list[Row] = [_NEVER] * capacity
        self.count = 0
        """About how many rows were ever written: threads that write at once may set it in any order."""

    def end(self) -> int:
        """The number of the row after the newest."""
        end = self.count
        while (number := self.rows[end % self.capacity][1]) >= end:
            end = number + 1
        return end

    @property
    def newest(self) -> int:
        """The cursor of the newest row; -1 where there is none."""
        end = self.end()
        return int(self.rows[(end - 1) % self.capacity][0]) if end else -1

    def after(self, cursor: int, top: int) -> tuple[list[Row], int]:
        """The rows whose cursor is above ``cursor`` and at most ``top``, oldest first; and the cursor of the oldest
        row where others above ``cursor`` may have been overwritten, else ``cursor``."""
        end = self.end()
        low = max(0, end - self.capacity)
        first = self._first_after(cursor, low, end)
        found = [row for part in self._parts(first, end) for row in self.rows[part]]
        numbers = [row[1] for row in found]
        oldest = first
        if numbers != list(range(first, end)):
            for index, number in enumerate(numbers):
                if number > first + index:  # overwritten meanwhile; and so were those before it
                    oldest = first + index + 1
            numbered = enumerate(found[oldest - first :], oldest)
            found = [row for number, row in numbered if row[1] == number and row[0] > cursor]
        if found and found[-1][0] > top:
            found = found[: bisect_right(found, top, key=itemgetter(0))]
        overwritten = oldest > 0 and (oldest == low or oldest > first) and found and found[0][1] == oldest
        return found, found[0][0] if overwritten else cursor

    def _first_after(self, cursor: int, low: int, high: int) -> int:
        while low < high:
            middle = probe = (low + high) // 2
            while probe < high and self.rows[probe % self.capacity][1] < probe:
                probe += 1  # that row is not there (yet)
            if probe < high and self.rows[probe % self.capacity][0] <= cursor:
                low = probe + 1
            else:
                high = middle
        return low

    def _parts(self, first: int, end: int) -> list[slice]:
        if first >= end:
            return []
        start, stop = first % self.capacity, end % self.capacity
        if start < stop:
            return [slice(start, stop)]
        return [slice(start, self.capacity), slice(0, stop)]

    def as_columns(self, rows: list[Row]) -> Columns:
        """The rows by column."""
        pieces = [list(zip(*rows[at : at + _CHUNK], strict=True))[2:] for at in range(0, len(rows), _CHUNK)]
        out: Columns = {}
        for index, (name, kind) in enumerate(self.columns.items()):
            make = _text_array if kind == "str" else _int_array
            arrays = [make(piece[index]) for piece in pieces]
            out[name] = np.concatenate(arrays) if arrays else make(())
        return out


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


class RecordRing:
    """The last ``capacity`` requests and the last ``capacity`` batches.

    Adding is O(1), about a third of a microsecond; reading never stops who adds. Thread-safe. A full ring takes some
    400 bytes for each request that it holds.
    """

    def __init__(self, capacity: int = 65536) -> None:
        if capacity < 2:
            raise InvalidRequest(f"a record ring needs a capacity of at least 2, got {capacity}")
        self.capacity = capacity
        cursors = count()
        self._requests = _Table(REQUEST_COLUMNS, capacity, cursors)
        self._batches = _Table(BATCH_COLUMNS, capacity, cursors)
        self._newest = -1  # about: see _Table.count
        self._told = -1
        self._missing = (-1, 0)  # the cursor that a reader last missed, and since when

    @property
    def last_seq(self) -> int:
        """The cursor of the newest row; -1 when nothing has been written."""
        return max(self._newest, self._told)

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
        if error or request_id:
            error, request_id = shortened(error, MAX_ERROR), shortened(request_id, MAX_ID)
        table = self._requests
        number, cursor = table.draw()
        if seq < 0:
            seq = number
        table.rows[number % table.capacity] = (
            cursor, number, seq, model, version, epoch, request_id, client, parent_seq, priority, rows, shape_key,
            arrival, queue_start, compute_start, compute_input_end, compute_output_start, compute_end, end, batch_seq,
            instance, status, error,
        )  # fmt: skip
        table.count = number + 1
        self._newest = cursor
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
        table = self._batches
        number, cursor = table.draw()
        table.rows[number % table.capacity] = (
            cursor, number, batch_seq, model, epoch, instance, rows, requests, reason, acquired, done
        )  # fmt: skip
        table.count = number + 1
        self._newest = cursor

    def read(self, after_seq: int = -1) -> RecordColumns:
        """What was written after the cursor ``after_seq`` (``last_seq`` of an earlier read; -1: everything kept).

        A cursor from the future (of a server that has restarted since) reads everything. A row that another thread is
        writing right now is waited for, a few milliseconds at most; after that it and what came behind it is left for
        the next read.
        """
        if after_seq > self.last_seq:
            after_seq = -1
        top = max(self._newest, self._requests.newest, self._batches.newest)
        for attempt in range(_TRIES + 1):
            requests, until = self._requests.after(after_seq, top)
            batches, batches_until = self._batches.after(after_seq, top)
            cursors = sorted([row[0] for row in requests] + [row[0] for row in batches])
            last = cursors[-1] if cursors else after_seq
            missing = _first_missing(cursors, max(until, batches_until))
            if missing < 0:
                break
            if attempt < _TRIES:
                sleep(_TRY_S)
            elif self._awaited(missing):
                last = missing - 1
        if missing >= 0:
            requests = [row for row in requests if row[0] <= last]
            batches = [row for row in batches if row[0] <= last]
        self._told = max(self._told, last)
        lost = max(0, last - after_seq - len(requests) - len(batches))
        return RecordColumns(self._requests.as_columns(requests), self._batches.as_columns(batches), last, lost)

    def _awaited(self, missing: int) -> bool:
        """Whether a row may still come: a thread that was interrupted before it wrote never writes."""
        cursor, since = self._missing
        if cursor != missing:
            self._missing = (missing, monotonic_ns())
            return True
        return monotonic_ns() - since < _GIVE_UP_NS


def _first_missing(cursors: list[int], after: int) -> int:
    """The first cursor above ``after`` that is left out in an ascending list; -1 where none is."""
    if not cursors or cursors[-1] <= after:
        return -1
    inside = cursors[bisect_right(cursors, after) :]
    if cursors[-1] - after == len(inside):
        return -1
    return next(after + 1 + index for index, cursor in enumerate(inside) if cursor != after + 1 + index)


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
