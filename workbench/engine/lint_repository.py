"""Lint across the models of a repository: ensembles and what they are made of, resources, priorities, duplicates."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.config import Edit, Fix
from workbench.config.findings import Finding
from workbench.config.problem import Problem
from workbench.config.spelling import closest
from workbench.config.syntax import MessageNode, ScalarNode, elements, map_key
from workbench.config.validate_ensemble import ensemble_problems
from workbench.engine.lint_models import LintedModel, poll_problem
from workbench.engine.prepare import is_ensemble
from workbench.errors import ConfigError
from workbench.repository.models import DUPLICATE_REASON
from workbench.scheduling.ensemble_dependencies import (
    Upstream,
    circular_dependencies,
    dependency_order,
    dependency_problem,
    required_versions,
)
from workbench.scheduling.ensemble_plan import ModelDescription, describe_model, plan_ensemble, plan_problems
from workbench.scheduling.rate_limiter import RateLimiter, ResourceLimit, ResourceNeed, rate_limiter_needs

Find = Callable[[str], LintedModel | None]
"""Gives a model by its name, also one that is not to be reported on; None where there is none."""


def lint_duplicates(places: Mapping[str, Sequence[Path]]) -> dict[Path, list[Finding]]:
    """Models that are in more than one of the repositories."""
    found: dict[Path, list[Finding]] = {}
    for name, directories in places.items():
        for directory in directories if len(directories) > 1 else ():
            others = ", ".join(str(each) for each in directories if each != directory)
            text = f"{DUPLICATE_REASON} ('{name}' is also {others})"
            found[directory] = [Finding("duplicate-model", "error", 1, 1, text)]
    return found


class EnsembleLint:
    """The ensembles among some models, checked as they are when they are loaded (5.10, section 10).

    Args:
        find: looks up a model.
        names: the models that there are, for suggestions.
        whole: whether all models are known: else one that is not there is not an error.
    """

    def __init__(self, find: Find, names: Collection[str], *, whole: bool) -> None:
        self._find = find
        self._names = sorted(names)
        self._whole = whole
        self._decoupled: dict[str, bool] = {}
        self._problems: dict[str, str] = {}

    def check(self, model: LintedModel) -> None:
        """Adds the findings of one model if it is an ensemble; those that it is made of are checked before it."""
        if not self._is_left(model):
            return
        graph = self._graph(model)
        for name in dependency_order(graph, graph):
            each = self._find(name)
            if each is not None and self._is_left(each):
                self._check(each)

    def _is_left(self, model: LintedModel) -> bool:
        return model.config is not None and is_ensemble(model.config) and model.name not in self._problems

    def _check(self, model: LintedModel) -> None:
        self._problems[model.name] = ""
        problem = poll_problem(model)
        if problem is not None or model.errors:
            self._problems[model.name] = model.errors[0].message if problem is None else problem
        if any(ensemble_problems(model.config)):
            return  # its graph is not what it is meant to be
        circle = circular_dependencies(self._graph(model)).get(model.name)
        if circle is not None:
            self._refuse(model, "ensemble-circular", Problem("ensemble_scheduling.step", circle))
            return
        required = required_versions(model.config)
        upstreams: dict[str, Upstream] = {}
        for name in required:
            upstream = self._upstream(name)
            if upstream is not None:
                upstreams[name] = upstream
        self._dependencies(model, required, upstreams)

    def _graph(self, model: LintedModel) -> dict[str, Collection[str]]:
        graph: dict[str, Collection[str]] = {}
        left = [model.name]
        while left:
            name = left.pop()
            each = self._find(name)
            if name not in graph and each is not None and each.config is not None and is_ensemble(each.config):
                graph[name] = required_versions(each.config)
                left.extend(graph[name])
        return graph

    def _upstream(self, name: str) -> Upstream | None:
        """The state that a model would be in; None where Triton would not have it at all."""
        model = self._find(name)
        if model is None or poll_problem(model) is not None:
            return None
        if is_ensemble(model.config) and self._problems.get(name):
            return Upstream(invalid=self._problems[name])
        if not model.versions:
            text = f"at least one version must be available under the version policy of model '{name}'"
            return Upstream(load_error=text)
        if model.errors:
            text = model.errors[0].message
            return Upstream(load_error=f"version {max(model.versions)} is at UNAVAILABLE state: {text};")
        return Upstream(versions=frozenset(model.versions))

    def _refuse(self, model: LintedModel, rule: str, problem: Problem, fix: Fix | None = None, more: str = "") -> None:
        self._problems[model.name] = self._problems[model.name] or problem.message
        model.say(rule, problem.path, problem.message + more, fix)

    def _dependencies(
        self, model: LintedModel, required: Mapping[str, Collection[int]], upstreams: Mapping[str, Upstream]
    ) -> None:
        absent = [name for name in required if self._find(name) is None]
        if absent and not self._whole:
            text = f"{', '.join(sorted(absent))} is not beside this model: lint the whole repository to check the steps"
            model.say("ensemble-not-checked", self._step(model, absent[0]), text)
            return
        refused = False
        missing = [name for name in required if name not in upstreams]
        for index, step in enumerate(model.config.ensemble_scheduling.step):
            name, version = step.model_name, step.model_version
            wanted = required if missing else {name: (version,)}
            why = dependency_problem(model.name, wanted, upstreams)
            if why is None or (missing and name not in missing):
                continue
            path = f"ensemble_scheduling.step[{index}].model_name"
            fix, more = self._meant(model, name, path)
            if version == 0 and "whose required version 0" in why:
                path = f"ensemble_scheduling.step[{index}].model_version"
                fix, more = Fix("Set model_version to -1", (Edit(path, "set", -1),)), " (-1 is the latest)"
            self._refuse(model, "ensemble-dependency", Problem(path, why), fix, more)
            refused = True
        if not missing:
            self._tensors(model, required, refused=refused)

    def _step(self, model: LintedModel, name: str) -> str:
        for index, step in enumerate(model.config.ensemble_scheduling.step):
            if step.model_name == name:
                return f"ensemble_scheduling.step[{index}].model_name"
        return "ensemble_scheduling"

    def _meant(self, model: LintedModel, name: str, path: str) -> tuple[Fix | None, str]:
        """The model that was meant by a name that does not exist, or why one that exists cannot be used."""
        found = self._find(name)
        if found is not None:
            why = poll_problem(found)
            return None, f" ('{name}' is refused: {why})" if why is not None else ""
        others = [each for each in self._names if each != model.name]
        better = closest(name, others, cutoff=0.6)
        if better is None:
            return None, f" (there is no model '{name}')"
        return Fix(f'Set model_name to "{better}"', (Edit(path, "set", better),)), f". Did you mean '{better}'?"

    # ---- the tensors

    def _tensors(self, model: LintedModel, required: Collection[str], *, refused: bool) -> None:
        described: dict[str, ModelDescription] = {}
        for name in required:
            step = self._find(name)
            assert step is not None
            if not step.config.input or not step.config.output:
                if refused:
                    return
                text = (
                    f"the inputs and outputs of '{name}' are not in its config.pbtxt, so what the steps pass to each "
                    "other is not checked"
                )
                model.say("ensemble-not-checked", self._step(model, name), text)
                return
            described[name] = describe_model(step.config, decoupled=self._decoupled.get(name))
        found = plan_problems(model.config, described)
        for problem in found:
            more, fix = _tensor_meant(model, problem, described)
            self._refuse(model, "ensemble-tensors", problem, fix, more)
        if not found:
            self._decoupled[model.name] = plan_ensemble(model.config, described).decoupled
            self._priorities(model, required)

    def _priorities(self, model: LintedModel, required: Collection[str]) -> None:
        """A priority is passed to every step; whether it counts there is the step's affair (server#6055)."""
        levels = {}
        for name in required:
            step = self._find(name)
            if step is not None and not is_ensemble(step.config):
                levels[name] = step.config.dynamic_batching.priority_levels
        if any(levels.values()):
            for name in sorted(name for name, count in levels.items() if not count):
                text = f"priority sent to ensemble '{model.name}', but step '{name}' declares no priority_levels"
                model.say("priority-not-everywhere", self._step(model, name), text)


