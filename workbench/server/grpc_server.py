"""The gRPC listener: connections, the memory that large messages share, and which call goes to whom."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from workbench.server.grpc_call import Call, Hold, Opener
from workbench.server.grpc_connection import GrpcConnection
from workbench.server.grpc_message import UNIMPLEMENTED
from workbench.server.grpc_options import GrpcOptions
from workbench.server.guard import HostGuard

_CONTENT_TYPES = (b"application/grpc", b"application/grpc+", b"application/grpc;")


class MessageMemory:
    """What the messages of all calls may take together, in bytes, until they are answered.

    Who asks for more than there is waits, in order; a message larger than all of it gets it alone. What is taken
    without asking (small messages of calls that send many) counts, and holds those calls while memory is short.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._waiting: deque[tuple[Call, int, Callable[[Call, int], None]]] = deque()
        self._held: dict[Call, None] = {}

    def ask(self, call: Call, size: int, granted: Callable[[Call, int], None]) -> None:
        """Calls ``granted`` when the call may have ``size`` bytes: now or later, never when it is over before."""
        call.waiting = size
        self._waiting.append((call, size, granted))
        self._grant()

    def take(self, call: Call, size: int) -> None:
        """The call has taken ``size`` bytes."""
        self.used += size
        call.reserved += size
        if self.used > self.size:
            call.hold(Hold.MEMORY)
            self._held[call] = None

    def release(self, call: Call, size: int) -> None:
        """The call gives ``size`` bytes back."""
        size = min(size, call.reserved)
        self.used -= size
        call.reserved -= size
        self._grant()

    def _grant(self) -> None:
        waiting = self._waiting
        while waiting:
            call, size, granted = waiting[0]
            if call.waiting:  # else it is over
                if self.used and self.used + size > self.size:
                    break
                self.used += size
                call.reserved += size
                call.waiting = 0
                waiting.popleft()
                granted(call, size)
            else:
                waiting.popleft()
        while self._held and self.used <= self.size:
            call = next(iter(self._held))
            del self._held[call]
            call.resume(Hold.MEMORY)


class GrpcServer:
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
        self.loop = loop
        self.options = options
        self.connections: set[GrpcConnection] = set()
        self.memory = MessageMemory(options.limits.memory)
        self.closing = False
        self.port = 0
        self._methods = methods
        self._guard = guard
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        keep, limits = options.keep_alive, options.limits
        spans = [limits.hello_s, limits.pause_s, keep.time_ms / 1000, keep.timeout_ms / 1000]
        spans += [ms / 1000 for ms in (keep.max_connection_age_ms, keep.max_connection_age_grace_ms) if ms]
        self._sweep_s = max(0.02, min(1.0, *(span / 4 for span in spans)))

    async def listen(self, address: str, port: int, *, reuse_port: bool = False) -> None:
        """Opens the port; 0 is a free one, then in ``port``.

        Raises:
            OSError: the port cannot be had.
        """
        self._server = await self.loop.create_server(
            lambda: GrpcConnection(self),
            address,
            port,
            backlog=1024,
            reuse_port=reuse_port or None,
            ssl=self.options.tls,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._sweeper = self.loop.call_later(self._sweep_s, self._sweep)

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

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in tuple(self.connections):
            connection.sweep(now)
        if self._sweeper is not None:
            self._sweeper = self.loop.call_later(self._sweep_s, self._sweep)

    async def close(self, timeout_s: float) -> bool:
        """Stops accepting, lets calls in flight finish for up to ``timeout_s``; False when some had to be cut."""
        self.closing = True
        if self._server is not None:
            self._server.close()
        deadline = self.loop.time() + timeout_s
        while self.connections and self.loop.time() < deadline:
            for connection in tuple(self.connections):
                connection.leave()
            await asyncio.sleep(0.01)
        clean = not any(connection.calls for connection in self.connections)
        for connection in tuple(self.connections):
            if connection.transport is not None:
                connection.transport.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        return clean
