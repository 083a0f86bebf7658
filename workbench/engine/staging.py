"""The next batch, ready before the one that runs is over, for instances that execute on threads.

Between two batches of a busy instance lie the way to the loop, the next batch's forming and the way back, in which the
thread waits for an interpreter that the loop uses to send answers: 0.3 to 0.6 ms in which nothing is computed. So while
all instances are busy, and the queue holds a batch that no arrival behind it and no time can change
(``DynamicBatcher.foresee``), the loop stages it. The first thread that is done with its batch takes it and goes on; the
loop completes the one before meanwhile.

**What is staged still waits.** It stays in the queue, is counted there, and its requests are not in a batch, until a
thread takes it. Before the loop does anything that could change the batch (a request that overtakes, a cancellation, a
timeout, an edit, an instance that is idle or goes, the end of the model) it withdraws it: the queue is as if there had
been none. A batch's number, its time and its instance are those of the moment when it was taken.

**How threads and loop agree.** A staged batch is claimed once, by a thread or by the loop, in one call of a dict, which
no other thread can come into. If a thread was quicker, the loop learns whose it is, and takes note that the batch has
left the queue before it goes on with what it was about to do.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from workbench.backends.base import Execution
from workbench.clock import Clock
from workbench.engine.execution import InstanceSlot, Run
from workbench.scheduling.dynamic import DynamicBatcher
from workbench.scheduling.interface import Batch

if TYPE_CHECKING:
    from workbench.engine.model import ModelVersion
    from workbench.engine.ticket import Ticket


Claim = tuple[InstanceSlot, int, int]
"""Who has taken a batch, when (ns), and the number that it has from then on."""


class Staged:
    """A batch that can be taken, until ``until`` (ns), once."""

    __slots__ = ("_claimed", "run", "until")

    def __init__(self, run: Run, until: int) -> None:
        self.run = run
        self.until = until
        self._claimed: dict[str, Claim | None] = {}

    def claim(self, by: Claim | None) -> Claim | None:
        """Claims it for an instance, or for none: nobody takes it then. Gives whose it is. Thread-safe."""
        return self._claimed.setdefault("by", by)

    @property
    def is_claimed(self) -> bool:
        """Whether it has been claimed: by the instance that asks, it may be, which is not to have it twice."""
        return bool(self._claimed)

    def taken_by(self) -> Claim | None:
        """The instance that has taken it, and when."""
        return self._claimed.get("by")

    def begin(self, claim: Claim) -> None:
        """Writes down what is only known now: for its thread and for the loop, whichever comes first."""
        slot, now, number = claim
        run = self.run
        batch = run.batch
        batch.acquired, batch.instance = now, slot.index
        run.execution.sequence = batch.seq = number


class Stage:
    """What is staged of one model version. ``batch`` is None most of the time; all but ``take`` is for the loop."""

    __slots__ = ("_clock", "batch", "overtaken")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.batch: Staged | None = None
        self.overtaken = False
        """A request has overtaken what was staged: to stage anew for each one costs more than it gives."""

    def serve(self, slot: InstanceSlot) -> None:
        """An instance takes what is staged from now on."""
        if slot.runner is not None:
            slot.runner.following = partial(self.take, slot)

    def take(self, slot: InstanceSlot) -> Execution | None:
        """The next batch for an instance that is done with its own. On its thread, before it says that it is done."""
        staged = self.batch
        if staged is None or slot.retired:  # in this order: who is retired can only claim what is withdrawn
            return None
        now = self._clock()
        if now > staged.until or staged.is_claimed:
            return None
        run = staged.run
        claim = slot, now, run.model.scheduler.number_batch()
        if staged.claim(claim) is not claim:
            return None
        staged.begin(claim)
        return run.execution

    def prepare(self, model: ModelVersion, now: int) -> None:
        """All instances of the model are busy: stages what waits, if that may be."""
        if self.batch is not None:
            return
        if self.overtaken or not model.slots or not _may_be_staged(model):
            return
        cut = model.scheduler.foresee(now)
        if cut is not None:
            batch = Batch(-1, -1, cut.items, cut.rows, cut.reason, 0)
            self.batch = Staged(Run(model, model.slots[0], batch), cut.until)

    def look(self, now: int, *, idle: bool) -> None:
        """Takes note of what was taken; withdraws what time has changed, or what an idle instance is to have."""
        staged = self.batch
        if staged is not None:
            if idle or now > staged.until:
                self.withdraw()
            else:
                self.settle()

    def expect(self, ticket: Ticket, now: int) -> bool:
        """A request is about to join the queue; whether what was staged has been withdrawn for it."""
        staged = self.batch
        if staged is None:
            return False
        if now <= staged.until:
            if staged.run.model.scheduler.comes_last(ticket.priority):
                self.settle()
                return False
            self.overtaken = True
        self.withdraw()
        return True

    def settle(self) -> None:
        """Takes note of it if a thread has taken what was staged."""
        staged = self.batch
        if staged is not None and (claim := staged.taken_by()) is not None:
            self._begin(staged, claim)

    def withdraw(self) -> None:
        """Something is about to change: nothing is staged any more, and what was taken is known."""
        staged = self.batch
        if staged is not None:
            claim = staged.claim(None)
            if claim is not None:
                self._begin(staged, claim)
            else:
                self.batch = None

    def _begin(self, staged: Staged, claim: Claim) -> None:
        """A thread has taken it: its requests have left the queue."""
        self.batch = None
        staged.begin(claim)
        slot, run = claim[0], staged.run
        slot.run, run.slot = run, slot
        run.epoch = run.model.epoch  # a load may have kept the version (``lifecycle``)
        for ticket in run.tickets:
            ticket.run = run
        run.model.scheduler.leave(run.batch, self._clock())


def _may_be_staged(model: ModelVersion) -> bool:
    return (
        model.slots[0].runner is not None
        and type(model.scheduler) is DynamicBatcher
        and not model.decoupled
        and not model.settings.hold_until_queued
    )
