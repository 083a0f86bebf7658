"""Inference requests over HTTP, read by a server (Triton's ``ParseJsonTritonIO``, ``ParseJsonTritonParams``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import InternalError, InvalidRequest
from workbench.protocol import json_data as js
from workbench.protocol import json_fields as fields
from workbench.protocol.binary import Buffer, check_rank, from_buffer, request_prefix
from workbench.protocol.datatypes import BY_CONFIG
from workbench.protocol.shared_memory import ClientMemory, MemoryTarget, NoMemory, place_of
from workbench.protocol.tensors import InferenceRequest, Parameter, RequestedOutput, Tensor

MAX_INPUT_SIZE = 64 * 1024 * 1024
"""Triton's default of ``--http-max-input-size``, bytes."""

RESERVED_PARAMETER = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."

_FLAGS = ("sequence_start", "sequence_end")
_UINT64_MAX = 2**64 - 1
_NO_PARAMETERS: dict[str, Any] = {}
NO_MEMORY = NoMemory()


@dataclass(slots=True)
class DecodedRequest(InferenceRequest):
    """A request from the wire, with what only its answer needs.

    ``binary_data_output``: how outputs that are not listed are written; ``targets``: the places in shared memory, by
    output.
    """

    binary_data_output: bool = False
    targets: Mapping[str, MemoryTarget] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """What decoding needs to know of the request's URL and of the server.

    ``max_input_size`` is in bytes; ``memory`` are the regions that clients have registered.
    """

    model_name: str = ""
    model_version: int = -1
    client: str = ""
    max_input_size: int = MAX_INPUT_SIZE
    memory: ClientMemory = NO_MEMORY


def decode_request(
    body: Buffer, header_length: int | None = None, options: DecodeOptions | None = None
) -> DecodedRequest:
    """An inference request from its HTTP body.

    ``header_length`` is the value of ``Inference-Header-Content-Length``, None when the body is all JSON. (0, a raw
    binary request, needs the model's configuration: ``raw_request``.) Tensors are views of ``body`` where possible.

    Raises:
        WorkbenchError: with Triton's text and code. JSON of the wrong type is INTERNAL, as in Triton.
    """
    options = options or DecodeOptions()
    view = memoryview(body)
    size = view.nbytes
    length = size if header_length is None else header_length
    if length < 0 or length > size:
        raise InvalidRequest(f"inference header size should be in range (0, {size}), got: {length}")
    if length > options.max_input_size:
        raise InvalidRequest(json_too_large(length, options.max_input_size))
    head = js.loads(body if length == size else view[:length])
    request = DecodedRequest(options.model_name, [], model_version=options.model_version, client=options.client)
    if type(head) is not dict:
        head = {}
    if "id" in head:
        request.id = fields.string(head["id"], "id")
    if "parameters" in head:
        _read_parameters(request, head["parameters"])
    _read_inputs(request, head, view[length:], options)
    if "outputs" in head:
        request.outputs = _read_outputs(head["outputs"], request, options.memory)
    return request


