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
    suspects = _suspects(graph)
    problems: dict[str, str] = {}
    for start in sorted(suspects):
        if start not in problems:
            _look(suspects, start, problems)
    return problems


def dependency_order(graph: Mapping[str, Collection[str]], names: Collection[str]) -> list[str]:
    """Names and all in the graph that they are made of, each behind what it is made of (but for circles).

    Without recursion: a repository may nest ensembles deeper than Python's stack.
    """
    done: dict[str, None] = {}
    entered: set[str] = set()
    left = sorted(names, reverse=True)
    while left:
        name = left[-1]
        if name in entered:
            done[left.pop()] = None
        else:
            entered.add(name)
            left.extend(each for each in sorted(graph.get(name, ()), reverse=True) if each not in entered)
    return list(done)


def _suspects(graph: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """The part of a graph that may hold circles: without what is made of nothing in it, over and over."""
    above: dict[str, list[str]] = {}
    left: dict[str, int] = {}
    for name, upstreams in graph.items():
        known = [upstream for upstream in set(upstreams) if upstream in graph]
        left[name] = len(known)
        for upstream in known:
            above.setdefault(upstream, []).append(name)
    free = [name for name, count in left.items() if not count]
    while free:
        name = free.pop()
        del left[name]
        for other in above.get(name, ()):
            left[other] -= 1
            if not left[other]:
                free.append(other)
    return {name: sorted(upstream for upstream in set(graph[name]) if upstream in left) for name in left}


def _look(graph: Mapping[str, list[str]], start: str, problems: dict[str, str]) -> None:
    """Notes the text for ``start`` if it is reached again from there, and for those on the way.

    Depth first without recursion: a repository may nest ensembles deeper than Python's stack.
    """
    way = [(start, iter(graph[start]))]
    seen = {start}
    while way:
        current, upstreams = way[-1]
        upstream = next(upstreams, None)
        if upstream is None:
            way.pop()
        elif upstream == start:
            text = f"circular dependency between ensembles: {start} -> ... -> {current} -> {start}"
            problems.update((name, text) for name, _ in (way if current == start else way[:-1]))
            return
        elif upstream not in seen:
            seen.add(upstream)
            way.append((upstream, iter(graph[upstream])))
