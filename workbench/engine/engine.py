"""The engine: models on one event loop of their own, in one thread of their own."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import workbench.engine.questions as questions
from workbench.backends.custom_metrics import CustomMetrics
from workbench.clock import Clock, monotonic_ns, wall_ms
from workbench.config import Edit
from workbench.engine.captured import CapturedRequests
from workbench.engine.configure import Configurator
from workbench.engine.core import EngineCore, new_loop
from workbench.engine.lifecycle import Lifecycle
from workbench.engine.options import ConfigState, ConfigureResult, EngineOptions, SaveResult
from workbench.engine.sequences import late_refusal
from workbench.engine.snapshot import EngineSnapshot, version_snapshot
from workbench.engine.stalls import StallWatch
from workbench.engine.ticket import OnResponse, Ticket
from workbench.engine.timers import set_timer_slack
from workbench.engine.validation import DECOUPLED
from workbench.errors import InvalidRequest, LoadFailed, NotReady, TimedOut, Unsupported, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse
from workbench.records import EventLog, RecordRing
from workbench.repository.models import list_models

T = TypeVar("T")

_SWITCH_INTERVAL_S = 0.0005
_EXIT_TIMEOUT_S = 2.0


class InferenceEngine:
    """Runs the models of one or more repositories.

    ``start`` makes a thread with an event loop (uvloop where there is one); schedulers and front ends live there, and
    the methods named ``..._async`` and ``submit`` belong there. Everything else may be called from any thread.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self, options: EngineOptions, *, clock: Clock = monotonic_ns) -> None:
        self.options = options
        self.records = RecordRing(options.record_capacity)
        self.events = EventLog(clock=clock)
        self.captured = CapturedRequests()
        self.custom_metrics = CustomMetrics()
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._core: EngineCore
        self._lifecycle: Lifecycle
        self._configurator: Configurator
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
        kept = self.records, self.events, self.captured, self.custom_metrics
        self._core = EngineCore(self.options, self.loop, self._clock, *kept)
        self.loop.set_exception_handler(self._on_loop_error)
        for note in self._core.placement.notes():
            self.events.append("log", "", note, level="warning")
        self._lifecycle = Lifecycle(self._core, self._submit_nested)
        self._configurator = Configurator(self._core, self._lifecycle)
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
            await self._lifecycle.composing.load_all(names)
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

    # ---- requests

    def submit(self, request: InferenceRequest, on_response: OnResponse, *, once: bool = False) -> Ticket:
        """Queues a request; ``on_response`` is called on the loop, the last time with ``final=True``. On the loop.

        Raises:
            WorkbenchError: it is wrong, cannot be taken, or (``once``) is for a decoupled model; Triton's text.
        """
        model = self._lifecycle.lookup(request.model_name, request.model_version)
        if self._stopping and (text := late_refusal(model, request)):
            raise NotReady(text)
        if once and model.decoupled:
            raise Unsupported(DECOUPLED)
        return model.accept(request, on_response)

    def _submit_nested(self, request: InferenceRequest, on_response: OnResponse) -> Ticket:
        """A request of a running model: it is taken while the server stops, so that what runs can finish."""
        return self._lifecycle.lookup(request.model_name, request.model_version).accept(request, on_response)

    def infer(
        self, request: InferenceRequest, timeout_s: float | None = None, *, once: bool = False
    ) -> InferenceResponse:
        """Runs a request and waits for its last response; from any thread but the loop's. ``once``: see ``submit``.

        Raises:
            WorkbenchError: what the request failed with.
            TimedOut: no answer within ``timeout_s``; the request is cancelled.
        """
        response = None
        for response in self.infer_stream(request, timeout_s, once=once):  # noqa: B007
            pass
        assert response is not None
        return response

    def infer_stream(
        self, request: InferenceRequest, timeout_s: float | None = None, *, once: bool = False
    ) -> Iterator[InferenceResponse]:
        """Runs a request and gives its responses as they come; leaving the loop early cancels it.

        Raises:
            WorkbenchError: what the request failed with.
            TimedOut: no response within ``timeout_s`` of the one before it.
        """
        self._check_blocking()
        results: SimpleQueue[InferenceResponse] = SimpleQueue()
        cancel = self.post(request, results.put, once=once)
        done = False
        try:
            while not done:
                try:
                    result = results.get(timeout=timeout_s)
                except Empty:
                    raise TimedOut(f"no answer from model '{request.model_name}' within {timeout_s} s") from None
                done = result.final
                if result.error is not None:
                    raise result.error
                yield result
        finally:
            if not done:
                cancel()

    def post(self, request: InferenceRequest, on_response: OnResponse, *, once: bool = False) -> Callable[[], None]:
        """As ``submit``, from any thread; a refusal is a response with ``error``. Gives what cancels the request."""
        tickets: list[Ticket] = []

        def begin() -> None:
            try:
                tickets.append(self.submit(request, on_response, once=once))
            except Exception as error:  # whatever it is, somebody waits for it
                known = error if isinstance(error, WorkbenchError) else None
                refusal = known or InvalidRequest(f"{type(error).__name__}: {error}")
                on_response(InferenceResponse(request.model_name, request.model_version, request.id, error=refusal))

        def cancel() -> None:
            for ticket in tickets:
                ticket.cancel()

        inbox = self._core.inbox
        inbox.post(begin)
        return lambda: inbox.post(cancel)  # behind begin(), which a loop that is held up may not have come to yet

    # ---- life cycle and configuration

    async def load_async(
        self, name: str, *, config: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Loads or reloads a model (7.9, 7.10); ``config`` is JSON, ``files`` maps paths to contents. On the loop.

        Raises:
            WorkbenchError: with Triton's texts; what served before still does.
        """
        self._refuse_when_stopping()
        await self._core.protect(self._lifecycle.load(name, config=config, files=files))

    async def unload_async(self, name: str, *, unload_dependents: bool = False) -> None:
        """Starts unloading a model (7.11). On the loop."""
        await self._core.protect(self._lifecycle.unload(name, unload_dependents=unload_dependents))

    async def configure_async(self, name: str, edits: Iterable[Edit], *, dry_run: bool = False) -> ConfigureResult:
        """Applies edits in memory, in place where that is possible. On the loop.

        Raises:
            ConfigError: an edit or its result is refused; nothing has changed.
            LoadFailed: the change needed a reload and that failed; what served before still does.
        """
        self._refuse_when_stopping()
        return await self._core.protect(self._configurator.configure(name, list(edits), dry_run=dry_run))

    async def save_async(self, name: str) -> SaveResult:
        """Writes the configuration in force to config.pbtxt. On the loop."""
        return await self._core.protect(self._configurator.save(name))

    async def revert_async(self, name: str) -> ConfigureResult:
        """Goes back to the file's configuration. On the loop."""
        self._refuse_when_stopping()
        return await self._core.protect(self._configurator.revert(name))

    def load(self, name: str, *, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """As ``load_async``, from any thread but the loop's."""
        self._run(self.load_async(name, config=config, files=files))

    def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """As ``unload_async``, from any thread but the loop's."""
        self._run(self.unload_async(name, unload_dependents=unload_dependents))

    def configure(self, name: str, edits: Iterable[Edit], *, dry_run: bool = False) -> ConfigureResult:
        """As ``configure_async``, from any thread but the loop's."""
        return self._run(self.configure_async(name, edits, dry_run=dry_run))

    def save(self, name: str) -> SaveResult:
        """As ``save_async``, from any thread but the loop's."""
        return self._run(self.save_async(name))

    def revert(self, name: str) -> ConfigureResult:
        """As ``revert_async``, from any thread but the loop's."""
        return self._run(self.revert_async(name))

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

    def _ask(self, function: Callable[[], T]) -> T:
        """Answers a question on the loop, so that what it reads is of one moment."""
        if not hasattr(self, "_core"):
            raise NotReady("the engine is not running", hint="call start() first")
        return self._core.inbox.call(function)

    # ---- questions

    def is_live(self) -> bool:
        """Whether the server runs."""
        return self._running

    def is_ready(self) -> bool:
        """Whether the server is ready, by ``strict_readiness`` (7.14)."""
        if not self._running or self._stopping or self._starting:
            return False
        return self._ask(lambda: self._lifecycle.is_ready(self.options.strict_readiness))

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        """Whether a model version serves; False for one that is not known (15.3)."""
        if not self._running or self._stopping:
            return False
        return self._ask(lambda: self._lifecycle.model_ready(name, version))

    def repository_index(self, ready: bool = False) -> list[dict[str, str]]:
        """Name, version, state and reason of every known version (7.13).

        Reads the repositories' directories where it is called, so not on the loop: a network home may take its time.
        """
        try:
            found = list_models(self.options.repositories)
        except WorkbenchError:
            found = {}
        return self._ask(lambda: self._lifecycle.index(found, ready=ready))

    def model_config(self, name: str, version: int = -1) -> Any:
        """The normalised ``ModelConfig`` message in force (a copy).

        Raises:
            NotFound, NotReady: texts of 7.15.
        """
        return self._ask(lambda: questions.model_config(self._lifecycle, name, version))

    def model_metadata(self, name: str, version: int = -1) -> dict[str, Any]:
        """Name, versions, platform, inputs and outputs (15.4).

        Raises:
            NotFound, NotReady: texts of 7.15.
        """
        return self._ask(lambda: questions.model_metadata(self._lifecycle, name, version))

    def config_state(self, name: str) -> ConfigState:
        """A model's configuration: applied, saved, normalised.

        Raises:
            NotFound, NotReady: it is not known, or has no configuration.
        """
        return self._ask(lambda: questions.config_state(self._lifecycle, name))

    def statistics(self, name: str = "", version: int = -1) -> dict[str, Any]:
        """Triton's statistics of the versions that serve (11.8).

        Raises:
            InvalidRequest: the model or version is not available (Triton's texts).
        """
        return self._ask(lambda: questions.statistics(self._lifecycle, name, version))

    def snapshot(self) -> EngineSnapshot:
        """What the engine is doing now."""

        def collect() -> EngineSnapshot:
            now = self._clock()
            entries = self._lifecycle.entries
            watch = self._watch
            return EngineSnapshot(
                time_ns=now,
                wall_ms=wall_ms(),
                stopping=self._stopping,
                versions=tuple(
                    version_snapshot(entries[name], number, slot, now)
                    for name in sorted(entries)
                    for number, slot in sorted(entries[name].versions.items())
                ),
                unreadable={
                    name: entry.poll_error or entry.problem
                    for name, entry in sorted(entries.items())
                    if entry.poll_error or (entry.problem and not entry.ready())
                },
                stall_count=watch.count,
                stall_ms=watch.total_ms,
                stalls=tuple(watch.recent),
                timer_lateness_us=self._core.timers.lateness().median_ns / 1000,
                last_record_seq=self.records.last_seq,
                last_event_seq=self.events.last_seq,
            )

        return self._ask(collect)
