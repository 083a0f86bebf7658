from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from workbench.errors import InternalError, WorkbenchError
from workbench.protocol import datatypes
from workbench.protocol.http_codec import (
    HEADER_LENGTH,
    DecodedRequest,
    DecodeOptions,
    decode_error,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, RequestedOutput, Tensor

OPTIONS = DecodeOptions(model_name="m")


def body_of(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def one_input(**fields: Any) -> bytes:
    entry = {"name": "I", "datatype": "INT32", "shape": [2], "data": [1, 2]} | fields
    return body_of(inputs=[{key: value for key, value in entry.items() if value is not ...}])


def round_trip(request: InferenceRequest, binary: bool) -> DecodedRequest:
    headers, buffers = encode_request(request, binary=binary)
    length = headers.get(HEADER_LENGTH)
    return decode_request(b"".join(buffers), None if length is None else int(length), OPTIONS)


def same(left: np.ndarray, right: np.ndarray) -> bool:
    if left.dtype == np.object_:
        return left.shape == right.shape and left.ravel().tolist() == right.ravel().tolist()
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


SAMPLES = {
    "BOOL": np.array([[True, False, True]]),
    "UINT8": np.array([[0, 255, 7]], np.uint8),
    "UINT16": np.array([0, 65535], np.uint16),
    "UINT32": np.array([0, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 2**64 - 1], np.uint64),
    "INT8": np.array([-128, 127], np.int8),
    "INT16": np.array([-(2**15), 2**15 - 1], np.int16),
    "INT32": np.array([-(2**31), 2**31 - 1], np.int32),
    "INT64": np.array([[-(2**63)], [2**63 - 1], [9007199254740993]], np.int64),
    "FP16": np.array([1.5, -0.0, np.inf], np.float16),
    "FP32": np.array([0.1, -0.0, 3.4e38, 1e-45], np.float32),
    "FP64": np.array([0.1, -1e308, 5e-324], np.float64),
    "BF16": np.array([1.0, -2.5], ml_dtypes.bfloat16),
    "BYTES": np.array([[b"", b"a\x00"], ["é".encode(), b"\x00\x00"]], np.object_),
}


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("datatype", list(SAMPLES))
def test_every_data_type_survives_both_forms(datatype: str, binary: bool) -> None:
    array = SAMPLES[datatype]
    request = InferenceRequest("m", [Tensor("I", datatype, array.shape, array)], id="r1")
    decoded = round_trip(request, binary)
    assert decoded.id == "r1"
    assert decoded.binary_data_output is binary
    assert [tensor.name for tensor in decoded.inputs] == ["I"]
    assert same(decoded.inputs[0].data, array)
    if not binary and datatype in ("FP16", "BF16"):
        return  # went as raw bytes anyway
    response = InferenceResponse("m", 3, id="r1", outputs=list(decoded.inputs), parameters={"k": 1})
    headers, buffers = encode_response(response, decoded)
    back = decode_response(b"".join(buffers), int(headers[HEADER_LENGTH]) if HEADER_LENGTH in headers else None)
    assert (back.model_name, back.model_version, back.id, dict(back.parameters)) == ("m", 3, "r1", {"k": 1})
    assert same(back.outputs[0].data, array)


def test_the_answer_looks_like_tritons() -> None:
    request = decode_request(one_input(), None, OPTIONS)
    response = InferenceResponse("m", 1, outputs=[Tensor.from_numpy("O", np.array([[0.1, 1.0]], np.float32))])
    headers, buffers = encode_response(response, request)
    assert headers == {"Content-Type": "application/json"}
    assert b"".join(buffers) == (
        b'{"model_name":"m","model_version":"1","outputs":[{"name":"O","datatype":"FP32","shape":[1,2],'
        b'"data":[0.10000000149011612,1.0]}]}'
    )


def test_listed_outputs_ignore_the_default_form() -> None:
    request = InferenceRequest("m", [Tensor.from_numpy("I", np.zeros(1, np.int8))])
    request.outputs = [RequestedOutput("A"), RequestedOutput("B", {"binary_data": True})]
    request.parameters = {"binary_data_output": True}
    decoded = round_trip(request, binary=False)
    zeros = np.zeros(2, np.int8)
    response = InferenceResponse("m", 1, outputs=[Tensor.from_numpy("A", zeros), Tensor.from_numpy("B", zeros)])
    _, buffers = encode_response(response, decoded)
    entries = json.loads(bytes(buffers[0]))["outputs"]
    assert entries[0]["data"] == [0, 0]
    assert entries[1]["parameters"] == {"binary_data_size": 2}
    assert b"".join(buffers[1:]) == b"\0\0"


def test_empty_outputs_have_no_binary_part() -> None:
    request = DecodedRequest("m", [], binary_data_output=True)
    headers, buffers = encode_response(
        InferenceResponse("m", 1, outputs=[Tensor.from_numpy("O", np.zeros((0, 3), np.float32))]), request
    )
    assert headers == {"Content-Type": "application/json"}
    assert json.loads(bytes(buffers[0]))["outputs"][0]["parameters"] == {"binary_data_size": 0}


def test_not_a_number_and_infinity_go_both_ways() -> None:
    text = b'{"inputs":[{"name":"I","datatype":"FP32","shape":[3],"data":[NaN,-Infinity,Infinity]}]}'
    request = decode_request(text, None, OPTIONS)
    assert np.isnan(request.inputs[0].data[0])
    assert request.inputs[0].data[1:].tolist() == [-np.inf, np.inf]
    _, buffers = encode_response(InferenceResponse("m", 1, outputs=request.inputs), request)
    assert b'"data":[NaN,-Infinity,Infinity]' in bytes(buffers[0])


def numbers(data: str, datatype: str = "FP64") -> list[Any]:
    head = f'{{"inputs":[{{"name":"I","datatype":"{datatype}","shape":[1],"data":[{data}]}}],'
    text = head + r'"id":"Inf -NaN \" Inf"}'
    request = decode_request(text.encode(), None, OPTIONS)
    assert request.id == 'Inf -NaN " Inf', "what stands in strings is left alone"
    found: list[Any] = request.inputs[0].data.tolist()
    return found


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("Inf", np.inf), ("-Inf", -np.inf), ("-Infinity", -np.inf), ("NaN", np.nan), ("-NaN", np.nan), ("1e-400", 0.0),
        ("1.7976931348623157e308", 1.7976931348623157e308), ("5e-324", 5e-324), ("-0.0", -0.0),
        ("123456789012345678901234567890", 1.2345678901234568e29),
    ],
)  # fmt: skip
def test_numbers_that_triton_reads(data: str, value: float) -> None:
    assert repr(numbers(data)) == repr([value])


