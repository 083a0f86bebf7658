"""Short cuts for the messages that a busy server sees again and again: the same inputs and outputs, with other data.

What a request says besides its id and its raw contents is read once, by protobuf, and remembered by its bytes; so is
what a response says besides its id and raw contents. Whatever is not of that plain form goes the long way
(``grpc_codec``): other parameters than the one that asks for an empty final response, typed contents, BYTES, shared
memory, classes. The same answers come either way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from workbench.protocol.binary import Buffer, to_buffer
from workbench.protocol.datatypes import BY_WIRE
from workbench.protocol.forms import KEY_BYTES, Form, FormInput, plain_size
from workbench.protocol.http_request import DecodedRequest
from workbench.protocol.tensors import InferenceResponse, RequestedOutput, Tensor
from workbench.server.grpc_message import varint

_ENTRIES = 512
_NAME, _VERSION, _ID, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = 0x0A, 0x12, 0x1A, 0x22, 0x2A, 0x32, 0x3A
_EMPTY_FINAL = "triton_enable_empty_final_response"
_RAW_OUTPUT = b"\x32"
_FINAL = {
    flag: pb.ModelInferResponse(
        parameters={"triton_final_response": pb.InferParameter(bool_param=flag)}
    ).SerializeToString()
    for flag in (False, True)
}
_FINAL_OR_NONE: dict[bool | None, bytes] = {None: b"", False: _FINAL[False], True: _FINAL[True]}


class Template(NamedTuple):
    """What requests of the same form have in common."""

    model_name: str
    model_version: str
    sizes: tuple[int, ...]  # of the inputs, bytes
    empty_final: bool
    form: Form


class Scanned(NamedTuple):
    """The bytes of a request in three parts: its id, its raw contents, and all else."""

    key: bytes
    id: bytes
    raws: list[bytes]


def scan(data: bytes) -> Scanned | None:
    """Takes a ``ModelInferRequest`` apart; None where it is not of the plain form, or no such message at all."""
    size, position = len(data), 0
    begin = end_of_id = 0
    first_raw = size
    raws: list[bytes] = []
    try:
        while position < size:
            tag = data[position]
            length = data[position + 1]
            start = position + 2
            if length > 0x7F:
                more = data[start]
                if more > 0x7F:
                    return None
                length = length & 0x7F | more << 7
                start += 1
            end = start + length
            if end > size:
                return None
            if tag == _RAW:
                if not raws:
                    first_raw = position
                raws.append(data[start:end])
            elif raws:
                return None
            elif tag == _ID:
                if end_of_id:
                    return None
                begin, end_of_id, first = position, end, start
            elif tag not in (_NAME, _VERSION, _PARAMETERS, _INPUTS, _OUTPUTS):
                return None
            position = end
    except IndexError:
        return None
    if end_of_id:
        return Scanned(data[:begin] + data[end_of_id:first_raw], data[first:end_of_id], raws)
    return Scanned(data[:first_raw], b"", raws)


class Templates:
    """Requests and responses of known forms. Holds at most some hundred of each, whatever clients send."""

    def __init__(self) -> None:
        self._requests: dict[bytes, Template] = {}
        self._responses: dict[tuple[Any, ...], tuple[bytes, bytes]] = {}

    def find(self, scanned: Scanned) -> Template | None:
        """The template of a request, if one of its form has been read before."""
        return self._requests.get(scanned.key)

    def learn(self, scanned: Scanned, message: Any) -> None:
        """Remembers the form of a request that was read and taken the long way, if it is plain."""
        if len(scanned.key) > KEY_BYTES:
            return
        parameters = message.parameters
        asks = _EMPTY_FINAL in parameters
        if len(parameters) > asks or (asks and not parameters[_EMPTY_FINAL].HasField("bool_param")):
            return
        empty_final = asks and parameters[_EMPTY_FINAL].bool_param
        inputs: list[FormInput] = []
        sizes: list[int] = []
        for item in message.inputs:
            shape = tuple(item.shape)
            size = plain_size(item.datatype, shape)
            if item.parameters or item.HasField("contents") or not size:
                return
            inputs.append(FormInput(item.name, item.datatype, shape, BY_WIRE[item.datatype].numpy, 0))
            sizes.append(size)
        if any(item.parameters for item in message.outputs):
            return
        outputs = tuple(RequestedOutput(name) for name in dict.fromkeys(item.name for item in message.outputs))
        if len(self._requests) >= _ENTRIES:
            self._requests.clear()
        self._requests[scanned.key] = Template(
            message.model_name,
            message.model_version,
            tuple(sizes),
            empty_final,
            Form(tuple(inputs), sum(sizes), outputs),
        )

    def encode(self, response: InferenceResponse, final: bool | None) -> list[Buffer] | None:
        """A response in pieces, as ``grpc_codec.encode_response`` gives it; None where that must.

        For requests whose outputs have neither classes nor places in shared memory.
        """
        if response.parameters:
            return None
        outputs = response.outputs
        key = (
            response.model_name, response.model_version, final,
            *[(tensor.name, tensor.datatype, tensor.shape) for tensor in outputs],
        )  # fmt: skip
        head = self._responses.get(key)
        if head is None:
            head = self._learn_response(key, response, final)
        before, after = head
        parts: list[Buffer] = [before]
        if response.id:
            text = response.id.encode()
            parts += (b"\x1a", varint(len(text)), text)
        parts.append(after)
        for tensor in outputs:
            data = to_buffer(tensor)
            size = data.nbytes if isinstance(data, memoryview) else len(data)
            parts += (_RAW_OUTPUT, bytes((size,)) if size < 0x80 else varint(size), data)
        return parts

    def _learn_response(
        self, key: tuple[Any, ...], response: InferenceResponse, final: bool | None
    ) -> tuple[bytes, bytes]:
        before = pb.ModelInferResponse(model_name=response.model_name, model_version=str(response.model_version))
        after = pb.ModelInferResponse()
        for tensor in response.outputs:
            after.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        head = before.SerializeToString(), _FINAL_OR_NONE[final] + after.SerializeToString()
        if sum(len(part) for part in head) <= KEY_BYTES:
            if len(self._responses) >= _ENTRIES:
                self._responses.clear()
            self._responses[key] = head
        return head


def fill(template: Template, scanned: Scanned, request: DecodedRequest) -> bool:
    """Gives a request its id, inputs and requested outputs; False where its data do not fit the template."""
    raws, form = scanned.raws, template.form
    if tuple(map(len, raws)) != template.sizes:
        return False
    tensors = [
        Tensor(name, datatype, shape, np.ndarray(shape, dtype, raw))
        for (name, datatype, shape, dtype, _), raw in zip(form.inputs, raws, strict=True)
    ]
    if scanned.id:
        try:
            request.id = scanned.id.decode()
        except UnicodeDecodeError:
            return False
    request.inputs = tensors
    request.outputs = form.outputs
    request.form = form
    return True
