"""Stalls of the loop: while it is held up, nothing is received, batched or answered, and measurements are not valid."""

from __future__ import annotations

import asyncio
from collections import deque

from workbench.clock import Clock

INTERVAL_S = 0.025
THRESHOLD_MS = 25.0


class StallWatch:
    """Asks the loop to call back every 25 ms and notes when it comes 25 ms late or more."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0
        self.count = 0
        self.total_ms = 0.0
        self.recent: deque[tuple[int, float]] = deque(maxlen=64)

    def start(self) -> None:
        """Starts watching; on the loop."""
        self._due = self._clock() + int(INTERVAL_S * 1e9)
        self._handle = self._loop.call_later(INTERVAL_S, self._tick)

    def stop(self) -> None:
        """Stops watching."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _tick(self) -> None:
        now = self._clock()
        late_ms = (now - self._due) / 1e6
        if late_ms >= THRESHOLD_MS:
            self.count += 1
            self.total_ms += late_ms
            self.recent.append((now, late_ms))
        self.start()
