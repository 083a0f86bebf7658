"""Reading protobuf messages of which only a few fields matter, without their schema and without copies.

Source: the protobuf encoding (wire types 0 varint, 1 and 5 fixed, 2 with a length).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def fields(data: mmap.mmap | bytes, start: int, end: int) -> Iterator[tuple[int, int | tuple[int, int]]]:
    """The fields of the message that ``data[start:end]`` is: number, and its varint or the span of its bytes.

    Raises:
        ValueError: it is no message.
        IndexError: it ends too early.
    """
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


def text(data: mmap.mmap | bytes, span: tuple[int, int], wanted: int) -> str:
    """The first field of this number in a message, as text; "" where there is none."""
    for number, part in fields(data, *span):
        if number == wanted and isinstance(part, tuple):
            return data[part[0] : part[1]].decode("utf-8", "replace")
    return ""


def _varint(data: mmap.mmap | bytes, start: int) -> tuple[int, int]:
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
