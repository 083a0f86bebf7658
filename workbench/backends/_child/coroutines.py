"""The event loop of a model: its coroutines run on it, whichever of the model's threads waits for one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class SharedLoop:
    """One loop for all threads of a model, as in Triton: what one coroutine has bound to it, another may use.

    A thread that waits for a coroutine runs the loop itself; while another one does, it waits. So ``execute`` stays on
    its own thread, where a debugger finds it, and nothing runs while nobody waits.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._condition = threading.Condition(threading.Lock())
        self._running = False

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Waits for a coroutine; gives its result, or raises what it raised."""
        with self._condition:
            alone = not self._running
            self._running = True
        if not alone:
            return self._run_beside(coroutine)
        task = self._loop.create_task(coroutine)
        task.add_done_callback(self._stop)
        self._drive(task.done)
        return task.result()

    def _run_beside(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """While another thread runs the loop; it may leave before this coroutine has ended."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        future.add_done_callback(self._stop)
        while True:
            with self._condition:
                while self._running and not future.done():
                    self._condition.wait()
                if future.done():
                    return future.result()
                self._running = True
            self._drive(future.done)

    def _drive(self, done: Callable[[], bool]) -> None:
        try:
            while not done():
                self._loop.run_forever()
                with self._condition:
                    self._condition.notify_all()
        finally:
            with self._condition:
                self._running = False
                self._condition.notify_all()

    def _stop(self, _: Any) -> None:
        """Whoever runs the loop looks whether what somebody waits for is done."""
        self._loop.stop()

    def close(self) -> None:
        """Ends the loop, unless a thread of the model still runs it."""
        with self._condition:
            if not self._running:
                self._loop.close()
