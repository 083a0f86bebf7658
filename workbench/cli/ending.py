"""A verb that is told to end, by a signal or by a closed terminal, ends as after Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """While this is open, SIGTERM and SIGHUP raise KeyboardInterrupt: a configuration that was changed is put back."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    with handled_by(interrupt, "SIGTERM", "SIGHUP"):
        yield


@contextlib.contextmanager
def handled_by(handler: Callable[[int, object], None], *names: str) -> Iterator[None]:
    """While this is open, the signals of these names that there are go to ``handler``; only on the main thread."""
    names = tuple(name for name in names if hasattr(signal, name))
    if threading.current_thread() is not threading.main_thread():
        names = ()
    before = {name: signal.signal(getattr(signal, name), handler) for name in names}
    try:
        yield
    finally:
        for name, former in before.items():
            signal.signal(getattr(signal, name), former)
