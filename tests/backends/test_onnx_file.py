"""Inputs and outputs of ONNX files without a framework: the same as ONNX Runtime says."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx_models import TYPES, graph, scale

from workbench.backends.onnx_file import read_onnx
from workbench.backends.onnxruntime_config import tensor_specs
from workbench.errors import InvalidRequest

DIMS = st.lists(st.sampled_from([1, 3, 4096, "b", "length"]), max_size=3)


@settings(max_examples=30, deadline=None)
@given(tensors=st.lists(st.tuples(st.sampled_from(sorted(TYPES)), DIMS), min_size=1, max_size=3))
def test_it_reads_what_the_framework_reads(tensors: list[tuple[str, list[int | str]]]) -> None:
    inputs = [(f"in_{index}", kind, dims) for index, (kind, dims) in enumerate(tensors)]
    outputs = [(f"out_{index}", kind, dims) for index, (kind, dims) in enumerate(tensors)]
    nodes = [helper.make_node("Identity", [f"in_{index}"], [f"out_{index}"]) for index in range(len(tensors))]
    data = graph(nodes, inputs, outputs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(data)
        found = read_onnx(path)
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert found.inputs == tensor_specs(session.get_inputs())
    assert found.outputs == tensor_specs(session.get_outputs())


def test_initializers_among_the_inputs_need_not_be_given(tmp_path: Path) -> None:
    constant = helper.make_tensor("k", TensorProto.FLOAT, [1], [2.0])
    nodes = [helper.make_node("Mul", ["x", "k"], ["y"])]
    tensors = [("x", "FP32", ["b", 4]), ("k", "FP32", [1])]
    path = tmp_path / "model.onnx"
    path.write_bytes(graph(nodes, tensors, [("y", "FP32", ["b", 4])], [constant]))
    found = read_onnx(path)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert found.inputs == tensor_specs(session.get_inputs())
    assert found.overridable == tensor_specs(session.get_overridable_initializers())
    assert found.batching


@pytest.mark.parametrize("data", [b"", b"not a model at all", b"\x00" * 40, scale()[:40], b"\x3a\x7f"])
def test_what_is_no_onnx_file_is_said_in_words(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(InvalidRequest, match=r"model\.onnx is"):
        read_onnx(path)


@given(st.binary(max_size=80))
def test_no_bytes_bring_it_down(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(data)
        try:
            read_onnx(path)
        except InvalidRequest:
            return
