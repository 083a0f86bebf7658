"""Heads of HTTP/1.1: of answers, as they are written, and of requests that come again as they came before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from workbench.server.exchange import Exchange

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}
_HEADS = {
    (status, kind): f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: ".encode()
    for status, reason in _REASONS.items()
    for kind in ("application/json", "application/octet-stream", "text/plain; version=0.0.4; charset=utf-8")
}
_EMPTY_HEADS = {
    status: f"HTTP/1.1 {status} {reason}\r\nContent-Length: ".encode() for status, reason in _REASONS.items()
}
_KEEP = b"\r\nConnection: keep-alive\r\n\r\n"
_UNUSUAL = frozenset((b"transfer-encoding", b"expect", b"upgrade"))


def answer_head(
    exchange: Exchange, status: int, size: int, kind: str, headers: Iterable[tuple[str, str]], *, keep: bool
) -> bytes:
    """The head of an answer of ``size`` bytes; ``keep``: the connection stays open after it."""
    head = _HEADS.get((status, kind)) if kind else _EMPTY_HEADS.get(status)
    if head is None:
        kind_line = f"Content-Type: {kind}\r\n" if kind else ""
        head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}\r\n{kind_line}Content-Length: ".encode()
    tail = (_KEEP if exchange.old else b"\r\n\r\n") if keep else b"\r\nConnection: close\r\n\r\n"
    lines = "".join(f"\r\n{name}: {value}" for name, value in headers).encode() if headers else b""
    return b"%b%d%b%b" % (head, size, lines, tail)


def stream_head(exchange: Exchange, status: int, kind: str, *, keep: bool) -> bytes:
    """The head of an answer in pieces."""
    return (
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}\r\nContent-Type: {kind}\r\nCache-Control: no-store"
        # HTTP/1.0 knows no chunks: there the end of the connection is the end of the answer
        + ("" if exchange.old else "\r\nTransfer-Encoding: chunked")
        + ("\r\n\r\n" if keep else "\r\nConnection: close\r\n\r\n")
    ).encode()


@dataclass(frozen=True, slots=True)
class KnownHead:
    """A request's head as it came, what was read in it, and how many bytes of body follow it.

    A client that keeps its connection sends the same head again and again: the same bytes need not be parsed anew.
    """

    head: bytes
    exchange: Exchange
    size: int
    whole: int  # bytes, with the body


def known_head(exchange: Exchange, first: bytes, received: int, largest: int) -> KnownHead | None:
    """What is worth knowing of a request that has come whole; None of one out of the ordinary.

    ``first`` is the piece that it began, empty where it began inside one; ``received`` are its bytes altogether. One
    with ``largest`` bytes of body or more is none of these.
    """
    size = len(exchange.body)
    end = received - size
    if not 0 < size < largest or exchange.old or not exchange.keep_alive or not first.startswith(b"POST "):
        return None
    # with more than this one request in the piece, or with chunks, the head does not end there
    if not _UNUSUAL.isdisjoint(exchange.headers) or first.find(b"\r\n\r\n") + 4 != end:
        return None
    return KnownHead(first[:end], exchange.again(), size, received)


def without_upgrade(exchange: Exchange) -> bytes:
    """A request's head as if it had not offered another protocol."""
    headers = {k: v for k, v in exchange.headers.items() if k not in (b"upgrade", b"connection", b"http2-settings")}
    target = exchange.path + (b"?" + exchange.query if exchange.query else b"")
    lines = b"".join(b"%b: %b\r\n" % item for item in headers.items())
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (exchange.method, target, lines)


def split_target(exchange: Exchange) -> None:
    """Parts the target that stands in ``path`` into path and query."""
    if exchange.path[:7].lower() == b"http://":  # as a proxy would have it
        exchange.path = b"/" + exchange.path[7:].partition(b"/")[2]
    path, mark, query = exchange.path.partition(b"?")
    if mark:
        exchange.path, exchange.query = path, query
