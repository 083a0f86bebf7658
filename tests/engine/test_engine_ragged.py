"""Ragged inputs with ONNX Runtime: requests of different shapes in one batch, batch inputs, batch outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asked, Asker
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx_models import add_model, graph

from workbench.backends.ragged import batch_inputs, batch_outputs, scatter
from workbench.config import ConfigDocument
from workbench.errors import BackendError
from workbench.protocol.tensors import InferenceRequest, Tensor

RAGGED = """backend: "onnxruntime"
max_batch_size: 8
input {{ name: "x" data_type: TYPE_FP32 dims: {dims} allow_ragged_batch: true }}
output {{ name: "y" data_type: TYPE_FP32 dims: {out} }}
instance_group {{ count: 1 kind: KIND_CPU }}
dynamic_batching {{ preferred_batch_size: [ {together} ] max_queue_delay_microseconds: 5000000 }}
{more}
"""
ENDS = """batch_input {
  kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "ends" data_type: TYPE_INT32 source_input: "x"
}"""


def sums() -> bytes:
    """y [n, 1]: the sum of each request's elements, told apart by ``ends`` [n + 1]."""
    zero, one = (helper.make_tensor(name, TensorProto.INT64, [1], [value]) for name, value in (("a0", 0), ("a1", 1)))
    many = helper.make_tensor("many", TensorProto.INT64, [1], [2**62])
    back = helper.make_tensor("back", TensorProto.INT64, [1], [-1])
    axis = helper.make_tensor("axis", TensorProto.INT32, [], [0])
    nothing = helper.make_tensor("nothing", TensorProto.FLOAT, [1], [0.0])
    nodes = [
        helper.make_node("CumSum", ["x", "axis"], ["s"]),
        helper.make_node("Concat", ["nothing", "s"], ["z"], axis=0),
        helper.make_node("Gather", ["z", "ends"], ["g"]),
        helper.make_node("Slice", ["g", "a1", "many"], ["right"]),
        helper.make_node("Slice", ["g", "a0", "back"], ["left"]),
        helper.make_node("Sub", ["right", "left"], ["d"]),
        helper.make_node("Unsqueeze", ["d", "a1"], ["y"]),
    ]
    inputs = [("x", "FP32", (None,)), ("ends", "INT32", (None,))]
    return graph(nodes, inputs, [("y", "FP32", (None, 1))], [zero, one, many, back, axis, nothing])


def ask(model: str, *shape: int) -> InferenceRequest:
    count = int(np.prod(shape))
    return InferenceRequest(model, [Tensor.from_numpy("x", np.arange(1, count + 1, dtype=np.float32).reshape(shape))])


def answers(asked: list[Asked]) -> list[NDArray[Any]]:
    for each in asked:
        each.wait()
        assert each.error is None, each.error
    return [each.responses[0].outputs[0].data for each in asked]


def executed(engine: Any, model: str) -> list[tuple[int, str]]:
    batches = engine.records.read().batches
    return [
        (rows, reason)
        for name, rows, reason in zip(batches["model"], batches["requests"], batches["reason"], strict=True)
        if name == model
    ]


@pytest.mark.rule("1.11")
def test_requests_of_different_lengths_run_as_one_batch_and_get_their_own_answers(
    tmp_path: Path, make_engine: Any
) -> None:
    add_model(tmp_path, "sums", config=RAGGED.format(dims=-1, out=1, together=3, more=ENDS), model=sums())
    engine = make_engine(tmp_path)
    got = answers(Asker(engine).send([ask("sums", 1, 3), ask("sums", 1, 1), ask("sums", 1, 7)]))
    assert [array.tolist() for array in got] == [[[6.0]], [[1.0]], [[28.0]]]
    assert executed(engine, "sums") == [(3, "full")]


@pytest.mark.rule("1.4d", "1.11")
def test_without_allow_ragged_batch_they_run_apart(tmp_path: Path, make_engine: Any) -> None:
    config = RAGGED.replace(" allow_ragged_batch: true", "").format(dims=-1, out=-1, together=3, more="")
    flat = graph(
        [helper.make_node("Identity", ["x"], ["y"])], [("x", "FP32", ("b", None))], [("y", "FP32", ("b", None))]
    )
    add_model(tmp_path, "flat", config=config.replace("5000000", "1000"), model=flat)
    engine = make_engine(tmp_path)
    answers(Asker(engine).send([ask("flat", 1, 3), ask("flat", 1, 4), ask("flat", 1, 3)]))
    assert [requests for requests, _ in executed(engine, "flat")] == [1, 1, 1]


