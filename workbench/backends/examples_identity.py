"""Triton's ``identity``: OUTPUT<n> is INPUT<n>.

Parameters: ``execute_delay_ms``, ``instance_wise_delay_multiplier`` (the delay of instance n is n times as often),
``creation_delay_sec``. Source of the behaviour: identity_backend.
"""

from __future__ import annotations

from typing import Any

from workbench.backends.base import Execution, InstanceSpec, LoadedModel, ModelContext
from workbench.backends.examples_base import (
    ExampleBackend,
    ExampleInstance,
    ExampleModel,
    int_parameter,
    require,
    response_to,
    shape_text,
    type_name,
)
from workbench.protocol.tensors import Tensor


class IdentityInstance(ExampleInstance):
    """Waits, then gives the inputs back."""

    def __init__(self, context: ModelContext, spec: InstanceSpec) -> None:
        super().__init__(context, spec)
        multiplier = int_parameter(self.config, "instance_wise_delay_multiplier")
        self._delay_ms = int_parameter(self.config, "execute_delay_ms") * max(1, multiplier * spec.index)
        self.sleep(1000 * int_parameter(self.config, "creation_delay_sec"))

    def run(self, execution: Execution) -> None:
        """Gives the inputs back under the outputs' names, without a copy."""
        self.sleep(self._delay_ms)
        execution.output_start = self.clock()
        for index, request in enumerate(execution.requests):
            outputs = [
                Tensor("OUTPUT" + each.name.removeprefix("INPUT"), each.datatype, each.shape, each.data)
                for each in request.inputs
                if each.name.startswith("INPUT")
            ]
            execution.respond(index, response_to(request, outputs))


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
