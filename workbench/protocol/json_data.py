"""JSON text and the ``data`` field of JSON tensors.

orjson does the work; what it refuses and Triton's RapidJSON accepts (NaN and Infinity, invalid UTF-8) takes a slower
way round. Texts and statuses are those of Triton's ``triton_json.h`` and ``http_server.cc``, where an error of JSON
types is INTERNAL. One deliberate difference: an integer that does not fit its data type is refused, where Triton wraps
it.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from workbench.errors import Code, InternalError, InvalidRequest, WorkbenchError, from_code
from workbench.protocol import datatypes
from workbench.protocol.binary import Buffer, bytes_array, empty_array, missing_strings, request_prefix, shape_text
from workbench.protocol.tensors import as_bytes_array

MAX_NESTING = 100
"""Triton's HTTP_MAX_JSON_NESTING_DEPTH."""

_INT64_MAX = 2**63 - 1
_NUMBERS = {int, float}
_DEPTH_TEXT = f"JSON nesting depth exceeds maximum allowed limit ({MAX_NESTING})"
NOT_STRING = "attempt to access JSON non-string as string"
NOT_BOOL = "attempt to access JSON non-boolean as boolean"
NOT_INT = "attempt to access JSON non-signed-integer as signed-integer"
NOT_UINT = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NOT_NUMBER = "attempt to access JSON non-number as double"
NOT_ARRAY = "attempt to access JSON non-array as array"

SHAPE_MISMATCH = "Unable to parse 'data': Shape does not match true shape of 'data' field"
"""Too many elements and, as the 2.51 binary has it, too few (later sources have another text for those)."""

_TYPE_TEXTS = {"b": NOT_BOOL, "u": NOT_UINT, "i": NOT_INT, "f": NOT_NUMBER}


def loads(text: Buffer) -> Any:
    """Parses a JSON document as Triton does: NaN, Infinity (Inf), invalid UTF-8 in strings, a byte order mark before it
    and zero bytes behind it are accepted. Of a key that comes twice the last counts (in Triton the first).

    Invalid bytes become lone surrogates, which ``encode_text`` turns back.

    Raises:
        InternalError: it is no JSON. The detail differs from Triton's, which comes from RapidJSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        first = error
    if "low surrogate" in first.msg or "infinity" in first.msg:  # RapidJSON refuses these, too
        raise InternalError(f"failed to parse the request JSON buffer: {first.msg} at {first.pos}")
    plain = bytes(text).removeprefix(_BOM).rstrip(b"\0").decode("utf-8", "surrogateescape")
    try:
        try:
            return json.loads(plain)
        except json.JSONDecodeError:
            if len(plain) > _MENDED_UP_TO or ("Inf" not in plain and "-NaN" not in plain):
                raise
            return json.loads(_ODD_NUMBERS.sub(_as_python_has_it, plain))
    except RecursionError:
        raise InvalidRequest(_DEPTH_TEXT) from None
    except ValueError:
        raise InternalError(f"failed to parse the request JSON buffer: {first.msg} at {first.pos}") from None


_BOM = b"\xef\xbb\xbf"
_MENDED_UP_TO = 64 * 1024  # Inf for Infinity is rare, and looking for it slow: a large body must not hold the loop
# a string, also one without an end, is passed over in one go: looking again from its middle would take for ever
_ODD_NUMBERS = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|-?\b(?:Inf|NaN)\b', re.DOTALL)
_PYTHONS = {"Inf": "Infinity", "-Inf": "-Infinity", "-NaN": "NaN"}


def _as_python_has_it(found: re.Match[str]) -> str:
    return _PYTHONS.get(found[0], found[0])


def encode_text(text: str) -> bytes:
    """A JSON string as bytes; lone surrogates that stand for invalid UTF-8 become the bytes that they were."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape" if _escapes_only(text) else "surrogatepass")


def _escapes_only(text: str) -> bool:
    return all(not 0xD800 <= ord(char) <= 0xDFFF or 0xDC80 <= ord(char) <= 0xDCFF for char in text)


def dumps(value: Any) -> bytes:
    """Writes JSON; falls back where a string holds lone surrogates or an integer needs more than 64 bits."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except (orjson.JSONEncodeError, TypeError):
        return dumps_slow(value)


def dumps_slow(value: Any) -> bytes:
    """Writes JSON with what orjson cannot write: NaN, Infinity, bytes that are no UTF-8."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
    return encode_text(text)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


