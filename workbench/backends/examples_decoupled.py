"""Triton's decoupled examples ``repeat`` and ``square``: each request is answered from a thread of its own.

``repeat`` sends IN[i] as OUT and i as IDX after DELAY[i] milliseconds, and keeps its instance for WAIT milliseconds.
``square`` answers IN = n with n responses of n, and reports the times of each. Its parameters:
``CUSTOM_INFER_DELAY_NS``, ``CUSTOM_OUTPUT_DELAY_NS``, ``CUSTOM_CANCEL_DELAY_NS``, ``CUSTOM_FAIL_COUNT``,
``CUSTOM_EMPTY_COUNT``. Source of the behaviour: repeat_backend, square_backend; other than there, ``repeat`` stops when
its request is cancelled.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.backends.base import Execution, InstanceSpec, ModelContext, ResponseReport
from workbench.backends.examples_base import (
    ExampleBackend,
    ExampleInstance,
    require,
    response_to,
    shape_text,
    tensors_of,
    type_name,
)
from workbench.errors import InvalidRequest, UnknownError, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor


@dataclass(frozen=True, slots=True)
class Stream:
    """The way from one request's thread to whoever asked."""

    send: Callable[[InferenceResponse], None]
    is_cancelled: Callable[[], bool]
    report: Callable[[ResponseReport], None]


class _Answering(ExampleInstance):
    """Answers requests on threads; ``close`` waits for them."""

    def __init__(self, context: ModelContext, spec: InstanceSpec) -> None:
        super().__init__(context, spec)
        self._threads: set[threading.Thread] = set()

    def run(self, execution: Execution) -> None:
        """Starts a thread for each request."""
        for index in range(len(execution.requests)):
            thread = threading.Thread(target=self._main, args=(execution, index), daemon=True)
            self._threads = {each for each in self._threads if each.is_alive()} | {thread}
            thread.start()

    def _main(self, execution: Execution, index: int) -> None:
        request, respond = execution.requests[index], execution.respond
        last = response_to(request, [])
        stream = Stream(
            lambda response: respond(index, response), lambda: execution.is_cancelled(index), execution.report
        )
        try:
            self.answer(request, stream)
        except WorkbenchError as error:
            last.error = error
        respond(index, last)

    @abstractmethod
    def answer(self, request: InferenceRequest, stream: Stream) -> None:
        """Sends the responses but for the end of the stream."""

    def close(self) -> None:
        """Ends waits and waits for the threads."""
        super().close()
        for thread in self._threads:
            thread.join()


class RepeatInstance(_Answering):
    """One response for each element of IN."""

    def run(self, execution: Execution) -> None:
        """Answers on threads, and keeps the instance for WAIT milliseconds."""
        waits = [int(tensors_of(request)["WAIT"].data.ravel()[0]) for request in execution.requests]
        super().run(execution)
        self.sleep(max(waits, default=0))

    def answer(self, request: InferenceRequest, stream: Stream) -> None:
        """Each element after its delay."""
        inputs = tensors_of(request)
        values, delays = inputs["IN"], inputs["DELAY"]
        if values.shape != delays.shape:
            raise InvalidRequest(
                f"expected IN and DELAY shape to match, got {shape_text(values.shape)} and {shape_text(delays.shape)}"
            )
        for number, (value, delay) in enumerate(zip(values.data.ravel(), delays.data.ravel(), strict=True)):
            self.sleep(int(delay))
            if stream.is_cancelled():
                return
            out = Tensor("OUT", "INT32", (1,), np.array([value], np.int32))
            idx = Tensor("IDX", "UINT32", (1,), np.array([number], np.uint32))
            stream.send(response_to(request, [out, idx], final=False))


def _check(config: Any, inputs: list[tuple[str, str]], outputs: list[tuple[str, str]]) -> None:
    """Number, names and data types, in Triton's order and words."""
    kinds = (("input", config.input, inputs), ("output", config.output, outputs))
    for kind, items, wanted in kinds:
        plural = kind if len(wanted) == 1 else kind + "s"
        require(len(items) == len(wanted), f"expected {len(wanted)} {plural}, got {len(items)}")
    words = ("first", "second", "third")
    for kind, items, wanted in kinds:
        for word, item, (name, _) in zip(words, items, wanted, strict=False):
            place = f"{word} {kind}"
            require(item.name == name, f"expected {place} tensor name to be {name}, got {item.name}")
    for _, items, wanted in kinds:
        for item, (name, datatype) in zip(items, wanted, strict=True):
            given = type_name(item)
            require(given == f"TYPE_{datatype}", f"expected {name} datatype to be {datatype}, got {given}")


