"""The v2 data types in a model's process, and the byte form of BYTES tensors."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

NUMPY: dict[str, Any] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
try:
    import ml_dtypes

    NUMPY["BF16"] = np.dtype(ml_dtypes.bfloat16)
except ImportError:  # another interpreter without it: BF16 tensors are shown as their bits
    NUMPY["BF16"] = np.dtype(np.uint16)

V2: dict[Any, str] = {dtype: name for name, dtype in NUMPY.items() if not (name == "BF16" and dtype == np.uint16)}
"""numpy dtype to v2 name."""

TRITON_NUMBER = {name: number for number, name in enumerate(NUMPY, start=1)}
"""TRITONSERVER_DataType."""

_LENGTH = struct.Struct("<I")


def v2_name(dtype: Any) -> str | None:
    """The v2 name of a numpy dtype, or None. Fixed-width bytes are BYTES; str has none, as in Triton."""
    return "BYTES" if dtype.kind == "S" else V2.get(dtype)


def serialize(array: Any) -> bytes:
    """A BYTES tensor as 4-byte lengths (little endian), each followed by its element; str elements become UTF-8."""
    parts: list[bytes] = []
    for item in array.ravel().tolist():
        data = item if type(item) is bytes else str(item).encode("utf-8")
        parts.append(_LENGTH.pack(len(data)))
        parts.append(data)
    return b"".join(parts)


def deserialize(buffer: Any, offset: int, size: int) -> Any:
    """The elements of a BYTES tensor as a flat object array of ``bytes``."""
    data = bytes(memoryview(buffer)[offset : offset + size])
    items: list[bytes] = []
    at = 0
    while at < size:
        (length,) = _LENGTH.unpack_from(data, at)
        at += 4
        items.append(data[at : at + length])
        at += length
    array = np.empty(len(items), dtype=np.object_)
    array[:] = items
    return array
