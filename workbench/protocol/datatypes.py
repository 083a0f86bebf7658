"""The v2 data types: their names on the wire, in config.pbtxt and in numpy.

Source: KServe v2 "Tensor Data Types"; model_config.proto ``DataType``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.errors import InvalidRequest

try:
    import ml_dtypes

    BFLOAT16: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16)
except ImportError:  # an engine that was copied to a machine without it: BF16 passes through as two bytes
    BFLOAT16 = np.dtype("V2")


@dataclass(frozen=True, slots=True)
class Datatype:
    """One data type.

    ``itemsize`` is in bytes and 0 for BYTES, whose elements have their own length.
    """

    wire: str
    config: str
    numpy: np.dtype[np.generic]
    itemsize: int


def _row(wire: str, config: str, dtype: object) -> Datatype:
    numpy_dtype: np.dtype[np.generic] = np.dtype(dtype)  # type: ignore[call-overload]
    return Datatype(wire, config, numpy_dtype, 0 if wire == "BYTES" else numpy_dtype.itemsize)


DATATYPES: tuple[Datatype, ...] = (
    _row("BOOL", "TYPE_BOOL", np.bool_),
    _row("UINT8", "TYPE_UINT8", np.uint8),
    _row("UINT16", "TYPE_UINT16", np.uint16),
    _row("UINT32", "TYPE_UINT32", np.uint32),
    _row("UINT64", "TYPE_UINT64", np.uint64),
    _row("INT8", "TYPE_INT8", np.int8),
    _row("INT16", "TYPE_INT16", np.int16),
    _row("INT32", "TYPE_INT32", np.int32),
    _row("INT64", "TYPE_INT64", np.int64),
    _row("FP16", "TYPE_FP16", np.float16),
    _row("FP32", "TYPE_FP32", np.float32),
    _row("FP64", "TYPE_FP64", np.float64),
    _row("BYTES", "TYPE_STRING", np.object_),
    _row("BF16", "TYPE_BF16", BFLOAT16),
)

BY_WIRE: dict[str, Datatype] = {row.wire: row for row in DATATYPES}
BY_CONFIG: dict[str, Datatype] = {row.config: row for row in DATATYPES}
_BY_NUMPY: dict[np.dtype[np.generic], Datatype] = {row.numpy: row for row in DATATYPES}


def from_numpy(dtype: np.dtype[np.generic]) -> Datatype:
    """The data type that stands for a numpy dtype; fixed-width strings and bytes are BYTES.

    Raises:
        InvalidRequest: numpy dtypes that v2 has no name for, such as complex numbers.
    """
    if dtype.kind in "SU":
        return BY_WIRE["BYTES"]
    row = _BY_NUMPY.get(dtype.newbyteorder("="))
    if row is None:
        raise InvalidRequest(f"numpy dtype '{dtype}' has no KServe v2 data type")
    return row
