"""Inference messages of gRPC to requests, and responses to messages (Triton's grpc/infer_handler.cc).

A large message is not read as a whole by protobuf, which would copy its tensors twice: ``split`` takes its raw contents
out as views, and only what is left goes through protobuf. Answers are written the same way: protobuf writes all but the
raw contents, which follow as they are (they have the highest field number, so the bytes are those of one message).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from workbench.client.grpc_codec import set_parameter
from workbench.errors import InternalError, InvalidRequest
from workbench.protocol.binary import Buffer, check_rank, from_buffer, request_prefix, shape_text, to_buffer
from workbench.protocol.datatypes import BY_WIRE
from workbench.protocol.http_request import DecodedRequest
from workbench.protocol.shared_memory import ClientMemory, MemoryTarget
from workbench.protocol.tensors import InferenceResponse, Parameter, RequestedOutput, Tensor
from workbench.server.grpc_message import varint

EMPTY_FINAL = "triton_enable_empty_final_response"
"""The one parameter of Triton's own that a request may have: a stream says so when a decoupled model has ended."""

_ALONE_FROM = 16 * 1024
_RAW_INPUTS = 7 << 3 | 2
_RAW_OUTPUT = b"\x32"
_UINT64 = 2**64 - 1
_UNPARSED = "Unable to parse request"
_STOL = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")
_CONTENTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("bool_contents", ("BOOL",)),
    ("int_contents", ("INT8", "INT16", "INT32")),
    ("int64_contents", ("INT64",)),
    ("uint_contents", ("UINT8", "UINT16", "UINT32")),
    ("uint64_contents", ("UINT64",)),
    ("fp32_contents", ("FP32",)),
    ("fp64_contents", ("FP64",)),
    ("bytes_contents", ("BYTES",)),
)
_WIDE = {"int_contents": np.int32, "uint_contents": np.uint32}

Classify = Callable[[Tensor, int], Tensor]


