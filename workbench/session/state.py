"""The state that panels show, free of any toolkit: a snapshot, a command queue, and who wants to be told.

One thread polls the server while somebody is subscribed, keeps a window of the last minutes, and tells subscribers at
most ten times a second. Another thread runs commands (apply, load, save) one after the other, so that no callback of
a notebook ever blocks.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from workbench.clock import monotonic_ns
from workbench.session.results import ModelTable
from workbench.session.windows import Histogram, ModelWindow, WindowTracker

if TYPE_CHECKING:
    from workbench.profiling import SweepJob
    from workbench.session.server import Server

HISTORY_S = 300.0
MIN_FLUSH_NS = 100_000_000


@dataclass(slots=True)
class Command:
    """Something asked of the server, running or done. ``error`` is what it raised."""

    id: int
    name: str
    state: Literal["queued", "running", "done", "failed"] = "queued"
    result: Any = None
    error: BaseException | None = None
    _event: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._event.is_set()

    def wait(self, timeout_s: float | None = None) -> Any:
        """Waits for the result; raises what the command raised.

        Raises:
            TimeoutError: it has not ended in time.
        """
        if not self._event.wait(timeout_s):
            raise TimeoutError(f"{self.name} has not ended after {timeout_s} s")
        if self.error is not None:
            raise self.error
        return self.result


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """What panels draw from.

    ``history[model]`` and ``device_history`` hold columns over the last five minutes, ``t_s`` in seconds (0 is now, the
    past is negative). ``age_s`` is how old this is; ``error`` says why nothing newer could be read.
    """

    server: Mapping[str, Any]
    models: ModelTable
    windows: Mapping[str, ModelWindow]
    history: Mapping[str, Mapping[str, NDArray[np.float64]]]
    histograms: Mapping[str, Histogram]
    devices: Any
    device_history: Mapping[str, NDArray[np.float64]]
    events: tuple[Any, ...]
    commands: tuple[Command, ...]
    age_s: float
    error: str


class SessionState:
    """The state of one server as panels see it."""

    def __init__(self, server: Server, *, interval_s: float = 0.5) -> None:
        self.server = server
        self._interval = interval_s
        self._lock = threading.RLock()
        self._subscribers: dict[int, Callable[[], None]] = {}
        self._ids = itertools.count(1)
        self._wake = threading.Event()
        self._closed = False
        self._poller: threading.Thread | None = None
        self._worker: threading.Thread | None = None
        self._queue: queue.SimpleQueue[tuple[Command, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._commands: deque[Command] = deque(maxlen=50)
        self._tracker = WindowTracker(HISTORY_S)
        self._models = ModelTable(())
        self._state: dict[str, Any] = {}
        self._devices: Any = None
        self._device_rows: deque[tuple[float, float, float, float]] = deque(maxlen=int(HISTORY_S / interval_s) + 1)
        self._events: deque[Any] = deque(maxlen=200)
        self._event_seq = -1
        self._error = ""
        self._polled = 0
        self._flushed = 0
        self.sweeps: list[SweepJob] = []

    # -- reading --------------------------------------------------------------------------------------------------

    def snapshot(self) -> SessionSnapshot:
        """The state now. Polls once when nobody is subscribed, so that it is never stale without saying so."""
        if self._poller is None:
            self.poll()
        with self._lock:
            now = monotonic_ns()
            return SessionSnapshot(
                server=self._about(),
                models=self._models,
                windows=self._tracker.windows(),
                history=self._tracker.history(now),
                histograms=self._tracker.histograms(),
                devices=self._devices,
                device_history=_device_columns(self._device_rows, now),
                events=tuple(self._events),
                commands=tuple(self._commands),
                age_s=(now - self._polled) / 1e9 if self._polled else float("inf"),
                error=self._error,
            )

    def poll(self) -> None:
        """Reads the server once. Never raises: what went wrong is the snapshot's ``error``."""
        try:
            state = self.server.state()
            models = self.server.models()
            statistics = self.server.statistics()
            columns = None if self.server.kind == "remote" else self.server.record_columns(self._tracker.last_seq)
            events = self.server.events(self._event_seq)
            devices = None if self.server.kind == "remote" else self.server.devices()
        except Exception as error:
            with self._lock:
                self._error = f"{type(error).__name__}: {error}"
            return
        with self._lock:
            now = monotonic_ns()
            self._error = ""
            self._polled = now
            self._state = state
            self._models = models
            self._tracker.update(now, statistics, columns)
            for event in events:
                self._events.append(event)
                self._event_seq = max(self._event_seq, _seq(event))
            if devices is not None:
                self._devices = devices
                self._device_rows.append(_device_row(now, devices))

    def _about(self) -> dict[str, Any]:
        return {
            "name": self.server.name,
            "url": self.server.url,
            "kind": self.server.kind,
            "pid": getattr(self.server, "pid", None),
            "control_mode": self.server.control_mode,
            **{key: value for key, value in self._state.items() if key != "models"},
        }

    # -- telling --------------------------------------------------------------------------------------------------

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls ``callback`` (on the poll thread) after each poll, at most ten times a second.

        Gives the way to stop it.
        """
        with self._lock:
            key = next(self._ids)
            self._subscribers[key] = callback
            if self._poller is None and not self._closed:
                self._poller = threading.Thread(target=self._poll_loop, name="workbench-session", daemon=True)
                self._poller.start()

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers.pop(key, None)
            self._wake.set()

        return unsubscribe

    def touch(self) -> None:
        """Polls soon, instead of at the next interval (after a command, say)."""
        self._wake.set()

    @property
    def measuring(self) -> bool:
        """Whether a sweep or a profile runs: panels then flush only when a point ends."""
        return any(job.running for job in self.sweeps)

    def _poll_loop(self) -> None:
        while True:
            with self._lock:
                if self._closed or not self._subscribers:
                    self._poller = None
                    return
            self.poll()
            self._flush()
            self._wake.wait(self._interval if not self.measuring else max(self._interval, 1.0))
            self._wake.clear()

    def _flush(self) -> None:
        with self._lock:
            now = monotonic_ns()
            if now - self._flushed < MIN_FLUSH_NS:
                return
            self._flushed = now
            callbacks = list(self._subscribers.items())
        for key, callback in callbacks:
            try:
                callback()
            except Exception as error:
                # An observer that raises is dropped: it must not take the others with it.
                with self._lock:
                    self._subscribers.pop(key, None)
                    self._error = f"a panel stopped updating: {type(error).__name__}: {error}"

    # -- commands -------------------------------------------------------------------------------------------------

    def submit(self, name: str, action: Callable[[], Any]) -> Command:
        """Queues an action for the command thread and returns at once. Commands run one after the other."""
        command = Command(next(self._ids), name)
        with self._lock:
            if self._closed:
                raise RuntimeError("the session is closed")
            self._commands.append(command)
            if self._worker is None:
                self._worker = threading.Thread(target=self._work_loop, name="workbench-commands", daemon=True)
                self._worker.start()
        self._queue.put((command, action))
        return command

    def _work_loop(self) -> None:
        while True:
            entry = self._queue.get()
            if entry is None:
                return
            command, action = entry
            command.state = "running"
            try:
                command.result = action()
                command.state = "done"
            except BaseException as error:
                command.error = error
                command.state = "failed"
            command._event.set()
            self.touch()

    def start_sweep(self, model: str, grid: Mapping[str, Any], **options: Any) -> SweepJob:
        """Starts a sweep in the background."""
        job: SweepJob = self.server.sweep(model, grid, wait=False, **options)  # type: ignore[assignment]
        with self._lock:
            self.sweeps.append(job)
        return job

    def close(self) -> None:
        """Stops the threads and any sweep; subscribers are told no more."""
        with self._lock:
            self._closed = True
            self._subscribers.clear()
            jobs = list(self.sweeps)
            worker = self._worker
        for job in jobs:
            if job.running:
                job.stop(30.0)
        self._wake.set()
        if worker is not None:
            self._queue.put(None)
            if worker is not threading.current_thread():
                worker.join(30.0)
        poller = self._poller
        if poller is not None and poller is not threading.current_thread():
            poller.join(10.0)


def _seq(event: Any) -> int:
    return int(event["seq"] if isinstance(event, Mapping) else event.seq)


def _device_row(now: int, devices: Mapping[str, Any]) -> tuple[float, float, float, float]:
    nan = float("nan")
    gpus = devices.get("gpus") or []
    gpu = float(np.mean([each.get("utilization") or 0.0 for each in gpus])) if gpus else nan
    cpu = devices.get("cpu", {})
    return (float(now), float(cpu.get("utilization", nan)), float(cpu.get("memory_used_bytes", nan)), gpu)


def _device_columns(rows: deque[tuple[float, float, float, float]], now: int) -> dict[str, NDArray[np.float64]]:
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    return {
        "t_s": (table[:, 0] - now) / 1e9,
        "cpu_percent": 100 * table[:, 1],
        "memory_bytes": table[:, 2],
        "gpu_utilization": table[:, 3],
    }