_NOT_MAPPED = re.compile(r"non-existing (input|output) (.*) in model (.*)\Z", re.DOTALL)


def _tensor_meant(
    model: LintedModel, problem: Problem, described: Mapping[str, ModelDescription]
) -> tuple[str, Fix | None]:
    if "allows maximum batch size" in problem.message:
        sizes = [each.max_batch_size for each in described.values() if each.max_batch_size]
        return "", Fix(f"Set max_batch_size to {min(sizes)}", (Edit("max_batch_size", "set", min(sizes)),))
    match = _NOT_MAPPED.search(problem.message)
    if match is None:
        return "", None
    spec = described[match.group(3)]
    names = [each.name for each in (spec.inputs if match.group(1) == "input" else spec.outputs)]
    better = closest(match.group(2), names, cutoff=0.6)
    if better is None:
        return f" (it has {', '.join(names)})", None
    return f". Did you mean '{better}'?", _rename(model, problem.path, match.group(2), better)


def _rename(model: LintedModel, path: str, key: str, better: str) -> Fix | None:
    """The key of an entry of a step's map is written anew."""
    assert model.document is not None
    match = re.match(r"ensemble_scheduling\.step\[(\d+)\]\.(input_map|output_map)", path)
    scheduling = elements(model.document.tree, "ensemble_scheduling").nodes
    steps: list[Any] = [
        step for each in scheduling if isinstance(each, MessageNode) for step in elements(each, "step").nodes
    ]
    if match is None or int(match.group(1)) >= len(steps):
        return None
    for entry in elements(steps[int(match.group(1))], match.group(2)).nodes:
        if isinstance(entry, MessageNode) and map_key(entry) == key.encode():
            for node in entry.named("key"):
                if isinstance(node.value, ScalarNode):
                    change = (node.value.start, node.value.end, f'"{better}"'.encode())
                    return Fix(f'Write "{better}"', (), (change,))
    return None


