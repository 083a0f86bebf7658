"""Calls from other threads onto the loop, with one wake-up for many."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Inbox:
    """A queue of calls that the loop makes in order.

    Waking a loop costs a system call; while one wake-up is under way further posts ride along with it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._woken = False
        self.closed = False
        self._thread_id = 0

    def adopt_thread(self) -> None:
        """Says that the calling thread is the loop's."""
        self._thread_id = threading.get_ident()

    @property
    def on_loop(self) -> bool:
        """Whether the calling thread is the loop's."""
        return threading.get_ident() == self._thread_id

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Has the loop call ``callback(*args)``. Thread-safe. Made at once when the loop has ended."""
        self._calls.append((callback, args))
        if self.closed:
            self._drain()
        elif not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop ended just now: nobody else may come to make the call
                self._drain()

    def close(self) -> None:
        """The loop has ended: makes the calls that it did not get to, and every further one where it is posted."""
        self.closed = True
        self._drain()

    def call(self, function: Callable[[], T], timeout_s: float | None = None) -> T:
        """Runs ``function`` on the loop and gives its result; at once when already there, or when no loop runs."""
        if self.on_loop or not self._loop.is_running():
            return function()
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self.post(run)
        return future.result(timeout_s)

    def _drain(self) -> None:
        # Cleared first: whoever posts from here on wakes the loop anew, whoever posted before is in the queue.
        self._woken = False
        calls = self._calls
        for _ in range(len(calls)):
            try:
                callback, args = calls.popleft()
            except IndexError:  # after close() several threads may be here
                return
            try:
                callback(*args)
            except Exception as error:
                self._loop.call_exception_handler({"message": "a posted call failed", "exception": error})
