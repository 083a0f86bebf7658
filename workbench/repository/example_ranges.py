"""Seeded random inputs within the ``ranges`` of ``example_inputs.json`` (see ``example_inputs``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.repository.example_tensors import Fail, InputTensor, integer_limits
from workbench.repository.written_numbers import LargeNumber, TooLarge, narrowed

_KEYS = {"min", "max", "values", "vocabulary", "words", "shape", "shapes"}
_LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))
_WORD_LENGTHS = (1, 8)
_WORDS = (1, 16)
_MOST_WORDS = 1_000_000
_FP32_MAX = float(np.finfo(np.float32).max)
_MAX_BYTES = 1 << 31  # what fits into one protobuf message, and so into a gRPC request


@dataclass(frozen=True, slots=True)
class Range:
    """What the values of one input are drawn from, checked against its data type.

    ``low`` and ``high`` are both possible for integers. ``shapes`` is empty where the model's dims say it all.
    """

    low: float | int = 0
    high: float | int = 1
    values: NDArray[Any] | None = None
    vocabulary: tuple[str, ...] = ()
    words: tuple[int, int] = _WORDS
    shapes: tuple[tuple[int, ...], ...] = ()


def parse_ranges(ranges: Any, inputs: Sequence[InputTensor], fail: Fail) -> dict[str, Range]:
    """The checked ``ranges``, by input name.

    Raises:
        ConfigError: a name, key, value or shape does not fit the inputs.
    """
    if not isinstance(ranges, dict):
        raise fail("ranges", '"ranges" is not an object', 'write {"INPUT": {"min": 0, "max": 1}}')
    by_name = {spec.name: spec for spec in inputs}
    parsed = {}
    for name, entry in ranges.items():
        place = f"ranges.{name}"
        if name not in by_name:
            raise fail(place, f"the model has no input '{name}'", f"its inputs are: {', '.join(sorted(by_name))}")
        if not isinstance(entry, dict) or not set(entry) <= _KEYS:
            raise fail(place, "this is no range", f"write an object with some of: {', '.join(sorted(_KEYS))}")
        parsed[name] = _parse(place, entry, by_name[name], fail)
    return parsed


def draw(
    inputs: Sequence[InputTensor], ranges: Mapping[str, Range], rng: np.random.Generator, batch_size: int, fail: Fail
) -> dict[str, NDArray[Any]]:
    """One request: every input that is not optional or has a range. ``batch_size`` 0 is no batch axis.

    Raises:
        ConfigError: a dimension is -1 and no range gives the shape.
    """
    choice = int(rng.integers(0, 2**31))
    batch = (batch_size,) if batch_size else ()
    request = {}
    for spec in inputs:
        if spec.optional and spec.name not in ranges:
            continue
        given = ranges.get(spec.name, Range())
        if given.shapes:
            shape = given.shapes[choice % len(given.shapes)]
        elif -1 in spec.dims:
            raise fail(
                f"ranges.{spec.name}",
                f"input '{spec.name}' has dims {list(spec.dims)}: no shape is known to draw it in",
                'add examples, or its "shape" under "ranges"',
            )
        else:
            shape = spec.dims
        if math.prod((*batch, *shape)) * max(spec.datatype.itemsize, 1) > _MAX_BYTES:
            raise fail(f"ranges.{spec.name}", f"shape {[*batch, *shape]} takes more than 2 GiB", "give a smaller shape")
        request[spec.name] = _draw(spec, given, (*batch, *shape), rng)
    return request


def _parse(place: str, entry: Mapping[str, Any], spec: InputTensor, fail: Fail) -> Range:
    fields: dict[str, Any] = {"shapes": _shapes(place, entry, spec, fail)}
    text = spec.datatype.wire == "BYTES"
    if text and {"min", "max"} & set(entry):
        raise fail(place, "strings have no min and max", 'give "vocabulary" or "values"')
    if not text and {"vocabulary", "words"} & set(entry):
        raise fail(place, f"{spec.datatype.wire} has no vocabulary", 'give "min" and "max", or "values"')
    if "values" in entry:
        fields["values"] = _values(place, entry["values"], spec, fail)
    if "vocabulary" in entry:
        words = entry["vocabulary"]
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise fail(f"{place}.vocabulary", "the vocabulary is not a list of strings", "list at least one")
        fields["vocabulary"] = tuple(words)
    if "words" in entry:
        fields["words"] = _word_count(f"{place}.words", entry["words"], fail)
    if not text:
        fields["low"], fields["high"] = _limits(place, entry, spec, fail)
    return Range(**fields)


def _shapes(place: str, entry: Mapping[str, Any], spec: InputTensor, fail: Fail) -> tuple[tuple[int, ...], ...]:
    if "shape" in entry and "shapes" in entry:
        raise fail(place, 'both "shape" and "shapes" are given', "keep one of them")
    shapes = [entry["shape"]] if "shape" in entry else entry.get("shapes", [])
    hint = f"the model's dims are {list(spec.dims)}; leave the batch axis out"
    if not isinstance(shapes, list):
        raise fail(f"{place}.shapes", '"shapes" is not a list of shapes', hint)
    for shape in shapes:
        sizes = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
        if not sizes or len(shape) != len(spec.dims):
            raise fail(place, f"shape {shape!r} does not fit input '{spec.name}'", hint)
        if any(dim not in (-1, size) for size, dim in zip(shape, spec.dims, strict=True)):
            raise fail(place, f"shape {shape} does not fit input '{spec.name}'", hint)
    return tuple(tuple(shape) for shape in shapes)


def _values(place: str, values: Any, spec: InputTensor, fail: Fail) -> NDArray[Any]:
    text = spec.datatype.wire == "BYTES"
    kind: Any = str if text else (int, float)
    if not isinstance(values, list) or not values or not all(isinstance(value, kind) for value in values):
        raise fail(
            f"{place}.values", f'"values" is not a list of {"strings" if text else "numbers"}', "list at least one"
        )
    if text:
        array = np.empty(len(values), dtype=np.object_)
        array[:] = [value.encode() for value in values]
        return array
    for value in values:
        _check(f"{place}.values", value, spec, fail)
    return np.array(values).astype(spec.datatype.numpy)


def _word_count(place: str, words: Any, fail: Fail) -> tuple[int, int]:
    whole = isinstance(words, list) and len(words) == 2 and all(type(count) is int for count in words)
    if not whole or not 0 <= words[0] <= words[1] <= _MOST_WORDS:
        raise fail(place, f'"words" is {words!r}', "write the fewest and the most words, such as [1, 12]")
    return words[0], words[1]


def _limits(place: str, entry: Mapping[str, Any], spec: InputTensor, fail: Fail) -> tuple[float | int, float | int]:
    low, high = entry.get("min", 0), entry.get("max", 1)
    for key, value in (("min", low), ("max", high)):
        if not isinstance(value, int | float):
            raise fail(f"{place}.{key}", f"{value!r} is not a number", "write a number")
        _check(f"{place}.{key}", value, spec, fail)
    if low > high:
        raise fail(place, f"min {low} is above max {high}", 'give both "min" and "max", the smaller first')
    return low, high


def _check(place: str, value: float | int, spec: InputTensor, fail: Fail) -> None:
    if not isinstance(value, LargeNumber) and not math.isfinite(value):
        raise fail(place, f"{value} is not finite", "write a number")
    if spec.datatype.numpy.kind not in "iu":
        try:
            narrowed(np.array(float(value)), spec.datatype, value, "the range")
        except TooLarge as error:
            raise fail(place, str(error), "write a number that it can hold") from error
        return
    limits = integer_limits(spec)
    if isinstance(value, LargeNumber) or value != int(value) or not limits.min <= value <= limits.max:
        raise fail(
            place, f"{value} is no {spec.datatype.wire}", f"write a whole number from {limits.min} to {limits.max}"
        )


def _draw(spec: InputTensor, given: Range, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    if given.values is not None:
        return given.values[rng.integers(0, len(given.values), shape)]
    numpy_type = spec.datatype.numpy
    if spec.datatype.wire == "BYTES":
        array = np.empty(shape, dtype=np.object_)
        flat = array.reshape(-1)
        for index in range(flat.size):
            flat[index] = _text(given, rng).encode()
        return array
    if numpy_type.kind == "b":
        return rng.integers(int(given.low), int(given.high), shape, endpoint=True).astype(np.bool_)
    if numpy_type.kind in "iu":
        return rng.integers(int(given.low), int(given.high), shape, dtype=numpy_type, endpoint=True)
    low, high = float(given.low), float(given.high)
    if numpy_type == np.float32 and high - low <= _FP32_MAX:  # half the work and memory of doubles
        span = np.float32(given.high) - np.float32(given.low)
        return rng.random(shape, dtype=np.float32) * span + np.float32(given.low)
    drawn = rng.uniform(low, high, shape) if math.isfinite(high - low) else rng.uniform(low / 2, high / 2, shape) * 2
    return drawn.astype(numpy_type)


def _text(given: Range, rng: np.random.Generator) -> str:
    count = int(rng.integers(*given.words, endpoint=True))
    if given.vocabulary:
        return " ".join(given.vocabulary[i] for i in rng.integers(0, len(given.vocabulary), count))
    lengths = rng.integers(*_WORD_LENGTHS, count, endpoint=True)
    return " ".join("".join(rng.choice(_LETTERS, length)) for length in lengths)
