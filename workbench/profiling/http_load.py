"""Sending requests over HTTP as fast as Python can: one protocol object a connection, messages encoded beforehand.

A request that streams is posted to ``generate_stream``; each server-sent event is one response, stamped when its last
byte is here. Events that come in one piece have the same stamp.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import httptools
import orjson

from workbench.profiling.recorder import Recorder

OnDone = Callable[[int, str | None], None]
"""Called with a request's number and its error text, None for an answer."""

_RETRY_S = 0.05
_MAX_ERROR_BODY = 8192
_EVENT = b"data:"
_ERROR_EVENT = b'data: {"error":'


def http_messages(url: str, path: str, requests: Sequence[tuple[dict[str, str], bytes]]) -> list[bytes]:
    """Complete HTTP/1.1 messages for POSTs of encoded bodies to ``path``."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    messages = []
    for headers, body in requests:
        lines = [f"POST {parts.path.rstrip('/')}{path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        messages.append(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)
    return messages


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    __slots__ = ("body", "error", "events", "keep", "number", "owner", "parser", "streaming", "transport")

    def __init__(self, owner: HttpTransport) -> None:
        self.owner = owner
        self.number = -1
        self.body: list[bytes] | None = None
        self.keep = True
        self.streaming = False
        self.events = b""
        self.error: str | None = None
        self.transport: Any = None
        self.parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.keep = False
            self._finish(f"the server's answer is not HTTP: {error}")

    def on_headers_complete(self) -> None:
        self.body = None if self.parser.get_status_code() == 200 else []

    def on_body(self, part: bytes) -> None:
        if self.body is not None:
            if sum(map(len, self.body)) < _MAX_ERROR_BODY:
                self.body.append(part)
        elif self.streaming:
            self._take_events(part)

    def _take_events(self, part: bytes) -> None:
        *events, self.events = (self.events + part).split(b"\n\n")
        now = self.owner.recorder.clock()
        for event in events:
            if event.startswith(_ERROR_EVENT):
                self.error = self.error or error_text(200, event)
            elif event.startswith(_EVENT) and self.number >= 0:
                self.owner.recorder.respond(self.number, now)

    def on_message_complete(self) -> None:
        if not self.parser.should_keep_alive():
            self.keep = False
        status = self.parser.get_status_code()
        error = self.error if status == 200 else error_text(status, b"".join(self.body or ()))
        # The parser is inside a callback: the next response needs a fresh one only after upgrades, so it is kept.
        self._finish(error)

    def _finish(self, error: str | None) -> None:
        number, self.number = self.number, -1
        self.owner.released(self)
        if number >= 0:
            self.owner.on_done(number, error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.keep = False
        number, self.number = self.number, -1
        self.owner.lost(self)
        if number >= 0:
            why = f": {exc}" if exc else ""
            self.owner.on_done(number, f"the connection was closed before the answer{why}")


def error_text(status: int, body: bytes) -> str:
    """The text of an error answer: Triton's ``{"error": ...}``, or the status where there is none."""
    try:
        text = orjson.loads(body.removeprefix(_EVENT))["error"]
        if isinstance(text, str) and text:
            return text
    except (orjson.JSONDecodeError, KeyError, TypeError):
        pass
    shown = body[:200].decode("utf-8", "replace").strip()
    return f"HTTP status {status}" + (f": {shown}" if shown else "")


class HttpTransport:
    """A pool of connections that grows whenever a request finds none free."""

    def __init__(self, url: str, recorder: Recorder, on_done: OnDone) -> None:
        parts = urlsplit(url)
        self.recorder = recorder
        self.on_done = on_done
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._free: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._waiting: deque[tuple[int, bytes, bool]] = deque()
        self._opening = 0
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.spare = 0
        self.unreachable = ""

    async def open(self, connections: int) -> None:
        """Opens the first connections.

        Raises:
            OSError: the server cannot be reached.
        """
        await asyncio.wait_for(self._connect(), 10.0)
        await asyncio.gather(*(asyncio.wait_for(self._connect(), 10.0) for _ in range(connections - 1)))

    def send(self, number: int, message: bytes, streaming: bool) -> None:
        """Sends request ``number``, at once if a connection is free."""
        while self._free:
            connection = self._free.pop()
            if connection.keep:
                self._write(connection, number, message, streaming)
                if len(self._free) + self._opening < self.spare:
                    self._grow()
                return
        self._waiting.append((number, message, streaming))
        if self._opening < len(self._waiting):
            self._grow()

    def _write(self, connection: _Connection, number: int, message: bytes, streaming: bool) -> None:
        connection.number = number
        connection.streaming = streaming
        connection.events, connection.error = b"", None
        self.recorder.sent[number] = self.recorder.clock()
        connection.transport.write(message)

    def released(self, connection: _Connection) -> None:
        """A connection is free again."""
        if not connection.keep:
            connection.transport.close()
            return
        if self._waiting:
            # Not from within the parser's callback of the very same connection.
            self._free.append(connection)
            asyncio.get_running_loop().call_soon(self._serve_waiting)
        else:
            self._free.append(connection)

    def _serve_waiting(self) -> None:
        while self._waiting and self._free:
            connection = self._free.pop()
            if connection.keep:
                self._write(connection, *self._waiting.popleft())

    def lost(self, connection: _Connection) -> None:
        """A connection is gone."""
        self._all.discard(connection)
        if connection in self._free:
            self._free.remove(connection)

    def _grow(self) -> None:
        self._opening += 1
        task = asyncio.get_running_loop().create_task(self._open_for_waiting())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open_for_waiting(self) -> None:
        try:
            await asyncio.wait_for(self._connect(), 10.0)
        except (OSError, TimeoutError) as error:
            self.unreachable = str(error) or type(error).__name__
            await asyncio.sleep(_RETRY_S)
            if self._waiting and not self._closed:
                number, _, _ = self._waiting.popleft()
                self.on_done(
                    number, f"cannot connect to {self._host}:{self._port}: {str(error) or type(error).__name__}"
                )
        finally:
            self._opening -= 1
        self._serve_waiting()
        # The new connection may have gone to a later request: whoever still waits needs another one.
        while self._opening < len(self._waiting) and not self._closed:
            self._grow()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: _Connection(self), self._host, self._port, ssl=self._ssl)
        self.unreachable = ""
        if self._closed:
            connection.transport.close()
            return
        self._all.add(connection)
        self._free.append(connection)

    async def close(self) -> None:
        """Closes every connection."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self._all):
            connection.number = -1
            connection.transport.abort()
        await asyncio.sleep(0)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._all)