def json_too_large(size: int, limit: int) -> str:
    """Triton's text for a JSON body above ``--http-max-input-size``."""
    return (
        f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def _read_parameters(request: DecodedRequest, parameters: Any) -> None:
    if type(parameters) is not dict:
        raise InternalError("failed to get request params.: attempt to get members for non-object")
    others: dict[str, Parameter] = {}
    for key, value in parameters.items():
        if key == "sequence_id":
            request.sequence_id = value if type(value) is int and 0 <= value < 2**64 else fields.string(value, key)
        elif key == "binary_data_output":
            request.binary_data_output = fields.boolean(value, key)
        elif key in _FLAGS:
            setattr(request, key, fields.boolean(value, key))
        elif key == "priority":
            request.priority = fields.unsigned(value, key)
        elif key == "timeout":
            request.timeout = fields.unsigned(value, key)
        elif key.startswith("triton_"):
            raise InvalidRequest(RESERVED_PARAMETER)
        elif isinstance(value, str | bool | float) or (isinstance(value, int) and -(2**63) <= value < 2**63):
            others[key] = value
        elif isinstance(value, int):
            others[key] = float(value) if abs(value) < 2**1000 else 0.0
        else:
            raise InvalidRequest(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")
    request.parameters = others


def _read_inputs(request: DecodedRequest, head: Any, rest: memoryview, options: DecodeOptions) -> None:
    # The hot loop of the server: types are checked in place, and helpers called only to say what is wrong.
    offset, available = 0, rest.nbytes
    model, inputs = request.model_name, request.inputs
    for item in fields.array(head, "inputs"):
        entry: dict[str, Any] = item if type(item) is dict else {}
        parameters = entry.get("parameters")
        if type(parameters) is not dict:
            parameters = _NO_PARAMETERS
        if ("binary_data_size" in parameters) + ("shared_memory_region" in parameters) + ("data" in entry) != 1:
            _refuse_sources(entry, parameters)
        name, datatype, dims = entry.get("name"), entry.get("datatype"), entry.get("shape")
        if type(name) is not str or type(datatype) is not str or type(dims) is not list:
            name = fields.string(fields.member(entry, "name"), "name")
            datatype = fields.string(fields.member(entry, "datatype"), "datatype")
            dims = fields.array(entry, "shape")
        for dim in dims:
            if type(dim) is not int or not 0 <= dim <= _UINT64_MAX:
                fields.unsigned(dim, "shape")
        shape = tuple(dims)
        for known in inputs:
            if known.name == name:
                raise InvalidRequest(f"{request_prefix(request.id)}input '{name}' already exists in request")
        if "binary_data_size" in parameters:
            size = parameters["binary_data_size"]
            if type(size) is not int or not 0 <= size <= _UINT64_MAX:
                fields.unsigned(size, "binary_data_size")
            end = offset + size
            if end > available:
                raise InvalidRequest(
                    f"unexpected size for input '{name}', expecting {end - available} additional bytes for model "
                    f"'{model}'"
                )
            inputs.append(from_buffer(name, datatype, shape, rest[offset:end], model=model, request_id=request.id))
            offset = end
        elif "shared_memory_region" in parameters:
            view = options.memory.read(*place_of(parameters))
            inputs.append(from_buffer(name, datatype, shape, view, model=model, request_id=request.id))
        else:
            check_rank(name, shape)
            source = js.Source(name, datatype, model, request.id, options.max_input_size)
            inputs.append(Tensor(name, datatype, shape, js.array_from_json(source, shape, entry["data"])))
    if offset != available:
        raise InvalidRequest(f"unexpected additional input data for model '{model}'")


def _refuse_sources(entry: Any, parameters: Mapping[str, Any]) -> None:
    fields = [
        field
        for field, found in (
            ("data", "data" in entry),
            ("binary_data_size", "binary_data_size" in parameters),
            ("shared_memory_region", "shared_memory_region" in parameters),
        )
        if found
    ]
    raise InvalidRequest(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        "'shared_memory_region' in 'parameters'. But"
        + (" set " + " ".join(f"'{field}'" for field in fields) if fields else " no field is set")
    )


def _read_outputs(outputs: Any, request: DecodedRequest, memory: ClientMemory) -> list[RequestedOutput]:
    if type(outputs) is not list:
        raise js.type_error("outputs", js.NOT_ARRAY)
    found: dict[str, RequestedOutput] = {}
    targets: dict[str, MemoryTarget] = {}
    for item in outputs:
        entry: dict[str, Any] = item if type(item) is dict else {}
        parameters = entry.get("parameters")
        name = entry.get("name")
        if type(parameters) is not dict or not parameters:
            kept: Mapping[str, Parameter] = _NO_PARAMETERS
        else:
            kept = _output_parameters(parameters)
        if type(name) is not str:
            name = fields.string(fields.member(entry, "name"), "name")
        if name not in found:  # asked twice is asked once, as the 2.51 binary has it
            found[name] = RequestedOutput(name, kept)
            if "shared_memory_region" in kept:
                found[name] = RequestedOutput(name)
                targets[name] = memory.target(*place_of(kept))
    if targets:
        request.targets = targets
    return list(found.values())


def _output_parameters(parameters: Mapping[str, Any]) -> Mapping[str, Parameter]:
    if "shared_memory_region" in parameters:
        if "classification" in parameters:
            raise InvalidRequest("Output can't set both 'shared_memory_region' and 'classification'")
        return parameters
    kept: dict[str, Parameter] = {}
    if "classification" in parameters:
        kept["classification"] = fields.unsigned(parameters["classification"], "classification", "Unable to set")
    if "binary_data" in parameters:
        kept["binary_data"] = fields.boolean(parameters["binary_data"], "binary_data")
    return kept


def raw_request(body: Buffer, config: Any, options: DecodeOptions) -> DecodedRequest:
    """A raw binary request (``Inference-Header-Content-Length: 0``): the body is the only input's data.

    ``config`` is the model's ``ModelConfig`` message. The shape is deduced, outputs are answered in binary form.

    Raises:
        InvalidRequest: the model has more than one input, or its shape cannot be deduced.
    """
    view = memoryview(body)
    if view.nbytes > options.max_input_size:
        raise InvalidRequest(
            f"Raw input has a byte_size ({view.nbytes} bytes) that exceeds the maximum allowed value of "
            f"{options.max_input_size} bytes. Use --http-max-input-size to increase the limit."
        )
    prefix, name = request_prefix(""), options.model_name
    if len(config.input) != 1:
        raise InvalidRequest(
            f"{prefix}Raw request must only have 1 input (found 1) to be deduced but got {len(config.input)} inputs in "
            f"'{name}' model configuration"
        )
    spec = config.input[0]
    row = BY_CONFIG[type(spec).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[spec.data_type].name]
    dims = list(spec.dims)
    if dims.count(-1) > 1:
        raise InvalidRequest(
            f"{prefix}The shape of the raw input '{spec.name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    fixed = 1
    for dim in dims:
        fixed *= dim if dim != -1 else 1
    lead = (1,) if config.max_batch_size else ()
    if row.wire == "BYTES":
        if -1 in dims or fixed != 1:
            raise InvalidRequest(
                f"{prefix}For BYTE datatype raw input '{spec.name}', the model must have input shape [1]"
            )
        view = memoryview(view.nbytes.to_bytes(4, "little") + view.tobytes())
        shape = (*lead, *dims)
    else:
        shape = (*lead, *(view.nbytes // fixed // row.itemsize if dim == -1 else dim for dim in dims))
    tensor = from_buffer("raw_input", row.wire, shape, view, model=name)  # the name in Triton's texts
    tensor.name = spec.name
    return DecodedRequest(
        name, [tensor], model_version=options.model_version, client=options.client, binary_data_output=True
    )
