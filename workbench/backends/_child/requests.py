"""``InferenceRequest`` and the response sender of ``triton_python_backend_utils``, and the bookkeeping of one batch.

Rules (python_backend, pb_stub.cc and response_sender.cc): a model that is not decoupled answers each request exactly
once, through the list that ``execute`` returns or through a response sender; a decoupled one sends any number of
responses through senders, the last with the final flag, also after ``execute`` has returned and from other threads.
"""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Callable
from typing import Any, Protocol

from workbench.backends._child.tensors import (
    MODULE,
    InferenceResponse,
    Tensor,
    TritonError,
    TritonModelException,
    check_parameters,
    incompatible,
)

FINAL = 1
RELEASE_ALL, RELEASE_RESCHEDULE = 1, 2
FLAG_SEQUENCE_START, FLAG_SEQUENCE_END = 1, 2
DECOUPLED_HINT = "A model that sends any number of responses needs `model_transaction_policy { decoupled: true }`"


class Responses(Protocol):
    """The responses of a nested request, which is under way from the start."""

    def __next__(self) -> tuple[InferenceResponse, bool]:
        """The next one, and whether it is the final one; waits for it. None come after the final one or ``close``."""

    def close(self) -> None:
        """Cancels the request if it has not ended. Thread-safe."""


class Runtime(Protocol):
    """What a model reaches its server through."""

    def infer(self, request: InferenceRequest) -> Responses:
        """Sends a nested request; does not wait for an answer."""

    def executor(self) -> Any:
        """Threads for ``async_exec``."""

    def log(self, level: str, message: str) -> None:
        """A line for the server's log."""


class MemoryType(enum.IntEnum):
    """Where a tensor lies (TRITONSERVER_MemoryType)."""

    TRITONSERVER_MEMORY_CPU = 0
    TRITONSERVER_MEMORY_GPU = 2


class PreferredMemory:
    """Where a nested request would like its outputs; here they always lie in host memory."""

    __slots__ = ("_device", "_kind")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        self._kind = preferred_memory_type
        self._device = preferred_device_id


class Sink(Protocol):
    """Where the answers of a batch go. Thread-safe."""

    def emit(self, index: int, response: InferenceResponse | None, final: bool) -> None:
        """Passes an answer on; None is a final flag without a response."""

    def emit_all(self, responses: list[InferenceResponse]) -> None:
        """Passes the final answers of all requests on, in their order; ``leave`` follows."""

    def leave(self, batch: Batch, error: str) -> None:
        """Called once: ``execute`` has returned and (unless decoupled) every request is answered."""


class Batch:
    """One batch in a model: who has been answered, and where answers go. Thread-safe."""

    __slots__ = (
        "cancelled",
        "decoupled",
        "error",
        "given_back",
        "input_end",
        "instance",
        "left",
        "lock",
        "model",
        "open",
        "output_start",
        "returned",
        "sink",
    )

    def __init__(
        self,
        size: int,
        sink: Sink,
        cancelled: Callable[[int], bool],
    ) -> None:
        self.sink = sink
        self.cancelled = cancelled
        self.lock = threading.Lock()
        self.open = size
        self.returned = False
        self.left = False
        self.decoupled = False
        self.error = ""
        self.given_back: list[int] = []
        self.model = self.instance = ""
        self.input_end = self.output_start = 0

    def answer_all(self, replies: list[Reply], responses: list[InferenceResponse]) -> None:
        """The list that ``execute`` returned, where no response sender was taken."""
        self.sink.emit_all(responses)
        for reply in replies:
            reply.closed = True
        with self.lock:
            self.open = 0

    def closed_one(self) -> None:
        """A request has had its last response."""
        with self.lock:
            self.open -= 1
            last = self.returned and not self.open and not self.decoupled and not self.left
            self.left = self.left or last
        if last:
            self.sink.leave(self, self.error)

    def end(self, error: str) -> None:
        """``execute`` has returned, or raised."""
        with self.lock:
            self.returned = True
            self.error = error
            last = not self.left and (not self.open or self.decoupled or bool(error))
            self.left = self.left or last
        if last:
            self.sink.leave(self, error)


