"""``InferenceRequest`` of ``triton_python_backend_utils``: one that a model got, or one that it makes (BLS)."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from workbench.backends._child.enums import MODULE, MemoryType
from workbench.backends._child.lines import Lines
from workbench.backends._child.metrics import Drops
from workbench.backends._child.replies import InferenceResponseSender, Reply
from workbench.backends._child.tensors import (
    InferenceResponse,
    Tensor,
    TritonModelException,
    arguments,
    check_parameters,
    incompatible,
)

RELEASE_ALL, RELEASE_RESCHEDULE = 1, 2
FLAG_SEQUENCE_START, FLAG_SEQUENCE_END = 1, 2


class Responses(Protocol):
    """The responses of a nested request, which is under way from the start."""

    def __next__(self) -> tuple[InferenceResponse, bool]:
        """The next one, and whether it is the final one; waits for it. None come after the final one or ``close``."""

    def close(self) -> None:
        """Cancels the request if it has not ended. Thread-safe."""


class Runtime(Protocol):
    """What a model reaches its server through: ``lines`` for the log, ``drops`` are the metrics that it lets go."""

    drops: Drops
    lines: Lines

    def infer(self, request: InferenceRequest, streams: bool) -> Responses:
        """Sends a nested request; does not wait for an answer. Without ``streams`` no decoupled model takes it."""

    def executor(self) -> Any:
        """Threads for ``async_exec``."""

    def ask(self, operation: str, *arguments: Any) -> Any:
        """Asks the server something else (see ``python_questions``) and waits.

        Raises:
            TritonModelException: it refused.
        """

    def tell(self, operation: str, *arguments: Any) -> None:
        """Tells the server something; no answer comes."""


class PreferredMemory:
    """Where a nested request would like its outputs; here they always lie in host memory."""

    __module__ = MODULE
    __slots__ = ("_device", "_kind")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        signature = (
            f"{MODULE}.PreferredMemory(preferred_memory_type: triton::backend::python::PreferredMemory::MemoryType, "
            "preferred_device_id: int = 0)"
        )
        names = {"preferred_memory_type": ..., "preferred_device_id": 0}
        self._kind, self._device = arguments("__init__", signature, names, args, kwargs).values()
        if not isinstance(self._kind, MemoryType) or not isinstance(self._device, int):
            raise incompatible("__init__", signature, args, kwargs)


class InferenceTrace:
    """The trace that a request belongs to, for a nested request to take part in."""

    __module__ = MODULE
    __slots__ = ()

    def get_context(self) -> str | None:
        """The propagated context of an OpenTelemetry trace as JSON, None where there is none."""
        return None


_NO_TRACE = InferenceTrace()


_ANY_MEMORY = object.__new__(PreferredMemory)
_REQUEST = (
    "c_python_backend_utils.InferenceRequest(request_id: str = '', correlation_id: object = 0, "
    "inputs: List[triton::backend::python::PbTensor], requested_output_names: List[str], model_name: str, "
    "model_version: int = -1, flags: int = 0, timeout: int = 0, preferred_memory: "
    f"c_python_backend_utils.PreferredMemory = {_ANY_MEMORY!r}, trace: c_python_backend_utils.InferenceTrace = "
    f"{_NO_TRACE!r}, parameters: object = None)"
)
_NAMES: dict[str, Any] = {
    "request_id": "",
    "correlation_id": 0,
    "inputs": ...,
    "requested_output_names": ...,
    "model_name": ...,
    "model_version": -1,
    "flags": 0,
    "timeout": 0,
    "preferred_memory": _ANY_MEMORY,
    "trace": _NO_TRACE,
    "parameters": None,
}


def _fits(given: dict[str, Any]) -> bool:
    """Whether the arguments of ``InferenceRequest`` have the types that Triton's C++ module takes."""
    return (
        isinstance(given["request_id"], str)
        and isinstance(given["model_name"], str)
        and isinstance(given["inputs"], (list, tuple))
        and all(isinstance(tensor, Tensor) for tensor in given["inputs"])
        and isinstance(given["requested_output_names"], (list, tuple))
        and all(isinstance(name, str) for name in given["requested_output_names"])
        and hasattr(given["model_version"], "__index__")
        and all(hasattr(given[name], "__index__") and given[name] >= 0 for name in ("flags", "timeout"))
        and isinstance(given["preferred_memory"], PreferredMemory)
        and isinstance(given["trace"], InferenceTrace)
    )


