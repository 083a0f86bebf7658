"""Executing ensembles rule by rule ("5.2" is a number of the reference), and random graphs against a slow reading.

5.1, 5.5's checks and 5.10 are in test_ensemble_plan. Rules without a test here, and why: 5.9 (caches, loading and
unloading: the engine's), 5.11 (labels: the engine's); 5.4's id, priority, timeout and parameters are the top request's
and never come here.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from histories import HISTORIES

from workbench.errors import Code
from workbench.scheduling import (
    Action,
    Answer,
    CancelStep,
    EnsembleExecutor,
    EnsemblePlan,
    EnsembleRequest,
    Fail,
    Finish,
    Hold,
    PlanStep,
    Resume,
    SequenceFlags,
    StartStep,
    TensorRef,
    TensorSpec,
)

F32 = "TYPE_FP32"


def spec(name: str, optional: bool = False, dims: tuple[int, ...] = (4,)) -> TensorSpec:
    return TensorSpec(name, F32, dims, optional)


def make_step(index: int, inputs: str, outputs: str, *, decoupled: bool = False, batching: bool = True) -> PlanStep:
    """A step named after its index; its model calls its inputs and outputs as the ensemble does."""
    ins = tuple((name, name) for name in sorted(inputs.split()))
    outs = tuple((name, name) for name in sorted(outputs.split()))
    dims = {name: (4,) for name, _ in ins}
    return PlanStep(index, f"m{index}", -1, ins, outs, batching, decoupled, dims)


def make_plan(
    *steps: PlanStep, inputs: str = "X", outputs: str = "Y", limit: int = 0, optional: str = ""
) -> EnsemblePlan:
    return EnsemblePlan(
        "ens",
        8,
        tuple(spec(name, name in optional.split()) for name in inputs.split()),
        tuple(spec(name) for name in outputs.split()),
        steps,
        any(step.decoupled for step in steps),
        limit,
    )


def chain(limit: int = 0, decoupled: bool = False) -> EnsemblePlan:
    return make_plan(make_step(0, "X", "t", decoupled=decoupled), make_step(1, "t", "Y"), limit=limit)


def request(inputs: str = "X", **given: Any) -> EnsembleRequest:
    refs = {name: TensorRef(name.lower(), (2, 4)) for name in inputs.split()}
    return EnsembleRequest(refs, **{"batch_size": 2, **given})


def out(**outputs: str) -> dict[str, TensorRef]:
    return {name: TensorRef(value, (2, 4)) for name, value in outputs.items()}


def started(actions: Sequence[Action]) -> dict[int, int]:
    """Tokens of the steps that start, by their index."""
    return {action.step.index: action.token for action in actions if isinstance(action, StartStep)}


def values(refs: Any) -> dict[str, Any]:
    return {name: ref.value for name, ref in refs.items()}


def only(actions: Sequence[Action]) -> Any:
    (action,) = actions
    return action


# ---- 5.2


@pytest.mark.rule("5.2a")
def test_5_2_a_step_starts_when_its_inputs_are_there_and_the_answer_is_the_last_steps() -> None:
    executor = EnsembleExecutor(chain())
    first = only(executor.begin("r", request()))
    assert (first.step.index, values(first.inputs), first.outputs, first.iteration) == (0, {"X": "x"}, ("t",), ())
    second = only(executor.respond(first.token, out(t="T"), final=True))
    assert (second.step.index, values(second.inputs)) == (1, {"t": "T"})
    answer = only(executor.respond(second.token, out(Y="y"), final=True))
    assert (answer.run, values(answer.outputs), answer.final) == ("r", {"Y": "y"}, True)
    assert executor.open_runs == 0


@pytest.mark.rule("5.2a", "5.2b")
@pytest.mark.parametrize("first", [0, 1])
def test_5_2_independent_steps_run_side_by_side_and_are_joined(first: int) -> None:
    plan = make_plan(make_step(0, "X", "a"), make_step(1, "X", "b"), make_step(2, "a b", "Y"))
    executor = EnsembleExecutor(plan)
    tokens = started(executor.begin("r", request()))
    assert set(tokens) == {0, 1}
    answers = (out(a="A"), out(b="B"))
    assert executor.respond(tokens[first], answers[first], final=True) == []
    join = only(executor.respond(tokens[1 - first], answers[1 - first], final=True))
    assert values(join.inputs) == {"a": "A", "b": "B"}


@pytest.mark.rule("5.2c")
def test_5_2_steps_that_are_not_needed_for_the_requested_outputs_are_pruned() -> None:
    plan = make_plan(
        make_step(0, "X", "a"), make_step(1, "a", "Y"), make_step(2, "a", "b"), make_step(3, "b", "Z"), outputs="Y Z"
    )
    executor = EnsembleExecutor(plan)
    first = only(executor.begin("r", request(outputs=("Y",))))
    following = executor.respond(first.token, out(a="A"), final=True)
    assert set(started(following)) == {1}
    answer = only(executor.respond(started(following)[1], out(Y="y"), final=True))
    assert values(answer.outputs) == {"Y": "y"}


def test_5_2_all_outputs_are_answered_together() -> None:
    plan = make_plan(make_step(0, "X", "Y"), make_step(1, "Y", "Z"), outputs="Y Z")
    executor = EnsembleExecutor(plan)
    first = only(executor.begin("r", request()))
    second = only(executor.respond(first.token, out(Y="y"), final=True))
    answer = only(executor.respond(second.token, out(Z="z"), final=True))
    assert values(answer.outputs) == {"Y": "y", "Z": "z"}


def test_5_2_tensors_are_dropped_as_soon_as_nobody_wants_them() -> None:
    executor = EnsembleExecutor(chain())
    first = only(executor.begin("r", request()))
    assert executor.kept_tensors("r") == 0
    executor.respond(first.token, out(t="T"), final=True)
    assert executor.kept_tensors("r") == 0


def test_5_2_nor_are_they_kept_for_steps_that_are_pruned() -> None:
    plan = make_plan(
        make_step(0, "X", "a"), make_step(1, "a", "Y"), make_step(2, "a X", "Z"), make_step(3, "Y", "W"), outputs="W Z"
    )
    executor = EnsembleExecutor(plan)
    first = only(executor.begin("r", request(outputs=("W",))))
    assert executor.kept_tensors("r") == 0
    second = only(executor.respond(first.token, out(a="A"), final=True))
    assert executor.kept_tensors("r") == 0
    assert only(executor.respond(second.token, out(Y="y"), final=True)).step.index == 3


# ---- 5.3


@pytest.mark.rule("5.3a", "5.3b")
def test_5_3_a_batch_of_one_is_made_and_taken_off_between_batching_and_plain_steps() -> None:
    plan = make_plan(make_step(0, "X", "t", batching=False), make_step(1, "t", "Y"))
    executor = EnsembleExecutor(plan)
    one = EnsembleRequest({"X": TensorRef("x", (1, 4))}, batch_size=1)
    first = only(executor.begin("r", one))
    assert first.inputs["X"].shape == (4,)
    second = only(executor.respond(first.token, {"t": TensorRef("T", (4,))}, final=True))
    assert second.inputs["t"].shape == (1, 4)
    answer = only(executor.respond(second.token, {"Y": TensorRef("y", (1, 4))}, final=True))
    assert answer.outputs["Y"].shape == (1, 4)


def test_5_3_the_answer_of_a_plain_step_gets_the_batch_of_the_ensemble() -> None:
    plan = make_plan(make_step(0, "X", "Y", batching=False))
    executor = EnsembleExecutor(plan)
    first = only(executor.begin("r", EnsembleRequest({"X": TensorRef("x", (1, 4))}, batch_size=1)))
    answer = only(executor.respond(first.token, {"Y": TensorRef("y", (4,))}, final=True))
    assert answer.outputs["Y"].shape == (1, 4)


def test_5_3_what_fits_a_plain_step_as_it_is_stays_a_batch() -> None:
    step = PlanStep(0, "m0", -1, (("X", "X"),), (("Y", "Y"),), False, False, {"X": (-1, 4)})
    executor = EnsembleExecutor(make_plan(step))
    assert only(executor.begin("r", request())).inputs["X"].shape == (2, 4)


# ---- 5.4


@pytest.mark.rule("5.4b", "5.4f")
def test_5_4_steps_get_the_requests_sequence_and_a_response_can_change_it_for_those_behind() -> None:
    plan = make_plan(make_step(0, "X", "t"), make_step(1, "t", "u"), make_step(2, "u", "Y"))
    executor = EnsembleExecutor(plan)
    mine = SequenceFlags(7, start=True)
    first = only(executor.begin("r", request(sequence=mine)))
    assert first.sequence == mine
    other = SequenceFlags(8, end=True)
    second = only(executor.respond(first.token, out(t="T"), final=True, sequence=other))
    assert second.sequence == other
    third = only(executor.respond(second.token, out(u="U"), final=True))
    assert third.sequence == other
    answer = only(executor.respond(third.token, out(Y="y"), final=True))
    assert answer.sequence == other


@pytest.mark.rule("5.4g")
def test_5_4_an_output_that_a_step_does_not_return_counts_as_not_provided() -> None:
    plan = make_plan(make_step(0, "X", "a b"), make_step(1, "a b", "Y"))
    executor = EnsembleExecutor(plan)
    first = only(executor.begin("r", request()))
    second = only(executor.respond(first.token, out(a="A"), final=True))
    assert values(second.inputs) == {"a": "A"}


def test_5_4_an_optional_input_of_the_ensemble_that_is_not_given_is_not_sent_on() -> None:
    plan = make_plan(make_step(0, "X O", "Y"), inputs="X O", optional="O")
    executor = EnsembleExecutor(plan)
    assert values(only(executor.begin("r", request())).inputs) == {"X": "x"}


def test_5_4_an_output_that_was_not_provided_is_not_in_the_answer() -> None:
    executor = EnsembleExecutor(chain())
    first = only(executor.begin("r", request()))
    second = only(executor.respond(first.token, out(t="T"), final=True))
    answer = only(executor.respond(second.token, {}, final=True))
    assert (dict(answer.outputs), answer.final, answer.sequence) == ({}, True, None)


def test_5_4_an_answer_tells_the_sequence_also_where_nobody_asked_for_one() -> None:
    """tritonserver 2.51 answers with the parameters sequence_id 0, sequence_start false, sequence_end false."""
    executor = EnsembleExecutor(make_plan(make_step(0, "X", "Y")))
    first = only(executor.begin("r", request()))
    assert only(executor.respond(first.token, out(Y="y"), final=True)).sequence == SequenceFlags(0, False, False)


# ---- 5.5


@pytest.mark.rule("5.5b")
def test_5_5_each_response_of_a_decoupled_step_is_an_iteration_of_what_follows() -> None:
    executor = EnsembleExecutor(chain(decoupled=True))
    producer = only(executor.begin("r", request()))
    starts = [only(executor.respond(producer.token, out(t=f"T{n}"), final=False)) for n in range(3)]
    assert [(s.iteration, values(s.inputs)) for s in starts] == [((n,), {"t": f"T{n}"}) for n in range(3)]
    assert executor.respond(producer.token, None, final=True) == []
    answers = [only(executor.respond(s.token, out(Y=f"y{n}"), final=True)) for n, s in enumerate(starts)]
    assert [(values(a.outputs), a.final) for a in answers] == [
        ({"Y": "y0"}, False), ({"Y": "y1"}, False), ({"Y": "y2"}, True),
    ]  # fmt: skip


def test_5_5_f20_answers_keep_the_order_of_the_producers_responses() -> None:
    executor = EnsembleExecutor(chain(decoupled=True))
    producer = only(executor.begin("r", request()))
    starts = [only(executor.respond(producer.token, out(t=f"T{n}"), final=n == 2)) for n in range(3)]
    assert executor.respond(starts[2].token, out(Y="y2"), final=True) == []
    assert [values(a.outputs) for a in executor.respond(starts[0].token, out(Y="y0"), final=True)] == [{"Y": "y0"}]
    last = executor.respond(starts[1].token, out(Y="y1"), final=True)
    assert [(values(a.outputs), a.final) for a in last] == [({"Y": "y1"}, False), ({"Y": "y2"}, True)]


@pytest.mark.rule("5.5b")
def test_5_5_branches_that_overtake_each_other_are_joined_by_iteration() -> None:
    plan = make_plan(
        make_step(0, "X", "t", decoupled=True), make_step(1, "t", "a"), make_step(2, "t", "b"), make_step(3, "a b", "Y")
    )
    executor = EnsembleExecutor(plan)
    producer = only(executor.begin("r", request()))
    branches = [started(executor.respond(producer.token, out(t=f"T{n}"), final=n == 1)) for n in range(2)]
    executor.respond(branches[1][1], out(a="a1"), final=True)
    executor.respond(branches[0][2], out(b="b0"), final=True)
    assert values(only(executor.respond(branches[1][2], out(b="b1"), final=True)).inputs) == {"a": "a1", "b": "b1"}
    assert values(only(executor.respond(branches[0][1], out(a="a0"), final=True)).inputs) == {"a": "a0", "b": "b0"}


def test_5_5_a_decoupled_ensemble_may_answer_nothing() -> None:
    executor = EnsembleExecutor(chain(decoupled=True))
    producer = only(executor.begin("r", request()))
    assert executor.respond(producer.token, None, final=True) == [Finish("r")]


def test_5_5_when_the_end_comes_after_the_last_answer_the_stream_is_finished_then() -> None:
    executor = EnsembleExecutor(chain(decoupled=True))
    producer = only(executor.begin("r", request()))
    follower = only(executor.respond(producer.token, out(t="T"), final=False))
    assert not only(executor.respond(follower.token, out(Y="y"), final=True)).final
    assert executor.respond(producer.token, None, final=True) == [Finish("r")]


# ---- 5.6


@pytest.mark.rule("5.6a", "5.6b")
def test_5_6_a_steps_error_ends_the_ensemble_with_its_name_after_the_steps_under_way() -> None:
    plan = make_plan(make_step(0, "X", "a"), make_step(1, "X", "b"), make_step(2, "a b", "Y"))
    executor = EnsembleExecutor(plan)
    tokens = started(executor.begin("r", request()))
    assert executor.fail(tokens[0], "boom", Code.INTERNAL, cause="why") == []
    failure = only(executor.respond(tokens[1], out(b="B"), final=True))
    assert failure == Fail("r", "in ensemble 'ens', boom", Code.INTERNAL, plan.steps[0], "why")
    assert executor.open_runs == 0


@pytest.mark.rule("5.6a")
def test_5_6_a_step_whose_inputs_come_after_the_error_does_not_start() -> None:
    plan = make_plan(make_step(0, "X", "a"), make_step(1, "X", "b"), make_step(2, "b", "c"), make_step(3, "a c", "Y"))
    executor = EnsembleExecutor(plan)
    tokens = started(executor.begin("r", request()))
    assert executor.fail(tokens[0], "boom", Code.INTERNAL) == []
    assert isinstance(only(executor.respond(tokens[1], out(b="B"), final=True)), Fail)


def test_5_6_the_first_error_is_the_one_that_is_told() -> None:
    plan = make_plan(make_step(0, "X", "a"), make_step(1, "X", "b"), make_step(2, "a b", "Y"))
    executor = EnsembleExecutor(plan)
    tokens = started(executor.begin("r", request()))
    executor.fail(tokens[1], "first", Code.UNAVAILABLE)
    assert only(executor.fail(tokens[0], "second", Code.INTERNAL)).message == "in ensemble 'ens', first"


def test_5_6_an_error_within_a_stream_waits_for_its_end() -> None:
    executor = EnsembleExecutor(chain(decoupled=True))
    producer = only(executor.begin("r", request()))
    assert executor.fail(producer.token, "boom", Code.INTERNAL, final=False) == []
    assert executor.respond(producer.token, out(t="T"), final=False) == []
    assert isinstance(only(executor.respond(producer.token, None, final=True)), Fail)


@pytest.mark.rule("5.6d")
def test_5_6_a_dead_end_is_told() -> None:
    executor = EnsembleExecutor(chain())
    first = only(executor.begin("r", request(log_prefix="[request id: 5] ")))
    assert only(executor.respond(first.token, None, final=True)) == Fail(
        "r",
        "in ensemble 'ens', [request id: 5] unexpected deadlock, at least one output is not set while no more ensemble "
        "steps can be made",
        Code.INVALID_ARG,
    )


@pytest.mark.rule("5.6a")
def test_5_6_a_start_that_was_not_carried_out_because_its_sibling_failed_is_abandoned() -> None:
    plan = make_plan(make_step(0, "X", "a"), make_step(1, "X", "b"), make_step(2, "a b", "Y"))
    executor = EnsembleExecutor(plan)
    tokens = started(executor.begin("r", request()))
    assert executor.is_wanted(tokens[1])
    executor.fail(tokens[0], "full", Code.UNAVAILABLE)
    assert not executor.is_wanted(tokens[1])
    assert isinstance(only(executor.abandon(tokens[1])), Fail)


# ---- 5.7


@pytest.mark.rule("5.7a", "5.7b")
def test_5_7_the_limit_of_a_step_is_shared_by_all_requests_first_come_first_served() -> None:
    executor = EnsembleExecutor(make_plan(make_step(0, "X", "Y"), limit=2))
    tokens = [started(executor.begin(run, request())).get(0) for run in "abcd"]
    assert tokens[2:] == [None, None]
    assert (executor.inflight(0), executor.queued(0)) == (2, 2)
    actions = executor.respond(tokens[1], out(Y="y"), final=True)
    assert [getattr(action, "run", None) for action in actions] == ["c", "b"]
    assert started(executor.respond(tokens[0], out(Y="y"), final=True)) != {}


@pytest.mark.rule("5.7e")
def test_5_7_room_is_made_by_the_final_response() -> None:
    executor = EnsembleExecutor(make_plan(make_step(0, "X", "Y", decoupled=True), limit=1))
    token = started(executor.begin("a", request()))[0]
    executor.begin("b", request())
    assert started(executor.respond(token, out(Y="y"), final=False)) == {}
    assert started(executor.respond(token, None, final=True)) != {}


def test_5_7_f20_a_producer_is_held_while_what_follows_cannot_keep_up() -> None:
    executor = EnsembleExecutor(chain(limit=2, decoupled=True))
    producer = only(executor.begin("r", request()))
    first = [only(executor.respond(producer.token, out(t=f"T{n}"), final=False)) for n in range(2)]
    assert executor.respond(producer.token, out(t="T2"), final=False) == [Hold(producer.token)]
    assert executor.respond(producer.token, out(t="T3"), final=False) == [], "what is sent all the same is not lost"
    actions = executor.respond(first[0].token, out(Y="y0"), final=True)
    assert [type(action) for action in actions] == [StartStep, Answer]
    actions = executor.respond(first[1].token, out(Y="y1"), final=True)
    assert Resume(producer.token) in actions


@pytest.mark.rule("5.7d")
def test_5_7_a_failed_request_gives_its_place_in_the_queue_away() -> None:
    executor = EnsembleExecutor(chain(limit=1))
    first = only(executor.begin("a", request()))
    executor.begin("b", request())
    executor.begin("c", request())
    assert only(executor.cancel("b")) == Fail("b", "in ensemble 'ens', ", Code.CANCELLED)
    following = executor.fail(first.token, "boom", Code.INTERNAL)
    assert [getattr(action, "run", None) for action in following] == ["c", "a"]


# ---- 5.8


@pytest.mark.rule("5.8a")
def test_5_8_f06_a_step_that_refuses_its_request_fails_the_ensemble() -> None:
    executor = EnsembleExecutor(chain())
    first = only(executor.begin("r", request()))
    second = only(executor.respond(first.token, out(t="T"), final=True))
    failure = only(executor.fail(second.token, "[request id: 5] Exceeds maximum queue size", Code.UNAVAILABLE))
    assert failure.message == "in ensemble 'ens', [request id: 5] Exceeds maximum queue size"
    assert failure.step.label == "step 1 ('m1')"
    assert executor.open_runs == 0


@pytest.mark.rule("5.8b")
def test_5_8_cancelling_cancels_what_is_under_way_and_starts_nothing_more() -> None:
    executor = EnsembleExecutor(chain())
    first = only(executor.begin("r", request()))
    assert executor.cancel("r") == [CancelStep(first.token)]
    failure = only(executor.respond(first.token, out(t="T"), final=True))
    assert (failure.code, failure.message) == (Code.CANCELLED, "in ensemble 'ens', ")
    assert executor.cancel("r") == []


def test_a_name_is_for_one_run_at_a_time() -> None:
    executor = EnsembleExecutor(chain())
    executor.begin("r", request())
    with pytest.raises(ValueError, match="under way"):
        executor.begin("r", request())
    with pytest.raises(KeyError):
        executor.respond(99, None, final=True)


# ---- random graphs


@dataclass
class Graph:
    """A plan and how its models behave: how many responses a decoupled step makes, which outputs a step leaves out."""

    plan: EnsemblePlan
    seed: int
    makers: dict[str, PlanStep] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.makers = {name: step for step in self.plan.steps for _, name in step.outputs}

    def chance(self, *key: Hashable) -> random.Random:
        return random.Random(repr((self.seed, *key)))

    def responses(self, run: int, step: PlanStep, iteration: tuple[int, ...]) -> int:
        return self.chance("n", run, step.index, iteration).choice([0, 1, 2, 3, 5]) if step.decoupled else 1

    def leaves_out(self, run: int, step: PlanStep, iteration: tuple[int, ...], name: str) -> bool:
        return self.chance("out", run, step.index, iteration, name).random() < 0.1

    # the slow reading: everything by recursion from the outputs

    def iterations(self, run: int, tensor: str) -> list[tuple[int, ...]]:
        step = self.makers.get(tensor)
        if step is None:
            return [()]
        before = self.iterations(run, step.inputs[0][1])
        if not step.decoupled:
            return before
        return [(*each, n) for each in before for n in range(self.responses(run, step, each))]

    def value(self, run: int, tensor: str, iteration: tuple[int, ...]) -> Any:
        step = self.makers.get(tensor)
        if step is None:
            return (run, tensor)
        if self.leaves_out(run, step, iteration, tensor):
            return None
        before = iteration[:-1] if step.decoupled else iteration
        inputs = {name: self.value(run, source, before) for name, source in step.inputs}
        return made(step, iteration, tensor, {name: each for name, each in inputs.items() if each is not None})

    def answers(self, run: int, outputs: Sequence[str]) -> list[dict[str, Any]]:
        found = []
        for iteration in self.iterations(run, outputs[0]):
            each = {name: self.value(run, name, iteration) for name in outputs}
            found.append({name: value for name, value in each.items() if value is not None})
        return found


def made(step: PlanStep, iteration: tuple[int, ...], tensor: str, inputs: dict[str, Any]) -> Any:
    return (step.index, iteration, tensor, tuple(sorted(inputs.items())))


def some_graph(seed: int) -> Graph:
    """Steps take tensors that stem from one decoupled step, as a checked plan does."""
    chance = random.Random(seed)
    groups: list[list[str]] = [[f"I{n}" for n in range(chance.randint(1, 2))]]
    steps = []
    for index in range(chance.randint(1, 7)):
        group = chance.choice(groups)
        inputs = chance.sample(group, min(len(group), chance.randint(1, 3)))
        outputs = [f"T{index}{letter}" for letter in "ab"[: chance.randint(1, 2)]]
        decoupled = chance.random() < 0.3 and len(groups) < 4
        steps.append(make_step(index, " ".join(inputs), " ".join(outputs), decoupled=decoupled))
        if decoupled:
            groups.append(list(outputs))
        else:
            group.extend(outputs)
    candidates = [[name for name in group if name.startswith("T")] for group in groups]
    chosen = chance.choice([group for group in candidates if group])
    outputs = chance.sample(chosen, chance.randint(1, min(3, len(chosen))))
    plan = make_plan(
        *steps, inputs=" ".join(groups[0][:2]), outputs=" ".join(outputs), limit=chance.choice([0, 0, 1, 2])
    )
    inputs = tuple(spec for spec in plan.inputs if spec.name.startswith("I"))
    return Graph(
        EnsemblePlan("ens", 8, inputs, plan.outputs, plan.steps, plan.decoupled, plan.max_inflight_requests), seed
    )


class Play:
    """Many requests to one ensemble whose steps answer in any order, fail, and are cancelled."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.graph = some_graph(seed)
        self.executor = EnsembleExecutor(self.graph.plan)
        self.troubled = self.chance.random() < 0.4
        self.pending: dict[int, StartStep] = {}
        self.sent: dict[int, int] = {}
        self.held: set[int] = set()
        self.begun: set[tuple[Hashable, int, tuple[int, ...]]] = set()
        self.got: dict[Hashable, list[dict[str, Any]]] = {}
        self.ended: dict[Hashable, str] = {}
        self.broken: set[Hashable] = set()
        self.outputs: dict[Hashable, tuple[str, ...]] = {}

    def do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, StartStep):
                key = (action.run, action.step.index, action.iteration)
                assert key not in self.begun, "a step starts twice"
                self.begun.add(key)
                if self.refuse(action):
                    continue
                self.pending[action.token] = action
                self.sent[action.token] = 0
                self.check_limit(action.step.index)
            elif isinstance(action, Hold):
                if action.token in self.pending:
                    self.held.add(action.token)
            elif isinstance(action, Resume):
                self.held.discard(action.token)
            elif isinstance(action, Answer):
                assert action.run not in self.ended
                self.got[action.run].append(values(action.outputs))
                if action.final:
                    self.ended[action.run] = "answered"
            elif isinstance(action, Finish | Fail):
                assert action.run not in self.ended
                self.ended[action.run] = "failed" if isinstance(action, Fail) else "answered"
                assert not any(start.run == action.run for start in self.pending.values()), "steps are under way"

    def refuse(self, start: StartStep) -> bool:
        """A sibling's refusal may have made it useless before it was carried out; a full queue refuses it now."""
        assert self.executor.is_wanted(start.token) == (start.run not in self.broken)
        if start.run in self.broken:
            self.do(self.executor.abandon(start.token))
        elif self.troubled and self.chance.random() < 0.03:
            self.broken.add(start.run)
            self.do(self.executor.fail(start.token, "full", Code.UNAVAILABLE))
        else:
            return False
        return True

    def check_limit(self, step: int) -> None:
        limit = self.graph.plan.max_inflight_requests
        running = sum(start.step.index == step for start in self.pending.values())
        assert running <= self.executor.inflight(step)
        assert not limit or running <= limit

    def begin(self, run: int) -> None:
        names = self.graph.plan.output_names()
        outputs = tuple(self.chance.sample(names, self.chance.randint(0, len(names))))
        self.outputs[run] = outputs or names
        self.got[run] = []
        inputs = {spec.name: TensorRef((run, spec.name), (2, 4)) for spec in self.graph.plan.inputs}
        self.do(self.executor.begin(run, EnsembleRequest(inputs, 2, outputs)))

    def advance(self) -> None:
        free = [token for token in self.pending if token not in self.held]
        assert free, "everything is held"
        token = self.chance.choice(free)
        start = self.pending[token]
        run, step = start.run, start.step
        assert isinstance(run, int)
        if self.troubled and self.chance.random() < 0.05:
            del self.pending[token]
            self.held.discard(token)
            self.broken.add(run)
            self.do(self.executor.fail(token, "boom", Code.INTERNAL))
            return
        if self.troubled and self.chance.random() < 0.02:
            if run not in self.ended:
                self.broken.add(run)
            self.do(self.executor.cancel(run))
            return
        total = self.graph.responses(run, step, start.iteration)
        number = self.sent[token]
        if number == total:
            del self.pending[token]
            self.do(self.executor.respond(token, None, final=True))
            return
        iteration = (*start.iteration, number) if step.decoupled else start.iteration
        outputs = {
            name: TensorRef(made(step, iteration, name, values(start.inputs)), (2, 4))
            for name, _ in step.outputs
            if not self.graph.leaves_out(run, step, iteration, name)
        }
        self.sent[token] += 1
        final = self.sent[token] == total and self.chance.random() < 0.7
        if final:
            del self.pending[token]
        self.do(self.executor.respond(token, outputs, final=final))

    def play(self, runs: int) -> None:
        for run in range(runs):
            self.begin(run)
            for _ in range(self.chance.randint(0, 6)):
                if self.pending:
                    self.advance()
        for _ in range(100_000):
            if not self.pending:
                break
            self.advance()
        assert self.executor.open_runs == 0, "a request hangs"
        for step in self.graph.plan.steps:
            assert (self.executor.inflight(step.index), self.executor.queued(step.index)) == (0, 0)
        assert set(self.ended) == set(range(runs))
        assert not self.held
        for run in range(runs):
            expected = self.graph.answers(run, self.outputs[run])
            if self.ended[run] == "failed":
                assert run in self.broken
                assert self.got[run] == expected[: len(self.got[run])]
            else:
                assert run not in self.broken
                assert self.got[run] == expected, "not what the graph gives, or not in order"


def play_seed(seed: int) -> None:
    try:
        Play(seed).play(random.Random(seed).choice([1, 3, 8]))
    except AssertionError as error:
        raise AssertionError(f"graph of seed {seed}: {error}") from error


def test_random_graphs_answer_what_they_should_in_order_and_never_hang() -> None:
    for seed in range(250):
        play_seed(seed)


@pytest.mark.full
@pytest.mark.soak
def test_a_thousand_random_graphs() -> None:
    for seed in range(10_000, 10_000 + HISTORIES):
        play_seed(seed)
