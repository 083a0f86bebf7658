"""model_warmup (section 8): every instance, before READY, counted; its errors fail the load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gate_backend import CONFIG as GATE_CONFIG
from gate_backend import Gate
from onnx import TensorProto, helper
from onnx_models import CONFIG, add_model, graph, identity, request

from workbench.errors import InternalError, LoadFailed


def warmup(inputs: str, *, batch: int = 1, count: int = 0, name: str = "sample") -> str:
    return f'\nmodel_warmup {{ name: "{name}" batch_size: {batch} count: {count} inputs {{ {inputs} }} }}\n'


X = 'key: "x" value { data_type: TYPE_FP32 dims: [ 4 ] %s }'


def test_every_instance_runs_it_before_ready(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    config = GATE_CONFIG.replace("count: 1", "count: 2") + warmup(X % "zero_data: true", batch=3, count=2)
    add_model(tmp_path, "gate", config=config)
    gate.open.set()
    engine = make_engine(tmp_path)
    assert [len(batch) for batch in gate.batches] == [3] * 4
    stats = engine.statistics("gate")["model_stats"][0]
    assert (stats["inference_count"], stats["execution_count"]) == (12, 4)
    assert set(engine.records.read().requests["client"]) == {"warmup"}
    assert engine.infer(request("gate")).error is None


def test_kinds_of_data(tmp_path: Path, make_engine: Any) -> None:
    config = CONFIG + warmup(X % "zero_data: true", name="z") + warmup(X % "random_data: true", name="r")
    config += warmup(X % 'input_data_file: "x.bin"', name="f") + warmup(X % "zero_data: true", batch=0, name="skipped")
    directory = add_model(tmp_path, "double", config=config)
    (directory / "warmup").mkdir()
    (directory / "warmup" / "x.bin").write_bytes(np.ones(4, np.float32).tobytes())
    engine = make_engine(tmp_path)
    assert engine.statistics("double")["model_stats"][0]["inference_count"] == 3


def test_strings_from_a_file(tmp_path: Path, make_engine: Any) -> None:
    text = 'key: "x" value { data_type: TYPE_STRING dims: [ 2 ] %s }'
    config = CONFIG.replace("TYPE_FP32", "TYPE_STRING").replace("dims: [ 4 ]", "dims: [ 2 ]")
    config += warmup(text % 'input_data_file: "words"') + warmup(text % "random_data: true")
    directory = add_model(tmp_path, "double", config=config, model=identity("BYTES", ("b", 2)))
    (directory / "warmup").mkdir()
    (directory / "warmup" / "words").write_bytes(b"\x02\0\0\0hi\x03\0\0\0you")
    engine = make_engine(tmp_path)
    assert engine.statistics("double")["model_stats"][0]["inference_count"] == 2


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (
            X.replace("[ 4 ]", "[ -1 ]") % "zero_data: true",
            "warmup setting expects all variable-size dimensions are specified for input 'x'",
        ),
        (
            X % "",
            "[request id: <id_unknown>] warmup setting expects input 'x' to have input_data_type set",
        ),
        (
            X % 'input_data_file: "short"',
            "[request id: <id_unknown>] warmup setting expects 16 bytes, but the data provided from shortonly has 3 "
            "bytes",
        ),
        (X % 'input_data_file: "../../secret"', "leads out of the warmup folder"),
        # a sample is a request, and checked as one; the texts as tritonserver 2.51 gives them
        (
            X.replace("TYPE_FP32", "TYPE_INT32") % "zero_data: true",
            "[request id: <id_unknown>] inference input 'x' data-type is 'INT32', but model 'double' expects 'FP32'",
        ),
        (
            X.replace("[ 4 ]", "[ 5 ]") % "zero_data: true",
            "[request id: <id_unknown>] unexpected shape for input 'x' for model 'double'. Expected [-1,4], got [1,5].",
        ),
        (
            X.replace("[ 4 ]", "[ 1, 4 ]") % "zero_data: true",
            "unexpected shape for input 'x' for model 'double'. Expected [-1,4], got [1,1,4]. NOTE: Setting a ",
        ),
        (
            X.replace('"x"', '"z"') % "zero_data: true",
            "[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'double'. Got input(s) [], but "
            "missing required input(s) ['x']. Please provide all required input(s).",
        ),
    ],
)
def test_wrong_settings_fail_the_load(tmp_path: Path, make_engine: Any, inputs: str, text: str) -> None:
    directory = add_model(tmp_path, "double", config=CONFIG + warmup(inputs))
    (directory / "warmup").mkdir()
    (directory / "warmup" / "short").write_bytes(b"abc")
    (tmp_path / "secret").write_bytes(b"0" * 16)
    engine = make_engine(tmp_path)
    row = engine.repository_index()[0]
    assert row["state"] == "UNAVAILABLE"
    assert text in row["reason"]


def test_a_sample_that_fails_fails_the_load(tmp_path: Path, make_engine: Any) -> None:
    four = helper.make_tensor("k", TensorProto.FLOAT, [4], [1.0] * 4)
    model = graph(
        [helper.make_node("Add", ["x", "k"], ["y"])], [("x", "FP32", ["b", "n"])], [("y", "FP32", ["b", "n"])], [four]
    )
    config = CONFIG.replace("dims: [ 4 ]", "dims: [ -1 ]", 1) + warmup(X.replace("[ 4 ]", "[ 5 ]") % "zero_data: true")
    add_model(tmp_path, "double", config=config, model=model)
    engine = make_engine(tmp_path)
    with pytest.raises((LoadFailed, InternalError), match="failed to run warmup sample 'sample': onnx runtime error"):
        engine.load("double")
