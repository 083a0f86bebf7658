"""The event loop of a model: its coroutines run on it, whichever of the model's threads waits for one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any


class SharedLoop:
    """One loop for all threads of a model, as in Triton: what one coroutine has bound to it, another may use.

    A thread that waits for a coroutine runs the loop itself; while another one does, it waits. So ``execute`` stays on
    its own thread, where a debugger finds it, and nothing runs while nobody waits. In a notebook's cell another loop
    runs on that thread: it is set aside meanwhile.
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
            with _set_aside():
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


@contextlib.contextmanager
def _set_aside() -> Iterator[None]:
    """For the time of a ``with``, no loop runs on this thread as far as asyncio knows.

    ``asyncio`` gives those who make loops these functions; from 3.12 on it keeps the running task beside the loop.
    """
    running = asyncio._get_running_loop()
    if running is None:
        yield
        return
    swap: Any = getattr(asyncio.tasks, "_swap_current_task", None)
    task = swap(running, None) if swap is not None else None
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(running)
        if swap is not None:
            swap(running, task)
