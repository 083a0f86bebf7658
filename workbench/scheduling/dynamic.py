"""Triton's dynamic batcher with late binding, and the direct scheduler of models without a batcher.

What leaves is decided in ``decision``, when an idle instance asks, over what waits at that moment: level 1, then what
its DELAY policy put back, then level 2, ...

**How this differs from Triton.** Triton forms batches ahead of time: up to two per instance wait, formed, in front of
busy instances (if no priorities, timeout, override or queue limit are set in the default policy). To soften that, a
formed batch may still grow until it starts, as long as it is not marked saturated, and the instance's queue merges
batches whose delay is over. Here nothing is formed before an instance is idle, so:

- late joiners need no rule: whoever arrives before the instance asks is seen by the pass. With preferred sizes
  the largest one reachable *when the instance asks* is taken, where Triton may have cut a smaller one before. What
  ``foresee`` gives ahead of time is what the instance will get in any case, and waits until it has it;
- while all instances are busy, batches are at least as large as Triton's, and requests that Triton holds in formed
  batches count as waiting: in ``max_queue_size``, in the pending gauge, for timeouts and for cancelling. With a queue
  limit, a timeout or priorities Triton does not form ahead either, so there the counts agree;
- a request of higher priority overtakes everything that does not run yet;
- a timeout under REJECT is answered when it passes, where Triton may take up to 500 ms while all instances are busy;
- ``max_queue_size`` does not count requests whose timeout has passed, even if nobody has been told yet, nor those that
  were cancelled: they leave at once, where Triton keeps their place until an instance is free.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import insort
from collections.abc import Iterable, Sequence
from typing import ClassVar

from workbench.scheduling.decision import ALWAYS, Cut, Rules, decide
from workbench.scheduling.interface import Accepted, Batch, Item, QueueStatistics, RejectedItem
from workbench.scheduling.queues import LevelQueue
from workbench.scheduling.settings import BatcherSettings

TIMEOUT_TEXT = "Request timeout expired"
"""Answer to a request that waited longer than its policy allows (UNAVAILABLE)."""

QUEUE_FULL_TEXT = "Exceeds maximum queue size"
"""Answer to a request that finds its level's queue full (UNAVAILABLE); Triton puts ``[request id: ID] `` in front."""

_ACCEPTED = Accepted()


