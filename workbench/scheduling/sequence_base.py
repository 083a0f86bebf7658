"""What the two strategies of the sequence batcher share: checks, numbering, instances, iterative requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from workbench.scheduling.interface import Accepted, Batch, Item, QueueStatistics, RejectedItem, SlotRow
from workbench.scheduling.sequence_settings import SequenceSettings
from workbench.scheduling.sequence_slots import Live, Slot, SlotTable

RESCHEDULE_TEXT = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle"
    " such a flag."
)
"""What Triton says when a model without ``iterative_sequence`` gives a request back."""

STOPPING_TEXT = "Server is stopping, scheduler for model has stopped accepting new inference requests"
"""Answer to a request that starts a sequence after ``stop`` (UNAVAILABLE), without prefix."""

_ACCEPTED = Accepted()


@dataclass(frozen=True, slots=True)
class SequenceStatistics:
    """A snapshot of the slots: how many there are, how many are taken, and sequences in the backlog."""

    slots: int
    taken: int
    backlog: int


class SequenceScheduler(ABC):
    """What both strategies have in common; see ``interface.Scheduler`` for how a scheduler is driven.

    Args:
        settings: of the model; their strategy must be that of the class.
        first_batch_seq: the number of the first batch; following ones count up.

    Raises:
        ValueError: settings of the other strategy.
    """

    per_instance: ClassVar[bool] = True
    strategy: ClassVar[str]

    def __init__(self, settings: SequenceSettings, *, first_batch_seq: int = 1) -> None:
        self._check(settings)
        self._settings = settings
        self._table = SlotTable(settings, self._settle)
        self._next_seq = first_batch_seq
        self._next_order = 0
        self._next_sequence = 1
        self._executing: dict[int, Live] = {}
        self._running: dict[int, int] = {}
        self._leaving: set[int] = set()
        self._hooked = bool(settings.hold_until_queued or settings.hold_until_backlog)
        self._draining = False
        self._stopped = False
        self._changed = 0
        self._told = -1

    def _check(self, settings: SequenceSettings) -> None:
        if settings.strategy != self.strategy:
            raise ValueError(f"settings of the strategy '{settings.strategy}' for a scheduler of '{self.strategy}'")

    @property
    def settings(self) -> SequenceSettings:
        """The settings in force."""
        return self._settings

    @property
    def waiting(self) -> int:
        """How many requests wait (the pending gauge)."""
        return self._table.waiting

    def take_notices(self) -> list[str]:
        """What Triton writes to its log as a warning: conflicts of correlation ids. Each is given once."""
        notices, self._table.notices = self._table.notices, []
        return notices

    # ---- arrivals

    def offer(self, item: Item, now: int) -> Accepted | RejectedItem:
        """Takes a request into its sequence, or refuses it with Triton's text (3.1-3.3, stopping).

        For a model with ``iterative_sequence`` a request without correlation id gets one, and START.

        Raises:
            ValueError: an item with this id waits already.
        """
        self._table.purge(now)
        refusal = self._refusal(item)
        if refusal is not None:
            return refusal
        if item.id in self._table or self._holds(item.id):
            raise ValueError(f"a request with id {item.id} waits already")
        if not item.sequence_id:
            self._name_sequence(item)
        self._admit(item, now)
        slot = self._table.place(item, now)
        if slot is not None:
            self._settle(slot, now)
        return _ACCEPTED

    def _admit(self, item: Item, now: int) -> None:
        item.enqueued = self._changed = now
        item.level = 0
        item.deadline = None
        item.order = self._next_order
        self._next_order += 1

    def _name_sequence(self, item: Item) -> None:
        while self._table.live(self._next_sequence) is not None:
            self._next_sequence += 1
        item.sequence_id = self._next_sequence
        item.sequence_start = True
        self._next_sequence += 1

    def _refusal(self, item: Item) -> RejectedItem | None:
        """Why the request cannot be taken, in Triton's order."""
        model, id = self._settings.model_name, item.sequence_id
        corrid = self._settings.corrid
        if corrid is not None and id and isinstance(id, str) != (corrid.datatype == "BYTES"):
            given = "BYTES" if isinstance(id, str) else "UINT64"
            text = (
                f"sequence batching control '{corrid.name}' data-type is '{given}', but model '{model}' expects "
                f"'{corrid.datatype}'"
            )
            return RejectedItem(item.id, "invalid", text)
        if item.rows > 1:
            text = (
                f"inference request to model '{model}' must specify batch-size 1 due to requirements of sequence"
                " batcher"
            )
            return RejectedItem(item.id, "invalid", text, id_prefix=False)
        named = bool(id)
        if not named and not self._settings.iterative_sequence:
            text = f"inference request to model '{model}' must specify a non-zero or non-empty correlation ID"
            return RejectedItem(item.id, "invalid", text, id_prefix=False)
        starts = item.sequence_start or not named
        if self._stopped and starts:
            return RejectedItem(item.id, "stopping", STOPPING_TEXT, id_prefix=False)
        if not starts and self._table.live(id) is None:
            text = (
                f"inference request for sequence {id} to model '{model}' must specify the START flag on the first "
                "request of the sequence"
            )
            return RejectedItem(item.id, "invalid", text, id_prefix=False)
        return None

    # ---- batches

    @abstractmethod
    def acquire(self, instance: int, now: int) -> Batch | None:
        """Forms a batch for an idle instance, or None if none may leave yet."""

    @abstractmethod
    def _settle(self, slot: Slot, now: int) -> None:
        """Does what can be done about a slot whose queue has changed."""

    def _holds(self, id: int) -> bool:
        """Whether the request waits outside the slots."""
        return False

    def _number(self) -> int:
        seq = self._next_seq
        self._next_seq = seq + 1
        return seq

    def _is_hooked(self, queued: int) -> bool:
        """Whether a test hook holds all batches back; once open, it stays open."""
        settings = self._settings
        if self._hooked and (
            self._draining
            or (queued >= settings.hold_until_queued and self._table.backlogged_requests >= settings.hold_until_backlog)
        ):
            self._hooked = False
        return self._hooked

    def _ends(self, item: Item) -> bool:
        """Whether the sequence is over when this request leaves its slot."""
        return item.sequence_end and not self._settings.iterative_sequence

    def _row(self, slot: Slot, item: Item) -> SlotRow:
        return SlotRow(slot.number, item, item.sequence_start, item.sequence_end, item.sequence_id)

    def _start(self, instance: int, now: int) -> None:
        self._running[instance] = self._running.get(instance, 0) + 1
        self._changed = now

    def reschedule(self, item: Item, now: int) -> Accepted | RejectedItem:
        """The model gives a running request back to be executed again (3.11); to be called before ``complete``.

        The request joins the end of its sequence without flags. It is refused where its sequence has been ended in the
        meantime (kind ``cancelled``), and in a model without ``iterative_sequence``. One that its client has cancelled
        while it ran is not to be given back: ``complete`` ends its sequence.
        """
        if not self._settings.iterative_sequence:
            return RejectedItem(item.id, "invalid", RESCHEDULE_TEXT, id_prefix=False)
        live = self._executing.pop(item.id, None)
        if live is None or self._table.live(live.id) is not live:
            return RejectedItem(item.id, "cancelled", "")
        item.sequence_start = item.sequence_end = False
        self._admit(item, now)
        self._table.put_back(item, live)
        return _ACCEPTED

    def complete(self, batch: Batch, now: int) -> None:
        """The batch has been executed (or has failed). An iterative sequence ends with its last request that is not
        given back."""
        self._changed = now
        self._running[batch.instance] = max(0, self._running.get(batch.instance, 0) - 1)
        for item in batch.items:
            live = self._executing.pop(item.id, None)
            if live is not None:
                live.open -= 1
                if not live.open and self._table.live(live.id) is live:
                    self._table.end(live, now)

    # ---- time

    def next_deadline(self) -> int | None:
        """When ``expire`` and then ``acquire`` should be called although nothing has happened; None if never.

        As with the dynamic batcher, a time that ``expire`` has been called for is not given again.
        """
        if self._table.rejected:
            return self._changed
        times = [time for time in self._leave_times() if time is not None and time > self._told]
        table = self._table.next_deadline()
        if table is not None:
            times.append(table)
        return min(times, default=None)

    @abstractmethod
    def _leave_times(self) -> list[int | None]:
        """For each instance when something may leave it without a new event."""

    def expire(self, now: int) -> Sequence[RejectedItem]:
        """Ends idle sequences; gives the requests whose sequence timed out in the backlog or was cancelled."""
        self._told = max(self._told, now)
        self._table.expire(now)
        if not self._table.rejected:
            return ()
        self._changed = now
        rejected, self._table.rejected = self._table.rejected, []
        return rejected

    # ---- interventions

    def cancel(self, id: int, now: int) -> bool:
        """Cancels a waiting request, and with it what waits behind it in its sequence; ``expire`` gives those.

        The sequence is over after the requests before it. In the backlog the whole sequence is cancelled.
        """
        self._changed = now
        return self._table.cancel(id, now)

    def evict(self, instance: int, now: int) -> list[int]:
        """Ends all sequences in an instance's slots (its process died, their states with it); gives what waited there.

        Requests that run are the driver's to answer.
        """
        self._changed = now
        return self._table.evict(instance, now)

    def clear(self, now: int) -> list[int]:
        """Takes everything out that waits and gives the ids; all sequences are over."""
        self._changed = now
        ids = self._table.clear_backlog(now)
        for instance in self._table.instances():
            ids += self.evict(instance, now)
        return ids

    def reconfigure(self, settings: SequenceSettings, now: int) -> None:
        """New settings of the same strategy, in place: sequences and requests stay where they are.

        Fewer slots: those above the number go as their sequences end. More: the backlog gets them.

        Raises:
            ValueError: settings of the other strategy, or ``iterative_sequence`` is another.
        """
        self._check(settings)
        if settings.iterative_sequence != self._settings.iterative_sequence:
            raise ValueError("iterative_sequence cannot change while sequences run")
        self._settings = settings
        self._changed = now
        self._table.resize(settings, self._leaving, now)

    def drain(self, now: int) -> None:
        """From now on batches leave without waiting for the delay; offers are still taken."""
        self._draining = True
        self._changed = now

    def stop(self, now: int) -> None:
        """Drains, and refuses to start further sequences; those that are live may go on (1.16)."""
        self.drain(now)
        self._stopped = True

    # ---- instances

    def add_instance(self, instance: int, now: int) -> None:
        """There is an instance of this number from now on; sequences from the backlog get its slots.

        Raises:
            ValueError: there is one already.
        """
        if instance in self._table.instances():
            raise ValueError(f"there is an instance {instance} already")
        self._changed = now
        self._running[instance] = 0
        self._table.add_instance(instance, now)

    def remove_instance(self, instance: int, now: int) -> bool:
        """The instance is to go when its sequences have ended (3.13): True if it may go now.

        Otherwise it must still be asked for batches until ``departed`` gives it.
        """
        if instance not in self._table.instances():
            return True
        self._changed = now
        self._leaving.add(instance)
        self._table.retire_instance(instance)
        return instance in self._leave(instance)

    def departed(self, now: int) -> Sequence[int]:
        """Instances that were to go and whose sequences have ended; each is given once."""
        return self._leave(*self._leaving) if self._leaving else ()

    def _leave(self, *instances: int) -> list[int]:
        gone = [each for each in sorted(instances) if self._table.is_vacant(each) and self._is_done(each)]
        for each in gone:
            self._leaving.discard(each)
            del self._running[each]
            self._table.forget_instance(each)
        return gone

    def _is_done(self, instance: int) -> bool:
        return not self._running.get(instance)

    # ---- looking

    def statistics(self, now: int) -> QueueStatistics:
        """A snapshot of what waits; each request is one row."""
        oldest = self._table.oldest()
        return QueueStatistics(self.waiting, self.waiting, 0 if oldest is None else now - oldest)

    def sequence_statistics(self) -> SequenceStatistics:
        """A snapshot of the slots and the backlog."""
        table = self._table
        taken = sum(slot.assigned for slot in table.all_slots())
        return SequenceStatistics(table.capacity, taken, table.backlogged_sequences)
