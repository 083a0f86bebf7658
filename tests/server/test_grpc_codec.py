"""Messages of inferences: the short cuts and protobuf itself say the same, whatever the bytes."""

from __future__ import annotations

import struct
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from workbench.errors import InternalError, InvalidRequest, WorkbenchError
from workbench.protocol.http_request import NO_MEMORY, DecodedRequest
from workbench.protocol.tensors import InferenceResponse, Tensor
from workbench.server.grpc_codec import encode_response, parse_infer, read_metadata, read_tensors, split, version_number
from workbench.server.grpc_hot import Templates, fill, scan
from workbench.server.grpc_message import Assembler, BadMessage, first_content, percent_encoded, timeout_s, varint

NAMES = st.text(max_size=5)
SHAPES = st.lists(st.integers(-2, 4), max_size=3)
TYPES = st.sampled_from(["FP32", "INT8", "BOOL", "BYTES", "FP16", "nonsense", ""])


@st.composite
def messages(draw: Any) -> Any:
    """Requests of every form, right and wrong."""
    made = pb.ModelInferRequest(model_name=draw(NAMES), model_version=draw(st.sampled_from(["", "1", "x"])))
    made.id = draw(NAMES)
    for _ in range(draw(st.integers(0, 3))):
        item = made.inputs.add(name=draw(NAMES), datatype=draw(TYPES), shape=draw(SHAPES))
        if draw(st.integers(0, 9)) == 0:
            item.contents.fp32_contents.extend([1.0, 2.0])
        if draw(st.integers(0, 9)) == 0:
            item.parameters["shared_memory_region"].string_param = "r"
        made.raw_input_contents.append(draw(st.binary(max_size=20)) + bytes(draw(st.sampled_from([0, 4, 200]))))
    for _ in range(draw(st.integers(0, 2))):
        output = made.outputs.add(name=draw(NAMES))
        if draw(st.integers(0, 9)) == 0:
            output.parameters["classification"].int64_param = 2
    if draw(st.booleans()):  # as perf_analyzer has it in every request
        made.parameters["triton_enable_empty_final_response"].bool_param = draw(st.booleans())
    if draw(st.integers(0, 5)) == 0:
        made.parameters[draw(NAMES)].int64_param = draw(st.integers(-(2**63), 2**63 - 1))
    return made


def long_way(data: bytes) -> Any:
    """A request as protobuf reads it, or the error."""
    request = DecodedRequest("m", [])
    try:
        message = pb.ModelInferRequest.FromString(data)
    except Exception:
        return "unreadable"
    try:
        empty_final = read_metadata(message, request)
        read_tensors(message, list(message.raw_input_contents), request, NO_MEMORY)
    except WorkbenchError as error:
        return error.message
    return shown(request, message.model_name, message.model_version, empty_final)


def shown(request: DecodedRequest, model: str, version: str, empty_final: bool) -> Any:
    tensors = [(t.name, t.datatype, t.shape, t.data.dtype.str, t.data.tobytes()) for t in request.inputs]
    return model, version, request.id, tensors, [output.name for output in request.outputs], empty_final


@settings(max_examples=100, deadline=None)
@given(messages(), messages(), st.data())
def test_a_known_form_is_read_as_protobuf_reads_it(first: Any, second: Any, data: Any) -> None:
    templates = Templates()
    for message in (first, second):
        plain = scan(message.SerializeToString())
        if plain is not None and not isinstance(long_way(message.SerializeToString()), str):
            templates.learn(plain, message)
    again = pb.ModelInferRequest()
    again.CopyFrom(first)
    again.id = data.draw(NAMES)
    for index, raw in enumerate(again.raw_input_contents):
        again.raw_input_contents[index] = data.draw(st.binary(min_size=len(raw), max_size=len(raw)))
    content = again.SerializeToString()
    if data.draw(st.booleans()) and content:  # a byte is wrong
        place = data.draw(st.integers(0, len(content) - 1))
        content = content[:place] + data.draw(st.binary(max_size=2)) + content[place + 1 :]
    scanned = scan(content)
    template = None if scanned is None else templates.find(scanned)
    request = DecodedRequest("m", [])
    if scanned is None or template is None or not fill(template, scanned, request):
        return
    assert shown(request, template.model_name, template.model_version, template.empty_final) == long_way(content)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | messages().map(lambda made: made.SerializeToString()), st.data())
