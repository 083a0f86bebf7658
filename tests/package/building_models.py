"""A small model in a repository of its own, to build from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper
from onnx_models import graph

CONFIG = """\
# Scores of a row.
name: "scorer"
platform: "onnxruntime_onnx"
default_model_filename: "scorer.onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]  # not a probability
dynamic_batching { preferred_batch_size: [ 2, 8 ] }
instance_group [ { count: 2 kind: KIND_CPU } ]
version_policy { specific { versions: [ 3 ] } }
# One core for each instance.
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
parameters { key: "session.intra_op.allow_spinning" value { string_value: "0" } }
optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }
model_warmup [ {
  name: "one" batch_size: 1
  inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 2, 4 ] input_data_file: "x" } }
} ]
"""


def scorer_graph(operator: str = "Relu") -> bytes:
    """x [batch, rows, 4] through a matrix product, a sum and an operator: y [batch, rows, 3]."""
    weights = np.random.default_rng(7).normal(size=(4, 3)).astype(np.float32)
    made = [
        helper.make_tensor("w", TensorProto.FLOAT, [4, 3], weights.tobytes(), raw=True),
        helper.make_tensor("b", TensorProto.FLOAT, [3], np.array([0.5, 0.25, 0.0], np.float32).tobytes(), raw=True),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="product"),
        helper.make_node("Add", ["product", "b"], ["sum"], name="sum"),
        helper.make_node(operator, ["sum"], ["y"], name="last"),
    ]
    return graph(nodes, [("x", "FP32", ("batch", "rows", 4))], [("y", "FP32", ("batch", "rows", 3))], made)


def add_scorer(repository: Path, config: str = CONFIG, operator: str = "Relu") -> Path:
    """Writes the model ``scorer`` with warm-up and examples of two sizes; version 3."""
    directory = repository / "scorer"
    (directory / "3").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(config)
    (directory / "3" / "scorer.onnx").write_bytes(scorer_graph(operator))
    (directory / "warmup").mkdir()
    (directory / "warmup" / "x").write_bytes(np.ones((2, 4), np.float32).tobytes())
    rng = np.random.default_rng(3)
    data = [
        {"x": {"content": rng.normal(size=rows * 4).round(3).tolist(), "shape": [rows, 4]}} for rows in (2, 2, 5, 5, 5)
    ]
    (directory / "example_inputs.json").write_text(json.dumps({"data": data}))
    return directory
