"""Bytes gone wrong: of any kind, of protobuf messages, of HTTP/2 frames. The same ones for the same chance."""

from __future__ import annotations

import random
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The bytes with some of them changed, gone, doubled or new."""
    out = bytearray(data)
    for _ in range(chance.choice([0, 0, 1, 1, 2, 8])):
        at = chance.randint(0, len(out))
        kind = chance.randrange(4)
        if kind == 0 and at < len(out):
            out[at] = chance.randrange(256)
        elif kind == 1:
            del out[at : at + chance.randint(1, 9)]
        elif kind == 2:
            out[at:at] = chance.randbytes(chance.randint(1, 9))
        else:
            out[at:at] = out[at : at + chance.randint(1, 30)]
    return bytes(out)


# ---- protobuf


def varint(value: int, padding: int = 0) -> bytes:
    """A number as protobuf writes it, with ``padding`` bytes that add nothing."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    if padding:
        out[-1] |= 0x80
        out += b"\x80" * (padding - 1) + b"\0"
    return bytes(out)


def fields(data: bytes) -> list[tuple[int, bytes]] | None:
    """Tags and values of a message whose fields are all varints, fixed or of a length; None where it is none."""
    found, at = [], 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        if tag < 8 or at < 0:
            return None
        kind = tag & 7
        if kind == 0:
            value, end = _read_varint(data, at)
            piece = varint(value)
        elif kind in (1, 5):
            end = at + (8 if kind == 1 else 4)
            piece = data[at:end]
        elif kind == 2:
            size, at = _read_varint(data, at)
            end = at + size
            piece = data[at:end]
        else:
            return None
        if end < 0 or end > len(data):
            return None
        found.append((tag, piece))
        at = end
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(10):
        if at + index >= len(data):
            return 0, -1
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    return 0, -1


def rewritten(data: bytes, chance: random.Random, depth: int = 0) -> bytes:
    """A message written otherwise: another order, doubled or unknown fields, long numbers, other wire types, groups."""
    found = fields(data)
    if not found:
        return mutated(data, chance)
    out = list(found)
    at = chance.randrange(len(out))
    draw = chance.randrange(9)
    if draw == 0:
        chance.shuffle(out)
    elif draw == 1:
        out.insert(chance.randint(0, len(out)), out[at])
    elif draw == 2:
        del out[at]
    elif draw == 3:
        out.insert(at, (chance.choice((8, 9, 10, 13, 15, 16, 2000, 2**29 - 1)) << 3 | 2, chance.randbytes(5)))
    elif draw == 4:
        tag, value = out[at]
        out[at] = (tag & ~7 | chance.randrange(8), value)
    elif draw == 5:
        depth_of_groups = chance.choice((1, 5, 99, 101, 5000))
        group = varint(1000 << 3 | 3) * depth_of_groups + varint(1000 << 3 | 4) * depth_of_groups
        return _written(out[:at], chance) + group + _written(out[at:], chance)
    elif draw == 6:
        return _written(out, chance, padded=True)
    elif draw == 7:
        nested = b""
        for _ in range(chance.choice((5, 100, 101, 3000))):
            nested = b"\x2a" + varint(len(nested)) + nested
        return data + nested
    elif depth < 3:
        tag, value = out[at]
        if tag & 7 == 2:
            out[at] = (tag, rewritten(value, chance, depth + 1))
    return _written(out, chance)


def _written(out: list[tuple[int, bytes]], chance: random.Random, *, padded: bool = False) -> bytes:
    pieces = []
    for tag, value in out:
        padding = chance.randrange(5) if padded else 0
        pieces.append(varint(tag, padding))
        if tag & 7 == 2:
            pieces.append(varint(len(value), padding))
        pieces.append(value)
    return b"".join(pieces)


# ---- HTTP/2


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """A frame; ``length``: what it says of its payload."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size & 0xFFFFFF)[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def split_frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of frames that follow each other; a last one may be cut off.

    Raises:
        ValueError: one is larger than an answer's may be, or of no kind that a server sends.
    """
    found, at = [], 0
    while at + 9 <= len(data):
        size = int.from_bytes(data[at : at + 3], "big")
        kind, flags, stream = data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9], "big")
        if size > 16384 or kind > CONTINUATION or kind == PUSH or stream >> 31:
            raise ValueError(f"frame of kind {kind} and {size} bytes on {stream}")
        found.append((kind, flags, stream, data[at + 9 : at + 9 + size]))
        at += 9 + size
    return found


def literal(name: bytes, value: bytes, first: int = 0) -> bytes:
    """A header field as HPACK writes it, not indexed (``first`` 0x40: indexed from now on), not packed."""
    return bytes((first,)) + _length(name) + name + _length(value) + value


def _length(data: bytes) -> bytes:
    size = len(data)
    return bytes((size,)) if size < 127 else b"\x7f" + varint(size - 127)


def header_block(pairs: list[tuple[bytes, bytes]]) -> bytes:
    """A header block of literals."""
    return b"".join(literal(name, value) for name, value in pairs)


def odd_frame(chance: random.Random) -> bytes:
    """A frame that does not belong where it stands, or is wrong in itself."""
    stream = chance.choice((0, 1, 1, 2, 3, 5, 2**31 - 1, 2**31))
    number = struct.pack(">I", chance.choice((0, 1, 8, 65535, 2**31 - 1, 2**31, 2**32 - 1)))
    kind, payload = chance.choice(
        (
            (WINDOW, number), (WINDOW, number[:3]), (RST, number), (RST, b""), (PING, bytes(8)), (PING, bytes(7)),
            (PRIORITY, number + b"\x10"), (PRIORITY, number), (GOAWAY, bytes(4) + number), (GOAWAY, b"x"),
            (SETTINGS, struct.pack(">H", chance.randrange(12)) + number), (SETTINGS, b"12345"), (SETTINGS, b""),
            (PUSH, number), (CONTINUATION, b"\x82"), (CONTINUATION, b""), (HEADERS, b"\xff\xff\xff\xff\x7f"),
            (HEADERS, b"\x3f\xe1\x1f" * 50), (HEADERS, b"\xbe\xbf\xc0"), (DATA, b""), (DATA, bytes(100)),
            (chance.randrange(256), chance.randbytes(9)),
        )
    )  # fmt: skip
    length = chance.choice((None, None, None, 0, 2**24 - 1, len(payload) + 1))
    return frame(kind, chance.choice((0, 0, 1, 4, 5, 8, 0x20, 0xFF)), stream, payload, length)


def conversation(good: list[bytes], chance: random.Random) -> bytes:
    """Frames of a good conversation with one thing wrong: their order, their number, their heads, their bytes."""
    out = list(good)
    draw = chance.randrange(7)
    at = chance.randrange(len(out))
    if draw == 0:
        chance.shuffle(out)
    elif draw == 1:
        out.insert(at, out[at])
    elif draw == 2:
        del out[at]
    elif draw == 3:
        for _ in range(chance.randint(1, 4)):
            out.insert(chance.randint(0, len(out)), odd_frame(chance))
    elif draw == 4:
        changed = bytearray(out[at])
        changed[chance.randrange(min(len(changed), 9))] = chance.randrange(256)
        out[at] = bytes(changed)
    elif draw == 5:
        out[at] = out[at][:9] + mutated(out[at][9:], chance)  # which a length that is wrong comes with, too
    else:
        return mutated(b"".join(out), chance)
    data = b"".join(out)
    return data[: chance.randrange(len(data) + 1)] if chance.random() < 0.05 else data
