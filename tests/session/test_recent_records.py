"""The records of the last seconds: each row once, however reads overlap, and no more than is recent."""

from __future__ import annotations

from workbench.records import RecordRing
from workbench.session.recent import KEEP_NS, KEEP_REQUESTS, RecentRecords

S = 1_000_000_000


def add(ring: RecordRing, seq: int, end: int) -> None:
    ring.add_batch(seq, "m", 1, "m_0", 1, 1, "full", end - 2, end - 1)
    ring.add_request(
        "m", 1, 1, "", "", -1, 0, 1, "", end - 5, end - 4, end - 2, end - 2, end - 1, end - 1, end, seq, "m_0", "ok",
        seq=seq,
    )  # fmt: skip


def seqs(recent: RecentRecords, seconds: float = 60) -> list[int]:
    found = recent.last(seconds)
    assert found.batches["batch_seq"].tolist() == found.requests["seq"].tolist()
    return [int(seq) for seq in found.requests["seq"]]


def test_reads_that_overlap_give_each_row_once() -> None:
    ring, recent = RecordRing(64), RecentRecords()
    assert seqs(recent) == []
    for seq in range(3):
        add(ring, seq, (10 + seq) * S)
    recent.add(ring.read())
    cursor = ring.last_seq
    add(ring, 3, 13 * S)
    recent.add(ring.read())  # everything again
    recent.add(ring.read())
    add(ring, 4, 14 * S)
    recent.add(ring.read(cursor + 2))
    assert seqs(recent) == [0, 1, 2, 3, 4]
    assert seqs(recent, 1.5) == [3, 4], "before the newest"


def test_what_is_old_or_of_another_life_of_the_server_goes() -> None:
    ring, recent = RecordRing(64), RecentRecords()
    for seq in range(4):
        cursor = ring.last_seq
        add(ring, seq, 10 * S + seq * KEEP_NS // 2)
        recent.add(ring.read(cursor))
    assert 0 not in seqs(recent, 600)
    assert seqs(recent, 600)[-1] == 3
    fresh = RecordRing(64)
    add(fresh, 0, 101 * S)
    recent.add(fresh.read())
    assert seqs(recent) == [0]


def test_a_flood_is_bounded() -> None:
    recent, cursor = RecentRecords(), -1
    ring = RecordRing(8192)
    for start in range(0, 2 * KEEP_REQUESTS, 8000):
        for seq in range(start, start + 8000):
            add(ring, seq, 10 * S + seq)
        columns = ring.read(cursor)
        cursor = columns.last_seq
        recent.add(columns)
    found = seqs(recent)
    assert KEEP_REQUESTS <= len(found) < KEEP_REQUESTS + 8000
    assert found[-1] == 2 * KEEP_REQUESTS - 1
