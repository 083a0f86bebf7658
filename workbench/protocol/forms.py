"""Requests that differ in nothing but their ids and data: what is the same in all of them is read and checked once.

A client that keeps a server busy sends the same JSON head again and again. Its text, the id cut out, names a ``Form``;
a request of a known form needs no JSON, no look at types and shapes, and its answer no JSON either. Only plain requests
have one: small binary tensors of a fixed data type, every answer binary, and no parameters. All else goes the long way
(``http_request``, ``http_codec``); the same answers come either way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from workbench.protocol.binary import Buffer, to_buffer
from workbench.protocol.datatypes import BY_WIRE
from workbench.protocol.http_codec import encode_response
from workbench.protocol.http_request import DecodedRequest, DecodeOptions
from workbench.protocol.tensors import InferenceResponse, RequestedOutput, Tensor

LARGEST = 16 * 1024
"""Bodies, messages of gRPC and answers above this have no form, bytes."""

KEY_BYTES = 2048
"""What is remembered of a request is no longer than this, bytes."""

_ENTRIES = 256
_ANSWERS = 16
_ID = re.compile(rb'\{"id":"([ !#-\[\]-~]*)",')
"""An id at the head's start that JSON would write as it stands."""


class FormInput(NamedTuple):
    """An input; ``offset`` is where it begins in the request's data, bytes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int


class Form:
    """What requests of one form have in common.

    ``size`` is of their tensors in bytes; ``checked_by`` has found them right, with ``rows``, ``shape_key`` and
    ``input_set`` as ``engine.validation`` gives them.
    """

    __slots__ = (
        "answers", "checked_by", "input_set", "inputs", "kinds", "names", "outputs", "rows", "shape_key", "size",
    )  # fmt: skip

    def __init__(self, inputs: tuple[FormInput, ...], size: int, outputs: tuple[RequestedOutput, ...]) -> None:
        self.inputs = inputs
        self.size = size
        self.outputs = outputs
        self.names = frozenset(output.name for output in outputs)
        self.kinds = tuple((each.name, each.datatype, each.shape) for each in inputs)
        self.answers: dict[Hashable, bytes] = {}
        self.checked_by: object = None
        self.rows = 0
        self.shape_key: Hashable = None
        self.input_set: Hashable = None


class Forms:
    """The forms that are known of one model's requests: some hundred at most, whatever clients send."""

    def __init__(self) -> None:
        self._forms: dict[bytes, Form] = {}

    def decode(self, body: Buffer, header_length: int, options: DecodeOptions) -> DecodedRequest | None:
        """A request of a known form; None where ``decode_request`` must read it."""
        head = bytes(body[:header_length])
        match = _ID.match(head)
        form = self._forms.get(_key(head, match))
        if form is None or form.size != len(body) - header_length:
            return None
        data = bytes(body[header_length:])  # an object of its own: aligned, whatever the head's length
        request = DecodedRequest(
            options.model_name,
            [Tensor(n, d, shape, np.ndarray(shape, dtype, data, at)) for n, d, shape, dtype, at in form.inputs],
            form.outputs,
            options.model_version,
            "" if match is None else match[1].decode(),
        )
        request.binary_data_output = True
        request.form = form
        return request

    def learn(self, body: Buffer, header_length: int, request: DecodedRequest) -> None:
        """Remembers the form of a request that was read the long way and taken, if it is plain."""
        if len(body) > LARGEST or not 0 < header_length <= KEY_BYTES or not _is_plain(request):
            return
        inputs: list[FormInput] = []
        offset = 0
        for tensor in request.inputs:
            size = plain_size(tensor.datatype, tensor.shape)
            if not size or offset % tensor.data.itemsize:
                return
            inputs.append(FormInput(tensor.name, tensor.datatype, tensor.shape, BY_WIRE[tensor.datatype].numpy, offset))
            offset += size
        if offset != len(body) - header_length:
            return
        head = bytes(body[:header_length])
        match = _ID.match(head)
        key = _key(head, match)
        if b'"id"' in key or b"\\" in key:
            return  # an id elsewhere in the head, perhaps in escapes: it would become part of the form
        if len(self._forms) >= _ENTRIES:
            self._forms.clear()
        self._forms[key] = Form(tuple(inputs), offset, tuple(request.outputs))


def plain_size(datatype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor as forms have them; 0 of one that must be looked at each time, or that has no elements."""
    row = BY_WIRE.get(datatype)
    if row is None or datatype == "BOOL" or not shape or min(shape) <= 0:
        return 0
    return row.itemsize * math.prod(shape)


def _key(head: bytes, match: re.Match[bytes] | None) -> bytes:
    """The head without its id: with one or without, the same JSON, so that no broken head has a form."""
    return head if match is None else b"{" + head[match.end() :]


def _is_plain(request: DecodedRequest) -> bool:
    if request.parameters or request.targets or request.priority or request.timeout or request.sequence_id:
        return False
    if request.sequence_start or request.sequence_end:
        return False
    if not request.outputs:
        return request.binary_data_output
    return all(dict(output.parameters) == {"binary_data": True} for output in request.outputs)


def encode_plain(response: InferenceResponse, request: DecodedRequest) -> list[Buffer] | None:
    """The answer to a request of a known form, JSON first; None where ``encode_response`` must write it."""
    form, outputs = request.form, response.outputs
    if form is None or response.parameters:
        return None
    key = (response.model_name, response.model_version, *[(t.name, t.datatype, t.shape) for t in outputs])
    tail = form.answers.get(key)
    if tail is None:
        tail = _learn_answer(form, key, response, request)
        if tail is None:
            return None
    head = b'{"id":"%b",%b' % (response.id.encode(), tail) if response.id else b"{" + tail
    return [head, *[to_buffer(tensor) for tensor in outputs]]


def _learn_answer(form: Form, key: Hashable, response: InferenceResponse, request: DecodedRequest) -> bytes | None:
    """The JSON of an answer behind its id."""
    for tensor in response.outputs:
        if tensor.datatype == "BYTES" or not tensor.data.size or (form.names and tensor.name not in form.names):
            return None
    if sum(tensor.data.nbytes for tensor in response.outputs) > LARGEST or not response.outputs:
        return None
    nameless = InferenceResponse(response.model_name, response.model_version, "", response.outputs)
    tail = bytes(encode_response(nameless, request)[1][0])[1:]
    if len(form.answers) >= _ANSWERS:
        form.answers.clear()
    form.answers[key] = tail
    return tail