class Reply:
    """The state of one request's answer, shared by the request and its senders."""

    # Defaults on the class: one of these is made for every request, and most are never written to.
    sent = 0
    closed = False
    held: InferenceResponse | None = None
    senders = False
    back = False

    def __init__(self, batch: Batch, index: int) -> None:
        self.batch = batch
        self.index = index

    def send(self, response: InferenceResponse | None, flags: int) -> None:
        """What a response sender does; see the module's text for the rules."""
        batch = self.batch
        final = flags == FINAL
        with batch.lock:
            if not batch.decoupled:
                if response is None and final and not self.sent:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send complete final before sending a "
                        "response."
                    )
                if response is not None and self.sent:
                    self.held = None
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send more than one response. "
                        f"{DECOUPLED_HINT} (model '{batch.model}', instance '{batch.instance}')"
                    )
                if response is None and self.held is None and self.closed:
                    return  # the response itself was taken for the final one, execute having returned
            if self.closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            if response is not None:
                self.sent += 1
            if not batch.decoupled:
                if not final and not batch.returned:
                    self.held = response  # a second one would be an error: so the first waits for execute to return
                    return
                response, self.held = response or self.held, None
                final = True
            self.closed = final
        batch.sink.emit(self.index, response, final)
        if final:
            batch.closed_one()

    def give_back(self) -> None:
        """The request is to be executed again (its release flag): this execution owes it no answer any more.

        One that has had its last response is over; the flag then does nothing.
        """
        batch = self.batch
        with batch.lock:
            if self.closed or (self.sent and not batch.decoupled):
                return
            self.closed = True
            batch.open -= 1
            batch.given_back.append(self.index)

    def fail(self) -> bool:
        """Marks a request as answered by the batch's error; False where it has been answered."""
        with self.batch.lock:
            if self.closed:
                return False
            self.closed = True
            return True

    def __del__(self) -> None:
        if self.closed or not self.batch.returned or self.batch.error:
            return
        text = (
            f"Failed to process the request(s) for model '{self.batch.instance}', message: the response sender was "
            "dropped without a response with the flag TRITONSERVER_RESPONSE_COMPLETE_FINAL"
        )
        self.closed = True
        self.batch.sink.emit(self.index, InferenceResponse(error=TritonError(text)), True)
        self.batch.closed_one()