@pytest.mark.parametrize(
    "data", ["nan", "inf", "Infin", "+1", "1.", ".5", "01", "0x1", "1e400", "-1e400", "1_0", "Na", "--1"]
)
def test_numbers_that_triton_refuses(data: str) -> None:
    with pytest.raises(InternalError, match="failed to parse the request JSON buffer: "):
        numbers(data)


@pytest.mark.parametrize(
    ("datatype", "value"),
    [("INT64", 2**63 - 1), ("INT64", -(2**63)), ("INT64", 2**53 + 1), ("UINT64", 2**64 - 1), ("UINT64", 2**53 + 1)],
)
def test_whole_numbers_survive_digit_by_digit(datatype: str, value: int) -> None:
    assert numbers(str(value), datatype) == [value]
    tensor = Tensor.from_numpy("O", np.array([value], np.dtype(datatype.lower())))
    _, buffers = encode_response(InferenceResponse("m", 1, outputs=[tensor]), DecodedRequest("m", []))
    assert f'"data":[{value}]'.encode() in bytes(buffers[0])


def test_what_stands_around_a_document() -> None:
    text = body_of(inputs=[])
    for around in (b"\xef\xbb\xbf" + text, text + b"\0", text + b"\0\0", b" \n\t\r" + text + b"\r\n "):
        assert decode_request(around, None, OPTIONS).inputs == []
    for around in (text + b"x", text + b"\0x", b"\0" + text, b"/**/" + text, text * 2):
        with pytest.raises(InternalError):
            decode_request(around, None, OPTIONS)


