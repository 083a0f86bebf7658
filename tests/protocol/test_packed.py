"""Requests packed into one piece of bytes come back as they were."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from workbench.errors import InvalidRequest
from workbench.protocol.datatypes import BY_WIRE
from workbench.protocol.packed import PackedRequest, data_of, decode_packed, encode_packed, head_of, packed_bytes
from workbench.protocol.tensors import InferenceRequest, RequestedOutput, Tensor


def pack(arrival: int, request: InferenceRequest) -> PackedRequest:
    data = data_of(request)
    return arrival, head_of(request), request.id, data, packed_bytes(request.id, data), False


def through(*requests: InferenceRequest) -> list[tuple[int, InferenceRequest]]:
    header, buffers = encode_packed("m", [pack(10 * at, each) for at, each in enumerate(requests)])
    return decode_packed(header, b"".join(buffers))


def same(a: InferenceRequest, b: InferenceRequest) -> bool:
    fields = set(InferenceRequest.__slots__) - {"inputs", "outputs", "form"}
    return (
        all(getattr(a, name) == getattr(b, name) for name in fields)
        and [(each.name, dict(each.parameters)) for each in a.outputs]
        == [(each.name, dict(each.parameters)) for each in b.outputs]
        and [(each.name, each.datatype, tuple(each.shape)) for each in a.inputs]
        == [(each.name, each.datatype, tuple(each.shape)) for each in b.inputs]
        and all(
            x.data.tobytes() == y.data.tobytes()
            for x, y in zip(a.inputs, b.inputs, strict=True)
            if x.datatype != "BYTES"
        )
        and all(
            x.data.tolist() == y.data.tolist() for x, y in zip(a.inputs, b.inputs, strict=True) if x.datatype == "BYTES"
        )
    )


def tensor(datatype: str, shape: tuple[int, ...]) -> Tensor:
    rng = np.random.default_rng(7)
    if datatype == "BYTES":
        data = np.empty(shape, np.object_)
        data.reshape(-1)[:] = [rng.bytes(int(size)) for size in rng.integers(0, 9, data.size)]
        return Tensor("t", datatype, shape, data)
    drawn = rng.integers(0, 2 if datatype == "BOOL" else 100, shape)
    return Tensor("t", datatype, shape, np.asarray(drawn).astype(BY_WIRE[datatype].numpy))


@pytest.mark.parametrize("datatype", sorted(BY_WIRE))
def test_every_data_type_and_shape_comes_back(datatype: str) -> None:
    sent = [
        InferenceRequest("m", [tensor(datatype, shape)], id=f"{at}")
        for at, shape in enumerate([(3,), (), (0, 4), (2, 3, 2), (1, 70_000)])
    ]
    back = through(*sent)
    assert [arrival for arrival, _ in back] == [0, 10, 20, 30, 40]
    assert all(same(a, b) for a, (_, b) in zip(sent, back, strict=True))


def test_what_a_request_says_comes_back_to_the_digit() -> None:
    whole: dict[str, Any] = {"i": 2**63 - 1, "u": 2**64 - 1, "f": 1.0, "t": "größer\udcff", "b": True}
    sent = InferenceRequest(
        "m", [tensor("FP32", (2,)), tensor("BYTES", (2,))], [RequestedOutput("y", {"classification": 3})], 4, "id",
        whole, 2**32, 5, 2**64 - 1, True, False, "10.0.0.1:5", front="grpc",
    )  # fmt: skip
    named = InferenceRequest("m", [], sequence_id="seq", sequence_end=True)
    back = through(sent, named, sent)
    assert all(same(a, b) for a, (_, b) in zip([sent, named, sent], back, strict=True))
    assert {name: type(value) for name, value in back[0][1].parameters.items()} == {
        name: type(value) for name, value in whole.items()
    }
    ((_, odd),) = through(InferenceRequest("m", [], parameters={"nan": math.nan, "inf": -math.inf}))
    assert math.isnan(float(odd.parameters["nan"]))
    assert odd.parameters["inf"] == -math.inf


def test_an_array_that_changes_afterwards_changes_nothing() -> None:
    array = np.arange(4, dtype=">i4")  # not in the order of the wire either
    packed = pack(0, InferenceRequest("m", [Tensor("t", "INT32", (4,), array)]))
    array[:] = 0
    header, buffers = encode_packed("m", [packed])
    assert decode_packed(header, b"".join(buffers))[0][1].inputs[0].data.tolist() == [0, 1, 2, 3]


def test_pieces_that_do_not_fit_are_refused() -> None:
    header, buffers = encode_packed("m", [pack(0, InferenceRequest("m", [tensor("FP32", (2,))]))])
    whole = b"".join(buffers)
    for bad in (whole[:-1], whole + b"x", whole[:10], b""):
        with pytest.raises(InvalidRequest, match="packed requests"):
            decode_packed(header, bad)
    for text in (b"[]", b"{}", header.replace(b'"version":1', b'"version":9'), header.replace(b"[2]", b"[3]")):
        with pytest.raises(InvalidRequest):
            decode_packed(text, whole)