def parse(kind: Any, data: Buffer) -> Any:
    """A message.

    Raises:
        InternalError: the bytes are none (Triton's text).
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InternalError(_UNPARSED) from None


def parse_infer(data: memoryview) -> tuple[Any, list[Buffer]]:
    """A ``ModelInferRequest`` and its raw contents; those of a large message are views, and no longer in it.

    Raises:
        InternalError: the bytes are no such message.
    """
    if data.nbytes >= _ALONE_FROM:
        found = split(data)
        if found is not None:
            return parse(pb.ModelInferRequest, found[0]), found[1]
    message = parse(pb.ModelInferRequest, data)
    return message, list(message.raw_input_contents)


def split(data: memoryview) -> tuple[bytes, list[Buffer]] | None:
    """A ``ModelInferRequest`` without its raw contents, and those; None where only protobuf can say what it is."""
    rest: list[memoryview] = []
    raws: list[Buffer] = []
    position = kept = 0
    size = data.nbytes
    try:
        while position < size:
            begin = position
            tag, position = _varint(data, position)
            kind = tag & 7
            if kind == 2:
                length, position = _varint(data, position)
                end = position + length
            elif kind == 0:
                end = _varint(data, position)[1]
            elif kind in (1, 5):
                end = position + (8 if kind == 1 else 4)
            else:
                return None
            if end > size:
                return None
            if tag == _RAW_INPUTS:
                rest.append(data[kept:begin])
                raws.append(data[position:end])
                kept = end
            position = end
    except IndexError:
        return None
    rest.append(data[kept:])
    return b"".join(rest), raws


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """A number and where it ends.

    Raises:
        IndexError: it does not end.
    """
    value = data[position]
    if value < 0x80:
        return value, position + 1
    value &= 0x7F
    for shift in range(7, 70, 7):
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
    raise IndexError


def version_number(text: str) -> int:
    """A model version from its text, as Triton's ``GetModelVersionFromString``; -1 for none.

    Raises:
        InvalidRequest: it is no number, or a negative one (Triton's text).
    """
    if not text:
        return -1
    match = _STOL.match(text)
    number = int(match[1]) if match is not None and len(match[1]) < 30 else None
    if number is None or not -(2**63) <= number < 2**63:
        raise InvalidRequest(
            f"failed to get model version from specified version string '{text}' (details: stol), version should be an "
            "integral value > 0"
        )
    if number < 0:
        raise InvalidRequest(f"invalid model version specified '{text}' , version should be an integral value > 0")
    return number


def read_metadata(message: Any, request: DecodedRequest) -> bool:
    """Takes id and parameters of a message over; gives whether it asks for empty final responses.

    Raises:
        InvalidRequest: a parameter is wrong, or an input is there twice (Triton's texts).
    """
    request.id = message.id
    empty_final = False
    if message.parameters:
        others: dict[str, Parameter] = {}
        for key, value in message.parameters.items():
            if key.startswith("triton_"):
                empty_final = _own_parameter(key, value)
            else:
                _read_parameter(request, others, key, value)
        request.parameters = others
    return empty_final


def _own_parameter(key: str, value: Any) -> bool:
    if key != EMPTY_FINAL:
        raise InvalidRequest(
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
            f"with 'triton_' are allowed: {EMPTY_FINAL}"
        )
    if value.WhichOneof("parameter_choice") != "bool_param":
        raise _wrong_type(key, "bool_param")
    return bool(value.bool_param)


def _wrong_type(key: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"invalid value type for '{key}' parameter, expected {expected}.")


def _read_parameter(request: DecodedRequest, others: dict[str, Parameter], key: str, value: Any) -> None:
    kind = value.WhichOneof("parameter_choice")
    if key == "sequence_id":
        if kind == "int64_param":
            request.sequence_id = value.int64_param & _UINT64
        elif kind == "string_param":
            request.sequence_id = value.string_param
        else:
            raise _wrong_type(key, "int64_param or string_param")
    elif key in ("sequence_start", "sequence_end"):
        if kind != "bool_param":
            raise _wrong_type(key, "bool_param")
        setattr(request, key, value.bool_param)
    elif key == "priority":
        if kind not in ("int64_param", "uint64_param"):
            raise _wrong_type(key, "int64_param or uint64_param")
        request.priority = getattr(value, kind)
        if request.priority < 0:
            raise InvalidRequest("invalid value for 'priority', expected value >= 0.")
    elif key == "timeout":
        if kind != "int64_param":
            raise _wrong_type(key, "int64_param")
        request.timeout = value.int64_param & _UINT64
    elif kind in ("int64_param", "bool_param", "string_param", "double_param"):
        others[key] = getattr(value, kind)
    else:
        raise _wrong_type(key, "int64_param, bool_param, or string_param")


def read_tensors(message: Any, raws: list[Buffer], request: DecodedRequest, memory: ClientMemory) -> None:
    """Takes inputs and requested outputs of a message over.

    Raises:
        WorkbenchError: data are missing, given twice or of another type; shared memory is wrong (Triton's texts).
    """
    inputs = request.inputs
    names = set()
    for item in message.inputs:
        if item.name in names:
            raise InvalidRequest(f"{request_prefix(request.id)}input '{item.name}' already exists in request")
        names.add(item.name)
    index = 0
    for item in message.inputs:
        place = _place(item) if item.parameters else None
        if place is not None:
            if item.HasField("contents"):
                raise InvalidRequest(
                    f"unexpected 'content' provided when using shared memory for input tensor '{item.name}' for model "
                    f"'{request.model_name}'"
                )
            data: Buffer = memory.read(*place)
        elif item.HasField("contents"):
            if raws:
                raise InvalidRequest(
                    f"contents field must not be specified when using raw_input_contents for '{item.name}' for model "
                    f"'{request.model_name}'"
                )
            data = _typed(item, request.model_name)
        elif index < len(raws):
            data = raws[index]
            index += 1
        else:
            raise InvalidRequest(
                f"unable to find data for input tensor '{item.name}' for model '{request.model_name}' in request."
            )
        inputs.append(_tensor(item.name, item.datatype, tuple(item.shape), data, request))
    if message.outputs:
        _read_outputs(message, request, memory)


def _tensor(name: str, datatype: str, shape: tuple[int, ...], data: Buffer, request: DecodedRequest) -> Tensor:
    """A tensor around bytes. Where their number is wrong they are kept as they are: the validator says so in turn."""
    row = BY_WIRE.get(datatype)
    view = memoryview(data)
    if row is not None and row.itemsize:
        count = row.itemsize
        for dim in shape:
            count *= dim
        if count != view.nbytes:
            check_rank(name, shape)
            return Tensor(name, datatype, shape, np.frombuffer(view, np.uint8))
    if shape and min(shape) < 0:
        raise InvalidRequest(
            f"{request_prefix(request.id)}invalid shape for input '{name}': shape {shape_text(shape)}: no dimension "
            "may be negative"
        )
    return from_buffer(name, datatype, shape, view, model=request.model_name, request_id=request.id)


def _typed(item: Any, model: str) -> bytes:
    """The bytes of an input that is given by typed contents."""
    found = b""
    declared = item.datatype if item.datatype in BY_WIRE else "<invalid>"
    for field, kinds in _CONTENTS:
        values = getattr(item.contents, field)
        if not values:
            continue
        if found:
            raise InvalidRequest(
                f"unexpected explicit tensor data for input tensor '{item.name}' for model '{model}', binary data was "
                "already supplied."
            )
        if declared not in kinds:
            raise InvalidRequest(
                f"unexpected explicit tensor data for input tensor '{item.name}' for model '{model}' of type "
                f"'{kinds[-1]}', expected datatype '{declared}'"
            )
        if field == "bytes_contents":
            found = b"".join(len(value).to_bytes(4, "little") + value for value in values)
        else:
            kind = BY_WIRE[declared].numpy
            # of wider elements the low bytes count
            array = np.array(values, _WIDE.get(field, kind)).astype(kind)
            found = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return found


def _read_outputs(message: Any, request: DecodedRequest, memory: ClientMemory) -> None:
    found: dict[str, RequestedOutput] = {}
    targets: dict[str, MemoryTarget] = {}
    for item in message.outputs:
        name = item.name
        parameters: dict[str, Parameter] = {}
        if item.parameters:
            place = _place(item)
            if "classification" in item.parameters:
                parameters["classification"] = _classes(item.parameters["classification"])
                if place is not None:
                    raise InvalidRequest("output can't set both 'shared_memory_region' and 'classification'")
            if place is not None:
                targets[name] = memory.target(*place)
        found.setdefault(name, RequestedOutput(name, parameters))
    request.outputs = list(found.values())
    if targets:
        request.targets = targets


def _classes(value: Any) -> int:
    if value.WhichOneof("parameter_choice") != "int64_param":
        raise InvalidRequest("invalid value type for 'classification' parameter, expected int64_param")
    if value.int64_param <= 0:
        raise InvalidRequest("invalid value for 'classification' parameter, expected >= 0")
    return int(value.int64_param)


def _place(item: Any) -> tuple[str, int, int] | None:
    """Where in shared memory an input or output is; None where it is not."""
    parameters: Mapping[str, Any] = item.parameters
    if "shared_memory_region" not in parameters:
        for key in ("shared_memory_offset", "shared_memory_byte_size"):
            if key in parameters:
                raise InvalidRequest(
                    f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor '{item.name}'"
                )
        return None
    region = _of_type(item, "shared_memory_region", "string_param")
    offset = _of_type(item, "shared_memory_offset", "int64_param") if "shared_memory_offset" in parameters else 0
    if "shared_memory_byte_size" not in parameters:
        raise InvalidRequest(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{item.name}'"
        )
    size = _of_type(item, "shared_memory_byte_size", "int64_param")
    return region, offset & _UINT64, size & _UINT64


def _of_type(item: Any, key: str, kind: str) -> Any:
    value = item.parameters[key]
    if value.WhichOneof("parameter_choice") != kind:
        raise InvalidRequest(f"invalid value type for '{key}' parameter for tensor '{item.name}', expected {kind}.")
    return getattr(value, kind)


def encode_response(
    response: InferenceResponse, request: DecodedRequest, classify: Classify, *, final: bool | None = None
) -> list[Buffer]:
    """A ``ModelInferResponse``, in pieces that follow each other.

    Outputs with a place in shared memory are written there and have empty contents. ``final``: what a response of a
    stream says of itself (``triton_final_response``), None for one that is no part of a stream.

    Raises:
        WorkbenchError: an output has no classes, or no room where it goes.
    """
    message = pb.ModelInferResponse(
        model_name=response.model_name, model_version=str(response.model_version), id=response.id
    )
    for key, value in response.parameters.items():
        set_parameter(message.parameters, key, value)
    if final is not None:
        message.parameters["triton_final_response"].bool_param = final
    classes = {output.name: output.parameters["classification"] for output in request.outputs if output.parameters}
    targets = request.targets
    raws: list[Buffer] = []
    for tensor in response.outputs:
        if tensor.name in classes:
            tensor = classify(tensor, int(classes[tensor.name]))
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        data = to_buffer(tensor)
        if tensor.name in targets:
            targets[tensor.name].write(tensor.name, data)
            data = b""
        raws += (_RAW_OUTPUT + varint(data.nbytes if isinstance(data, memoryview) else len(data)), data)
    return [message.SerializeToString(), *raws]


def of_stream(parts: list[Buffer]) -> list[Buffer]:
    """A ``ModelStreamInferResponse`` around a ``ModelInferResponse`` in pieces."""
    size = sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in parts)
    return [b"\x12" + varint(size), *parts]
