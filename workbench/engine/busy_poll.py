"""Waiting for a model's process, or for the next request, without going to sleep, for a moment.

To wake a thread that sleeps costs 20 to 50 µs, as much as a small model takes. So when a batch has gone to a process
whose last one was back within a few hundred microseconds, and nothing else waits for an instance, the loop goes round
and looks at its descriptors instead of sleeping on them; whatever comes meanwhile is served as ever. So it does when
all is answered and the last time the next request came as soon: a client that asks again once it has its answer.

It is what Linux does for sockets with ``net.core.busy_poll``. It costs CPU time that would have been idle, at most the
limit for a batch and again for its answer, and nothing where batches, or clients, take longer.
"""

from __future__ import annotations

import asyncio
import os

from workbench.clock import Clock


class BusyPoll:
    """Keeps an event loop awake; on the loop.

    Args:
        limit_ns: the longest that is waited so; 0 for never.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, limit_ns: int) -> None:
        self._loop = loop
        self._clock = clock
        self._limit = limit_ns if _has_cores() else 0
        self._until = 0
        self._awake = False
        self._gap = limit_ns
        self.resting = 0
        """Since when all is answered and nothing has come, in ns; 0 where it is not so, or is not known."""

    def expect(self, within_ns: int) -> None:
        """Something is expected within this time (-1: it is not known): the loop stays awake if that is short."""
        if 0 <= within_ns < self._limit:
            self._watch(self._clock())

    def came(self) -> None:
        """It has come."""
        self._until = 0

    def rest(self) -> None:
        """All is answered: the loop stays awake for the next request if the last one came soon after an answer."""
        if self._limit:
            self.resting = now = self._clock()
            if self._gap < self._limit:
                self._watch(now)

    def wake(self) -> None:
        """A batch begins after a rest."""
        self._gap = self._clock() - self.resting
        self.resting = self._until = 0

    def _watch(self, now: int) -> None:
        self._until = now + self._limit
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._stay)

    def _stay(self) -> None:
        if self._clock() < self._until:
            os.sched_yield()  # whoever is awaited may want this very core
            self._loop.call_soon(self._stay)
        else:
            self._awake = False


def _has_cores() -> bool:
    """Whether another process can run while this one polls."""
    return hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1
