"""Rules of the reference that only a running engine shows, on Triton's example backends and small Python models."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asker, wait_until
from ensembles import add_ensemble, add_gate, step
from gate_backend import Gate
from onnx_models import add_model, request, scale

from workbench.clock import wall_ms
from workbench.config import Edit
from workbench.engine import InferenceEngine
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.server import ServerOptions, serve_engine

F = np.float32
IDENTITY = """backend: "identity"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_FP32 dims: %s }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: %s }
instance_group { kind: KIND_CPU }
"""
WAITING = "dynamic_batching { max_queue_delay_microseconds: 50000 }\n"


def add(root: Path, name: str, config: str, code: str = "") -> Path:
    """Writes a model; one with code is a Python model in the engine's process."""
    directory = root / name
    (directory / "1").mkdir(parents=True)
    if code:
        (directory / "1" / "model.py").write_text(code)
        config = (
            'backend: "python"\nparameters { key: "WORKBENCH_EXECUTION" value { string_value: "thread" } }\n' + config
        )
    (directory / "config.pbtxt").write_text(config)
    return directory


def ask(model: str, *shape: int, value: float = 1, **fields: Any) -> InferenceRequest:
    return InferenceRequest(model, [Tensor.from_numpy("INPUT0", np.full(shape, value, F))], **fields)


def served(engine: InferenceEngine, requests: list[InferenceRequest]) -> list[tuple[int, str]]:
    """Sends all at once; gives the batches that they were in, as (requests, reason)."""
    asked = Asker(engine).send(requests)
    for each in asked:
        assert each.wait().error is None
    batches = engine.records.read().batches
    return list(zip(batches["requests"].tolist(), batches["reason"].tolist(), strict=True))


def stats(engine: InferenceEngine, name: str) -> dict[str, Any]:
    found: dict[str, Any] = engine.statistics(name)["model_stats"][0]
    return found


# ---- batches


@pytest.mark.rule("1.11b")
def test_ragged_inputs_of_any_shape_share_a_batch(tmp_path: Path, make_engine: Any) -> None:
    ragged = (IDENTITY % (-1, -1)).replace("dims: -1 }\noutput", "dims: -1 allow_ragged_batch: true }\noutput")
    add(tmp_path, "ragged", ragged + WAITING)
    assert "allow_ragged_batch" in ragged
    batches = served(make_engine(tmp_path), [ask("ragged", 1, size) for size in (1, 2, 3, 4)])
    assert batches == [(4, "full")]


@pytest.mark.rule("1.11a")
def test_the_same_requests_without_ragged_do_not(tmp_path: Path, make_engine: Any) -> None:
    add(tmp_path, "plain", IDENTITY % (-1, -1) + WAITING)
    batches = served(make_engine(tmp_path), [ask("plain", 1, size) for size in (1, 2, 3, 4)])
    assert batches == [(1, "shapes"), (1, "shapes"), (1, "shapes"), (1, "delay")]


@pytest.mark.rule("1.11c", "1.11e", "1.3a")
@pytest.mark.parametrize("dims", [3, -1])
def test_requests_of_several_rows_share_a_batch(tmp_path: Path, make_engine: Any, dims: int) -> None:
    """Fixed shapes are not compared, variable ones without their batch dimension."""
    add(tmp_path, "rows", IDENTITY % (dims, dims) + WAITING)
    engine = make_engine(tmp_path)
    assert served(engine, [ask("rows", rows, 3) for rows in (1, 3)]) == [(2, "full")]
    assert [row["batch_size"] for row in stats(engine, "rows")["batch_stats"]] == [4]


@pytest.mark.rule("1.3a", "11.1d")
def test_a_request_without_batch_dimension_counts_as_one_row(tmp_path: Path, make_engine: Any) -> None:
    add(tmp_path, "whole", (IDENTITY % (3, 3)).replace("max_batch_size: 4", ""))
    engine = make_engine(tmp_path)
    assert served(engine, [ask("whole", 3)] * 2) == [(1, "direct"), (1, "direct")]
    assert (stats(engine, "whole")["inference_count"], stats(engine, "whole")["execution_count"]) == (2, 2)
    assert [row["batch_size"] for row in stats(engine, "whole")["batch_stats"]] == [1]


@pytest.mark.rule("1.13")
def test_eager_batching_is_accepted_and_changes_nothing(tmp_path: Path, make_engine: Any) -> None:
    add(tmp_path, "eager", IDENTITY % (3, 3) + WAITING + "optimization { eager_batching: true }\n")
    engine = make_engine(tmp_path)
    assert served(engine, [ask("eager", 1, 3)] * 4) == [(4, "full")]
    assert served(engine, [ask("eager", 1, 3)] * 3) == [(4, "full"), (3, "delay")]


# ---- sequences

SEEN = """import json

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        names = ("INPUT0", "READY")
        rows = [[pb.get_input_tensor_by_name(r, name).as_numpy().ravel().tolist() for name in names] for r in requests]
        text = np.array([[json.dumps(rows)]], dtype=np.object_)
        return [pb.InferenceResponse([pb.Tensor("OUTPUT0", text)]) for _ in requests]
"""


