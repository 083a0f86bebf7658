"""A loaded version of a model with a sequence batcher (section 3): slots, control inputs, implicit states.

``scheduling.SequenceScheduler`` decides who runs where; here the rows of its batches become requests: with their
control inputs, the states of their slots, and null requests in rows that are free. States live as long as their
sequence; when the process of an instance dies, its sequences are over, their states were in it.

A backend gives requests of a model with ``iterative_sequence`` back by ``Execution.rescheduled``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.backends.base import LoadedModel
from workbench.engine.core import EngineCore
from workbench.engine.execution import InstanceSlot, Run
from workbench.engine.implicit_states import ImplicitStates
from workbench.engine.model import ModelVersion
from workbench.engine.prepare import Polled
from workbench.engine.ticket import OnResponse, Ticket
from workbench.engine.validation import id_prefix
from workbench.errors import Cancelled, InstanceDied, InternalError, InvalidRequest, TimedOut, WorkbenchError
from workbench.protocol import datatypes
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor
from workbench.scheduling.interface import Batch, Item, RejectedItem, SlotRow
from workbench.scheduling.sequence import sequence_scheduler
from workbench.scheduling.sequence_base import STOPPING_TEXT, SequenceScheduler
from workbench.scheduling.sequence_settings import ControlColumn, SequenceSettings, sequence_settings_from_config


class SequenceTicket(Ticket):
    """A request of a sequence."""

    __slots__ = ()

    def __init__(
        self, model: ModelVersion, request: InferenceRequest, on_response: OnResponse, *numbers_and_keys: Any
    ) -> None:
        super().__init__(model, request, on_response, *numbers_and_keys)
        self.sequence_id = request.sequence_id
        self.sequence_start = request.sequence_start
        self.sequence_end = request.sequence_end


class SequenceVersion(ModelVersion):
    """A version with sequence batching that can serve."""

    ticket_class = SequenceTicket
    orders_by_arrival = False  # one in the backlog waits for sequences whose clients wait for their answers
    settings: SequenceSettings
    scheduler: SequenceScheduler

    def __init__(
        self, core: EngineCore, name: str, version: int, config: Any, loaded: LoadedModel, *, model_dir: Path
    ) -> None:
        super().__init__(core, name, version, config, loaded)
        self._leaving: dict[int, InstanceSlot] = {}
        self._states = ImplicitStates(self.settings, model_dir)
        self._given_back: dict[int, set[int]] = {}
        self._declared = frozenset(item.name for item in config.output)

    def _make_scheduler(self, config: Any, first_batch_seq: int) -> SequenceScheduler:
        return sequence_scheduler(self._settings_of(config), first_batch_seq=first_batch_seq)

    def _settings_of(self, config: Any) -> SequenceSettings:
        queued, backlog = self.core.options.hold_until_queued, self.core.options.hold_until_backlog
        # Triton asks for the backlog where it waits for the queues, and only in the direct strategy
        if not queued or config.sequence_batching.HasField("oldest"):
            backlog = 0
        return sequence_settings_from_config(config, hold_until_queued=queued, hold_until_backlog=backlog)

    # ---- instances

    def add_slot(self, slot: InstanceSlot) -> None:
        """A new idle instance: its sequence slots are free. A passive one takes no sequence."""
        if slot.spec.passive:
            super().add_slot(slot)
            return
        self.scheduler.add_instance(slot.index, self.core.clock())
        super().add_slot(slot)

    def retire_slot(self, slot: InstanceSlot) -> None:
        """Takes an instance out when its sequences have ended (3.13); until then it goes on with them."""
        if slot.spec.passive:
            super().retire_slot(slot)
            return
        if self.scheduler.remove_instance(slot.index, self.core.clock()):
            super().retire_slot(slot)
            self._states.forget_instance(slot.index)
            return
        self.slots.remove(slot)
        self._leaving[slot.index] = slot
        self.plan()

    def instance_state(self, name: str, healthy: bool, why: str, gone: bool) -> None:
        """As for other models; the sequences of an instance that died are over."""
        if not healthy:
            text = f"the instance of this sequence ended, and the sequence's state with it: {why}"
            for slot in [*self.slots, *self._leaving.values()]:
                if slot.spec.label == name:
                    self._states.forget_instance(slot.index)
                    self._fail_ids(self.scheduler.evict(slot.index, self.core.clock()), text)
        super().instance_state(name, healthy, why, gone)

    def _fail_waiting(self, make: Any) -> None:
        error = make()
        self._fail_ids(self.scheduler.clear(self.core.clock()), error.message)

    def _fail_ids(self, ids: Sequence[int], text: str) -> None:
        for id in ids:
            ticket = self._open.get(id)
            if ticket is not None:
                self._fail(ticket, InstanceDied(text))

    async def close(self) -> None:
        """As for other models; with the instances that were to go."""
        self.slots.extend(self._leaving.values())
        self._leaving.clear()
        await super().close()

    # ---- dispatch

    def _dispatch(self) -> None:
        self._planned = False
        scheduler, clock = self.scheduler, self.core.clock
        now = clock()
        for rejected in scheduler.expire(now):
            ticket = self._open.get(rejected.id)
            if ticket is not None:
                self._fail(ticket, _rejection(rejected))
        for notice in scheduler.take_notices():
            self.core.events.append("log", self.name, notice, level="warning")
        if self._turns is not None:
            self._turns.look(self, self.idle)
        else:
            for slot in list(self.idle):
                batch = scheduler.acquire(slot.index, now)
                if batch is not None:
                    self.idle.remove(slot)
                    self._execute(slot, batch)
        for index in scheduler.departed(now):
            slot = self._leaving.pop(index)
            slot.retired = True
            self._states.forget_instance(index)
            self._let_slot_go(slot)
        self._arm()

    def _execute(self, slot: InstanceSlot, batch: Batch) -> None:
        first = batch.items[0]
        assert isinstance(first, Ticket)
        tickets: list[Ticket] = []
        for row in batch.slots:
            ticket = row.item
            if ticket is None:
                tickets.append(NullTicket(self, _null_request(first.request), _nobody, -1, 1, batch.acquired))
                continue
            assert isinstance(ticket, Ticket)
            tickets.append(ticket)
            if self.settings.preserve_ordering and ticket.held is None:
                self._order.keep(ticket)
        error: WorkbenchError | None = None
        requests: list[InferenceRequest] | None = None
        try:
            requests = self._requests(slot, batch, tickets)
        except Exception as raised:  # the batch fails of it, and the instance goes on
            known = raised if isinstance(raised, WorkbenchError) else None
            error = known or InternalError(f"{type(raised).__name__}: {raised}")
        run = Run(self, slot, batch, tickets, requests)
        for ticket in run.tickets:
            if ticket.id >= 0:
                ticket.run = run
        if error is None:
            slot.start(run, self.core.clock)
            return
        slot.run = run
        run.execution.compute_start = self.core.clock()
        self.core.loop.call_soon(run.finish, error)

    def _requests(self, slot: InstanceSlot, batch: Batch, tickets: Sequence[Ticket]) -> list[InferenceRequest]:
        """What the rows of a batch are executed with: their controls and the states of their slots."""
        columns = self.settings.control_columns(batch.slots)
        requests: list[InferenceRequest] = []
        for index, (row, ticket) in enumerate(zip(batch.slots, tickets, strict=True)):
            controls = [_control(column, index) for column in columns]
            if row.item is None:
                states = self._states.null_row(slot.index, batch.slots)
            else:
                states = self._states.before(slot.index, row)
            requests.append(
                dataclasses.replace(
                    ticket.request,
                    inputs=[*ticket.request.inputs, *controls, *states],
                    sequence_id=row.correlation_id,
                    sequence_start=row.start,
                    sequence_end=row.end,
                    form=None,  # its form knows no controls and no states
                )
            )
        return requests

    def complete(self, run: Run) -> None:
        """A batch has left its instance: states are taken over, requests that were given back wait again."""
        batch = run.batch
        if batch.seq >= 0:
            for row, response in zip(batch.slots, run.finals, strict=True):
                if response is not None:
                    self._states.after(run.slot.index, row, response)
                    self._states.strip(response, self._declared)
        back = run.execution.rescheduled
        if back and batch.seq >= 0:
            self._give_back(run, back)
        super().complete(run)
        self._given_back.pop(batch.seq, None)

    def _give_back(self, run: Run, back: set[int]) -> None:
        """Requests wait again; each execution of one counts as a success of its own, as Triton's backends report it."""
        now = self.core.clock()
        kept: set[int] = set()
        for index in sorted(back):
            ticket = run.tickets[index]
            begun = run.execution.compute_start - ticket.queue_start
            if ticket.id < 0 or run.finals[index] is not None or run.error is not None:
                continue
            if ticket.cancelled:
                run.finals[index] = InferenceResponse(self.name, self.version, error=Cancelled(""))
                continue
            answer = self.scheduler.reschedule(ticket, now)
            if isinstance(answer, RejectedItem):
                run.finals[index] = InferenceResponse(self.name, self.version, error=_rejection(answer))
            else:
                self.statistics.success(ticket.rows, now - ticket.arrival, begun, run.durations())
                ticket.run = None
                ticket.queue_start = now
                kept.add(index)
        self._given_back[run.batch.seq] = kept

    def _goes_on(self, run: Run, index: int) -> bool:
        return index in self._given_back.get(run.batch.seq, ()) or super()._goes_on(run, index)

    def warm_up(self, slot: InstanceSlot, requests: Sequence[InferenceRequest], on_response: OnResponse) -> None:
        """As for other models; states and controls that a sample does not give are those of a sequence's start."""
        row = SlotRow(-1, Item(-1), start=True, end=True, correlation_id=1)
        columns = self.settings.control_columns([row])
        for request in requests:
            given = {tensor.name for tensor in request.inputs}
            added = [*(_control(column, 0) for column in columns), *self._states.fresh()]
            request.inputs = [*request.inputs, *(tensor for tensor in added if tensor.name not in given)]
        super().warm_up(slot, requests, on_response)