class DynamicBatcher:
    """A scheduler (see ``interface.Scheduler``) that forms batches as Triton's dynamic batcher does.

    Offering and acquiring cost O(1) per request, amortised; a timeout adds O(log n).

    Args:
        settings: of the model; ``batching=False`` makes every request a batch of its own.
        first_batch_seq: the number of the first batch; following ones count up.
    """

    per_instance: ClassVar[bool] = False

    def __init__(self, settings: BatcherSettings, *, first_batch_seq: int = 1) -> None:
        self.number_batch = itertools.count(first_batch_seq).__next__
        self._next_order = 0
        self._levels: dict[int, LevelQueue] = {}
        self._numbers: list[int] = []
        self._count = 0
        self._rows = 0
        self._delayed = 0
        self._deadlines: list[tuple[int, int, Item]] = []
        self._expired: list[RejectedItem] = []
        self._draining = False
        self._hooked = settings.batching and settings.hold_until_queued > 0
        # The decision to wait, kept while arrivals do not change it: nothing leaves before _hold_until.
        self._hold_until: int | None = None
        self._hold_rows = 0
        self._hold_first: Item | None = None
        # What next_deadline() must know: whether an instance may be idle, and what the driver has been told.
        self._refused = True
        self._running = 0
        self._changed = 0
        self._told = -1
        self._configure(settings)

    # ---- settings

    @property
    def settings(self) -> BatcherSettings:
        """The settings in force."""
        return self._settings

    @property
    def waiting(self) -> int:
        """How many requests wait (the pending gauge)."""
        return self._count

    def _configure(self, settings: BatcherSettings) -> None:
        self._settings = settings
        self._batching = settings.batching
        self._rules = rules = Rules.of(settings)
        # fewer rows than this are no full batch, nor one of the largest preferred size
        self._least_ahead = max(1, min(rules.max_rows, rules.max_preferred)) if settings.batching else 1
        self._levels = {}
        self._numbers = []
        self._base = self._add_level(0)

    def _add_level(self, number: int) -> LevelQueue:
        level = self._levels[number] = LevelQueue(number, self._settings.policy(number))
        insort(self._numbers, number)
        return level

    def _level(self, priority: int) -> LevelQueue:
        if not self._settings.priority_levels:
            return self._base
        number = self._settings.level(priority)
        level = self._levels.get(number)
        return self._add_level(number) if level is None else level

    # ---- arrivals

    def offer(self, item: Item, now: int) -> Accepted | RejectedItem:
        """Takes an item into the queue of its level, or refuses it (queue full).

        A refusal leaves no trace here, as in Triton, which does not count it either.

        Raises:
            ValueError: an item with this id waits already.
        """
        if self._deadlines and self._deadlines[0][0] < now:
            self._purge(now)
        level = self._level(item.priority)
        if level.max_queue_size and len(level) >= level.max_queue_size:
            return RejectedItem(item.id, "queue_full", QUEUE_FULL_TEXT)
        live = level.live
        if item.id in live or (self._delayed and level.delayed.find(item.id)):
            raise ValueError(f"a request with id {item.id} waits already")
        item.enqueued = now
        item.level = level.number
        item.order = self._next_order
        item.deadline = None
        self._next_order += 1
        live[item.id] = item
        self._count += 1
        self._rows += item.rows
        self._changed = now
        if level.timed:
            self._watch(item, level)
        if self._hold_until is not None:
            self._join(item, level)
        return _ACCEPTED

    def _watch(self, item: Item, level: LevelQueue) -> None:
        """Sets the item's deadline and remembers it."""
        timeout = level.policy.timeout_microseconds(item.timeout) * 1000
        item.deadline = item.enqueued + timeout if timeout else None
        if item.deadline is None:
            return
        heap = self._deadlines
        if len(heap) > 64 and len(heap) > 2 * self._count:
            heap[:] = [entry for entry in heap if self._is_watched(entry)]
            heapq.heapify(heap)
        heapq.heappush(heap, (item.deadline, item.order, item))

    def _is_watched(self, entry: tuple[int, int, Item]) -> bool:
        deadline, order, item = entry
        level = self._levels.get(item.level)
        return (
            level is not None and level.live.get(item.id) is item and item.order == order and item.deadline == deadline
        )

    def _join(self, item: Item, level: LevelQueue) -> None:
        """An arrival while the queue is held: keeps the decision to wait if it stands, else forgets it."""
        first, rules = self._hold_first, self._rules
        rows = self._hold_rows + item.rows
        if (
            first is None
            or rows >= rules.max_preferred
            or rows > rules.max_rows
            or item.shape_key != first.shape_key
            or item.input_set != first.input_set
            or (len(rules.preferred) > 1 and (rows in rules.preferred or not self._is_last(item, level)))
        ):
            self._hold_until = self._hold_first = None
        else:
            self._hold_rows = rows

    def comes_last(self, priority: int) -> bool:
        """Whether a request of this priority, were it to come now, would be behind all that wait."""
        if len(self._numbers) == 1:
            return not self._delayed
        number = self._settings.level(priority)
        level = self._levels.get(number)
        return (level is None or not level.delayed) and self._is_lowest(number)

    def _is_last(self, item: Item, level: LevelQueue) -> bool:
        """Whether the pass comes to this new item after all others."""
        return not level.delayed and self._is_lowest(level.number)

    def _is_lowest(self, wanted: int) -> bool:
        """Whether nothing waits in the levels behind this one."""
        return all(number <= wanted or not len(self._levels[number]) for number in reversed(self._numbers))

    # ---- batches

    def acquire(self, instance: int, now: int) -> Batch | None:
        """Forms a batch for an idle instance, or None if none may leave yet.

        Items whose timeout has passed are not in it; ``expire`` gives them.
        """
        if self._deadlines and self._deadlines[0][0] < now:
            self._purge(now)
        if not self._count:
            self._refused = True
            return None
        if self._hooked and self._is_hooked():
            self._refused = True
            return None
        hold = self._hold_until
        if hold is not None and now < hold:
            self._refused = True
            return None
        if self._batching:
            cut = self._pass(now)
            if cut.hold is not None:
                self._hold(cut)
                self._refused = True
                return None
        else:
            cut = self._first()
        self._leave(cut.items, cut.rows, now)
        return Batch(self.number_batch(), instance, cut.items, cut.rows, cut.reason, now)

    def foresee(self, now: int) -> Cut | None:
        """What the next instance to ask will get, if it is a full batch and certain; it goes on waiting.

        It stays so until ``Cut.until``, as long as nobody calls anything else here but ``offer`` with requests for
        which ``comes_last`` is true. ``leave`` tells that an instance has taken it.
        """
        if self._rows < self._least_ahead or not self._count or (self._hooked and self._is_hooked()):
            return None
        heap = self._deadlines
        while heap and not self._is_watched(heap[0]):
            heapq.heappop(heap)
        cut = self._pass(now) if self._batching else self._first()
        if heap:
            cut.until = min(cut.until, heap[0][0])
        return cut if cut.until >= now else None

    def leave(self, batch: Batch, now: int) -> None:
        """An instance has taken what ``foresee`` gave."""
        self._leave(batch.items, batch.rows, now)

    def _leave(self, items: Sequence[Item], rows: int, now: int) -> None:
        if len(self._numbers) == 1 and not self._delayed:
            live = self._base.live
            for item in items:
                del live[item.id]
        else:
            for item in items:
                self._remove(item)
        self._hold_until = self._hold_first = None
        self._refused = False
        self._running += 1
        self._count -= len(items)
        self._rows -= rows
        self._changed = now

    def _first(self) -> Cut:
        """Without batching every request is a batch, in order of arrival. At least one must wait."""
        item = next(iter(self._base.live.values()))
        return Cut([item], item.rows, "direct", until=ALWAYS)

    def leaves_alone(self, rows: int) -> bool:
        """Whether a request that finds an idle instance and nothing waiting would leave at once. Thread-safe."""
        if not self._batching:
            return True
        return decide(iter([Item(0, rows)]), self._rules, 0, oldest_first=True, draining=False).hold is None

    def _is_hooked(self) -> bool:
        """Whether the test hook holds all batches back; once enough has waited it is open for good."""
        self._hooked = not self._draining and self._count < self._settings.hold_until_queued
        return self._hooked

    def _hold(self, cut: Cut) -> None:
        self._hold_until = cut.hold
        self._hold_rows = cut.rows
        self._hold_first = cut.items[0]

    def _in_order(self) -> Iterable[Item]:
        return (item for number in self._numbers for item in self._levels[number])

    def _pass(self, now: int) -> Cut:
        """The decision over what waits; changes nothing. At least one item must wait."""
        one_queue = len(self._numbers) == 1 and not self._delayed
        items = iter(self._base.live.values() if one_queue else self._in_order())
        return decide(items, self._rules, now, oldest_first=one_queue, draining=self._draining)

    def _remove(self, item: Item) -> None:
        level = self._levels[item.level]
        before = len(level.delayed)
        level.remove(item)
        self._delayed += len(level.delayed) - before

    def complete(self, batch: Batch, now: int) -> None:
        """The batch has been executed (or has failed): its instance is idle."""
        self._running = max(0, self._running - 1)
        self._changed = now

    # ---- time

    def next_deadline(self) -> int | None:
        """When ``expire`` and then ``acquire`` should be called although nothing has happened; None if never.

        That is the earliest of the next timeout and, while an instance may be idle, the end of the delay of what waits
        (or the time of the last event, if something could leave at once). A time that ``expire`` has been called for is
        not given again, so a driver without an idle instance does not spin.
        """
        if self._expired:
            return self._changed
        heap = self._deadlines
        if not self._count and not heap:
            return None
        while heap and not self._is_watched(heap[0]):
            heapq.heappop(heap)
        times = [heap[0][0] + 1] if heap else []
        hooked = self._hooked and self._is_hooked()
        if self._count and not hooked and (self._refused or self._running < self._settings.instances):
            end = self._delay_end()
            if end > self._told:
                times.append(end)
        return min(times, default=None)

    def _delay_end(self) -> int:
        """When what waits may leave without another arrival."""
        if not self._batching:
            return self._changed
        if self._hold_until is None:
            cut = self._pass(self._changed)
            if cut.hold is None:
                return self._changed
            self._hold(cut)
        assert self._hold_until is not None
        return self._hold_until

    def expire(self, now: int) -> Sequence[RejectedItem]:
        """Removes and gives the items whose timeout has passed under a REJECT policy; moves those under DELAY."""
        self._told = max(self._told, now)
        if self._deadlines and self._deadlines[0][0] < now:
            self._purge(now)
        if not self._expired:
            return ()
        expired, self._expired = self._expired, []
        return expired

    def _purge(self, now: int) -> None:
        """Applies the policies to every item whose deadline lies before ``now``."""
        heap = self._deadlines
        while heap and heap[0][0] < now:
            entry = heapq.heappop(heap)
            if not self._is_watched(entry):
                continue
            item = entry[2]
            level = self._levels[item.level]
            del level.live[item.id]
            if level.policy.timeout_action == "DELAY":
                item.deadline = None
                level.delayed.add(item)
                self._delayed += 1
            else:
                self._count -= 1
                self._rows -= item.rows
                self._expired.append(RejectedItem(item.id, "timeout", TIMEOUT_TEXT))
            self._hold_until = self._hold_first = None
            self._changed = now

    # ---- interventions

    def cancel(self, id: int, now: int) -> bool:
        """Removes a waiting item; False if it is not waiting (unknown, running, or its timeout has passed).

        Of a request that is cancelled after its timeout, ``expire`` gives the timeout.
        """
        self._purge(now)
        for level in self._levels.values():
            item = level.find(id)
            if item is not None:
                self._remove(item)
                self._count -= 1
                self._rows -= item.rows
                self._hold_until = self._hold_first = None
                self._changed = now
                return True
        return False

    def clear(self, now: int) -> list[int]:
        """Takes everything out that waits and gives the ids; ``expire`` gives those whose timeout has passed."""
        self._purge(now)
        waiting = list(self._in_order())
        for item in waiting:
            self._remove(item)
        self._count = self._rows = 0
        self._hold_until = self._hold_first = None
        self._changed = now
        return [item.id for item in waiting]

    def reconfigure(self, settings: BatcherSettings, now: int) -> None:
        """New settings, in place.

        What waits keeps its enqueue time and order, and is treated as if it had arrived under the new settings: its
        level follows from the priority it asked for, its deadline from the new policy (which may have passed already).
        A smaller ``max_queue_size`` refuses new requests only.
        """
        self._purge(now)
        waiting = sorted((item for level in self._levels.values() for item in level), key=lambda item: item.order)
        self._configure(settings)
        self._delayed = 0
        self._deadlines = []
        self._hold_until = self._hold_first = None
        self._changed = now
        for item in waiting:
            level = self._level(item.priority)
            item.level = level.number
            item.deadline = None
            level.live[item.id] = item
            if level.timed:
                self._watch(item, level)
        self._purge(now)

    def drain(self, now: int) -> None:
        """From now on batches leave without waiting for the delay; offers are still taken."""
        self._draining = True
        self._hold_until = self._hold_first = None
        self._changed = now

    def add_instance(self, instance: int, now: int) -> None:
        """Nothing: every instance takes from the one queue."""

    def remove_instance(self, instance: int, now: int) -> bool:
        """True: an instance holds nothing that waits."""
        return True

    def departed(self, now: int) -> Sequence[int]:
        """None ever: ``remove_instance`` has said so."""
        return ()

    def statistics(self, now: int) -> QueueStatistics:
        """A snapshot of the queue."""
        ages = [now - since for level in self._levels.values() if (since := level.oldest()) is not None]
        return QueueStatistics(self._count, self._rows, max(ages, default=0))
