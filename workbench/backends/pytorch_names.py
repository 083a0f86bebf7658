"""Which argument and which result of a TorchScript ``forward`` a configured tensor is: Triton's rules and texts.

Source: pytorch_backend, ``ModelInstanceState::GetNamingConvention``, ``ValidateInputs`` and ``ValidateOutputs``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from workbench.backends.fit import config_datatype
from workbench.errors import InternalError, InvalidRequest

Convention = Literal["forward argument", "index", "order"]
Argument = tuple[str, str]
"""An argument of ``forward``: its name and its kind (``TensorType``, ``ListType``, ``DictType``, another)."""

_INDEX = re.compile(r"(.*?)__(\d*)", re.DOTALL)
_TYPES = ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING")


@dataclass(frozen=True, slots=True)
class Places:
    """Where tensors go: ``inputs`` and ``outputs`` by name; with ``dictionary`` all inputs are one dictionary."""

    inputs: dict[str, int]
    outputs: dict[str, int]
    dictionary: bool = False


def find_places(config: Any, arguments: Sequence[Argument], warn: Callable[[str], None]) -> Places:
    """Finds the place of every configured tensor.

    ``arguments`` are those of ``forward`` without ``self``; ``warn`` is told where only the order of names is left, and
    there are several: of a single one Triton warns, too, although it has one place only.

    Raises:
        InvalidRequest, InternalError: the configuration does not fit ``forward`` (Triton's texts).
    """
    dictionary = len(arguments) == 1 and arguments[0][1] == "DictType"
    controls = [tensor.name for tensor in config.sequence_batching.control_input]
    states = list(config.sequence_batching.state)
    targets = [name for item in config.batch_input for name in item.target_name]
    allowed: list[str] = []
    if not dictionary:
        expected = len(config.input) + len(config.batch_input) + len(controls) + len(states)
        allowed = _allowed(config.name, arguments, expected)
    inputs = {name: _index_of(name) for name in controls}
    if any(index < 0 for index in inputs.values()):
        name = next(name for name, index in inputs.items() if index < 0)
        raise InternalError(f"input '{name}' does not follow <name>__<index> naming convention.")
    for kind, items in (("input", config.input), ("output", config.output)):
        if not items:
            raise InternalError(f"model configuration must contain at least one {kind}, none were specified.")
        for item in items:
            _check_type(config, item, kind)
    ordinary = [item.name for item in config.input]
    convention = _convention(config, ordinary, allowed, "input", warn)
    named = [*ordinary, *(state.input_name for state in states), *targets]
    for order, name in enumerate(named):
        if dictionary or convention == "order":
            inputs[name] = order
        else:
            inputs[name] = allowed.index(name) if convention == "forward argument" else _index_of(name)
    if not dictionary:
        _check_indices(config.name, inputs, len(arguments))
    results = [item.name for item in config.output]
    convention = _convention(config, results, None, "output", warn)
    outputs = {name: order if convention == "order" else _index_of(name) for order, name in enumerate(results)}
    outputs.update({state.output_name: _index_of(state.output_name) for state in states})
    return Places(inputs, outputs, dictionary)


def _allowed(model: str, arguments: Sequence[Argument], expected: int) -> list[str]:
    if any(kind == "DictType" for _, kind in arguments[1:]):
        raise InternalError(
            "Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor) is "
            "supported."
        )
    for _, kind in arguments:
        if kind not in ("TensorType", "ListType"):
            raise InternalError(
                f"An input of type '{kind.removesuffix('Type')}' was detected in the model. Only a single input of "
                "type Dict(str, Tensor) or input(s) of type Tensor are supported."
            )
    if len(arguments) != expected:
        listed = ", ".join(name for name, _ in arguments)
        raise InvalidRequest(
            f"unable to load model '{model}', configuration expects {expected} inputs, model provides {len(arguments)}",
            hint=f"forward takes {listed or 'nothing'}",
        )
    return [name for name, _ in arguments]


def _convention(
    config: Any, names: Iterable[str], allowed: Sequence[str] | None, kind: str, warn: Callable[[str], None]
) -> Convention:
    names = list(names)
    convention: Convention = "index"
    if allowed and all(name in allowed for name in names):
        convention = "forward argument"
    elif (stray := next((name for name in names if _index_of(name) < 0), None)) is not None:
        convention = "order"
        if len(names) == 1:
            warn = _nobody
        rule = "are neither forward arguments nor" if kind == "input" else "do not"
        warn(
            f"{kind} '{stray}' or previous {kind}(s) of the model '{config.name}' {rule} follow the <name>__<index> "
            "naming convention. Falling back to enforcing strict ordering from model configuration."
        )
    states = [getattr(state, f"{kind}_name") for state in config.sequence_batching.state]
    head = f"PyTorch model '{config.name}' is using sequence batching with state but "
    if states and convention != "index":
        raise InvalidRequest(
            f"{head}not all inputs and outputs follow the <name>__<index> naming convention. ",
            hint="name them INPUT__0, INPUT__1, ..., OUTPUT__0, ... in the order of forward, states and controls too",
        )
    for name in states:
        if _index_of(name) < 0:
            raise InvalidRequest(f"{head}state '{name}' does not follow the <name>__<index> naming convention. ")
    return convention


def _nobody(text: str) -> None:
    """Nobody is told."""


def _index_of(name: str) -> int:
    """The index at the end of a name (after the first ``__``; none written is 0, as in Triton), -1 without one."""
    match = _INDEX.fullmatch(name)
    return int(match[2] or 0) if match else -1


def _check_indices(model: str, inputs: dict[str, int], count: int) -> None:
    """Real Triton writes where an index points to; here it is refused."""
    for name, index in inputs.items():
        if index >= count:
            raise InvalidRequest(
                f"unable to load model '{model}': input '{name}' is argument {index} of forward, which has {count}",
                hint="the number after __ counts from 0",
            )
    twice = [name for name, index in inputs.items() if list(inputs.values()).count(index) > 1]
    if twice:
        raise InvalidRequest(f"unable to load model '{model}': inputs {', '.join(twice)} are one argument of forward")


def _check_type(config: Any, item: Any, kind: str) -> None:
    datatype = config_datatype(item)
    if datatype.removeprefix("TYPE_") not in _TYPES:
        raise InternalError(
            f"unsupported datatype {datatype} for {kind} '{item.name}' for model '{config.name}'",
            hint=f"PyTorch in Triton knows {', '.join(_TYPES)}",
        )
    dims = item.reshape.shape if item.HasField("reshape") else item.dims
    if datatype == "TYPE_STRING" and len(dims) + (config.max_batch_size > 0) > 1:
        raise InternalError(
            f"Triton only supports 1 dimensional List of String as {kind} for '{item.name}' for model '{config.name}'",
            hint="strings are a List[str]: dims: [ -1 ] without batching, dims: [ 1 ] and an empty reshape with it",
        )