class NullTicket(Ticket):
    """Stands for a row without a request: what is answered to it goes nowhere."""

    __slots__ = ()


def _nobody(response: InferenceResponse) -> None:
    """Nobody asked."""


def _rejection(rejected: RejectedItem) -> WorkbenchError:
    if rejected.kind == "timeout":
        return TimedOut(rejected.message)
    return Cancelled("") if rejected.kind == "cancelled" else InvalidRequest(rejected.message)


def _null_request(representative: InferenceRequest) -> InferenceRequest:
    """A copy with zeros in it (3.5)."""
    inputs = [Tensor(each.name, each.datatype, each.shape, _zeros(each.data)) for each in representative.inputs]
    return InferenceRequest(
        representative.model_name, inputs, representative.outputs, representative.model_version, client="null"
    )


def _zeros(array: NDArray[Any]) -> NDArray[Any]:
    return np.full(array.shape, b"", dtype=np.object_) if array.dtype == np.object_ else np.zeros_like(array)


def _control(column: ControlColumn, index: int) -> Tensor:
    """One row's tensor of a control input."""
    value = column.values[index]
    row = datatypes.BY_WIRE[column.datatype]
    data: NDArray[Any]
    if column.datatype == "BYTES":
        data = np.full(column.shape, str(value).encode(), dtype=np.object_)
    else:
        data = np.full(column.shape, value, dtype=row.numpy)
    return Tensor(column.name, column.datatype, column.shape, data)


def late_refusal(model: ModelVersion, request: InferenceRequest) -> str:
    """Why a request is not taken while the server stops (1.16); "" where it is: sequences that are live go on."""
    if not isinstance(model, SequenceVersion):
        return id_prefix(request) + STOPPING_TEXT
    return STOPPING_TEXT if request.sequence_start or not request.sequence_id else ""


def make_version(core: EngineCore, polled: Polled, number: int, config: Any, loaded: LoadedModel) -> ModelVersion:
    """The version of a model with the scheduler that its configuration asks for; may read files (initial states).

    Raises:
        WorkbenchError: a state's configuration or file is refused.
    """
    name = polled.source.name
    if not config.HasField("sequence_batching"):
        return ModelVersion(core, name, number, config, loaded)
    try:
        return SequenceVersion(core, name, number, config, loaded, model_dir=polled.source.directory)
    except BaseException:
        loaded.close()
        raise