# ---- the rate limiter


def lint_resources(models: Sequence[LintedModel], limits: Sequence[ResourceLimit]) -> None:
    """Registers the instances of all models with a rate limiter, and says what it refuses (4.4)."""
    limiter = RateLimiter(limits)
    kinds: dict[tuple[str, bool], str] = {}
    for model in models:
        if model.config is None or is_ensemble(model.config):
            continue
        for index, group in enumerate(model.config.instance_group):
            path = f"instance_group[{index}].rate_limiter"
            for device in group.gpus or (0,):
                needs, priority = rate_limiter_needs(group, device)
                if not _register(limiter, model, path, device, (needs, priority), kinds):
                    break


def _register(
    limiter: RateLimiter,
    model: LintedModel,
    path: str,
    device: int,
    wants: tuple[Sequence[ResourceNeed], int],
    kinds: dict[tuple[str, bool], str],
) -> bool:
    needs, priority = wants
    try:
        limiter.register((model.name, path, device), needs, priority, model.name)
    except ConfigError as error:
        other = next((kinds[need.name, need.device is not None] for need in needs
                      if (need.name, need.device is not None) in kinds), "")  # fmt: skip
        more = (
            f" (the other way in '{other}')" if "both global" in error.message and other not in ("", model.name) else ""
        )
        model.say("rate-limiter-resource", path, error.message + more)
        return False
    for need in needs:
        kinds.setdefault((need.name, need.device is None), model.name)
    return True
