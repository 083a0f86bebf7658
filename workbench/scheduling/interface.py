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

After each of these that changes something, ask ``acquire`` for every idle instance until it gives None; then arm one
timer for ``next_deadline()``, and when it fires call ``expire`` first and ``acquire`` after it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Reason = Literal["full", "preferred", "delay", "no_delay", "shapes", "inputs", "direct", "sequence", "drain"]
"""Why a batch left the queue.

``full``: max_batch_size (or the largest preferred size) reached, or the next request does not fit; ``preferred``: a
preferred size; ``delay``: max_queue_delay_microseconds is over; ``no_delay``: no delay is set, so what waits goes;
``shapes``: the next request has other shapes; ``inputs``: it has another set of optional inputs; ``direct``: the
model has no batcher, one request is one batch; ``sequence``: the sequence batcher formed it; ``drain``: the model is
unloading.
"""

RejectKind = Literal["timeout", "queue_full"]


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
    """The item is refused or its time is up; ``message`` is Triton's text."""

    id: int
    kind: RejectKind
    message: str


@dataclass(slots=True)
class Batch:
    """Requests that one instance executes together.

    ``rows`` is the sum over items; ``acquired`` is the time of the acquire call (ns).
    """

    seq: int
    instance: int
    items: list[Item]
    rows: int
    reason: Reason
    acquired: int


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """A snapshot of a scheduler: requests and rows waiting, the age of the oldest in ns."""

    waiting_requests: int
    waiting_rows: int
    oldest_age_ns: int


class Scheduler(Protocol):
    """See the module's text for how it is driven."""

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

    def complete(self, batch: Batch, now: int) -> None:
        """The batch has been executed (or has failed)."""

    def reconfigure(self, settings: Any, now: int) -> None:
        """New settings, in place: nothing that waits is lost."""

    def drain(self, now: int) -> None:
        """From now on batches leave without waiting."""

    def statistics(self, now: int) -> QueueStatistics:
        """A snapshot of the queue."""
