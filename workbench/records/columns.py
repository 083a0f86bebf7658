"""Request and batch records as columns: the ring that the engine writes, and their form on the wire.

Times are nanoseconds of ``CLOCK_MONOTONIC``; a stamp that a request never reached (it was rejected, say) is 0.
The ring is written by one thread at a time and read by any: a reader copies rows and then drops those that a writer
may have overwritten meanwhile, so that neither waits for the other.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from numpy.typing import NDArray

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


class _Table:
    """A ring of rows: integers packed into one buffer, strings in a list of tuples beside it."""

    def __init__(self, columns: Mapping[str, str], capacity: int) -> None:
        self.columns = columns
        self.int_names = tuple(name for name, kind in columns.items() if kind != "str")
        self.str_names = tuple(name for name, kind in columns.items() if kind == "str")
        width = 1 + len(self.int_names)  # the cursor comes first
        self.pack = struct.Struct(f"={width}q").pack_into
        self.row_bytes = width * 8
        self.capacity = capacity
        self.buffer = bytearray(self.row_bytes * capacity)
        self.ints: NDArray[np.int64] = np.frombuffer(self.buffer, dtype=np.int64).reshape(capacity, width)
        self.texts: list[tuple[Any, ...]] = [()] * capacity
        self.count = 0  # rows ever written; raised only after a row is complete

    def read(self, after: int, last: int) -> Columns:
        """The rows whose cursor is above ``after`` and at most ``last``, oldest first."""
        end = self.count
        first = self._first_after(after, max(0, end - self.capacity), end)
        parts = self._parts(first, end)
        ints = np.concatenate([self.ints[part] for part in parts])
        texts = list(chain.from_iterable(self.texts[part] for part in parts))
        # Row ``count`` may be in writing now, in the slot of row ``count - capacity``: that one and older are torn.
        torn = max(0, self.count - self.capacity + 1 - first)
        cursors = ints[:, 0]
        keep = (cursors > after) & (cursors <= last)
        keep[:torn] = False
        ints = ints[keep]
        if len(ints) < len(texts):
            texts = list(compress(texts, keep.tolist()))
        by_name: Columns = {name: ints[:, index + 1].copy() for index, name in enumerate(self.int_names)}
        by_name.update(_text_columns(self.str_names, texts))
        return {name: by_name[name] for name in self.columns}

    def _first_after(self, after: int, low: int, high: int) -> int:
        while low < high:
            middle = (low + high) // 2
            if int(self.ints[middle % self.capacity, 0]) <= after:
                low = middle + 1
            else:
                high = middle
        return low

    def _parts(self, first: int, end: int) -> list[slice]:
        if first >= end:
            return [slice(0, 0)]
        start, stop = first % self.capacity, end % self.capacity
        if start < stop:
            return [slice(start, stop)]
        return [slice(start, self.capacity), slice(0, stop)]


def _text_columns(names: Sequence[str], rows: list[tuple[Any, ...]]) -> Columns:
    if not rows:
        return {name: np.empty(0, dtype=np.object_) for name in names}
    out: Columns = {}
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        array = np.empty(len(rows), dtype=np.object_)
        array[:] = values if set(map(type, values)) == {str} else _as_texts(values)
        out[name] = array
    return out


def _as_texts(values: Sequence[Any]) -> list[str]:
    """Texts of values that are few and often the same (shape keys)."""
    known = {value: "" if value is None else str(value) for value in set(values)}
    return [known[value] for value in values]


def shortened(text: str, limit: int) -> str:
    """A text, or the beginning of a longer one with how much is left out."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit} more characters)"


class RecordRing:
    """The last ``capacity`` requests and the last ``capacity`` batches.

    Adding is O(1), about a microsecond; reading never stops who adds. Thread-safe.
    """

    def __init__(self, capacity: int = 65536) -> None:
        if capacity < 2:
            raise InvalidRequest(f"a record ring needs a capacity of at least 2, got {capacity}")
        self.capacity = capacity
        self._requests = _Table(REQUEST_COLUMNS, capacity)
        self._batches = _Table(BATCH_COLUMNS, capacity)
        self._cursor = 0
        self._adding = threading.Lock()

    @property
    def last_seq(self) -> int:
        """The cursor of the newest row; -1 when nothing has been written."""
        return self._cursor - 1

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
        A priority, on the wire an unsigned number of 64 bits, is written as the largest that the column holds if it is
        beyond that.
        """
        if priority > MAX_INT64:
            priority = MAX_INT64
        if error or request_id:
            error, request_id = shortened(error, MAX_ERROR), shortened(request_id, MAX_ID)
        texts = (model, request_id, client, shape_key, instance, status, error)
        table = self._requests
        with self._adding:
            cursor, count = self._cursor, table.count
            slot = count % table.capacity
            if seq < 0:
                seq = count
            table.texts[slot] = texts
            table.pack(
                table.buffer, slot * table.row_bytes, cursor, seq, version, epoch, parent_seq, priority, rows, arrival,
                queue_start, compute_start, compute_input_end, compute_output_start, compute_end, end, batch_seq,
            )  # fmt: skip
            table.count = count + 1
            self._cursor = cursor + 1
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
        with self._adding:
            cursor, count = self._cursor, table.count
            slot = count % table.capacity
            table.texts[slot] = (model, instance, reason)
            table.pack(
                table.buffer, slot * table.row_bytes, cursor, batch_seq, epoch, rows, requests, acquired, done
            )  # fmt: skip
            table.count = count + 1
            self._cursor = cursor + 1

    def read(self, after_seq: int = -1) -> RecordColumns:
        """What was written after the cursor ``after_seq`` (``last_seq`` of an earlier read; -1: everything kept).

        A cursor from the future (of a server that has restarted since) reads everything.
        """
        last = self._cursor - 1
        if after_seq > last:
            after_seq = -1
        requests = self._requests.read(after_seq, last)
        batches = self._batches.read(after_seq, last)
        found = len(requests["seq"]) + len(batches["rows"])
        return RecordColumns(requests, batches, last, max(0, last - after_seq - found))


def encode_columns(columns: RecordColumns) -> tuple[bytes, list[bytes]]:
    """The wire form: a JSON header and raw little-endian buffers in the header's order.

    Numbers are int64; strings are int32 codes into a list of distinct values that the header carries.
    """
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
