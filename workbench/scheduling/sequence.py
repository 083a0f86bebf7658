"""Triton's sequence batcher, strategies ``direct`` and ``oldest``, with late binding.

Every instance has sequence slots (``sequence_slots``). Under ``direct`` a request stays in the row of its slot, rows
without a request are null rows, and one batch runs in an instance at a time. Under ``oldest`` each slot hands on one
request at a time to a dynamic batcher of the instance; the next one follows when that one has been executed.

``acquire`` is asked for each idle instance (``per_instance``): its sequences wait for it alone. In a model with
``iterative_sequence`` the driver calls ``reschedule`` for each request that the model gives back, before ``complete``;
a request that is not given back ends its sequence. Source: ``sequence_batch_scheduler.cc``.

**How this differs from Triton**, beside what ``sequence_slots`` says: a batch is formed when an idle instance asks, not
ahead of time; an iterative request may carry END from the start, it counts when the model gives the request back no
more (Triton drops the request then); a sequence of an iterative model is not idle while its request runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from workbench.scheduling.dynamic import DynamicBatcher
from workbench.scheduling.interface import Batch, Item, QueueStatistics, Reason, RejectedItem, Scheduler, SlotRow
from workbench.scheduling.sequence_base import SequenceScheduler
from workbench.scheduling.sequence_settings import SequenceSettings, as_float32, sequence_settings_from_config
from workbench.scheduling.sequence_slots import Slot
from workbench.scheduling.settings import BatcherSettings, settings_from_config


class DirectSequenceScheduler(SequenceScheduler):
    """The strategy ``direct``: each sequence keeps its row of the batch (3.5)."""

    strategy = "direct"

    def _settle(self, slot: Slot, now: int) -> None:
        while slot.queue and slot.queue[0] is None:
            slot.queue.popleft()
            self._table.release(slot, now)

    def acquire(self, instance: int, now: int) -> Batch | None:
        """Forms a batch of the requests at the front of all slots, with null rows between them.

        A request whose shapes or optional inputs differ from the first one's waits; its row is null.
        """
        if self._running.get(instance) or self._is_hooked(self._table.waiting - self._table.backlogged_requests):
            return None
        slots = self._table.slots(instance)
        ready = [slot for slot in slots if slot.queue]
        if not ready:
            return None
        reason = self._may_leave(ready, now)
        if reason is None:
            return None
        first = ready[0].queue[0]
        assert first is not None
        rows: list[SlotRow] = []
        items: list[Item] = []
        for slot in slots[: ready[-1].number + 1]:
            item = slot.queue[0] if slot.queue else None
            if item is None or item.shape_key != first.shape_key or item.input_set != first.input_set:
                rows.append(SlotRow(slot.number, None))
                continue
            self._table.take(slot)
            rows.append(self._row(slot, item))
            items.append(item)
            if self._settings.iterative_sequence and slot.live is not None:
                self._executing[item.id] = slot.live
            if self._ends(item):
                self._table.release(slot, now)
            self._settle(slot, now)
        self._start(instance, now)
        return Batch(self._number(), instance, items, len(rows), reason, now, tuple(rows))

    def _may_leave(self, ready: Sequence[Slot], now: int) -> Reason | None:
        settings = self._settings
        delay = settings.max_queue_delay_microseconds * 1000
        if not delay or not settings.minimum_slot_utilization:
            return "sequence"
        share = as_float32(len(ready) / max(1, settings.max_batch_size))
        if share >= as_float32(settings.minimum_slot_utilization):
            return "sequence"
        if now - _earliest(ready) > delay:
            return "delay"
        return "drain" if self._draining else None

    def _leave_times(self) -> list[int | None]:
        times: list[int | None] = []
        for instance in self._table.instances():
            ready = [slot for slot in self._table.slots(instance) if slot.queue]
            if not ready or self._running.get(instance):
                continue
            if self._hooked and self._is_hooked(self._table.waiting - self._table.backlogged_requests):
                continue
            if self._may_leave(ready, self._changed) is not None:
                times.append(self._changed)
            else:
                times.append(_earliest(ready) + self._settings.max_queue_delay_microseconds * 1000 + 1)
        return times


def _earliest(ready: Sequence[Slot]) -> int:
    return min(item.enqueued for slot in ready if (item := slot.queue[0]) is not None)


class OldestSequenceScheduler(SequenceScheduler):
    """The strategy ``oldest``: a dynamic batcher in each instance gets one request of each sequence at a time (3.6).

    Batches carry the reason of that dynamic batcher. The delay counts from when a request is handed to it.
    """

    strategy = "oldest"

    def __init__(self, settings: SequenceSettings, *, first_batch_seq: int = 1) -> None:
        self._inner: dict[int, DynamicBatcher] = {}
        self._places: dict[int, Slot] = {}
        super().__init__(settings, first_batch_seq=first_batch_seq)

    @property
    def waiting(self) -> int:
        """How many requests wait (the pending gauge)."""
        return self._table.waiting + sum(inner.waiting for inner in self._inner.values())

    def _holds(self, id: int) -> bool:
        return id in self._places

    def _settle(self, slot: Slot, now: int) -> None:
        """Hands on the next request of the slot, if none is under way; null requests free the slot."""
        while slot.in_flight is None and slot.queue:
            if slot.queue[0] is None:
                slot.queue.popleft()
                self._table.release(slot, now)
                continue
            item = slot.in_flight = self._table.take(slot)
            self._places[item.id] = slot
            if self._settings.iterative_sequence and slot.live is not None:
                self._executing[item.id] = slot.live
            self._inner[slot.instance].offer(item, now)
            if self._ends(item):
                self._table.release(slot, now)

    def acquire(self, instance: int, now: int) -> Batch | None:
        """Forms a batch as the instance's dynamic batcher does."""
        inner = self._inner.get(instance)
        if inner is None or self._is_hooked(sum(each.waiting for each in self._inner.values())):
            return None
        batch = inner.acquire(instance, now)
        if batch is None:
            return None
        places = [self._places[item.id] for item in batch.items]
        rows = tuple(self._row(slot, item) for slot, item in zip(places, batch.items, strict=True))
        self._start(instance, now)
        return Batch(self._number(), instance, batch.items, len(rows), batch.reason, now, rows)

    def complete(self, batch: Batch, now: int) -> None:
        """The batch has been executed (or has failed): the sequences' next requests are handed on."""
        inner = self._inner.get(batch.instance)
        if inner is not None:
            inner.complete(batch, now)
        slots = [slot for item in batch.items if (slot := self._places.pop(item.id, None)) is not None]
        for slot in slots:
            slot.in_flight = None
        super().complete(batch, now)
        for slot in slots:
            self._settle(slot, now)

    def cancel(self, id: int, now: int) -> bool:
        """As for ``direct``; a request that waits in the dynamic batcher ends its sequence too."""
        slot = self._places.get(id)
        if slot is None:
            return super().cancel(id, now)
        if not self._inner[slot.instance].cancel(id, now):
            return False
        self._changed = now
        del self._places[id]
        item, slot.in_flight = slot.in_flight, None
        self._executing.pop(id, None)
        assert item is not None
        if self._ends(item):
            self._settle(slot, now)
        else:
            self._table.cancel_slot(slot, 0, now)
        return True

    def evict(self, instance: int, now: int) -> list[int]:
        """Ends all sequences in an instance's slots; gives what waited there."""
        lost = []
        for id, slot in list(self._places.items()):
            if slot.instance == instance and self._inner[instance].cancel(id, now):
                lost.append(id)
                del self._places[id]
                self._executing.pop(id, None)
                slot.in_flight = None
        return lost + super().evict(instance, now)

    def reconfigure(self, settings: SequenceSettings, now: int) -> None:
        """As for ``direct``; preferred sizes and delay apply to what waits already.

        Raises:
            ValueError: settings of the other strategy.
        """
        self._check(settings)
        for inner in self._inner.values():
            inner.reconfigure(settings.inner(), now)
        super().reconfigure(settings, now)

    def drain(self, now: int) -> None:
        """From now on batches leave without waiting for the delay; offers are still taken."""
        super().drain(now)
        for inner in self._inner.values():
            inner.drain(now)

    def expire(self, now: int) -> Sequence[RejectedItem]:
        """Ends idle sequences; gives the requests whose sequence timed out in the backlog or was cancelled."""
        for inner in self._inner.values():
            inner.expire(now)
        return super().expire(now)

    def _leave_times(self) -> list[int | None]:
        if self._hooked and self._is_hooked(sum(each.waiting for each in self._inner.values())):
            return []
        return [inner.next_deadline() for inner in self._inner.values()]

    def add_instance(self, instance: int, now: int) -> None:
        """There is an instance of this number from now on; sequences from the backlog get its slots.

        Raises:
            ValueError: there is one already.
        """
        if instance not in self._inner:
            self._inner[instance] = DynamicBatcher(self._settings.inner())
            if self._draining:
                self._inner[instance].drain(now)
        super().add_instance(instance, now)

    def _is_done(self, instance: int) -> bool:
        return super()._is_done(instance) and not self._inner[instance].waiting

    def _leave(self, *instances: int) -> list[int]:
        gone = super()._leave(*instances)
        for each in gone:
            del self._inner[each]
        return gone

    def statistics(self, now: int) -> QueueStatistics:
        """A snapshot of what waits; each request is one row."""
        outer = super().statistics(now)
        ages = [inner.statistics(now).oldest_age_ns for inner in self._inner.values()]
        return QueueStatistics(self.waiting, self.waiting, max(outer.oldest_age_ns, *ages, 0))