@pytest.mark.rule("3.5b", "3.5c", "3.9e")
def test_null_requests_are_zeros_in_the_shape_of_a_real_one(tmp_path: Path, make_engine: Any) -> None:
    control = (
        'control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }'
    )
    config = (IDENTITY % (-1, 1)).replace('backend: "identity"\n', "")
    config = config.replace('"OUTPUT0" data_type: TYPE_FP32', '"OUTPUT0" data_type: TYPE_STRING')
    add(tmp_path, "seen", config + f"sequence_batching {{ direct {{ }} {control} }}\n", SEEN)
    engine = make_engine(tmp_path)
    for name in (1, 2, 3):
        engine.infer(ask("seen", 1, 2, sequence_id=name, sequence_start=True), 10)
    answer = engine.infer(ask("seen", 1, 2, value=7, sequence_id=3), 10)
    nothing = [[0, 0], [False]]
    assert json.loads(answer.as_numpy("OUTPUT0")[0, 0]) == [nothing, nothing, [[7, 7], [True]]]


@pytest.mark.rule("3.12")
def test_a_response_cache_with_sequences_is_refused(tmp_path: Path, make_engine: Any) -> None:
    add(tmp_path, "both", IDENTITY % (1, 1) + "sequence_batching { }\nresponse_cache { enable: true }\n")
    engine = make_engine(tmp_path, load_models=())
    with pytest.raises(WorkbenchError) as caught:
        engine.load("both")
    assert caught.value.hint == (
        "Response Cache does not currently support model both with sequence batching scheduler. Please disable the "
        "response cache."
    )


# ---- ensembles

TOLD = """import json

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for r in requests:
            before = json.loads(pb.get_input_tensor_by_name(r, "x").as_numpy().ravel()[0])
            mine = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), json.loads(r.parameters())]
            text = np.array([[json.dumps([*before, mine])]], dtype=np.object_)
            answers.append(pb.InferenceResponse([pb.Tensor("y", text)]))
        return answers
"""
TEXTS = """max_batch_size: 1
input { name: "x" data_type: TYPE_STRING dims: 1 }
output { name: "y" data_type: TYPE_STRING dims: 1 }
instance_group { kind: KIND_CPU }
"""


@pytest.mark.rule("5.4a", "5.4b", "5.4d", "5.4e")
def test_every_step_gets_what_the_request_says(tmp_path: Path, make_engine: Any) -> None:
    add(tmp_path, "told", TEXTS, TOLD)
    directory = add_ensemble(tmp_path, "chain", [step("told", "X", "t"), step("told", "t", "Y")], size=1)
    text = (directory / "config.pbtxt").read_text()
    (directory / "config.pbtxt").write_text(text.replace("FP32 dims: 4", "STRING dims: 1"))
    engine = make_engine(tmp_path)
    given = InferenceRequest(
        "chain", [Tensor.from_numpy("X", np.array([[b"[]"]], dtype=np.object_))], id="r1", sequence_id=9,
        sequence_start=True, timeout=123456, parameters={"k": "v", "n": 3, "b": True},
    )  # fmt: skip
    answer = engine.infer(given, 10)
    seen = json.loads(answer.as_numpy("Y")[0, 0])
    assert seen == [["r1", 9, 1, 123456, {"k": "v", "n": 3, "b": True}]] * 2


@pytest.mark.rule("5.1b")
def test_a_step_without_a_version_uses_the_latest(tmp_path: Path, make_engine: Any) -> None:
    directory = add_model(tmp_path, "double", versions=(1, 2))
    (directory / "2" / "model.onnx").write_bytes(scale(5.0))
    config = (directory / "config.pbtxt").read_text()
    (directory / "config.pbtxt").write_text(config + "version_policy { all { } }\n")
    add_ensemble(tmp_path, "latest", [step("double", "X", "Y")])
    add_ensemble(tmp_path, "first", [step("double", "X", "Y", version=1)])
    engine = make_engine(tmp_path)
    given = [Tensor.from_numpy("X", np.ones((1, 4), F))]
    found = {name: engine.infer(InferenceRequest(name, given), 10).as_numpy("Y")[0, 0] for name in ("latest", "first")}
    assert found == {"latest": 5, "first": 2}


