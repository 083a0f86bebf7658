"""Small OpenVINO models that the tests write into model directories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import plain_config
from openvino import opset13 as ops

from workbench.protocol import datatypes

TYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32")
"""The types of the v2 table that Triton's backend takes."""


def parameter(name: str, dims: Sequence[int], kind: str = "FP32", layout: str = "") -> Any:
    """An input; -1 in ``dims`` is variable."""
    node = ops.parameter(ov.PartialShape(list(dims)), datatypes.BY_WIRE[kind].numpy, name=name)
    node.output(0).get_tensor().set_names({name})
    if layout:
        node.set_layout(ov.Layout(layout))
    return node


def result(name: str, node: Any, layout: str = "") -> Any:
    """An output."""
    node.output(0).get_tensor().set_names({name})
    made = ops.result(node, name=f"{name}/sink")
    if layout:
        made.set_layout(ov.Layout(layout))
    return made


def identity(kind: str = "FP32", dims: Sequence[int] = (-1, 4), layout: str = "") -> ov.Model:
    """y = x, of any type."""
    x = parameter("x", dims, kind, layout)
    return ov.Model([result("y", ops.reshape(x, ops.shape_of(x), special_zero=False), layout)], [x], "identity")


def scale(factor: float = 2.0, dims: Sequence[int] = (-1, 4), layout: str = "") -> ov.Model:
    """y = factor * x."""
    x = parameter("x", dims, layout=layout)
    return ov.Model([result("y", ops.multiply(x, ops.constant(np.float32(factor))), layout)], [x], "scale")


def product(size: int = 256, rounds: int = 1, seed: int = 0) -> ov.Model:
    """y = x times a matrix of random numbers, ``rounds`` times."""
    weights = np.random.default_rng(seed).standard_normal((size, size)).astype(np.float32) / np.sqrt(np.float32(size))
    x = parameter("x", (-1, size))
    node: Any = x
    for _ in range(rounds):
        node = ops.matmul(node, ops.constant(weights), False, False)
    return ov.Model([result("y", node)], [x], "product")


def write(directory: Path, model: ov.Model, config: str) -> Path:
    """A model directory: config.pbtxt and the IR."""
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "config.pbtxt").write_text(config)
    ov.save_model(model, directory / "1" / "model.xml", compress_to_fp16=False)
    return directory


def config(kind: str = "FP32", **options: Any) -> str:
    """A configuration of one input x and one output y; the options of ``plain_config.config``."""
    return plain_config.config('backend: "openvino"', kind, **options)
