"""The event loop of a model: its coroutines run on it, whichever of the model's threads waits for one."""

from __future__ import annotations

import asyncio
import threading
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

    def run(self, awaitable: Any) -> Any:
        """Waits for an awaitable; gives its result, or raises what it raised."""
        future = asyncio.run_coroutine_threadsafe(_as_coroutine(awaitable), self._loop)
        future.add_done_callback(lambda _: self._loop.stop())  # called where the loop runs
        condition = self._condition
        while True:
            with condition:
                while self._running and not future.done():
                    condition.wait()
                if future.done():
                    return future.result()
                self._running = True
            try:
                self._loop.run_forever()
            finally:
                with condition:
                    self._running = False
                    condition.notify_all()

    def close(self) -> None:
        """Ends the loop, unless a thread of the model still runs it."""
        with self._condition:
            if not self._running:
                self._loop.close()


async def _as_coroutine(awaitable: Any) -> Any:
    return await awaitable
