"""What clients send packed (gzip, zlib), unpacked bit by bit: so much at once on the loop, the rest on a thread."""

from __future__ import annotations

import zlib
from typing import Any

from workbench.protocol.binary import Buffer

AT_ONCE = 256 * 1024
"""Bytes that are unpacked on the loop, in under a millisecond; of what is more the rest is unpacked on a thread."""

STEP = 4 * 1024 * 1024
"""Bytes that a thread unpacks before somebody looks whether they are still wanted, and allowed."""

GZIP, ZLIB, EITHER = zlib.MAX_WBITS | 16, zlib.MAX_WBITS, zlib.MAX_WBITS | 32
"""Formats."""

_IN = 256 * 1024  # zlib hands back what it has not used of its input, as a copy
_OUT = 1024 * 1024  # and puts one call's output together while it holds the interpreter


class Broken(Exception):
    """What came cannot be unpacked: why."""


class Unpacking:
    """Something packed, and what of it has been unpacked so far. One thread at a time.

    Args:
        data: all of it.
        form: ``GZIP``, ``ZLIB`` or ``EITHER``.
    """

    __slots__ = ("_at", "_data", "_pieces", "_rest", "_unpacker", "plain", "size")

    def __init__(self, data: Buffer, form: int) -> None:
        self._unpacker = zlib.decompressobj(wbits=form)
        self._data = memoryview(data)
        self._at = 0
        self._rest: Buffer = b""
        self._pieces: list[bytes] = []
        self.size = 0
        """Bytes unpacked so far."""
        self.plain = b""
        """All of them, at the end."""

    def step(self, most: int) -> bool:
        """Unpacks up to ``most`` bytes more; True when that was all, which is then in ``plain``.

        Raises:
            Broken: it is broken, or ends too early.
        """
        unpacker: Any = self._unpacker  # of which mypy thinks that ``eof`` stays what it was
        if unpacker.eof:
            return True
        while most > 0:
            if not self._rest:
                self._rest = self._data[self._at : self._at + _IN]
                self._at += len(self._rest)
            wanted, is_end = min(most, _OUT), not self._rest
            try:
                piece = unpacker.decompress(self._rest, wanted)
            except zlib.error as error:
                raise Broken(str(error)) from None
            self._rest = unpacker.unconsumed_tail
            if piece:
                self._pieces.append(piece)
                self.size += len(piece)
                most -= len(piece)
            if unpacker.eof:
                pieces, self._pieces, self._data = self._pieces, [], memoryview(b"")
                self.plain = pieces[0] if len(pieces) == 1 else b"".join(pieces)  # a large join lets other threads run
                return True
            if is_end and len(piece) < wanted:
                raise Broken("it ends too early")
        return False
