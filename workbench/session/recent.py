"""The records of the last seconds, for panels that draw them one by one."""

from __future__ import annotations

from collections import deque

import numpy as np

from workbench.records import RecordColumns, RecordRing
from workbench.records.timeline import ended_since, joined, rows_of

KEEP_NS = 60 * 10**9
KEEP_REQUESTS = 40_000


class RecentRecords:
    """What several reads of a ring gave, as far as it is recent. Not thread-safe: its owner has a lock."""

    def __init__(self) -> None:
        self._parts: deque[RecordColumns] = deque()
        self._nothing = RecordRing(2).read()

    def add(self, columns: RecordColumns) -> None:
        """Takes what is new. Two reads that follow each other may overlap: rows of the last one are left out."""
        last = self._parts[-1] if self._parts else self._nothing
        if columns.last_seq < last.last_seq:
            self._parts.clear()  # the server has started anew
            last = self._nothing
        if columns.last_seq == last.last_seq:
            return
        requests, batches = columns.requests, columns.batches
        newest = int(requests["end"].max(initial=0))
        new = ~np.isin(requests["seq"], last.requests["seq"]) & (requests["end"] > newest - KEEP_NS)
        ran = ~np.isin(batches["batch_seq"], last.batches["batch_seq"]) & (batches["done"] > newest - KEEP_NS)
        self._parts.append(RecordColumns(rows_of(requests, new), rows_of(batches, ran), columns.last_seq))
        count = sum(len(part.requests["seq"]) for part in self._parts)
        while len(self._parts) > 1:
            oldest = self._parts[0].requests["end"]
            if count - len(oldest) < KEEP_REQUESTS and oldest.max(initial=0) > newest - KEEP_NS:
                return
            count -= len(oldest)
            self._parts.popleft()

    def last(self, seconds: float) -> RecordColumns:
        """The requests and batches of the seconds before the newest end."""
        ends = [int(part.requests["end"].max(initial=0)) for part in self._parts]
        since = max(ends, default=0) - int(seconds * 1e9)
        recent = [part for part, end in zip(self._parts, ends, strict=True) if end >= since]
        return ended_since(joined(recent or [self._nothing]), since)
