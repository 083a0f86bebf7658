"""Timers of microseconds for an event loop, which by itself ticks in milliseconds.

uvloop and asyncio round delays to milliseconds: asked for 100 µs they fire after 3 µs or after 1.1 ms. Queue delays
here are 100 µs, so deadlines are kept in a heap of our own behind one ``timerfd`` in the loop (Linux), or one waiting
thread (elsewhere). A timer never fires early: the clock is read before a callback runs. How late each one was is kept.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
import sys
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from workbench.clock import Clock, monotonic_ns

_RING = 4096
_PR_SET_TIMERSLACK = 29
_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_SECOND = 1_000_000_000


def set_timer_slack(slack_ns: int = 1_000) -> bool:
    """Sets how late Linux may wake the calling thread from a timed wait (50 µs unless told otherwise).

    Returns:
        Whether it was set; False where the system has no such setting.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(slack_ns), 0, 0, 0) == 0)


@dataclass(frozen=True, slots=True)
class Lateness:
    """How much later than asked timers fired, in ns: over all (``count``) and over the latest 4096 (the others).

    For a timer asked for in the past, lateness counts from when it was asked for.
    """

    count: int
    median_ns: int
    p99_ns: int
    max_ns: int


class TimerHandle:
    """One deadline; ``cancel`` it or let it fire."""

    __slots__ = ("_due_ns", "_queued", "_timers", "callback", "deadline_ns")

    def __init__(self, timers: Timers, deadline_ns: int, due_ns: int, callback: Callable[[], object]) -> None:
        self._timers = timers
        self._due_ns = due_ns
        self._queued = True
        self.deadline_ns = deadline_ns
        self.callback: Callable[[], object] | None = callback

    @property
    def pending(self) -> bool:
        """Whether it has neither fired nor been cancelled."""
        return self.callback is not None

    def cancel(self) -> None:
        """The callback will not run; nothing happens if it has run already."""
        if self.callback is not None:
            self.callback = None
            if self._queued:
                self._timers._forget()


class _Waker(Protocol):
    """Something that calls ``fire`` on the loop at, or somewhat after, the armed time; early only by mistake."""

    def arm(self, deadline_ns: int) -> None:
        """Wakes at this time instead of the one armed before; 0 disarms."""

    def close(self) -> None:
        """Frees what it holds; ``fire`` is not called any more."""


