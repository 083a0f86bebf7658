"""HTTP/1.1 on the engine's loop: an ``asyncio.Protocol`` on httptools, without a task or a future per request.

A connection handles one request at a time, so answers to pipelined requests come in order; while one is in flight and
another waits, the socket is not read (back-pressure). Limits keep memory bounded whatever a client does: size of the
head, of the body, number of chunks, time for the head, pauses in the body, unread answers.
"""

from __future__ import annotations

import asyncio

from workbench.server.connection import MAX_BODY_BYTES, HttpConnection, HttpLimits, NamingConnection
from workbench.server.exchange import JSON, Application, Exchange, Stream

__all__ = ["JSON", "Application", "Exchange", "HttpLimits", "HttpServer", "Stream"]


class HttpServer:
    """A listener and its connections. Everything but the constructor is called on ``loop``.

    ``name_headers``: exchanges also have their headers as they were sent.
    """

    def __init__(
        self,
        application: Application,
        loop: asyncio.AbstractEventLoop,
        *,
        limits: HttpLimits | None = None,
        max_chunked_bytes: int = MAX_BODY_BYTES,
        name_headers: bool = False,
    ) -> None:
        self.application = application
        self.loop = loop
        self.limits = limits or HttpLimits()
        self.max_chunked_bytes = max_chunked_bytes
        self.connections: set[HttpConnection] = set()
        self.closing = False
        self.address = ""
        self.port = 0
        self._connection = NamingConnection if name_headers else HttpConnection
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_s = max(0.05, min(1.0, self.limits.head_s / 4, self.limits.pause_s / 4))

    async def listen(self, address: str, port: int, *, reuse_port: bool = False) -> None:
        """Opens the port; 0 is a free one, then in ``port``.

        Raises:
            OSError: the port cannot be had.
        """
        self._server = await self.loop.create_server(
            lambda: self._connection(self), address, port, backlog=1024, reuse_port=reuse_port or None
        )
        self.address = address
        self.port = self._server.sockets[0].getsockname()[1]
        self._sweeper = self.loop.call_later(self._sweep_s, self._sweep)

    def _sweep(self) -> None:
        for connection in tuple(self.connections):
            connection.sweep(self._sweep_s)
        if self._sweeper is not None:
            self._sweeper = self.loop.call_later(self._sweep_s, self._sweep)

    async def close(self, timeout_s: float) -> bool:
        """Stops accepting, lets requests in flight finish for up to ``timeout_s``; False when some had to be cut."""
        self.closing = True
        if self._server is not None:
            self._server.close()
        deadline = self.loop.time() + timeout_s
        while self.connections:
            for connection in tuple(self.connections):
                connection.shut()
            if self.loop.time() >= deadline:
                break
            await asyncio.sleep(0.01)
        clean = not any(connection.busy for connection in self.connections)
        for connection in tuple(self.connections):
            if connection.transport is not None:
                connection.transport.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        return clean