def test_a_flat_output_is_dealt_out_in_the_shape_of_the_input(tmp_path: Path, make_engine: Any) -> None:
    """The configuration of the CMS collaboration's ``ragged_io``."""
    more = 'batch_output { target_name: [ "y" ] source_input: [ "x" ] }'
    flat = graph([helper.make_node("Neg", ["x"], ["y"])], [("x", "FP32", (None,))], [("y", "FP32", (None,))])
    add_model(tmp_path, "io", config=RAGGED.format(dims=-1, out=-1, together=4, more=more), model=flat)
    engine = make_engine(tmp_path)
    got = answers(Asker(engine).send([ask("io", 1, 3), ask("io", 2, 2), ask("io", 1, 1)]))
    assert [array.tolist() for array in got] == [[[-1.0, -2.0, -3.0]], [[-1.0, -2.0], [-3.0, -4.0]], [[-1.0]]]
    assert executed(engine, "io") == [(3, "full")]


def test_an_output_that_does_not_fit_the_inputs_fails_the_batch_in_words(tmp_path: Path, make_engine: Any) -> None:
    more = 'batch_output { target_name: "y" source_input: "x" }'
    half = graph(
        [helper.make_node("Compress", ["x", "keep"], ["y"], axis=0)],
        [("x", "FP32", (None,))],
        [("y", "FP32", (None,))],
        [helper.make_tensor("keep", TensorProto.BOOL, [2], [True, False])],
    )
    add_model(tmp_path, "half", config=RAGGED.format(dims=-1, out=-1, together=2, more=more), model=half)
    engine = make_engine(tmp_path)
    asked = Asker(engine).send([ask("half", 1, 2), ask("half", 1, 2)])
    for each in asked:
        each.wait()
        assert isinstance(each.error, BackendError)
        assert each.error.message == "output tensor 'y' has 1 elements, its batch of 2 takes 4"


KINDS = {
    "BATCH_ELEMENT_COUNT": [6, 4],
    "BATCH_ACCUMULATED_ELEMENT_COUNT": [6, 10],
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": [0, 6, 10],
    "BATCH_ITEM_SHAPE": [[3, 1], [3, 1], [2, 2]],
    "BATCH_ITEM_SHAPE_FLATTEN": [3, 1, 3, 1, 2, 2],
}
"""For a request [2, 3, 1] and one [1, 2, 2], the example of model_config.proto."""


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize(("datatype", "dtype"), [("TYPE_INT32", np.int32), ("TYPE_FP32", np.float32)])
def test_what_a_model_is_told_of_its_batch(kind: str, datatype: str, dtype: Any) -> None:
    text = f'batch_input {{ kind: {kind} target_name: "b" data_type: {datatype} source_input: "x" }}'
    made = batch_inputs(ConfigDocument.parse(text.encode()).message, [ask("m", 2, 3, 1), ask("m", 1, 2, 2)])
    assert made["b"].dtype == dtype
    assert made["b"].tolist() == KINDS[kind]


def test_the_greatest_element_count_is_a_shape() -> None:
    text = (
        'batch_input { kind: BATCH_MAX_ELEMENT_COUNT_AS_SHAPE target_name: "b" data_type: TYPE_FP32 source_input: "x" }'
    )
    made = batch_inputs(ConfigDocument.parse(text.encode()).message, [ask("m", 1, 3), ask("m", 1, 5), ask("m", 1, 4)])
    assert made["b"].shape == (5,)


def test_a_reshaped_output_is_dealt_out_by_its_reshape() -> None:
    text = """max_batch_size: 4 output { name: "y" dims: [ -1, 2 ] reshape { shape: [ -1 ] } }
    batch_output { target_name: "y" source_input: "x" }"""
    source, shape = batch_outputs(ConfigDocument.parse(text.encode()).message)["y"]
    assert (source, shape) == ("x", (-1, -1))
    parts = scatter("y", np.arange(7.0), source, shape, [ask("m", 1, 3), ask("m", 2, 2)])
    assert [part.tolist() for part in parts] == [[[0, 1, 2]], [[3, 4], [5, 6]]]
