"""Ctrl-C, and a notebook's interrupt, as a stop: what was measured until then is kept."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType


@contextlib.contextmanager
def interrupt_stops(stop: threading.Event) -> Iterator[None]:
    """While this is open, an interrupt sets ``stop`` in place of raising; a second one raises KeyboardInterrupt.

    On the main thread, and where nobody else handles interrupts; elsewhere it changes nothing.
    """
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def heard(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            signal.default_int_handler(number, frame)
        stop.set()

    signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def do_all(actions: Sequence[Callable[[], object]], failed: Callable[[int, Exception], None]) -> None:
    """Does everything in turn, on a thread of its own, and waits: no interrupt keeps it from that.

    ``failed`` hears of the action (its index) that raised.
    """
    begun, finished = threading.Lock(), threading.Event()

    def work() -> None:
        if not begun.acquire(blocking=False):
            return  # an interrupt came while it was started: it runs already
        try:
            for index, action in enumerate(actions):
                try:
                    action()
                except Exception as error:
                    failed(index, error)
        finally:
            finished.set()

    while True:
        # an interrupt comes anywhere, so nothing may stand outside of ``try``, as what a ``with`` does at its end would
        try:
            if not begun.locked():
                try:
                    threading.Thread(target=work, name="restore").start()
                except RuntimeError:  # there is no thread to be had: here an interrupt may come between two actions
                    work()
            finished.wait()
            return
        except KeyboardInterrupt:
            pass
