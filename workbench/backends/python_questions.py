"""What a Python model asks of its server beside inference: metrics of its own, and loading other models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from workbench.backends.base import BackendHost
from workbench.errors import InvalidRequest, WorkbenchError

Answer = tuple[str, Any]
"""An error text, "" for none, and the answer."""


class Questions:
    """The questions of one instance; its metrics go with it. ``instance`` is the name that stands in error texts."""

    def __init__(self, host: BackendHost, instance: str) -> None:
        self._host = host
        self._instance = instance
        self._families: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        metrics = host.metrics
        self._at_once: dict[str, Callable[..., Any]] = {
            "metric_family": self._family,
            "metric_family_delete": self._delete,
            "metric": metrics.metric,
            "metric_increment": metrics.increment,
            "metric_set": metrics.set,
            "metric_observe": metrics.observe,
            "metric_value": metrics.value,
        }

    def begin(self, operation: str, arguments: Any, answer: Callable[[Answer], None]) -> None:
        """Answers a question, at once or later; on the loop."""
        if operation in self._at_once:
            answer(self._now(operation, arguments))
            return

        async def later() -> None:
            answer(await self._later(operation, arguments))

        task = self._host.loop.create_task(later())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def ask(self, operation: str, arguments: Any) -> Answer:
        """Answers a question; blocks, not on the loop."""
        if operation in self._at_once:
            return self._now(operation, arguments)
        return asyncio.run_coroutine_threadsafe(self._later(operation, arguments), self._host.loop).result()

    def close(self) -> None:
        """Takes the instance's metrics away. Thread-safe."""
        while self._families:
            self._host.metrics.delete_family(self._families.pop())

    def _now(self, operation: str, arguments: Any) -> Answer:
        try:
            return "", self._at_once[operation](*arguments)
        except WorkbenchError as error:
            return self._refusal(error), None

    async def _later(self, operation: str, arguments: Any) -> Answer:
        host = self._host
        try:
            if operation == "load_model":
                name, config, files = arguments
                await host.load_model(name, config or None, dict(files))
                return "", None
            if operation == "unload_model":
                await host.unload_model(*arguments)
                return "", None
            if operation == "is_model_ready":
                name, version = arguments
                return "", await host.is_model_ready(name, _version(version))
            raise InvalidRequest(f"unknown question '{operation}'")
        except WorkbenchError as error:
            return self._refusal(error), None

    def _refusal(self, error: WorkbenchError) -> str:
        return f"Failed to process the request for model '{self._instance}', message: {error.message}"

    def _family(self, name: str, text: str, kind: str) -> int:
        number = self._host.metrics.family(name, text, kind)
        self._families.add(number)
        return number

    def _delete(self, number: int) -> None:
        if number in self._families:  # one of this instance, which another must not take away
            self._families.discard(number)
            self._host.metrics.delete_family(number)


def _version(text: str) -> int:
    """A version as a model writes it, -1 for the latest (python_backend's model_loader.cc).

    Raises:
        InvalidRequest: it is no number, or negative.
    """
    if not text:
        return -1
    try:
        number = int(text)
    except ValueError:
        raise InvalidRequest(
            f"failed to get model version from specified version string '{text}' (details: stol), version should be an "
            "integral value > 0"
        ) from None
    if number < 0:
        raise InvalidRequest(
            f"failed to get model version from specified version string '{text}', version should be an integral value "
            "> 0"
        )
    return number
