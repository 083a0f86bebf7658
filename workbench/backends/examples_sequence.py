"""Triton's test backends for sequences: ``sequence``, ``dyna_sequence`` and ``iterative_sequence``.

The first two add up INPUT from START on and give the sum in every element of OUTPUT: ``sequence`` (direct) by the row
of the batch, ``dyna_sequence`` (oldest) by CORRID, which it adds at END. ``iterative_sequence`` counts INPUT down, one
response an execution, and gives its request back until 0 is reached. Parameter: ``execute_delay_ms``, for
``iterative_sequence`` 500 where it is not given. Source of the behaviour: the server's ``src/test``.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from workbench.backends.base import Execution, InstanceSpec, ModelContext
from workbench.backends.examples_base import (
    ExampleBackend,
    ExampleInstance,
    filled,
    int_parameter,
    require,
    response_to,
    tensors_of,
    type_name,
    wrap,
)
from workbench.errors import InvalidRequest, Unsupported, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, Tensor


def _flag(inputs: dict[str, Tensor], name: str) -> bool:
    return bool(inputs[name].data.ravel()[0])


class SequenceInstance(ExampleInstance):
    """Sums by the row of the batch."""

    def __init__(self, context: ModelContext, spec: InstanceSpec) -> None:
        super().__init__(context, spec)
        self._delay_ms = int_parameter(self.config, "execute_delay_ms")
        self._sums: dict[Any, int] = {}

    def run(self, execution: Execution) -> None:
        """One step of every sequence in the batch."""
        if len(execution.requests) > max(1, self.config.max_batch_size):
            raise Unsupported("unable to execute batch larger than max-batch-size")
        self.sleep(self._delay_ms)
        for index, request in enumerate(execution.requests):
            inputs = tensors_of(request)
            response = response_to(request, [])
            try:
                outputs = []
                if _flag(inputs, "READY"):
                    outputs.append(filled("OUTPUT", inputs["INPUT"], self.step(index, inputs)))
                response = response_to(request, outputs)
            except WorkbenchError as error:
                response.error = error
            execution.respond(index, response)

    def step(self, index: int, inputs: dict[str, Tensor]) -> int:
        """Adds the input to the sum of its row."""
        return self.add(index, inputs)

    def add(self, key: Any, inputs: dict[str, Tensor]) -> int:
        """The sum after this step; START begins it anew."""
        before = 0 if _flag(inputs, "START") else self._sums.get(key, 0)
        total = self._sums[key] = wrap(before + int(inputs["INPUT"].data.sum(dtype=np.int64)))
        return total


class DynaSequenceInstance(SequenceInstance):
    """Sums by correlation id."""

    def step(self, index: int, inputs: dict[str, Tensor]) -> int:
        """Adds the input to the sum of its sequence; END adds the correlation id."""
        key = _number(inputs["CORRID"].data.ravel()[0])
        total = self.add(key, inputs)
        if _flag(inputs, "END"):
            del self._sums[key]
            total = wrap(total + key)
        return total


def _number(corrid: Any) -> int:
    """A correlation id as a number; of a text, what it begins with."""
    if not isinstance(corrid, bytes):
        return int(corrid)
    found = re.match(rb"\s*[+-]?\d+", corrid)
    if found is None:
        raise InvalidRequest("dyna sequence backend expects correlation ID to be decodable into an integer")
    return int(found[0])


def _check_io(config: Any) -> None:
    """One INT32 vector INPUT and an OUTPUT like it."""
    require(len(config.input) == 1, "model must have input 'INPUT' with vector shape, any length")
    source = config.input[0]
    require(len(source.dims) == 1, "model must have one input 'INPUT' with vector shape, any length")
    require(type_name(source) == "TYPE_INT32", "model input must have TYPE_INT32 data-type")
    require(source.name == "INPUT", "model input must be named 'INPUT'")
    require(len(config.output) == 1, "model must have one output 'OUTPUT' with vector shape, any length")
    target = config.output[0]
    require(list(target.dims) == list(source.dims), "model must have output 'OUTPUT' with shape matching 'INPUT'")
    require(type_name(target) == "TYPE_INT32", "model output must have TYPE_INT32 data-type")
    require(target.name == "OUTPUT", "model output must be named 'OUTPUT'")


class SequenceBackend(ExampleBackend):
    """Adds up a sequence in each row."""

    name = "sequence"
    instance = SequenceInstance

    def check(self, config: Any) -> None:
        """Controls START and READY, INPUT and OUTPUT.

        Raises:
            InvalidRequest: with Triton's text.
        """
        names = {item.name for item in config.sequence_batching.control_input}
        require(names == {"START", "READY"}, "'START' and 'READY' must be configured as the control inputs")
        _check_io(config)


class DynaSequenceBackend(ExampleBackend):
    """Adds up sequences by correlation id."""

    name = "dyna_sequence"
    instance = DynaSequenceInstance

    def check(self, config: Any) -> None:
        """Controls START, END, READY and CORRID, INPUT and OUTPUT.

        Raises:
            InvalidRequest: with Triton's text.
        """
        controls = {item.name: item for item in config.sequence_batching.control_input}
        require(
            set(controls) == {"START", "END", "READY", "CORRID"},
            "'START', 'END, 'READY' and 'CORRID' must be configured as the control inputs",
        )
        require(
            type_name(controls["CORRID"].control[0]) in ("TYPE_UINT64", "TYPE_STRING"),
            "model CORRID control input must have TYPE_UINT64 or TYPE_STRING data-type",
        )
        _check_io(config)


class IterativeSequenceInstance(ExampleInstance):
    """Counts down."""

    def __init__(self, context: ModelContext, spec: InstanceSpec) -> None:
        super().__init__(context, spec)
        self._delay_ms = int_parameter(self.config, "execute_delay_ms", 500)
        self._left: dict[int | str, int] = {}

    def run(self, execution: Execution) -> None:
        """One response for each request; those that are not at 0 are given back."""
        back: set[int] = set()
        for index, request in enumerate(execution.requests):
            if request.client == "null":
                execution.respond(index, response_to(request, []))
                continue
            left = self._count(request)
            shape = (1, 1) if self.config.max_batch_size else (1,)
            output = Tensor("OUTPUT", "INT32", shape, np.full(shape, left, np.int32))
            self.sleep(self._delay_ms)
            if left > 0:
                back.add(index)
            execution.respond(index, response_to(request, [output], final=left <= 0))
        execution.rescheduled = back

    def _count(self, request: InferenceRequest) -> int:
        key = request.sequence_id
        if request.sequence_start or key not in self._left:
            self._left[key] = int(tensors_of(request)["INPUT"].data.ravel()[0])
        left = self._left[key] = wrap(self._left[key] - 1)
        if left <= 0:
            del self._left[key]
        return left


class IterativeSequenceBackend(ExampleBackend):
    """Counts down by rescheduling its requests."""

    name = "iterative_sequence"
    instance = IterativeSequenceInstance