def sequence_scheduler(settings: SequenceSettings, *, first_batch_seq: int = 1) -> SequenceScheduler:
    """The scheduler of the settings' strategy."""
    made = OldestSequenceScheduler if settings.strategy == "oldest" else DirectSequenceScheduler
    return made(settings, first_batch_seq=first_batch_seq)


def scheduler_settings(
    message: Any, *, hold_until_queued: int = 0, hold_until_backlog: int = 0
) -> BatcherSettings | SequenceSettings:
    """What a normalised ``ModelConfig`` message says about batching (1.1): sequences come before dynamic batching.

    Args:
        message: of the model; not of an ensemble.
        hold_until_queued: TRITONSERVER_DELAY_SCHEDULER.
        hold_until_backlog: TRITONSERVER_BACKLOG_DELAY_SCHEDULER.

    Raises:
        ConfigError: what Triton says of an implicit state when it makes the scheduler.
    """
    if message.HasField("sequence_batching"):
        return sequence_settings_from_config(
            message, hold_until_queued=hold_until_queued, hold_until_backlog=hold_until_backlog
        )
    return replace(settings_from_config(message), hold_until_queued=hold_until_queued)


def make_scheduler(settings: BatcherSettings | SequenceSettings, *, first_batch_seq: int = 1) -> Scheduler:
    """The scheduler for the settings of a model."""
    if isinstance(settings, SequenceSettings):
        return sequence_scheduler(settings, first_batch_seq=first_batch_seq)
    return DynamicBatcher(settings, first_batch_seq=first_batch_seq)
