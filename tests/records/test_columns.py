from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from workbench.errors import InvalidRequest
from workbench.records import (
    BATCH_COLUMNS,
    REQUEST_COLUMNS,
    RecordRing,
    decode_columns,
    encode_columns,
)


def add(ring: RecordRing, n: int, **changes: object) -> int:
    values: dict[str, object] = {
        name: n for name, kind in REQUEST_COLUMNS.items() if kind != "str" and name != "seq"
    } | {"model": "m", "request_id": f"r{n}", "client": "c", "shape_key": ("x", (1, 2)), "instance": "m_0_0"}
    values |= {"status": "ok", "error": ""} | changes
    return ring.add_request(**values)  # type: ignore[arg-type]


def test_rows_come_back_in_order_with_every_column() -> None:
    ring = RecordRing(8)
    for n in range(3):
        assert add(ring, n) == n
    ring.add_batch(7, "m", 1, "m_0_0", 4, 3, "full", 10, 20)
    columns = ring.read()
    assert list(columns.requests) == list(REQUEST_COLUMNS)
    assert list(columns.batches) == list(BATCH_COLUMNS)
    assert columns.requests["arrival"].tolist() == [0, 1, 2]
    assert columns.requests["request_id"].tolist() == ["r0", "r1", "r2"]
    assert columns.requests["shape_key"][0] == "('x', (1, 2))"
    assert columns.batches["reason"].tolist() == ["full"]
    assert columns.batches["done"].tolist() == [20]
    assert columns.lost == 0


def test_reading_on_gives_each_row_once() -> None:
    ring = RecordRing(8)
    add(ring, 0)
    first = ring.read()
    ring.add_batch(1, "m", 0, "i", 1, 1, "direct", 0, 1)
    add(ring, 1)
    second = ring.read(first.last_seq)
    assert second.requests["rows"].tolist() == [1]
    assert second.batches["batch_seq"].tolist() == [1]
    third = ring.read(second.last_seq)
    assert len(third.requests["seq"]) == 0
    assert third.last_seq == second.last_seq


def test_overwritten_rows_are_counted_as_lost() -> None:
    ring = RecordRing(4)
    for n in range(10):
        add(ring, n)
    columns = ring.read()
    kept = columns.requests["rows"].tolist()
    assert kept == [7, 8, 9]  # one slot is given up: the writer may be in it
    assert columns.lost == 7


def test_a_cursor_of_an_earlier_life_reads_everything() -> None:
    ring = RecordRing(4)
    add(ring, 0)
    assert ring.read(1000).requests["rows"].tolist() == [0]


def test_a_given_seq_is_kept() -> None:
    ring = RecordRing(4)
    assert add(ring, 0, seq=55) == 55
    assert ring.read().requests["seq"].tolist() == [55]


def test_wire_round_trip() -> None:
    ring = RecordRing(16)
    for n in range(5):
        add(ring, n, error="é\n" if n == 2 else "")
    ring.add_batch(0, "m", 0, "i", 5, 5, "delay", 1, 2)
    columns = ring.read()
    header, buffers = encode_columns(columns)
    for body in (buffers, b"".join(buffers)):
        back = decode_columns(header, body)
        assert back.last_seq == columns.last_seq
        for name, array in columns.requests.items():
            assert back.requests[name].tolist() == array.tolist(), name
        for name, array in columns.batches.items():
            assert back.batches[name].tolist() == array.tolist(), name
    with pytest.raises(InvalidRequest, match="end too early"):
        decode_columns(header, b"".join(buffers)[:-4])
    with pytest.raises(InvalidRequest, match="cannot read records"):
        decode_columns(b"{", b"")


def test_an_empty_ring_round_trips_and_makes_frames() -> None:
    header, buffers = encode_columns(RecordRing(4).read())
    requests, batches = decode_columns(header, buffers).to_frames()
    assert list(requests.columns) == list(REQUEST_COLUMNS)
    assert len(batches) == 0


def test_a_reader_beside_a_writer_sees_no_torn_row() -> None:
    ring = RecordRing(64)
    stop = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            add(ring, n)
            n += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        after, seen = -1, 0
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            columns = ring.read(after)
            rows = columns.requests["rows"]
            assert (columns.requests["end"] == rows).all()
            assert columns.requests["request_id"].tolist() == [f"r{n}" for n in rows.tolist()]
            if len(rows):
                assert (np.diff(rows) == 1).all()
                assert rows[0] == after + 1 + columns.lost
            after, seen = columns.last_seq, seen + len(rows) + columns.lost
        assert seen == after + 1
    finally:
        stop.set()
        thread.join()


def test_adding_is_cheap() -> None:
    ring = RecordRing(4096)
    best = 1e9
    for _ in range(5):
        start = time.perf_counter()
        for n in range(4000):
            ring.add_request("m", 1, 1, "r", "c", -1, 0, 1, "k", n, n, n, n, n, n, n, n, "i", "ok", "")
        best = min(best, (time.perf_counter() - start) / 4000)
    assert best < 10e-6  # about 1 microsecond on a quiet machine; the bound leaves room for a busy one


def test_long_texts_of_clients_and_models_are_shortened() -> None:
    ring = RecordRing(8)
    add(ring, 0, status="BACKEND", error="e" * 1_000_000, request_id="i" * 1_000_000)
    add(ring, 1, status="BACKEND", error="short", request_id="i" * 1024)
    requests = ring.read().requests
    assert requests["error"][0] == "e" * 4096 + "... (995904 more characters)"
    assert requests["request_id"][0].startswith("i" * 1024 + "... (")
    assert requests["error"][1] == "short"
    assert requests["request_id"][1] == "i" * 1024


def test_a_priority_beyond_the_column_is_its_largest() -> None:
    ring = RecordRing(8)
    for n, priority in enumerate((2**63 - 1, 2**63, 2**64 - 1)):
        add(ring, n, priority=priority)
    assert ring.read().requests["priority"].tolist() == [2**63 - 1] * 3
