"""A port and its connections: how it is opened, looked after and closed, whatever is spoken on it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


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


class Listener(Generic[C]):
    """A listener and its connections. Everything but the constructor is called on ``loop``.

    Args:
        loop: the engine's.
        sweep_s: how often its connections are looked at.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sweep_s: float) -> None:
        self.loop = loop
        self.sweep_s = sweep_s
        self.connections: set[C] = set()
        self.closing = False
        self.address = ""
        self.port = 0
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def open_port(
        self,
        connect: Callable[[], asyncio.Protocol],
        address: str,
        port: int,
        *,
        reuse_port: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Opens the port; 0 is a free one, then in ``port``. ``connect`` makes a connection.

        Raises:
            OSError: the port cannot be had.
        """
        self._server = await self.loop.create_server(
            connect, address, port, backlog=1024, reuse_port=reuse_port or None, ssl=tls
        )
        self.address = address
        self.port = self._server.sockets[0].getsockname()[1]
        self._sweeper = self.loop.call_later(self.sweep_s, self._sweep)

    def _sweep(self) -> None:
        for connection in tuple(self.connections):
            connection.sweep()
        if self._sweeper is not None:
            self._sweeper = self.loop.call_later(self.sweep_s, self._sweep)

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
        clean = not any(connection.busy for connection in self.connections)
        for connection in tuple(self.connections):
            if connection.transport is not None:
                connection.transport.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        return clean
