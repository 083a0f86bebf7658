"""Waking the generator's loop at a time, to some tens of microseconds.

An event loop by itself rounds to milliseconds. On Linux one timerfd in the loop does better; elsewhere the loop's own
timer is used up to the last two milliseconds and the rest is spent in rounds of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable

from workbench.clock import monotonic_ns

_PR_SET_TIMERSLACK = 29
_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_SECOND = 1_000_000_000
_COARSE_NS = 2_000_000


class _TimerSpec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Waker:
    """Calls ``fire`` on the loop at the armed time or soon after; possibly early, so ``fire`` must read the clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> None:
        self._loop = loop
        self._fire = fire
        self._fd = -1
        self._deadline = 0
        self._armed = False
        self._handle: asyncio.Handle | None = None
        if sys.platform.startswith("linux"):
            libc = ctypes.PyDLL(None)  # these calls are too short to let go of the GIL for
            libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1000), 0, 0, 0)
            self._libc = libc
            self._fd = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            self._spec = _TimerSpec()
            self._spec_at = ctypes.byref(self._spec)
            loop.add_reader(self._fd, self._fired)

    def arm(self, deadline_ns: int) -> None:
        """Wakes at ``deadline_ns`` (CLOCK_MONOTONIC) instead of the time armed before."""
        if self._fd >= 0:
            self._armed = True
            self._spec.value_s, self._spec.value_ns = divmod(max(deadline_ns, 1), _SECOND)
            self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, self._spec_at, None)
            return
        self._deadline = deadline_ns
        if self._handle is not None:
            self._handle.cancel()
        self._spin()

    def _spin(self) -> None:
        left = self._deadline - monotonic_ns()
        if left <= 0:
            self._handle = self._loop.call_soon(self._fire)
        elif left > _COARSE_NS:
            self._handle = self._loop.call_later((left - _COARSE_NS) / _SECOND, self._spin)
        else:
            self._handle = self._loop.call_soon(self._spin)

    def _fired(self) -> None:
        self._armed = False
        self._fire()
        if not self._armed and self._fd >= 0:
            # Arming takes the expiry back as reading does; without either the loop would be woken again and again.
            with contextlib.suppress(BlockingIOError):
                os.read(self._fd, 8)

    def close(self) -> None:
        """Frees the timer."""
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
