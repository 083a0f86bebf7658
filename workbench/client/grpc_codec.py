"""Requests, responses and other messages to and from protobuf. Needs gRPC's proto classes: imported late."""

from __future__ import annotations

import base64
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from workbench.errors import InternalError
from workbench.protocol.binary import from_buffer, to_buffer
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Parameter

SERVICE = "/inference.GRPCInferenceService"


def set_parameter(target: Any, key: str, value: Parameter) -> None:
    """Sets a parameter in a message's map, in the field for its type."""
    parameter = target[key]
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        if value >= 2**63:
            parameter.uint64_param = value
        else:
            parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value


def encode_request(request: InferenceRequest) -> Any:
    """A ``ModelInferRequest``; tensors go as raw contents."""
    message = pb.ModelInferRequest(model_name=request.model_name, id=request.id)
    if request.model_version != -1:
        message.model_version = str(request.model_version)
    for key, value in request.parameters.items():
        set_parameter(message.parameters, key, value)
    if request.sequence_id not in (0, ""):
        set_parameter(message.parameters, "sequence_id", request.sequence_id)
        set_parameter(message.parameters, "sequence_start", request.sequence_start)
        set_parameter(message.parameters, "sequence_end", request.sequence_end)
    if request.priority:
        message.parameters["priority"].uint64_param = request.priority
    if request.timeout:
        set_parameter(message.parameters, "timeout", request.timeout)
    for tensor in request.inputs:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_input_contents.append(bytes(to_buffer(tensor)))
    for output in request.outputs:
        entry = message.outputs.add(name=output.name)
        for key, value in output.parameters.items():
            if key != "binary_data":  # over gRPC every output is binary
                set_parameter(entry.parameters, key, value)
    return message


def decode_response(message: Any) -> InferenceResponse:
    """The response in a ``ModelInferResponse``.

    Raises:
        WorkbenchError: contents and outputs do not fit.
    """
    version = message.model_version
    response = InferenceResponse(
        model_name=message.model_name,
        model_version=int(version) if version.isdigit() else -1,
        id=message.id,
        parameters={key: parameter_value(value) for key, value in message.parameters.items()},
    )
    if len(message.raw_output_contents) != len(message.outputs):
        raise InternalError(
            f"the server sent {len(message.outputs)} outputs with {len(message.raw_output_contents)} raw contents"
        )
    for output, raw in zip(message.outputs, message.raw_output_contents, strict=True):
        response.outputs.append(from_buffer(output.name, output.datatype, tuple(output.shape), memoryview(raw)))
    return response


def parameter_value(value: Any) -> Parameter:
    """What a parameter of a message holds; an empty text where it holds nothing."""
    field = value.WhichOneof("parameter_choice")
    chosen: Parameter = getattr(value, field) if field else ""
    return chosen


def to_dict(message: Any) -> dict[str, Any]:
    """A message as Triton's HTTP endpoint prints it: snake_case, defaults included, 64-bit integers as numbers.

    Messages and members of a oneof that are not set are left out.
    """
    out: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value_field = field.message_type.fields_by_name["value"]
            items = getattr(message, field.name)
            out[field.name] = {str(key): _value(value_field, items[key]) for key in items}
        elif _repeated(field):
            out[field.name] = [_value(field, item) for item in getattr(message, field.name)]
        elif field.has_presence and not message.HasField(field.name):
            continue
        else:
            out[field.name] = _value(field, getattr(message, field.name))
    return out


def _repeated(field: Any) -> bool:
    repeated = getattr(field, "is_repeated", None)
    return bool(repeated if repeated is not None else field.label == field.LABEL_REPEATED)


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return to_dict(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value
