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

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """What an ONNX file says of itself. ``overridable`` are initializers that may be given as inputs, ``external`` the
    files beside it that hold weights.
    """

    inputs: tuple[TensorSpec, ...]
    overridable: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    external: tuple[str, ...] = ()

    @property
    def batching(self) -> bool:
        """Whether every first dimension is variable (9.4)."""
        return all(spec.dims and spec.dims[0] == -1 for spec in (*self.inputs, *self.outputs))


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
                raise InvalidRequest(f"{path.name} is no ONNX file: {error}", where=str(path)) from error


def _graph(data: mmap.mmap) -> OnnxGraph:
    span = next((span for number, span in _fields(data, 0, len(data)) if number == 7 and isinstance(span, tuple)), None)
    if span is None:
        raise ValueError("it holds no graph")
    inputs, outputs, initializers = [], [], set()
    external: dict[str, None] = {}
    for number, part in _fields(data, *span):
        if not isinstance(part, tuple):
            continue
        if number == 11:
            inputs.append(_value(data, part))
        elif number == 12:
            outputs.append(_value(data, part))
        elif number == 5:
            initializers.add(_text(data, part, 8))
            external.update(dict.fromkeys(_locations(data, part)))
    return OnnxGraph(
        tuple(spec for spec in inputs if spec.name not in initializers),
        tuple(spec for spec in inputs if spec.name in initializers),
        tuple(outputs),
        tuple(external),
    )


def _locations(data: mmap.mmap, tensor: tuple[int, int]) -> Iterator[str]:
    for number, entry in _fields(data, *tensor):
        if number == 13 and isinstance(entry, tuple) and _text(data, entry, 1) == "location":
            yield _text(data, entry, 2)


def _value(data: mmap.mmap, span: tuple[int, int]) -> TensorSpec:
    name = _text(data, span, 1)
    for number, kind in _fields(data, *span):
        if number == 2 and isinstance(kind, tuple):
            for choice, tensor in _fields(data, *kind):
                if choice == 1 and isinstance(tensor, tuple):
                    return _tensor(data, name, tensor)
    raise InvalidRequest(f"Unsupported ONNX Type 'ONNX_TYPE_UNKNOWN' for I/O '{name}', expected 'ONNX_TYPE_TENSOR'.")


def _tensor(data: mmap.mmap, name: str, span: tuple[int, int]) -> TensorSpec:
    datatype, dims = "", []
    for number, part in _fields(data, *span):
        if number == 1 and isinstance(part, int):
            datatype = _TYPES.get(part, "")
        elif number == 2 and isinstance(part, tuple):
            for inner, dimension in _fields(data, *part):
                if inner == 1 and isinstance(dimension, tuple):
                    sizes = [size for field, size in _fields(data, *dimension) if field == 1 and isinstance(size, int)]
                    dims.append(sizes[-1] if sizes else -1)
    return TensorSpec(name, datatype, tuple(dims))


def _text(data: mmap.mmap, span: tuple[int, int], wanted: int) -> str:
    for number, part in _fields(data, *span):
        if number == wanted and isinstance(part, tuple):
            return data[part[0] : part[1]].decode("utf-8", "replace")
    return ""


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int | tuple[int, int]]]:
    """The fields of a message: number, and its varint or the span of its bytes."""
    while start < end:
        key, start = _varint(data, start)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise ValueError("a field has the number 0")
        if wire == _VARINT:
            value, start = _varint(data, start)
            yield number, value
            continue
        if wire == _BYTES:
            length, start = _varint(data, start)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"a field has the wire type {wire}")
        if start + length > end:
            raise ValueError("a field is longer than what it is in")
        yield number, (start, start + length)
        start += length


def _varint(data: mmap.mmap, start: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[start]
        start += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, start
        shift += 7
        if shift > 63:
            raise ValueError("a number is longer than 64 bits")