# ---------------------------------------------------------------------------------------------------------------------
# JSON -> array


@dataclass(slots=True)
class Source:
    """What texts say of a tensor, and the largest size in bytes that it may have (``--http-max-input-size``)."""

    name: str
    datatype: str
    model: str = ""
    request_id: str = ""
    max_size: int = 2**62


def array_from_json(source: Source, shape: tuple[int, ...], data: Any) -> NDArray[Any]:
    """The array that a ``data`` field stands for; ``data`` is nested to any depth below 100, or flat, row-major.

    Raises:
        WorkbenchError: Triton's text and code for what does not fit.
    """
    name, datatype = source.name, source.datatype
    count = _checked_count(name, shape)
    row = datatypes.BY_WIRE.get(datatype)
    if count == 0:
        return empty_array(name, shape, np.dtype(np.uint8) if row is None else row.numpy)
    if type(data) is not list:
        raise InternalError(f"Unable to parse 'data': {NOT_ARRAY}")
    if datatype == "BYTES":
        return _bytes_from_json(source, shape, data, count)
    if row is None:
        raise InvalidRequest(f"invalid datatype for input {name}")
    _check_size(name, count, row.itemsize, source.max_size)
    if datatype in ("FP16", "BF16"):
        raise InvalidRequest(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input {name}"
        )
    flat = _flatten(data, "Unable to parse 'data': ")
    _check_types(flat, row.numpy.kind, count)
    if len(flat) != count:
        raise InternalError(SHAPE_MISMATCH)
    return _numbers(name, flat, row).reshape(shape)


def _numbers(name: str, flat: list[Any], row: datatypes.Datatype) -> NDArray[Any]:
    if row.numpy.kind != "f":
        try:
            return np.array(flat, dtype=row.numpy)
        except OverflowError:
            info = np.iinfo(row.numpy.name)
            bad = next(value for value in flat if not info.min <= value <= info.max)
            raise InvalidRequest(
                f"Unable to parse 'data': value {bad} of input '{name}' is out of range for {row.wire} "
                f"[{info.min}, {info.max}]"
            ) from None
    try:
        with np.errstate(over="ignore"):
            return np.array(flat, dtype=np.float64).astype(row.numpy, copy=False)
    except OverflowError:
        raise InternalError("failed to parse the request JSON buffer: Number too big to be stored in double.") from None


def _checked_count(name: str, shape: tuple[int, ...]) -> int:
    """Triton's GetElementCount with its errors; dimensions arrive as unsigned 64-bit integers."""
    count = math.prod(shape)
    if count <= _INT64_MAX and (count or max(shape) <= _INT64_MAX):
        return count
    signed = tuple(dim - 2**64 if dim > _INT64_MAX else dim for dim in shape)
    for dim in signed:
        if dim < 0:
            raise InvalidRequest(
                f"invalid shape for input '{name}': shape {shape_text(signed)} contains one or more invalid dimensions"
            )
        if dim == 0:
            return 0
    raise InvalidRequest(
        f"invalid shape for input '{name}': shape {shape_text(signed)} causes total element count to exceed "
        f"maximum size of {_INT64_MAX}"
    )


def _check_size(name: str, count: int, itemsize: int, max_size: int) -> None:
    size = count * itemsize
    if size <= max_size:
        return
    if size > _INT64_MAX:
        raise InvalidRequest(
            f"byte size overflow for input '{name}': element count ({count}) * data type size ({itemsize}) exceeds "
            f"maximum allowed size ({_INT64_MAX})"
        )
    raise InvalidRequest(
        f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of {max_size} "
        "bytes. Use --http-max-input-size to increase the limit."
    )


def _flatten(data: list[Any], prefix: str) -> list[Any]:
    """The leaves in order. Levels where everything is a list are joined at C speed."""
    flat = data
    for level in range(MAX_NESTING - 2):  # the deepest leaves that Triton takes are inside 99 arrays
        kinds = set(map(type, flat))
        if list not in kinds:
            return flat
        if len(kinds) == 1:
            flat = list(chain.from_iterable(flat))
        else:  # leaves beside lists: odd, but Triton takes it
            return _flatten_uneven(flat, MAX_NESTING - 2 - level, prefix)
    if list in set(map(type, flat)):
        raise InvalidRequest(prefix + _DEPTH_TEXT)
    return flat


