"""Holding a decoupled model back while what it has sent is not taken.

A model may send faster than its responses go on: an ensemble's step at ``max_inflight_requests`` takes none for a
while. What is under way of one request is bounded by ``RESPONSE_WINDOW``: beyond it the thread that sends waits, as in
Triton, where the sending thread itself carries the ensemble on. A model in a process of its own keeps count over there
and is told by ``Execution.taken`` what has been taken.
"""

from __future__ import annotations

import threading

from workbench.backends._child.wire import RESPONSE_WINDOW
from workbench.backends.base import Execution


class Flow:
    """The responses of one request that were sent and have not been taken yet.

    ``enter`` is called on the threads that send; ``take`` and ``end`` on the loop.
    """

    __slots__ = ("_changed", "_execution", "_index", "_over", "_under_way")

    def __init__(self, execution: Execution, index: int) -> None:
        self._execution = execution
        self._index = index
        self._changed = threading.Condition(threading.Lock())
        self._under_way = 0
        self._over = False

    def enter(self) -> None:
        """A response is to be sent: waits until there is room for it, or the request has ended."""
        with self._changed:
            while self._under_way >= RESPONSE_WINDOW and not self._over:
                self._changed.wait()
            self._under_way += 1

    def take(self) -> None:
        """One response has been taken."""
        with self._changed:
            self._under_way -= 1
            self._changed.notify()
        if self._execution.taken is not None:
            self._execution.taken(self._index, False)

    def end(self) -> None:
        """The request has ended: nobody waits any more, whatever is still sent goes nowhere."""
        if self._over:
            return
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self._execution.taken is not None:
            self._execution.taken(self._index, True)
