"""Messages of gRPC over HTTP/2: five bytes of framing, compression, the statuses, percent-encoded texts."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from workbench.errors import Code
from workbench.protocol.binary import Buffer
from workbench.server.body import aligned
from workbench.server.unpacking import GZIP, ZLIB

MAX_MESSAGE = 2**31 - 1
"""Triton's limit of a message, bytes."""

FRAMING = 5
"""Bytes before each message: whether it is packed, and its size."""

OK, CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 0, 1, 2, 4, 7, 8
UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 12, 13, 14, 16

_NUMBERS = {
    "CANCELLED": 1, "UNKNOWN": 2, "INVALID_ARGUMENT": 3, "NOT_FOUND": 5, "ALREADY_EXISTS": 6, "UNIMPLEMENTED": 12,
    "INTERNAL": 13, "UNAVAILABLE": 14,
}  # fmt: skip
_BY_CODE = {code: _NUMBERS[code.grpc_status] for code in Code}
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_PLAIN = frozenset(range(0x20, 0x7F)) - {0x25}
FORMS = {"gzip": GZIP, "deflate": ZLIB}
"""Format of each ``grpc-encoding`` that packs."""

LARGE = 64 * 1024
"""Parts of messages from here on, bytes, are not copied where that can be."""
_PARTS = 64  # pieces of a smaller message that are kept apart: a byte of its own takes forty
SLACK = 16
"""Bytes behind the place of a large message that may be written over."""
ENCODINGS = b"identity, deflate, gzip"
"""What ``grpc-accept-encoding`` says of this server, and the ``grpc-encoding`` values that it takes."""


STOPPING = "GRPC server is shutting down and has stopped accepting new requests."
"""What a request is told that comes while the server stops."""


class BadMessage(Exception):
    """A message that cannot be read: the status and the text that the call ends with."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def status_number(code: Code) -> int:
    """The number of the gRPC status that stands for one of Triton's codes."""
    return _BY_CODE[code]


def percent_encoded(text: str) -> bytes:
    """A text as ``grpc-message`` carries it; a space at an end, which HTTP/2 forbids there, is encoded as well."""
    data = text.encode("utf-8", "replace")
    if not (text.isascii() and text.isprintable() and "%" not in text):
        data = b"".join(b"%c" % byte if byte in _PLAIN else b"%%%02X" % byte for byte in data)
    if data[:1] == b" ":
        data = b"%20" + data[1:]
    return data[:-1] + b"%20" if data[-1:] == b" " else data


def timeout_s(value: bytes) -> float | None:
    """``grpc-timeout`` in seconds; None where it cannot be read."""
    digits, unit = value[:-1], _UNITS.get(value[-1:])
    if unit is None or not digits.isdigit() or len(digits) > 8:
        return None
    return int(digits) * unit


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def framed(parts: Sequence[Buffer]) -> bytes:
    """One message, uncompressed, with its framing."""
    size = sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in parts)
    return b"".join((b"\0", size.to_bytes(4, "big"), *parts))


def framed_apart(parts: Sequence[Buffer]) -> list[Buffer]:
    """One message, uncompressed, with its framing, in pieces: large parts are not copied."""
    size = 0
    pieces: list[Buffer] = []
    small: list[Buffer] = [b""]
    for part in parts:
        length = part.nbytes if isinstance(part, memoryview) else len(part)
        size += length
        if length < LARGE:
            small.append(part)
        else:
            pieces += (b"".join(small), part)
            small = []
    if small:
        pieces.append(b"".join(small))
    pieces[0] = b"".join((b"\0", size.to_bytes(4, "big"), pieces[0]))
    return pieces


def packed(parts: Sequence[Buffer], encoding: str) -> bytes:
    """One message with its framing, packed (``gzip`` or ``deflate``) where that makes it smaller."""
    packer = zlib.compressobj(6, wbits=FORMS[encoding])
    data = b"".join([*(packer.compress(part) for part in parts), packer.flush()])
    if len(data) >= sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in parts):
        return framed(parts)
    return b"".join((b"\1", len(data).to_bytes(4, "big"), data))


