"""HTTP/1.1 on the engine's loop: an ``asyncio.Protocol`` on httptools, without a task or a future per request.

A connection handles one request at a time, so answers to pipelined requests come in order; while one is in flight and
another waits, the socket is not read (back-pressure). Limits keep memory bounded whatever a client does: size of the
head, of the body, number of chunks, time for the head, pauses in the body, unread answers, connections, and what all
bodies, and all unread answers, take together.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios

from workbench.server.budget import Bodies
from workbench.server.connection import HttpConnection
from workbench.server.exchange import JSON, Application, Exchange, Stream, error_body
from workbench.server.http_limits import MAX_BODY_BYTES, PROGRESS_BYTES, HttpLimits
from workbench.server.listener import LOG, Listener
from workbench.server.unread import Unread

__all__ = ["JSON", "Application", "Exchange", "HttpLimits", "HttpServer", "Stream"]

_TELL_S = 10.0
_SIZE = struct.Struct("i")
_TOO_MANY = error_body("too many connections: try again when others have been closed")
_FAREWELL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%b" % (len(_TOO_MANY), _TOO_MANY)
)


class CountedConnection(HttpConnection):
    """A connection whose answers that its client does not take are counted with those of all others."""

    server: HttpServer
    _gone = 0  # bytes of answers that had been taken when that was last looked at
    _counted = False

    def look(self) -> None:
        """Counts what waits for the client, and whether it has taken some."""
        transport = self.transport
        waiting = 0 if transport is None else transport.get_write_buffer_size()
        if not waiting and not self._counted:
            return
        gone = self._written - waiting - _in_socket(transport)
        taken = not self._counted or gone - self._gone >= PROGRESS_BYTES
        if taken:
            self._gone = gone
        self._counted = waiting > 0
        self.server.unread.note(self, waiting, self.loop.time(), taken=taken)

    def pause_writing(self) -> None:
        """The client does not take its answers."""
        super().pause_writing()
        self.look()
        self.server.make_room()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.look()
        super().resume_writing()

    def sweep(self) -> None:
        """Called about once a second."""
        super().sweep()
        self.look()
        self.server.make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        super().connection_lost(exc)
        self.look()


def _in_socket(transport: asyncio.Transport | None) -> int:
    """Bytes that the system holds for the other side: a client may take of those for long before it needs more."""
    if transport is None:
        return 0
    try:
        (size,) = _SIZE.unpack(fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4)))
    except (OSError, AttributeError):  # it is closed, or the system does not tell
        return 0
    return int(size)


class NamingConnection(CountedConnection):
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
        self.bodies = Bodies(self.limits.memory)
        self.unread: Unread[CountedConnection] = Unread(self.limits.answers)
        self._cut_told_at = -_TELL_S
        self._connection = NamingConnection if name_headers else CountedConnection
        super().__init__(
            loop,
            max(0.05, min(1.0, self.limits.head_s / 4, self.limits.pause_s / 4)),
            service=service,
            max_connections=self.limits.connections,
            farewell=_FAREWELL,
        )

    def make_room(self) -> None:
        """Cuts off who has taken nothing of its answers for the longest time, while they are more than there may be.

        One that is larger than all of it stays where it is alone.
        """
        unread = self.unread
        if unread.total <= unread.size:
            return
        now = self.loop.time()
        for each in unread.holders():
            each.look()
        for each in unread.holders()[:-1]:
            if unread.total <= unread.size:
                break
            if each.transport is not None:
                each.transport.abort()
            unread.note(each, 0, now, taken=True)
            if now - self._cut_told_at >= _TELL_S:
                self._cut_told_at = now
                LOG.warning("%s: clients that do not take their answers are cut off: %s", self.service, each.peer)

    async def listen(self, address: str, port: int, *, reuse_port: bool = False) -> None:
        """Opens the port; 0 is a free one, then in ``port``.

        Raises:
            OSError: the port cannot be had.
        """
        await self.open_port(lambda: self._connection(self), address, port, reuse_port=reuse_port)
