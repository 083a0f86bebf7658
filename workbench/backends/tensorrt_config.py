"""What a configuration says to TensorRT, and whether it fits an engine. No framework is needed.

Source: tensorrt_backend's ``ModelState`` and ``ValidateIO``, model_config.proto (``optimization.cuda``,
``instance_group.profile``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.backends.base import InstanceSpec, ModelDescription
from workbench.backends.cuda_stream import Priority
from workbench.backends.fit import check_fit
from workbench.backends.parameters import text_parameter
from workbench.backends.tensorrt_engine import EngineDescription, Shape
from workbench.backends.tensorrt_execute import ExecuteOptions
from workbench.errors import InvalidRequest

_ALLOCATIONS = ("STATIC", "ON_PROFILE_CHANGE")


def model_description(engine: EngineDescription) -> ModelDescription:
    """An engine as auto-completion sees it. It batches where every input's first dimension varies."""
    tensors = (*engine.inputs, *engine.outputs)
    batching = bool(engine.profiles) and all(spec.dims and spec.dims[0] == -1 for spec in tensors)
    return ModelDescription(engine.inputs, engine.outputs, batching)


def largest_batch(engine: EngineDescription, profiles: Sequence[int]) -> int | None:
    """The largest first dimension that one of the profiles takes; None where there is no profile."""
    found = [
        min(shapes.most[0] for shapes in engine.profiles[index].values() if shapes.most)
        for index in profiles
        if index < len(engine.profiles) and engine.profiles[index]
    ]
    return max(found, default=None)


def check_engine(config: Any, engine: EngineDescription) -> None:
    """Compares a configuration with an engine.

    Raises:
        InvalidRequest: they do not fit; data types, dims, batch size and profiles are named.
    """
    strange = [spec.name for spec in (*engine.inputs, *engine.outputs) if not spec.datatype]
    if strange:
        raise InvalidRequest(
            f"unable to load model '{config.name}', '{strange[0]}' is of a data type that no tensor on the wire has",
            hint="build the engine with inputs and outputs of FP32, FP16 or BF16",
        )
    check_fit(config, engine.inputs, (), engine.outputs)
    for number, group in enumerate(config.instance_group):
        profiles = profiles_of(group.profile, f"instance_group[{number}].profile")
        count = max(1, len(engine.profiles))
        unknown = [index for index in profiles if index >= count]
        if unknown:
            raise InvalidRequest(
                f"unable to load model '{config.name}', the engine has no optimization profile {unknown[0]}",
                where=f"instance_group[{number}].profile",
                hint=f"it has {count}, counted from 0",
            )
        largest = largest_batch(engine, profiles)
        if config.max_batch_size > 0 and largest is not None and config.max_batch_size > largest:
            raise InvalidRequest(
                f"unable to load model '{config.name}', configuration specified max-batch {config.max_batch_size} but "
                f"TensorRT engine only supports max-batch {largest}",
                where="max_batch_size",
                hint=f"max_batch_size: {largest}, or build the engine with larger --maxShapes",
            )


def profiles_of(names: Sequence[str], where: str) -> tuple[int, ...]:
    """``profile: ["0", "1"]`` as numbers; (0,) where none is named.

    Raises:
        InvalidRequest: one is no number.
    """
    if not names:
        return (0,)
    if not all(name.isascii() and name.isdigit() for name in names):
        raise InvalidRequest(
            f"optimization profiles are numbers, got {', '.join(names)}", where=where, hint='profile: [ "0" ]'
        )
    return tuple(map(int, names))


def execute_options(config: Any, spec: InstanceSpec, engine: EngineDescription) -> ExecuteOptions:
    """How an instance executes.

    Raises:
        InvalidRequest: a parameter cannot be read.
    """
    group = next((each for each in config.instance_group if spec.name.startswith(f"{each.name}_")), None)
    optimization = config.optimization
    allocation = (text_parameter(config, "execution_context_allocation_strategy") or "STATIC").upper()
    if allocation not in _ALLOCATIONS:
        raise InvalidRequest(
            f"execution_context_allocation_strategy is {allocation}", hint=f"one of {', '.join(_ALLOCATIONS)}"
        )
    levels: dict[int, Priority] = {optimization.PRIORITY_MAX: "max", optimization.PRIORITY_MIN: "min"}
    return ExecuteOptions(
        profiles_of(group.profile if group is not None else (), "instance_group.profile"),
        _pinned(optimization, "input_pinned_memory"),
        _pinned(optimization, "output_pinned_memory"),
        optimization.cuda.graphs,
        [_graph_shapes(each, engine) for each in optimization.cuda.graph_spec],
        levels.get(optimization.priority, "default"),
        allocation,
    )


def _pinned(optimization: Any, field: str) -> bool:
    """Pinned memory is used unless it is switched off."""
    return bool(getattr(optimization, field).enable) if optimization.HasField(field) else True


def _graph_shapes(spec: Any, engine: EngineDescription) -> dict[str, Shape]:
    """A ``graph_spec`` as the shape of each input, the batch dimension included."""
    batch = (spec.batch_size,) if spec.batch_size else ()
    shapes: dict[str, Shape] = {}
    for each in engine.inputs:
        if each.name in spec.input:
            shapes[each.name] = (*batch, *spec.input[each.name].dim)
        elif batch and -1 not in each.dims[1:]:
            shapes[each.name] = (*batch, *each.dims[1:])
    return shapes
