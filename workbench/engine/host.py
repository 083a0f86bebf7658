"""What a backend may ask of the engine: nested requests, log lines, news of its instances."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from workbench.backends.base import SERVER, LogLevel, Origin
from workbench.clock import Clock
from workbench.errors import InternalError, NotReady, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse

if TYPE_CHECKING:
    from workbench.engine.core import EngineCore
    from workbench.engine.model import ModelVersion
    from workbench.engine.ticket import OnResponse, Ticket

Submit = Callable[[InferenceRequest, "OnResponse"], "Ticket"]


NOT_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"


class Control(Protocol):
    """What models may do to other models; on the loop."""

    async def load(self, name: str, *, config: str | None, files: Mapping[str, bytes] | None) -> None:
        """Loads or reloads a model."""

    async def unload(self, name: str, *, unload_dependents: bool) -> None:
        """Starts unloading a model."""

    def is_decoupled(self, name: str, version: int) -> bool:
        """Whether a model that serves is decoupled."""

    async def is_model_ready(self, name: str, version: int) -> bool:
        """Whether a model version is ready, -1 for the latest."""


class ModelHost:
    """The ``BackendHost`` of one model version; ``belongs_to`` says to which, once that exists.

    It does not keep the version: its model has the host, and both are to be freed when the version has gone, without a
    garbage collection, which does not see what lived when a framework was imported (``backends.imports``).
    """

    def __init__(self, core: EngineCore, name: str, submit: Submit, control: Control) -> None:
        self.loop: asyncio.AbstractEventLoop = core.loop
        self.clock: Clock = core.clock
        self._model: weakref.ref[ModelVersion] | None = None
        self._core = core
        self._name = name
        self._submit = submit
        self._control = control
        self.metrics = core.custom_metrics

    def belongs_to(self, model: ModelVersion) -> None:
        """The version exists."""
        self._model = weakref.ref(model)

    @property
    def model(self) -> ModelVersion | None:
        """The version, from when it exists until it has gone."""
        return None if self._model is None else self._model()

    def infer(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> Callable[[], None]:
        """A nested request (BLS); on the loop. What is wrong with it comes as a response, so no ``try`` is needed."""
        nested = self._core.nested
        model = self.model
        call, told = nested.begin(model, on_response) if model is not None else (None, on_response)
        try:
            ticket = self._submit(request, told)
        except Exception as raised:  # whatever it is, a thread or a process waits for an answer
            if call is not None:
                nested.end(call)
            known = raised if isinstance(raised, WorkbenchError) else None
            error = known or InternalError(f"{type(raised).__name__}: {raised}")
            response = InferenceResponse(request.model_name, request.model_version, request.id, error=error)
            self._core.loop.call_soon(on_response, response)
            return lambda: None
        if call is not None:
            call.ticket = ticket
        return ticket.cancel

    def log(
        self, level: LogLevel, message: str, *, model: str = "", instance: str = "", origin: Origin = SERVER
    ) -> None:
        """A line for the event log, with the requests that it belongs to. Thread-safe."""
        if not self._core.log_settings.allows(level):
            return
        data = about_line(origin)
        if instance:
            data["instance"] = instance
        version = self.model
        if version is not None:
            data["version"] = version.version
        self._core.events.append("log", model or self._name, message, level=level, **data)

    def instance_state(self, instance: str, healthy: bool, why: str, *, gone: bool = False) -> None:
        """An instance died or is back. Thread-safe; on the loop it is so at once."""
        if self._core.inbox.on_loop:  # what the instance had fails next, and must not be followed by more
            self._tell(instance, healthy, why, gone)
        else:
            self._core.inbox.post(self._tell, instance, healthy, why, gone)

    def is_decoupled(self, name: str, version: int) -> bool:
        """Whether a model that serves is decoupled."""
        return self._control.is_decoupled(name, version)

    async def load_model(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Loads or reloads a model for this one; goes on to its end whatever becomes of who asked."""
        self._check_control_mode()
        await self._core.protect(self._control.load(name, config=config, files=files or None))

    async def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Starts unloading a model for this one."""
        self._check_control_mode()
        await self._core.protect(self._control.unload(name, unload_dependents=unload_dependents))

    def _check_control_mode(self) -> None:
        if self._core.options.control_mode != "explicit":
            raise NotReady(NOT_EXPLICIT)

    async def is_model_ready(self, name: str, version: int) -> bool:
        """Whether a model version is ready; its ``is_ready`` is asked where it has one."""
        return await self._control.is_model_ready(name, version)

    def _tell(self, instance: str, healthy: bool, why: str, gone: bool) -> None:
        if self.model is not None:
            self.model.instance_state(instance, healthy, why, gone)


MAX_REQUESTS = 128
"""Of how many requests of a batch a line names the numbers and ids."""


def about_line(origin: Origin) -> dict[str, Any]:
    """What the event of a log line says beside its text; only what there is.

    ``source``, ``file``, ``line``, ``traceback``; and of the batch that was executed ``batch_seq``, the requests'
    ``seqs`` (as in the records), ``request_ids`` and ``parents`` (``parent_seq`` of each), beside each other.
    """
    data: dict[str, Any] = {"source": origin.source} if origin.source != "server" else {}
    if origin.file:
        data["file"], data["line"] = origin.file, origin.line
    if origin.traceback:
        data["traceback"] = origin.traceback
    execution = origin.execution
    if execution is not None and execution.seqs:
        data["batch_seq"] = execution.sequence
        data["seqs"] = list(execution.seqs[:MAX_REQUESTS])
        requests = execution.requests[:MAX_REQUESTS]  # none any more once all are answered
        if any(request.id for request in requests):
            data["request_ids"] = [request.id for request in requests]
        if any(request.parent_seq >= 0 for request in requests):
            data["parents"] = [request.parent_seq for request in requests]
    return data
