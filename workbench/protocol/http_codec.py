"""KServe v2 inference over HTTP: requests and responses as a JSON head and raw buffers, both ways.

A server decodes requests and encodes responses, a client does the twin of each. Nothing here knows a socket. Source and
texts: Triton's ``http_server.cc`` (``ParseJsonTritonIO``, ``ParseJsonTritonParams``, ``FinalizeResponse``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.errors import InternalError, InvalidRequest, Unsupported, WorkbenchError, from_http_status
from workbench.protocol import json_data as js
from workbench.protocol.binary import (
    Buffer,
    check_rank,
    from_buffer,
    request_prefix,
    to_buffer,
)
from workbench.protocol.datatypes import BY_CONFIG
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Parameter, RequestedOutput, Tensor

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The header that says where the JSON ends and the raw buffers begin."""

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


# ---------------------------------------------------------------------------------------------------------------------
# requests, server side


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
        request.id = _string(head["id"], "id")
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


def _string(value: Any, field: str) -> str:
    if type(value) is not str:
        raise js.type_error(field, js.NOT_STRING)
    return value


def _bool(value: Any, field: str) -> bool:
    if type(value) is not bool:
        raise js.type_error(field, js.NOT_BOOL)
    return value


def _uint(value: Any, field: str, what: str = "Unable to parse") -> int:
    if type(value) is not int or not 0 <= value < 2**64:
        raise InternalError(f"{what} '{field}': {js.NOT_UINT}")
    return value


def _member(value: Any, name: str) -> Any:
    """A member that must exist."""
    if type(value) is not dict or name not in value:
        raise InternalError(f"Unable to parse '{name}': attempt to access non-existing object member '{name}'")
    return value[name]


def _array(value: Any, name: str) -> list[Any]:
    member = _member(value, name)
    if type(member) is not list:
        raise js.type_error(name, js.NOT_ARRAY)
    return member


def _parameters_of(value: Any) -> Mapping[str, Any]:
    found = value.get("parameters") if type(value) is dict else None
    return found if type(found) is dict else {}


def _read_parameters(request: DecodedRequest, parameters: Any) -> None:
    if type(parameters) is not dict:
        raise InternalError("failed to get request params.: attempt to get members for non-object")
    others: dict[str, Parameter] = {}
    for key, value in parameters.items():
        if key == "sequence_id":
            request.sequence_id = value if type(value) is int and 0 <= value < 2**64 else _string(value, key)
        elif key == "binary_data_output":
            request.binary_data_output = _bool(value, key)
        elif key in _FLAGS:
            setattr(request, key, _bool(value, key))
        elif key == "priority":
            request.priority = _uint(value, key)
        elif key == "timeout":
            request.timeout = _uint(value, key)
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
    for item in _array(head, "inputs"):
        entry = item if type(item) is dict else {}
        parameters = _parameters_of(entry)
        if ("binary_data_size" in parameters) + ("shared_memory_region" in parameters) + ("data" in entry) != 1:
            _refuse_sources(entry, parameters)
        name = _string(_member(entry, "name"), "name")
        datatype = _string(_member(entry, "datatype"), "datatype")
        shape = tuple(_uint(dim, "shape") for dim in _array(entry, "shape"))
        if name in seen:
            raise InvalidRequest(f"{request_prefix(request.id)}input '{name}' already exists in request")
        seen.add(name)
        if "binary_data_size" in parameters:
            size = _uint(parameters["binary_data_size"], "binary_data_size")
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
        parameters = _parameters_of(entry)
        if "shared_memory_region" in parameters and "classification" in parameters:
            raise InvalidRequest("Output can't set both 'shared_memory_region' and 'classification'")
        name = _string(_member(entry, "name"), "name")
        kept: dict[str, Parameter] = {}
        if "classification" in parameters:
            kept["classification"] = _uint(parameters["classification"], "classification", "Unable to set")
        if "shared_memory_region" in parameters:
            raise Unsupported(SHARED_MEMORY_DISABLED)
        if "binary_data" in parameters:
            kept["binary_data"] = _bool(parameters["binary_data"], "binary_data")
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


# ---------------------------------------------------------------------------------------------------------------------
# responses, server side

Classify = Callable[[Tensor, int], Tensor]
"""Turns an output into its best N classes; see ``classification``."""


def encode_response(
    response: InferenceResponse, request: InferenceRequest, classify: Classify | None = None
) -> tuple[dict[str, str], list[Buffer]]:
    """The answer to ``request`` as HTTP headers and body buffers, JSON first.

    Outputs that the request lists go as it says; when it lists none, all go as its ``binary_data_output`` says.
    Buffers may be views of the response's arrays.

    Raises:
        WorkbenchError: an output cannot be written (FP16 as JSON, classes of a BYTES tensor).
    """
    wanted = {output.name: output.parameters for output in request.outputs}
    default = bool(getattr(request, "binary_data_output", False))
    head: dict[str, Any] = {}
    if response.id:
        head["id"] = response.id
    head["model_name"] = response.model_name
    head["model_version"] = str(response.model_version)
    if response.parameters:
        head["parameters"] = dict(response.parameters)
    buffers: list[Buffer] = [b""]
    slow = False
    entries: list[dict[str, Any]] = []
    for tensor in response.outputs:
        parameters = wanted.get(tensor.name)
        binary = default if parameters is None else bool(parameters.get("binary_data", False))
        classes = 0 if parameters is None else int(parameters.get("classification", 0))
        if classes and classify is not None:
            tensor = classify(tensor, classes)
        entry, needs_slow = _encode_tensor(tensor, binary, buffers)
        entries.append(entry)
        slow = slow or needs_slow
    head["outputs"] = entries
    text = js.dumps_slow(head) if slow else js.dumps(head)
    buffers[0] = text
    if len(buffers) == 1:
        return {"Content-Type": "application/json"}, buffers
    return {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(text))}, buffers


