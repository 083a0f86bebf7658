"""Inference requests over HTTP, read by a server (Triton's ``ParseJsonTritonIO``, ``ParseJsonTritonParams``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.errors import InternalError, InvalidRequest, Unsupported
from workbench.protocol import json_data as js
from workbench.protocol import json_fields as fields
from workbench.protocol.binary import Buffer, check_rank, from_buffer, request_prefix
from workbench.protocol.datatypes import BY_CONFIG
from workbench.protocol.tensors import InferenceRequest, Parameter, RequestedOutput, Tensor

MAX_INPUT_SIZE = 64 * 1024 * 1024
"""Triton's default of ``--http-max-input-size``, bytes."""

SHARED_MEMORY_DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
RESERVED_PARAMETER = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."

_FLAGS = ("sequence_start", "sequence_end")


@dataclass(slots=True)
class DecodedRequest(InferenceRequest):
    """A request from the wire, with what only its answer needs: how outputs that are not listed are written."""

    binary_data_output: bool = False


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """What decoding needs to know of the request's URL and of the server. ``max_input_size`` is in bytes."""

    model_name: str = ""
    model_version: int = -1
    client: str = ""
    max_input_size: int = MAX_INPUT_SIZE


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
        request.outputs = _read_outputs(head["outputs"])
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
    offset = 0
    seen: set[str] = set()
    for item in fields.array(head, "inputs"):
        entry = item if type(item) is dict else {}
        parameters = fields.parameters_of(entry)
        if ("binary_data_size" in parameters) + ("shared_memory_region" in parameters) + ("data" in entry) != 1:
            _refuse_sources(entry, parameters)
        name = fields.string(fields.member(entry, "name"), "name")
        datatype = fields.string(fields.member(entry, "datatype"), "datatype")
        shape = tuple(fields.unsigned(dim, "shape") for dim in fields.array(entry, "shape"))
        if name in seen:
            raise InvalidRequest(f"{request_prefix(request.id)}input '{name}' already exists in request")
        seen.add(name)
        if "binary_data_size" in parameters:
            size = fields.unsigned(parameters["binary_data_size"], "binary_data_size")
            if size > rest.nbytes - offset:
                missing = size - (rest.nbytes - offset)
                raise InvalidRequest(
                    f"unexpected size for input '{name}', expecting {missing} additional bytes for model "
                    f"'{request.model_name}'"
                )
            part = rest[offset : offset + size]
            offset += size
            tensor = from_buffer(name, datatype, shape, part, model=request.model_name, request_id=request.id)
        elif "shared_memory_region" in parameters:
            raise Unsupported(SHARED_MEMORY_DISABLED)
        else:
            check_rank(name, shape)
            array = js.array_from_json(
                name,
                datatype,
                shape,
                entry["data"],
                model=request.model_name,
                request_id=request.id,
                max_size=options.max_input_size,
            )
            tensor = Tensor(name, datatype, shape, array)
        request.inputs.append(tensor)
    if offset != rest.nbytes:
        raise InvalidRequest(f"unexpected additional input data for model '{request.model_name}'")


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


def _read_outputs(outputs: Any) -> list[RequestedOutput]:
    if type(outputs) is not list:
        raise js.type_error("outputs", js.NOT_ARRAY)
    found: dict[str, RequestedOutput] = {}
    for entry in outputs:
        parameters = fields.parameters_of(entry)
        if "shared_memory_region" in parameters and "classification" in parameters:
            raise InvalidRequest("Output can't set both 'shared_memory_region' and 'classification'")
        name = fields.string(fields.member(entry, "name"), "name")
        kept: dict[str, Parameter] = {}
        if "classification" in parameters:
            kept["classification"] = fields.unsigned(parameters["classification"], "classification", "Unable to set")
        if "shared_memory_region" in parameters:
            raise Unsupported(SHARED_MEMORY_DISABLED)
        if "binary_data" in parameters:
            kept["binary_data"] = fields.boolean(parameters["binary_data"], "binary_data")
        found.setdefault(name, RequestedOutput(name, kept))  # asked twice is asked once, as the 2.51 binary has it
    return list(found.values())


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
