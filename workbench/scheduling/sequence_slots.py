"""Where sequences live: the slots of the instances and the backlog of whole sequences before them.

A sequence that starts takes the free slot of the lowest number over all instances and keeps it until its request with
END leaves; without a free slot it waits, whole, in the backlog, first come first served. What ends a sequence from
outside (idle for too long, cancelled, an iterative one that is finished) is a null request behind what waits in its
slot: when that comes to the front, the slot is free. Source: ``sequence_batch_scheduler.cc``.

**How this differs from Triton.** A cancelled request is answered at once, with all that wait behind it in its sequence
(Triton does so when it reaches the front of the slot); requests before it still run, and the sequence is over. A new
instance takes sequences from the backlog at once. A sequence that waited in the backlog for longer than it may be idle
has 50 ms from when it gets a slot (Triton looks at it at some time within those 50 ms).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from workbench.scheduling.interface import Item, RejectedItem
from workbench.scheduling.sequence_settings import SequenceSettings

SEQUENCE_TIMEOUT_TEXT = "timeout of the corresponding sequence has been expired"
"""Answer to all requests of a sequence whose timeout passed in the backlog (UNAVAILABLE)."""

BACKLOG_GRACE_NS = 50_000_000
"""How often Triton looks again at an idle sequence that waits in the backlog."""

CorrelationId = int | str


@dataclass(slots=True, eq=False)
class Backlog:
    """A sequence that waits for a slot. ``expires`` is the earliest end of a timeout of its requests (ns)."""

    queue: deque[Item] = field(default_factory=deque)
    expires: int | None = None
    gone: bool = False


@dataclass(slots=True, eq=False)
class Slot:
    """A place of an instance; ``queue`` holds what waits in it, None where the sequence is ended from outside.

    ``in_flight`` is the request that the strategy ``oldest`` has handed on; ``retired``: not to be given out again.
    """

    instance: int
    number: int
    queue: deque[Item | None] = field(default_factory=deque)
    assigned: bool = False
    retired: bool = False
    in_flight: Item | None = None
    live: Live | None = None


@dataclass(slots=True, eq=False)
class Live:
    """A sequence that takes further requests, in a slot or in the backlog.

    ``due`` is when it has been idle for too long, ``entry`` for when that is noted, ``tick`` decides among those due at
    once (who had a slot first). ``open`` counts the requests of an
    iterative model that have not been released.
    """

    id: CorrelationId
    last: int
    due: int
    slot: Slot | None = None
    backlog: Backlog | None = None
    entry: int | None = None
    tick: int = 0
    open: int = 0


class SlotTable:
    """Slots, backlog and who is live. ``settle`` is called for a slot whose queue has changed from inside here."""

    def __init__(self, settings: SequenceSettings, settle: Callable[[Slot, int], None]) -> None:
        self._settle = settle
        self._count = settings.slots
        self._idle = settings.idle
        self._model = settings.model_name
        self._iterative = settings.iterative_sequence
        self._instances: dict[int, list[Slot]] = {}
        self._free: list[tuple[int, int, int, Slot]] = []
        self._backlog: dict[Backlog, None] = {}
        self._expiries: list[tuple[int, int, Backlog]] = []
        self._live: dict[CorrelationId, Live] = {}
        self._dues: list[tuple[int, int, int, Live]] = []
        self._where: dict[int, Slot | Backlog] = {}
        self._ticks = 0
        self.rejected: list[RejectedItem] = []
        self.notices: list[str] = []

    # ---- looking

    def __contains__(self, id: int) -> bool:
        return id in self._where

    @property
    def waiting(self) -> int:
        """Requests that wait in slots and in the backlog."""
        return len(self._where)

    @property
    def backlogged_requests(self) -> int:
        """Requests that wait in the backlog."""
        return sum(len(backlog.queue) for backlog in self._backlog)

    @property
    def backlogged_sequences(self) -> int:
        """Sequences that wait for a slot."""
        return len(self._backlog)

    def all_slots(self) -> Iterator[Slot]:
        """Every slot of every instance that has been needed so far."""
        for slots in self._instances.values():
            yield from slots

    def slots(self, instance: int) -> list[Slot]:
        """The slots of an instance by number, those that are retired included."""
        return self._instances.get(instance, [])

    def instances(self) -> list[int]:
        """Numbers of the instances."""
        return list(self._instances)

    def is_vacant(self, instance: int) -> bool:
        """Whether no sequence has a slot there and none will get one."""
        return all(slot.retired and not slot.assigned for slot in self.slots(instance))

    def live(self, id: CorrelationId) -> Live | None:
        """The sequence of this id that takes further requests, or None."""
        return self._live.get(id)

    def oldest(self) -> int | None:
        """When what waits longest in a slot or in the backlog was enqueued (ns)."""
        heads = [slot.queue[0] for slot in self.all_slots() if slot.queue]
        heads += [backlog.queue[0] for backlog in self._backlog]
        return min((item.enqueued for item in heads if item is not None), default=None)

    # ---- instances

    def add_instance(self, instance: int, now: int) -> None:
        """Its slots are free, and what waits in the backlog gets them."""
        self._instances[instance] = []
        self._give_out(self._grow(instance), now)

    @property
    def capacity(self) -> int:
        """How many slots there are, those included that nobody has needed so far."""
        return sum(
            len(slots) if not slots or slots[-1].retired else max(len(slots), self._count)
            for slots in self._instances.values()
        )

    def retire_instance(self, instance: int) -> None:
        """Its slots are not given out again."""
        for slot in self.slots(instance):
            slot.retired = True

    def forget_instance(self, instance: int) -> None:
        """The instance is gone; it must be vacant."""
        del self._instances[instance]

    def resize(self, settings: SequenceSettings, leaving: set[int], now: int) -> None:
        """New numbers of slots, idle time and name; slots above the number go as they become free."""
        self._count, self._idle, self._model = settings.slots, settings.idle, settings.model_name
        fresh: list[Slot] = []
        for instance, slots in self._instances.items():
            if instance in leaving:
                continue
            for slot in slots:
                if slot.number < self._count and slot.retired and not slot.assigned:
                    fresh.append(slot)
                slot.retired = slot.number >= self._count
            fresh += self._grow(instance)
        self._give_out(fresh, now)
        self._dues = []
        for live in self._live.values():
            live.due, live.entry = max(live.last + self._idle, now + BACKLOG_GRACE_NS), None
            if live.slot is not None:
                self._watch(live)

    def _grow(self, instance: int) -> list[Slot]:
        """The next slot of an instance, where all that have been made are taken: a million slots are seldom used."""
        slots = self._instances[instance]
        if len(slots) >= self._count or (slots and not slots[-1].assigned):
            return []
        slots.append(Slot(instance, len(slots)))
        return slots[-1:]

    def _give_out(self, slots: list[Slot], now: int) -> None:
        """All get a sequence of the backlog before any hands a request on, which could free it for the next one."""
        left = [(slot.number, slot.instance, slot) for slot in slots]
        heapq.heapify(left)
        taken: list[Slot] = []
        while left:
            slot = heapq.heappop(left)[2]
            if self._refill(slot, now):
                taken.append(slot)
                for more in self._grow(slot.instance):
                    heapq.heappush(left, (more.number, more.instance, more))
        for slot in taken:
            self._settle(slot, now)

    # ---- requests

    def place(self, item: Item, now: int) -> Slot | None:
        """Puts a request where its sequence is; gives the slot, or None where it waits in the backlog.

        The caller has checked that the sequence is live or starts here.
        """
        live = self._live.get(item.sequence_id)
        if live is None:
            live = Live(item.sequence_id, now, now + self._idle)
            live.slot = self._take_free()
            if live.slot is None:
                live.backlog = Backlog()
                self._backlog[live.backlog] = None
            else:
                live.slot.live = live
            self._live[live.id] = live
        elif item.sequence_start:
            self.notices.append(
                f"sequence {live.id} for model '{self._model}' has a conflict. The previous sequence did not end before"
                " this sequence start. Previous sequence will be terminated early."
            )
        live.open += 1
        live.last, live.due = now, now + self._idle
        slot, backlog = live.slot, live.backlog
        if slot is not None:
            slot.queue.append(item)
            self._where[item.id] = slot
            self._watch(live)
        elif backlog is not None:
            backlog.queue.append(item)
            self._where[item.id] = backlog
            self._expire_with(backlog, item, now)
        if item.sequence_end and not self._iterative:
            del self._live[live.id]
        return slot

    def _expire_with(self, backlog: Backlog, item: Item, now: int) -> None:
        if not item.timeout:
            return
        item.deadline = now + item.timeout * 1000
        if backlog.expires is None or item.deadline < backlog.expires:
            backlog.expires = item.deadline
            self._ticks += 1
            heap = self._expiries
            if len(heap) > 64 and len(heap) > 2 * len(self._backlog):
                heap[:] = [entry for entry in heap if not entry[2].gone]
                heapq.heapify(heap)
            heapq.heappush(heap, (item.deadline, self._ticks, backlog))

    def _take_free(self) -> Slot | None:
        while self._free:
            slot = heapq.heappop(self._free)[3]
            if not slot.retired and not slot.assigned:
                slot.assigned = True
                for more in self._grow(slot.instance):
                    self._set_free(more)
                return slot
        return None

    def _set_free(self, slot: Slot) -> None:
        self._ticks += 1
        heapq.heappush(self._free, (slot.number, slot.instance, self._ticks, slot))

    def take(self, slot: Slot) -> Item:
        """Takes the request at the front of a slot; there must be one."""
        item = slot.queue.popleft()
        assert item is not None
        del self._where[item.id]
        return item

    def put_back(self, item: Item, live: Live) -> Slot:
        """A request that is to run again joins the end of its sequence's slot."""
        assert live.slot is not None
        live.slot.queue.append(item)
        self._where[item.id] = live.slot
        return live.slot

    # ---- ends

    def release(self, slot: Slot, now: int) -> bool:
        """The slot's sequence is over: the first of the backlog takes the slot; True if there was one."""
        slot.assigned, slot.live = False, None
        if slot.retired:
            return False
        return self._refill(slot, now)

    def _refill(self, slot: Slot, now: int) -> bool:
        self.purge(now)
        if not self._backlog:
            self._set_free(slot)
            return False
        backlog = next(iter(self._backlog))
        del self._backlog[backlog]
        backlog.gone = True
        slot.assigned = True
        slot.queue.extend(backlog.queue)
        for item in backlog.queue:
            item.deadline = None
            self._where[item.id] = slot
        live = self._live.get(backlog.queue[-1].sequence_id)
        if live is not None and live.backlog is backlog:
            live.backlog, live.slot, slot.live = None, slot, live
            live.due = max(live.last + self._idle, now + BACKLOG_GRACE_NS)
            self._watch(live)
        return True

    def end(self, live: Live, now: int) -> None:
        """Ends a sequence that has a slot, behind what waits there."""
        if self._live.get(live.id) is live:
            del self._live[live.id]
            assert live.slot is not None
            live.slot.queue.append(None)
            self._settle(live.slot, now)

    def cancel_slot(self, slot: Slot, position: int, now: int) -> None:
        """Cancels what waits in a slot from a position on, and ends the sequence there. Nothing for what is before."""
        for item in list(slot.queue)[position:]:
            if item is not None:
                del self._where[item.id]
                self.rejected.append(RejectedItem(item.id, "cancelled", ""))
        while len(slot.queue) > position:
            slot.queue.pop()
        live = slot.live
        if live is not None and self._live.get(live.id) is live:
            del self._live[live.id]
        slot.queue.append(None)
        self._settle(slot, now)

    def cancel(self, id: int, now: int) -> bool:
        """Cancels a waiting request and what waits behind it in its sequence (before it too, in the backlog)."""
        self.purge(now)
        place = self._where.get(id)
        if place is None:
            return False
        if isinstance(place, Backlog):
            self._drop_backlog(place, "cancelled", "")
        else:
            position = next(n for n, item in enumerate(place.queue) if item is not None and item.id == id)
            self.cancel_slot(place, position, now)
        self.rejected = [each for each in self.rejected if each.id != id]
        return True

    def evict(self, instance: int, now: int) -> list[int]:
        """Takes everything that waits out of an instance's slots; the sequences there are over."""
        self.purge(now)
        lost: list[int] = []
        before = self.rejected
        self.rejected = []
        for slot in self.slots(instance):
            if slot.assigned:
                self.cancel_slot(slot, 0, now)
                lost += [each.id for each in self.rejected]
                self.rejected = []
        self.rejected = before
        return lost

    def clear_backlog(self, now: int) -> list[int]:
        """Takes all sequences out of the backlog."""
        self.purge(now)
        before = self.rejected
        self.rejected = []
        for backlog in list(self._backlog):
            self._drop_backlog(backlog, "cancelled", "")
        dropped = [each.id for each in self.rejected]
        self.rejected = before
        return dropped

    def _drop_backlog(self, backlog: Backlog, kind: str, message: str) -> None:
        backlog.gone = True
        del self._backlog[backlog]
        live = self._live.get(backlog.queue[0].sequence_id)
        if live is not None and live.backlog is backlog:
            del self._live[live.id]
        for item in backlog.queue:
            del self._where[item.id]
            self.rejected.append(RejectedItem(item.id, "timeout" if kind == "timeout" else "cancelled", message))

    # ---- time

    def _watch(self, live: Live) -> None:
        """Notes when the sequence is due; a later time is noted when the noted one comes: a request costs little.

        A sequence of an iterative model ends when its requests do; it is never idle.
        """
        if self._iterative:
            return
        if live.entry is None or live.due < live.entry:
            self._ticks += 1
            live.tick = live.tick or self._ticks
            live.entry = live.due
            heap = self._dues
            if len(heap) > 64 and len(heap) > 2 * len(self._live):
                heap[:] = [entry for entry in heap if entry[0] == entry[3].entry and self._is_live(entry[3])]
                heapq.heapify(heap)
            heapq.heappush(heap, (live.due, live.tick, self._ticks, live))

    def _is_live(self, live: Live) -> bool:
        return self._live.get(live.id) is live

    def next_deadline(self) -> int | None:
        """When ``expire`` could end a sequence."""
        times = []
        while self._expiries and self._expiries[0][2].gone:
            heapq.heappop(self._expiries)
        if self._expiries:
            times.append(self._expiries[0][0])
        due = self._next_due()
        if due is not None:
            times.append(due)
        return min(times, default=None)

    def _next_due(self) -> int | None:
        """The next time at which a sequence is idle for too long; forgets entries that no longer say that."""
        heap = self._dues
        while heap:
            due, _, unique, live = heap[0]
            if due != live.entry:
                heapq.heappop(heap)
            elif not self._is_live(live):
                heapq.heappop(heap)
                live.entry = None
            elif live.due != due:
                live.entry = live.due
                heapq.heapreplace(heap, (live.due, live.tick, unique, live))
            else:
                return due
        return None

    def expire(self, now: int) -> None:
        """Rejects sequences whose timeout passed in the backlog, then ends those that are idle for too long."""
        self.purge(now)
        while (due := self._next_due()) is not None and due <= now:
            live = heapq.heappop(self._dues)[3]
            live.entry = None
            self.end(live, now)

    def purge(self, now: int) -> None:
        """Rejects sequences whose timeout passed in the backlog, also if nobody has been told the time yet."""
        while self._expiries and (self._expiries[0][2].gone or self._expiries[0][0] <= now):
            backlog = heapq.heappop(self._expiries)[2]
            if not backlog.gone:
                self._drop_backlog(backlog, "timeout", SEQUENCE_TIMEOUT_TEXT)
