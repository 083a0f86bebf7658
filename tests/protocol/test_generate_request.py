"""Requests of the generate extension: what is written is what is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workbench.errors import InvalidRequest
from workbench.protocol.generate import decode_generate, encode_generate_request
from workbench.protocol.http_request import DecodeOptions
from workbench.protocol.tensors import InferenceRequest, Tensor

INPUTS = [
    {"name": "T", "datatype": "BYTES", "shape": [-1, 1]},
    {"name": "X", "datatype": "FP32", "shape": [-1, 2, 3]},
    {"name": "N", "datatype": "INT64", "shape": [1]},
    {"name": "V", "datatype": "INT32", "shape": [-1, -1]},
]


def tensor(name: str, datatype: str, array: Any) -> Tensor:
    made = Tensor.from_numpy(name, array)
    made.datatype = datatype
    return made


def test_what_is_written_is_read_as_the_same_request() -> None:
    request = InferenceRequest(
        "m",
        [
            tensor("T", "BYTES", np.array([["grün".encode()], [b"\xff\x00"]], np.object_)),
            tensor("X", "FP32", np.arange(12, dtype=np.float32).reshape(2, 2, 3)),
            tensor("N", "INT64", np.array([2**62], np.int64)),
            tensor("V", "INT32", np.array([[7, 8, 9]], np.int32)),
        ],
        id="17",
        parameters={"threshold": 0.5, "deep": True, "name": "x"},
    )
    body = encode_generate_request(request, INPUTS)
    read = decode_generate(body, INPUTS, DecodeOptions("m", -1, "", 10_000))
    assert read.id == "17"
    assert read.parameters == request.parameters
    assert [(each.name, each.datatype, each.shape) for each in read.inputs] == [
        (each.name, each.datatype, each.shape) for each in request.inputs
    ]
    for there, here in zip(read.inputs, request.inputs, strict=True):
        assert there.data.tolist() == here.data.tolist()


@pytest.mark.parametrize(("name", "datatype", "shape"), [("V", "INT32", (3, 1)), ("X", "FP32", (6,))])
def test_a_shape_that_would_be_read_as_another_is_refused(name: str, datatype: str, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, np.int32 if datatype == "INT32" else np.float32)
    with pytest.raises(InvalidRequest, match=f"cannot carry input '{name}' of shape"):
        encode_generate_request(InferenceRequest("m", [tensor(name, datatype, array)]), INPUTS)
