"""Plans of ensembles: the checks of sections 5.1, 5.5, 5.10 and 10.24-10.33, and Triton's own bad ensembles."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from workbench.errors import ConfigError
from workbench.scheduling import (
    EnsemblePlan,
    ModelDescription,
    TensorSpec,
    Upstream,
    circular_dependencies,
    dependency_problem,
    describe_model,
    plan_ensemble,
    required_versions,
)
from workbench.scheduling.ensemble_plan import bridge_shape, reshape_input


def parsed(text: str) -> Any:
    return text_format.Parse(text, pb.ModelConfig())


def tensor(name: str, dims: tuple[int, ...] = (4,), datatype: str = "TYPE_FP32", optional: bool = False) -> TensorSpec:
    return TensorSpec(name, datatype, dims, optional)


def model(
    name: str,
    inputs: str | tuple[TensorSpec, ...] = "IN",
    outputs: str | tuple[TensorSpec, ...] = "OUT",
    *,
    batch: int = 8,
    decoupled: bool = False,
) -> ModelDescription:
    """A model; inputs and outputs as names with FP32 [4], or as specs."""
    specs = [
        tuple(tensor(each) for each in given.split()) if isinstance(given, str) else given
        for given in (inputs, outputs)
    ]
    return ModelDescription(name, batch, specs[0], specs[1], decoupled)


def step(name: str, inputs: dict[str, str], outputs: dict[str, str], version: int = -1) -> str:
    maps = [f'input_map {{ key: "{k}" value: "{v}" }}' for k, v in inputs.items()]
    maps += [f'output_map {{ key: "{k}" value: "{v}" }}' for k, v in outputs.items()]
    return f'step {{ model_name: "{name}" model_version: {version} {" ".join(maps)} }}'


def ensemble(
    *steps: str, inputs: str = "X", outputs: str = "Y", batch: int = 8, dims: str = "4", more: str = ""
) -> Any:
    text = f'name: "ens" platform: "ensemble" max_batch_size: {batch} '
    text += "".join(f'input {{ name: "{each}" data_type: TYPE_FP32 dims: [{dims}] }} ' for each in inputs.split())
    text += "".join(f'output {{ name: "{each}" data_type: TYPE_FP32 dims: [{dims}] }} ' for each in outputs.split())
    return parsed(text + "ensemble_scheduling { " + " ".join(steps) + more + " }")


def plan(message: Any, *models: ModelDescription) -> EnsemblePlan:
    return plan_ensemble(message, {each.name: each for each in models})


def refusal(message: Any, *models: ModelDescription) -> str:
    with pytest.raises(ConfigError) as raised:
        plan(message, *models)
    return raised.value.message


CHAIN = (step("a", {"IN": "X"}, {"OUT": "t"}), step("b", {"IN": "t"}, {"OUT": "Y"}))


# ---- the plan


def test_a_plan_names_steps_tensors_and_limits() -> None:
    made = plan(ensemble(*CHAIN, more=" max_inflight_requests: 3"), model("a"), model("b", batch=0))
    assert (made.name, made.max_batch_size, made.decoupled, made.max_inflight_requests) == ("ens", 8, False, 3)
    assert [(s.model, s.version, s.inputs, s.outputs, s.batching) for s in made.steps] == [
        ("a", -1, (("IN", "X"),), (("OUT", "t"),), True),
        ("b", -1, (("IN", "t"),), (("OUT", "Y"),), False),
    ]
    assert made.consumers("t") == (1,)
    assert made.steps[1].label == "step 1 ('b')"


@pytest.mark.rule("5.2c")
def test_5_2_steps_that_the_requested_outputs_do_not_need_are_not_needed() -> None:
    made = plan(
        ensemble(
            step("a", {"IN": "X"}, {"OUT": "t"}),
            step("b", {"IN": "t"}, {"OUT": "Y"}),
            step("c", {"IN": "X"}, {"OUT": "Z"}),
            outputs="Y Z",
        ),
        *map(model, "abc"),
    )
    assert made.needed_steps(("Y",)) == {0, 1}
    assert made.needed_steps(("Z",)) == {2}
    assert made.needed_steps(made.output_names()) == {0, 1, 2}


def test_a_model_is_described_by_its_configuration() -> None:
    message = parsed(
        """name: "m" max_batch_size: 4 model_transaction_policy { decoupled: true }
        input { name: "A" data_type: TYPE_STRING dims: [1] reshape { } optional: true }
        output { name: "B" data_type: TYPE_INT32 dims: [-1, 2] }"""
    )
    assert describe_model(message) == ModelDescription(
        "m", 4, (TensorSpec("A", "TYPE_STRING", (1,), True, ()),), (TensorSpec("B", "TYPE_INT32", (-1, 2)),), True
    )
    assert not describe_model(message, decoupled=False).decoupled


# ---- texts


@pytest.mark.rule("5.1d")
def test_5_1_the_ensembles_batch_may_not_be_larger_than_a_batching_steps() -> None:
    assert refusal(ensemble(*CHAIN), model("a", batch=4), model("b")) == (
        "ensemble ens allows maximum batch size 8, but it contains model a which only allows maximum batch size to be 4"
    )
    assert plan(ensemble(*CHAIN, batch=4), model("a", batch=4), model("b"))
    assert plan(ensemble(*CHAIN), model("a", batch=0), model("b")), "a step without batching is another matter"


def test_10_24_an_ensemble_needs_its_platform() -> None:
    message = ensemble(*CHAIN)
    message.platform = "onnxruntime_onnx"
    assert refusal(message, model("a"), model("b")) == (
        "ensemble scheduling cannot be set for model 'ens' whose platform is not ensemble"
    )


def test_10_26_steps_must_be_there_and_complete() -> None:
    assert refusal(ensemble()) == "must specify 'step' for ensemble 'ens'"
    assert refusal(ensemble("step { model_version: -1 }")) == "must specify 'model_name' in step 0 of ensemble 'ens'"


def test_10_27_a_tensor_is_made_once() -> None:
    text = refusal(ensemble(*CHAIN, step("b", {"IN": "X"}, {"OUT": "t"})), model("a"), model("b"))
    assert text == "ensemble tensor 't' can appear in an output map only once for ensemble 'ens' step 2"


def test_10_29_every_output_must_be_made_from_inputs() -> None:
    text = refusal(ensemble(step("a", {"IN": "lost"}, {"OUT": "Y"}), step("b", {"IN": "X"}, {"OUT": "u"})), model("a"))
    assert text == (
        "output 'Y' for ensemble 'ens' is not written: at least one of its depending tensors, 'lost', is not connected"
    )


def test_10_31_data_types_must_agree() -> None:
    b = model("b", (tensor("IN", datatype="TYPE_INT64"),))
    assert refusal(ensemble(*CHAIN), model("a"), b) == (
        "in ensemble ens, ensemble tensor t: inconsistent data type: TYPE_FP32 is inferred from model a while "
        "TYPE_INT64 is inferred from model b"
    )


def test_10_31_shapes_must_agree() -> None:
    b = model("b", (tensor("IN", (3, 4)),))
    assert refusal(ensemble(*CHAIN), model("a"), b) == (
        "in ensemble ens, ensemble tensor t: inconsistent shape: [-1,4] is inferred from model a while [-1,3,4] is "
        "inferred from model b"
    )


def test_10_31_a_variable_dimension_agrees_with_any() -> None:
    assert plan(ensemble(*CHAIN, dims="-1"), model("a"), model("b", (tensor("IN", (-1,)),)))


def test_10_31_a_batching_and_a_plain_model_agree_in_full_shapes_or_in_dims() -> None:
    in_full = model("b", (tensor("IN", (-1, 4)),), (tensor("OUT", (-1, 4)),), batch=0)
    assert plan(ensemble(*CHAIN), model("a"), in_full)
    assert plan(ensemble(*CHAIN), model("a"), model("b", batch=0))
    other = model("b", (tensor("IN", (-1, 5)),), batch=0)
    assert "[-1,4] is inferred from model a while [-1,5] is inferred from model b" in refusal(
        ensemble(*CHAIN), model("a"), other
    )


def test_10_31_the_ensembles_own_reshape_counts() -> None:
    message = ensemble(*CHAIN)
    message.input[0].reshape.shape.extend([2, 2])
    assert refusal(message, model("a"), model("b")) == (
        "in ensemble ens, ensemble tensor X: inconsistent shape: [-1,2,2] is inferred from model ens while [-1,4] is "
        "inferred from model a"
    )


def test_10_32_mappings_name_inputs_and_outputs_that_exist() -> None:
    assert refusal(ensemble(step("a", {"NO": "X"}, {"OUT": "Y"})), model("a")) == (
        "in ensemble ens, ensemble tensor X is mapping to non-existing input NO in model a"
    )
    assert refusal(ensemble(step("a", {"IN": "X"}, {"NO": "Y"})), model("a")) == (
        "in ensemble ens, ensemble tensor Y is mapped from non-existing output NO in model a"
    )


def test_10_32_every_input_is_mapped_unless_it_is_optional() -> None:
    one = ensemble(step("a", {"IN": "X"}, {"OUT": "Y"}))
    assert refusal(one, model("a", "IN ALSO")) == (
        "in ensemble ens, input ALSO in model a is not mapped to any ensemble tensors"
    )
    assert plan(one, model("a", (tensor("IN"), tensor("ALSO", optional=True))))


@pytest.mark.rule("5.10c")
def test_5_10_models_that_are_missing_are_named() -> None:
    message = ensemble(*CHAIN)
    text = "ensemble ens contains models that are not available or ambiguous: a, b"
    assert refusal(message) == text
    assert dependency_problem("ens", required_versions(message), {}) == text


# ---- 5.5

REPEAT = model("repeat", decoupled=True, batch=0)
PLAIN = model("plain", "IN1 IN2", batch=0)


@pytest.mark.rule("5.5a")
def test_5_5_an_ensemble_is_decoupled_if_a_step_is() -> None:
    made = plan(ensemble(step("repeat", {"IN": "X"}, {"OUT": "Y"}), batch=0), REPEAT)
    assert made.decoupled
    assert made.steps[0].decoupled


@pytest.mark.rule("5.5c")
def test_5_5_inputs_of_one_step_stem_from_one_decoupled_step() -> None:
    message = ensemble(
        step("repeat", {"IN": "X"}, {"OUT": "t"}),
        step("repeat", {"IN": "X"}, {"OUT": "u"}),
        step("plain", {"IN1": "t", "IN2": "u"}, {"OUT": "v"}),
        step("one", {"IN": "v"}, {"OUT": "Y"}),
        batch=0,
    )
    assert refusal(message, REPEAT, PLAIN, model("one", batch=0)) == (
        "in ensemble ens, step of model 'plain' receives inputs originated from different decoupled models"
    )


@pytest.mark.rule("5.5c")
def test_5_5_nor_may_a_decoupled_input_be_joined_with_one_that_is_not() -> None:
    message = ensemble(
        step("repeat", {"IN": "X"}, {"OUT": "t"}), step("plain", {"IN1": "t", "IN2": "X"}, {"OUT": "v"}),
        step("one", {"IN": "v"}, {"OUT": "Y"}), batch=0,
    )  # fmt: skip
    assert "receives inputs originated from different decoupled models" in refusal(
        message, REPEAT, PLAIN, model("one", batch=0)
    )


def test_5_5_outputs_from_different_decoupled_steps_are_refused_in_the_ensembles_name() -> None:
    """As tritonserver 2.51 says it."""
    message = ensemble(
        step("repeat", {"IN": "X"}, {"OUT": "t"}), step("repeat", {"IN": "X"}, {"OUT": "u"}),
        step("one", {"IN": "t"}, {"OUT": "Y"}), step("one", {"IN": "u"}, {"OUT": "Z"}), outputs="Y Z", batch=0,
    )  # fmt: skip
    assert refusal(message, REPEAT, model("one", batch=0)) == (
        "in ensemble ens, step of model 'ens' receives inputs originated from different decoupled models"
    )


def test_5_5_branches_of_one_decoupled_step_may_be_joined() -> None:
    made = plan(
        ensemble(
            step("repeat", {"IN": "X"}, {"OUT": "t"}),
            step("one", {"IN": "t"}, {"OUT": "u"}),
            step("plain", {"IN1": "t", "IN2": "u"}, {"OUT": "Y"}),
            batch=0,
        ),
        REPEAT,
        PLAIN,
        model("one", batch=0),
    )
    assert made.decoupled


# ---- 5.10


def loaded(*versions: int) -> Upstream:
    return Upstream(versions=frozenset(versions))


@pytest.mark.rule("5.10a", "5.10b")
@pytest.mark.parametrize(
    ("upstream", "text"),
    [
        (loaded(1, 3), None),
        (
            Upstream(load_error="boom"),
            "ensemble 'ens' depends on 'm' which has no loaded version. Model 'm' loading failed with error: boom",
        ),
        (Upstream(), "ensemble 'ens' depends on 'm' which has no loaded version."),
        (
            Upstream(invalid="bad"),
            "ensemble 'ens' depends on 'm' which is not valid. Model 'm' failed with error: bad",
        ),
        (loaded(1), "ensemble 'ens' depends on 'm' whose required version 3 is not loaded."),
    ],
)
def test_5_10_what_a_composing_model_lacks(upstream: Upstream, text: str | None) -> None:
    assert dependency_problem("ens", {"m": {-1, 3}}, {"m": upstream}) == text


def test_5_10_a_step_without_version_asks_for_version_0() -> None:
    """As tritonserver 2.51 does; -1 is the latest."""
    message = ensemble(*CHAIN)
    for each in message.ensemble_scheduling.step:
        each.ClearField("model_version")
    assert dependency_problem("ens", required_versions(message), {"a": loaded(1), "b": loaded(1)}) == (
        "ensemble 'ens' depends on 'a' whose required version 0 is not loaded."
    )


@pytest.mark.rule("5.10d")
def test_5_10_circles_are_named_for_each_ensemble_in_them() -> None:
    assert circular_dependencies({"a": ["b"], "b": ["a"]}) == {
        "a": "circular dependency between ensembles: a -> ... -> b -> a",
        "b": "circular dependency between ensembles: b -> ... -> a -> b",
    }
    assert circular_dependencies({"a": ["a", "m"]}) == {
        "a": "circular dependency between ensembles: a -> ... -> a -> a"
    }
    assert circular_dependencies({"a": ["b", "m"], "b": ["m"], "c": ["a", "b"]}) == {}


def test_5_10_every_ensemble_of_a_longer_circle_has_a_problem_and_looking_ends() -> None:
    problems = circular_dependencies({"z": ["a"], "a": ["b"], "b": ["c"], "c": ["a"]})
    assert set(problems) == {"a", "b", "c"}


# ---- shapes


@pytest.mark.rule("5.3a", "5.3b")
@pytest.mark.parametrize(
    ("dims", "batching", "batch", "shape", "result"),
    [
        ((4,), True, 2, (2, 4), (2, 4)),
        ((4,), True, 0, (4,), (1, 4)),
        ((-1,), True, 0, (7,), (1, 7)),
        ((4,), True, 0, (3, 4), (3, 4)),
        ((4,), False, 1, (1, 4), (4,)),
        ((-1, 4), False, 1, (1, 4), (1, 4)),
        ((-1, 4), False, 3, (3, 4), (3, 4)),
        ((4,), False, 3, (3, 4), (3, 4)),
        ((4,), False, 0, (4,), (4,)),
    ],
)
def test_5_3_batches_are_bridged(
    dims: tuple[int, ...], batching: bool, batch: int, shape: tuple[int, ...], result: tuple[int, ...]
) -> None:
    assert bridge_shape(dims, batching, batch, shape) == result


def test_f18_an_ensembles_input_is_reshaped_also_to_nothing() -> None:
    assert reshape_input(TensorSpec("X", "TYPE_FP32", (1,), reshape=()), True, (3, 1)) == (3,)
    assert reshape_input(TensorSpec("X", "TYPE_FP32", (-1, 2), reshape=(1, -1, 2)), True, (3, 5, 2)) == (3, 1, 5, 2)
    assert reshape_input(TensorSpec("X", "TYPE_FP32", (2,)), False, (2,)) == (2,)


# ---- Triton's own bad ensembles

CASES = "autofill_noplatform/ensemble"


def repository_problem(folder: Path) -> str | None:
    """What is wrong with the ensembles of a repository of configurations, as a server would find it."""
    configs = {
        path.parent.name: text_format.Parse(path.read_text(), pb.ModelConfig()) for path in folder.rglob("config.pbtxt")
    }
    for name, config in configs.items():
        config.name = config.name or name
    ensembles = {name: config for name, config in configs.items() if config.platform == "ensemble"}
    circles = circular_dependencies({name: list(required_versions(each)) for name, each in ensembles.items()})
    if folder.name in circles:
        return circles[folder.name]
    upstreams = {name: loaded(1) for name in configs}
    for name, config in ensembles.items():
        if len(configs) > 1:
            problem = dependency_problem(name, required_versions(config), upstreams)
            if problem:
                return problem
        try:
            plan_ensemble(config, {each: describe_model(other) for each, other in configs.items()})
        except ConfigError as error:
            return error.message
    return None


def expected_texts(shared: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (shared / "cases" / "expected_errors.md").read_text().splitlines():
        match = re.match(r"- `([^`]*)` — (.*)", line)
        if match and match[1].startswith(CASES):
            found.setdefault(match[1], []).append(match[2])
    return found


# what is decided before a plan is made: the configuration's own checks, under test in tests/config
ELSEWHERE = {"ensemble_scheduling_no_set", "has_backend"}


def test_every_bad_ensemble_of_triton_gets_tritons_text(shared: Path) -> None:
    expected = expected_texts(shared)
    wrong = {}
    checked = 0
    for case, texts in expected.items():
        folder = shared / "cases" / "expected_errors" / case
        if folder.name in ELSEWHERE or not folder.exists():
            continue
        checked += 1
        said = repository_problem(folder) or ""
        if not any(re.search(text, said) for text in texts):
            wrong[case] = (said, texts)
    assert not wrong
    assert checked >= 14
