"""A run that is one of several: it begins, opens its window and ends it when whoever leads them says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Literal

Turn = Literal["begin", "open", "end"]
TURNS: tuple[Turn, ...] = ("begin", "open", "end")


class Led:
    """The times (ns) of a run's turns, as they become known. Used on the run's loop.

    ``tell`` hands over what has been answered since the last time: when each was scheduled and when done, int64, one
    column behind the other. Whoever leads judges by it.
    """

    def __init__(self, tell: Callable[[bytes], None]) -> None:
        self.tell = tell
        loop = asyncio.get_running_loop()
        self._times: dict[Turn, asyncio.Future[int]] = {turn: loop.create_future() for turn in TURNS}

    def set(self, turn: Turn, at: int) -> None:
        """The time of a turn, at most once."""
        if not self._times[turn].done():
            self._times[turn].set_result(at)

    def release(self, now: int) -> None:
        """Nobody leads any more: what has no time yet is now."""
        for turn in TURNS:
            self.set(turn, now)

    async def wait(self, turn: Turn, timeout_s: float) -> int | None:
        """The time of a turn; None when it is not known within ``timeout_s``."""
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(asyncio.shield(self._times[turn]), timeout_s)
        return None
