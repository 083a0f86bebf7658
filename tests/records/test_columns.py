from __future__ import annotations

import sys
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
        ring.add_batch(n, "m", 1, "i", 1, 1, "full", n, n)
    columns = ring.read()
    assert columns.requests["rows"].tolist() == columns.batches["batch_seq"].tolist() == [6, 7, 8, 9]
    assert columns.lost == 12
    before = columns.last_seq
    for n in range(10, 17):
        add(ring, n)
    assert ring.read(before).requests["rows"].tolist() == list(range(10, 17))
    assert ring.read(before).lost == 0
    for n in range(17, 50):
        add(ring, n)
    assert ring.read(before).requests["rows"].tolist() == list(range(42, 50))
    assert ring.read(before).lost == 32
    assert ring.last_seq == 59


def test_a_cursor_of_an_earlier_life_reads_everything() -> None:
    ring = RecordRing(4)
    add(ring, 0)
    assert ring.read(1000).requests["rows"].tolist() == [0]


@pytest.mark.parametrize("cursor", [-2, -9, -(1 << 63)])
def test_a_cursor_below_the_first_reads_everything(cursor: int) -> None:
    ring = RecordRing(4)
    for n in range(3):
        add(ring, n)
    columns = ring.read(cursor)
    assert (columns.requests["seq"].tolist(), columns.last_seq, columns.lost) == ([0, 1, 2], 2, 0)


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


def test_threads_that_write_at_once_lose_nothing_and_nothing_is_read_twice() -> None:
    """The engine's loop and threads that execute calls themselves write side by side, requests and batches."""
    ring = RecordRing(65536)
    each, threads = 6000, 4

    def write(of: int) -> None:
        for n in range(each):
            add(ring, n, seq=of * each + n)
            ring.add_batch(of * each + n, "m", 1, "i", 1, 1, "full", n, n)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    writers = [threading.Thread(target=write, args=(of,)) for of in range(threads)]
    try:
        for writer in writers:
            writer.start()
        after, requests, batches, lost = -1, [], [], 0
        while True:
            over = not any(writer.is_alive() for writer in writers)
            columns = ring.read(after)
            requests += columns.requests["seq"].tolist()
            batches += columns.batches["batch_seq"].tolist()
            lost += columns.lost
            assert columns.last_seq >= after
            after = columns.last_seq
            if over:
                break
    finally:
        sys.setswitchinterval(interval)
        for writer in writers:
            writer.join()
    assert sorted(requests) == list(range(each * threads))
    assert sorted(batches) == list(range(each * threads))
    assert lost == 0
    assert after == 2 * each * threads - 1


def test_a_thread_that_was_interrupted_before_it_wrote_does_not_stop_readers_for_ever() -> None:
    class Interrupted(int):
        """A number that cannot be looked at: Ctrl-C came when the row had its place and was not yet in it."""

        def __lt__(self, other: int) -> bool:
            raise KeyboardInterrupt

    ring = RecordRing(8)
    add(ring, 0)
    with pytest.raises(KeyboardInterrupt):
        add(ring, 1, seq=Interrupted(1))
    add(ring, 2)
    seen: list[int] = []
    after, deadline = -1, time.monotonic() + 10
    while len(seen) < 2 and time.monotonic() < deadline:
        columns = ring.read(after)
        seen += columns.requests["rows"].tolist()
        after = columns.last_seq
    assert seen == [0, 2]
    for n in range(3, 6):
        add(ring, n)
    assert ring.read(after).requests["rows"].tolist() == [3, 4, 5]
    everything = ring.read()
    while everything.last_seq < after:  # the hole is waited for by each who comes upon it
        everything = ring.read()
    assert everything.requests["rows"].tolist() == [0, 2, 3, 4, 5]


def test_a_row_in_flight_behind_one_that_never_comes_is_not_passed_over() -> None:
    ring = RecordRing(8)
    add(ring, 0)
    ring.draw()  # a thread that was interrupted
    add(ring, 2)
    deadline = time.monotonic() + 10
    while ring.read().last_seq < 2 and time.monotonic() < deadline:
        pass
    late = ring.draw()
    add(ring, 4)
    for _ in range(2):  # by now it is known which of the two is waited for
        columns = ring.read()
        assert (columns.requests["rows"].tolist(), columns.last_seq) == ([0, 2], 2)
    ring.rows[late] = (late, *ring.rows[0][1:])
    assert ring.read(2).requests["rows"].tolist() == [0, 4]
    columns = ring.read()
    assert (columns.requests["rows"].tolist(), columns.last_seq, columns.lost) == ([0, 2, 0, 4], 4, 1)


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
