"""Executing ensembles: which steps to start, what to answer and when. No tensor is touched, nothing is executed here.

How a driver uses it::

    begin(run, request)             a request to the ensemble
    respond(token, outputs, final)  a response of a step; the last one, or the mere end of a stream, with final=True
    fail(token, message, code)      a step's error response, or its model refused the request
    cancel(run)                     the client went away
    abandon(token)                  a StartStep that is not wanted any more (``is_wanted``): its run failed meanwhile

Each gives the actions that follow, to be carried out in their order: ``StartStep``, ``Answer``, ``Finish``, ``Fail``,
``CancelStep``, ``Hold``, ``Resume``. A run is over with ``Answer(final=True)``, ``Finish`` or ``Fail``.

A step starts when all its inputs are there; steps that the requested outputs do not need are pruned; those that do not
depend on each other run side by side. Each response of a decoupled step starts an iteration of what follows, named by a
tuple: () for what depends on no decoupled step, (2,) for its third response, (2, 0) for the first response that a
second decoupled step makes of that. Source: ``ensemble_scheduler.cc``.

**How this differs from Triton.** An iteration is named by the response it comes from, where Triton counts each tensor's
arrivals: branches that overtake each other are joined rightly, and answers keep the order of the producer's responses
(2.51 sends them as they come).
A step at ``max_inflight_requests`` queues what is to start and has its decoupled producers held (``Hold``), where
Triton blocks a thread for up to 300 s and then goes on. An ensemble that is not decoupled answers once, when its last
step has ended. Cancelling cancels the steps under way too, not only the next ones.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import Code
from workbench.scheduling.ensemble_actions import (
    Action,
    Answer,
    CancelStep,
    EnsembleRequest,
    Fail,
    Finish,
    Hold,
    Iteration,
    Resume,
    SequenceFlags,
    StartStep,
    TensorRef,
)
from workbench.scheduling.ensemble_plan import EnsemblePlan, PlanStep, bridge_shape, reshape_input


@dataclass(slots=True)
class _Value:
    """One iteration of a tensor; ``ref`` None: not provided. ``left`` counts who has still to take it."""

    ref: TensorRef | None
    batch: int
    sequence: SequenceFlags | None
    left: int


@dataclass(slots=True, eq=False)
class _Active:
    """A step's request, under way or, while ``queued``, kept back by its step's limit."""

    token: int
    run: _Run
    step: PlanStep
    iteration: Iteration
    inputs: dict[str, TensorRef]
    sequence: SequenceFlags
    batch: int
    emitted: int = 0
    queued: bool = False
    held: bool = False

    @property
    def bound(self) -> Iteration:
        """The first iteration that can still come out of it."""
        return (*self.iteration, self.emitted) if self.step.decoupled else self.iteration


@dataclass(frozen=True, slots=True)
class _View:
    """The part of the graph that certain outputs need: who takes each tensor, and how many do."""

    outputs: tuple[str, ...]
    consumers: dict[str, tuple[PlanStep, ...]]
    takers: dict[str, int]


@dataclass(slots=True, eq=False)
class _Run:
    """A request to the ensemble under way."""

    id: Hashable
    request: EnsembleRequest
    view: _View
    store: dict[str, dict[Iteration, _Value]] = field(default_factory=dict)
    actives: dict[int, _Active] = field(default_factory=dict)
    queued: dict[int, int] = field(default_factory=dict)
    bounds: list[Iteration] = field(default_factory=list)
    ready: list[Iteration] = field(default_factory=list)
    answered: bool = False
    failure: Fail | None = None


class EnsembleExecutor:
    """Executes the requests to one ensemble; see the module's text for how it is driven. Limits are shared by all."""

    def __init__(self, plan: EnsemblePlan) -> None:
        self.plan = plan
        self._runs: dict[Hashable, _Run] = {}
        self._actives: dict[int, _Active] = {}
        self._inflight = [0] * len(plan.steps)
        self._queues: list[deque[_Active]] = [deque() for _ in plan.steps]
        self._views: dict[tuple[str, ...], _View] = {}
        self._upstream = plan.upstream_steps()
        self._next_token = 1

    def _view(self, outputs: tuple[str, ...]) -> _View:
        """Worked out once for each set of outputs that is asked for."""
        view = self._views.get(outputs)
        if view is None:
            plan = self.plan
            wanted = outputs or plan.output_names()
            needed = plan.needed_steps(wanted)
            names = {spec.name for spec in (*plan.inputs, *plan.outputs)}
            names |= {name for step in plan.steps for _, name in (*step.inputs, *step.outputs)}
            consumers = {
                name: tuple(plan.steps[index] for index in plan.consumers(name) if index in needed) for name in names
            }
            takers = {name: len(consumers[name]) + (name in wanted) for name in names}
            if len(self._views) > 64:  # clients may ask for outputs in any order
                self._views.clear()
            view = self._views[outputs] = _View(wanted, consumers, takers)
        return view

    # ---- looking

    @property
    def open_runs(self) -> int:
        """Requests to the ensemble that are not over."""
        return len(self._runs)

    def inflight(self, step: int) -> int:
        """Requests of a step that are under way."""
        return self._inflight[step]

    def queued(self, step: int) -> int:
        """Requests of a step that its limit keeps back."""
        return len(self._queues[step])

    def kept_tensors(self, run: Hashable) -> int:
        """Tensors that are kept for steps or answers to come."""
        return sum(len(values) for values in self._runs[run].store.values())

    # ---- events

    def begin(self, run: Hashable, request: EnsembleRequest) -> list[Action]:
        """A request that has been validated. ``run`` names it and must not be in use.

        Raises:
            ValueError: the name is in use.
        """
        if run in self._runs:
            raise ValueError(f"a run {run!r} is under way already")
        it = self._runs[run] = _Run(run, request, self._view(request.outputs))
        actions: list[Action] = []
        arrived = []
        for spec in self.plan.inputs:
            ref = request.inputs.get(spec.name)
            if ref is None and not spec.optional:
                continue
            if ref is not None and spec.reshape is not None:
                ref = TensorRef(ref.value, reshape_input(spec, request.batch_size > 0, ref.shape))
            if self._keep(it, spec.name, (), _Value(ref, request.batch_size, None, 0)):
                arrived.append(spec.name)
        self._start_steps(it, arrived, (), actions)
        self._collect(it, arrived, ())
        self._close(it, actions)
        return actions

    def respond(
        self,
        token: int,
        outputs: Mapping[str, TensorRef] | None,
        *,
        final: bool,
        sequence: SequenceFlags | None = None,
    ) -> list[Action]:
        """A response of a step's request, by the model's output names; None where only the end of the stream comes.

        ``sequence`` is given where the response has the parameters sequence_id, sequence_start or sequence_end.

        Raises:
            KeyError: no request of this token is under way.
        """
        active = self._actives[token]
        it, step = active.run, active.step
        actions: list[Action] = []
        arrived: list[str] = []
        iteration = active.bound
        if outputs is not None and it.failure is None and (step.decoupled or not active.emitted):
            for name, tensor in step.outputs:
                value = _Value(outputs.get(name), active.batch, sequence or active.sequence, 0)
                if self._keep(it, tensor, iteration, value):
                    arrived.append(tensor)
            self._move_bound(active)
        if final:
            self._end_step(active)
        self._start_steps(it, arrived, iteration, actions)
        if final:
            self._start_queued(step.index, actions)
        self._collect(it, arrived, iteration)
        self._close(it, actions)
        return actions

    def fail(self, token: int, message: str, code: Code, *, final: bool = True, cause: Any = None) -> list[Action]:
        """A step's error response, or the refusal of its request: no further step starts (5.6).

        Raises:
            KeyError: no request of this token is under way.
        """
        active = self._actives[token]
        it = active.run
        actions: list[Action] = []
        text = f"in ensemble '{self.plan.name}', {message}"
        self._give_up(it, Fail(it.id, text, code, active.step, cause), actions)
        if final:
            self._end_step(active)
            self._start_queued(active.step.index, actions)
        self._close(it, actions)
        return actions

    def is_wanted(self, token: int) -> bool:
        """Whether a ``StartStep`` is still to be carried out: its run has not failed since."""
        active = self._actives.get(token)
        return active is not None and active.run.failure is None

    def abandon(self, token: int) -> list[Action]:
        """The ``StartStep`` of this token is not carried out, because its run has failed.

        Raises:
            KeyError: no request of this token is under way.
        """
        active = self._actives[token]
        actions: list[Action] = []
        self._end_step(active)
        self._start_queued(active.step.index, actions)
        self._close(active.run, actions)
        return actions

    def cancel(self, run: Hashable) -> list[Action]:
        """The request is cancelled: steps under way are, and no further one starts. Nothing for a run that is over."""
        it = self._runs.get(run)
        if it is None:
            return []
        actions: list[Action] = []
        text = f"in ensemble '{self.plan.name}', "
        self._give_up(it, Fail(run, text, Code.CANCELLED), actions)
        actions.extend(CancelStep(token) for token in it.actives)
        self._close(it, actions)
        return actions

    # ---- tensors

    def _keep(self, it: _Run, tensor: str, iteration: Iteration, value: _Value) -> bool:
        """Keeps a tensor if somebody will take it."""
        value.left = it.view.takers[tensor]
        if value.left:
            it.store.setdefault(tensor, {})[iteration] = value
        return value.left > 0

    def _take(self, it: _Run, tensor: str, iteration: Iteration) -> _Value:
        values = it.store[tensor]
        value = values[iteration]
        value.left -= 1
        if not value.left:
            del values[iteration]
        return value

    def _has(self, it: _Run, tensor: str, iteration: Iteration) -> bool:
        return iteration in it.store.get(tensor, ())

    # ---- steps

    def _start_steps(self, it: _Run, arrived: list[str], iteration: Iteration, actions: list[Action]) -> None:
        """Starts the steps whose last missing input is among what has arrived."""
        if not arrived:
            return
        consumers = it.view.consumers
        steps = consumers[arrived[0]]
        if len(arrived) > 1:
            found = {step.index: step for tensor in arrived for step in consumers[tensor]}
            steps = tuple(found[index] for index in sorted(found))
        for step in steps:
            if all(self._has(it, tensor, iteration) for _, tensor in step.inputs):
                self._prepare(it, step, iteration, actions)

    def _prepare(self, it: _Run, step: PlanStep, iteration: Iteration, actions: list[Action]) -> None:
        taken = {tensor: self._take(it, tensor, iteration) for tensor in {tensor for _, tensor in step.inputs}}
        inputs: dict[str, TensorRef] = {}
        sequence: SequenceFlags | None = None
        for name, tensor in step.inputs:
            value = taken[tensor]
            sequence = sequence or value.sequence
            if value.ref is not None:
                shape = bridge_shape(step.input_dims[name], step.batching, value.batch, value.ref.shape)
                inputs[name] = value.ref if shape == value.ref.shape else TensorRef(value.ref.value, shape)
        batch = next((ref.shape[0] for ref in inputs.values() if ref.shape), 0) if step.batching else 0
        active = _Active(self._next_token, it, step, iteration, inputs, sequence or it.request.sequence, batch)
        self._next_token += 1
        insort(it.bounds, active.bound)
        limit = self.plan.max_inflight_requests
        if limit and (self._inflight[step.index] >= limit or self._queues[step.index]):
            active.queued = True
            it.queued[step.index] = it.queued.get(step.index, 0) + 1
            self._queues[step.index].append(active)
            self._hold_producers(it, step, actions)
        else:
            self._launch(active, actions)

    def _launch(self, active: _Active, actions: list[Action]) -> None:
        it, step = active.run, active.step
        self._inflight[step.index] += 1
        self._actives[active.token] = it.actives[active.token] = active
        outputs = tuple(name for name, _ in step.outputs)
        actions.append(StartStep(it.id, active.token, step, active.iteration, active.inputs, outputs, active.sequence))
        active.inputs = {}

    def _start_queued(self, index: int, actions: list[Action]) -> None:
        """A step has room: what its limit kept back starts, first come first served over all runs."""
        queue = self._queues[index]
        while queue and self._inflight[index] < self.plan.max_inflight_requests:
            active = queue.popleft()
            active.queued = False
            queued = active.run.queued
            queued[index] -= 1
            self._launch(active, actions)
            if not queued[index]:
                del queued[index]
                self._resume_producers(active.run, actions)

    def _move_bound(self, active: _Active) -> None:
        """After a response nothing before the next iteration can come out of the step, or nothing at all."""
        bounds = active.run.bounds
        del bounds[bisect_left(bounds, active.bound)]
        active.emitted += 1
        if active.step.decoupled:
            insort(bounds, active.bound)

    def _end_step(self, active: _Active) -> None:
        it = active.run
        if active.step.decoupled or not active.emitted:
            del it.bounds[bisect_left(it.bounds, active.bound)]
        self._inflight[active.step.index] -= 1
        del self._actives[active.token], it.actives[active.token]

    def _hold_producers(self, it: _Run, step: PlanStep, actions: list[Action]) -> None:
        for active in it.actives.values():
            if active.step.decoupled and not active.held and active.step.index in self._upstream[step.index]:
                active.held = True
                actions.append(Hold(active.token))

    def _resume_producers(self, it: _Run, actions: list[Action]) -> None:
        """Those with nothing queued behind them. A step queued for another iteration of itself does not count: the one
        under way must end for it."""
        for active in it.actives.values():
            if active.held and not any(active.step.index in self._upstream[step] for step in it.queued):
                active.held = False
                actions.append(Resume(active.token))

    # ---- answers and ends

    def _collect(self, it: _Run, arrived: list[str], iteration: Iteration) -> None:
        """Notes an iteration of which all requested outputs are there."""
        concerned = it.failure is None and any(tensor in it.view.outputs for tensor in arrived)
        if concerned and all(self._has(it, tensor, iteration) for tensor in it.view.outputs):
            insort(it.ready, iteration)

    def _close(self, it: _Run, actions: list[Action]) -> None:
        """Sends the answers whose turn has come, and ends the run if nothing is under way any more."""
        if not self.plan.decoupled and (it.actives or it.queued):
            return
        while it.ready and not (it.bounds and it.bounds[0] < it.ready[0]):
            iteration = it.ready.pop(0)
            over = not it.actives and not it.queued and not it.ready
            actions.append(self._answer(it, iteration, final=over))
            it.answered = True
            if over:
                del self._runs[it.id]
                return
        if it.actives or it.queued:
            return
        del self._runs[it.id]
        if it.failure is not None:
            actions.append(it.failure)
        elif it.answered or self.plan.decoupled:
            actions.append(Finish(it.id))
        else:
            text = (
                f"in ensemble '{self.plan.name}', {it.request.log_prefix}unexpected deadlock, at least one output is "
                "not set while no more ensemble steps can be made"
            )
            actions.append(Fail(it.id, text, Code.INVALID_ARG))

    def _answer(self, it: _Run, iteration: Iteration, *, final: bool) -> Answer:
        outputs: dict[str, TensorRef] = {}
        sequence: SequenceFlags | None = None
        batching = it.request.batch_size > 0
        for spec in self.plan.outputs:
            if spec.name not in it.view.outputs:
                continue
            value = self._take(it, spec.name, iteration)
            if value.ref is not None:
                shape = bridge_shape(spec.inner_dims, batching, value.batch, value.ref.shape)
                outputs[spec.name] = value.ref if shape == value.ref.shape else TensorRef(value.ref.value, shape)
                sequence = value.sequence or sequence
        return Answer(it.id, outputs, sequence, final)

    def _give_up(self, it: _Run, failure: Fail, actions: list[Action]) -> None:
        """No further step starts and no further answer is sent; the first failure is the one that is told."""
        if it.failure is not None:
            return
        it.failure = failure
        it.store.clear()
        it.ready.clear()
        if it.queued:
            for index, queue in enumerate(self._queues):
                kept = [active for active in queue if active.run is not it]
                if len(kept) != len(queue):
                    self._queues[index] = deque(kept)
            it.queued.clear()
            it.bounds = sorted(
                active.bound for active in it.actives.values() if active.step.decoupled or not active.emitted
            )
        self._resume_producers(it, actions)
