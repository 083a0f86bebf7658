"""A port and its connections: how it is opened, looked after and closed, whatever is spoken on it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import ssl
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar, cast

LOG = logging.getLogger("workbench.server")

MAX_CONNECTIONS = 4096
"""How many connections a port takes where nobody says otherwise."""

_LINGER_S = 1.0
_LINGERING = 64
_TELL_S = 10.0


class Connection(Protocol):
    """What a listener asks of its connections."""

    transport: asyncio.Transport | None

    @property
    def busy(self) -> bool:
        """Whether something is being answered, or an answer is on its way out."""

    def sweep(self) -> None:
        """Called every ``sweep_s`` seconds: a client that dawdles is cut off."""

    def shut(self) -> None:
        """Closes when nothing is in flight; it may be called again."""


C = TypeVar("C", bound="Connection")


class _Connections(set[C]):
    """Connections that have come; one that has is not on its way any more."""

    def __init__(self, coming: weakref.WeakKeyDictionary[asyncio.BaseProtocol, float]) -> None:
        super().__init__()
        self._coming = coming
        self.arrived = 0
        self.are_over = False
        """Nobody looks after those that come now, at the end of a handshake."""

    def add(self, connection: C) -> None:
        if self._coming.pop(cast("asyncio.BaseProtocol", connection), None) is not None:
            self.arrived += 1
        super().add(connection)
        if self.are_over and connection.transport is not None:
            asyncio.get_running_loop().call_soon(connection.transport.abort)


def connection_limit(asked: int) -> int:
    """How many connections a port may have at a time.

    Never more than a quarter of the files that the process may open (``ulimit -n``): there are several ports, and
    models and their processes need files, too.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return asked if files == resource.RLIM_INFINITY else min(asked, max(1, files // 4))


def raise_file_limit() -> None:
    """Lets this process open as many files as ``MAX_CONNECTIONS`` ask for, as far as the system allows it.

    Shells give 1024 by default and allow more; it is for a process of the server's own, not for a notebook's.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * MAX_CONNECTIONS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Listener(Generic[C]):
    """A listener and its connections. Everything but the constructor is called on ``loop``.

    Args:
        loop: the engine's.
        sweep_s: how often its connections are looked at.
        service: what the log calls it.
        max_connections: how many it has at a time (see ``connection_limit``). A further one is told ``farewell`` and
            closed, and so is its caller's next try until one of the others has gone; the log says so, once in a while.
        farewell: the bytes for a connection beyond the limit; none where clients of the protocol would try again at
            once after a word, but wait after silence (gRPC).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sweep_s: float,
        *,
        service: str,
        max_connections: int = MAX_CONNECTIONS,
        farewell: bytes = b"",
    ) -> None:
        self.loop = loop
        self.sweep_s = sweep_s
        self.service = service
        self.limit = connection_limit(max_connections)
        self.farewell = farewell
        self.refused = 0
        """Connections that were one too many, since the start."""
        # accepted, perhaps in the middle of a TLS handshake: since when
        self._coming: weakref.WeakKeyDictionary[asyncio.BaseProtocol, float] = weakref.WeakKeyDictionary()
        self._come: _Connections[C] = _Connections(self._coming)
        self.connections: set[C] = self._come
        self.lingering: set[asyncio.BaseProtocol] = set()
        self._told = 0  # of the refused, in the log
        self._told_at = 0.0
        self._over_tls, self._handshake_s = False, 20.0
        self._taken = 0  # connections begun
        self._failed_told = 0  # of those whose handshake came to nothing, in the log
        self._failed_told_at = 0.0
        self.closing = False
        self.address = ""
        self.port = 0
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def open_port(
        self,
        connect: Callable[[], asyncio.BaseProtocol],
        address: str,
        port: int,
        *,
        reuse_port: bool = False,
        tls: ssl.SSLContext | None = None,
        handshake_s: float = 20.0,
    ) -> None:
        """Opens the port; 0 is a free one, then in ``port``. ``connect`` makes a connection.

        Raises:
            OSError: the port cannot be had.
        """
        self._over_tls, self._handshake_s = tls is not None, handshake_s
        self._server = await self.loop.create_server(
            lambda: self._take(connect),
            address,
            port,
            backlog=1024,
            reuse_port=reuse_port or None,
            ssl=tls,
            ssl_handshake_timeout=handshake_s if tls is not None else None,
        )
        self.address = address
        self.port = self._server.sockets[0].getsockname()[1]
        self._sweeper = self.loop.call_later(self.sweep_s, self._sweep)

    def _forget_failed(self, now: float) -> None:
        """Lets go of what is still on its way when the event loop has given its handshake up: it tells nobody."""
        for protocol, since in tuple(self._coming.items()):
            if now - since > self._handshake_s:
                del self._coming[protocol]

    def _take(self, connect: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """Makes a connection, or what turns one away."""
        coming, now = self._coming, self.loop.time()
        if len(self.connections) + len(coming) >= self.limit:
            self._forget_failed(now)
            if len(self.connections) + len(coming) >= self.limit:
                self.refused += 1
                self._tell(now)
                return _TurnedAway(self)
        made = connect()
        coming[made] = now
        self._taken += 1
        return made

    def _tell(self, now: float) -> None:
        """Has the log say that connections were refused: the first one at once, others together."""
        count = self.refused - self._told
        if count and (not self._told or now - self._told_at >= _TELL_S):
            LOG.warning(
                "%s: %d connection%s refused: %d are open, the most that it takes",
                self.service,
                count,
                "" if count == 1 else "s",
                self.limit,
            )
            self._told, self._told_at = self.refused, now

    def _tell_failed(self, now: float) -> None:
        """Has the log say that handshakes failed, as clients are told nothing: the first one soon, others together."""
        self._forget_failed(now)
        failed = self._taken - self._come.arrived - len(self._coming)
        count = failed - self._failed_told
        if count > 0 and (not self._failed_told or now - self._failed_told_at >= _TELL_S):
            LOG.info(
                "%s: %d TLS handshake%s failed: does the client speak TLS, trust the server's certificate, and show "
                "one of its own where --grpc-use-ssl-mutual asks for it?",
                self.service,
                count,
                "" if count == 1 else "s",
            )
            self._failed_told, self._failed_told_at = failed, now

    def _sweep(self) -> None:
        self._tell(self.loop.time())
        if self._over_tls:
            self._tell_failed(self.loop.time())
        for connection in tuple(self.connections):
            try:
                connection.sweep()
            except Exception as error:  # of this one: the others are looked after all the same
                LOG.error("%s: a connection could not be looked after, and is closed", self.service, exc_info=error)
                self._drop(connection)
        if self._sweeper is not None:
            self._sweeper = self.loop.call_later(self.sweep_s, self._sweep)

    def _drop(self, connection: C) -> None:
        if connection.transport is None:
            self.connections.discard(connection)
        else:
            connection.transport.abort()

    async def close(self, timeout_s: float) -> bool:
        """Stops accepting, lets what is in flight finish for up to ``timeout_s``; False when some had to be cut."""
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
        self._come.are_over = True
        clean = not any(connection.busy for connection in self.connections)
        for connection in tuple(self.connections):
            if connection.transport is not None:
                connection.transport.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        return clean


class _TurnedAway(asyncio.Protocol):
    """A connection beyond the limit: it is told so, where there is a word for it, and closed.

    What its client has sent already is read and thrown away for a moment, where not too many wait so: a close with
    unread bytes would be a reset, and lose the client what it is told.
    """

    def __init__(self, listener: Listener[C]) -> None:
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast("asyncio.Transport", transport)  # uvloop's is not derived from it
        listener = self._listener
        if len(listener.lingering) >= _LINGERING or not made.can_write_eof():
            made.write(listener.farewell)
            made.close()
            return
        listener.lingering.add(self)
        made.write(listener.farewell)
        made.write_eof()
        listener.loop.call_later(_LINGER_S, made.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.lingering.discard(self)
