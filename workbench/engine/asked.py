"""The questions that any thread may ask of an engine; each is answered on its loop, of one moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import workbench.engine.questions as questions
from workbench.clock import wall_ms
from workbench.engine.options import ConfigState
from workbench.engine.readiness import Ready, model_ready, server_ready, settled
from workbench.engine.running import RunningEngine
from workbench.engine.snapshot import EngineSnapshot, version_snapshot
from workbench.errors import NotReady, WorkbenchError
from workbench.repository.models import list_models


class AskedEngine(RunningEngine):
    """An engine that says what it is and what it is doing; see ``InferenceEngine``."""

    def is_live(self) -> bool:
        """Whether the server runs."""
        return self._running

    def is_ready(self) -> bool:
        """Whether the server is ready, by ``strict_readiness`` (7.14); models are asked as by ``is_model_ready``.

        Raises:
            InvalidRequest: called on the loop, where a model is to be asked.
        """
        return self._settled(self.server_readiness)

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        """Whether a model version is ready; False for one that is not known (15.3).

        A Python model that has an ``is_ready`` is asked, so this takes as long as it takes, 5 s an instance at most.
        On the loop that is for ``is_model_ready_async``.

        Raises:
            InvalidRequest: called on the loop, and the model is to be asked.
        """
        return self._settled(lambda: self.model_readiness(name, version))

    async def is_ready_async(self) -> bool:
        """As ``is_ready``. On the loop, which goes on meanwhile."""
        return await settled(self.server_readiness())

    async def is_model_ready_async(self, name: str, version: int = -1) -> bool:
        """As ``is_model_ready``. On the loop, which goes on meanwhile."""
        return await settled(self.model_readiness(name, version))

    def serves(self, name: str, version: int = -1) -> bool:
        """Whether a model version is loaded and takes requests; nobody is asked."""

        def found() -> bool:
            try:
                return self._lifecycle.lookup(name, version) is not None
            except WorkbenchError:
                return False

        return self._running and self._ask(found)

    def server_readiness(self) -> Ready:
        """As ``is_ready``: the answer at once, or what to await where a model is asked. On the loop."""
        if not self._running or self._stopping or self._starting:
            return False
        return server_ready(self._lifecycle, self.options.strict_readiness)

    def model_readiness(self, name: str, version: int = -1) -> Ready:
        """As ``is_model_ready``: the answer at once, or what to await where the model is asked. On the loop."""
        if not self._running or self._stopping:
            return False
        return model_ready(self._lifecycle, name, version)

    def _settled(self, ask: Callable[[], Ready]) -> bool:
        ready = self._ask(ask) if self._running else False
        if isinstance(ready, bool):
            return ready
        try:
            return self._run(ready)
        except NotReady:  # it ended meanwhile
            return False

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