def test_a_message_without_its_raw_contents(content: bytes, data: Any) -> None:
    if data.draw(st.booleans()) and content:
        place = data.draw(st.integers(0, len(content) - 1))
        content = content[:place] + data.draw(st.binary(max_size=2)) + content[place + 1 :]
    try:
        whole = pb.ModelInferRequest.FromString(content)
    except Exception:
        whole = None
    found = split(memoryview(content))
    if found is None:
        return
    rest, raws = found
    try:
        parted = pb.ModelInferRequest.FromString(rest)
    except Exception:
        assert whole is None
        return
    assert whole is not None
    assert [bytes(raw) for raw in raws] == list(whole.raw_input_contents)
    parted.raw_input_contents.extend(bytes(raw) for raw in raws)
    assert parted.SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)


def test_the_usual_request_takes_the_short_way() -> None:
    templates = Templates()
    made = pb.ModelInferRequest(model_name="m", id="1")
    made.parameters["triton_enable_empty_final_response"].bool_param = True
    for name in ("a", "b"):
        made.inputs.add(name=name, datatype="FP32", shape=[1, 4])
        made.raw_input_contents.append(bytes(16))
    scanned = scan(made.SerializeToString())
    assert scanned is not None
    assert templates.find(scanned) is None
    templates.learn(scanned, made)
    made.id = "another"
    made.raw_input_contents[1] = struct.pack("<4f", 1, 2, 3, 4)
    again = scan(made.SerializeToString())
    assert again is not None
    template = templates.find(again)
    request = DecodedRequest("m", [])
    assert template is not None
    assert fill(template, again, request)
    assert request.id == "another"
    assert request.inputs[1].data.tolist() == [[1, 2, 3, 4]]
    made.raw_input_contents[1] = bytes(12)
    short = scan(made.SerializeToString())
    assert short is not None
    assert not fill(template, short, request), "data of another size are for the long way to refuse"


def test_forms_that_are_remembered_are_few() -> None:
    templates = Templates()
    for number in range(2000):
        made = pb.ModelInferRequest(model_name=f"m{number}")
        scanned = scan(made.SerializeToString())
        assert scanned is not None
        templates.learn(scanned, made)
        templates.encode(InferenceResponse(f"m{number}", 1), None)
    assert len(templates._requests) <= 512
    assert len(templates._responses) <= 512
    huge = pb.ModelInferRequest(model_name="m" * 5000)
    scanned = scan(huge.SerializeToString())
    assert scanned is not None
    templates.learn(scanned, huge)
    assert templates.find(scanned) is None


@pytest.mark.parametrize("final", [None, False, True])
@pytest.mark.parametrize("id", ["", "é" * 100])
def test_a_response_is_the_same_either_way(id: str, final: bool | None) -> None:
    outputs = [
        Tensor.from_numpy("a", np.arange(6, dtype=np.float32).reshape(2, 3)),
        Tensor.from_numpy("texts", np.array(["x", "é"], dtype=object)),
        Tensor.from_numpy("none", np.zeros((0, 4), np.int64)),
        Tensor.from_numpy("large", np.zeros(3000, np.float64)),
    ]
    templates, request = Templates(), DecodedRequest("m", [])
    response = InferenceResponse("m", 3, id, outputs)
    for _ in range(2):
        short = templates.encode(response, final)
        assert short is not None
        one = pb.ModelInferResponse.FromString(b"".join(short))
        other = encode_response(response, request, lambda tensor, classes: tensor, final=final)
        assert one == pb.ModelInferResponse.FromString(b"".join(other))
        assert one.model_version == "3"
    assert templates.encode(InferenceResponse("m", 3, id, [], {"k": 1}), final) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("", -1), ("1", 1), (" 7z", 7), ("+3", 3), ("0", 0), ("-2", None), ("x", None), ("9" * 20, None)],
)
def test_versions(text: str, number: int | None) -> None:
    if number is not None:
        assert version_number(text) == number
        return
    with pytest.raises(InvalidRequest, match="version should be an integral value > 0"):
        version_number(text)


def test_a_large_message_is_not_copied() -> None:
    made = pb.ModelInferRequest(model_name="m")
    made.inputs.add(name="a", datatype="UINT8", shape=[1 << 20])
    made.raw_input_contents.append(bytes(1 << 20))
    data = made.SerializeToString()
    message, raws = parse_infer(memoryview(data))
    assert not message.raw_input_contents
    request = DecodedRequest("m", [])
    read_tensors(message, raws, request, NO_MEMORY)
    assert np.shares_memory(request.inputs[0].data, np.frombuffer(data, np.uint8))
    with pytest.raises(InternalError, match="Unable to parse request"):
        parse_infer(memoryview(data[:-1]))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(1, 200))
