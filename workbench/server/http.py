"""HTTP/1.1 on the engine's loop: an ``asyncio.Protocol`` on httptools, without a task or a future per request.

A connection handles one request at a time, so answers to pipelined requests come in order; while one is in flight and
another waits, the socket is not read (back-pressure). Limits keep memory bounded whatever a client does: size of the
head, of the body, number of chunks, time for the head, pauses in the body, unread answers, connections, and what all
bodies take together.
"""

from __future__ import annotations

import asyncio

from workbench.server.budget import Budget, Share
from workbench.server.connection import HttpConnection
from workbench.server.exchange import JSON, Application, Exchange, Stream, error_body
from workbench.server.http_limits import MAX_BODY_BYTES, HttpLimits
from workbench.server.listener import Listener

__all__ = ["JSON", "Application", "Exchange", "HttpLimits", "HttpServer", "Stream"]

_TOO_MANY = error_body("too many connections: try again when others have been closed")
_FAREWELL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%b" % (len(_TOO_MANY), _TOO_MANY)
)


class NamingConnection(HttpConnection):
    """A connection whose exchanges also have their headers as they were sent (``named_headers``)."""

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, kept with its name in the case in which it came."""
        super().on_header(name, value)
        exchange = self._incoming
        if exchange is not None and not self._head_done:
            pair = name.decode("latin-1"), value.decode("utf-8", "replace")
            exchange.named_headers = [*exchange.named_headers, pair]


class HttpServer(Listener[HttpConnection]):
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
        service: str = "HTTPService",
    ) -> None:
        self.application = application
        self.limits = limits or HttpLimits()
        self.max_chunked_bytes = max_chunked_bytes
        self.bodies: Budget[Share] = Budget(self.limits.memory)
        self._connection = NamingConnection if name_headers else HttpConnection
        super().__init__(
            loop,
            max(0.05, min(1.0, self.limits.head_s / 4, self.limits.pause_s / 4)),
            service=service,
            max_connections=self.limits.connections,
            farewell=_FAREWELL,
        )

    async def listen(self, address: str, port: int, *, reuse_port: bool = False) -> None:
        """Opens the port; 0 is a free one, then in ``port``.

        Raises:
            OSError: the port cannot be had.
        """
        await self.open_port(lambda: self._connection(self), address, port, reuse_port=reuse_port)
