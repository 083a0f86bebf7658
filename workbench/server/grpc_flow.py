"""What a connection of the gRPC front end lets its clients send: windows, and the memory that messages share."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import ngh2

from workbench.server.grpc_call import Call

if TYPE_CHECKING:
    from workbench.server.grpc_server import GrpcServer

WHOLE_WINDOW = 2**31 - 1
"""The largest window that there is."""

FRAME = 64 * 1024
"""The largest frame that is taken, in bytes."""


class FlowControl(ABC):
    """The part of a connection that a call asks for room (``Carrier``)."""

    server: GrpcServer
    calls: dict[int, Call]
    _h2: Any

    @abstractmethod
    def _plan(self) -> None:
        """Has what is to be sent sent soon."""

    def _acknowledge(self, stream_id: int, size: int) -> None:
        if size:
            try:
                self._h2.acknowledge_received_data(size, stream_id)
            except (ngh2.NGH2Error, ValueError):  # the stream is over
                return

    def _settle(self, call: Call) -> None:
        """Tells the client that the call takes as much more as it has taken."""
        self._acknowledge(call.stream_id, call.owed)
        call.owed = 0

    def resume(self, call: Call) -> None:
        """See ``Carrier``."""
        if not call.waiting:
            self._settle(call)
            self._plan()

    def reserve(self, call: Call, size: int) -> None:
        """See ``Carrier``: a message that fits the window needs no room, a larger one waits until there is some."""
        if size > self.server.options.limits.window:
            self.server.memory.ask(call, size, self._granted)

    def keep(self, call: Call, size: int) -> None:
        """See ``Carrier``; what was reserved is kept already."""
        if size <= self.server.options.limits.window:
            self.server.memory.take(call, size)

    def let_go(self, call: Call, size: int) -> None:
        """See ``Carrier``."""
        self.server.memory.release(call, size)

    def room(self) -> int:
        """See ``Carrier``: what memory has left, or all of it for one that is alone."""
        memory, window = self.server.memory, self.server.options.limits.window
        return max(window, memory.size - memory.used)

    def grown(self, call: Call, size: int, plain: int) -> None:
        """See ``Carrier``: what is larger than the window counts as if it had come so."""
        window = self.server.options.limits.window
        had = size if size > window else 0
        if plain > window and plain > had:
            self.server.memory.take(call, plain - had)

    def _granted(self, call: Call, size: int) -> None:
        if call.stream_id not in self.calls:
            return
        self._widen(call, size + FRAME)  # the whole message at once, not a window at a time
        if not call.held:
            self._settle(call)
        self._plan()

    def _widen(self, call: Call, size: int) -> None:
        call.widened = size > self.server.options.limits.window
        with contextlib.suppress(ngh2.NGH2Error):
            self._h2.set_local_window_size(min(size, WHOLE_WINDOW), stream_id=call.stream_id)

    def _release(self, call: Call) -> None:
        if call.reserved or call.waiting:
            call.waiting = 0
            self.server.memory.release(call, call.reserved)
