"""What the model in a process asks of its server: nested requests, whether a request is cancelled, questions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.backends._child import wire
from workbench.backends.base import BackendHost
from workbench.backends.python_channel import ServerChannel
from workbench.backends.python_convert import answer_head, infer_nested, nested_request, unpack_tensors
from workbench.backends.python_flights import Flights
from workbench.backends.python_questions import Answer, Questions
from workbench.errors import WorkbenchError
from workbench.protocol.tensors import InferenceResponse


class ProcessCalls:
    """The calls of one process, from its start to its end. Everything on the loop's thread.

    Args:
        host: the engine.
        flights: the instance's batches.
        channel: the process's.
        questions: those of the instance.
    """

    def __init__(self, host: BackendHost, flights: Flights, channel: ServerChannel, questions: Questions) -> None:
        self._host = host
        self._flights = flights
        self._channel = channel
        self._questions = questions
        self._open: dict[int, Callable[[], None]] = {}
        self._closed = False

    def take(self, frame: wire.Frame) -> None:
        """A CALL frame."""
        number, what, arguments = frame.head
        if what == wire.CANCELLED:
            self._send((number, self._flights.is_over(*arguments)))
        elif what == wire.ASK:
            operation, given = arguments
            self._questions.begin(operation, given, lambda answer: self._answer(number, answer))
        elif what == wire.CANCEL:
            cancel = self._open.pop(number, None)
            if cancel is not None:
                cancel()
        else:
            self._infer(number, arguments, frame)

    def close(self) -> None:
        """The process has ended: cancels its nested requests, whose answers nobody takes any more."""
        self._closed = True
        calls, self._open = list(self._open.values()), {}
        for cancel in calls:
            cancel()

    def _infer(self, number: int, arguments: Any, frame: wire.Frame) -> None:
        head, numbers, kinds = arguments
        tensors, _ = unpack_tensors(kinds, numbers, self._channel.payload(frame), 0)
        request = nested_request(head, tensors, self._flights.parent())

        def answer(response: InferenceResponse) -> None:
            if response.final:
                self._open.pop(number, None)
            packer = wire.Packer()
            self._send((number, *answer_head(request.model_name, response, packer)), packer)

        self._open[number] = lambda: None
        try:
            cancel = infer_nested(self._host, head[-1], request, answer)
        except WorkbenchError as error:
            answer(InferenceResponse("", 0, error=error))
            return
        if number in self._open:
            self._open[number] = cancel

    def _answer(self, number: int, answer: Answer) -> None:
        """Answers a question; 0 is the number of one that wants no answer."""
        if number:
            self._send((number, *answer))

    def _send(self, head: Any, packer: wire.Packer | None = None) -> None:
        if not self._closed:
            self._channel.send(wire.ANSWER, head, packer)
