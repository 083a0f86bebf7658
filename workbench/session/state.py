"""The state that panels show, free of any toolkit: a snapshot, a command queue, and who wants to be told.

One thread polls the server while somebody is subscribed, keeps a window of the last minutes, and tells subscribers at
most ten times a second; while something is measured, at the end of each point and at most once in between (a browser's
repaint costs a core). Another thread runs commands (apply, load, save) one after the other, so that no callback of a
notebook ever blocks.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from workbench.clock import monotonic_ns
from workbench.errors import Cancelled, NotReady
from workbench.session.logs import LogBook, LogFilter, LogLines, read_into, wall_ahead_ms
from workbench.session.recent import RecentRecords
from workbench.session.results import ModelTable
from workbench.session.server import model_table
from workbench.session.windows import Histogram, ModelWindow, WindowTracker

if TYPE_CHECKING:
    from workbench.profiling import SweepJob
    from workbench.records import Event, RecordColumns
    from workbench.session.server import Server

HISTORY_S = 300.0
MIN_FLUSH_S = 0.1
MEASURING_FLUSH_S = 5.0
"""While a point is measured, subscribers hear of nothing for this long, and then once."""
KEPT_SWEEPS = 20
_GIVE_UP_S = 1.0


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
    past is negative). ``age_s`` is how old this is; ``error`` says why nothing newer could be read. ``instances`` are
    those of every version with ``model`` and ``version``, as the server's state has them; none of a remote Triton.
    """

    server: Mapping[str, Any]
    models: ModelTable
    windows: Mapping[str, ModelWindow]
    history: Mapping[str, Mapping[str, NDArray[np.float64]]]
    histograms: Mapping[str, Histogram]
    devices: Mapping[str, Any] | None
    device_history: Mapping[str, NDArray[np.float64]]
    events: tuple[Event, ...]
    commands: tuple[Command, ...]
    age_s: float
    error: str
    instances: tuple[Mapping[str, Any], ...] = ()


