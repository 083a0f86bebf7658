"""Requests of an HTTP connection in their turn, and their answers, one after the other."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from workbench.clock import monotonic_ns
from workbench.errors import Cancelled
from workbench.protocol.binary import Buffer
from workbench.server.budget import Bodies, Share
from workbench.server.exchange import Application, Exchange, Stream
from workbench.server.heads import answer_head, stream_head
from workbench.server.http_limits import HttpLimits

_TURN_NS = 5_000_000  # a connection's, before others have theirs
JOIN_BELOW = 64 * 1024
"""Answers that are smaller, in bytes, are written as one piece."""


class Server(Protocol):
    """What a connection belongs to."""

    application: Application
    loop: asyncio.AbstractEventLoop
    limits: HttpLimits
    bodies: Bodies
    connections: set[Any]
    closing: bool
    sweep_s: float
    max_chunked_bytes: int


class Turns(ABC):
    """The part of a connection that answers: a request is begun when those before it have been answered and read."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.loop = server.loop
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        self._incoming: Exchange | None = None  # of which a part is here
        self._share = Share(server.bodies, self._granted)
        self._waiting: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._stream: Stream | None = None
        self._deaf = False  # a refused or last request: nothing more is parsed
        self._eof = False
        self._paused_reading = False
        self._paused_writing = False
        self._is_planned = False  # the next requests have their turn soon
        self._turn_began = 0  # when bytes came, in nanoseconds
        self._written = 0  # of answers
        self._received = 0  # since the last whole request

    @property
    @abstractmethod
    def _is_coming(self) -> bool:
        """Whether a request is here of which only the body is not whole."""

    @abstractmethod
    def _granted(self) -> None:
        """There is memory for the body that waited for some."""

    @abstractmethod
    def _read_body(self) -> None:
        """Reading goes on: of a large body straight into its place."""

    def pause_writing(self) -> None:
        """The client does not take its answers: no further request is begun."""
        self._paused_writing = True
        if self._stream is not None:
            self._stream.full = True

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._paused_writing = False
        if self._stream is not None:
            self._stream.drained()
        self._next()

    def _abandon(self) -> None:
        current = self._current
        if current is not None and current.on_gone is not None:
            callback, current.on_gone = current.on_gone, None
            callback()

    def _take(self, exchange: Exchange) -> None:
        """A request is whole: answers it, or lets it wait for those before it."""
        # Of requests sent in one piece the first has the bytes of all: a sum is right all the same.
        exchange.received, self._received = self._received, 0
        if not exchange.keep_alive:
            self._deaf = True
        is_free = self._current is None and not self._waiting and not self._paused_writing
        if is_free and monotonic_ns() - self._turn_began < _TURN_NS:
            self._begin(exchange)
            return
        self._waiting.append(exchange)
        if is_free:
            self._plan_next()
        if not self._paused_reading and self.transport is not None:
            self._paused_reading = True
            self.transport.pause_reading()

    def _begin(self, exchange: Exchange) -> None:
        self._current = exchange
        if exchange.refusal is not None:
            exchange.error(*exchange.refusal)
            return
        try:
            self.server.application.handle(exchange)
        except Exception as error:  # whatever a handler raises is the answer: the connection and the server stay up
            exchange.fail(error)

    def _next(self) -> None:
        self._is_planned = False
        began = monotonic_ns()
        while self._waiting and self._current is None and not self._paused_writing and self.transport is not None:
            self._begin(self._waiting.popleft())
            if self._waiting and monotonic_ns() - began > _TURN_NS:
                self._plan_next()
                return
        self._resume()

    def _plan_next(self) -> None:
        """On another turn of the loop: a client with a thousand pipelined requests must not hold the loop."""
        if not self._is_planned:
            self._is_planned = True
            self.loop.call_soon(self._next)

    def _resume(self) -> None:
        if self._paused_reading and not (self._waiting or self._share.waiting or self._deaf) and self.transport:
            self._paused_reading = False
            self.transport.resume_reading()
            self._read_body()

    def send(
        self, exchange: Exchange, status: int, body: Sequence[Buffer], kind: str, headers: Iterable[tuple[str, str]]
    ) -> None:
        """Writes an answer; see ``Exchange.respond``."""
        transport = self.transport
        if transport is None or exchange is not self._current:
            return
        size = 0
        for part in body:
            size += part.nbytes if isinstance(part, memoryview) else len(part)
        keep = exchange.keep_alive and not self.server.closing and (not self._eof or bool(self._waiting))
        full = answer_head(exchange, status, size, kind, headers, keep=keep)
        self.sent(len(full) + size)
        if exchange.method == b"HEAD":
            transport.write(full)
        elif size < JOIN_BELOW:
            transport.write(b"".join((full, *body)))
        else:
            transport.writelines([full, *body])
        self._finish(exchange, keep)

    def start_stream(self, exchange: Exchange, kind: str, status: int) -> Stream:
        """Writes the head of an answer in pieces; see ``Exchange.stream``."""
        keep = exchange.keep_alive and not exchange.old and not self.server.closing and not self._eof
        stream = self._stream = Stream(self, exchange, keep=keep)
        if self.transport is None:
            stream.closed = True
            return stream
        head = stream_head(exchange, status, kind, keep=keep)
        self.transport.write(head)
        self.sent(len(head))
        stream.full = self._paused_writing
        return stream

    def end_stream(self, stream: Stream) -> None:
        """An answer in pieces is over: the next request's turn."""
        self._stream = None
        self._finish(stream.exchange, stream.keep and not self.server.closing)

    def unpack(self, exchange: Exchange, most: int, then: Callable[[], None]) -> None:
        """See ``Exchange.unpack``."""

        def begin() -> None:
            exchange.on_gone = None  # what is under way is answered
            then()

        if self.transport is not None:
            exchange.unpacks = True
            exchange.on_gone = lambda: exchange.fail(Cancelled(""))
            self.server.bodies.unpack(exchange, most, begin)

    def unpacked(self, exchange: Exchange, size: int) -> None:
        """See ``Exchange.unpacked``."""
        self.server.bodies.unpacked(exchange, size)

    def sent(self, size: int) -> None:
        """Bytes of the current request's answer were written."""
        self._written += size
        current = self._current
        if current is not None and current.wire is not None:
            current.wire.sent += size

    def _finish(self, exchange: Exchange, keep: bool) -> None:
        self._current = None
        if exchange.held:
            self._share.give_back(exchange)
        if exchange.unpacks:
            self.server.bodies.let_go(exchange)
        if not keep:
            self._deaf = True
            self._waiting.clear()
            self._close(exchange.refusal is not None and not self._eof)
        elif self._waiting or self._paused_reading:
            self._plan_next()

    def _close(self, linger: bool) -> None:
        """Closes; a refused client may still be sending, and a reset would lose it the answer: read on a little."""
        transport = self.transport
        if transport is None:
            return
        if not linger:
            transport.close()
            return
        with contextlib.suppress(OSError, NotImplementedError, RuntimeError):
            transport.write_eof()
        if self._paused_reading:
            transport.resume_reading()
        self.loop.call_later(self.server.limits.linger_s, transport.close)

    @property
    def busy(self) -> bool:
        """A request is coming, being answered or waits, or an answer is on its way out.

        One whose head has only begun is none yet: who sends it may send it to the next server, or never meant to.
        """
        return (
            self._current is not None
            or bool(self._waiting)
            or self._is_coming
            or (self.transport is not None and self.transport.get_write_buffer_size() > 0)
        )

    def shut(self) -> None:
        """Closes when nothing is in flight; a stream is ended."""
        if self._stream is not None and self._stream.endless:
            self._stream.end()
        elif not self.busy and self.transport is not None:
            self.transport.close()
