"""The inputs and outputs of an ONNX file, read from its bytes: no framework, and no weight is loaded.

The file is a protobuf message (onnx.proto): the graph's fields are skipped by their lengths but for inputs, outputs and
the names of initializers. Field numbers: ModelProto.graph 7; GraphProto.initializer 5, input 11, output 12,
sparse_initializer 15; TensorProto.name 8,
external_data 13 (StringStringEntryProto.key 1, value 2); ValueInfoProto.name 1, type 2; TypeProto.tensor_type 1;
TypeProto.Tensor.elem_type 1, shape 2; TensorShapeProto.dim 1; Dimension.dim_value 1.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workbench.backends.base import TensorSpec
from workbench.backends.protobuf_wire import fields, text
from workbench.errors import InvalidRequest

_TYPES = {
    1: "FP32",
    2: "UINT8",
    3: "INT8",
    4: "UINT16",
    5: "INT16",
    6: "INT32",
    7: "INT64",
    8: "BYTES",
    9: "BOOL",
    10: "FP16",
    11: "FP64",
    12: "UINT32",
    13: "UINT64",
    16: "BF16",
}
"""``TensorProto.DataType`` -> the v2 name."""


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """What an ONNX file says of itself. ``overridable`` are initializers that may be given as inputs, ``external`` the
    files beside it that hold weights.

    ONNX Runtime infers more of its outputs than it says: what is -1 here may be a number there, and the outputs in
    ``shapeless``, of which the file has no shape at all (dims are empty here), may have one.
    """

    inputs: tuple[TensorSpec, ...]
    overridable: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    external: tuple[str, ...] = ()
    shapeless: frozenset[str] = frozenset()

    @property
    def batching(self) -> bool:
        """Whether every first dimension that is known is variable (9.4)."""
        known = [spec for spec in self.outputs if spec.name not in self.shapeless]
        return all(spec.dims and spec.dims[0] == -1 for spec in (*self.inputs, *known))


def read_onnx(path: Path) -> OnnxGraph:
    """Reads a file.

    Raises:
        InvalidRequest: it is no ONNX file, or an input or output is no tensor.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise InvalidRequest(f"{path.name} is empty", where=str(path))
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _graph(data)
            except (IndexError, ValueError) as error:
                raise InvalidRequest(
                    f"{path.name} is no ONNX file: {error}",
                    where=str(path),
                    hint="one that is damaged or cut off is to be copied or exported again",
                ) from error


def _graph(data: mmap.mmap) -> OnnxGraph:
    span = next((span for number, span in fields(data, 0, len(data)) if number == 7 and isinstance(span, tuple)), None)
    if span is None:
        raise ValueError("it holds no graph")
    inputs, outputs, initializers, shapeless = [], [], set(), set()
    external: dict[str, None] = {}
    for number, part in fields(data, *span):
        if not isinstance(part, tuple):
            continue
        if number == 11:
            inputs.append(_value(data, part))
        elif number == 12:
            outputs.append(_value(data, part))
            if not _has_shape(data, part):
                shapeless.add(outputs[-1].name)
        elif number == 5:
            initializers.add(text(data, part, 8))
            external.update(dict.fromkeys(_locations(data, part)))
    return OnnxGraph(
        tuple(spec for spec in inputs if spec.name not in initializers),
        tuple(spec for spec in inputs if spec.name in initializers),
        tuple(outputs),
        tuple(external),
        frozenset(shapeless),
    )


def _locations(data: mmap.mmap, tensor: tuple[int, int]) -> Iterator[str]:
    for number, entry in fields(data, *tensor):
        if number == 13 and isinstance(entry, tuple) and text(data, entry, 1) == "location":
            yield text(data, entry, 2)


def _value(data: mmap.mmap, span: tuple[int, int]) -> TensorSpec:
    name = text(data, span, 1)
    for number, kind in fields(data, *span):
        if number == 2 and isinstance(kind, tuple):
            for choice, tensor in fields(data, *kind):
                if choice == 1 and isinstance(tensor, tuple):
                    return _tensor(data, name, tensor)
    raise InvalidRequest(f"Unsupported ONNX Type 'ONNX_TYPE_UNKNOWN' for I/O '{name}', expected 'ONNX_TYPE_TENSOR'.")


def _has_shape(data: mmap.mmap, span: tuple[int, int]) -> bool:
    """Whether a tensor's type has a shape, be it that of a scalar."""
    return any(
        number == 2 and isinstance(part, tuple)
        for field, kind in fields(data, *span)
        if field == 2 and isinstance(kind, tuple)
        for choice, tensor in fields(data, *kind)
        if choice == 1 and isinstance(tensor, tuple)
        for number, part in fields(data, *tensor)
    )


def _tensor(data: mmap.mmap, name: str, span: tuple[int, int]) -> TensorSpec:
    datatype, dims = "", []
    for number, part in fields(data, *span):
        if number == 1 and isinstance(part, int):
            datatype = _TYPES.get(part, "")
        elif number == 2 and isinstance(part, tuple):
            for inner, dimension in fields(data, *part):
                if inner == 1 and isinstance(dimension, tuple):
                    sizes = [size for field, size in fields(data, *dimension) if field == 1 and isinstance(size, int)]
                    dims.append(sizes[-1] if sizes and sizes[-1] < 1 << 63 else -1)  # some write -1
    return TensorSpec(name, datatype, tuple(dims))
