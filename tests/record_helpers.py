"""Records made by hand, in milliseconds."""

from __future__ import annotations

from typing import Any

from workbench.records import RecordColumns, RecordRing

MS = 1_000_000
START = 5_000 * MS


class Book:
    """A ring that is written with few words: batches of an instance, requests of a batch."""

    def __init__(self) -> None:
        self.ring = RecordRing(256)
        self.batches: dict[int, tuple[str, str, float, float]] = {}

    def batch(
        self, seq: int, acquired: float, done: float, *, model: str = "m", instance: str = "m_0", rows: int = 1,
        requests: int = 1, reason: str = "full",
    ) -> None:  # fmt: skip
        """A batch from ``acquired`` to ``done``."""
        self.batches[seq] = (model, instance, acquired, done)
        self.ring.add_batch(
            seq, model, 1, instance, rows, requests, reason, START + int(acquired * MS), START + int(done * MS)
        )

    def request(
        self, seq: int, arrival: float, *, batch: int = -1, end: float | None = None, begun: float = 0,
        computed: float = 0, model: str = "m", **more: Any,
    ) -> None:  # fmt: skip
        """A request of a batch; without one, an ensemble's (``begun``), or one that was refused (only ``end``)."""
        instance, start, done = "", begun, computed
        if batch >= 0:
            model, instance, start, done = self.batches[batch]
        begin, finish = (0, 0) if not done else (START + int(start * MS), START + int(done * MS))
        fields = {"version": 1, "epoch": 1, "request_id": "", "client": "", "parent_seq": -1, "priority": 0, "rows": 1}
        fields |= {"status": "ok", "error": ""} | more
        self.ring.add_request(
            model=model, shape_key="", arrival=START + int(arrival * MS), queue_start=START + int(arrival * MS),
            compute_start=begin, compute_input_end=begin, compute_output_start=finish, compute_end=finish,
            end=finish if end is None else START + int(end * MS), batch_seq=batch, instance=instance, seq=seq,
            **fields,
        )  # fmt: skip

    def columns(self) -> RecordColumns:
        """What the ring has."""
        return self.ring.read()


def busy_instance() -> Book:
    """Request 1 (two others before it) waits from 2 to 9 ms: until 6 for batch 17, until 8 for batch 18, then 1 ms."""
    book = Book()
    book.batch(17, 0, 6, rows=8, requests=2)
    book.batch(18, 6, 8, rows=2)
    book.batch(19, 9, 14, rows=3, requests=2, reason="delay")
    book.batch(20, 3, 5, instance="m_1", rows=4)
    book.request(7, 0, batch=17, rows=4)
    book.request(8, 0, batch=17, rows=4)
    book.request(9, 1, batch=18, rows=2)
    book.request(1, 2, batch=19, end=14.5, request_id="slow one", rows=2)
    book.request(2, 8.5, batch=19, end=14.25)
    book.request(3, 3, batch=20, rows=4)
    return book