def first_content(head: bytes) -> int:
    """Where the first raw content of a ``ModelInferRequest`` begins, by the first bytes of one; 0 where not in them."""
    position, size = 0, len(head)
    try:
        while position < size:
            tag, position = head[position], position + 1
            length = shift = 0
            while True:
                byte = head[position]
                length |= (byte & 0x7F) << shift
                position, shift = position + 1, shift + 7
                if byte < 0x80:
                    break
            if tag == 0x3A:
                return position
            if tag & 7 != 2:
                return 0
            position += length
    except IndexError:
        pass
    return 0


class Assembler:
    """Puts the messages of one call together from the pieces in which they come.

    Args:
        announce: told the size of a message, with its framing, of which a part is here.
        content_at: where the largest part of a large message begins, by the message's first bytes: there it is aligned
            for any data type.
    """

    __slots__ = ("_announce", "_content_at", "_have", "_large", "_need", "_parts")

    def __init__(self, announce: Callable[[int], None], content_at: Callable[[bytes], int] = lambda head: 0) -> None:
        self._announce = announce
        self._content_at = content_at
        self._parts: list[bytes] = []
        self._large: memoryview | None = None  # where a large message is put together
        self._have = 0
        self._need = 0  # with its framing; 0 while the framing itself is not here

    @property
    def have(self) -> int:
        """Bytes of a message that has begun and not ended."""
        return self._have

    @property
    def inside(self) -> bool:
        """Whether a message has begun and not ended."""
        return self._have > 0

    @property
    def missing(self) -> int:
        """Bytes that are to come of a large message that has begun; 0 for any other."""
        return 0 if self._large is None else self._need - self._have

    def place(self) -> memoryview | None:
        """Where the rest of a large message goes, and ``SLACK`` bytes more; None where there is no such message."""
        return None if self._large is None else self._large[self._have :]

    def came(self, size: int) -> list[tuple[bool, memoryview]]:
        """``size`` bytes were written where ``place`` says; gives the message if it is whole now, as ``add``."""
        self._have += size
        return [self._end()] if self._have == self._need else []

    def add(self, data: bytes) -> list[tuple[bool, memoryview]]:
        """The messages that a piece completes: whether each is packed, and its bytes.

        Raises:
            BadMessage: a message is larger than ``MAX_MESSAGE``, or its framing is wrong.
        """
        found: list[tuple[bool, memoryview]] = []
        position, size = 0, len(data)
        while position < size:
            if not self._need and not self._begin(data, position):
                return found
            missing = self._need - self._have
            piece = data[position : position + missing]
            if self._large is None:
                self._parts.append(piece)
                if len(self._parts) > _PARTS:
                    self._parts = [b"".join(self._parts)]
            else:
                self._large[self._have : self._have + len(piece)] = piece
            self._have += len(piece)
            position += missing
            if position <= size:
                found.append(self._end())
        return found

    def _end(self) -> tuple[bool, memoryview]:
        parts, large = self._parts, self._large
        joined = (
            large[: self._need] if large is not None else memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
        )
        self._parts, self._large, self._have, self._need = [], None, 0, 0
        return joined[0] == 1, joined[FRAMING:]

    def _begin(self, data: bytes, position: int) -> bool:
        head = b"".join((*self._parts, data[position : position + FRAMING]))[:FRAMING]
        if len(head) < FRAMING:
            self._parts.append(data[position:])
            self._have += len(data) - position
            return False
        size = int.from_bytes(head[1:], "big")
        if head[0] > 1:
            raise BadMessage(INTERNAL, f"Bad GRPC frame type 0x{head[0]:02x}")
        if size > MAX_MESSAGE:
            raise BadMessage(RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {MAX_MESSAGE})")
        self._need = FRAMING + size
        if len(data) - position < self._need - self._have:
            if size >= LARGE:
                before = b"".join(self._parts)
                # its pages are taken as they are written: what a client only announces costs nothing
                self._large = aligned(
                    self._need + SLACK, FRAMING + self._content_at((before + data[position:])[FRAMING:])
                )
                self._large[: self._have] = before
                self._parts = []
            self._announce(self._need)
        return True
