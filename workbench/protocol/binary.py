"""Tensors as raw bytes: the v2 "binary tensor data" extension.

Elements are little-endian and row-major; an element of BYTES is its length as a 32-bit integer, then its bytes.
Texts: core ``infer_request.cc`` (``Normalize``, ``ValidateBytesInputs``), which prefixes the request's id.
"""

from __future__ import annotations

import math
import struct
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidRequest
from workbench.protocol import datatypes
from workbench.protocol.tensors import Tensor, as_bytes_array

Buffer = bytes | bytearray | memoryview
"""Something that holds bytes and can be written to a socket."""

_MAX_NDIM = 64
_LITTLE = sys.byteorder == "little"
_U32 = struct.Struct("<I")


def request_prefix(request_id: str) -> str:
    """``[request id: ID] ``, as Triton's core puts before its texts."""
    return f"[request id: {request_id or '<id_unknown>'}] "


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as Triton prints it, ``[1,16]``."""
    return "[" + ",".join(map(str, shape)) + "]"


def element_count(shape: tuple[int, ...]) -> int:
    """The number of elements of a shape; a scalar has one."""
    return math.prod(shape)


def check_rank(name: str, shape: tuple[int, ...]) -> None:
    """Refuses shapes that numpy cannot hold.

    Raises:
        InvalidRequest: more than 64 dimensions (Triton has no such limit).
    """
    if len(shape) > _MAX_NDIM:
        raise InvalidRequest(f"input '{name}' has {len(shape)} dimensions, at most {_MAX_NDIM} are supported")


def to_buffer(tensor: Tensor) -> Buffer:
    """The tensor's elements as they go on the wire; a view of its array where that is possible."""
    array = tensor.data
    if tensor.datatype == "BYTES":
        return encode_bytes(array)
    if _LITTLE and array.nbytes < 4096 and array.dtype.byteorder != ">":
        return array.tobytes()
    if not _LITTLE or array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array.reshape(-1).view(np.uint8).data


def encode_bytes(array: NDArray[Any]) -> bytes:
    """A BYTES array on the wire: each element's length, then the element."""
    pack = _U32.pack
    parts: list[bytes] = []
    items: list[bytes] = as_bytes_array(array).reshape(-1).tolist()
    for item in items:
        parts.append(pack(len(item)))
        parts.append(item)
    return b"".join(parts)


def from_buffer(
    name: str, datatype: str, shape: tuple[int, ...], view: memoryview, *, model: str = "", request_id: str = ""
) -> Tensor:
    """A tensor around the bytes of ``view``, which stay shared unless they are not aligned for the data type.

    An unknown data type gives a tensor of data type ``<invalid>``, which no model accepts.


    Raises:
        InvalidRequest: the bytes do not fit the shape (Triton's texts).
    """
    if len(shape) > _MAX_NDIM:
        check_rank(name, shape)
    if datatype == "BYTES":
        return Tensor(name, datatype, shape, decode_bytes(name, shape, view, model=model, request_id=request_id))
    row = datatypes.BY_WIRE.get(datatype)
    if row is None:
        return _of_no_type(name, shape)
    expected = math.prod(shape) * row.itemsize
    if expected != view.nbytes:
        raise InvalidRequest(
            f"{request_prefix(request_id)}input byte size mismatch for input '{name}' for model '{model}'. "
            f"Expected {expected}, got {view.nbytes}"
        )
    if expected == 0:
        return Tensor(name, datatype, shape, empty_array(name, shape, row.numpy))
    array: NDArray[Any] = np.frombuffer(view, dtype=row.numpy)
    if not _LITTLE:
        array = array.byteswap()
    if datatype == "BOOL":
        array = np.frombuffer(view, dtype=np.uint8) != 0
    elif not array.flags.aligned:
        array = array.copy()
    return Tensor(name, datatype, shape, array.reshape(shape))


def _of_no_type(name: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor of an unknown data type: whoever knows the model's says what it expects (``<invalid>`` is Triton's)."""
    try:
        return Tensor(name, "<invalid>", shape, np.broadcast_to(np.uint8(0), shape))
    except ValueError:
        raise InvalidRequest(f"invalid datatype for input {name}") from None


def decode_bytes(
    name: str, shape: tuple[int, ...], view: memoryview, *, model: str = "", request_id: str = ""
) -> NDArray[Any]:
    """A BYTES array from the wire.

    Raises:
        InvalidRequest: too few or too many elements, or a length that leads past the end.
    """
    check_rank(name, shape)
    count = element_count(shape)
    data, size = view.tobytes(), view.nbytes
    items: list[bytes] = []
    offset = 0
    while offset < size:
        if size - offset < 4:
            raise InvalidRequest(
                f"{request_prefix(request_id)}incomplete string length indicator for inference input '{name}' for "
                f"model '{model}', expecting 4 bytes but only {size - offset} bytes available. Please make sure the "
                "string length indicator is in one buffer."
            )
        (length,) = _U32.unpack_from(data, offset)
        if len(items) >= count:
            raise InvalidRequest(
                f"{request_prefix(request_id)}unexpected number of string elements {count + 1} for inference input "
                f"'{name}' for model '{model}', expecting {count}"
            )
        offset += 4
        if length > size - offset:
            if len(items) + 1 != count:
                raise missing_strings(name, count, len(items) + 1, model=model, request_id=request_id)
            raise InvalidRequest(
                f"incomplete string data for inference input '{name}', expecting string of length {length} but only "
                f"{size - offset} bytes available"
            )
        items.append(data[offset : offset + length])
        offset += length
    if len(items) != count:
        raise missing_strings(name, count, len(items), model=model, request_id=request_id)
    return bytes_array(items, shape, name)


def missing_strings(name: str, expected: int, got: int, *, model: str, request_id: str) -> InvalidRequest:
    """The error for a BYTES input with too few elements."""
    return InvalidRequest(
        f"{request_prefix(request_id)}expected {expected} string elements for inference input '{name}' for model "
        f"'{model}', got {got}"
    )


def bytes_array(items: list[bytes], shape: tuple[int, ...], name: str = "") -> NDArray[Any]:
    """An object array of ``bytes`` in a given shape."""
    out = empty_array(name, shape, np.dtype(np.object_))
    if items:
        out.reshape(-1)[:] = items
    return out


def empty_array(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An uninitialised array.

    Raises:
        InvalidRequest: numpy cannot hold such a shape.
    """
    try:
        return np.empty(shape, dtype=dtype)
    except (ValueError, MemoryError, OverflowError) as error:
        raise InvalidRequest(f"invalid shape for input '{name}': shape {shape_text(shape)}: {error}") from error
