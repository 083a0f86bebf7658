"""A tensor written in JSON, as perf_analyzer's ``--input-data`` has it (see ``example_inputs``)."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import ConfigError
from workbench.protocol.datatypes import Datatype
from workbench.protocol.tensors import as_bytes_array
from workbench.repository.files import read_regular
from workbench.repository.written_numbers import HINT as TOO_LARGE
from workbench.repository.written_numbers import LargeNumber, TooLarge, narrowed

FOLDER_NAME = "example_inputs"
_KEYS = {"content", "shape", "b64", "file"}

Fail = Callable[[str, str, str], ConfigError]
"""Makes the error for a place in the file: (place, message, hint)."""


@dataclass(frozen=True, slots=True)
class InputTensor:
    """An input of a model as the examples need it; ``dims`` are without the batch axis, -1 is any size."""

    name: str
    datatype: Datatype
    dims: tuple[int, ...]
    optional: bool = False


def integer_limits(spec: InputTensor) -> np.iinfo[Any]:
    """The smallest and largest value of an integer input."""
    return np.iinfo(spec.datatype.numpy)


def parse_tensor(folder: Path, place: str, value: Any, spec: InputTensor, fail: Fail) -> NDArray[Any]:
    """The array that ``value`` stands for: a list, or an object with content, b64 or file, and shape.

    Args:
        folder: where files lie.
        place: where in the file ``value`` stands, for errors.

    Raises:
        ConfigError: it is no tensor, or one that does not fit ``spec``.
    """
    if isinstance(value, list):
        value = {"content": value}
    keys = set(value) if isinstance(value, dict) else set()
    if not keys <= _KEYS or len(keys & {"content", "b64", "file"}) != 1:
        raise fail(place, "this is no tensor", "write a list, or an object with one of content, b64, file, and shape")
    try:
        if "content" in keys:
            array = _from_content(value["content"], spec)
        elif "b64" in keys:
            array = _from_bytes(base64.b64decode(value["b64"], validate=True), spec)
        else:
            array = _from_file(folder, str(value["file"]), spec)
    except TooLarge as error:
        raise fail(place, str(error), TOO_LARGE) from error
    except (ValueError, TypeError, OverflowError, binascii.Error, struct.error) as error:
        raise fail(place, f"not a tensor of type {spec.datatype.wire}: {error}", "correct the values") from error
    except OSError as error:
        raise fail(place, f"cannot read the file: {error.strerror or error}", f"put it into {FOLDER_NAME}/") from error
    return _shaped(fail, place, array, value.get("shape"), spec)


def _from_content(content: Any, spec: InputTensor) -> NDArray[Any]:
    if not isinstance(content, list):
        raise TypeError('"content" is not a list')
    kind = spec.datatype.numpy.kind
    if spec.datatype.wire == "BYTES":
        array: NDArray[Any] = np.array(content, dtype=np.object_)
        if not all(isinstance(item, str) for item in array.flat):
            raise TypeError("every element is to be a string, and nested lists equally long")
        return as_bytes_array(array)
    array = np.array(content) if content else np.empty(0)
    if array.dtype == np.object_ and all(type(item) in (int, float, bool, LargeNumber) for item in array.flat):
        array = array.astype(np.float64)  # whole numbers of more than 64 bits
    if array.dtype.kind not in "biuf":
        raise TypeError("every element is to be a number, and nested lists equally long")
    if kind in "iu" and array.size:
        limits = integer_limits(spec)
        whole = array.dtype.kind in "biu" or bool(np.all(np.isfinite(array) & (array == np.floor(array))))
        # as Python's integers: as a float the greatest INT64 is one too many
        if not whole or int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise ValueError(f"every element is to be a whole number from {limits.min} to {limits.max}")
    return narrowed(array, spec.datatype, content, f"input '{spec.name}'")


def _from_bytes(raw: bytes, spec: InputTensor) -> NDArray[Any]:
    if spec.datatype.wire != "BYTES":
        return np.frombuffer(raw, dtype=spec.datatype.numpy).copy()
    items, at = [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<I", raw, at)
        items.append(raw[at + 4 : at + 4 + length])
        at += 4 + length
    if at != len(raw):
        raise ValueError("the bytes end within an element")
    return _objects(items)


def _from_file(folder: Path, name: str, spec: InputTensor) -> NDArray[Any]:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError(f"'{name}' lies outside {FOLDER_NAME}/")
    raw = read_regular(path)
    if path.suffix == ".npy":
        array: NDArray[Any] = np.load(BytesIO(raw), allow_pickle=False)
        if spec.datatype.wire == "BYTES":
            return as_bytes_array(array)
        if array.dtype != spec.datatype.numpy:
            raise TypeError(f"the file holds {array.dtype}")
        return array
    return _objects([raw]) if spec.datatype.wire == "BYTES" else _from_bytes(raw, spec)


def _objects(items: Sequence[bytes]) -> NDArray[Any]:
    array = np.empty(len(items), dtype=np.object_)
    array[:] = items
    return array


def _shaped(fail: Fail, place: str, array: NDArray[Any], shape: Any, spec: InputTensor) -> NDArray[Any]:
    dims = spec.dims
    if shape is None:
        if array.ndim == len(dims) and _fits(array.shape, dims):
            return array
        known = math.prod(dim for dim in dims if dim != -1)
        unknown = dims.count(-1)
        if unknown > 1 or (unknown == 1 and (known == 0 or array.size % known)):
            raise fail(place, f"the shape is not known: the model has dims {list(dims)}", 'add "shape"')
        shape = [array.size // known if dim == -1 else dim for dim in dims]
    if not isinstance(shape, list) or not all(type(dim) is int and dim >= 0 for dim in shape):
        raise fail(place, f'"shape" is {shape!r}, not a list of sizes', "write whole numbers, such as [3]")
    if not _fits(shape, dims):
        batch = " without the batch axis" if len(shape) == len(dims) + 1 else ""
        raise fail(
            place, f"shape {shape} does not fit the model's dims {list(dims)}", f"give the shape of one row{batch}"
        )
    if array.size != math.prod(shape):
        raise fail(
            place,
            f"{array.size} elements do not fill shape {shape}",
            f"give {math.prod(shape)} elements, or another shape",
        )
    return array.reshape(shape)


def _fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return len(shape) == len(dims) and all(dim in (-1, size) for size, dim in zip(shape, dims, strict=True))
