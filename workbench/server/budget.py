"""Memory that connections share: who has some, who waits for some."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

MEMORY = 1024 * 1024 * 1024
"""What the bodies, or the messages, of all connections of a port may take together where nobody says otherwise."""


class Holder(Protocol):
    """Who has a part of it."""

    reserved: int
    """Bytes that it has."""

    waiting: int
    """Bytes that it has asked for and not got yet; 0 when it waits for nothing, or no more."""


H = TypeVar("H", bound="Holder")


class Budget(Generic[H]):
    """Bytes, given out in the order in which they are asked for.

    Who asks for more than there is waits; one who asks for more than all of it gets it alone.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._waiting: deque[tuple[H, int, Callable[[H, int], None]]] = deque()

    def ask(self, holder: H, size: int, granted: Callable[[H, int], None]) -> None:
        """Calls ``granted`` when the holder may have ``size`` bytes: now or later, never when it gives up before."""
        holder.waiting = size
        self._waiting.append((holder, size, granted))
        self._grant()

    def release(self, holder: H, size: int) -> None:
        """The holder gives ``size`` bytes back."""
        size = min(size, holder.reserved)
        self.used -= size
        holder.reserved -= size
        self._grant()

    def _grant(self) -> None:
        waiting = self._waiting
        while waiting:
            holder, size, granted = waiting[0]
            if holder.waiting == size:  # else it has given up, and perhaps asked for something else
                if self.used and self.used + size > self.size:
                    break
                self.used += size
                holder.reserved += size
                holder.waiting = 0
                waiting.popleft()
                granted(holder, size)
            else:
                waiting.popleft()


class Reader(Protocol):
    """A connection whose reading can be held."""

    def hold_reading(self) -> None:
        """Reads no more."""

    def read_on(self) -> None:
        """Reads on."""


class HalfSent:
    """Bytes of messages of which the rest is still to come, of all connections.

    When they are more than ``size``, connections that have more than their even share of it are not read until they
    are fewer; what is not gone on with is given up in its time, as ever.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.total = 0
        self._of: dict[Reader, dict[int, int]] = {}
        self._paused: set[Reader] = set()

    def count(self, connection: Reader, stream: int, have: int) -> None:
        """So many bytes of the message on a stream of a connection are here; 0 when it is whole, or given up."""
        streams = self._of.setdefault(connection, {})
        self.total += have - streams.pop(stream, 0)
        if have:
            streams[stream] = have
        if self.total <= self.size:
            self._read_on()
        elif have and connection not in self._paused and sum(streams.values()) > self.size // len(self._of):
            self._paused.add(connection)
            connection.hold_reading()
        if not streams:
            del self._of[connection]

    def forget(self, connection: Reader) -> None:
        """The connection is gone."""
        self.total -= sum(self._of.pop(connection, {}).values())
        self._paused.discard(connection)
        if self.total <= self.size:
            self._read_on()

    def _read_on(self) -> None:
        while self._paused:
            self._paused.pop().read_on()


class Holding(Protocol):
    """What a part is for: a request."""

    held: int
    """Bytes that are held for it, or asked for."""


class Share:
    """What the bodies of one connection have of a budget, from their announcement until they are answered.

    Args:
        budget: of all connections.
        resume: called when the body that waited may come.
    """

    __slots__ = ("_budget", "_resume", "reserved", "waiting")

    def __init__(self, budget: Budget[Share], resume: Callable[[], None]) -> None:
        self._budget = budget
        self._resume = resume
        self.reserved = 0
        self.waiting = 0

    def reserve(self, request: Holding, size: int) -> bool:
        """Asks for the bytes of a request's body; True when it has to wait for them."""
        request.held = size
        self._budget.ask(self, size, Share._granted)
        return self.waiting > 0

    def _granted(self, size: int) -> None:
        self._resume()

    def whole(self, request: Holding, size: int) -> None:
        """The body is here, and this large: what was asked for beyond that is given back."""
        if self.waiting:  # it was here before it could be told to wait
            self.waiting = request.held = 0
        elif request.held > size:
            more, request.held = request.held - size, size
            self._budget.release(self, more)

    def give_back(self, request: Holding) -> None:
        """The body is not needed any more."""
        held, request.held = request.held, 0
        self._budget.release(self, held)

    def close(self) -> None:
        """Nothing is needed any more."""
        self.waiting = 0
        self._budget.release(self, self.reserved)


class Bodies(Budget[Share]):
    """What the bodies of all connections may take together, and what packed ones unpack to.

    A packed body is here when it asks for its room, which it does not get while others that were unpacked are not
    answered and there is too little left. Where none is it gets it whatever there is: all the memory may be with bodies
    that wait like it.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._packed: dict[Holding, tuple[int, Callable[[], None]]] = {}  # wait, in their order
        self._plain: dict[Holding, int] = {}  # bytes of those that may be unpacked, until they are answered
        self._is_granting = False  # who is let go meanwhile, perhaps by the one that is granted, makes room for others

    def unpack(self, request: Holding, most: int, then: Callable[[], None]) -> None:
        """Calls ``then`` when a request's body may unpack to ``most`` bytes: now or later, never when it is let go."""
        self._packed[request] = most, then
        self._grant()

    def unpacked(self, request: Holding, size: int) -> None:
        """It has unpacked to so many bytes, and no more."""
        if request in self._plain:
            self.used += size - self._plain[request]
            self._plain[request] = size
            self._grant()

    def let_go(self, request: Holding) -> None:
        """It has been answered, or given up."""
        self._packed.pop(request, None)
        self.used -= self._plain.pop(request, 0)
        self._grant()

    def _grant(self) -> None:
        if self._is_granting:
            return
        self._is_granting = True
        try:
            while self._packed:
                request, (most, then) = next(iter(self._packed.items()))
                if self._plain and self.used + most > self.size:
                    break
                del self._packed[request]
                self._plain[request] = most
                self.used += most
                then()
        finally:
            self._is_granting = False
        super()._grant()
