"""Requests: what is accepted, what is refused and in which words, what comes back (sections 7.15 and 10)."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asker, wait_until
from gate_backend import CONFIG as GATE_CONFIG
from gate_backend import Gate
from onnx import TensorProto, helper
from onnx_models import CONFIG, add_model, graph, identity, request

from workbench.engine import InferenceEngine
from workbench.errors import Code, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, RequestedOutput, Tensor


@pytest.fixture
def engine(repository: Path, make_engine: Any) -> InferenceEngine:
    return make_engine(repository)


def refused(engine: InferenceEngine, request: InferenceRequest) -> WorkbenchError:
    with pytest.raises(WorkbenchError) as caught:
        engine.infer(request, 10)
    return caught.value


def tensor(name: str, array: Any) -> Tensor:
    return Tensor.from_numpy(name, np.asarray(array))


F = np.float32
NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def test_answers(engine: InferenceEngine) -> None:
    response = engine.infer(request(rows=3, value=1.5, id="r1"))
    assert (response.model_name, response.model_version, response.id, response.final) == ("double", 1, "r1", True)
    assert response.outputs[0].name == "y"
    assert response.outputs[0].datatype == "FP32"
    np.testing.assert_array_equal(response.as_numpy("y"), np.full((3, 4), 3, F))


@pytest.mark.rule("2.6e", "11.3c")
@pytest.mark.parametrize(
    ("inputs", "fields", "text"),
    [
        ([("x", np.zeros((1, 4), F))], {"outputs": ["z"]}, "unexpected inference output 'z' for model 'double'"),
        (
            [],
            {},
            "[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'double'. Got input(s) [], but "
            "missing required input(s) ['x']. Please provide all required input(s).",
        ),
        (
            [("x", np.zeros((1, 4), F)), ("z", np.zeros((1, 4), F))],
            {"id": "7"},
            "[request id: 7] expected 1 inputs but got 2 inputs for model 'double'. Got input(s) ['x','z'], but "
            "missing required input(s) ]. Please provide all required input(s).",
        ),
        ([("z", np.zeros((1, 4), F))], {}, "unexpected inference input 'z' for model 'double'"),
        (
            [("x", np.zeros((), F))],
            {"id": "a"},
            "[request id: a] input 'x' has no shape but model requires batch dimension for 'double'",
        ),
        (
            [("x", np.zeros((9, 4), F))],
            {"id": "a"},
            "[request id: a] inference request batch-size must be <= 8 for 'double'",
        ),
        (
            [("x", np.zeros((1, 4), np.int64))],
            {},
            "[request id: <id_unknown>] inference input 'x' data-type is 'INT64', but model 'double' expects 'FP32'",
        ),
        (
            [("x", np.zeros((1, 5), F))],
            {},
            "[request id: <id_unknown>] unexpected shape for input 'x' for model 'double'. Expected [-1,4], got [1,5]. "
            + NOTE,
        ),
        (
            [("x", np.zeros((1, 4), F)), ("x", np.zeros((1, 4), F))],
            {},
            "input 'x' already exists in request",
        ),
    ],
)
def test_refuses_in_tritons_words(engine: InferenceEngine, inputs: Any, fields: dict[str, Any], text: str) -> None:
    names = fields.pop("outputs", ())
    asked = InferenceRequest(
        "double", [tensor(*each) for each in inputs], outputs=[RequestedOutput(name) for name in names], **fields
    )
    error = refused(engine, asked)
    assert error.message == text
    assert error.code is Code.INVALID_ARG
    # nothing refused before the scheduler is counted, and the model goes on
    assert engine.statistics("double")["model_stats"][0]["inference_stats"]["fail"]["count"] == 0
    assert engine.infer(request()).error is None


def test_the_order_of_checks(engine: InferenceEngine) -> None:
    """One request that is wrong in every way: what Triton looks at first is what it says."""
    wrong = InferenceRequest("double", [tensor("x", np.zeros((9, 5), np.int64))], outputs=[RequestedOutput("nope")])
    assert "unexpected inference output" in refused(engine, wrong).message
    wrong.outputs = ()
    assert "batch-size must be" in refused(engine, wrong).message
    wrong.inputs = [tensor("x", np.zeros((1, 5), np.int64))]
    assert "data-type is" in refused(engine, wrong).message


def test_byte_size_mismatch_and_raw_bytes(engine: InferenceEngine) -> None:
    raw = np.zeros(12, np.uint8)
    error = refused(engine, InferenceRequest("double", [Tensor("x", "FP32", (1, 4), raw)]))
    assert error.message == (
        "[request id: <id_unknown>] input byte size mismatch for input 'x' for model 'double'. Expected 16, got 12"
    )
    error = refused(engine, InferenceRequest("double", [tensor("x", np.zeros((0, 4), F))]))
    assert error.message.endswith("byte size mismatch for input 'x' for model 'double'. Expected 16, got 0")
    right = np.ones((1, 4), F).view(np.uint8).reshape(-1)
    response = engine.infer(InferenceRequest("double", [Tensor("x", "FP32", (1, 4), right)]))
    np.testing.assert_array_equal(response.as_numpy("y"), np.full((1, 4), 2, F))


@pytest.mark.parametrize(
    ("model", "version", "code", "text"),
    [
        ("nope", -1, Code.NOT_FOUND, "Request for unknown model: 'nope' is not found"),
        ("double", 7, Code.NOT_FOUND, "Request for unknown model: 'double' version 7 is not found"),
    ],
)
def test_unknown_models(engine: InferenceEngine, model: str, version: int, code: Code, text: str) -> None:
    error = refused(engine, request(model, model_version=version))
    assert (error.code, error.message) == (code, text)


def test_requested_outputs_only(tmp_path: Path, make_engine: Any) -> None:
    two = graph(
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])],
        [("x", "FP32", ("b", 4))],
        [("y", "FP32", ("b", 4)), ("z", "FP32", ("b", 4))],
    )
    add_model(tmp_path, "two", config=None, model=two)
    engine = make_engine(tmp_path)
    both = engine.infer(request("two"))
    assert [each.name for each in both.outputs] == ["y", "z"]
    one = engine.infer(request("two", outputs=[RequestedOutput("z")]))
    assert [each.name for each in one.outputs] == ["z"]
    # one batch of requests that want different outputs
    asked = Asker(engine).send(
        [request("two", outputs=[RequestedOutput("y")]), request("two"), request("two", outputs=[RequestedOutput("z")])]
    )
    names = [[each.name for each in one.wait().outputs] for one in asked]
    assert names == [["y"], ["y", "z"], ["z"]]


@pytest.mark.rule("1.3a", "1.3b")
def test_batches_keep_every_row_apart(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    asked = Asker(engine).send([request(rows=1 + index % 3, value=float(index)) for index in range(40)])
    for index, each in enumerate(asked):
        np.testing.assert_array_equal(each.wait().as_numpy("y"), np.full((1 + index % 3, 4), 2 * index, F))
    stats = engine.statistics("double")["model_stats"][0]
    assert stats["execution_count"] < 40
    assert max(row["batch_size"] for row in stats["batch_stats"]) <= 8


@pytest.mark.rule("1.11a")
def test_shapes_do_not_mix_in_a_batch(tmp_path: Path, make_engine: Any) -> None:
    config = CONFIG.replace("dims: [ 4 ]", "dims: [ -1 ]")
    add_model(tmp_path, "double", config=config, model=identity(dims=("b", "n")))
    engine = make_engine(tmp_path)
    requests = [InferenceRequest("double", [tensor("x", np.full((1, 2 + index % 2), index, F))]) for index in range(12)]
    for index, each in enumerate(Asker(engine).send(requests)):
        np.testing.assert_array_equal(each.wait().as_numpy("y"), np.full((1, 2 + index % 2), index, F))
    assert "shapes" in set(engine.records.read().batches["reason"])


def test_reshape_in_and_out(tmp_path: Path, make_engine: Any) -> None:
    config = """
    backend: "onnxruntime" max_batch_size: 4
    input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }
    output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }
    """
    add_model(tmp_path, "flat", config=config, model=identity(dims=("b",)))
    engine = make_engine(tmp_path)
    asked = Asker(engine).send([InferenceRequest("flat", [tensor("x", np.full((2, 1), i, F))]) for i in range(6)])
    for index, each in enumerate(asked):
        out = each.wait().outputs[0]
        assert out.shape == (2, 1)
        np.testing.assert_array_equal(out.data, np.full((2, 1), index, F))


@pytest.mark.rule("1.1c")
def test_a_model_without_batching(tmp_path: Path, make_engine: Any) -> None:
    config = CONFIG.replace("max_batch_size: 8", "max_batch_size: 0").replace("dynamic_batching", "# dynamic_batching")
    config = config.replace("dims: [ 4 ]", "dims: [ 2, 4 ]")
    add_model(tmp_path, "double", config=config, model=identity(dims=(2, 4)))
    engine = make_engine(tmp_path)
    assert engine.infer(request(rows=2)).as_numpy("y").shape == (2, 4)
    error = refused(engine, request(rows=3))
    assert error.message.endswith("for input 'x' for model 'double'. Expected [2,4], got [3,4]. ")
    asked = Asker(engine).send([request(rows=2) for _ in range(5)])
    assert all(each.wait().error is None for each in asked)
    batches = engine.records.read().batches
    assert set(batches["reason"]) == {"direct"}
    assert set(batches["requests"]) == {1}


def test_optional_inputs(tmp_path: Path, make_engine: Any) -> None:
    """ONNX Runtime takes them for initializers that may be given as inputs, in models without batching."""
    k = helper.make_tensor("k", TensorProto.FLOAT, [4], [3.0] * 4)
    made = graph(
        [helper.make_node("Mul", ["x", "k"], ["y"])],
        [("x", "FP32", (4,)), ("k", "FP32", (4,))],
        [("y", "FP32", (4,))],
        [k],
    )
    config = """
    backend: "onnxruntime"
    input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
    input { name: "k" data_type: TYPE_FP32 dims: [ 4 ] optional: true }
    output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
    """
    add_model(tmp_path, "opt", config=config, model=made)
    engine = make_engine(tmp_path)
    x = tensor("x", np.ones(4, F))
    np.testing.assert_array_equal(engine.infer(InferenceRequest("opt", [x])).as_numpy("y"), np.full(4, 3, F))
    given = engine.infer(InferenceRequest("opt", [x, tensor("k", np.full(4, 5, F))]))
    np.testing.assert_array_equal(given.as_numpy("y"), np.full(4, 5, F))
    error = refused(engine, InferenceRequest("opt", []))
    assert "expected number of inputs between 1 and 2 but got 0 inputs for model 'opt'" in error.message


@pytest.mark.rule("11.3d")
def test_a_failing_batch_does_not_poison_the_next(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    add_model(tmp_path, "gate", config=GATE_CONFIG)
    engine = make_engine(tmp_path)
    gate.open.set()
    asked = Asker(engine).send([request("gate", parameters={"do": "raise"}), request("gate")])
    assert asked[0].wait().error is not None
    assert "the model raised" in asked[0].wait().error.message  # type: ignore[union-attr]
    assert asked[0].wait().error.code is Code.INTERNAL  # type: ignore[union-attr]
    asked[1].wait()
    assert engine.infer(request("gate")).error is None
    one = Asker(engine).send([request("gate", parameters={"do": "error"}), request("gate", id="b")])
    assert one[0].wait().error.message == "this one is refused"  # type: ignore[union-attr]
    assert one[1].wait().error is None
    silent = refused(engine, request("gate", parameters={"do": "nothing"}))
    assert "without an answer" in silent.message
    assert engine.snapshot().version("gate").failures["BACKEND"] >= 3


def test_streams_end_with_their_final_response(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    add_model(tmp_path, "gate", config=GATE_CONFIG + "model_transaction_policy { decoupled: true }\n")
    engine = make_engine(tmp_path)
    gate.open.set()
    responses = list(engine.infer_stream(request("gate", parameters={"do": "stream:3"}, id="s")))
    assert [each.final for each in responses] == [False, False, False, True]
    assert [len(each.outputs) for each in responses] == [1, 1, 1, 0]
    assert {each.id for each in responses} == {"s"}
    assert engine.snapshot().version("gate").running == 0


@pytest.mark.rule("1.17a", "1.17b", "11.3b")
def test_cancelling(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    config = GATE_CONFIG.replace("max_batch_size: 8", "max_batch_size: 1")
    add_model(tmp_path, "gate", config=config)
    engine = make_engine(tmp_path)
    running, waiting = Asker(engine).send([request("gate", parameters={"do": "cancel"}), request("gate")])
    assert gate.started.acquire(timeout=10)
    for each in (waiting, running, waiting):
        assert each.ticket is not None
        engine.loop.call_soon_threadsafe(each.ticket.cancel)
    error = waiting.wait().error
    assert error is not None
    assert (error.code, error.message) == (Code.CANCELLED, "")
    assert not running.ended.is_set()
    gate.open.set()
    assert running.wait().error.code is Code.CANCELLED  # type: ignore[union-attr]
    assert engine.snapshot().version("gate").failures == {"REJECTED": 0, "CANCELED": 2, "BACKEND": 0, "OTHER": 0}
    assert len(waiting.responses) == 1


def test_leaving_a_blocking_call_cancels_it(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    add_model(tmp_path, "gate", config=GATE_CONFIG)
    engine = make_engine(tmp_path)
    with pytest.raises(WorkbenchError, match="no answer from model 'gate' within"):
        engine.infer(request("gate", parameters={"do": "cancel"}), timeout_s=0.05)
    gate.open.set()
    wait_until(lambda: engine.snapshot().version("gate").failures["CANCELED"] == 1)


def test_tensors_are_let_go_at_once(repository: Path, make_engine: Any) -> None:
    """Not at the next garbage collection: requests may hold large tensors."""
    engine = make_engine(repository)
    engine.infer(request())
    gc.collect()
    gc.disable()
    try:
        arrays = [np.ones((1, 4), F) for _ in range(8)]
        seen = [weakref.ref(array) for array in arrays]
        asked = Asker(engine).send([InferenceRequest("double", [tensor("x", array)]) for array in arrays])
        for each in asked:
            each.wait()
        del arrays, asked, each
        wait_until(lambda: all(ref() is None for ref in seen), 5)
    finally:
        gc.enable()