class Timers:
    """Deadlines on an event loop, to some tens of microseconds.

    Use it from the loop's own thread only (``call_soon_threadsafe`` leads there from another).

    Args:
        loop: the running or not yet running loop, asyncio's or uvloop's.
        use_thread: wait in a thread even where timerfd exists.
        clock: what "now" is; must be CLOCK_MONOTONIC in nanoseconds.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, use_thread: bool = False, clock: Clock = monotonic_ns
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._heap: list[tuple[int, int, TimerHandle]] = []
        self._seq = 0
        self._cancelled = 0
        self._armed = 0
        self._closed = False
        self._late = array("q", bytes(8 * _RING))
        self._fired = 0
        self._waker: _Waker
        if use_thread or not has_timerfd():
            self._waker = _ThreadWaker(loop, self._fire, clock)
        else:
            self._waker = _TimerfdWaker(loop, self._fire)

    def call_at(self, deadline_ns: int, callback: Callable[[], object]) -> TimerHandle:
        """Runs ``callback`` on the loop at ``deadline_ns`` (CLOCK_MONOTONIC) or as soon after it as can be.

        A deadline in the past fires in the loop's next round. An error in a callback goes to the loop's exception
        handler and stops no other timer.

        Raises:
            RuntimeError: the timers are closed.
        """
        if self._closed:
            raise RuntimeError("the timers are closed")
        handle = TimerHandle(self, deadline_ns, max(deadline_ns, self._clock()), callback)
        self._seq += 1
        heapq.heappush(self._heap, (deadline_ns, self._seq, handle))
        self._arm()
        return handle

    def close(self) -> None:
        """Drops every deadline and frees the timer; what is pending never runs. May be called twice."""
        if self._closed:
            return
        self._closed = True
        for _, _, handle in self._heap:
            handle.callback = None
        self._heap.clear()
        self._waker.close()

    def __len__(self) -> int:
        """How many deadlines are pending."""
        return len(self._heap) - self._cancelled

    def lateness(self) -> Lateness:
        """Asked against got, so far."""
        kept = sorted(self._late[: min(self._fired, _RING)])
        if not kept:
            return Lateness(0, 0, 0, 0)
        last = len(kept) - 1
        return Lateness(self._fired, kept[last // 2], kept[-(-last * 99 // 100)], kept[last])

    def _forget(self) -> None:
        """A handle was cancelled: its place in the heap is freed when it is reached, or when half of them are dead."""
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def _arm(self) -> None:
        """Makes the waker wait for the earliest pending deadline.

        A cancelled deadline stays armed until something else is asked for: one idle wake-up at most is cheaper than a
        system call for each cancel.
        """
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
            self._cancelled -= 1
        deadline = max(1, heap[0][0]) if heap else 0
        if deadline != self._armed:
            self._armed = deadline
            self._waker.arm(deadline)

    def _fire(self) -> None:
        """Runs what is due; the waker calls it on the loop."""
        heap = self._heap
        now = self._clock()
        due: list[TimerHandle] = []
        while heap and (heap[0][0] <= now or heap[0][2].callback is None):
            handle = heapq.heappop(heap)[2]
            if handle.callback is None:
                self._cancelled -= 1
            else:
                handle._queued = False
                due.append(handle)
        self._armed = -1  # the waker has fired (or was early): arm it anew in any case
        self._arm()
        for handle in due:
            callback = handle.callback
            if callback is None:
                continue  # cancelled by an earlier callback of this round
            handle.callback = None
            self._late[self._fired % _RING] = self._clock() - handle._due_ns
            self._fired += 1
            try:
                callback()
            except Exception as error:
                self._loop.call_exception_handler({"message": "a timer's callback failed", "exception": error})


class _TimeSpec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


def has_timerfd() -> bool:
    """Whether the system has timerfd (Linux)."""
    return sys.platform.startswith("linux")


class _TimerfdWaker:
    """One timerfd with absolute times, read by the loop.

    libc is called through ctypes, also where ``os.timerfd_create`` exists (Python 3.13): these calls keep the GIL, and
    giving it up for a call of half a microsecond could cost a switch interval. The descriptor is never read: arming
    anew resets its count, which makes it unreadable again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> None:
        libc = ctypes.PyDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._settime.restype = ctypes.c_int
        self._fd = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), f"timerfd_create: {os.strerror(ctypes.get_errno())}")
        self._spec = _TimerSpec()
        self._value = self._spec.value
        self._address = ctypes.addressof(self._spec)
        self._loop = loop
        loop.add_reader(self._fd, fire)

    def arm(self, deadline_ns: int) -> None:
        self._value.tv_sec, self._value.tv_nsec = divmod(deadline_ns, _SECOND)
        if self._settime(self._fd, _TFD_TIMER_ABSTIME, self._address, None) != 0:
            raise OSError(ctypes.get_errno(), f"timerfd_settime: {os.strerror(ctypes.get_errno())}")

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        os.close(self._fd)


class _ThreadWaker:
    """A thread that waits for the armed time and then wakes the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[], None], clock: Clock) -> None:
        self._loop = loop
        self._on_loop = fire
        self._clock = clock
        self._condition = threading.Condition()
        self._deadline = 0
        self._closed = False
        self._thread = threading.Thread(target=self._wait, name="workbench-timers", daemon=True)
        self._thread.start()

    def arm(self, deadline_ns: int) -> None:
        with self._condition:
            self._deadline = deadline_ns
            self._condition.notify()

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join()

    def _fire(self) -> None:
        if not self._closed:
            self._on_loop()

    def _wait(self) -> None:
        set_timer_slack()
        with self._condition:
            while not self._closed:
                left = self._deadline - self._clock() if self._deadline else None
                if left is None or left > 0:
                    self._condition.wait(None if left is None else min(left / _SECOND, threading.TIMEOUT_MAX))
                    continue
                self._deadline = 0
                try:
                    self._loop.call_soon_threadsafe(self._fire)
                except RuntimeError:  # the loop was closed before the timers
                    return
