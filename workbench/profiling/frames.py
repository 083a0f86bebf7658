"""Messages between the measuring process and its load generator: a JSON head and raw bytes, each with its length."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import IO, Any

import orjson

_HEAD = struct.Struct(">IQ")


def write_frame(stream: IO[bytes], head: Mapping[str, Any], blob: bytes | memoryview = b"") -> None:
    """Writes one message and flushes."""
    encoded = orjson.dumps(head)
    stream.write(_HEAD.pack(len(encoded), len(blob)))
    stream.write(encoded)
    if blob:
        stream.write(blob)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """The next message; None when the other side has closed (or died, even in the middle of one)."""
    raw = _read(stream, _HEAD.size)
    if raw is None:
        return None
    head_size, blob_size = _HEAD.unpack(raw)
    head = _read(stream, head_size)
    blob = _read(stream, blob_size) if blob_size else b""
    if head is None or blob is None:
        return None
    return orjson.loads(head), blob


def _read(stream: IO[bytes], size: int) -> bytes | None:
    parts = []
    while size:
        part = stream.read(size)
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