def _check_correlation_id(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if not isinstance(value, int):
        raise TritonModelException("Correlation ID must be integer or string")
    if not 0 <= value < 1 << 64:
        raise RuntimeError(
            "Unable to cast Python instance to C++ type (#define PYBIND11_DETAILED_ERROR_MESSAGES or compile in debug "
            "mode for details)"
        )
    return value


class InferenceRequest:
    """A request: one that the model got, or one that it makes for another model (BLS)."""

    # Defaults on the class, not in every instance: requests are made by the thousand. A model's own subclass also has
    # its runtime, name, version and outputs as defaults, for the requests that it receives.
    _id = ""
    _correlation_id: Any = 0
    _flags = 0
    _timeout = 0
    _parameters = ""
    _preferred_memory = _ANY_MEMORY
    _trace = _NO_TRACE
    _release_flags = 0
    _reply: Reply | None = None
    _may_ask = False
    _inputs: list[Tensor]
    _outputs: Any
    _model_name: str
    _model_version: int
    _runtime: Runtime

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = arguments("__init__", _REQUEST, _NAMES, args, kwargs)
        if not _fits(given):
            raise incompatible("__init__", _REQUEST, args, kwargs)
        self._id = given["request_id"]
        self._parameters = check_parameters(given["parameters"])
        self._correlation_id = _check_correlation_id(given["correlation_id"])
        self._inputs = list(given["inputs"])
        self._outputs = list(given["requested_output_names"])
        self._model_name = given["model_name"]
        self._model_version = int(given["model_version"])
        self._flags = int(given["flags"])
        self._timeout = int(given["timeout"])
        self._preferred_memory = given["preferred_memory"]
        self._trace = given["trace"]

    @classmethod
    def _received(cls, fields: Any, inputs: list[Tensor], reply: Reply) -> InferenceRequest:
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

    def flags(self) -> int:
        """TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END."""
        return self._flags

    def set_flags(self, *args: Any) -> None:
        """Sets the flags of a request to be sent."""
        self._flags = self._flag("set_flags", args)

    def set_release_flags(self, *args: Any) -> None:
        """What becomes of the request after ``execute``: TRITONSERVER_REQUEST_RELEASE_ALL, or _RESCHEDULE."""
        flags = self._release_flags = self._flag("set_release_flags", args)
        if self._reply is not None:
            self._reply.back = flags == RELEASE_RESCHEDULE

    def _flag(self, function: str, args: Any) -> int:
        if len(args) != 1 or not hasattr(args[0], "__index__") or args[0] < 0:
            signature = "(self: c_python_backend_utils.InferenceRequest, arg0: int) -> None"
            raise incompatible(function, signature, (self, *args), {})
        return int(args[0])

    def timeout(self) -> int:
        """The request's timeout in microseconds, 0 for none."""
        return self._timeout

    def parameters(self) -> str:
        """The request's parameters as JSON."""
        return self._parameters or "{}"

    def trace(self) -> InferenceTrace:
        """The trace that the request belongs to."""
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

    def exec(self, decoupled: Any = False) -> Any:
        """Runs the request on its model and waits: a response, or with ``decoupled`` an iterator over responses."""
        if decoupled is None or not hasattr(decoupled, "__bool__"):
            signature = "(self: c_python_backend_utils.InferenceRequest, decoupled: bool = False) -> object"
            raise incompatible("exec", signature, (self,), {"decoupled": decoupled})
        if not self._may_ask:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        stream = self._runtime.infer(self, bool(decoupled))
        if decoupled:
            return ResponseIterator(stream)
        return next(stream)[0]

    def async_exec(self, decoupled: Any = False) -> asyncio.Future[Any]:
        """``exec`` on a thread of its own, under way at once; to be awaited.

        Raises:
            RuntimeError: no event loop runs on this thread.
        """
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._runtime.executor(), self.exec, decoupled)


def nested_head(request: InferenceRequest, streams: bool) -> tuple[Any, ...]:
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
        streams,
    )


class ResponseIterator:
    """The responses of a nested request to a decoupled model; once all have come it can be gone through again."""

    __module__ = MODULE

    def __init__(self, stream: Responses) -> None:
        self._stream = stream
        self._come: list[InferenceResponse] = []
        self._next = 0
        self._over = False

    def __iter__(self) -> ResponseIterator:
        if self._over and self._next >= len(self._come):
            self._next = 0
        return self

    def __next__(self) -> InferenceResponse:
        if not self._over:
            try:
                response, self._over = next(self._stream)
            except StopIteration:
                self._over = True
            else:
                self._come.append(response)
        if self._next >= len(self._come):
            raise StopIteration("Iteration is done for the responses.")
        self._next += 1
        return self._come[self._next - 1]

    def cancel(self) -> None:
        """Stops the request; no further responses come."""
        if not self._over:
            self._stream.close()