def test_surrogates() -> None:
    def read(text: bytes) -> Any:
        body = b'{"inputs":[{"name":"I","datatype":"BYTES","shape":[1],"data":["%b"]}]}' % text
        return decode_request(body, None, OPTIONS).inputs[0].data.tolist()

    assert read(rb"\ud83d\ude00") == ["😀".encode()]
    assert read(rb"\ude00") == [b"\xed\xb8\x80"], "a low one alone is taken, as in Triton"
    for half in (rb"\ud83d", rb"\ud83dx", rb"\ud83d\ud83d"):
        with pytest.raises(InternalError):
            read(half)


def test_bytes_that_are_no_utf8_go_both_ways() -> None:
    text = b'{"inputs":[{"name":"I","datatype":"BYTES","shape":[2],"data":["\xff\xfe","ok"]}]}'
    request = decode_request(text, None, OPTIONS)
    assert request.inputs[0].data.tolist() == [b"\xff\xfe", b"ok"]
    _, buffers = encode_response(InferenceResponse("m", 1, outputs=request.inputs), request)
    assert b'"data":["\xff\xfe","ok"]' in bytes(buffers[0])


def test_an_output_asked_for_twice_is_asked_once() -> None:
    request = decode_request(body_of(inputs=[], outputs=[{"name": "O"}, {"name": "O"}]), None, OPTIONS)
    assert [output.name for output in request.outputs] == ["O"]


def test_parameters_are_sorted_into_their_places() -> None:
    request = decode_request(
        body_of(
            id="x",
            inputs=[],
            parameters={
                "sequence_id": 2**64 - 1,
                "sequence_start": True,
                "sequence_end": False,
                "priority": 2,
                "timeout": 500,
                "binary_data_output": True,
                "temperature": 0.5,
                "name": "n",
                "flag": True,
                "count": -3,
            },
        ),
        None,
        OPTIONS,
    )
    assert (request.sequence_id, request.sequence_start, request.sequence_end) == (2**64 - 1, True, False)
    assert (request.priority, request.timeout, request.binary_data_output) == (2, 500, True)
    assert request.parameters == {"temperature": 0.5, "name": "n", "flag": True, "count": -3}
    assert decode_request(body_of(inputs=[], parameters={"sequence_id": "s"}), None, OPTIONS).sequence_id == "s"


def test_sequence_and_priority_survive_the_round_trip() -> None:
    request = InferenceRequest("m", [], sequence_id=7, sequence_end=True, priority=3, timeout=9, parameters={"p": "q"})
    decoded = round_trip(request, binary=True)
    assert (decoded.sequence_id, decoded.sequence_start, decoded.sequence_end) == (7, False, True)
    assert (decoded.priority, decoded.timeout, decoded.parameters) == (3, 9, {"p": "q"})


@pytest.mark.parametrize("data", [[[1], [2]], [[1, 2]], [1, 2], [[[1]], [[2]]], [1, [2]]])
def test_data_may_be_nested_in_any_way(data: Any) -> None:
    assert decode_request(one_input(data=data), None, OPTIONS).inputs[0].data.tolist() == [1, 2]


def nested(depth: int) -> Any:
    value: Any = [1, 2]
    for _ in range(depth - 1):
        value = [value]
    return value


def test_data_may_be_nested_99_deep() -> None:
    assert decode_request(one_input(data=nested(99)), None, OPTIONS).inputs[0].data.tolist() == [1, 2]


