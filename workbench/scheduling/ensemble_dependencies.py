"""What ensembles depend on: loaded models and versions, and circles. Source: ``model_repository_manager.cc``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Upstream:
    """The state of a model that an ensemble depends on.

    ``invalid`` is why it cannot be used at all (as an ensemble that has a problem of its own), ``versions`` are those
    loaded, ``load_error`` is why loading failed.
    """

    invalid: str | None = None
    versions: frozenset[int] = frozenset()
    load_error: str | None = None


def required_versions(message: Any) -> dict[str, frozenset[int]]:
    """The models of an ensemble's steps with the versions that they ask for; -1 is the latest."""
    found: dict[str, set[int]] = {}
    for step in message.ensemble_scheduling.step:
        found.setdefault(step.model_name, set()).add(step.model_version)
    return {name: frozenset(versions) for name, versions in found.items()}


def dependency_problem(
    ensemble: str, required: Mapping[str, Collection[int]], upstreams: Mapping[str, Upstream]
) -> str | None:
    """Why an ensemble cannot be loaded because of its composing models (5.10), or None.

    Args:
        ensemble: its name.
        required: from ``required_versions``.
        upstreams: every model of the repository; an ensemble's models that are absent are named.
    """
    missing = sorted(name for name in required if name not in upstreams)
    if missing:
        return f"ensemble {ensemble} contains models that are not available or ambiguous: {', '.join(missing)}"
    for name, versions in required.items():
        upstream = upstreams[name]
        intro = f"ensemble '{ensemble}' depends on '{name}'"
        if upstream.invalid is not None:
            return f"{intro} which is not valid. Model '{name}' failed with error: {upstream.invalid}"
        if not upstream.versions:
            why = upstream.load_error
            more = "" if why is None else f" Model '{name}' loading failed with error: {why}"
            return f"{intro} which has no loaded version.{more}"
        for version in sorted(versions):
            if version != -1 and version not in upstream.versions:
                return f"{intro} whose required version {version} is not loaded."
    return None


def circular_dependencies(graph: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Triton's text for every ensemble of a circle, and for those on the way into it from one.

    Args:
        graph: for each ensemble the names of its composing models.
    """
    problems: dict[str, str] = {}
    for start in sorted(graph):
        if start not in problems:
            _look(graph, start, start, problems, set())
    return problems


def _look(
    graph: Mapping[str, Collection[str]], current: str, start: str, problems: dict[str, str], seen: set[str]
) -> str:
    """The text if ``start`` is reached again from here, else the empty one."""
    seen.add(current)
    for upstream in sorted(set(graph.get(current, ()))):
        if upstream == start:
            text = f"circular dependency between ensembles: {start} -> ... -> {current} -> {start}"
            if current == start:
                problems[start] = text
            return text
        if upstream in seen:
            continue
        text = _look(graph, upstream, start, problems, seen)
        if text:
            problems[current] = text
            return text
    return ""
