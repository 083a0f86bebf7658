"""One client's connection: HTTP/1.1 parsed by httptools, requests in order, limits on everything a client can do."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools

from workbench.clock import monotonic_ns
from workbench.server.body import LARGE, Body
from workbench.server.body_reader import BodyReader, hand_over
from workbench.server.exchange import Exchange
from workbench.server.heads import KnownHead, known_head, split_target, without_upgrade
from workbench.server.http_limits import MAX_BODY_BYTES, MAX_CHUNKS, MAX_FRAMING_BYTES, MAX_HEAD_BYTES, PROGRESS_BYTES
from workbench.server.http_turns import JOIN_BELOW, Server, Turns

_HIGH_WATER = 1024 * 1024
_LONG_HEAD = f"request head exceeds {MAX_HEAD_BYTES} bytes"
_MANY_CHUNKS = (
    f"Chunked request body exceeds maximum of {MAX_CHUNKS} non-empty chunks. Send fewer or larger HTTP chunks."
)


class HttpConnection(Turns, asyncio.Protocol):
    """One client's connection. The methods called ``on_...`` are httptools' callbacks."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._parser: Any = httptools.HttpRequestParser(self)
        self._body = Body()
        self._piece = 0  # bytes of what came last
        self._head_bytes = 0
        self._head_done = False
        self._body_bytes = 0  # that came after the head, with a chunked body's framing and trailers
        self._ages = [0, 0, 0]  # sweeps: head, body without progress, unread answer
        self._progress = 0  # of the body's bytes, when it last made some
        self._taken = 0  # of answers by the client, when it last made progress
        self._first = b""  # the piece that the request began in
        self._known: KnownHead | None = None
        self._only_head = False  # the known head has come, its body has not
        self._is_read_directly = False  # the rest of a large body, into its place

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not derived from it
        self.transport.set_write_buffer_limits(high=_HIGH_WATER)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else ""
        self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: what it waits for is cancelled."""
        self.server.connections.discard(self)
        self.transport = None
        self._deaf = True
        self._waiting.clear()
        if self._stream is not None:
            self._stream.close()
        self._abandon()
        if self._current is not None and self._current.unpacks:
            self.server.bodies.let_go(self._current)
        self._current = self._incoming = self._parser = None
        self._first, self._body = b"", Body()  # what had come is not kept until the collector looks
        self._share.close()

    def eof_received(self) -> bool:
        """The client sends nothing more; as with Triton its request is cancelled, but what runs is still answered."""
        self._eof = True
        self._deaf = True
        self._incoming = None
        if self._current is None and not self._waiting:
            return False
        if self._stream is not None:
            return False
        self._abandon()
        return True

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._deaf:
            return
        self._turn_began = monotonic_ns()
        known = self._known
        if known is not None and self._comes_again(known, data):
            return
        if self._only_head:
            self._only_head = False
            self._received = 0
            self._incoming = None
            data = known.head + data  # type: ignore[union-attr]
        self._piece = size = len(data)
        if not self._received:  # a request that began behind another one, in the piece before, is not known by its rest
            self._first = data if self._incoming is None else b""
        self._received += size
        if self._incoming is None or not self._head_done:
            self._head_bytes += size
        else:
            self._body_bytes += size
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if not self._deaf:
                self._refuse(400, f"malformed HTTP request: {error}")
        if not self._head_done and self._head_bytes > MAX_HEAD_BYTES and not self._deaf:
            self._refuse(431, _LONG_HEAD)
        elif self._incoming is not None and not self._deaf:
            framing = self._body_bytes - self._body.size
            if framing > MAX_HEAD_BYTES + MAX_FRAMING_BYTES * self._body.chunks:
                self._refuse(431, f"chunk extensions and trailers exceed {MAX_HEAD_BYTES} bytes")
            else:
                self._read_body()

    def _comes_again(self, known: KnownHead, data: bytes) -> bool:
        """Takes a request whose head is the last one's, if it came whole, or its head and its body each whole."""
        if self._only_head:
            if len(data) != known.size:
                return False
            self._only_head = False
            self._received += known.size
            exchange = self._incoming
            assert exchange is not None
            exchange.body = data
        elif self._received or self._incoming is not None or not data.startswith(known.head):
            return False
        elif len(data) == known.whole:
            exchange = known.exchange.again()
            exchange.body = memoryview(data)[len(known.head) :]
            self._received = known.whole
        elif len(data) == len(known.head):
            self._only_head = self._head_done = True
            self._incoming = known.exchange.again()
            self._received = known.whole - known.size
            self._body_bytes = self._progress = 0
            self._ages[0] = self._ages[1] = 0
            return True
        else:
            return False
        self._incoming = None
        self._take(exchange)
        return True

    def _without_upgrade(self, rest: bytes) -> None:
        """A request that offers another protocol (h2c) is served as it is; its body is what follows."""
        exchange = self._incoming
        if exchange is None or self._deaf:
            return
        if exchange.method == b"CONNECT":
            self._refuse(405, "Method Not Allowed")
            return
        self._parser = httptools.HttpRequestParser(self)
        self._incoming = None
        self.data_received(without_upgrade(exchange) + rest)

    # -- httptools ----------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        self._incoming = Exchange(self)
        self._head_done = False
        self._ages[0] = 0

    def on_url(self, url: bytes) -> None:
        """The request's target, perhaps in pieces."""
        if self._incoming is not None:
            self._incoming.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; of one that comes twice the last counts. Trailers of a chunked body are none (RFC 9110)."""
        if self._incoming is not None and not self._head_done:
            self._incoming.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is here: the body's size is checked before any of it is kept."""
        exchange = self._incoming
        if exchange is None:
            return
        parser = self._parser
        self._head_done = True
        if self._piece > MAX_HEAD_BYTES or self._head_bytes > MAX_HEAD_BYTES:  # it may have come whole, in one piece
            headers = exchange.headers.items()
            if len(exchange.path) + sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEAD_BYTES:
                self._refuse(431, _LONG_HEAD)
                return
        self._head_bytes = 0
        self._body_bytes = self._progress = 0
        self._ages[1] = 0
        exchange.method = parser.get_method()
        exchange.keep_alive = parser.should_keep_alive()
        exchange.old = parser.get_http_version() == "1.0"
        split_target(exchange)
        length = exchange.headers.get(b"content-length")
        size = None if length is None else int(length)
        refusal = self.server.application.early_refusal(exchange, size)
        if refusal is None and size is not None and size > MAX_BODY_BYTES:
            refusal = (
                400,
                "Unable to parse Content-Length, value is out of range [ -2147483648, 2147483647 ], got: "
                f"{length.decode() if length else ''}",
            )
        if refusal is not None:
            self._refuse(*refusal)
            return
        self._body.start(size, exchange.headers.get(b"inference-header-content-length"))
        if size is not None and size >= LARGE:
            self._reserve(exchange, size)
        expect = exchange.headers.get(b"expect")
        is_next = self._current is None and not self._waiting  # else it would be taken for one of those before it
        if expect is not None and expect.lower() == b"100-continue" and is_next and self.transport:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_chunk_header(self) -> None:
        """A chunk of a chunked body begins."""
        self._body.chunks += 1

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if self._deaf or self._incoming is None:
            return
        self._body.add(data)
        if not self._body.chunks:
            return
        if self._body.chunks > MAX_CHUNKS:
            self._refuse(400, _MANY_CHUNKS)
        elif self._body.size > self.server.max_chunked_bytes:
            refusal = self.server.application.early_refusal(self._incoming, self._body.size)
            self._refuse(*(refusal or (413, f"request body exceeds {self.server.max_chunked_bytes} bytes")))
        elif self._body.size >= LARGE and not self._incoming.held:
            self._reserve(self._incoming, self.server.max_chunked_bytes)

    def _reserve(self, exchange: Exchange, size: int) -> None:
        """Reads on when there is memory for the body."""
        if self._share.reserve(exchange, size) and not self._paused_reading and self.transport is not None:
            self._paused_reading = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._incoming is not None and not self._deaf and not self._parser.should_upgrade():
            self._complete(self._incoming)

    def _complete(self, exchange: Exchange) -> None:
        self._incoming = None
        if exchange.held:
            self._share.whole(exchange, self._body.size)
        exchange.body = self._body.take()
        self._known = known_head(exchange, self._first, self._received, JOIN_BELOW) or self._known
        self._first = b""  # a piece may be large, and the connection idle from now on
        self._take(exchange)

    def _read_body(self) -> None:
        """Has the rest of a large body read into its place, where that is known and nothing holds it back."""
        if self._incoming is not None and not self._paused_reading and self._body.room() is not None:
            self._is_read_directly = True
            hand_over(self.transport, BodyReader(self, self._body))

    def _take_back(self) -> None:
        if self._is_read_directly:
            self._is_read_directly = False
            hand_over(self.transport, self)

    def body_came(self, size: int) -> None:
        """So many bytes of a large body were written into their place."""
        exchange = self._incoming
        if exchange is None or self._deaf:
            return
        self._turn_began = monotonic_ns()
        self._received += size
        self._body_bytes += size
        self._body.came(size)
        if self._body.room() is None:
            self._take_back()
            self._parser = httptools.HttpRequestParser(self)  # the other one still waits for the body
            self._complete(exchange)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _refuse(self, status: int, text: str) -> None:
        """Answers a request that will not be read to its end, in its turn, and closes."""
        exchange = self._incoming or Exchange(self)
        if exchange.held:
            self._share.whole(exchange, 0)
        if exchange.path and not exchange.method:
            exchange.method = self._parser.get_method()  # the answer to a HEAD has no body, whatever is wrong with it
        self._incoming = None
        self._body = Body()
        self._take_back()
        self._deaf = True
        exchange.keep_alive = False
        exchange.refusal = (status, text)
        self._waiting.append(exchange)
        self._next()

    @property
    def _is_coming(self) -> bool:
        return self._incoming is not None and self._head_done and not self._deaf

    def _granted(self) -> None:
        self._body.open()
        self._resume()

    # -- time ---------------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Called about once a second: a client that dawdles is cut off."""
        transport, limits, seconds = self.transport, self.server.limits, self.server.sweep_s
        if transport is None:
            return
        if self._incoming is not None and not self._deaf and not self._paused_reading:
            self._ages[0] += 1
            self._ages[1] += 1
            if self._body_bytes - self._progress >= PROGRESS_BYTES:
                self._ages[1], self._progress = 0, self._body_bytes
            if not self._head_done and self._ages[0] * seconds >= limits.head_s:
                self._refuse(408, f"the request's head did not arrive within {limits.head_s:g} s")
            elif self._head_done and self._ages[1] * seconds >= limits.pause_s:
                self._refuse(408, f"the request's body did not get on for {limits.pause_s:g} s")
        unread = transport.get_write_buffer_size()
        self._ages[2] += 1
        if not unread or self._written - unread - self._taken >= PROGRESS_BYTES:
            self._ages[2], self._taken = 0, self._written - unread
        if self._ages[2] * seconds >= limits.pause_s:
            transport.abort()
