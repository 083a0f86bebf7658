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
        self._thread_id = 0

    def adopt_thread(self) -> None:
        """Says that the calling thread is the loop's."""
        self._thread_id = threading.get_ident()

    @property
    def on_loop(self) -> bool:
        """Whether the calling thread is the loop's."""
        return threading.get_ident() == self._thread_id

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Has the loop call ``callback(*args)``. Thread-safe; lost when the loop is closed."""
        self._calls.append((callback, args))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                self._calls.clear()

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
            callback, args = calls.popleft()
            try:
                callback(*args)
            except Exception as error:
                self._loop.call_exception_handler({"message": "a posted call failed", "exception": error})
