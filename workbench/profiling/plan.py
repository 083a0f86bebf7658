"""Which messages a load has to send: those of each class, the steps of sequences, the rows of a trace."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

ID_FROM = 1_000_000_000
ID_COUNT = 1_000_000_000
"""Correlation ids that a load uses: all have ten digits, fit INT32 and take the same room in every message."""

VARIANTS = 4
"""A request of a sequence lies in the list of messages four times: with no flag, START (1), END (2), and both (3)."""

_ID_FIELD = b"\x1a"
"""Field 3 of ``ModelInferRequest``, a text."""

DEFAULT_LENGTH = 20
"""Requests of a sequence, as perf_analyzer has it."""


@dataclass(frozen=True, slots=True)
class ClassPlan:
    """One class: its messages in rotation from ``first``, ``count`` of them.

    ``model`` is empty for the one that is measured; ``rows`` is the number of inferences in a request. ``length`` is
    that of its sequences, 0 for none; each message then lies there ``VARIANTS`` times. ``streams`` has
    the messages (without flags) of each sequence, where the inputs say which belong together.
    """

    first: int
    count: int
    name: str = ""
    model: str = ""
    rows: float = 1
    streaming: bool = False
    length: int = 0
    streams: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """All classes, in the order of the load; of a trace also each row's class, message, sequence and flags.

    ``id_at`` is where the correlation id stands in each message (-1: nowhere), as digits, or where ``varint`` says so
    as a protobuf varint. ``request_ids`` are those of a trace's rows, ``room_at`` is where in each message there is
    room for them (from, bytes); in a serialised gRPC message it is behind its end.
    """

    classes: tuple[ClassPlan, ...]
    class_of: Sequence[int] = ()
    message_of: Sequence[int] = ()
    sequence_of: Sequence[int] = ()
    flags: Sequence[int] = ()
    id_at: Sequence[int] = ()
    varint: bool = False
    request_ids: Sequence[str] = ()
    room_at: Sequence[Sequence[int]] = ()

    @classmethod
    def plain(cls, count: int, *, streaming: bool = False) -> Plan:
        """Of one class without sequences."""
        return cls((ClassPlan(0, count, streaming=streaming),))

    def to_json(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """Reads what ``to_json`` gave."""
        classes = tuple(
            ClassPlan(**{**kind, "streams": tuple(tuple(steps) for steps in kind["streams"])})
            for kind in value["classes"]
        )
        return cls(**{**value, "classes": classes})


def with_id(message: bytes, at: int, number: int, *, varint: bool) -> bytes:
    """A message with another correlation id, of the same length."""
    new = encoded_id(number, varint=varint)
    return message[:at] + new + message[at + len(new) :]


def with_request_id(message: bytes, room: Sequence[int], request_id: str) -> bytes:
    """A message with the id that a request calls itself by.

    Args:
        message: an HTTP message with room for it, or a serialised ``ModelInferRequest``.
        room: from where, and how many bytes; empty for gRPC, where a field may come behind all others.
        request_id: the id; empty: none.
    """
    if room:
        at, length = room
        text = b'"id":%b,' % json.dumps(request_id).encode() if request_id else b""
        return message[:at] + text.ljust(length) + message[at + length :]
    raw = request_id.encode()
    return message + _ID_FIELD + _varint(len(raw)) + raw if raw else message


def encoded_id(number: int, *, varint: bool) -> bytes:
    """A correlation id as it stands in a message: ten digits, or five bytes."""
    return _varint(number) if varint else b"%d" % number


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
