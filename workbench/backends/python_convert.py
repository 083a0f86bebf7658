"""Between the protocol's requests and responses and the frames of a model's process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from workbench.backends._child import wire
from workbench.backends._child.lines import as_unicode
from workbench.backends.base import BackendHost, ModelContext
from workbench.errors import BackendError, Code, InvalidRequest, NotFound, NotReady, QueueFull, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Parameter, RequestedOutput, Tensor

# The request's own fields, which Triton takes out of the parameters, and the front end's.
RESERVED = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output", "binary_data_size")
)
CODES: tuple[Code, ...] = (
    Code.UNKNOWN,
    Code.INTERNAL,
    Code.NOT_FOUND,
    Code.INVALID_ARG,
    Code.UNAVAILABLE,
    Code.UNSUPPORTED,
    Code.ALREADY_EXISTS,
    Code.CANCELLED,
)
"""By TRITONSERVER_Error_Code."""
NUMBERS = {code: number for number, code in enumerate(CODES)}


def parameters_json(parameters: Mapping[str, Parameter]) -> str:
    """A request's parameters as a model sees them: compact JSON in UTF-8 as it is, "" for none."""
    kept = {key: value for key, value in parameters.items() if key not in RESERVED}
    return json.dumps(kept, separators=(",", ":"), ensure_ascii=False) if kept else ""


def request_fields(request: InferenceRequest) -> tuple[Any, ...] | None:
    """What a model's ``InferenceRequest._received`` takes: id, correlation id, flags, timeout, parameters, outputs.

    None where none of them is set.
    """
    if not (request.id or request.parameters or request.outputs or request.timeout or request.sequence_id):
        return None
    parameters = parameters_json(request.parameters) if request.parameters else ""
    flags = int(request.sequence_start) | int(request.sequence_end) << 1
    outputs = tuple([output.name for output in request.outputs]) if request.outputs else None
    return request.id, request.sequence_id, flags, request.timeout, parameters, outputs


def pack_requests(requests: Sequence[InferenceRequest]) -> tuple[tuple[Any, ...], wire.Packer]:
    """A batch as it stands in the head of an EXECUTE frame, and its tensors.

    The head: how many requests, their fields (None where none has any), the numbers of their tensors' descriptions
    (None for a uniform batch), and the descriptions.
    """
    fields: Any = tuple([request_fields(request) for request in requests])
    if not any(fields):
        fields = None
    columns = _columns_of_form(requests) or columns_of(requests)
    if columns is not None:
        kinds, packer = wire.pack_columns(columns)
        return (len(requests), fields, None, kinds), packer
    packer = wire.Packer()
    add = packer.add
    numbers = tuple([tuple([add(t.name, t.datatype, t.data) for t in request.inputs]) for request in requests])
    return (len(requests), fields, numbers, packer.kinds), packer


def _columns_of_form(requests: Sequence[InferenceRequest]) -> list[Any] | None:
    """The inputs of a batch whose requests are of one form: what ``columns_of`` gives, without a look at each."""
    form = requests[0].form
    if form is None or form.size > wire.COPY_LIMIT:
        return None
    for request in requests:
        if request.form is not form:
            return None
    return [(*kind, [request.inputs[at].data for request in requests]) for at, kind in enumerate(form.kinds)]


def columns_of(requests: Sequence[InferenceRequest]) -> list[Any] | None:
    """The inputs of a batch by name, where all requests have the same small ones (see ``wire.pack_columns``)."""
    columns: list[Any] = []
    for tensor in requests[0].inputs:
        if not wire.fits_column(tensor.datatype, tensor.data):
            return None
        columns.append((tensor.name, tensor.datatype, tensor.data.shape, []))
    count = len(columns)
    for request in requests:
        inputs = request.inputs
        if len(inputs) != count:
            return None
        for tensor, (name, datatype, shape, arrays) in zip(inputs, columns, strict=True):
            data = tensor.data
            if data.shape != shape or tensor.datatype != datatype or tensor.name != name:
                return None
            arrays.append(data)
    return columns or None


def unpack_tensors(kinds: Any, numbers: Any, buffer: Any, offset: int) -> tuple[list[Tensor], int]:
    """The tensors of these descriptions, from ``offset`` of the payload, and where the next ones start."""
    tensors = []
    for number in numbers:
        name, datatype, shape, size = kinds[number]
        tensors.append(Tensor(name, datatype, shape, wire.unpack(datatype, shape, buffer, offset, size)))
        offset += size + (-size % wire.ALIGN)
    return tensors, offset