class InferenceResponseSender:
    """Sends the responses of one request."""

    __module__ = MODULE
    __slots__ = ("_outputs", "_reply")

    def __init__(self, reply: Reply, outputs: Any) -> None:
        self._reply = reply
        self._outputs = outputs

    def send(self, response: Any = None, flags: int = 0) -> None:
        """Sends a response, the last one with ``flags=TRITONSERVER_RESPONSE_COMPLETE_FINAL``.

        Raises:
            TritonModelException: against the rules, in Triton's words.
        """
        if response is not None and not isinstance(response, InferenceResponse):
            raise incompatible(
                "send",
                "(self: c_python_backend_utils.InferenceResponseSender, response: "
                "c_python_backend_utils.InferenceResponse = None, flags: int = 0) -> None",
                (self, response),
                {},
            )
        if flags not in (0, FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        self._reply.send(prune(response, self._outputs), flags)

    def is_cancelled(self) -> bool:
        """Whether the client has gone away."""
        return self._reply.batch.cancelled(self._reply.index)


def prune(response: Any, outputs: Any) -> Any:
    """Leaves out the output tensors that were not asked for."""
    if response is not None and outputs is not None and response._error is None:
        for tensor in response._tensors:
            if tensor._name not in outputs:
                response._tensors = [tensor for tensor in response._tensors if tensor._name in outputs]
                break
    return response


_REQUEST = (
    "c_python_backend_utils.InferenceRequest(request_id: str = '', correlation_id: object = 0, "
    "inputs: List[triton::backend::python::PbTensor], requested_output_names: List[str], model_name: str, "
    "model_version: int = -1, flags: int = 0, timeout: int = 0, preferred_memory: "
    "c_python_backend_utils.PreferredMemory, trace: c_python_backend_utils.InferenceTrace, parameters: object = None)"
)


class InferenceRequest:
    """A request: one that the model got, or one that it makes for another model (BLS)."""

    # Defaults on the class, not in every instance: requests are made by the thousand. A model's own subclass also has
    # its runtime, name, version and outputs as defaults, for the requests that it receives.
    _id = ""
    _correlation_id: Any = 0
    _flags = 0
    _timeout = 0
    _parameters = ""
    _preferred_memory: Any = None
    _trace: Any = None
    _release_flags = 0
    _reply: Reply | None = None
    _inputs: list[Tensor]
    _outputs: Any
    _model_name: str
    _model_version: int
    _runtime: Runtime

    def __init__(
        self,
        request_id: str = "",
        correlation_id: Any = 0,
        inputs: Any = None,
        requested_output_names: Any = None,
        model_name: Any = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: Any = None,
        trace: Any = None,
        parameters: Any = None,
    ) -> None:
        good = isinstance(inputs, (list, tuple)) and all(isinstance(tensor, Tensor) for tensor in inputs)
        names = isinstance(requested_output_names, (list, tuple, set))
        if not good or not names or not isinstance(model_name, str):
            given = {"model_name": model_name, "inputs": inputs, "requested_output_names": requested_output_names}
            raise incompatible("__init__", _REQUEST, (), {k: v for k, v in given.items() if v is not None})
        self._id = request_id
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._outputs: Any = list(requested_output_names)
        self._model_name = model_name
        self._model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._preferred_memory = preferred_memory
        self._trace = trace
        self._parameters = check_parameters(parameters)

    @classmethod
    def received(cls, fields: Any, inputs: list[Tensor], reply: Reply) -> InferenceRequest:
        """A request that came from the server.

        ``fields``: id, correlation id, flags, timeout, parameters, outputs; None where none of them is set.
        """
        request = object.__new__(cls)
        request._inputs = inputs
        request._reply = reply
        if fields is not None:
            request._id, request._correlation_id, request._flags, request._timeout, parameters, outputs = fields
            request._parameters = parameters
            if outputs:
                request._outputs = outputs
        return request

    def request_id(self) -> str:
        """The client's id."""
        return self._id

    def correlation_id(self) -> Any:
        """The sequence's id, an int or a str; 0 for none."""
        return self._correlation_id

    def inputs(self) -> list[Tensor]:
        """The input tensors."""
        return self._inputs

    def requested_output_names(self) -> set[str]:
        """The outputs that the client asks for; all of the configuration's where it names none."""
        return set(self._outputs)

    def model_name(self) -> str:
        """The model that the request is for."""
        return self._model_name

    def model_version(self) -> int:
        """The version asked for, -1 for the latest."""
        return self._model_version

    def flags(self) -> int:
        """TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Sets the flags of a request to be sent."""
        self._flags = flags

    def set_release_flags(self, flags: int) -> None:
        """What becomes of the request after ``execute``: TRITONSERVER_REQUEST_RELEASE_ALL, or _RESCHEDULE."""
        self._release_flags = flags
        if self._reply is not None:
            self._reply.back = flags == RELEASE_RESCHEDULE

    def timeout(self) -> int:
        """The request's timeout in microseconds, 0 for none."""
        return self._timeout

    def parameters(self) -> str:
        """The request's parameters as JSON."""
        return self._parameters or "{}"

    def preferred_memory(self) -> Any:
        """Where the outputs should lie."""
        return self._preferred_memory

    def trace(self) -> Any:
        """The trace that the request belongs to; None where there is none."""
        return self._trace

    def is_cancelled(self) -> bool:
        """Whether the client has gone away."""
        return self._reply is not None and self._reply.batch.cancelled(self._reply.index)

    def get_response_sender(self) -> InferenceResponseSender:
        """The sender for this request's responses."""
        if self._reply is None:
            raise TritonModelException("Cannot get a response sender of a request that was not received by the model.")
        self._reply.senders = True
        return InferenceResponseSender(self._reply, self._outputs)

    def exec(self, decoupled: bool = False) -> Any:
        """Runs the request on its model and waits: a response, or with ``decoupled`` an iterator over responses."""
        stream = self._runtime.infer(self)
        if decoupled:
            return ResponseIterator(stream)
        response, final = next(stream)
        if not final:
            stream.close()
            name = self._model_name
            text = (
                f"Model {name} - Error when running inference: Model {name} is using the decoupled. The current BLS "
                "request call doesn't support models using the decoupled transaction policy. Please use "
                "'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled models.'"
            )
            return InferenceResponse(error=TritonError(text))
        return response

    async def async_exec(self, decoupled: bool = False) -> Any:
        """``exec`` as an awaitable."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._runtime.executor(), self.exec, decoupled)


def nested_head(request: InferenceRequest) -> tuple[Any, ...]:
    """What there is to a nested request beside its tensors, as the server reads it."""
    return (
        request._model_name,
        request._model_version,
        request._id,
        request._correlation_id,
        request._flags,
        request._timeout,
        request._parameters,
        tuple(request._outputs),
    )


class ResponseIterator:
    """The responses of a nested request to a decoupled model."""

    def __init__(self, stream: Responses) -> None:
        self._stream = stream

    def __iter__(self) -> ResponseIterator:
        return self

    def __next__(self) -> InferenceResponse:
        return next(self._stream)[0]

    def cancel(self) -> None:
        """Stops the request; no further responses come."""
        self._stream.close()