MISMATCH = "[request id: <id_unknown>] input byte size mismatch for input 'I' for model 'm'. "
BAD: list[tuple[str, bytes, int, str]] = [
    ("not json", b"{", 500, "failed to parse the request JSON buffer: "),
    ("empty", b"", 500, "failed to parse the request JSON buffer: "),
    ("an array", b"[]", 500, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    ("inputs no array", body_of(inputs=1), 500, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
    ("id no string", body_of(id=1, inputs=[]), 500, "Unable to parse 'id': attempt to access JSON non-string as str"),
    (
        "no source",
        one_input(data=...),
        400,
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        "'shared_memory_region' in 'parameters'. But no field is set",
    ),
    (
        "two sources",
        one_input(parameters={"binary_data_size": 8}),
        400,
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        "'shared_memory_region' in 'parameters'. But set 'data' 'binary_data_size'",
    ),
    ("no name", one_input(name=...), 500, "Unable to parse 'name': attempt to access non-existing object member"),
    ("no type", one_input(datatype=...), 500, "Unable to parse 'datatype': attempt to access non-existing object"),
    ("odd type", one_input(datatype="FLOAT"), 400, "invalid datatype for input I"),
    (
        "negative dim",
        one_input(shape=[-2]),
        500,
        "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    ("float dim", one_input(shape=[2.0]), 500, "Unable to parse 'shape': attempt to access JSON non-unsigned-integer"),
    (
        "giant dim",
        one_input(shape=[2**63]),
        400,
        f"invalid shape for input 'I': shape [{-(2**63)}] contains one or more invalid dimensions",
    ),
    ("absurd dim", one_input(shape=[2**64]), 500, "Unable to parse 'shape': attempt to access JSON non-unsigned-int"),
    (
        "overflowing dims",
        one_input(shape=[2**32, 2**32]),
        400,
        "invalid shape for input 'I': shape [4294967296,4294967296] causes total element count to exceed maximum size "
        "of 9223372036854775807",
    ),
    (
        "overflowing bytes",
        one_input(shape=[2**62]),
        400,
        "byte size overflow for input 'I': element count (4611686018427387904) * data type size (4) exceeds maximum "
        "allowed size (9223372036854775807)",
    ),
    (
        "too big",
        one_input(shape=[2**30]),
        400,
        "JSON input 'I' has a byte_size (4294967296 bytes) that exceeds the maximum allowed value of 67108864 bytes. "
        "Use --http-max-input-size to increase the limit.",
    ),
    (
        "too many",
        one_input(data=[1, 2, 3]),
        500,
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    ),
    (
        # as the 2.51 binary has it; the source of 2.73 reads "Failed to parse 'data' field: ..."
        "too few",
        one_input(data=[1]),
        500,
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    ),
    ("data no array", one_input(data=5), 500, "Unable to parse 'data': attempt to access JSON non-array as array"),
    (
        "float for int",
        one_input(data=[1, 2.5]),
        500,
        "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
    ),
    (
        "bool for int",
        one_input(data=[1, True]),
        500,
        "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
    ),
    (
        "negative for uint",
        one_input(datatype="UINT8", data=[-1, 2]),
        500,
        "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    (
        "out of range",
        one_input(datatype="INT8", data=[1, 300]),
        400,
        "Unable to parse 'data': value 300 of input 'I' is out of range for INT8 [-128, 127]",
    ),
    (
        "int for bool",
        one_input(datatype="BOOL", data=[True, 1]),
        500,
        "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
    ),
    (
        "string for float",
        one_input(datatype="FP32", data=[1, "2"]),
        500,
        "Unable to parse 'data': attempt to access JSON non-number as double",
    ),
    (
        "number for string",
        one_input(datatype="BYTES", data=["a", 1]),
        500,
        "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
    ),
    (
        "too few strings",
        one_input(datatype="BYTES", data=["a"]),
        400,
        "[request id: <id_unknown>] expected 2 string elements for inference input 'I' for model 'm', got 1",
    ),
    (
        "FP16 as JSON",
        one_input(datatype="FP16"),
        400,
        "receiving FP16 data via JSON is not supported. Please use the binary data format for input I",
    ),
    (
        "too deep",
        one_input(data=nested(100)),
        400,
        "Unable to parse 'data': JSON nesting depth exceeds maximum allowed limit (100)",
    ),
    (
        "far too deep",
        b'{"inputs":[{"name":"I","datatype":"INT32","shape":[1],"data":' + b"[" * 5000 + b"]" * 5000 + b"}]}",
        400,
        "JSON nesting depth exceeds maximum allowed limit (100)",
    ),
    (
        "input twice",
        body_of(id="7", inputs=[{"name": "I", "datatype": "INT32", "shape": [1], "data": [1]}] * 2),
        400,
        "[request id: 7] input 'I' already exists in request",
    ),
    (
        "half a surrogate pair",
        b'{"inputs":[{"name":"I","datatype":"BYTES","shape":[1],"data":["\\ud83d"]}]}',
        500,
        "failed to parse the request JSON buffer: ",
    ),
    (
        "reserved parameter",
        body_of(inputs=[], parameters={"triton_x": 1}),
        400,
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
    ),
    (
        "odd parameter",
        body_of(inputs=[], parameters={"x": [1]}),
        400,
        "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'.",
    ),
    (
        "negative priority",
        body_of(inputs=[], parameters={"priority": -1}),
        500,
        "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    (
        "shared memory",
        one_input(data=..., parameters={"shared_memory_region": "r"}),
        501,
        "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
    ),
    (
        "class and shared memory",
        body_of(inputs=[], outputs=[{"name": "O", "parameters": {"shared_memory_region": "r", "classification": 1}}]),
        400,
        "Output can't set both 'shared_memory_region' and 'classification'",
    ),
    (
        "binary but all JSON",
        one_input(data=..., parameters={"binary_data_size": 8}),
        400,
        "unexpected size for input 'I', expecting 8 additional bytes for model 'm'",
    ),
]


@pytest.mark.parametrize(("body", "status", "text"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_requests_give_tritons_text_and_status(body: bytes, status: int, text: str) -> None:
    with pytest.raises(WorkbenchError) as caught:
        decode_request(body, None, OPTIONS)
    assert caught.value.code.http_status == status
    if text.endswith(": ") or "attempt" in text:
        assert caught.value.message.startswith(text)
    else:
        assert caught.value.message == text


def binary_body(size: int, extra: bytes, **fields: Any) -> tuple[bytes, int]:
    head = one_input(data=..., parameters={"binary_data_size": size}, **fields)
    return head + extra, len(head)


@pytest.mark.parametrize(
    ("size", "extra", "fields", "text"),
    [
        (8, b"1234567", {}, "unexpected size for input 'I', expecting 1 additional bytes for model 'm'"),
        (8, b"123456789", {}, "unexpected additional input data for model 'm'"),
        (4, b"1234", {}, MISMATCH + "Expected 8, got 4"),
        (8, b"12345678", {"shape": [2**70 % 2**63, 5]}, MISMATCH + "Expected 0, got 8"),
        (
            3,
            b"\0\0\0",
            {"datatype": "BYTES"},
            "[request id: <id_unknown>] incomplete string length indicator for inference input 'I' for model 'm', "
            "expecting 4 bytes but only 3 bytes available. Please make sure the string length indicator is in one "
            "buffer.",
        ),
        (
            4,
            b"\0\0\0\0",
            {"datatype": "BYTES"},
            "[request id: <id_unknown>] expected 2 string elements for inference input 'I' for model 'm', got 1",
        ),
        (
            12,
            bytes(12),
            {"datatype": "BYTES"},
            "[request id: <id_unknown>] unexpected number of string elements 3 for inference input 'I' for model 'm', "
            "expecting 2",
        ),
    ],
)
def test_bad_binary_parts(size: int, extra: bytes, fields: dict[str, Any], text: str) -> None:
    body, length = binary_body(size, extra, **fields)
    with pytest.raises(WorkbenchError) as caught:
        decode_request(body, length, OPTIONS)
    assert (caught.value.code.http_status, caught.value.message) == (400, text)


@pytest.mark.parametrize("length", [-1, 1000])
def test_header_length_outside_the_body(length: int) -> None:
    body = one_input()
    with pytest.raises(WorkbenchError) as caught:
        decode_request(body, length, OPTIONS)
    assert caught.value.message == f"inference header size should be in range (0, {len(body)}), got: {length}"


def test_a_json_body_above_the_limit_is_refused() -> None:
    with pytest.raises(WorkbenchError) as caught:
        decode_request(one_input(), None, DecodeOptions(model_name="m", max_input_size=10))
    assert caught.value.message == (
        f"request JSON size of {len(one_input())} bytes exceeds the maximum allowed input size of 10 bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def test_an_error_answer_becomes_the_error_tree() -> None:
    error = decode_error(503, b'{"error":"Exceeds maximum queue size"}')
    assert (error.code.http_status, error.message) == (503, "Exceeds maximum queue size")
    assert decode_error(404, b"<html>").message == "HTTP status 404"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
dims = st.lists(st.integers(-2, 2**65) | st.integers(0, 3), max_size=4)
entries = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["I", "J"]) | json_values,
        "datatype": st.sampled_from([*datatypes.BY_WIRE, "X"]) | json_values,
        "shape": dims | json_values,
        "data": st.lists(json_values, max_size=4) | json_values,
        "parameters": st.dictionaries(
            st.sampled_from(["binary_data_size", "shared_memory_region", "classification", "binary_data"]),
            st.integers(0, 64) | json_values,
            max_size=2,
        )
        | json_values,
    },
)
requests = st.fixed_dictionaries(
    {},
    optional={
        "id": st.text(max_size=3) | json_values,
        "inputs": st.lists(entries, max_size=3) | json_values,
        "outputs": st.lists(entries, max_size=2) | json_values,
        "parameters": st.dictionaries(
            st.sampled_from(["sequence_id", "sequence_start", "priority", "timeout", "triton_x", "p"]),
            json_values,
            max_size=3,
        )
        | json_values,
    },
)


@settings(max_examples=400, deadline=None)
@given(requests, st.binary(max_size=40), st.integers(-4, 60) | st.none())
def test_whatever_arrives_is_a_request_or_a_workbench_error(head: Any, tail: bytes, shift: int | None) -> None:
    text = json.dumps(head).encode()
    length = None if shift is None else len(text) + (shift if shift > 40 else 0)
    try:
        request = decode_request(text + (b"" if length is None else tail), length, OPTIONS)
    except WorkbenchError:
        return
    for tensor in request.inputs:
        assert tensor.data.shape == tensor.shape
        assert tensor.datatype == "<invalid>" or tensor.data.dtype == datatypes.BY_WIRE[tensor.datatype].numpy


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 200) | st.none())
def test_random_bytes_never_break_the_reader(body: bytes, length: int | None) -> None:
    for read in (lambda: decode_request(body, length, OPTIONS), lambda: decode_response(body, length)):
        with pytest.raises(WorkbenchError):
            read()


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([row for row in datatypes.DATATYPES if row.wire not in ("BYTES", "BF16")]).flatmap(
        lambda row: hnp.arrays(row.numpy, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    ),
    st.booleans(),
)
def test_arrays_survive(array: np.ndarray, binary: bool) -> None:
    decoded = round_trip(InferenceRequest("m", [Tensor.from_numpy("I", array)]), binary).inputs[0].data
    assert decoded.shape == array.shape
    np.testing.assert_array_equal(decoded, array)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=6), max_size=5), st.booleans())
