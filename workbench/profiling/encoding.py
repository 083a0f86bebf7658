"""The requests of a load as the generator sends them: whole HTTP messages, or serialised gRPC messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.errors import InternalError, InvalidRequest
from workbench.profiling.plan import ID_FROM, Plan, encoded_id
from workbench.profiling.requests import Prepared
from workbench.profiling.shared import SharedTensors
from workbench.profiling.target import Target
from workbench.protocol.tensors import InferenceRequest

_ROOM = "~"
"""What stands for each byte of an id that is put in when a request is sent."""


def encode(target: Target, prepared: Prepared, shared: SharedTensors | None = None) -> tuple[list[bytes], Plan]:
    """The messages, and the plan with where in them the correlation ids stand.

    Args:
        target: the server.
        prepared: the requests.
        shared: where their tensors lie, if they lie in shared memory.

    Raises:
        InvalidRequest: a load that streams over HTTP, and inputs, priorities, timeouts or sequences, which the generate
            extension cannot carry.
    """
    grpc = target.protocol == "grpc"
    streaming = _streaming(prepared)
    specs: dict[str, Sequence[Mapping[str, Any]]] = {}
    messages = []
    width = max((len(json.dumps(each)) - 2 for each in prepared.plan.request_ids), default=0)
    for request, streams in zip(prepared.requests, streaming, strict=True):
        if width and not grpc:
            request = replace(request, id=_ROOM * width)
        if grpc:
            messages.append(_grpc(request, shared))
        else:
            if streams and request.model_name not in specs:
                specs[request.model_name] = _metadata_inputs(target, request.model_name)
            messages.append(_http(target.url, request, specs.get(request.model_name) if streams else None, shared))
    varint = grpc and not any(isinstance(request.sequence_id, str) for request in prepared.requests)
    places = [
        _id_at(message, varint) if request.sequence_id else -1
        for message, request in zip(messages, prepared.requests, strict=True)
    ]
    plan = replace(prepared.plan, id_at=places if max(places, default=-1) >= 0 else (), varint=varint)
    if width:
        plan = replace(plan, room_at=[() if grpc else _room_in(message, width) for message in messages])
    return messages, plan


def _room_in(message: bytes, width: int) -> tuple[int, int]:
    """Where a request's id stands in JSON, from its name to the comma behind it."""
    name = message.find(b'"id"')
    end = message.find(b",", message.find(_ROOM.encode() * width, max(0, name)))
    if name < 0 or end < 0:
        raise InternalError("the request's id is not in the encoded request")
    return name, end + 1 - name


def _streaming(prepared: Prepared) -> list[bool]:
    kinds = sorted(prepared.plan.classes, key=lambda kind: kind.first)
    ends = [kind.first for kind in kinds[1:]] + [len(prepared.requests)]
    return [kind.streaming for kind, end in zip(kinds, ends, strict=True) for _ in range(end - kind.first)]


def _id_at(message: bytes, varint: bool) -> int:
    """Where the correlation id stands: behind its name, so that no tensor's bytes are taken for it."""
    name = message.find(b"sequence_id")
    at = message.find(encoded_id(ID_FROM, varint=varint), max(0, name))
    if name < 0 or at < 0:
        raise InternalError("the correlation id is not in the encoded request")
    return at


def _grpc(request: InferenceRequest, shared: SharedTensors | None) -> bytes:
    from workbench.client.grpc_codec import encode_request, set_parameter

    if shared is None:
        return bytes(encode_request(request).SerializeToString())
    message = encode_request(replace(request, inputs=[], outputs=()))
    for tensor in request.inputs:
        entry = message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        for key, value in shared.place_of(tensor).items():
            set_parameter(entry.parameters, key, value)
    for name, place in shared.outputs_of(request.model_name).items():
        output = message.outputs.add(name=name)
        for key, value in place.items():
            set_parameter(output.parameters, key, value)
    return bytes(message.SerializeToString())


def _http(
    url: str, request: InferenceRequest, specs: Sequence[Mapping[str, Any]] | None, shared: SharedTensors | None
) -> bytes:
    from workbench.client.http_client import infer_path, model_path
    from workbench.profiling.http_load import http_messages
    from workbench.protocol import json_data as js
    from workbench.protocol.generate import encode_generate_request
    from workbench.protocol.http_codec import encode_request, said_parameters

    said = said_parameters(request)
    if specs is not None:
        unsaid = [name for name in said if name not in request.parameters]
        if unsaid:
            raise InvalidRequest(
                f"a stream over HTTP (generate_stream) carries no {unsaid[0].partition('_')[0]}",
                where=f"model '{request.model_name}'",
                hint="measure it over gRPC: wb.connect(server.grpc_url)",
            )
        body = encode_generate_request(request, specs)
        path = f"{model_path(request.model_name)}/generate_stream"
        return http_messages(url, path, [({"Content-Type": "application/json"}, body)])[0]
    if shared is None:
        headers, buffers = encode_request(request)
        return http_messages(url, infer_path(request), [(headers, b"".join(buffers))])[0]
    head: dict[str, Any] = {"id": request.id} if request.id else {}
    if said:
        head["parameters"] = said
    head["inputs"] = [
        {
            "name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape),
            "parameters": shared.place_of(tensor),
        }
        for tensor in request.inputs
    ]  # fmt: skip
    outputs = shared.outputs_of(request.model_name)
    head["outputs"] = [{"name": name, "parameters": place} for name, place in outputs.items()]
    return http_messages(url, infer_path(request), [({"Content-Type": "application/json"}, js.dumps(head))])[0]


def _metadata_inputs(target: Target, model: str) -> Sequence[Mapping[str, Any]]:
    """The model's inputs as its metadata has them; none where the target does not tell."""
    tell = getattr(target, "model_metadata", None)
    return list(tell(model)["inputs"]) if tell is not None else []
