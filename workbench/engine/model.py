"""One loaded version of a model: its queue, its instances, its statistics. Everything here runs on the loop."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from workbench.backends.base import LoadedModel
from workbench.engine.books import (
    counts_though_failed,
    finish_response,
    note_end,
    unanswered,
    write_batch,
    write_ended,
    write_request,
)
from workbench.engine.core import EngineCore
from workbench.engine.execution import InstanceSlot, Run
from workbench.engine.ordering import AnswerOrder
from workbench.engine.staging import Stage
from workbench.engine.statistics import ModelStatistics
from workbench.engine.ticket import OnResponse, Ticket
from workbench.engine.timers import TimerHandle
from workbench.engine.validation import Checked, OutputReshaper, RequestValidator, refusal
from workbench.errors import (
    Cancelled,
    InstanceDied,
    NotReady,
    TimedOut,
    WorkbenchError,
)
from workbench.protocol.tensors import InferenceRequest, InferenceResponse
from workbench.scheduling.dynamic import DynamicBatcher
from workbench.scheduling.interface import Batch, RejectedItem
from workbench.scheduling.settings import settings_from_config

_BATCHES_PER_GENERATION = 1_000_000_000


class ModelVersion:
    """A version that can serve. Made by the loader with its instances; ``retire`` ends it.

    ``config`` is the normalised message in force, ``epoch`` the configuration's number on records.
    """

    ticket_class: type[Ticket] = Ticket
    orders_by_arrival = True
    """Whether preserve_ordering means the order of arrival; else it is that in which requests leave the queue."""

    def __init__(self, core: EngineCore, name: str, version: int, config: Any, loaded: LoadedModel) -> None:
        self.core = core
        self.name = name
        self.version = version
        self.loaded = loaded
        self.epoch = 0
        self.generation = core.next_generation()
        self.statistics = ModelStatistics()
        self.slots: list[InstanceSlot] = []
        self.passive: list[InstanceSlot] = []
        self.next_index = 0
        self.holds = 0
        self.decoupled: bool = config.model_transaction_policy.decoupled
        self.scheduler = self._make_scheduler(config, self.generation * _BATCHES_PER_GENERATION + 1)
        self._open: dict[int, Ticket] = {}
        self.idle: deque[InstanceSlot] = deque()
        self.took_ns = -1
        self._late: set[InstanceSlot] = set()
        self._turns = core.turns
        self._order = AnswerOrder(core.loop)
        self.stage = Stage(core.clock)
        self._planned = False
        self._timer: TimerHandle | None = None
        self._on_empty: Callable[[], None] | None = None
        self._ending: asyncio.Event | None = None
        self.adopt_config(config)

    def _make_scheduler(self, config: Any, first_batch_seq: int) -> Any:
        return DynamicBatcher(self._settings_of(config), first_batch_seq=first_batch_seq)

    def _settings_of(self, config: Any) -> Any:
        return dataclasses.replace(settings_from_config(config), hold_until_queued=self.core.options.hold_until_queued)

    def adopt_config(self, config: Any) -> None:
        """Makes a normalised message the one in force for checks; the scheduler is told by ``reconfigure``."""
        self.config = config
        self.validator = RequestValidator(config)
        self.reshape_outputs = OutputReshaper(config)
        self.settings: Any = self._settings_of(config)

    def reconfigure(self, config: Any, epoch: int) -> None:
        """New settings in place: nothing that waits or runs is lost."""
        self.core.inline.withdraw()
        self.stage.withdraw()
        self.adopt_config(config)
        self.epoch = epoch
        self.scheduler.reconfigure(self.settings, self.core.clock())
        if self._turns is not None:
            self._turns.renew(self)
        self.plan()

    # ---- instances

    def add_slot(self, slot: InstanceSlot) -> None:
        """A new idle instance, or a passive one, which is only kept."""
        if slot.spec.passive:
            self.passive.append(slot)
            return
        slot.ready = True
        slot.look_at_health()
        self.stage.serve(slot)
        self.slots.append(slot)
        if slot.healthy:
            self.idle.append(slot)
        self.plan()

    def retire_slot(self, slot: InstanceSlot) -> None:
        """Takes an instance out; it is closed after the batch that it runs."""
        self.core.inline.withdraw()
        slot.retired = True
        self.stage.withdraw()
        (self.passive if slot.spec.passive else self.slots).remove(slot)
        if slot.run is None:
            self._late.add(slot)
            self.came_back(slot)

    def came_back(self, slot: InstanceSlot) -> None:
        """A thread that has run a request of its own in an instance (``engine.inline``) is done, and was waited for."""
        if slot in self._late:
            try:
                self.idle.remove(slot)
            except ValueError:  # a thread has it: this is called again
                gone = slot.runner is None
            else:
                gone = True
            if gone:
                self._let_slot_go(slot)
        self.look_whether_empty()
        self.plan()

    def is_busy(self, slot: InstanceSlot) -> bool:
        """Whether an instance runs a batch, or a thread a request of its own in it."""
        return slot.run is not None or self._is_lent(slot)

    def _is_lent(self, slot: InstanceSlot) -> bool:
        return slot.runner is not None and slot.run is None and slot not in self.idle

    def _count_lent(self) -> int:
        return sum(self._is_lent(slot) for slot in (*self.slots, *self._late))

    def _let_slot_go(self, slot: InstanceSlot) -> None:
        """Closes an instance that runs nothing."""
        self._late.discard(slot)
        if slot in self.idle:
            self.idle.remove(slot)
        if self._turns is not None:
            self._turns.forget(slot)
        self.core.spawn(self.core.on_closer(slot.close))

    def instance_state(self, name: str, healthy: bool, why: str, gone: bool) -> None:
        """A loop instance's process died or is back."""
        for slot in (*self.slots, *self.passive):
            if slot.spec.label == name:
                slot.healthy, slot.why, slot.gone = healthy, why, gone and not healthy
                if slot in self.idle and not healthy:
                    self.idle.remove(slot)
                elif healthy and slot.ready and slot.run is None and slot not in self.idle:
                    self.idle.append(slot)
                self.core.events.append(
                    "instance", self.name, why, level="info" if healthy else "error", instance=name, healthy=healthy
                )
                break
        if self.slots and all(slot.gone for slot in self.slots):
            self._fail_waiting(lambda: InstanceDied(f"no instance of model '{self.name}' is left: {why}"))
        self.plan()

    # ---- requests

    @property
    def pending(self) -> int:
        """Requests that wait for an instance."""
        self.stage.settle()
        waiting: int = self.scheduler.waiting
        return waiting

    @property
    def open_requests(self) -> int:
        """Requests accepted and not yet answered to the end."""
        return len(self._open) + self._count_lent()

    @property
    def is_ending(self) -> bool:
        """Whether somebody waits for the last request to end."""
        return self._on_empty is not None

    def accept(self, request: InferenceRequest, on_response: OnResponse) -> Ticket:
        """Checks a request and queues it.

        Raises:
            InvalidRequest: the request does not fit the model.
            QueueFull: the queue's limit is reached.
            InstanceDied: no instance is left to run it.
        """
        checked = self.validator.check(request)
        now = self.core.clock()
        ticket = self.make_ticket(request, checked, on_response, now)
        if self.slots and self.slots[0].gone and all(slot.gone for slot in self.slots):
            raise InstanceDied(f"no instance of model '{self.name}' is left: {self.slots[0].why}")
        if self.passive and not self.slots:
            raise NotReady(f"model '{self.name}' has passive instances only, which execute nothing")
        withdrawn = self.stage.expect(ticket, now)
        answer = self.scheduler.offer(ticket, now)
        if type(answer) is RejectedItem:
            if withdrawn:  # it has not overtaken what was staged after all
                self.stage.overtaken = False
                self.plan()
            raise refusal(request, answer)
        self._open[ticket.id] = ticket
        if self.settings.preserve_ordering and self.orders_by_arrival:
            self._order.keep(ticket)
        if not self._planned:
            self._planned = True
            self.core.loop.call_soon(self._dispatch)
        return ticket

    def make_ticket(self, request: InferenceRequest, checked: Checked, on_response: OnResponse, now: int) -> Ticket:
        """A request that has been checked, as it goes through the engine. Thread-safe."""
        rows, shape_key, input_set, inputs = checked
        if inputs is not request.inputs:
            request = dataclasses.replace(request, inputs=inputs, form=None)
        return self.ticket_class(self, request, on_response, self.core.next_seq(), rows, now, shape_key, input_set)

    def waiting_for(self, ticket: Ticket) -> Iterator[Ticket]:
        """The requests in a queue that this one waits for: itself; of an ensemble, its steps'."""
        self.stage.settle()
        if ticket.run is None and ticket.id in self._open:
            yield ticket

    def let_held_go(self) -> None:
        """Decoupled requests that an ensemble holds go on: somebody waits for an instance that they keep."""
        for ticket in list(self._open.values()):
            if ticket.let_go is not None:
                ticket.let_go()

    def cancel(self, ticket: Ticket) -> None:
        """Cancels a request (1.17)."""
        if ticket.id not in self._open or ticket.cancelled:
            return
        ticket.cancelled = True
        self.stage.settle()
        if ticket.run is not None:
            if ticket.flow is not None:  # whoever has gone takes nothing: the model would wait for good
                ticket.flow.end()
            return
        self.stage.withdraw()
        if self.scheduler.cancel(ticket.id, self.core.clock()):
            self._fail(ticket, Cancelled(""))
        self.plan()

    def warm_up(self, slot: InstanceSlot, requests: Sequence[InferenceRequest], on_response: OnResponse) -> None:
        """Runs requests as one batch in an instance that does not serve yet; past the queue, but counted."""
        now = self.core.clock()
        tickets = [Ticket(self, request, on_response, self.core.next_seq(), 1, now) for request in requests]
        run = Run(self, slot, Batch(-1, slot.index, list(tickets), len(tickets), "direct", now))
        for ticket in tickets:
            ticket.run = run
            self._open[ticket.id] = ticket
        slot.start(run, self.core.clock)

    # ---- dispatch

    def plan(self) -> None:
        """Has the queue looked at in the loop's next round, so that what arrives together is seen together."""
        if not self._planned:
            self._planned = True
            self.core.loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._planned = False
        scheduler, idle = self.scheduler, self.idle
        now = self.core.clock()
        self.stage.look(now, idle=bool(idle))
        for rejected in scheduler.expire(now):
            ticket = self._open.get(rejected.id)
            if ticket is not None:
                self._fail(ticket, TimedOut(rejected.message))
        if self._turns is not None:
            self._turns.look(self, idle)
            self._arm()
            return
        while idle:
            try:
                slot = idle.popleft()
            except IndexError:  # a thread was quicker (``engine.inline``)
                break
            self.stage.withdraw()  # the slot may have come back since the look: nothing is taken twice
            batch = scheduler.acquire(slot.index, now)
            if batch is None:
                idle.appendleft(slot)
                break
            self._execute(slot, batch)
        if not idle:
            self.stage.prepare(self, now)
        self._arm()

    def take_turn(self, slot: InstanceSlot) -> bool:
        """The rate limiter grants an instance its turn; whether it had a batch to execute."""
        if slot not in self.idle:
            return False
        batch = self.scheduler.acquire(slot.index, self.core.clock())
        if batch is None:
            return False
        self.idle.remove(slot)
        self._execute(slot, batch)
        return True

    def _execute(self, slot: InstanceSlot, batch: Batch) -> None:
        run = Run(self, slot, batch)
        for ticket in run.tickets:
            ticket.run = run
        slot.start(run, self.core.clock)
        poll = self.core.busy_poll
        if poll.resting:
            poll.wake()
        if slot.runner is None and not self.scheduler.waiting:
            poll.expect(self.took_ns)

    def _arm(self) -> None:
        deadline = self.scheduler.next_deadline()
        timer = self._timer
        if timer is not None and timer.pending:
            if timer.deadline_ns == deadline:
                return
            timer.cancel()
        self._timer = None if deadline is None else self.core.timers.call_at(deadline, self._dispatch)

    def complete(self, run: Run) -> None:
        """A batch has left its instance."""
        slot = run.slot
        now = self.core.clock()
        self.stage.settle()
        self.stage.overtaken = False
        self.core.busy_poll.came()
        if slot.run is run:  # else its thread has gone on with what was staged
            slot.run = None
            if slot.retired:
                self._let_slot_go(slot)
            elif slot.healthy and slot.ready:
                self.idle.append(slot)
        batch = run.batch
        if batch.seq >= 0:
            self.scheduler.complete(batch, now)
        if self._turns is not None:
            self._turns.done(slot, again=slot in self.idle and self.pending > 0)
        if not self._planned:
            # the instance gets its next batch before clients get their answers
            self._dispatch()
        run.took = run.durations()
        write_batch(run)
        self.took_ns = run.execution.compute_end - run.execution.compute_start
        ended, answered = True, counts_though_failed(run)
        run.ended = []
        for index, ticket in enumerate(run.tickets):
            response = run.finals[index]
            if response is None:
                if self._goes_on(run, index):
                    answered, ended = True, False
                    continue
                response = unanswered(run, index)
            answered = answered or response.error is None
            self.deliver(ticket, response)
        write_ended(run)
        if answered:
            self.statistics.execution(batch.rows, run.took)
        if ended:
            run.release()
        if slot.runner is None and not self._open:
            self.core.busy_poll.rest()

    def _goes_on(self, run: Run, index: int) -> bool:
        """Whether a request may go on without an answer when its batch has ended."""
        back = run.execution.rescheduled
        return run.error is None and self.decoupled and not (back and index in back)

    # ---- responses

    def deliver(self, ticket: Ticket, response: InferenceResponse) -> None:
        """Sends a response on to whoever asked; a final one ends the request."""
        if ticket.id not in self._open:
            return
        finish_response(self, ticket, response)
        if response.final:
            self._end(ticket, response)
        if self._order:
            self._order.send(ticket, response)
        else:
            self._order.call(ticket, response)
        if ticket.flow is not None and not response.final and not ticket.by_hand:
            ticket.flow.take()

    def _fail(self, ticket: Ticket, error: WorkbenchError) -> None:
        if ticket.held is not None and ticket.run is None:
            self._order.remove(ticket)  # as in Triton, a request takes its place in the order when it leaves the queue
            ticket.held = None
        self.deliver(ticket, InferenceResponse(self.name, self.version, ticket.request.id, error=error))

    def _fail_waiting(self, make: Callable[[], WorkbenchError]) -> None:
        now = self.core.clock()
        self.stage.withdraw()
        for ticket in list(self._open.values()):
            if ticket.run is None and self.scheduler.cancel(ticket.id, now):
                self._fail(ticket, make())

    def _end(self, ticket: Ticket, response: InferenceResponse) -> None:
        """A request is over. What is written down of it comes when its batch is answered."""
        del self._open[ticket.id]
        over, run = note_end(ticket, self.core.clock()), ticket.run
        if run is None or run.ended is None:
            write_request(self, over)
        else:
            run.ended.append(over)
        ticket.run = None
        if ticket.flow is not None:
            ticket.flow.end()
        if self._on_empty is not None:
            self.look_whether_empty()

    # ---- the end

    def let_go(self) -> None:
        """An ensemble's request that has held this version (``holds``) is over."""
        self.holds -= 1
        self.look_whether_empty()

    def look_whether_empty(self) -> None:
        """Tells whoever waits for it that nothing is open any more."""
        if self._on_empty is not None and not self._open and not self.holds and not self._count_lent():
            self._on_empty()

    def drain(self) -> None:
        """From now on what waits leaves without delay."""
        self.core.inline.withdraw()
        self.stage.withdraw()
        self.scheduler.drain(self.core.clock())
        self.plan()

    async def retire(self) -> None:
        """Waits for what is open, then closes instances and model. New requests must not reach it any more.

        Whoever calls this a second time (a load while an unload is under way) waits for the same end.
        """
        if self._ending is not None:
            await self._ending.wait()
            return
        self._ending = asyncio.Event()
        try:
            await self._retire()
        finally:
            self._ending.set()

    async def _retire(self) -> None:
        self.core.inline.withdraw()
        done = self.core.loop.create_future()
        self._on_empty = lambda: None if done.done() else done.set_result(None)
        if self.open_requests or self.holds:
            self.drain()
            await done
        await self.close()

    async def close(self) -> None:
        """Closes instances and model now; used after ``retire`` has waited, and by a load that failed."""
        self.stage.withdraw()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        slots, self.slots, self.passive = [*self.slots, *self.passive], [], []
        self.idle.clear()
        for slot in slots:
            slot.retired = True
            if self._turns is not None:
                self._turns.forget(slot)
        for close in (*(slot.close for slot in slots), self.loaded.close):
            try:
                await self.core.on_closer(close)
            except Exception as error:
                self.core.events.append("log", self.name, f"closing failed: {error}", level="warning")

    def abandon(self, error: WorkbenchError) -> None:
        """Answers everything that is open with an error: the wait for it is over."""
        self.stage.withdraw()
        for slot in self.slots:
            slot.patience_s = 1.0
        for ticket in list(self._open.values()):
            if ticket.run is None:
                self.scheduler.cancel(ticket.id, self.core.clock())
            ticket.cancelled = True  # a model that asks is told that nobody waits any more
            self._fail(ticket, error)
