"""Triton's ``identity``: OUTPUT<n> is INPUT<n>.

Parameters: ``execute_delay_ms``, ``instance_wise_delay_multiplier`` (the delay of instance n is n times as often),
``creation_delay_sec`` (a load takes so long). Source of the behaviour: identity_backend.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.backends.base import Execution, InstanceSpec, LoadedModel, ModelContext
from workbench.backends.examples_base import (
    ExampleBackend,
    ExampleInstance,
    ExampleModel,
    int_parameter,
    require,
    response_to,
    shape_text,
    tensors_of,
    type_name,
)
from workbench.protocol.datatypes import DATATYPES
from workbench.protocol.tensors import Tensor


class IdentityInstance(ExampleInstance):
    """Waits, then gives the inputs back."""

    def __init__(self, context: ModelContext, spec: InstanceSpec) -> None:
        super().__init__(context, spec)
        multiplier = int_parameter(self.config, "instance_wise_delay_multiplier")
        self._delay_ms = int_parameter(self.config, "execute_delay_ms") * max(1, multiplier * spec.index)
        self._inputs = {item.name: item for item in self.config.input}
        self._outputs = [item.name for item in self.config.output]

    def run(self, execution: Execution) -> None:
        """Gives the inputs back under the outputs' names, without a copy."""
        self.sleep(self._delay_ms)
        execution.output_start = self.clock()
        for index, request in enumerate(execution.requests):
            given = tensors_of(request)
            wanted = [output.name for output in request.outputs] or self._outputs
            outputs = [self._output(name, given) for name in wanted]
            execution.respond(index, response_to(request, outputs))

    def _output(self, name: str, given: Mapping[str, Tensor]) -> Tensor:
        """The input of an output; zeros where that is optional and has been left out."""
        source = "INPUT" + name.removeprefix("OUTPUT")
        tensor = given.get(source)
        if tensor is not None:
            return Tensor(name, tensor.datatype, tensor.shape, tensor.data)
        item = self._inputs[source]
        dims = item.reshape.shape if item.HasField("reshape") else item.dims
        rows = [next(iter(given.values())).shape[0]] if self.config.max_batch_size and given else []
        shape = (*rows, *(1 if dim == -1 else dim for dim in dims))
        row = next(row for row in DATATYPES if row.config == type_name(item))
        data: NDArray[Any] = np.zeros(shape, row.numpy) if row.itemsize else np.full(shape, b"", np.object_)
        return Tensor(name, row.wire, shape, data)


class IdentityBackend(ExampleBackend):
    """Copies inputs to outputs."""

    name = "identity"
    instance = IdentityInstance

    def open(self, context: ModelContext) -> LoadedModel:
        """Checks the configuration; max_batch_size is not read.

        Raises:
            InvalidRequest: see ``check``.
        """
        self.check(context.config)
        threading.Event().wait(int_parameter(context.config, "creation_delay_sec"))
        model = ExampleModel(context, self.instance)
        model.reads_max_batch_size = False
        return model

    def check(self, config: Any) -> None:
        """Inputs and outputs must be pairs.

        Raises:
            InvalidRequest: with Triton's text.
        """
        require(len(config.input) == len(config.output), "model configuration must have equal input/output pairs")
        for item in config.input:
            require(
                item.name.startswith("INPUT"),
                f"expected input name to follow INPUT<index> pattern, got '{item.name}'",
            )
        inputs = {item.name.removeprefix("INPUT"): item for item in config.input}
        for item in config.output:
            require(
                item.name.startswith("OUTPUT"),
                f"expected output name to follow OUTPUT<index> pattern, got '{item.name}'",
            )
            other = inputs.get(item.name.removeprefix("OUTPUT"))
            require(other is not None, "expected input and output indices to match")
            assert other is not None
            require(
                type_name(other) == type_name(item),
                f"expected input and output datatype to match, got {type_name(other)} and {type_name(item)}",
            )
            dims, mine = (list(each.reshape.shape if each.HasField("reshape") else each.dims) for each in (other, item))
            require(
                dims == mine,
                f"expected input and output shape to match, got {shape_text(dims)} and {shape_text(mine)}",
            )
