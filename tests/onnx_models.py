"""Tiny ONNX graphs and configurations that the tests write into repositories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from workbench.protocol.tensors import InferenceRequest, Tensor

TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
    "BF16": TensorProto.BFLOAT16,
}

CONFIG = """\
name: "double"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
dynamic_batching { max_queue_delay_microseconds: 0 }  # the delay is tuned live
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""


def graph(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], initializers: Sequence[Any] = ()
) -> bytes:
    """A serialized ONNX model; inputs and outputs are (name, v2 datatype, dims)."""
    made = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, TYPES[kind], dims) for name, kind, dims in inputs],
        [helper.make_tensor_value_info(name, TYPES[kind], dims) for name, kind, dims in outputs],
        initializer=list(initializers),
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def scale(factor: float = 2.0, dims: Sequence[Any] = ("b", 4)) -> bytes:
    """y = factor * x."""
    constant = helper.make_tensor("k", TensorProto.FLOAT, [], [factor])
    return graph([helper.make_node("Mul", ["x", "k"], ["y"])], [("x", "FP32", dims)], [("y", "FP32", dims)], [constant])


def identity(kind: str = "FP32", dims: Sequence[Any] = ("b", 4)) -> bytes:
    """y = x."""
    return graph([helper.make_node("Identity", ["x"], ["y"])], [("x", kind, dims)], [("y", kind, dims)])


def slow(rounds: int = 60, size: int = 256) -> bytes:
    """y = x after some matrix products: a few milliseconds on one core."""
    eye = helper.make_tensor("w", TensorProto.FLOAT, [size, size], np.eye(size, dtype=np.float32).tobytes(), raw=True)
    nodes = []
    name = "x"
    for index in range(rounds):
        after = "y" if index == rounds - 1 else f"h{index}"
        nodes.append(helper.make_node("MatMul", [name, "w"], [after]))
        name = after
    return graph(nodes, [("x", "FP32", ("b", size))], [("y", "FP32", ("b", size))], [eye])


def add_model(
    root: Path, name: str, *, config: str | None = CONFIG, model: bytes | None = None, versions: Sequence[int] = (1,)
) -> Path:
    """Writes a model directory; ``config`` None leaves config.pbtxt out."""
    directory = root / name
    directory.mkdir(exist_ok=True)
    if config is not None:
        (directory / "config.pbtxt").write_text(config.replace('"double"', f'"{name}"'))
    for version in versions:
        (directory / str(version)).mkdir(exist_ok=True)
        (directory / str(version) / "model.onnx").write_bytes(scale() if model is None else model)
    return directory


def request(model: str = "double", rows: int = 1, value: float = 1.0, **fields: Any) -> InferenceRequest:
    """A request with ``rows`` rows of ``value`` for ``double`` and its like."""
    array = np.full((rows, 4), value, dtype=np.float32)
    return InferenceRequest(model, [Tensor.from_numpy("x", array)], **fields)


def configured(name: str) -> dict[str, Any]:
    """The configuration, as Triton's JSON, of an identity INPUT0 -> OUTPUT0 of 4 floats that nobody has yet."""
    return {
        "name": name,
        "backend": "onnxruntime",
        "max_batch_size": 4,
        "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [4]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [4]}],
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
    }
