"""An engine as a description: tensors and profiles, from a network that was parsed or an engine that was loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.backends.base import TensorSpec
from workbench.backends.tensorrt_library import Library

_TYPES = {
    "FLOAT": "FP32",
    "HALF": "FP16",
    "BF16": "BF16",
    "INT8": "INT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "UINT8": "UINT8",
    "BOOL": "BOOL",
}
"""``tensorrt.DataType`` -> the v2 name. FP8, FP4, INT4 and E8M0 have none: Triton cannot carry them."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """The shapes of one input in one profile, the batch dimension included."""

    least: Shape
    best: Shape
    most: Shape

    def holds(self, shape: Shape) -> bool:
        """Whether a shape lies within."""
        return len(shape) == len(self.least) and all(
            low <= size <= high for low, size, high in zip(self.least, shape, self.most, strict=True)
        )

    def __str__(self) -> str:
        return f"{spelled(self.least)} to {spelled(self.most)}"


Profile = Mapping[str, ShapeRange]
"""An optimization profile: input -> shapes. Inputs without a variable dimension are not in it."""


def spelled(shape: Shape) -> str:
    """As trtexec spells a shape: 1x3x224x224."""
    return "x".join(map(str, shape))


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """Inputs, outputs (a data type that the wire lacks is empty) and optimization profiles.

    The values of ``shape_tensors`` are shapes, and lie on the host.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    profiles: tuple[Profile, ...] = ()
    shape_tensors: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """As ``build.json`` has it."""

        def tensors(found: tuple[TensorSpec, ...]) -> list[dict[str, Any]]:
            return [{"name": each.name, "datatype": each.datatype, "dims": list(each.dims)} for each in found]

        return {
            "inputs": tensors(self.inputs),
            "outputs": tensors(self.outputs),
            "profiles": [
                {name: [list(each.least), list(each.best), list(each.most)] for name, each in profile.items()}
                for profile in self.profiles
            ],
        }


def of_network(network: Any, profiles: tuple[Profile, ...]) -> EngineDescription:
    """What an engine that is built of a network will have."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]

    def specs(tensors: list[Any]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(each.name, _TYPES.get(each.dtype.name, ""), tuple(each.shape)) for each in tensors)

    shapes = frozenset(each.name for each in (*inputs, *outputs) if each.is_shape_tensor)
    return EngineDescription(specs(inputs), specs(outputs), profiles, shapes)


def of_engine(library: Library, engine: Any) -> EngineDescription:
    """What a loaded engine has."""
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    shapes = frozenset(name for name in names if engine.is_shape_inference_io(name))
    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    for name in names:
        spec = TensorSpec(
            name, _TYPES.get(engine.get_tensor_dtype(name).name, ""), tuple(engine.get_tensor_shape(name))
        )
        (inputs if engine.get_tensor_mode(name) == library.module.TensorIOMode.INPUT else outputs).append(spec)
    variable = [each.name for each in inputs if -1 in each.dims and each.name not in shapes]
    profiles = tuple(
        {name: ShapeRange(*map(tuple, engine.get_tensor_profile_shape(name, number))) for name in variable}
        for number in range(engine.num_optimization_profiles)
    )
    return EngineDescription(tuple(inputs), tuple(outputs), profiles, shapes)