@pytest.mark.rule("5.8c", "11.6a")
def test_an_ensemble_has_no_queue_of_its_own(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    add_gate(tmp_path)
    add_ensemble(tmp_path, "chain", [step("gate", "X", "Y")])
    engine = make_engine(tmp_path)
    asked = Asker(engine).send([InferenceRequest("chain", [Tensor.from_numpy("X", np.ones((8, 4), F))])] * 3)
    assert gate.started.acquire(timeout=10)
    wait_until(lambda: engine.snapshot().version("gate").pending == 2)
    assert engine.snapshot().version("chain").pending == 0
    gate.open.set()
    for each in asked:
        assert each.wait().error is None
    whole, part = stats(engine, "chain")["inference_stats"], stats(engine, "gate")["inference_stats"]
    assert [whole[key]["count"] for key in ("success", "queue")] == [3, 3]
    assert whole["queue"]["ns"] < part["queue"]["ns"] < whole["success"]["ns"]


@pytest.mark.rule("5.11")
def test_an_ensembles_labels_are_those_of_the_step(tmp_path: Path, make_engine: Any) -> None:
    directory = add_model(tmp_path, "double")
    config = (directory / "config.pbtxt").read_text().replace('"y" ', '"y" label_filename: "names" ')
    (directory / "config.pbtxt").write_text(config)
    (directory / "names").write_text("ant\nbee\ncat\ndog\n")
    add_ensemble(tmp_path, "inner", [step("double", "X", "t"), step("double", "t", "Y")])
    add_ensemble(tmp_path, "outer", [step("inner", "X", "Y", names=("X", "Y"))])
    own = add_ensemble(tmp_path, "own", [step("double", "X", "Y")])
    (own / "names").write_text("a\nb\nc\nd\n")
    text = (own / "config.pbtxt").read_text()
    (own / "config.pbtxt").write_text(text.replace('output { name: "Y"', 'output { name: "Y" label_filename: "names"'))
    server = serve_engine(make_engine(tmp_path), ServerOptions(http_port=0, metrics_port=0))
    try:
        found = {name: classified(server.http_url, name) for name in ("inner", "outer", "own")}
    finally:
        server.close()
    assert found == {"inner": ["bee"], "outer": ["bee"], "own": ["b"]}


def classified(url: str, model: str) -> list[str]:
    """The label of the largest of four numbers, the second one."""
    body = {
        "inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 9, 2, 3]}],
        "outputs": [{"name": "Y", "parameters": {"classification": 1}}],
    }
    with urllib.request.urlopen(f"{url}/v2/models/{model}/infer", json.dumps(body).encode(), timeout=10) as answer:
        data = json.loads(answer.read())["outputs"][0]["data"]
    return [text.split(":")[2] for text in data]


# ---- statistics

KEYS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


@pytest.mark.rule("11.8a", "11.2b")
def test_the_json_of_a_models_statistics(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    none = {"count": 0, "ns": 0}
    assert engine.statistics() == {
        "model_stats": [
            {
                "name": "double", "version": "1", "last_inference": 0, "inference_count": 0, "execution_count": 0,
                "inference_stats": dict.fromkeys(KEYS, none), "response_stats": {}, "batch_stats": [],
                "memory_usage": [],
            }
        ]
    }  # fmt: skip
    before = wall_ms()
    engine.infer(request(rows=3), 10)
    row = stats(engine, "double")
    assert before <= row["last_inference"] <= wall_ms()
    (batch,) = row["batch_stats"]
    assert set(batch) == {"batch_size", "compute_input", "compute_infer", "compute_output"}
    for key in ("compute_input", "compute_infer", "compute_output"):
        assert set(batch[key]) == {"count", "ns"}


@pytest.mark.rule("11.8b", "11.8c")
def test_only_versions_that_are_ready_are_listed(repository: Path, make_engine: Any) -> None:
    add_model(repository, "two", versions=(1, 2))
    config = repository / "two" / "config.pbtxt"
    config.write_text(config.read_text() + "version_policy { all { } }\n")
    engine = make_engine(repository)

    def listed() -> list[tuple[str, str]]:
        return [(row["name"], row["version"]) for row in engine.statistics()["model_stats"]]

    assert listed() == [("double", "1"), ("two", "1"), ("two", "2")]
    engine.unload("two")
    assert listed() == [("double", "1")]
    with pytest.raises(InvalidRequest, match=r"^requested model 'two' is not available$"):
        engine.statistics("two")


@pytest.mark.rule("11.9a", "11.9b")
def test_a_reload_starts_new_statistics_and_a_change_of_instances_does_not(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    engine.infer(request(), 10)
    assert engine.configure("double", [Edit("instance_group[0].count", "set", 2)]).change_class == "instances"
    assert stats(engine, "double")["execution_count"] == 1
    (repository / "double" / "1" / "model.onnx").write_bytes(scale(5.0))
    engine.load("double")
    assert (stats(engine, "double")["execution_count"], stats(engine, "double")["batch_stats"]) == (0, [])


@pytest.mark.rule("11.3d", "11.5a")
def test_one_request_of_a_batch_may_fail(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    gate.open.set()
    add_gate(tmp_path)
    engine = make_engine(tmp_path)
    asked = Asker(engine).send([request("gate", parameters={"do": do}) for do in ("error", "", "")])
    assert [each.wait().error is None for each in asked] == [False, True, True]
    row = stats(engine, "gate")
    counts = {key: pair["count"] for key, pair in row["inference_stats"].items() if pair["count"]}
    parts = ("success", "queue", "compute_input", "compute_infer", "compute_output")
    assert counts == {**dict.fromkeys(parts, 2), "fail": 1}
    assert (row["inference_count"], row["execution_count"]) == (2, 1)
    assert [each["batch_size"] for each in row["batch_stats"]] == [3]
    assert engine.snapshot().version("gate").failures["BACKEND"] == 1
