"""Reads what is left of a large body straight from the socket into its place."""

from __future__ import annotations

import asyncio
from typing import Protocol

from workbench.server.body import LARGE, Body


class Owner(Protocol):
    """The connection whose body it is; the other methods are asyncio's."""

    def body_came(self, size: int) -> None:
        """So many bytes of it have been written into their place."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""

    def eof_received(self) -> bool:
        """The client sends nothing more."""

    def pause_writing(self) -> None:
        """The client does not take its answers."""

    def resume_writing(self) -> None:
        """The client has caught up."""


class BodyReader(asyncio.BufferedProtocol):
    """Takes a connection's part at its transport while a large body comes.

    A parser would get the bytes in pieces of their own, and copy them once more; in a body whose size is known it has
    nothing to find.
    """

    def __init__(self, owner: Owner, body: Body) -> None:
        self._body = body
        self.buffer_updated = owner.body_came  # type: ignore[method-assign, assignment]
        self.connection_lost = owner.connection_lost  # type: ignore[method-assign]
        self.eof_received = owner.eof_received  # type: ignore[method-assign]
        self.pause_writing = owner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = owner.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> bytearray:
        """Where the next bytes of the body go."""
        room = self._body.room()
        return bytearray(LARGE) if room is None else room  # type: ignore[return-value]


def hand_over(transport: asyncio.Transport | None, protocol: asyncio.BaseProtocol) -> None:
    """Makes ``protocol`` the one that reads. uvloop looks at what it has to call when reading begins."""
    if transport is not None:
        transport.pause_reading()
        transport.set_protocol(protocol)
        transport.resume_reading()
