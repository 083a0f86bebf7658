"""One request through a model.py on the thread that calls: what the model raises is raised, as it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from workbench.backends._child.runner import ModelError
from workbench.backends.base import SERVER, Execution, InstanceSpec, LogLevel, ModelContext, Origin
from workbench.backends.custom_metrics import CustomMetrics
from workbench.backends.python import interpreter, model_args, model_file, places
from workbench.backends.python_borrowed import borrowed
from workbench.backends.python_thread import ThreadInstance
from workbench.clock import monotonic_ns
from workbench.errors import BackendError, TimedOut, Unsupported, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse

Ask = Callable[[InferenceRequest], Iterable[InferenceResponse]]
"""Sends a nested request somewhere; gives its responses as they come, the final one last."""


class Knows(Protocol):
    """Who knows about the other models: a server that serves them."""

    def is_decoupled(self, name: str, version: int) -> bool:
        """Whether a model answers any number of times; False for one that is not known."""

    def is_ready(self, name: str, version: int) -> bool:
        """Whether a model takes requests; -1 is any version."""


class Nobody:
    """Outside of any server."""

    def is_decoupled(self, name: str, version: int) -> bool:
        """There is no such model."""
        return False

    def is_ready(self, name: str, version: int) -> bool:
        """There is no such model."""
        return False


class ReplayHost:
    """What a model asks of the engine, outside of one: nested requests go through ``ask``, log lines are printed.

    ``knows`` is asked about other models.
    """

    clock = staticmethod(monotonic_ns)

    def __init__(self, ask: Ask, say: Callable[[str], None], knows: Knows | None = None) -> None:
        self._ask = ask
        self._say = say
        self._knows = knows or Nobody()
        self.metrics = CustomMetrics()
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="workbench-replay")
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="workbench-replay-loop", daemon=True)
        self._thread.start()

    def __enter__(self) -> ReplayHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.loop.close()

    def infer(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> Callable[[], None]:
        """A nested request (BLS)."""
        cancelled = threading.Event()

        def run() -> None:
            try:
                for response in self._ask(request):
                    if cancelled.is_set():
                        return
                    on_response(response)
            except WorkbenchError as error:
                on_response(InferenceResponse(request.model_name, request.model_version, error=error))

        self._threads.submit(run)
        return cancelled.set

    def log(
        self, level: LogLevel, message: str, *, model: str = "", instance: str = "", origin: Origin = SERVER
    ) -> None:
        """A line of the model's log; what it prints and raises appears here by itself."""
        if origin.source in ("server", "logger"):
            self._say(f"{level}: {message}")

    def instance_state(self, instance: str, healthy: bool, why: str, *, gone: bool = False) -> None:
        """There is no process that could die."""

    def is_decoupled(self, name: str, version: int) -> bool:
        """Whether a model answers any number of times."""
        return self._knows.is_decoupled(name, version)

    async def load_model(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """The models that serve stay as they are."""
        raise Unsupported(f"a request that is replayed loads no models: '{name}' stays as it is")

    async def unload_model(self, name: str, unload_dependents: bool) -> None:
        """The models that serve stay as they are."""
        raise Unsupported(f"a request that is replayed unloads no models: '{name}' stays as it is")

    async def is_model_ready(self, name: str, version: int) -> bool:
        """Whether a model takes requests."""
        return self._knows.is_ready(name, version)


def replay(
    context: ModelContext,
    request: InferenceRequest,
    timeout_s: float,
    *,
    shared: Path | None = None,
    say: Callable[[str], None] = print,
) -> list[InferenceResponse]:
    """Imports the model's file, initializes the model and executes a batch of this one request; gives its responses.

    After a success the model is finalized. After an error it is not: a debugger looks at it still.

    Args:
        context: which model; its host is a ``ReplayHost``.
        request: the request, as the engine has checked it.
        timeout_s: how long responses may take to come after ``execute`` has returned (decoupled).
        shared: the model.py of a Python-based backend, for a model of one.
        say: is told what is not as in the model's own environment.

    Raises:
        Exception: whatever the model raised.
        WorkbenchError: the model has answered with an error, or with something that is no answer.
        TimedOut: a decoupled model did not end the request in time.
        Unsupported: the model's own environment (EXECUTION_ENV_PATH) has another version of Python.
    """
    __tracebackhide__ = True
    spec = InstanceSpec(f"{context.name}_replay", "KIND_CPU", 0, 0)
    file = shared or model_file(context)
    with borrowed(context.name, interpreter(context), file.parent, say):
        instance = ThreadInstance(context, spec, model_args(context), file, places(context, shared))
        try:
            answers = _run(context, instance, request, timeout_s)
        except BaseException:
            instance.abandon()
            raise
        instance.close()
    for answer in answers:
        if answer.error is not None:
            raise answer.error
    return answers


def _run(
    context: ModelContext, instance: ThreadInstance, request: InferenceRequest, timeout_s: float
) -> list[InferenceResponse]:
    __tracebackhide__ = True
    raised: list[BaseException] = []
    instance.on_error(raised.append)
    try:
        instance.open()
    except BackendError as error:
        cause = error.__cause__
        raise error if cause is None or isinstance(cause, ModelError) else cause from None
    answers: list[InferenceResponse] = []
    over = threading.Event()

    def respond(index: int, response: InferenceResponse) -> None:
        answers.append(response)
        if response.final:
            over.set()

    execution = Execution([request], respond, _ignore, _never, compute_start=monotonic_ns(), rows=(1,))
    try:
        instance.execute(execution)
    except BackendError:
        if raised and not isinstance(raised[0], ModelError):
            raise raised[0] from None
        raise
    if not over.wait(timeout_s):
        raise TimedOut(f"model '{context.name}' did not end the request within {timeout_s:g} s")
    return answers


def _ignore(error: Any) -> None:
    """Nobody waits for the end of the batch: ``execute`` returns."""


def _never(index: int) -> bool:
    """Nobody cancels it."""
    return False
