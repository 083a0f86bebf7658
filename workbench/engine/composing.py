"""What ensembles are made of: loading the composing models first, checking them, and what their changes mean (5.9)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from workbench.config import from_json
from workbench.engine.actions import ActionQueue
from workbench.engine.ensemble import EnsembleVersion
from workbench.engine.entry import ModelEntry
from workbench.engine.prepare import Polled, check_labels, read_document
from workbench.errors import ConfigError, LoadFailed, WorkbenchError
from workbench.repository.models import find_model, read_model
from workbench.scheduling.ensemble_dependencies import (
    Upstream,
    circular_dependencies,
    dependency_order,
    dependency_problem,
    required_versions,
)
from workbench.scheduling.ensemble_plan import EnsemblePlan, ModelDescription, describe_model, plan_ensemble

if TYPE_CHECKING:
    from workbench.engine.lifecycle import Lifecycle


class Composing:
    """The ensembles of an engine and the models that they are made of; on the loop.

    No lock of one model is held while another model is loaded, so nothing can wait in a circle.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._core = lifecycle.core
        self._actions = ActionQueue()

    # ---- before a load

    async def load_all(self, names: Iterable[str], *, revive: bool = True) -> list[WorkbenchError]:
        """Loads models, ensembles after what they are made of; each once. Gives what failed.

        ``revive``: see ``Lifecycle.load``.
        """
        names = list(names)
        graph = await self._core.on_loader(self._graph, names, None)
        plain = [name for name in names if not graph.get(name)]
        load = self._lifecycle.load
        results = await asyncio.gather(*(load(name, revive=revive) for name in plain), return_exceptions=True)
        tried = set(plain)
        wanted = {name for name in names if graph.get(name)}
        for name in [each for each in dependency_order(graph, wanted) if each in wanted]:
            results += await asyncio.gather(load(name, tried=tried), return_exceptions=True)
            tried.add(name)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, WorkbenchError):
                raise result
        return [result for result in results if isinstance(result, WorkbenchError)]

    async def prepare(self, name: str, config: str | None, tried: set[str]) -> None:
        """Loads the models that an ensemble is made of; nothing for another model. What fails there, the check tells.

        Raises:
            LoadFailed: it is made of itself.
        """
        steps = await self._core.on_loader(self._steps, name, config)
        if not steps or (steps <= tried and all(self._serves(step) for step in steps)):
            return  # with thousands of ensembles, not to read again for each what it is made of
        graph = await self._core.on_loader(self._graph, [name], config)
        if not graph.get(name):
            return
        circle = circular_dependencies({key: value for key, value in graph.items() if value}).get(name)
        if circle is not None:
            raise self.refuse(self._lifecycle.entry(name), circle, graph[name])
        children = [child for child in sorted(graph[name]) if child not in tried]
        tried.update(children)
        await asyncio.gather(
            *(self._lifecycle.load(child, tried=tried, explicit=False) for child in children), return_exceptions=True
        )

    def _serves(self, name: str) -> bool:
        entry = self._lifecycle.entries.get(name)
        return entry is not None and bool(entry.ready()) and not entry.problem

    def _graph(self, names: Iterable[str], config: str | None) -> dict[str, frozenset[str]]:
        """For these models and all that they are made of: the names of their composing models. Blocks."""
        graph: dict[str, frozenset[str]] = {}
        left = list(names)
        while left:
            name = left.pop()
            if name not in graph:
                graph[name] = self._steps(name, config if name in names else None)
                left.extend(graph[name])
        return graph

    def _steps(self, name: str, config: str | None) -> frozenset[str]:
        """The composing models of a model as it is to be loaded; none where that cannot be told."""
        try:
            if config is not None:
                message: Any = from_json(config)
            else:
                entry = self._lifecycle.entries.get(name)
                if entry is not None and entry.dirty and entry.raw is not None:
                    return frozenset(required_versions(entry.raw))
                options = self._core.options
                source = read_model(find_model(options.repositories, name), options.config_name)
                if b"ensemble_scheduling" not in (source.config_bytes or b""):
                    return frozenset()
                # one that is refused loads nothing, not even its steps
                message = self._lifecycle.poll_document(source, read_document(source), False).config
        except (WorkbenchError, OSError):
            return frozenset()
        return frozenset(required_versions(message))

    # ---- the check

    def plan(self, entry: ModelEntry, polled: Polled) -> EnsemblePlan:
        """The plan of an ensemble with the models that are loaded now.

        Raises:
            LoadFailed: with Triton's text of what is missing or does not fit (5.10, section 10).
        """
        required = required_versions(polled.config)
        entry.composing = frozenset(required)
        upstreams = {name: state for name in required if (state := self._upstream(name)) is not None}
        problem = dependency_problem(entry.name, required, upstreams)
        if problem is None:
            try:
                plan = plan_ensemble(polled.config, self._describe(required))
            except ConfigError as error:
                problem = error.message
            else:
                entry.problem = ""
                return plan
        raise self.refuse(entry, problem, entry.composing)

    def refuse(self, entry: ModelEntry, problem: str, composing: Collection[str]) -> LoadFailed:
        """The error of an ensemble that cannot be loaded; it is tried again when one of its models is loaded."""
        entry.problem = problem
        entry.composing = frozenset(composing)
        self._core.events.append("log", entry.name, f"failed to load '{entry.name}': {problem}", level="error")
        where = entry.name if entry.source is None else str(entry.source.directory)
        return LoadFailed(f"load failed for model '{entry.name}': {problem}\n", where=where)

    def _upstream(self, name: str) -> Upstream | None:
        """The state of a composing model; None for one that is not in the repository or cannot be read."""
        entry = self._lifecycle.entries.get(name)
        if entry is None or not (entry.versions or entry.problem or entry.versionless):
            return None
        ready = frozenset(entry.ready())
        if entry.problem and not ready:
            return Upstream(invalid=entry.problem)
        if entry.versionless and not ready:
            return Upstream(load_error=entry.poll_error)
        reasons = [
            f"version {number} is at UNAVAILABLE state: {slot.reason};"
            for number, slot in sorted(entry.versions.items())
            if slot.state == "UNAVAILABLE" and slot.reason not in ("", "unloaded")
        ]
        return Upstream(versions=ready, load_error="".join(reasons) or None)

    def _describe(self, names: Iterable[str]) -> dict[str, ModelDescription]:
        found = {}
        for name in names:
            model = self._lifecycle.lookup(name, -1)
            found[name] = describe_model(model.config, decoupled=model.decoupled)
        return found

    def open(self, entry: ModelEntry, polled: Polled, number: int) -> EnsembleVersion:
        """A version of an ensemble.

        Raises:
            LoadFailed: see ``plan``.
            InternalError: see ``check_labels``.
        """
        graph = self.plan(entry, polled)
        check_labels(polled.config, polled.source.directory)
        config = type(polled.config)()
        config.CopyFrom(polled.config)
        config.model_transaction_policy.SetInParent()
        config.model_transaction_policy.decoupled = graph.decoupled  # whatever it says itself (ensemble_utils.cc)
        lookup = self._lifecycle.lookup
        return EnsembleVersion(
            self._core, entry.name, number, config, graph=graph, lookup=lookup, actions=self._actions
        )

    # ---- after a change

    def dependents(self, name: str) -> list[ModelEntry]:
        """The ensembles that are made of this model, whether they serve or wait for it."""
        return [entry for entry in self._lifecycle.entries.values() if name in entry.composing]

    async def refresh(self, name: str) -> None:
        """A composing model has changed: its ensembles are loaded anew, also those that could not be before."""
        for entry in self.dependents(name):
            before = set(entry.ready().values())
            async with entry.lock:
                if name not in entry.composing:
                    continue
                try:
                    await self._lifecycle.load_locked(entry, again=True)
                except WorkbenchError:  # told by an event, and to whoever loads the ensemble itself
                    if entry.problem:
                        for number in list(entry.ready()):
                            self._lifecycle.release(entry, number)
            if set(entry.ready().values()) != before:
                await self.refresh(entry.name)

    async def release_dependents(self, name: str) -> None:
        """A composing model goes: so do its ensembles, until it is back."""
        for entry in self.dependents(name):
            await self.release_dependents(entry.name)
            async with entry.lock:
                for number in list(entry.ready()):
                    self._lifecycle.release(entry, number)
                if entry.versions:
                    entry.problem = f"ensemble '{entry.name}' depends on '{name}' which has no loaded version."

    async def unload_unused(self, names: Iterable[str]) -> None:
        """Unloads the composing models that nobody loaded for themselves and no other ensemble is made of."""
        for name in sorted(names):
            entry = self._lifecycle.entries.get(name)
            if entry is not None and entry.ready() and not entry.explicit and not self.dependents(name):
                await self._lifecycle.unload(name, unload_dependents=True)
