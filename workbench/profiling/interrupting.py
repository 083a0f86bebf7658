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

    def work() -> None:
        for index, action in enumerate(actions):
            try:
                action()
            except Exception as error:
                failed(index, error)
        finished.set()

    finished = threading.Event()
    thread = threading.Thread(target=work, name="restore")
    with contextlib.suppress(KeyboardInterrupt):
        thread.start()
    if thread.ident is None:  # interrupted before it began
        work()
    while not finished.is_set():
        with contextlib.suppress(KeyboardInterrupt):
            finished.wait()
