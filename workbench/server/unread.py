"""Answers that clients do not take: what they may hold of the server's memory."""

from __future__ import annotations

from typing import Generic, TypeVar

NOT_READ = "too many answers are not read: read those that have come before asking for more"
"""What a call is told that finds no room for its answer."""

C = TypeVar("C")


class Unread(Generic[C]):
    """Bytes of answers that wait for their clients, of all connections.

    When they are more than ``size``, connections that hold more than their even share get no further answers until they
    have read some, and one that reads nothing at all is given up in time.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.total = 0
        self._of: dict[C, tuple[int, float]] = {}  # bytes, and when it last took some

    def note(self, connection: C, waiting: int, now: float, *, taken: bool) -> None:
        """So many bytes wait for a connection's client; whether it has taken some since the last time."""
        before, since = self._of.get(connection, (0, now))
        self.total += waiting - before
        if waiting:
            self._of[connection] = waiting, now if taken else since
        else:
            self._of.pop(connection, None)

    def refuses(self, connection: C) -> bool:
        """Whether nothing more is kept for a connection's client."""
        if self.total <= self.size or connection not in self._of:
            return False
        return self._of[connection][0] > self.size // len(self._of)

    def holders(self) -> list[C]:
        """Whose clients have answers to take, those first that have taken nothing for the longest time; of those that
        have waited equally long, who holds most.
        """
        return sorted(self._of, key=lambda connection: (self._of[connection][1], -self._of[connection][0]))

    def stuck(self, connection: C, now: float, seconds: float) -> bool:
        """Whether there is no room, and a connection's client has taken none of what it has for so long."""
        return self.refuses(connection) and now - self._of[connection][1] > seconds