def uniform_answers(
    context: ModelContext, requests: Sequence[InferenceRequest], kinds: Any, buffer: Any
) -> Iterable[tuple[int, InferenceResponse]]:
    """The answers of a batch that all look alike."""
    name, version = context.name, context.version
    columns = wire.unpack_columns(kinds, len(requests), buffer)
    if len(columns) == 1:
        output, datatype, shape, arrays = columns[0]
        return [
            (index, InferenceResponse(name, version, requests[index].id, [Tensor(output, datatype, shape, array)]))
            for index, array in enumerate(arrays)
        ]
    return [
        (
            index,
            InferenceResponse(
                name, version, request.id, [Tensor(n, d, s, arrays[index]) for n, d, s, arrays in columns]
            ),
        )
        for index, request in enumerate(requests)
    ]


def mixed_answers(
    context: ModelContext, requests: Sequence[InferenceRequest], entries: Any, kinds: Any, buffer: Any
) -> Iterable[tuple[int, InferenceResponse]]:
    """Answers of any kind."""
    name, version = context.name, context.version
    answers = []
    offset = 0
    for entry in entries:
        index = entry[0]
        if len(entry) == 2:
            outputs, offset = unpack_tensors(kinds, entry[1], buffer, offset)
            response = InferenceResponse(name, version, requests[index].id, outputs)
        else:
            _, final, code, message, parameters, numbers = entry
            response = InferenceResponse(name, version, requests[index].id, final=final)
            if code >= 0:
                response.error = model_error(code, message)
            elif numbers is not None:
                response.outputs, offset = unpack_tensors(kinds, numbers, buffer, offset)
                if parameters:
                    response.parameters = parse_parameters(parameters)
        answers.append((index, response))
    return answers


def parse_parameters(text: str) -> dict[str, Parameter]:
    """A response's parameters from their JSON."""
    return json.loads(text) if text else {}


def model_error(number: int, message: str) -> WorkbenchError:
    """The error that a model answered with."""
    return BackendError(as_unicode(message), code=CODES[number] if 0 <= number < len(CODES) else Code.UNKNOWN)


def nested_request(head: Any, tensors: list[Tensor], parent_seq: int) -> InferenceRequest:
    """The request that a model made (BLS); ``head`` as the channel's ``infer`` packs it."""
    name, version, request_id, correlation_id, flags, timeout, parameters, outputs, _ = head
    return InferenceRequest(
        model_name=name,
        inputs=tensors,
        outputs=[RequestedOutput(output) for output in dict.fromkeys(outputs)],  # twice the same is no error there
        model_version=version,
        id=request_id,
        parameters=parse_parameters(parameters),
        timeout=timeout,
        sequence_id=correlation_id,
        sequence_start=bool(flags & 1),
        sequence_end=bool(flags & 2),
        parent_seq=parent_seq,
    )


def infer_nested(
    host: BackendHost, streams: bool, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]
) -> Callable[[], None]:
    """``host.infer``, unless the model is decoupled and the caller waits for one response (request_executor.cc).

    Raises:
        BackendError: that is so.
    """
    name = request.model_name
    if not streams and host.is_decoupled(name, request.model_version):
        raise BackendError(
            f"Model {name} - Error when running inference: Model {name} is using the decoupled. The current BLS "
            "request call doesn't support models using the decoupled transaction policy. Please use 'decoupled=True' "
            "argument to the 'exec' or 'async_exec' calls for decoupled models.'"
        )
    return host.infer(request, on_response)


def refusal_text(model: str, error: WorkbenchError) -> str:
    """What a model reads when its nested request was refused at once (python_backend's request_executor.cc)."""
    message = error.message
    if isinstance(error, NotFound | NotReady):
        message = f"Failed for execute the inference request. Model '{model}' is not ready."
    return f"Model {model} - Error when running inference: {message}"


def nested_error_text(model: str, error: WorkbenchError) -> str:
    """What a model reads of a nested request's error: the model's own words, or why the request was refused."""
    if isinstance(error, InvalidRequest | NotFound | NotReady | QueueFull):
        return refusal_text(model, error)
    return error.message


def answer_head(model: str, response: InferenceResponse, packer: wire.Packer) -> tuple[Any, ...]:
    """A nested request's response as the rest of an ANSWER head: final, code, text, parameters, tensors, kinds."""
    if response.error is not None:
        # Triton hands every error of a nested request on as INTERNAL
        return response.final, NUMBERS[Code.INTERNAL], nested_error_text(model, response.error), "", None, ()
    tensors = tuple([packer.add(t.name, t.datatype, t.data) for t in response.outputs])
    parameters = json.dumps(dict(response.parameters)) if response.parameters else ""
    return response.final, -1, "", parameters, tensors, packer.kinds