def test_messages_in_pieces(contents: list[bytes], step: int) -> None:
    stream = b"".join(b"\0" + len(each).to_bytes(4, "big") + each for each in contents)
    assembler = Assembler(lambda size: None)
    found = []
    for start in range(0, len(stream), step):
        found += [bytes(message) for _, message in assembler.add(stream[start : start + step])]
    assert found == contents
    assert not assembler.inside


def test_many_messages_in_one_piece_cost_what_their_bytes_cost() -> None:
    """Not the square of it, which a client could use to keep the server busy."""
    began = time.process_time()
    assert len(Assembler(lambda size: None).add(bytes(5 * 200_000))) == 200_000
    assert time.process_time() - began < 5, "0.3 s, or half a minute"


def test_a_message_in_tiny_pieces_takes_little_more_than_its_bytes() -> None:
    content = bytes(range(250)) * 240
    stream = b"\0" + len(content).to_bytes(4, "big") + content
    assembler = Assembler(lambda size: None)
    tracemalloc.start()
    try:
        for start in range(0, len(stream) - 2, 2):
            assert not assembler.add(stream[start : start + 2])
        assert tracemalloc.get_traced_memory()[0] < 2 * len(content)
    finally:
        tracemalloc.stop()
    ((_, message),) = assembler.add(stream[start + 2 :])
    assert message == content


def test_the_size_of_a_message_is_told_before_it_is_here() -> None:
    told: list[int] = []
    assembler = Assembler(told.append)
    assembler.add(b"\0\0\1")
    assert not told
    assembler.add(b"\0\0abc")
    assert told == [65536 + 5]
    with pytest.raises(BadMessage):
        Assembler(told.append).add(b"\0\x80\0\0\0")


def test_small_things_of_grpc() -> None:
    assert percent_encoded("plain") == b"plain"
    assert percent_encoded("é%\n") == b"%C3%A9%25%0A"
    assert [percent_encoded(text) for text in ("got: ", " x y", " ", "é ")] == [
        b"got:%20",
        b"%20x y",
        b"%20",
        b"%C3%A9%20",
    ]
    assert [timeout_s(text) for text in (b"5S", b"2H", b"7m", b"100000000m", b"x", b"", b"5")] == [
        5,
        7200,
        0.007,
        *[None] * 4,
    ]
    for value in (0, 1, 127, 128, 300, 2**31):
        assert varint(value)[-1] < 0x80
    assert varint(300) == b"\xac\x02"


@given(st.integers(0, 40), st.integers(1, 70_000))
@settings(max_examples=30, deadline=None)
def test_the_data_of_a_large_message_are_aligned(name: int, first: int) -> None:
    made = pb.ModelInferRequest(model_name="m" * name)
    made.inputs.add(name="a", datatype="FP64", shape=[1 << 14])
    array = np.arange(1 << 14, dtype=np.float64)
    made.raw_input_contents.append(array.tobytes())
    data = made.SerializeToString()
    stream = b"\0" + len(data).to_bytes(4, "big") + data
    assembler = Assembler(lambda size: None, first_content)
    found = assembler.add(stream[:first]) + assembler.add(stream[first:])
    assert len(found) == 1
    message, raws = parse_infer(found[0][1])
    request = DecodedRequest("m", [])
    read_tensors(message, raws, request, NO_MEMORY)
    np.testing.assert_array_equal(request.inputs[0].data, array)
    if first > 200:  # where the data begin was known when the first piece came
        assert np.shares_memory(request.inputs[0].data, np.frombuffer(found[0][1], np.uint8)), "and not copied again"


@pytest.mark.parametrize(
    ("datatype", "shape"), [("FP32", [0, -1]), ("FP32", [-1, -2]), ("BYTES", [-1]), ("FP16", [-4, -1, 1])]
)
def test_shapes_below_zero(datatype: str, shape: list[int]) -> None:
    made = pb.ModelInferRequest(model_name="m")
    made.inputs.add(name="a", datatype=datatype, shape=shape)
    size = {"FP32": 4, "FP16": 2, "BYTES": 0}[datatype]
    made.raw_input_contents.append(bytes(abs(int(np.prod(shape))) * size))
    with pytest.raises(InvalidRequest, match="no dimension may be negative"):
        read_tensors(made, list(made.raw_input_contents), DecodedRequest("m", []), NO_MEMORY)
