"""What can be swept: any field by path, lists, priorities, queue policies, the rate limiter, backend parameters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from onnx_models import CONFIG, add_model

import workbench as wb
from workbench.cli.targets import grid_of
from workbench.errors import ConfigError, InvalidRequest
from workbench.profiling import SweepResult

QUICK: dict[str, Any] = {"duration_s": 0.1, "warmup_s": 0.01, "min_requests": 1, "store": None, "show_progress": False}
POLICY = "dynamic_batching.default_queue_policy"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("grids")
    add_model(root, "double", config=f'{CONFIG}\nparameters {{ key: "KEPT" value {{ string_value: "yes" }} }}\n')
    with wb.Engine(root) as server:
        yield server


def swept(server: wb.Engine, grid: dict[str, Any]) -> SweepResult:
    before = server.config("double")
    result = server.sweep("double", grid, concurrency=1, **QUICK)
    assert isinstance(result, SweepResult)
    assert [point.error for point in result] == [""] * len(result)
    assert server.config("double").text == before.text
    assert not [note for point in result for note in point.reasons if "was set to" in note]
    return result


@pytest.mark.parametrize(
    ("path", "values", "read"),
    [
        ("dynamic_batching.max_queue_delay_microseconds", [0, 7], lambda c: c["dynamic_batching"]),
        ("instance_group[0].count", [1, 2], lambda c: c["instance_group"][0]),
        (f"{POLICY}.max_queue_size", [3, 40], lambda c: c["dynamic_batching"]["default_queue_policy"]),
        (f"{POLICY}.timeout_action", ["REJECT", "DELAY"], lambda c: c["dynamic_batching"]["default_queue_policy"]),
        ("instance_group[0].rate_limiter.priority", [1, 3], lambda c: c["instance_group"][0]["rate_limiter"]),
        ("optimization.input_pinned_memory.enable", [False, True], lambda c: c["optimization"]["input_pinned_memory"]),
        ("version_policy.latest.num_versions", [1, 2], lambda c: c["version_policy"]["latest"]),
    ],
)
def test_fields_by_path_are_applied_and_read_back(engine: Any, path: str, values: list[Any], read: Any) -> None:
    result = swept(engine, {path: values})
    assert [read(point.config)[path.rpartition(".")[2]] for point in result] == values
    assert [point.settings for point in result] == [{path: value} for value in values]


def test_priorities_with_a_queue_policy_of_their_own(engine: Any) -> None:
    base = {"dynamic_batching.priority_levels": [2, 3], "dynamic_batching.default_priority_level": [1]}
    policy = "dynamic_batching.priority_queue_policy[1].max_queue_size"
    result = swept(engine, {**base, policy: [4, 8]})
    sizes = [point.config["dynamic_batching"]["priority_queue_policy"]["1"]["max_queue_size"] for point in result]
    assert sizes == [4, 8, 4, 8]
    assert [point.config["dynamic_batching"]["priority_levels"] for point in result] == [2, 2, 3, 3]


@pytest.mark.parametrize("path", ["parameters[THREADS]", 'parameters["THREADS"]', "parameters[THREADS].string_value"])
def test_parameters_take_plain_values(engine: Any, path: str) -> None:
    values = ["a", "b"] if path.endswith("value") else ["a", 4, True]
    result = swept(engine, {path: values})
    read = [point.config["parameters"]["THREADS"]["string_value"] for point in result]
    assert read == (["a", "b"] if path.endswith("value") else ["a", "4", "true"])
    assert all(point.config["parameters"]["KEPT"] == {"string_value": "yes"} for point in result)


def test_a_parameter_may_be_left_out(engine: Any) -> None:
    result = swept(engine, {"parameters[KEPT]": ["no", None]})
    assert ["KEPT" in point.config.get("parameters", {}) for point in result] == [True, False]


@pytest.mark.parametrize(
    ("values", "read"),
    [([2, 4], [[2, 4]]), ([[2, 4]], [[2, 4]]), ([[2], [4]], [[2], [4]]), ([[2, 4], None], [[2, 4], []])],
)
def test_a_list_is_one_value_of_a_list_field(engine: Any, values: list[Any], read: list[Any]) -> None:
    result = swept(engine, {"dynamic_batching.preferred_batch_size": values})
    # the server completes an empty list by max_batch_size
    found = [point.config["dynamic_batching"].get("preferred_batch_size", []) for point in result]
    assert [sizes if wanted else [] for sizes, wanted in zip(found, read, strict=True)] == read


def test_lists_of_messages(engine: Any) -> None:
    groups = [[{"count": 1, "kind": "KIND_CPU"}], [{"count": 1, "kind": "KIND_CPU"}, {"count": 2, "kind": "KIND_CPU"}]]
    result = swept(engine, {"instance_group": groups})
    assert [[group["count"] for group in point.config["instance_group"]] for point in result] == [[1], [1, 2]]


@pytest.mark.parametrize(
    ("path", "text", "hint"),
    [
        ("max_queue_delay_microseconds", "no field named", "did you mean dynamic_batching.max_queue_delay_microsec"),
        ("dynamic_batching.delay", 'no field named "delay"', "did you mean 'max_queue_delay_microseconds'?"),
        ("dynamic_batching.prefered_batch_size", "no field named", "did you mean 'preferred_batch_size'?"),
        ("instance_groups[0].count", "no field named", "did you mean 'instance_group'?"),
        ("instance_group.count", "'instance_group' is a list: name one element", ""),
        ("instance_group[3].count", "'instance_group' has", ""),
        ("nothing_like_it", "no field named", "fields there: name, platform"),
    ],
)
def test_a_path_that_does_not_exist_is_refused_with_what_exists(engine: Any, path: str, text: str, hint: str) -> None:
    before = engine.config("double")
    with pytest.raises(ConfigError) as caught:
        engine.sweep("double", {path: [1]}, concurrency=1, **QUICK)
    assert text in caught.value.message
    assert hint in caught.value.hint
    assert engine.config("double") == before


def test_a_value_of_which_no_configuration_can_be_written_is_refused_at_once(engine: Any) -> None:
    with pytest.raises(ConfigError):
        engine.sweep("double", {"max_batch_size": ["many"]}, concurrency=1, **QUICK)
    result = engine.sweep("double", {"max_batch_size": ["many", 4]}, concurrency=1, **QUICK)
    assert [bool(point.error) for point in result] == [True, False]


def test_what_the_server_read_otherwise_is_told() -> None:
    from workbench.profiling.paths import read_back_differences

    config = {"max_batch_size": 8, "instance_group": [{"count": 1}], "parameters": {"A": {"string_value": "x"}}}
    told = read_back_differences(
        {"max_batch_size": 16, "instance_group[0].count": 1, "optimization.priority": None}, config
    )
    assert told == ["max_batch_size was set to 16, the server says 8"]
    assert read_back_differences({'parameters["A"]': {"string_value": "x"}}, config) == []
    (missing,) = read_back_differences({"instance_group[1].count": 2}, config)
    assert "does not have it" in missing
    preferred = {"max_batch_size": 8, "dynamic_batching": {"preferred_batch_size": [8]}}
    assert read_back_differences({"dynamic_batching.preferred_batch_size": []}, preferred) == []
    assert read_back_differences({"dynamic_batching.preferred_batch_size": [4]}, preferred)
    chosen = {"instance_group": [{"kind": "KIND_CPU"}]}
    assert read_back_differences({"instance_group[0].kind": "KIND_AUTO"}, chosen) == []
    assert read_back_differences({"instance_group[0].kind": "KIND_GPU"}, chosen)


def test_values_on_the_command_line() -> None:
    text = ["max_batch_size=[2,4]", "optimization.priority=PRIORITY_MAX,PRIORITY_MIN", "a.b=5", "c=[[4,8]]", "d=null"]
    assert grid_of([*text, 'parameters["x=y"]=["1"]', "slow:n=1,2"]) == {
        "max_batch_size": [2, 4], "optimization.priority": ["PRIORITY_MAX", "PRIORITY_MIN"], "a.b": [5],
        "c": [[4, 8]], "d": [None], 'parameters["x=y"]': ["1"], "slow:n": [1, 2],
    }  # fmt: skip
    with pytest.raises(InvalidRequest, match="names a twice"):
        grid_of(["a=1", "a=2"])
    for wrong in ("a=", "=1", "a", "a=[1,", 'a="x'):
        with pytest.raises(InvalidRequest, match="cannot read --set"):
            grid_of([wrong])


def test_a_row_says_what_was_set_and_what_was_read(engine: Any) -> None:
    result = swept(engine, {"parameters[FOO]": ["x"], "max_batch_size": [4]})
    frame = result.to_frame()
    assert json.loads(json.dumps(frame['parameters["FOO"]'].tolist())) == [{"string_value": "x"}]
    assert result[0].config["max_batch_size"] == 4
