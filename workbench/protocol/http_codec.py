"""KServe v2 inference over HTTP: requests and responses as a JSON head and raw buffers, both ways.

A server decodes requests and encodes responses, a client does the twin of each. Nothing here knows a socket. Source and
texts: Triton's ``http_server.cc`` (``ParseJsonTritonIO``, ``ParseJsonTritonParams``, ``FinalizeResponse``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workbench.errors import InternalError, WorkbenchError, from_http_status
from workbench.protocol import json_data as js
from workbench.protocol import json_fields as fields
from workbench.protocol.binary import Buffer, from_buffer, to_buffer
from workbench.protocol.http_request import (
    MAX_INPUT_SIZE,
    DecodedRequest,
    DecodeOptions,
    decode_request,
    json_too_large,
    raw_request,
)
from workbench.protocol.shared_memory import MemoryTarget
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, RequestedOutput, Tensor

__all__ = [
    "HEADER_LENGTH", "MAX_INPUT_SIZE", "MODEL_HEADER", "VERSION_HEADER", "Classify", "DecodeOptions", "DecodedRequest",
    "decode_error", "decode_request", "decode_response", "encode_request", "encode_response", "json_too_large",
    "raw_request",
]  # fmt: skip

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The header that says where the JSON ends and the raw buffers begin."""

MODEL_HEADER, VERSION_HEADER = "Workbench-Model", "Workbench-Model-Version"
"""Where the control plane says which model (percent-encoded) and version a captured request went to."""

_NO_TARGETS: Mapping[str, MemoryTarget] = {}

Classify = Callable[[Tensor, int], Tensor]
"""Turns an output into its best N classes; see ``classification``."""


def encode_response(
    response: InferenceResponse, request: InferenceRequest, classify: Classify | None = None
) -> tuple[dict[str, str], list[Buffer]]:
    """The answer to ``request`` as HTTP headers and body buffers, JSON first.

    Outputs that the request lists go as it says; when it lists none, all go as its ``binary_data_output`` says.
    Those that have a place in shared memory are written there. Buffers may be views of the response's arrays.

    Raises:
        WorkbenchError: an output cannot be written (FP16 as JSON, classes of a BYTES tensor).
    """
    wanted = {output.name: output.parameters for output in request.outputs}
    default, targets = False, _NO_TARGETS
    if isinstance(request, DecodedRequest):
        default, targets = request.binary_data_output, request.targets
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
        if tensor.name in targets:
            targets[tensor.name].write(tensor.name, to_buffer(tensor))
            entries.append({"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)})
            continue
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


def encode_request(request: InferenceRequest, *, binary: bool = True) -> tuple[dict[str, str], list[Buffer]]:
    """A request as HTTP headers and body buffers, JSON first.

    With ``binary`` inputs go as raw bytes and outputs are asked for so, unless an output's own ``binary_data`` says
    otherwise. FP16 and BF16 always go as raw bytes.
    """
    head: dict[str, Any] = {}
    if request.id:
        head["id"] = request.id
    parameters = said_parameters(request)
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


def said_parameters(request: InferenceRequest) -> dict[str, Any]:
    """A request's parameters as JSON has them, with those that are fields of their own here."""
    parameters: dict[str, Any] = dict(request.parameters)
    if request.sequence_id not in (0, ""):
        parameters["sequence_id"] = request.sequence_id
        parameters["sequence_start"] = request.sequence_start
        parameters["sequence_end"] = request.sequence_end
    if request.priority:
        parameters["priority"] = request.priority
    if request.timeout:
        parameters["timeout"] = request.timeout
    return parameters


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
        parameters=fields.parameters_of(head),
    )
    offset = length
    for entry in fields.array(head, "outputs"):
        name = fields.string(fields.member(entry, "name"), "name")
        datatype = fields.string(fields.member(entry, "datatype"), "datatype")
        shape = tuple(fields.unsigned(dim, "shape") for dim in fields.array(entry, "shape"))
        size = fields.parameters_of(entry).get("binary_data_size")
        if size is not None:
            end = offset + fields.unsigned(size, "binary_data_size")
            if end > view.nbytes:
                raise InternalError(f"the server's answer ends {end - view.nbytes} bytes too early in output '{name}'")
            response.outputs.append(from_buffer(name, datatype, shape, view[offset:end]))
            offset = end
        else:
            array = js.array_from_json(js.Source(name, datatype, response.model_name), shape, entry.get("data"))
            response.outputs.append(Tensor(name, datatype, shape, array))
    return response


def decode_error(status: int, body: Buffer) -> WorkbenchError:
    """The error that an answer other than 200 stands for."""
    return from_http_status(status, js.error_message(body, f"HTTP status {status}"))