class RepeatBackend(ExampleBackend):
    """Responds once for each element of its input."""

    name = "repeat"
    instance = RepeatInstance

    def check(self, config: Any) -> None:
        """IN, DELAY, WAIT and OUT, IDX; no batching.

        Raises:
            InvalidRequest: with Triton's text.
        """
        require(config.max_batch_size == 0, "repeat backend only supports models with max_batch_size == 0")
        _check(
            config,
            [("IN", "INT32"), ("DELAY", "UINT32"), ("WAIT", "UINT32")],
            [("OUT", "INT32"), ("IDX", "UINT32")],
        )
        dims, delay = list(config.input[0].dims), list(config.input[1].dims)
        require(len(dims) == 1, f"expected IN shape to have one dimension, got {shape_text(dims)}")
        require(dims == delay, f"expected IN and DELAY shape to match, got {shape_text(dims)} and {shape_text(delay)}")
        for item in (config.input[2], *config.output):
            require(list(item.dims) == [1], f"expected {item.name} shape to be [1], got {shape_text(item.dims)}")


class SquareInstance(_Answering):
    """n responses of n."""

    def __init__(self, context: ModelContext, spec: InstanceSpec) -> None:
        super().__init__(context, spec)
        names = ("INFER_DELAY_NS", "OUTPUT_DELAY_NS", "CANCEL_DELAY_NS", "FAIL_COUNT", "EMPTY_COUNT")
        self._infer_ns, self._output_ns, self._cancel_ns, self._fails, self._empties = (
            self._number(f"CUSTOM_{name}") for name in names
        )

    def _number(self, name: str) -> int:
        """A parameter; what is no number is ignored, as in Triton."""
        text = self.config.parameters[name].string_value if name in self.config.parameters else ""
        return int(text) if text.isdecimal() else 0

    def answer(self, request: InferenceRequest, stream: Stream) -> None:
        """First those that succeed, then those that fail, then those that are left out."""
        given = tensors_of(request)["IN"]
        require(len(given.shape) != 2 or given.shape[0] == 1, "unexpected shape for IN input")
        count = max(0, int(given.data.ravel()[0]))
        shape = (1,) * len(given.shape)
        for number in range(count):
            start, output_start = self.clock(), 0
            if stream.is_cancelled():
                self.sleep(self._cancel_ns / 1e6)
                stream.report(ResponseReport(number, start, 0, self.clock(), cancelled=True))
                return
            self.sleep(self._infer_ns / 1e6)
            failed = False
            if number + self._empties < count:
                output_start = self.clock()
                self.sleep(self._output_ns / 1e6)
                out = Tensor("OUT", "INT32", shape, np.full(shape, count, np.int32))
                response = response_to(request, [out], final=False)
                failed = number + self._fails + self._empties >= count
                if failed:
                    response.outputs, response.error = [], UnknownError("simulated failure")
                end = self.clock()
                stream.send(response)
            else:
                end = self.clock()
            stream.report(ResponseReport(number, start, output_start, end, failed))


class SquareBackend(ExampleBackend):
    """Responds n times with n."""

    name = "square"
    instance = SquareInstance

    def check(self, config: Any) -> None:
        """IN and OUT.

        Raises:
            InvalidRequest: with Triton's text.
        """
        for kind, items in (("input", config.input), ("output", config.output)):
            require(len(items) == 1, f"expected 1 {kind}, got {len(items)}")
        for kind, item, name in (("input", config.input[0], "IN"), ("output", config.output[0], "OUT")):
            require(item.name == name, f"expected first {kind} tensor name to be {name}, got {item.name}")
        for item in (config.input[0], config.output[0]):
            require(list(item.dims) == [1], f"expected {item.name} shape to be [1], got {shape_text(item.dims)}")
        for item in (config.input[0], config.output[0]):
            given = type_name(item)
            require(given == "TYPE_INT32", f"expected {item.name} datatype to be INT32, got {given}")
