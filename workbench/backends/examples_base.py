"""What Triton's example and test backends have in common here: one thread an instance, checks with Triton's texts.

They take models without files, so that people's test repositories run without weights.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np

from workbench.backends.base import Execution, Instance, InstanceSpec, LoadedModel, ModelContext, ModelDescription
from workbench.errors import InvalidRequest
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor


def require(condition: bool, text: str) -> None:
    """Refuses a configuration or a request.

    Raises:
        InvalidRequest: the condition does not hold.
    """
    if not condition:
        raise InvalidRequest(text)


def int_parameter(config: Any, name: str, default: int = 0) -> int:
    """A parameter of the configuration as a number.

    Raises:
        InvalidRequest: it is none.
    """
    if name not in config.parameters:
        return default
    text = config.parameters[name].string_value
    try:
        return int(text)
    except ValueError:
        raise InvalidRequest(f"parameter '{name}' of model '{config.name}' is no number: '{text}'") from None


def type_name(item: Any) -> str:
    """The ``TYPE_...`` name of a configured tensor or control."""
    return str(item.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[item.data_type].name)


def shape_text(dims: Any) -> str:
    """Dims as Triton writes them."""
    return "[" + ",".join(str(dim) for dim in dims) + "]"


def response_to(request: InferenceRequest, outputs: list[Tensor], *, final: bool = True) -> InferenceResponse:
    """A response with those of the outputs that are asked for."""
    wanted = {output.name for output in request.outputs}
    kept = [tensor for tensor in outputs if not wanted or tensor.name in wanted]
    return InferenceResponse(request.model_name, request.model_version, request.id, kept, final=final)


def tensors_of(request: InferenceRequest) -> dict[str, Tensor]:
    """The inputs of a request by name, control inputs among them."""
    return {tensor.name: tensor for tensor in request.inputs}


def filled(name: str, like: Tensor, value: int) -> Tensor:
    """An INT32 tensor in the shape of another one."""
    return Tensor(name, "INT32", like.shape, np.full(like.shape, wrap(value), np.int32))


def wrap(value: int) -> int:
    """A number cut to 32 bits with sign, as C++ adds."""
    return (value + 2**31) % 2**32 - 2**31


class ExampleInstance(ABC):
    """An instance that executes on a thread of the engine."""

    kind: Literal["thread"] = "thread"

    def __init__(self, context: ModelContext, spec: InstanceSpec) -> None:
        self.config = context.config
        self.clock = context.host.clock
        self.spec = spec
        self._closing = threading.Event()

    def sleep(self, milliseconds: float) -> None:
        """Waits; a close ends the wait."""
        if milliseconds > 0:
            self._closing.wait(milliseconds / 1000)

    def execute(self, execution: Execution) -> None:
        """Runs a batch."""
        execution.input_end = self.clock()
        self.run(execution)
        execution.output_start = execution.output_start or self.clock()

    @abstractmethod
    def run(self, execution: Execution) -> None:
        """What the backend does."""

    def close(self) -> None:
        """Ends waits that are under way."""
        self._closing.set()


class ExampleModel:
    """A model whose configuration has been checked."""

    reads_max_batch_size = True
    checks_batch_size = False
    any_thread = True

    def __init__(self, context: ModelContext, make: Callable[[ModelContext, InstanceSpec], Instance]) -> None:
        self._context = context
        self._make = make

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Makes an instance; nothing is read."""
        return self._make(self._context, spec)

    def close(self) -> None:
        """There is nothing to free."""


class ExampleBackend:
    """A backend of this family; ``instance`` executes, ``check`` looks at the configuration."""

    name: ClassVar[str]
    instance: ClassVar[type[ExampleInstance]]
    uses_gpus = False

    def describe(self, context: ModelContext) -> ModelDescription | None:
        """There is no file to describe."""
        return None

    def auto_complete(self, context: ModelContext) -> Any | None:
        """Nothing can be completed."""
        return None

    def check(self, config: Any) -> None:
        """Refuses a configuration that the backend cannot serve.

        Raises:
            InvalidRequest: with Triton's text.
        """

    def open(self, context: ModelContext) -> LoadedModel:
        """Checks the configuration.

        Raises:
            InvalidRequest: see ``check``.
        """
        self.check(context.config)
        return ExampleModel(context, self.instance)