class SessionState:
    """The state of one server as panels see it."""

    def __init__(self, server: Server, *, interval_s: float = 0.5) -> None:
        self.server = server
        self._interval = interval_s
        self._lock = threading.RLock()
        self._polling = threading.Lock()
        self._calling = threading.RLock()
        self._subscribers: dict[int, Callable[[], None]] = {}
        self._ids = itertools.count(1)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._poller: threading.Thread | None = None
        self._worker: threading.Thread | None = None
        self._queue: queue.SimpleQueue[tuple[Command, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._commands: deque[Command] = deque(maxlen=50)
        self._tracker = WindowTracker(HISTORY_S)
        self._models = ModelTable(())
        self._state: dict[str, Any] = {}
        self._devices: dict[str, Any] | None = None
        self._device_rows: deque[tuple[float, float, float, float]] = deque(maxlen=int(HISTORY_S / interval_s) + 1)
        self._events: deque[Event] = deque(maxlen=200)
        self._event_seq = -1
        self._error = ""
        self._polled = 0
        self._server_ahead = 0
        self._windows_open = 0
        self._swept: set[str] = set()
        self._boundary = False
        self.sweeps: list[SweepJob] = []
        self._book: LogBook | None = None
        self._recent: RecentRecords | None = None

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
                history=self._tracker.history(now + self._server_ahead),
                histograms=self._tracker.histograms(),
                devices=self._devices,
                device_history=_device_columns(self._device_rows, now),
                events=tuple(self._events),
                commands=tuple(self._commands),
                age_s=(now - self._polled) / 1e9 if self._polled else float("inf"),
                error=self._error,
                instances=tuple(
                    {"model": version["model"], "version": version["version"], **instance}
                    for version in self._state.get("versions", ())
                    for instance in version.get("instances", ())
                ),
            )

    def poll(self) -> None:
        """Reads the server once. Never raises: what went wrong is the snapshot's ``error``.

        Once the state is closed nothing is read any more: the snapshot stays what it was and ages.
        """
        with self._polling:
            if self.closed:
                return
            try:
                reading = self._read()
            except Exception as error:
                with self._lock:
                    self._error = f"{type(error).__name__}: {error}"
                return
            with self._lock:
                self._take(reading)

    def _read(self) -> _Reading:
        server = self.server
        state, remote = server.state(), server.kind == "remote"
        return _Reading(
            state=state,
            models=model_table(state, server.repository_index()),
            statistics=server.statistics(),
            columns=None if remote else server.record_columns(self._tracker.last_seq),
            events=[] if remote else server.events(self._event_seq),
            devices=None if remote else server.devices(),
        )

    def logs(self, wanted: LogFilter) -> LogLines:
        """The latest lines of the server (see ``Server.logs``); from the first call on each poll reads what is new.

        Raises:
            WorkbenchError: at the first call: the server does not answer, or (a remote Triton) tells no lines.
        """
        if self._book is None:
            self.server.check_logs()
            with self._polling:  # until the book is there: what a poll between the two reads would be missing in it
                book = LogBook()
                read_into(book, self.server)
                with self._lock:
                    self._book = book
        with self._lock:
            return LogLines(self._book.select(wanted), self._book.cursor, self.server.name)

    def recent_records(self, seconds: float) -> tuple[RecordColumns, int]:
        """Records of the seconds before the newest (60 at most), and the server's time; each poll reads what is new.

        Raises:
            WorkbenchError: at the first call: the server does not answer, or (a remote Triton) keeps no records.
        """
        if self._recent is None:
            with self._polling:  # until it is there: what a poll in between would be missing in it
                recent = RecentRecords()
                recent.add(self.server.record_columns())
                with self._lock:
                    self._recent = recent
        with self._lock:
            now = (self._polled or monotonic_ns()) + self._server_ahead
            return self._recent.last(seconds), now

    def request(self, seq: int) -> dict[str, Any] | None:
        """The record of one of the latest requests, as a dictionary, with ``response_ms`` and ``children``."""
        with self._lock:
            return None if self._book is None else self._book.request(seq)

    def _take(self, reading: _Reading) -> None:
        now = monotonic_ns()
        self._error = ""
        self._polled = now
        self._state = reading.state
        self._models = reading.models
        # Records carry the server's clock, which on another machine is another one.
        server_now = int(reading.state.get("time_ns") or now)
        self._server_ahead = server_now - now
        self._tracker.update(server_now, reading.statistics, reading.columns)
        if self._recent is not None and reading.columns is not None:
            self._recent.add(reading.columns)
        if self._book is not None:
            self._book.add(reading.events, reading.columns, wall_ahead_ms(reading.state))
        for event in reading.events:
            self._events.append(event)
            self._event_seq = max(self._event_seq, event.seq)
        if reading.devices is not None:
            self._devices = reading.devices
            self._device_rows.append(_device_row(now, reading.devices))

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

        Gives the way to stop it: when that has returned, the callback is not called any more.
        """
        with self._lock:
            key = next(self._ids)
            self._subscribers[key] = callback
            if self._poller is None and not self.closed:
                self._poller = threading.Thread(target=self._poll_loop, name="workbench-session", daemon=True)
                self._poller.start()

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers.pop(key, None)
                last = not self._subscribers
            if last:
                self._wake.set()
            # A call under way is waited for, unless it waits for us.
            if self._calling.acquire(timeout=_GIVE_UP_S):
                self._calling.release()

        return unsubscribe

    def touch(self) -> None:
        """Polls soon, instead of at the next interval (after a command, say)."""
        self._wake.set()

    @property
    def closed(self) -> bool:
        """Whether ``close`` has been called."""
        return self._stop.is_set()

    @property
    def watchers(self) -> int:
        """How many panels (or others) are subscribed now."""
        return len(self._subscribers)

    @property
    def measuring(self) -> bool:
        """Whether a sweep or a profile runs: subscribers then hear mostly of the ends of points."""
        return self._windows_open > 0 or any(job.running for job in tuple(self.sweeps))

    @contextmanager
    def measuring_window(self) -> Iterator[None]:
        """While this is open, subscribers are told as little as while a sweep runs."""
        with self._lock:
            self._windows_open += 1
        self.point_ended()
        try:
            yield
        finally:
            with self._lock:
                self._windows_open -= 1
            self.point_ended()

    def point_ended(self) -> None:
        """Between two points of a measurement, before the first and after the last: now telling disturbs nothing."""
        self._boundary = True
        self._wake.set()

    def begin_sweep(self, model: str) -> Callable[[], None]:
        """Takes a model for a sweep; gives the function that lets go of it.

        Raises:
            NotReady: another sweep has it: of two, the last to end would put back what the other had tried.
        """
        with self._lock:
            if model in self._swept:
                raise NotReady(f"a sweep of '{model}' runs already", hint="wait for it, or stop it first")
            self._swept.add(model)

        def end() -> None:
            with self._lock:
                self._swept.discard(model)

        return end

    def watch(self, job: SweepJob) -> None:
        """Takes a sweep in the background into ``sweeps``; of those that have ended the latest are kept."""
        with self._lock:
            self.sweeps.append(job)
            ended = [each for each in self.sweeps if each.done]
            for each in ended[: max(0, len(self.sweeps) - KEPT_SWEEPS)]:
                self.sweeps.remove(each)

    def _poll_loop(self) -> None:
        told = 0  # how often since the last point ended
        while True:
            self._wake.clear()  # whoever asked until now is served by this poll
            with self._lock:
                if self.closed or not self._subscribers:
                    self._poller = None
                    return
            told = 0 if self._boundary else told + 1
            self._boundary = False
            self.poll()
            self._flush()
            self._stop.wait(MIN_FLUSH_S)
            self._wait_for_reason(told)

    def _wait_for_reason(self, told: int) -> None:
        """Until it is time for the next poll, or somebody asks for one."""
        if not self.measuring:
            self._wake.wait(self._interval - MIN_FLUSH_S)
            return
        while self._in_window():
            self._wake.wait(MEASURING_FLUSH_S)
            if told == 0:
                return  # the one time in this point
            self._wake.clear()

    def _in_window(self) -> bool:
        return self.measuring and not self._boundary and not self.closed and bool(self._subscribers)

    def _flush(self) -> None:
        with self._lock:
            callbacks = list(self._subscribers.items())
        for key, callback in callbacks:
            with self._calling:
                if key not in self._subscribers:
                    continue
                try:
                    callback()
                except Exception as error:
                    # An observer that raises is dropped: it must not take the others with it.
                    with self._lock:
                        self._subscribers.pop(key, None)
                        self._error = f"a panel stopped updating: {type(error).__name__}: {error}"

    # -- commands -------------------------------------------------------------------------------------------------

    def submit(self, name: str, action: Callable[[], Any]) -> Command:
        """Queues an action for the command thread and returns at once. Commands run one after the other.

        Raises:
            NotReady: the state is closed.
        """
        command = Command(next(self._ids), name)
        with self._lock:
            if self.closed:
                raise NotReady(f"cannot {name}: the server has been closed here")
            self._commands.append(command)
            self._queue.put((command, action))
            if self._worker is None:
                self._worker = threading.Thread(target=self._work_loop, name="workbench-commands", daemon=True)
                self._worker.start()
        return command

    def _work_loop(self) -> None:
        while (entry := self._queue.get()) is not None:
            command, action = entry
            command.state = "running"
            try:
                if self.closed:
                    raise Cancelled(f"{command.name}: the server has been closed here before this ran")
                command.result = action()
                command.state = "done"
            except BaseException as error:
                command.error = error
                command.state = "failed"
            command._event.set()
            self.touch()

    def start_sweep(self, model: str, grid: Mapping[str, Any], **options: Any) -> SweepJob:
        """Starts a sweep in the background; it is in ``sweeps``."""
        job: SweepJob = self.server.sweep(model, grid, wait=False, **options)  # type: ignore[assignment]
        return job

    def close(self) -> None:
        """Stops the threads and any sweep (its configuration is restored first); subscribers are told no more.

        A command that runs is waited for; those that wait fail with ``Cancelled``.
        """
        with self._lock:
            self._stop.set()
            self._subscribers.clear()
            jobs, worker, poller = list(self.sweeps), self._worker, self._poller
            self._queue.put(None)
        self._wake.set()
        for job in jobs:
            if job.running:
                with contextlib.suppress(Exception):  # the job keeps its error
                    job.stop(30.0)
        for thread in (worker, poller):
            if thread is not None and thread is not threading.current_thread():
                thread.join(30.0)


@dataclass(frozen=True, slots=True)
class _Reading:
    """What one poll read."""

    state: dict[str, Any]
    models: ModelTable
    statistics: Mapping[str, Any]
    columns: RecordColumns | None
    events: list[Event]
    devices: dict[str, Any] | None


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
