"""Who waited for whom: the batch of each request, and what its instance did while the request waited.

All of it is worked out from the columns of a ring, which hold what has ended: a batch that runs still is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.records.columns import Columns

Ints = NDArray[np.int64]
BATCHES_PER_LOAD = 1_000_000_000
"""The engine numbers a model's batches from a multiple of this on: another one for each load."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Of each request, in the order of the request columns; durations in ns.

    ``batch`` is the row of its batch in the batch columns, -1 for one that was never executed (an ensemble, a request
    that was refused) or whose batch is no longer kept. ``left`` is when it left the queue: when its batch was formed,
    else when it ended. ``busy`` is the part of its wait in which the instance that took it was executing earlier
    batches, ``free`` the rest. ``first_before`` to ``before`` are those batches: rows of ``order``, the batch rows by
    instance and time, as a half-open range. ``ahead`` counts the batches of its model that were formed, on any
    instance, while it waited: they took what was before it in the queue.
    """

    batch: Ints
    left: Ints
    busy: Ints
    free: Ints
    first_before: Ints
    before: Ints
    ahead: Ints
    order: Ints

    def batches_before(self, request: int) -> list[int]:
        """Rows of the batches that kept the instance busy while a request (its row) waited, oldest first."""
        return [int(row) for row in self.order[self.first_before[request] : self.before[request]]]


def short_number(batch_seq: int) -> int:
    """A batch's number as people read it: without the part that counts the loads of models (billions)."""
    return int(batch_seq) % BATCHES_PER_LOAD


def batch_of_requests(requests: Columns, batches: Columns) -> Ints:
    """The row of each request's batch, -1 where there is none. No two batches of a server have one number."""
    order = np.argsort(batches["batch_seq"], kind="stable")
    numbers, wanted = batches["batch_seq"][order], requests["batch_seq"]
    if not len(numbers):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    return np.where((numbers[at] == wanted) & (wanted >= 0), order[at], -1)


def waits_of(requests: Columns, batches: Columns) -> Waits:
    """What each request waited for."""
    count = len(requests["seq"])
    batch = batch_of_requests(requests, batches)
    has = batch >= 0
    started = np.where(requests["compute_start"] > 0, requests["compute_start"], requests["end"])
    left = np.where(has, batches["acquired"][batch], started) if len(batches["acquired"]) else started
    left = np.maximum(left, requests["queue_start"])
    zeros = np.zeros(count, np.int64)
    busy, first, before, ahead = zeros.copy(), zeros.copy(), zeros.copy(), zeros.copy()
    order: list[Ints] = []
    at = 0
    for rows in groups(batches, ("model", "instance")):
        rows = rows[np.argsort(batches["acquired"][rows], kind="stable")]
        order.append(rows)
        place = np.full(len(batches["acquired"]), -1, np.int64)
        place[rows] = np.arange(len(rows))
        mine = np.flatnonzero(has & (place[batch] >= 0)) if count else zeros
        if len(mine):
            own = place[batch[mine]]
            since = requests["queue_start"][mine]
            spans = _Spans(batches["acquired"][rows], batches["done"][rows])
            busy[mine] = spans.until(left[mine]) - spans.until(since)
            first[mine] = at + np.minimum(own, np.searchsorted(spans.ends, since, side="right"))
            before[mine] = at + own
        at += len(rows)
    for rows in groups(batches, ("model",)):
        formed = np.sort(batches["acquired"][rows])
        mine = np.flatnonzero(has & (requests["model"] == batches["model"][rows[0]]))
        since, until = requests["queue_start"][mine], left[mine]
        ahead[mine] = np.searchsorted(formed, until, side="left") - np.searchsorted(formed, since, side="left")
    waited = np.where(_queued(requests, batch), left - requests["queue_start"], 0)
    busy = np.minimum(busy, waited)
    joined = np.concatenate(order) if order else zeros[:0]
    return Waits(batch, left, busy, waited - busy, first, before, ahead, joined)


def _queued(requests: Columns, batch: Ints) -> NDArray[np.bool_]:
    """Which requests were in a queue of their own: not ensembles, which begin without one."""
    queued: NDArray[np.bool_] = (requests["queue_start"] > 0) & ((batch >= 0) | (requests["compute_start"] == 0))
    return queued


class _Spans:
    """When an instance was busy: spans in the order of their starts, none over another."""

    def __init__(self, starts: Ints, ends: Ints) -> None:
        self.ends = np.maximum.accumulate(np.maximum(starts, ends))
        self._starts = np.maximum(starts, np.concatenate([starts[:1], self.ends[:-1]]))
        self._before = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.maximum(self.ends - self._starts, 0))])

    def until(self, times: Ints) -> Ints:
        """The ns in which it was busy before each of these times."""
        at = np.searchsorted(self._starts, times, side="left") - 1
        known = np.maximum(at, 0)
        inside = np.clip(times - self._starts[known], 0, np.maximum(self.ends[known] - self._starts[known], 0))
        return np.where(at >= 0, self._before[known] + inside, 0)


def groups(table: Columns, names: tuple[str, ...]) -> Iterator[Ints]:
    """The rows of a table that have the same values in some columns, in the order of first appearance."""
    found: dict[tuple[object, ...], list[int]] = {}
    for row, key in enumerate(zip(*(table[name].tolist() for name in names), strict=True)):
        found.setdefault(key, []).append(row)
    for rows in found.values():
        yield np.array(rows, np.int64)


def queue_depth(requests: Columns, waits: Waits) -> dict[str, tuple[Ints, Ints]]:
    """How many requests waited, by model: times (ns) at which it changed, and the number from then on.

    Requests that wait still have no record yet: towards the end of a live timeline the number is too low.
    """
    out = {}
    queued = _queued(requests, waits.batch) & (waits.left > requests["queue_start"])
    for rows in groups(requests, ("model",)):
        mine = rows[queued[rows]]
        if not len(mine):
            continue
        times = np.concatenate([requests["queue_start"][mine], waits.left[mine]])
        steps = np.concatenate([np.ones(len(mine), np.int64), np.full(len(mine), -1, np.int64)])
        order = np.argsort(times, kind="stable")
        times, depth = times[order], np.cumsum(steps[order])
        last = np.append(times[1:] != times[:-1], True)  # of what happens at one time only the end counts
        out[str(requests["model"][rows[0]])] = (times[last], depth[last])
    return out
