"""An engine's loop and thread: how they start, how they stop, and how other threads get something done on them."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from workbench.backends.custom_metrics import CustomMetrics
from workbench.clock import Clock, monotonic_ns
from workbench.engine.captured import CapturedRequests
from workbench.engine.configure import Configurator
from workbench.engine.core import EngineCore, new_loop
from workbench.engine.leases import Leases
from workbench.engine.lifecycle import Lifecycle
from workbench.engine.options import EngineOptions
from workbench.engine.stalls import StallWatch
from workbench.engine.ticket import OnResponse, Ticket
from workbench.engine.timers import set_timer_slack
from workbench.errors import InvalidRequest, LoadFailed, NotReady, WorkbenchError
from workbench.protocol.tensors import InferenceRequest
from workbench.records import EventLog, LogSettings, RecordRing

T = TypeVar("T")

_SWITCH_INTERVAL_S = 0.0005
_EXIT_TIMEOUT_S = 2.0
_SETTLING_S = 0.1


class RunningEngine:
    """The thread with the event loop on which an engine's models live; see ``InferenceEngine``."""

    loop: asyncio.AbstractEventLoop

    def __init__(
        self, options: EngineOptions, *, clock: Clock = monotonic_ns, log_settings: LogSettings | None = None
    ) -> None:
        self.options = options
        self.records = RecordRing(options.record_capacity)
        self.records.settle = self._settle_records
        self.events = EventLog(clock=clock)
        self.captured = CapturedRequests()
        self.custom_metrics = CustomMetrics()
        self.log_settings = log_settings or LogSettings()
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._core: EngineCore
        self._lifecycle: Lifecycle
        self._configurator: Configurator
        self._leases: Leases
        self._watch: StallWatch
        self._stopping = False
        self._running = False
        self._starting = True
        self._previous_switch: float | None = None
        self._failure: BaseException | None = None
        self._poller: asyncio.Task[None] | None = None
        self._stop_lock = threading.Lock()
        self._stopped: asyncio.Event | None = None

    # ---- start and stop

    def start(self) -> None:
        """Starts the loop and loads the startup models; returns when they are loaded or have failed.

        Raises:
            LoadFailed: a model failed and ``exit_on_error`` is set; the engine is stopped again.
            WorkbenchError: a repository or the options are wrong.
        """
        if self._thread is not None:
            raise InvalidRequest("the engine has been started already")
        started = threading.Event()
        self.loop = new_loop()
        if self.options.lower_switch_interval:
            self._previous_switch = sys.getswitchinterval()
            sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._thread = threading.Thread(target=self._main, args=(started,), name="workbench-engine", daemon=True)
        self._thread.start()
        started.wait()
        if self._failure is not None:
            self._thread.join()
            self._restore_switch_interval()
            raise self._failure
        # an interpreter that ends under a running loop may crash
        atexit.register(self._at_exit)
        try:
            failures = self._run(self._load_startup())
        except BaseException:
            self.stop()
            raise
        self._starting = False
        if failures and self.options.exit_on_error:
            self.stop()
            raise LoadFailed("\n".join(error.message for error in failures), hint=failures[0].hint)

    def _at_exit(self) -> None:
        with contextlib.suppress(WorkbenchError):
            self.stop(_EXIT_TIMEOUT_S)

    def _main(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self._set_up()
        except BaseException as error:  # whoever waits in start() is told, or would wait for ever
            self._failure = error
            self.loop.close()
            started.set()
            return
        self.loop.call_soon(self._watch.start)
        self._running = True
        self.loop.call_soon(started.set)
        try:
            self.loop.run_forever()
            self._cancel_what_is_left()
        finally:
            self._running = False
            self._core.inbox.close()
            self.loop.close()

    def _set_up(self) -> None:
        set_timer_slack()
        kept = self.records, self.events, self.captured, self.custom_metrics, self.log_settings
        self._core = EngineCore(self.options, self.loop, self._clock, *kept)
        self.loop.set_exception_handler(self._on_loop_error)
        for note in self._core.placement.notes():
            self.events.append("log", "", note, level="warning")
        self._lifecycle = Lifecycle(self._core, self._submit_nested)
        self._configurator = Configurator(self._core, self._lifecycle)
        self._leases = Leases(self._core, self._configurator)
        self._watch = StallWatch(self.loop, self._clock)

    def _cancel_what_is_left(self) -> None:
        """Whoever waits on another thread for work that did not end in time gets an error instead of waiting on."""
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left, timeout=1.0))

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = context.get("message", "") + (f": {type(error).__name__}: {error}" if error is not None else "")
        self.events.append("log", "", text, level="error")

    async def _load_startup(self) -> list[WorkbenchError]:
        names = await self._core.on_loader(self._lifecycle.startup_names)
        failures = await self._lifecycle.composing.load_all(names)
        if self.options.control_mode == "poll" and self.options.poll_s > 0:
            self._poller = self._core.spawn(self._poll())
        return failures

    async def _poll(self) -> None:
        """Poll mode: loads what is new or modified, unloads what is gone (7.5)."""
        complaint = ""
        while not self._stopping:
            await asyncio.sleep(self.options.poll_s)
            try:
                names = await self._core.on_loader(self._lifecycle.startup_names)
            except (WorkbenchError, OSError) as error:
                # a repository that cannot be read now (a network home, say) may be back at the next poll
                if str(error) != complaint:
                    complaint = str(error)
                    self.events.append("log", "", f"failed to poll the model repository: {complaint}", level="error")
                continue
            complaint = ""
            # a process that was given up is no change of the repository
            await self._lifecycle.composing.load_all(names, revive=False)
            for name in [name for name, entry in self._lifecycle.entries.items() if entry.ready()]:
                if name not in names:
                    await self._lifecycle.unload(name)

    def stop(self, timeout_s: float = 30.0) -> None:
        """Refuses new requests, lets running ones finish, unloads every model, ends the thread.

        What has not finished after ``timeout_s`` is answered with an error. May be called twice, also from two threads:
        each returns at the end.
        """
        if self._running and self._core.inbox.on_loop:
            raise InvalidRequest("stop() blocks and cannot be called on the engine's own thread; use stop_async()")
        with self._stop_lock:
            self._stop(timeout_s)

    def _stop(self, timeout_s: float) -> None:
        thread = self._thread
        if thread is None or not thread.is_alive() or not self._running:
            return
        with contextlib.suppress(RuntimeError):
            asyncio.run_coroutine_threadsafe(self.stop_async(timeout_s), self.loop).result()
            self.loop.call_soon_threadsafe(self.loop.stop)
        thread.join()
        self._core.join_threads()
        atexit.unregister(self._at_exit)
        self._restore_switch_interval()

    def _restore_switch_interval(self) -> None:
        if self._previous_switch is not None:
            sys.setswitchinterval(self._previous_switch)

    async def stop_async(self, timeout_s: float = 30.0) -> None:
        """What ``stop`` does on the loop, which goes on running; a second call waits for the end of the first one."""
        if self._stopped is not None:
            await self._stopped.wait()
            return
        self._stopped = asyncio.Event()
        self._stopping = True
        try:
            await self._shut_down(timeout_s)
        finally:
            self._stopped.set()

    async def _shut_down(self, timeout_s: float) -> None:
        core, lifecycle = self._core, self._lifecycle
        if self._poller is not None:
            self._poller.cancel()
        deadline = self._clock() + int(timeout_s * 1e9)
        models = lifecycle.all_models()
        for model in models:
            model.drain()
        while any(model.open_requests for model in models) and self._clock() < deadline:
            await asyncio.sleep(0.005)
        for model in models:
            if model.open_requests:
                core.events.append("log", model.name, "Exit timeout expired. Exiting immediately.", level="warning")
                model.abandon(NotReady("Exit timeout expired. Exiting immediately."))
        # the last loaded goes first: it may need what was there before it
        for name, _ in sorted(lifecycle.entries.items(), key=lambda item: -item[1].generation):
            core.spawn(lifecycle.unload(name))
        while core.tasks and (left := max(1.0, (deadline - self._clock()) / 1e9)):
            _, late = await asyncio.wait(list(core.tasks), timeout=left)
            if late:
                core.events.append("log", "", f"{len(late)} tasks did not end in time", level="warning")
                break
        self._watch.stop()
        core.close()

    def _submit_nested(self, request: InferenceRequest, on_response: OnResponse) -> Ticket:
        """A request of a running model: it is taken while the server stops, so that what runs can finish."""
        return self._lifecycle.lookup(request.model_name, request.model_version).accept(request, on_response)

    # ---- work for the loop

    def _refuse_when_stopping(self) -> None:
        if self._stopping:
            raise NotReady("Server exiting")

    def _check_blocking(self) -> None:
        if not self._running:
            raise NotReady("the engine is not running", hint="call start() first")
        if self._core.inbox.on_loop:
            raise InvalidRequest("this call blocks; on the engine's own thread use submit() or the ..._async methods")

    def _run(self, work: Awaitable[T]) -> T:
        try:
            self._check_blocking()
        except WorkbenchError:
            close = getattr(work, "close", None)
            if close is not None:
                close()
            raise
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop).result()  # type: ignore[arg-type]
        except CancelledError:
            raise NotReady("the engine ended before this was done") from None

    def _settle_records(self) -> None:
        """Lets the loop end what it is at: the requests of a batch are written down when all of it is answered."""
        if self._running and not self._core.inbox.on_loop:
            passed = threading.Event()
            self._core.inbox.post(passed.set)
            passed.wait(_SETTLING_S)

    def _ask(self, function: Callable[[], T]) -> T:
        """Answers a question on the loop, so that what it reads is of one moment."""
        if not hasattr(self, "_core"):
            raise NotReady("the engine is not running", hint="call start() first")
        return self._core.inbox.call(function)
