"""A request's body as it arrives, put together with as few copies as can be."""

from __future__ import annotations

import numpy as np

from workbench.protocol.binary import Buffer

LARGE = 64 * 1024
"""Bytes from which on a body is put into one buffer."""

_ALIGN = 64


def aligned(size: int, head: int = 0) -> memoryview:
    """A new buffer of ``size`` bytes, the one after the first ``head`` of them aligned for any data type."""
    buffer = np.empty(size + _ALIGN, np.uint8)
    skip = -(buffer.ctypes.data + head) % _ALIGN
    return buffer.data[skip : skip + size]


class Body:
    """Collects a body.

    A large one of known size is written into one buffer that lies so that what follows the JSON head is aligned: its
    tensors can be used where they are. There is none before ``open``: even one of which little is used may take memory.
    """

    __slots__ = ("_expected", "_filled", "_head", "_large", "_parts", "chunks", "size")

    def __init__(self) -> None:
        self.chunks = 0
        self.size = 0
        self._parts: list[bytes] = []
        self._large: memoryview | None = None
        self._filled = 0
        self._expected = 0  # bytes of a large body
        self._head = 0  # of them JSON

    def start(self, size: int | None, header_length: bytes | None) -> None:
        """A body of ``size`` bytes (None: unknown) is to come, ``header_length`` of them JSON."""
        self.chunks = 0
        self.size = 0
        self._parts.clear()
        self._large = None
        self._filled = 0
        self._expected = size if size is not None and size >= LARGE else 0
        if self._expected:
            self._head = int(header_length) if header_length is not None and header_length.isdigit() else 0

    def open(self) -> None:
        """There is memory for all of it."""
        if not self._expected or self._large is not None:
            return
        self._large = aligned(self._expected, self._head)
        parts, self._parts = self._parts, []
        for part in parts:
            self._large[self._filled : self._filled + len(part)] = part
            self._filled += len(part)

    def add(self, data: bytes) -> None:
        """A piece has come."""
        length = len(data)
        self.size += length
        if self._large is None:
            self._parts.append(data)
        else:
            self._large[self._filled : self._filled + length] = data
            self._filled += length

    def room(self) -> memoryview | None:
        """Where the rest of a large body goes; None where there is no such place, or nothing is missing."""
        large = self._large
        return None if large is None or self._filled == self._expected else large[self._filled :]

    def came(self, size: int) -> None:
        """``size`` bytes were written where ``room`` says."""
        self.size += size
        self._filled += size

    def take(self) -> Buffer:
        """The whole body; the next one starts afresh."""
        large, parts = self._large, self._parts
        self._large = None
        if large is not None:
            return large
        self._parts = []
        return parts[0] if len(parts) == 1 else b"".join(parts)
