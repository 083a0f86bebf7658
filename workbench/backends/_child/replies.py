"""The response sender of ``triton_python_backend_utils``, and the bookkeeping of one batch's answers.

Rules (python_backend, pb_stub.cc and response_sender.cc): a model that is not decoupled answers each request exactly
once, through the list that ``execute`` returns or through a response sender; a decoupled one sends any number of
responses through senders, the last with the final flag, also after ``execute`` has returned and from other threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from workbench.backends._child.enums import MODULE
from workbench.backends._child.tensors import InferenceResponse, TritonError, TritonModelException, incompatible

FINAL = 1
DECOUPLED_HINT = "A model that sends any number of responses needs `model_transaction_policy { decoupled: true }`"


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
        "size",
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
        self.open = self.size = size
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
    implied = False  # the response itself was taken for the final one

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
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send more than one response. "
                        f"{DECOUPLED_HINT} (model '{batch.model}', instance '{batch.instance}')"
                    )
                if response is None and self.held is None and self.implied:
                    return  # execute had returned: nothing more was to come
            if self.closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            if response is not None:
                self.sent += 1
            if not batch.decoupled:
                if not final and not batch.returned:
                    self.held = response  # a second one would be an error: so the first waits for execute to return
                    return
                response, self.held = response or self.held, None
                self.implied = not final
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
        if not isinstance(response, (InferenceResponse, type(None))) or not hasattr(flags, "__index__"):
            raise incompatible(
                "send",
                "(self: c_python_backend_utils.InferenceResponseSender, response: "
                "c_python_backend_utils.InferenceResponse = None, flags: int = 0) -> None",
                (self, response),
                {"flags": flags} if flags else {},
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
