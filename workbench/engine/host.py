"""What a backend may ask of the engine: nested requests, log lines, news of its instances."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from workbench.backends.base import LogLevel
from workbench.clock import Clock
from workbench.errors import WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse

if TYPE_CHECKING:
    from workbench.engine.core import EngineCore
    from workbench.engine.model import ModelVersion
    from workbench.engine.ticket import OnResponse, Ticket

Submit = Callable[[InferenceRequest, "OnResponse"], "Ticket"]


class ModelHost:
    """The ``BackendHost`` of one model version; ``model`` is set once the version exists."""

    def __init__(self, core: EngineCore, name: str, submit: Submit) -> None:
        self.loop: asyncio.AbstractEventLoop = core.loop
        self.clock: Clock = core.clock
        self.model: ModelVersion | None = None
        self._core = core
        self._name = name
        self._submit = submit

    def infer(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> Callable[[], None]:
        """A nested request (BLS); on the loop. What is wrong with it comes as a response, so no ``try`` is needed."""
        nested = self._core.nested
        call, told = nested.begin(self.model, on_response) if self.model is not None else (None, on_response)
        try:
            ticket = self._submit(request, told)
        except WorkbenchError as error:
            if call is not None:
                nested.end(call)
            response = InferenceResponse(request.model_name, request.model_version, request.id, error=error)
            self._core.loop.call_soon(on_response, response)
            return lambda: None
        if call is not None:
            call.ticket = ticket
        return ticket.cancel

    def log(self, level: LogLevel, message: str, *, model: str = "", instance: str = "", request_id: str = "") -> None:
        """A line for the event log. Thread-safe."""
        data = {name: value for name, value in (("instance", instance), ("request_id", request_id)) if value}
        self._core.events.append("log", model or self._name, message, level=level, **data)

    def instance_state(self, instance: str, healthy: bool, why: str, *, gone: bool = False) -> None:
        """An instance died or is back. Thread-safe."""
        self._core.inbox.post(self._tell, instance, healthy, why, gone)

    def _tell(self, instance: str, healthy: bool, why: str, gone: bool) -> None:
        if self.model is not None:
            self.model.instance_state(instance, healthy, why, gone)
