"""A sweep in the background: a thread with progress, stop and result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from workbench.errors import InvalidRequest
from workbench.profiling.load import Load
from workbench.profiling.point import Point
from workbench.profiling.sweep_result import Progress, SweepResult
from workbench.profiling.sweeping import Grid, Sweeper
from workbench.profiling.target import Configurable


class SweepJob:
    """Runs a sweep on a thread of its own; arguments as ``sweep``, and ``on_end``, called there last. Thread-safe.

    ``progress``, ``points``, ``result`` and ``error`` may be read at any time.
    """

    def __init__(
        self,
        target: Configurable | None,
        model: str,
        grid: Grid,
        loads: Sequence[Load],
        *,
        on_progress: Callable[[Progress], None] | None = None,
        on_end: Callable[[], None] | None = None,
        **options: Any,
    ) -> None:
        self._stop = options.pop("stop", None) or threading.Event()
        self._listener = on_progress
        self._on_end = on_end
        self._sweeper = Sweeper(target, model, grid, loads, on_progress=self._progressed, stop=self._stop, **options)
        self._thread = threading.Thread(target=self._run, name=f"sweep-{model}", daemon=True)
        self._done = threading.Event()
        self.model = model
        self.progress = Progress(0, self._sweeper.total, float("nan"))
        self.result: SweepResult | None = None
        self.error: BaseException | None = None

    def start(self) -> SweepJob:
        """Starts it.

        Raises:
            InvalidRequest: it was started before.
        """
        if self._thread.ident is not None:
            raise InvalidRequest("this sweep was started already", hint="make a new SweepJob")
        self._thread.start()
        return self

    def stop(self, timeout_s: float | None = None) -> SweepResult | None:
        """Ends it at once, keeps what was measured, restores the configuration; waits for that up to ``timeout_s``."""
        self._stop.set()
        return self.wait(timeout_s) if self._thread.ident is not None else None

    def wait(self, timeout_s: float | None = None) -> SweepResult | None:
        """Waits for its end and gives the result; None when ``timeout_s`` is over first.

        Raises:
            BaseException: what ended the sweep, if it was an error.
        """
        if not self._done.wait(timeout_s):
            return None
        if self.error is not None:
            raise self.error
        return self.result

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._thread.ident is not None and not self._done.is_set()

    @property
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._done.is_set()

    @property
    def points(self) -> tuple[Point, ...]:
        """What has been measured so far."""
        return tuple(self._sweeper.points)

    def _run(self) -> None:
        try:
            self.result = self._sweeper.run()
        except BaseException as error:
            self.error = error
        finally:
            if self._on_end is not None:
                self._on_end()
            self._done.set()

    def _progressed(self, progress: Progress) -> None:
        self.progress = progress
        if self._listener is not None:
            try:
                self._listener(progress)
            except Exception:
                self._listener = None  # whoever listens must not end the sweep

    def __repr__(self) -> str:
        state = "running" if self.running else "done" if self.done else "not started"
        return f"SweepJob of {self.model}: {state}, {self.progress.done} of {self.progress.total} points"
