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
            if holder.waiting:  # else it has given up
                if self.used and self.used + size > self.size:
                    break
                self.used += size
                holder.reserved += size
                holder.waiting = 0
                waiting.popleft()
                granted(holder, size)
            else:
                waiting.popleft()


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
