"""The gRPC listener: connections, the memory that large messages share, and which call goes to whom."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from workbench.server.budget import Budget, HalfSent
from workbench.server.grpc_answers import Answers
from workbench.server.grpc_call import Call, Hold, Opener
from workbench.server.grpc_connection import GrpcConnection
from workbench.server.grpc_message import UNIMPLEMENTED
from workbench.server.grpc_options import GrpcOptions
from workbench.server.grpc_unpack import Unpacker
from workbench.server.guard import HostGuard
from workbench.server.listener import Listener
from workbench.server.unread import Unread

_SCRATCH = 256 * 1024  # as much at a time as uvloop reads for others
_CONTENT_TYPES = (b"application/grpc", b"application/grpc+", b"application/grpc;")


class MessageMemory(Budget[Call]):
    """What the messages of all calls may take together, in bytes, until they are answered.

    What is taken without asking (small messages of calls that send many) counts, and holds those calls while memory is
    short.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._held: dict[Call, None] = {}

    def take(self, call: Call, size: int) -> None:
        """The call has taken ``size`` bytes."""
        self.used += size
        call.reserved += size
        if self.used > self.size:
            call.hold(Hold.MEMORY)
            self._held[call] = None

    def _grant(self) -> None:
        super()._grant()
        while self._held and self.used <= self.size:
            call = next(iter(self._held))
            del self._held[call]
            call.resume(Hold.MEMORY)


class GrpcServer(Listener[GrpcConnection]):
    """A listener and its connections. Everything but the constructor is called on ``loop``.

    Args:
        methods: who handles the calls to a path.
        loop: the engine's.
        options: see ``GrpcOptions``.
        guard: which web pages may call; every program that is no browser passes.
    """

    def __init__(
        self, methods: Mapping[bytes, Opener], loop: asyncio.AbstractEventLoop, options: GrpcOptions, guard: HostGuard
    ) -> None:
        self.options = options
        self.scratch = memoryview(bytearray(_SCRATCH))
        """Where all connections read to, one after the other."""
        self.memory = MessageMemory(options.limits.memory)
        self.unread: Unread[Answers] = Unread(options.limits.memory)
        self.halves = HalfSent(options.limits.memory)
        self.unpacker = Unpacker(loop)
        self._methods = methods
        self._guard = guard
        keep, limits = options.keep_alive, options.limits
        spans = [limits.hello_s, limits.pause_s, keep.time_ms / 1000, keep.timeout_ms / 1000]
        spans += [ms / 1000 for ms in (keep.max_connection_age_ms, keep.max_connection_age_grace_ms) if ms]
        super().__init__(
            loop,
            max(0.02, min(1.0, *(span / 4 for span in spans))),
            service="GRPCInferenceService",
            max_connections=limits.connections,
        )

    async def listen(self, address: str, port: int, *, reuse_port: bool = False) -> None:
        """Opens the port; 0 is a free one, then in ``port``.

        Raises:
            OSError: the port cannot be had.
        """
        options = self.options
        await self.open_port(
            lambda: GrpcConnection(self),
            address,
            port,
            reuse_port=reuse_port,
            tls=options.tls,
            handshake_s=options.limits.hello_s,
        )

    async def close(self, timeout_s: float) -> bool:
        """See ``Listener``."""
        clean = await super().close(timeout_s)
        self.unpacker.close()
        return clean

    def refusal(self, headers: Mapping[bytes, bytes]) -> bytes | None:
        """The HTTP status for what is no gRPC call, or one of a web page that may not call; None for a call."""
        if headers.get(b":method") != b"POST":
            return b"405"
        if headers.get(b"content-type", b"")[:17] not in _CONTENT_TYPES:
            return b"415"
        origin = headers.get(b"origin")
        if origin is not None and self._guard.refusal(headers.get(b":authority", b""), origin):
            return b"403"
        return None

    def open(self, call: Call) -> None:
        """A call has begun."""
        opener = self._methods.get(call.path)
        if opener is None:
            call.finish(UNIMPLEMENTED)
            return
        try:
            receiver = opener(call)
            call.receiver = None if call.ended else receiver
        except Exception as error:  # whatever a handler raises is the answer: the connection and the server stay up
            call.fail(error)