def _encode_tensor(tensor: Tensor, binary: bool, buffers: list[Buffer]) -> tuple[dict[str, Any], bool]:
    entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    if not binary:
        entry["data"], slow = js.array_to_json(tensor.datatype, tensor.data)
        return entry, slow
    buffer = to_buffer(tensor)
    size = buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)
    entry["parameters"] = {"binary_data_size": size}
    if size:
        buffers.append(buffer)
    return entry, False


# ---------------------------------------------------------------------------------------------------------------------
# client side


def encode_request(request: InferenceRequest, *, binary: bool = True) -> tuple[dict[str, str], list[Buffer]]:
    """A request as HTTP headers and body buffers, JSON first.

    With ``binary`` inputs go as raw bytes and outputs are asked for so, unless an output's own ``binary_data`` says
    otherwise. FP16 and BF16 always go as raw bytes.
    """
    head: dict[str, Any] = {}
    if request.id:
        head["id"] = request.id
    parameters: dict[str, Any] = dict(request.parameters)
    if request.sequence_id not in (0, ""):
        parameters["sequence_id"] = request.sequence_id
        parameters["sequence_start"] = request.sequence_start
        parameters["sequence_end"] = request.sequence_end
    if request.priority:
        parameters["priority"] = request.priority
    if request.timeout:
        parameters["timeout"] = request.timeout
    if binary and not request.outputs:
        parameters.setdefault("binary_data_output", True)
    if parameters:
        head["parameters"] = parameters
    buffers: list[Buffer] = [b""]
    slow = False
    inputs: list[dict[str, Any]] = []
    for tensor in request.inputs:
        entry, needs_slow = _encode_tensor(tensor, binary or tensor.datatype in ("FP16", "BF16"), buffers)
        inputs.append(entry)
        slow = slow or needs_slow
    head["inputs"] = inputs
    if request.outputs:
        head["outputs"] = [_encode_output(output, binary) for output in request.outputs]
    text = js.dumps_slow(head) if slow else js.dumps(head)
    buffers[0] = text
    if len(buffers) == 1 and not any("parameters" in entry for entry in inputs):
        return {"Content-Type": "application/json"}, buffers
    return {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(text))}, buffers


def _encode_output(output: RequestedOutput, binary: bool) -> dict[str, Any]:
    parameters = dict(output.parameters)
    if binary:
        parameters.setdefault("binary_data", True)
    return {"name": output.name, "parameters": parameters} if parameters else {"name": output.name}


def decode_response(body: Buffer, header_length: int | None = None) -> InferenceResponse:
    """The response in a 200 answer; tensors are views of ``body`` where possible.

    Raises:
        WorkbenchError: it is no v2 response.
    """
    view = memoryview(body)
    length = view.nbytes if header_length is None else header_length
    if length < 0 or length > view.nbytes:
        raise InternalError(f"the server's {HEADER_LENGTH} {length} is outside its body of {view.nbytes} bytes")
    head = js.loads(body if length == view.nbytes else view[:length])
    if type(head) is not dict:
        raise InternalError("the server's answer is not a JSON object")
    version = head.get("model_version", "")
    response = InferenceResponse(
        model_name=str(head.get("model_name", "")),
        model_version=int(version) if str(version).isdigit() else -1,
        id=str(head.get("id", "")),
        parameters=_parameters_of(head),
    )
    offset = length
    for entry in _array(head, "outputs"):
        name = _string(_member(entry, "name"), "name")
        datatype = _string(_member(entry, "datatype"), "datatype")
        shape = tuple(_uint(dim, "shape") for dim in _array(entry, "shape"))
        size = _parameters_of(entry).get("binary_data_size")
        if size is not None:
            end = offset + _uint(size, "binary_data_size")
            if end > view.nbytes:
                raise InternalError(f"the server's answer ends {end - view.nbytes} bytes too early in output '{name}'")
            response.outputs.append(from_buffer(name, datatype, shape, view[offset:end]))
            offset = end
        else:
            array = js.array_from_json(
                name, datatype, shape, entry.get("data"), model=response.model_name, request_id="", max_size=2**62
            )
            response.outputs.append(Tensor(name, datatype, shape, array))
    return response


def decode_error(status: int, body: Buffer) -> WorkbenchError:
    """The error that an answer other than 200 stands for."""
    return from_http_status(status, js.error_message(body, f"HTTP status {status}"))
