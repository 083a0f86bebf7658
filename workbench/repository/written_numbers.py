"""Numbers as a JSON text has them: one that its data type cannot hold must not become infinity without a word."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.protocol.datatypes import Datatype

HINT = "give a number that it can hold; where infinity is meant, write Infinity"


class TooLarge(ValueError):
    """A number was written that its data type cannot hold; the message says which, and where in the tensor."""


class LargeNumber(float):
    """Infinity that was written as a number; as a text it is what was written."""

    def __new__(cls, text: str) -> LargeNumber:
        """Keeps the text of a number."""
        made = super().__new__(cls, "-inf" if text.startswith("-") else "inf")
        made.text = text if len(text) <= 40 else f"{text[:37]}..."
        return made

    text: str

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(self.text, spec)


_MAYBE_LARGE = re.compile(r"\d{200}|[eE]\+?0*[1-9]\d\d")
"""What every text has in which a number is beyond a double."""


def read_json(text: str) -> Any:
    """A JSON text; a number beyond a double is a ``LargeNumber``. ``Infinity`` and ``NaN`` are what they say.

    Raises:
        json.JSONDecodeError: it is none.
        RecursionError: it is nested too deep.
    """
    if _MAYBE_LARGE.search(text) is None:  # the decoder is several times as fast without hooks
        return json.loads(text)
    return json.loads(text, parse_float=_float, parse_int=_integer)


def _float(text: str) -> float:
    value = float(text)
    return LargeNumber(text) if math.isinf(value) else value


def _integer(text: str) -> int | float:
    try:
        value = int(text)
        float(value)
    except (ValueError, OverflowError):  # Python reads no more than 4300 digits
        return LargeNumber(text)
    return value


def narrowed(array: NDArray[Any], row: Datatype, given: Any, what: str) -> NDArray[Any]:
    """An array of numbers in another data type, where that loses nothing but a float's precision.

    Args:
        array: the numbers.
        row: the data type.
        given: the same as it was written: numbers, nested in lists.
        what: whose numbers, for the error.

    Raises:
        TooLarge: a number would become infinity, or has done so already.
    """
    with np.errstate(over="ignore"):
        found = array.astype(row.numpy)
    if array.dtype.kind == "f":
        lost = np.isinf(array)
        if lost.any():
            written = np.array(given, np.object_)
            lost = np.array([isinstance(item, LargeNumber) for item in written.flat], np.bool_).reshape(array.shape)
    else:
        lost = np.zeros(array.shape, np.bool_)
    if row.numpy.kind == "f" or row.numpy.name == "bfloat16":  # numpy itself has no such kind
        lost |= np.isinf(found) & np.isfinite(array)
    if lost.any():
        place = [int(index) for index in np.argwhere(lost)[0]]
        value = np.array(given, np.object_)[tuple(place)]
        at = f" at {place}" if place else ""
        raise TooLarge(f"{what} has {value}{at}, which is too large for {row.wire}")
    return found
