"""Compressed messages of gRPC: small ones are unpacked where they come, of larger ones the rest on a thread.

There is one thread for all connections; it takes a step of a message of one, then of the next one's, so nobody waits
for a message that unpacks to a gigabyte. What a message has unpacked to counts as kept from each step on, and a call
that has ended is not gone on with.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from workbench.protocol.binary import Buffer
from workbench.server.grpc_message import FORMS, FRAMING, INTERNAL, MAX_MESSAGE, RESOURCE_EXHAUSTED, BadMessage
from workbench.server.unpacking import STEP, Broken, Unpacking

if TYPE_CHECKING:
    from workbench.server.grpc_call import Call


class Packed:
    """A compressed message. ``counted`` is what of the memory for messages it has, in bytes; ``is_whole``: unpacked.

    Raises:
        BadMessage: the call names no compression.
    """

    __slots__ = ("_unpacking", "counted", "is_whole")

    def __init__(self, data: Buffer, encoding: str, counted: int) -> None:
        form = FORMS.get(encoding)
        if form is None:
            raise BadMessage(INTERNAL, "a message is marked as compressed, but the call names no compression")
        self._unpacking = Unpacking(data, form)
        self.counted = counted
        self.is_whole = False

    @property
    def size(self) -> int:
        """Bytes that it has unpacked to so far, with its framing."""
        return self._unpacking.size + FRAMING

    @property
    def plain(self) -> memoryview:
        """The message, once it is whole."""
        return memoryview(self._unpacking.plain)

    def step(self, most: int, room: int) -> bool:
        """Unpacks up to ``most`` bytes more; True when it is whole. On any thread, one at a time.

        Raises:
            BadMessage: it is broken, or larger than ``room`` bytes, or than ``MAX_MESSAGE``.
        """
        unpacking, limit = self._unpacking, min(room, MAX_MESSAGE)
        try:
            self.is_whole = unpacking.step(min(most, max(1, limit + 1 - unpacking.size)))
        except Broken as error:
            raise BadMessage(INTERNAL, f"a compressed message cannot be read: {error}") from None
        if unpacking.size > limit:
            text = f"Received message larger than max ({MAX_MESSAGE} bytes unpacked)"
            if room < MAX_MESSAGE:
                text = f"the message unpacks to more than the {room} bytes that are free for messages: try again later"
            raise BadMessage(RESOURCE_EXHAUSTED, text)
        return self.is_whole


class Memory(Protocol):
    """The connection that the call is on, which counts what messages take."""

    def room(self, packed: Packed) -> int:
        """What a message may unpack to, in bytes."""

    def grown(self, call: Call, packed: Packed) -> None:
        """It has unpacked to more, perhaps to the end."""


class Unpacker:
    """Unpacks messages on a thread, a step at a time. Everything is called on ``loop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread: ThreadPoolExecutor | None = None
        self._jobs: dict[Memory, dict[Call, Packed]] = {}  # in turn; one of a call
        self._current: Call | None = None
        self._is_closed = False

    def add(self, memory: Memory, call: Call, packed: Packed) -> None:
        """Has the rest of a call's message unpacked, after those of the same connection that wait."""
        self._jobs.setdefault(memory, {})[call] = packed
        if self._current is None:
            self._next()

    def forget(self, memory: Memory, call: Call) -> None:
        """The call has ended: its message is not needed."""
        calls = self._jobs.get(memory)
        if calls is not None:
            calls.pop(call, None)
            if not calls:
                del self._jobs[memory]

    def close(self) -> None:
        """What is not whole is given up."""
        self._is_closed = True
        self._jobs.clear()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> None:
        if not self._jobs or self._is_closed:
            return
        memory = next(iter(self._jobs))
        calls = self._jobs[memory] = self._jobs.pop(memory)  # last in turn
        call, packed = next(iter(calls.items()))

        def stepped(future: Future[bool]) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._stepped, memory, call, packed, future)

        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="workbench-unpack")
        self._current = call
        self._thread.submit(packed.step, STEP, memory.room(packed)).add_done_callback(stepped)

    def _stepped(self, memory: Memory, call: Call, packed: Packed, future: Future[bool]) -> None:
        self._current = None
        if future.cancelled() or call.ended:
            self._next()
            return
        error = future.exception()
        is_whole = error is None and future.result()
        if error is not None or is_whole:
            self.forget(memory, call)
        if error is None:
            memory.grown(call, packed)
        self._next()  # the thread works on while the message is read
        if error is not None:
            call.cannot_unpack(error)
        elif is_whole:
            call.unpacked(packed)
