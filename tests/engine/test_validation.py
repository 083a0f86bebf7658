"""What is checked of a request is the same in whichever order a client sends its inputs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from workbench.config import ConfigDocument
from workbench.engine.validation import Checked, RequestValidator
from workbench.errors import InvalidRequest
from workbench.protocol.tensors import InferenceRequest, Tensor

CONFIG = b"""name: "two" backend: "identity" max_batch_size: 4
input [ { name: "a" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "b" data_type: TYPE_INT8 dims: [ 2, -1 ] } ]
output { name: "c" data_type: TYPE_FP32 dims: [ 1 ] }
"""
SHAPES_A = [(), (0, 3), (1, 3), (2, 3), (2, 5), (4, 1), (5, 1), (2,), (2, 3, 1)]
SHAPES_B = [(1, 2, 3), (2, 2, 3), (2, 3, 3), (2, 2, 0), (4, 2, 1), (5, 2, 1), (0, 2, 3), (2, 3)]


def check(validator: RequestValidator, inputs: list[Tensor]) -> Checked | str:
    try:
        return validator.check(InferenceRequest("two", inputs))
    except InvalidRequest as error:
        return error.message


@pytest.mark.parametrize("max_batch_size", [0, 4])
@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_the_order_of_inputs_changes_nothing(max_batch_size: int, datatype: str) -> None:
    message = ConfigDocument.parse(CONFIG).message
    message.max_batch_size = max_batch_size
    validator = RequestValidator(message)
    accepted = 0
    for shape_a, shape_b in itertools.product(SHAPES_A, SHAPES_B):
        if (0 in shape_a[:1]) != (0 in shape_b[:1]):
            continue  # as in Triton, of a batch of no rows the next input's rows count: there the order matters
        a = Tensor("a", datatype, shape_a, np.zeros(shape_a, np.float32))
        b = Tensor("b", "INT8", shape_b, np.zeros(shape_b, np.int8))
        told, other = check(validator, [a, b]), check(validator, [b, a])
        if isinstance(told, str) or isinstance(other, str):
            assert isinstance(told, str)
            assert isinstance(other, str)
            continue
        accepted += 1
        assert told[:3] == other[:3]
        start = 1 if max_batch_size else 0
        assert told.rows == (max(1, shape_a[0]) if max_batch_size else 1)
        assert told.shape_key == (shape_a[start:], shape_b[start:])
    assert bool(accepted) == (datatype == "FP32")


def test_bytes_of_the_right_length_are_taken_in_either_order() -> None:
    validator = RequestValidator(ConfigDocument.parse(CONFIG).message)
    for order in (1, -1):
        a = Tensor("a", "FP32", (2, 3), np.arange(6, dtype=np.float32).view(np.uint8))
        b = Tensor("b", "INT8", (2, 2, 1), np.zeros((2, 2, 1), np.int8))
        checked = validator.check(InferenceRequest("two", [a, b][::order]))
        (given,) = [tensor for tensor in checked.inputs if tensor.name == "a"]
        assert given.data.shape == (2, 3)
        assert given.data[1, 2] == 5.0