def test_byte_strings_survive(items: list[bytes], binary: bool) -> None:
    array = np.empty(len(items), np.object_)
    array[:] = items
    decoded = round_trip(InferenceRequest("m", [Tensor.from_numpy("I", array)]), binary)
    assert decoded.inputs[0].data.tolist() == items


def test_large_tensors_are_views_of_the_body() -> None:
    array = np.arange(65536, dtype=np.uint8)
    headers, buffers = encode_request(InferenceRequest("m", [Tensor.from_numpy("I", array)]))
    body = b"".join(buffers)
    data = decode_request(body, int(headers[HEADER_LENGTH]), OPTIONS).inputs[0].data
    assert np.shares_memory(data, np.frombuffer(body, np.uint8))
    assert not data.flags.writeable


def test_a_tensor_object_that_is_not_contiguous_goes_out_in_order() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3).T
    assert round_trip(InferenceRequest("m", [Tensor.from_numpy("I", array)]), True).inputs[0].data.tolist() == (
        array.tolist()
    )


def test_namespace_is_not_needed_for_raw_requests_of_unknown_models() -> None:
    from workbench.protocol.http_codec import raw_request

    with pytest.raises(WorkbenchError) as caught:
        raw_request(b"", SimpleNamespace(input=[]), OPTIONS)
    assert "Raw request must only have 1 input (found 1) to be deduced but got 0 inputs in 'm'" in caught.value.message
