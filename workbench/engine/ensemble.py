"""A loaded version of an ensemble: no instances of its own, each request is a graph of nested requests.

``scheduling.EnsembleExecutor`` decides what to start and what to answer; here its actions are carried out on the loop.
Tensors go from step to step without a copy. A request holds the model versions of its steps from its begin to its end,
so that an unload or a reload under way does not take them from it (5.1).

While a step is at ``max_inflight_requests``, its decoupled producers are held (``flow``); what they had sent until then
is kept here, and taken in its order when the step has room again. Without that limit every response starts a request of
the next step at once, and they wait in that step's queue: its ``max_queue_size`` is the only bound then, as in Triton.

**How this differs from Triton 2.51.** A request that fails is counted once (the 2.51 binary counts it twice). A
producer whose own model also stands behind it in the ensemble is not held, it would wait for itself; what it sends is
kept. After ``HOLD_LIMIT_S`` a held producer goes on, as in Triton; where a nested call (BLS) waits for its instance, as
soon as the watchdog sees it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from workbench.backends.base import Instance, InstanceSpec, Traffic
from workbench.engine.actions import ActionQueue
from workbench.engine.core import EngineCore
from workbench.engine.model import ModelVersion
from workbench.engine.ticket import OnResponse, Ticket
from workbench.engine.timers import TimerHandle
from workbench.engine.validation import id_prefix
from workbench.errors import Code, InternalError, WorkbenchError, from_code
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Parameter, RequestedOutput, Tensor
from workbench.scheduling.ensemble_actions import (
    Action,
    Answer,
    CancelStep,
    EnsembleRequest,
    Fail,
    Finish,
    Hold,
    Resume,
    SequenceFlags,
    StartStep,
    TensorRef,
)
from workbench.scheduling.ensemble_plan import EnsemblePlan, PlanStep
from workbench.scheduling.ensemble_run import EnsembleExecutor

Lookup = Callable[[str, int], ModelVersion]
_FLAGS = ("sequence_id", "sequence_start", "sequence_end")
_EVENT_EVERY_NS = 1_000_000_000
HOLD_LIMIT_S = 300
"""How long a producer is held at most; then the log says so and it goes on (Triton's limit)."""


class _NoBackend:
    """What an ensemble has in the place of an opened model."""

    reads_max_batch_size = True

    def __init__(self) -> None:
        self.traffic = Traffic()

    def create_instance(self, spec: InstanceSpec) -> Instance:
        raise InternalError(f"an ensemble has no instances, asked for {spec.name}")

    def close(self) -> None:
        """There is nothing to free."""


class EnsembleTicket(Ticket):
    """A request to an ensemble: the versions that it holds, when its first step began, the steps' summed durations.

    ``paused``: whoever asked (an ensemble that has this one as a step) takes no response for now.
    """

    __slots__ = ("begun", "members", "paused", "sums")

    members: tuple[ModelVersion, ...]
    begun: int
    paused: bool
    sums: list[int]
    model: EnsembleVersion

    def hold(self) -> None:
        """The producers in it are held."""
        self.paused = True
        for call in self.model.calls_of(self):
            if call.ticket is not None:
                call.ticket.hold()

    def resume(self) -> None:
        """They go on, and what was kept of them is taken."""
        if self.paused:
            self.paused = False
            self.model.go_on(self)


class _StepCall:
    """A step's request under way. What is in ``kept`` came while its producer was on hold."""

    __slots__ = ("ensemble", "kept", "limit", "on_hold", "step", "ticket", "token", "top")

    def __init__(self, ensemble: EnsembleVersion, token: int, step: PlanStep, top: EnsembleTicket) -> None:
        self.ensemble = ensemble
        self.token = token
        self.step = step
        self.top = top
        self.ticket: Ticket | None = None
        self.on_hold = False
        self.limit: TimerHandle | None = None
        self.kept: deque[InferenceResponse] = deque()

    @property
    def stopped(self) -> bool:
        """Whether no response is taken for now: a step behind it is at its limit, or whoever asked is."""
        return self.on_hold or (self.top.paused and self.step.decoupled)

    def release(self) -> None:
        """It is not on hold any more."""
        self.on_hold = False
        if self.ticket is not None:
            self.ticket.let_go = None
        if self.limit is not None:
            self.limit.cancel()
            self.limit = None

    def __call__(self, response: InferenceResponse) -> None:
        if self.kept or self.stopped:
            self.kept.append(response)
        else:
            self.ensemble.carry_out(self.ensemble.take(self, response))


class EnsembleVersion(ModelVersion):
    """A version of an ensemble that can serve."""

    def __init__(
        self,
        core: EngineCore,
        name: str,
        version: int,
        config: Any,
        *,
        graph: EnsemblePlan,
        lookup: Lookup,
        actions: ActionQueue,
    ) -> None:
        nothing = _NoBackend()
        super().__init__(core, name, version, config, nothing)
        self._traffic = nothing.traffic
        self.decoupled = graph.decoupled
        self.graph = graph
        self.executor = EnsembleExecutor(graph)
        self._find = lookup
        self._calls: dict[int, _StepCall] = {}
        self._actions = actions
        self._starting: Ticket | None = None
        self._asked = [tuple(RequestedOutput(each) for each, _ in step.outputs) for step in graph.steps]
        self._told: dict[int, int] = {}
        self._holds = _can_be_held(graph)
        self._do: dict[type, Callable[[Any], None]] = {
            StartStep: self._start, Answer: self._answer, Finish: self._finish, Fail: self._fail_run,
            CancelStep: self._cancel_step, Hold: self._hold, Resume: self._resume, _StepCall: self._take_kept,
        }  # fmt: skip

    # ---- requests

    def accept(self, request: InferenceRequest, on_response: OnResponse) -> Ticket:
        """Checks a request and starts its first steps; see ``ModelVersion.accept``."""
        checked = self.validator.check(request)
        now = self.core.clock()
        ticket = EnsembleTicket(self, request, on_response, self.core.next_seq(), checked.rows, now)
        ticket.shape_key = checked.shape_key
        ticket.members, ticket.begun, ticket.sums, ticket.paused = (), 0, [0, 0, 0], False
        self._open[ticket.id] = ticket
        self._starting = ticket
        try:
            self._begin(ticket, checked.rows if self.config.max_batch_size > 0 else 0)
        except BaseException:  # whoever asked is told by it, and nothing waits for an answer
            del self._open[ticket.id]
            self._let_members_go(ticket)
            raise
        finally:
            self._starting = None
        return ticket

    def _begin(self, ticket: EnsembleTicket, batch_size: int) -> None:
        request = ticket.request
        try:
            members = tuple(self._find(step.model, step.version) for step in self.graph.steps)
        except WorkbenchError as error:
            text = f"in ensemble '{self.name}', {error.message}"
            self._respond(ticket, from_code(error.code, text, where=f"ensemble '{self.name}'"))
            return
        ticket.members = members
        for member in members:
            member.holds += 1
        ticket.begun = self.core.clock()
        sequence = SequenceFlags(request.sequence_id, request.sequence_start, request.sequence_end)
        asked = EnsembleRequest(
            {tensor.name: TensorRef(tensor, tensor.shape) for tensor in request.inputs},
            batch_size,
            tuple(output.name for output in request.outputs),
            sequence,
            id_prefix(request),
        )
        self.carry_out(self.executor.begin(ticket.id, asked))

    def waiting_for(self, ticket: Ticket) -> Iterator[Ticket]:
        """Those of the steps' requests that wait in a queue."""
        for call in self._calls.values():
            if call.top is ticket and call.ticket is not None:
                yield from call.ticket.model.waiting_for(call.ticket)

    def cancel(self, ticket: Ticket) -> None:
        """Cancels the steps under way; no further one starts (5.8)."""
        if ticket.id in self._open and not ticket.cancelled:
            ticket.cancelled = True
            self.carry_out(self.executor.cancel(ticket.id))

    def abandon(self, error: WorkbenchError) -> None:
        """Answers everything that is open with an error: the wait for it is over."""
        for ticket in list(self._open.values()):
            self._fail(ticket, error)
            self.carry_out(self.executor.cancel(ticket.id))

    # ---- actions

    def carry_out(self, actions: Iterable[Action | _StepCall]) -> None:
        """Carries actions out in their order, those that follow from them behind them."""
        self._actions.add(self._act, actions)
        self._actions.work()

    def _act(self, action: Action | _StepCall) -> None:
        try:
            self._do[type(action)](action)
        except Exception as error:  # whatever it is, somebody waits for an answer
            text = f"ensemble '{self.name}' failed: {type(error).__name__}: {error}"
            self.core.loop.call_exception_handler({"message": text, "exception": error})
            ticket = self._top_of(action)
            if ticket is not None:
                self._respond(ticket, InternalError(text))
                self.carry_out(self.executor.cancel(ticket.id))

    def _top_of(self, action: Action | _StepCall) -> Ticket | None:
        """The request that an action is for; None when it is over."""
        if isinstance(action, StartStep | Answer | Finish | Fail):
            return self._open.get(action.run)  # type: ignore[call-overload, no-any-return]
        call = action if isinstance(action, _StepCall) else self._calls.get(action.token)
        return None if call is None else self._open.get(call.top.id)

    def _start(self, action: StartStep) -> None:
        executor, token, step = self.executor, action.token, action.step
        ticket = self._open.get(action.run)  # type: ignore[call-overload]
        if ticket is None or not executor.is_wanted(token):
            self.carry_out(executor.abandon(token))
            return
        assert isinstance(ticket, EnsembleTicket)
        call = _StepCall(self, token, step, ticket)
        self._calls[token] = call
        try:
            call.ticket = ticket.members[step.index].accept(self._request_of(action, ticket), call)
            call.ticket.by_hand = step.index in self._holds
            if call.stopped:
                call.ticket.hold()
        except Exception as raised:
            error = (
                raised if isinstance(raised, WorkbenchError) else InternalError(f"{type(raised).__name__}: {raised}")
            )
            del self._calls[token]
            self.carry_out(executor.fail(token, error.message, error.code, cause=error))

    def _request_of(self, action: StartStep, ticket: EnsembleTicket) -> InferenceRequest:
        step, top, sequence = action.step, ticket.request, action.sequence
        return InferenceRequest(
            step.model,
            [self._hand_on(name, ref) for name, ref in action.inputs.items()],
            self._asked[step.index],
            ticket.members[step.index].version,
            top.id,
            top.parameters,
            top.priority,
            top.timeout,
            sequence.correlation_id,
            sequence.start,
            sequence.end,
            top.client,
            ticket.id,
        )

    def take(self, call: _StepCall, response: InferenceResponse) -> list[Action]:
        """What follows from a step's response."""
        executor, token, final = self.executor, call.token, response.final
        ticket = call.ticket
        if not final and ticket is not None and ticket.by_hand and ticket.flow is not None:
            ticket.flow.take()
        if final:
            self._calls.pop(token, None)
            call.release()
            durations = getattr(ticket, "durations", None)
            if durations is not None:
                sums = call.top.sums
                for index in (0, 1, 2):
                    sums[index] += durations[index]
        error = response.error
        if error is not None:
            return executor.fail(token, error.message, error.code, final=final, cause=error)
        outputs: dict[str, TensorRef] | None = {each.name: TensorRef(each, each.shape) for each in response.outputs}
        if final and not outputs and ticket is not None and ticket.model.decoupled:
            outputs = None
        sequence = _flags(response.parameters) if response.parameters else None
        return executor.respond(token, outputs, final=final, sequence=sequence)

    def _cancel_step(self, action: CancelStep) -> None:
        call = self._calls.get(action.token)
        if call is not None and call.ticket is not None:
            call.ticket.cancel()

    def _hold(self, action: Hold) -> None:
        call = self._calls.get(action.token)
        if call is not None:
            call.on_hold = True
            why = f"for {HOLD_LIMIT_S} s"
            call.limit = self.core.timers.call_at(
                self.core.clock() + HOLD_LIMIT_S * 1_000_000_000, lambda: self._held_too_long(call, why)
            )
            if call.ticket is not None:
                call.ticket.hold()
                call.ticket.let_go = lambda: self._held_too_long(call, "while a nested call waits for its instance")

    def _resume(self, action: Resume) -> None:
        call = self._calls.get(action.token)
        if call is not None and call.on_hold:
            self._let_go_on(call)

    def _let_go_on(self, call: _StepCall) -> None:
        call.release()
        self.carry_out([call])

    def _held_too_long(self, call: _StepCall, why: str) -> None:
        text = (
            f"ensemble '{self.name}': {call.step.label} was held {why} by max_inflight_requests of the steps behind "
            "it; it goes on"
        )
        self.core.events.append("log", self.name, text, level="error", step=call.step.index)
        self._let_go_on(call)

    def calls_of(self, ticket: EnsembleTicket) -> list[_StepCall]:
        """The steps' requests of a request that are under way."""
        return [call for call in self._calls.values() if call.top is ticket]

    def go_on(self, ticket: EnsembleTicket) -> None:
        """Whoever asked takes responses again."""
        self.carry_out(self.calls_of(ticket))

    def _take_kept(self, call: _StepCall) -> None:
        """One response that was kept, and the next one after what follows from it: that may be another hold.

        Only when none is left the producer sends again.
        """
        if call.stopped:
            return
        if call.kept:
            self.carry_out(self.take(call, call.kept.popleft()))
            self.carry_out([call])
        elif call.ticket is not None:
            call.ticket.resume()

    # ---- answers

    def _answer(self, action: Answer) -> None:
        ticket = self._open.get(action.run)  # type: ignore[call-overload]
        if ticket is None:
            return
        outputs = [self._hand_on(name, ref) for name, ref in action.outputs.items()]
        parameters: dict[str, Parameter] = {}
        if action.sequence is not None:
            flags = action.sequence
            parameters = dict(zip(_FLAGS, (flags.correlation_id, flags.start, flags.end), strict=True))
        self._send_on(
            ticket,
            InferenceResponse(self.name, self.version, ticket.request.id, outputs, parameters, final=action.final),
        )

    def _hand_on(self, name: str, ref: TensorRef) -> Tensor:
        """The tensor under another name, in another shape where the bridge between batching and not asks for one."""
        tensor: Tensor = ref.value
        data = tensor.data if tensor.data.shape == ref.shape else tensor.data.reshape(ref.shape)
        self._traffic.hand_on(tensor.data, data)
        return Tensor(name, tensor.datatype, ref.shape, data)

    def _finish(self, action: Finish) -> None:
        ticket = self._open.get(action.run)  # type: ignore[call-overload]
        if ticket is not None:
            self._send_on(ticket, InferenceResponse(self.name, self.version, ticket.request.id))

    def _fail_run(self, action: Fail) -> None:
        ticket = self._open.get(action.run)  # type: ignore[call-overload]
        if ticket is None:
            return
        where = f"ensemble '{self.name}'"
        hint = ""
        if action.step is not None:
            where += f", {action.step.label}"
            self._tell(action)
        if isinstance(action.cause, WorkbenchError):
            hint = action.cause.hint
            where += f"; {action.cause.where}" if action.cause.where else ""
        error = from_code(action.code, action.message, where=where)
        error.hint = hint
        self._respond(ticket, error)

    def _tell(self, action: Fail) -> None:
        """An event that names the step, at most one a second for each: an overload fails thousands."""
        step = action.step
        assert step is not None
        now = self.core.clock()
        if action.code is not Code.CANCELLED and now - self._told.get(step.index, -_EVENT_EVERY_NS) >= _EVENT_EVERY_NS:
            self._told[step.index] = now
            text = f"ensemble '{self.name}' failed in {step.label}: {action.message}"
            self.core.events.append("log", self.name, text, level="warning", step=step.index, composing=step.model)

    def _respond(self, ticket: Ticket, error: WorkbenchError) -> None:
        self._send_on(ticket, InferenceResponse(self.name, self.version, ticket.request.id, error=error))

    def _send_on(self, ticket: Ticket, response: InferenceResponse) -> None:
        """Whoever asks has the ticket before the first response comes."""
        if ticket is self._starting:
            self.core.loop.call_soon(self.deliver, ticket, response)
        else:
            self.deliver(ticket, response)

    def _end(self, ticket: Ticket, response: InferenceResponse) -> None:
        """Statistics (11.6) and the record of a request that is over."""
        assert isinstance(ticket, EnsembleTicket)
        del self._open[ticket.id]
        core, request = self.core, ticket.request
        now = core.clock()
        begun = ticket.begun or now
        status, text = "ok", ""
        if ticket.failed is None:
            durations = (ticket.sums[0], ticket.sums[1], ticket.sums[2])
            ticket.durations = durations
            self.statistics.success(ticket.rows, now - ticket.arrival, begun - ticket.arrival, durations)
            self.statistics.execution(ticket.rows, durations)
        else:
            assert ticket.failed.error is not None
            status, text = "OTHER", ticket.failed.error.message
            self.statistics.failure("OTHER", now - ticket.arrival)
        core.records.add_request(
            self.name, self.version, self.epoch, request.id, request.client, request.parent_seq, request.priority,
            ticket.rows, "" if ticket.shape_key is None else ticket.shape_key, ticket.arrival, ticket.arrival, begun,
            begun, now, now, now, -1, "", status, text, ticket.id,
        )  # fmt: skip
        core.captured.offer(request, self.version, self.epoch, ticket.id, now - ticket.arrival, status)
        self._let_members_go(ticket)

    def _let_members_go(self, ticket: EnsembleTicket) -> None:
        for member in ticket.members:
            member.let_go()
        ticket.members = ()
        self.look_whether_empty()


def _can_be_held(graph: EnsemblePlan) -> frozenset[int]:
    """The decoupled steps that do not wait for themselves when they wait for a step behind them."""
    upstream = graph.upstream_steps()
    return frozenset(
        step.index
        for step in graph.steps
        if step.decoupled
        and not any(step.index in upstream[other.index] and other.model == step.model for other in graph.steps)
    )


def _flags(parameters: Any) -> SequenceFlags | None:
    """What a response says of the sequence for the steps behind it (5.4)."""
    if not any(name in parameters for name in _FLAGS):
        return None
    return SequenceFlags(
        parameters.get("sequence_id", 0),
        bool(parameters.get("sequence_start", False)),
        bool(parameters.get("sequence_end", False)),
    )
