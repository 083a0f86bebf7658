"""One request and its answer, apart from how they travel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import orjson

from workbench import errors
from workbench.errors import WorkbenchError
from workbench.protocol import json_data as js
from workbench.protocol.binary import Buffer
from workbench.server.traffic import WireCount

LOG = logging.getLogger("workbench.server")

JSON = "application/json"
_EVENT_BACKLOG = 4 * 1024 * 1024
_NO_HEADERS: tuple[tuple[str, str], ...] = ()


class Line(Protocol):
    """What carries an exchange: a connection."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport | None
    peer: str

    def sent(self, size: int) -> None:
        """Bytes of the answer that is under way were written."""

    def send(
        self, exchange: Exchange, status: int, body: Sequence[Buffer], kind: str, headers: Iterable[tuple[str, str]]
    ) -> None:
        """Writes an answer."""

    def start_stream(self, exchange: Exchange, kind: str, status: int) -> Stream:
        """Writes the head of an answer in pieces."""

    def end_stream(self, stream: Stream) -> None:
        """An answer in pieces is over."""

    def unpack(self, exchange: Exchange, most: int, then: Callable[[], None]) -> None:
        """Calls ``then`` when there is memory for what a packed body unpacks to, at most ``most`` bytes."""

    def unpacked(self, exchange: Exchange, size: int) -> None:
        """It has unpacked to so many bytes."""


class Answered(Protocol):
    """What waits for an answer: an exchange, or a call over gRPC."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that its connection lives on."""

    def fail(self, error: BaseException) -> None:
        """Answers with an error."""


class Application(Protocol):
    """What answers requests."""

    def handle(self, exchange: Exchange) -> None:
        """Answers now or later through ``exchange``. What it raises becomes the answer."""

    def early_refusal(self, exchange: Exchange, size: int | None) -> tuple[int, str] | None:
        """Looks at the head before the body is read (``size`` None: chunked): status and text, or None to go on."""


class Exchange:
    """One request and its answer."""

    __slots__ = (
        "_connection",
        "answered",
        "body",
        "headers",
        "held",
        "keep_alive",
        "method",
        "named_headers",
        "old",
        "on_gone",
        "path",
        "query",
        "received",
        "refusal",
        "unpacks",
        "wire",
    )

    def __init__(self, connection: Line) -> None:
        self._connection = connection
        self.method = b""
        self.path = b""
        self.query = b""
        self.headers: dict[bytes, bytes] = {}
        self.named_headers: Sequence[tuple[str, str]] = ()  # as they were sent, where somebody wants to know
        self.body: Buffer = b""
        self.keep_alive = True
        self.old = False  # HTTP/1.0
        self.on_gone: Callable[[], None] | None = None
        self.refusal: tuple[int, str] | None = None
        self.received = 0  # bytes of the request, head and body
        self.held = 0  # of the memory for bodies
        self.unpacks = False  # has some for what its body unpacks to, or waits for it
        self.wire: WireCount | None = None
        self.answered = False

    def again(self) -> Exchange:
        """Another request with the same head."""
        other = Exchange(self._connection)
        other.method, other.path, other.query = self.method, self.path, self.query
        other.headers, other.named_headers = self.headers, self.named_headers
        return other

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that the connection lives on."""
        return self._connection.loop

    @property
    def gone(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._connection.transport is None

    @property
    def client(self) -> str:
        """The address of the other side."""
        return self._connection.peer

    def unpack(self, most: int, then: Callable[[], None]) -> None:
        """Calls ``then`` when there is memory for what the body unpacks to, at most ``most`` bytes: now or later."""
        self._connection.unpack(self, most, then)

    def unpacked(self, size: int) -> None:
        """The body has unpacked to so many bytes, which are kept until the answer."""
        self._connection.unpacked(self, size)

    def respond(
        self,
        status: int,
        body: Sequence[Buffer] | bytes = b"",
        kind: str = "",
        headers: Iterable[tuple[str, str]] = _NO_HEADERS,
    ) -> None:
        """Sends the answer; does nothing when one was sent or the client is gone."""
        if self.answered:
            return
        self.answered = True
        self.on_gone = None
        self._connection.send(self, status, [body] if isinstance(body, bytes) else body, kind, headers)

    def json(self, value: Any, status: int = 200) -> None:
        """Answers with a JSON value."""
        self.respond(status, orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), JSON)

    def error(self, status: int, text: str) -> None:
        """Answers with Triton's error body."""
        self.respond(status, error_body(text), JSON)

    def fail(self, error: BaseException) -> None:
        """Answers with the status and text of an error; one that nobody raised on purpose is logged and is a 500."""
        if isinstance(error, WorkbenchError):
            if self.path.startswith(b"/v2/workbench"):
                # No Triton to follow here: the person is told where and what to do as well.
                self.respond(error.code.http_status, orjson.dumps(errors.to_json(error), default=str), JSON)
                return
            self.error(error.code.http_status, error.message)
            return
        LOG.error("%s %s failed", self.method.decode(), self.path.decode("latin-1"), exc_info=error)
        self.error(500, f"internal error: {type(error).__name__}: {error}")

    def stream(self, kind: str, status: int = 200) -> Stream:
        """Begins an answer in pieces (chunked)."""
        self.answered = True
        return self._connection.start_stream(self, kind, status)


class Stream:
    """An answer that is sent piece by piece; ``closed`` when the client is gone or reads too slowly.

    ``endless``: it has no end of its own, so a server that stops ends it. ``full``: the client takes less than it is
    sent; ``on_drain`` is called when it has caught up. Who writes on all the same loses the client at 4 MiB, unless the
    stream is ``patient``: then whoever writes bounds what is under way.
    """

    def __init__(self, connection: Line, exchange: Exchange, *, keep: bool) -> None:
        self._connection = connection
        self.exchange = exchange
        self.keep = keep
        self.on_close: Callable[[], None] | None = None
        self.on_drain: Callable[[], None] | None = None
        self.closed = False
        self.endless = False
        self.patient = False
        self.full = False

    def write(self, data: bytes) -> None:
        """Sends a piece."""
        transport = self._connection.transport
        if self.closed or transport is None or not data:
            return
        if not self.patient and transport.get_write_buffer_size() > _EVENT_BACKLOG:
            transport.abort()  # it can come back for the rest
            return
        piece = data if self.exchange.old else b"%x\r\n%b\r\n" % (len(data), data)
        transport.write(piece)
        self._connection.sent(len(piece))

    def drained(self) -> None:
        """The client has caught up."""
        self.full = False
        if self.on_drain is not None:
            self.on_drain()

    def end(self) -> None:
        """Ends the answer."""
        if self.closed:
            return
        self.close()
        transport = self._connection.transport
        if transport is not None:
            if not self.exchange.old:
                transport.write(b"0\r\n\r\n")
                self._connection.sent(5)
            self._connection.end_stream(self)

    def close(self) -> None:
        """Nothing more is sent."""
        self.closed = True
        if self.on_close is not None:
            callback, self.on_close = self.on_close, None
            callback()


def error_body(text: str) -> bytes:
    """``{"error": text}``."""
    return js.dumps({"error": text})
