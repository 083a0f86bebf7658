"""The generate extension: flat JSON objects as requests and responses (Triton's ``GenerateRequestClass``).

A key that names an input becomes that tensor, any other a request parameter; an object under ``parameters`` is treated
alike. A response is one object of outputs (a single element without its list), parameters, and the model's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.errors import InternalError, InvalidRequest
from workbench.protocol import json_data as js
from workbench.protocol import json_fields as fields
from workbench.protocol.binary import Buffer
from workbench.protocol.datatypes import BY_WIRE
from workbench.protocol.http_request import DecodeOptions, json_too_large
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Parameter, Tensor


def decode_generate(body: Buffer, inputs: Sequence[Mapping[str, Any]], options: DecodeOptions) -> InferenceRequest:
    """A generate request.

    Args:
        body: the JSON object.
        inputs: the model's inputs as its metadata has them: ``name``, ``datatype``, ``shape`` with -1 for variable.
        options: model, version and limits.

    Raises:
        WorkbenchError: with Triton's text and code.
    """
    size = len(body)
    if size > options.max_input_size:
        raise InvalidRequest(json_too_large(size, options.max_input_size))
    head = js.loads(body)
    if type(head) is not dict:
        raise InternalError("attempt to get members for non-object")
    request = InferenceRequest(
        options.model_name, [], model_version=options.model_version, client=options.client, parameters={}
    )
    if "id" in head:
        request.id = fields.string(head["id"], "id")
    known = {str(entry["name"]): entry for entry in inputs}
    parameters: dict[str, Parameter] = {}
    for key, value in head.items():
        if key == "parameters":
            if key in known:
                raise InvalidRequest("Keyword 'parameters' for nested schema also given as input tensor name")
            if type(value) is not dict:
                raise InternalError(
                    "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object"
                )
            for inner, item in value.items():
                _take(request, parameters, known, (inner, item), options)
        elif key != "id" or key in known:
            _take(request, parameters, known, (key, value), options)
    request.parameters = parameters
    return request


def _take(
    request: InferenceRequest,
    parameters: dict[str, Parameter],
    known: Mapping[str, Mapping[str, Any]],
    member: tuple[str, Any],
    options: DecodeOptions,
) -> None:
    name, value = member
    spec = known.get(name)
    if spec is not None:
        request.inputs.append(_tensor(request, spec, value, options))
    elif isinstance(value, str | bool | float) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        parameters[name] = value
    elif isinstance(value, int):
        parameters[name] = float(value)
    else:
        raise InvalidRequest(f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _tensor(request: InferenceRequest, spec: Mapping[str, Any], value: Any, options: DecodeOptions) -> Tensor:
    name, datatype = str(spec["name"]), str(spec["datatype"])
    data = value if type(value) is list else [value]
    if not data:
        return Tensor(name, datatype, (0,), np.empty(0, BY_WIRE[datatype].numpy))
    _check_size(request, name, _size(datatype, data), options.max_input_size)
    shape = _fit(name, len(data), [int(dim) for dim in spec["shape"]])
    source = js.Source(name, datatype, request.model_name, request.id, options.max_input_size)
    return Tensor(name, datatype, shape, js.array_from_json(source, shape, data))


def _size(datatype: str, data: Sequence[Any]) -> int:
    """Bytes of a tensor with these elements."""
    if datatype == "BYTES":
        return sum(4 + len(js.encode_text(item)) for item in data if type(item) is str)
    return len(data) * BY_WIRE[datatype].itemsize


def _check_size(request: InferenceRequest, name: str, size: int, limit: int) -> None:
    before = 0
    for each in request.inputs:
        before += each.data.nbytes if each.datatype != "BYTES" else sum(4 + len(item) for item in each.data.flat)
    if before + size > limit:
        raise InvalidRequest(
            f"request size of {before} bytes with input '{name}' of size {size} bytes exceeds the maximum allowed "
            f"input size of {limit}. Use --http-max-input-size to increase the limit."
        )


def _fit(name: str, count: int, dims: list[int]) -> tuple[int, ...]:
    """Fixed dimensions are divided out, the innermost variable one takes the rest, the others are 1."""
    error = InvalidRequest(f"The schema can not convert input '{name}' to tensor with proper shape")
    left = count
    for dim in dims:
        if dim != -1:
            if dim == 0 or left % dim:
                raise error
            left //= dim
    shape = list(dims)
    for index in range(len(shape) - 1, -1, -1):
        if shape[index] == -1:
            shape[index], left = left, 1
    if left != 1:
        raise error
    return tuple(shape)


def encode_generate_request(request: InferenceRequest, inputs: Sequence[Mapping[str, Any]]) -> bytes:
    """What ``decode_generate`` reads as this request.

    Args:
        request: its inputs, parameters and id are written.
        inputs: the model's inputs as its metadata has them; none where they are not known: nothing is checked then.

    Raises:
        InvalidRequest: the server would give an input another shape (a flat list says only how many elements there
            are), or the datatype has no JSON form.
    """
    found: dict[str, Any] = {"id": request.id} if request.id else {}
    known = {str(entry["name"]): [int(dim) for dim in entry["shape"]] for entry in inputs}
    slow = False
    for tensor in request.inputs:
        shape = tuple(tensor.shape)
        if tensor.name in known and _fit(tensor.name, int(tensor.data.size), known[tensor.name]) != shape:
            raise InvalidRequest(
                f"the generate extension cannot carry input '{tensor.name}' of shape {list(shape)}: the model declares "
                f"{known[tensor.name]}, and only the innermost variable dimension is made to fit",
                hint="send one row a request (batch_size 1)",
            )
        value, needs_slow = js.array_to_json(tensor.datatype, tensor.data)
        slow = slow or needs_slow
        found[tensor.name] = value[0] if tensor.data.size == 1 else value
    found |= request.parameters
    return js.dumps_slow(found) if slow else js.dumps(found)


def encode_generate(response: InferenceResponse) -> bytes:
    """A response as one flat object, its keys in order, as Triton sends it.

    Raises:
        InvalidRequest: FP16 and BF16, which Triton does not write as JSON.
    """
    found: dict[str, Any] = dict(response.parameters)
    found["model_name"] = response.model_name
    found["model_version"] = str(response.model_version)
    if response.id:
        found["id"] = response.id
    slow = False
    for tensor in response.outputs:
        value, needs_slow = js.array_to_json(tensor.datatype, tensor.data)
        slow = slow or needs_slow
        found.setdefault(tensor.name, value[0] if tensor.data.size == 1 else value)
    ordered = {key: found[key] for key in sorted(found, key=str.encode)}
    return js.dumps_slow(ordered) if slow else js.dumps(ordered)
