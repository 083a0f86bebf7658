"""What every scheduler is: late-binding, pure, driven by whoever holds the clock.

Nothing is formed until an instance asks, so late joiners come free and whatever is not running counts as waiting.
A scheduler does no I/O, starts no thread and reads no clock: ``now`` is always an argument, in nanoseconds.

How a driver uses it::

    offer(item)            a request arrives
    acquire(instance)      an instance is idle: gives it a batch, or None
    next_deadline()        when to call expire() and acquire() again although nothing has happened
    expire(now)            requests whose time is up
    cancel(id)             the client went away
    complete(batch)        the batch has been executed
    reconfigure(settings)  new settings, in place; nothing queued is lost
    drain()                from now on batches leave without waiting (the model is going away)
    add_instance(n)        an instance is there from now on; remove_instance(n) and departed(): it is to go

Where ``per_instance`` is true (sequence batchers) each instance has work of its own: None for one idle instance says
nothing about the others, so ask them all. ``expire`` may also give items of kind ``cancelled``: those that end with
another one's cancellation.

After each of these that changes something, ask ``acquire`` for every idle instance until it gives None; then arm one
timer for ``next_deadline()``, and when it fires call ``expire`` first and ``acquire`` after it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

Reason = Literal["full", "preferred", "delay", "no_delay", "shapes", "inputs", "direct", "sequence", "drain", "inline"]
"""Why a batch left the queue.

``full``: max_batch_size (or the largest preferred size) reached, or the next request does not fit; ``preferred``: a
preferred size; ``delay``: max_queue_delay_microseconds is over; ``no_delay``: no delay is set, so what waits goes;
``shapes``: the next request has other shapes; ``inputs``: it has another set of optional inputs; ``direct``: the
model has no batcher, one request is one batch; ``sequence``: the sequence batcher of strategy direct formed it (under
oldest the inner dynamic batcher's reasons hold); ``drain``: the model is unloading; ``inline``: no
scheduler formed it, the request ran at once on the thread that asked, in this process (``engine.inline``).
"""

RejectKind = Literal["timeout", "queue_full", "cancelled", "stopping", "invalid"]


@dataclass(slots=True)
class Item:
    """What a scheduler knows of a request; it carries no tensor.

    ``rows`` is max(1, batch dimension). ``priority`` is what the request asked for and ``timeout`` its own timeout in
    microseconds, 0 for none. ``shape_key`` and ``input_set`` compare equal for requests that may share a batch.

    The scheduler sets, when it takes the item: ``enqueued`` (ns), ``deadline`` (ns, or None), ``level`` (the priority
    level it really waits in, 0 where the model has none) and ``order`` (its place in the order of arrival).
    """

    id: int
    rows: int = 1
    priority: int = 0
    enqueued: int = 0
    timeout: int = 0
    deadline: int | None = None
    shape_key: Hashable = None
    input_set: Hashable = None
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    level: int = 0
    order: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    """The item waits in the queue."""


@dataclass(frozen=True, slots=True)
class RejectedItem:
    """The item is refused or its time is up; ``message`` is Triton's text.

    ``id_prefix``: whether Triton puts ``[request id: ID] `` in front where it answers a refused offer.
    """

    id: int
    kind: RejectKind
    message: str
    id_prefix: bool = True


@dataclass(frozen=True, slots=True)
class SlotRow:
    """One row of a sequence batcher's batch, with what the control inputs of that row say.

    ``slot`` is the sequence slot of the instance: implicit state is kept per (instance, slot) and is made anew where
    ``start`` is set. ``item`` is None for a null row: READY is false there, its inputs are to be the representative
    request's zeroed, its answer and its states are thrown away.
    """

    slot: int
    item: Item | None
    start: bool = False
    end: bool = False
    correlation_id: int | str = 0

    @property
    def ready(self) -> bool:
        """The value of CONTROL_SEQUENCE_READY: false for null rows only."""
        return self.item is not None


@dataclass(slots=True)
class Batch:
    """Requests that one instance executes together.

    ``rows`` is the sum over items; ``acquired`` is the time of the acquire call (ns). A sequence batcher says in
    ``slots`` what each row is: ``items`` are the rows that are requests, in the same order, and ``rows`` counts the
    null rows too, as Triton's batch statistics do. Elsewhere ``slots`` is empty.
    """

    seq: int
    instance: int
    items: list[Item]
    rows: int
    reason: Reason
    acquired: int
    slots: tuple[SlotRow, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """A snapshot of a scheduler: requests and rows waiting, the age of the oldest in ns."""

    waiting_requests: int
    waiting_rows: int
    oldest_age_ns: int


class Scheduler(Protocol):
    """See the module's text for how it is driven."""

    per_instance: ClassVar[bool]

    def offer(self, item: Item, now: int) -> Accepted | RejectedItem:
        """Takes an item into the queue, or refuses it."""

    def acquire(self, instance: int, now: int) -> Batch | None:
        """Forms a batch for an idle instance, or None if none may leave yet."""

    def next_deadline(self) -> int | None:
        """The next time (ns) at which ``expire`` or ``acquire`` could give something without a new event."""

    def expire(self, now: int) -> Sequence[RejectedItem]:
        """Removes and gives the items whose timeout has passed under a REJECT policy."""

    def cancel(self, id: int, now: int) -> bool:
        """Removes a waiting item; False if it is not waiting (unknown, or running already)."""

    def clear(self, now: int) -> list[int]:
        """Takes everything out that waits and gives the ids: the driver answers them (no instance is left, say).

        All sequences are over; what has timed out already is given by ``expire``.
        """

    def complete(self, batch: Batch, now: int) -> None:
        """The batch has been executed (or has failed)."""

    def reconfigure(self, settings: Any, now: int) -> None:
        """New settings, in place: nothing that waits is lost."""

    def drain(self, now: int) -> None:
        """From now on batches leave without waiting."""

    def statistics(self, now: int) -> QueueStatistics:
        """A snapshot of the queue."""

    def add_instance(self, instance: int, now: int) -> None:
        """There is an instance of this number from now on."""

    def remove_instance(self, instance: int, now: int) -> bool:
        """The instance is to go: True if it may go now, False if ``departed`` will give it."""

    def departed(self, now: int) -> Sequence[int]:
        """Instances that were to go and have nothing left to do; each is given once."""