def _flatten_uneven(data: list[Any], depth: int, prefix: str) -> list[Any]:
    """The leaves in order, at most ``depth`` lists deep; each is looked at once."""
    flat: list[Any] = []
    stack = [iter(data)]
    while stack:
        for item in stack[-1]:
            if type(item) is list:
                stack.append(iter(item))
                break
            flat.append(item)
        else:
            stack.pop()
        if len(stack) > depth + 1:
            raise InvalidRequest(prefix + _DEPTH_TEXT)
    return flat


def _check_types(flat: list[Any], kind: str, count: int) -> None:
    kinds = set(map(type, flat))
    if kind == "f":
        if kinds <= _NUMBERS:
            return
        good = False
    elif kind == "b":
        good = kinds <= {bool}
    else:
        good = kinds <= {int}
    if good and kind == "u" and flat:
        good = min(flat) >= 0
    if good and kind in "ui" and flat:
        limits = (0, 2**64 - 1) if kind == "u" else (-(2**63), _INT64_MAX)
        good = limits[0] <= min(flat) and max(flat) <= limits[1]
    if good:
        return
    # Triton goes through the elements in order: what stands behind a surplus element is never looked at.
    for value in flat[:count]:
        if not _is_kind(value, kind):
            raise InternalError(f"Unable to parse 'data': {_TYPE_TEXTS[kind]}")


def _is_kind(value: Any, kind: str) -> bool:
    if kind == "b":
        return type(value) is bool
    if kind == "f":
        return type(value) in (int, float)
    if type(value) is not int:
        return False
    low, high = (0, 2**64 - 1) if kind == "u" else (-(2**63), _INT64_MAX)
    return low <= value <= high


def _bytes_from_json(source: Source, shape: tuple[int, ...], data: list[Any], count: int) -> NDArray[Any]:
    flat = _flatten(data, "")
    if not set(map(type, flat)) <= {str}:
        raise InternalError(f"Unable to parse JSON bytes array: {NOT_STRING}")
    items = [encode_text(text) for text in flat]
    _check_size(source.name, sum(map(len, items)) + 4 * len(items), 1, source.max_size)
    if len(items) > count:
        raise InvalidRequest(
            f"{request_prefix(source.request_id)}unexpected number of string elements {count + 1} for inference input "
            f"'{source.name}' for model '{source.model}', expecting {count}"
        )
    if len(items) < count:
        raise missing_strings(source.name, count, len(items), model=source.model, request_id=source.request_id)
    return bytes_array(items, shape, source.name)


# ---------------------------------------------------------------------------------------------------------------------
# array -> JSON


def array_to_json(datatype: str, array: NDArray[Any]) -> tuple[Any, bool]:
    """What to write as ``data``: a flat list or array for ``dumps``, and whether ``dumps_slow`` is needed instead.

    FP32 is written as the double that it is, as Triton does.

    Raises:
        InvalidRequest: FP16 and BF16, which Triton does not write as JSON.
    """
    if datatype in ("FP16", "BF16"):
        raise InvalidRequest(
            f"sending {datatype} data via JSON is not supported. Please use the binary data format for output"
        )
    if datatype == "BYTES":
        return _strings(array)
    flat = array.reshape(-1)
    if datatype in ("FP32", "FP64"):
        values = flat.astype(np.float64, copy=False)
        if values.size <= 64:
            listed: list[float] = values.tolist()
            return listed, not all(map(math.isfinite, listed))
        if not np.isfinite(values).all():
            return values.tolist(), True
        return np.ascontiguousarray(values), False
    return (flat.tolist(), False) if flat.size <= 64 else (np.ascontiguousarray(flat), False)


def _strings(array: NDArray[Any]) -> tuple[list[str], bool]:
    items = as_bytes_array(array).reshape(-1)
    try:
        return [item.decode() for item in items], False
    except UnicodeDecodeError:
        return [item.decode("utf-8", "surrogateescape") for item in items], True


def error_message(body: Buffer, default: str) -> str:
    """The text of an ``{"error": ...}`` body, or ``default`` where the body is something else."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return default
    if isinstance(value, dict) and isinstance(value.get("error"), str):
        return str(value["error"])
    return default


def type_error(field: str, text: str) -> WorkbenchError:
    """The error for a field of the wrong JSON type."""
    return from_code(Code.INTERNAL, f"Unable to parse '{field}': {text}")
