"""The event log: model states, epochs, instance deaths, log lines; kept in order, bounded, subscribable."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from workbench.clock import Clock, monotonic_ns, wall_ms
from workbench.records.columns import shortened

LIMIT_BYTES = 16 << 20
"""What the events of one engine may take altogether."""

MAX_TEXT = 16384
"""What is kept of an event's text: models choose what they log and raise, and the log must be bounded."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: ``time_ns`` of CLOCK_MONOTONIC, ``wall_ms`` since the epoch.

    ``kind`` is a short word (``state``, ``epoch``, ``instance``, ``log``, ...); ``data`` holds JSON values.
    """

    seq: int
    time_ns: int
    wall_ms: int
    kind: str
    model: str
    level: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Event:
        """Reads what ``to_json`` gave."""
        return cls(**{name: value[name] for name in cls.__slots__ if name in value})


def _bounded(data: dict[str, Any]) -> dict[str, Any]:
    return {key: shortened(value, MAX_TEXT) if isinstance(value, str) else value for key, value in data.items()}


def _size(event: Event) -> int:
    """About how many bytes an event takes."""
    size = 500 + len(event.text)
    for value in event.data.values():
        size += 40 * len(value) if isinstance(value, list) else len(value) if isinstance(value, str) else 0
    return size


class EventLog:
    """The last ``capacity`` events, fewer where they are long: ``limit`` bytes in all. Thread-safe."""

    def __init__(
        self,
        capacity: int = 4096,
        *,
        limit: int = LIMIT_BYTES,
        clock: Clock = monotonic_ns,
        wall: Callable[[], int] = wall_ms,
    ) -> None:
        self._events: deque[tuple[Event, int]] = deque()
        self._capacity = capacity
        self._limit = limit
        self._bytes = 0
        self._changed = threading.Condition()
        self._subscribers: list[Callable[[Event], None]] = []
        self._seq = 0
        self._clock = clock
        self._wall = wall

    @property
    def last_seq(self) -> int:
        """The number of the newest event; -1 when there is none."""
        return self._seq - 1

    def append(self, kind: str, model: str, text: str, *, level: str = "info", **data: Any) -> Event:
        """Adds an event and tells the subscribers, on the calling thread.

        A subscriber that raises is dropped: the log's owner must not suffer from whoever listens.
        """
        with self._changed:
            event = Event(
                self._seq, self._clock(), self._wall(), kind, model, level, shortened(text, MAX_TEXT), _bounded(data)
            )
            self._seq += 1
            self._keep(event)
            subscribers = tuple(self._subscribers)
            self._changed.notify_all()
        for callback in subscribers:
            try:
                callback(event)
            except Exception:
                self._unsubscribe(callback)
        return event

    def _keep(self, event: Event) -> None:
        size = _size(event)
        self._events.append((event, size))
        self._bytes += size
        while len(self._events) > self._capacity or (self._bytes > self._limit and len(self._events) > 1):
            self._bytes -= self._events.popleft()[1]

    def after(self, seq: int = -1) -> list[Event]:
        """The events after number ``seq`` that are still kept, oldest first.

        A number from the future (of a server that has restarted since) gives everything.
        """
        with self._changed:
            if seq >= self._seq:
                seq = -1
            found = list(islice(reversed(self._events), self._seq - 1 - seq))
        return [event for event, _ in reversed(found)]

    def wait(self, seq: int, timeout_s: float) -> list[Event]:
        """As ``after``, but waits up to ``timeout_s`` for the first one."""
        with self._changed:
            if seq >= self._seq:
                seq = -1
            self._changed.wait_for(lambda: self._seq - 1 > seq, timeout_s)
        return self.after(seq)

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Calls ``callback`` for every event from now on; gives the function that ends that."""
        with self._changed:
            self._subscribers.append(callback)
        return lambda: self._unsubscribe(callback)

    def _unsubscribe(self, callback: Callable[[Event], None]) -> None:
        with self._changed:
            if callback in self._subscribers:
                self._subscribers.remove(callback)
