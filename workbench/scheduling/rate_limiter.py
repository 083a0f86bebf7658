"""Triton's rate limiter as a pure arbiter above the instances of all models.

An instance that is idle and has work is *staged*; it may form its batch when it is granted all the resources that it
needs at once, and gives them back when the batch is done. Among the staged, the one with the smallest
``executions × priority`` comes first (priority 2 gets half the turns of priority 1), then the one that waits longest.

How a driver uses it::

    register(key, needs, priority) -> granted   an instance is there
    stage(key, now) -> granted                  it is idle and may have work
    release(key) -> granted                     its batch is done (executed=False: there was none to form after all;
                                                again=now: it has more work)
    unstage(key) -> granted                     it has no work any more
    unregister(key) -> granted                  it is gone

Whatever is in ``granted`` holds its resources from then on: ask its scheduler for a batch, or release it.

**How this differs from Triton**, which tries only the first of the staged: an instance that needs no resource is
granted at once, always (server#8358: a deadlock otherwise), and one whose resources are free does not wait behind one
that waits for others. So that nobody starves, the resources that a waiting instance lacks are not given to those behind
it, and none of its resources are once ``PATIENCE`` others have overtaken it. Source: ``rate_limiter.cc``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import ConfigError, InvalidRequest

PATIENCE = 16
"""How many may overtake a waiting instance before all that it needs is kept for it."""

ResourceKey = tuple[int | None, str]
"""A device (None: global) and a resource's name."""


@dataclass(frozen=True, slots=True)
class ResourceNeed:
    """What a batch of an instance takes. ``device`` is that of the instance, None for a global resource."""

    name: str
    count: int
    device: int | None = None

    @property
    def key(self) -> ResourceKey:
        """Where it is counted."""
        return (self.device, self.name)


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """A declared limit (``--rate-limit-resource``). Without ``device`` it holds for every device and globally."""

    name: str
    count: int
    device: int | None = None


def parse_resource_limit(text: str) -> ResourceLimit:
    """Reads the value of ``--rate-limit-resource``: ``NAME:COUNT`` or ``NAME:COUNT:DEVICE``.

    Raises:
        InvalidRequest: Triton's text of what the form is.
    """
    parts = text.split(":")
    try:
        if len(parts) not in (2, 3):
            raise ValueError
        count, device = int(parts[1]), int(parts[2]) if len(parts) == 3 else -1
    except ValueError:
        raise InvalidRequest(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
            f"Got {text}"
        ) from None
    return ResourceLimit(parts[0], count, None if device == -1 else device)


def rate_limiter_needs(group: Any, device: int) -> tuple[tuple[ResourceNeed, ...], int]:
    """The needs and the priority of the instances of an ``instance_group`` message on a device."""
    limiter = group.rate_limiter
    needs = tuple(
        ResourceNeed(each.name, each.count, None if getattr(each, "global") else device) for each in limiter.resources
    )
    return needs, limiter.priority


@dataclass(frozen=True, slots=True)
class ResourceWait:
    """A staged instance that lacks a resource.

    ``held_by`` holds it; ``kept_for`` waits for it before this one, if the resource itself would do. Times in ns.
    """

    key: Hashable
    label: str
    since: int
    resource: ResourceKey
    needed: int
    free: int
    held_by: tuple[Hashable, ...]
    kept_for: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class NestedCall:
    """A running model waits for the answer of another one that it called (BLS); ``since`` in ns."""

    caller: str
    callee: str
    since: int


@dataclass(slots=True, eq=False)
class _Instance:
    key: Hashable
    label: str
    needs: dict[ResourceKey, int]
    priority: int
    executions: int = 0
    staged: bool = False
    urgent: bool = False
    since: int = 0
    order: int = 0
    overtaken: int = 0
    holding: bool = False
    lacks: dict[ResourceKey, tuple[Hashable, ...]] = field(default_factory=dict)

    @property
    def rank(self) -> tuple[bool, int, int]:
        return (not self.urgent, self.executions * self.priority, self.order)


class RateLimiter:
    """See the module's text for how it is driven.

    Args:
        limits: declared limits. With any of them, a resource that is not declared has none to give; without them,
            each has as much as the instance that needs most.
        enabled: False is ``--rate-limit=off``: resources and priorities are ignored.
    """

    def __init__(self, limits: Iterable[ResourceLimit] = (), *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._limits = tuple(limits)
        self._instances: dict[Hashable, _Instance] = {}
        self._capacity: dict[ResourceKey, int] = {}
        self._used: dict[ResourceKey, int] = {}
        self._ticks = 0

    # ---- instances

    def register(
        self, key: Hashable, needs: Iterable[ResourceNeed] = (), priority: int = 0, label: str = ""
    ) -> list[Hashable]:
        """An instance is there. ``label`` is the name of its model, for reports. Gives what is granted by that: where
        no limits are declared, there may be more of a resource now.

        Raises:
            ConfigError: Triton's text: a declared limit is too small, or one name is both global and per device. The
                instance is not registered then.
            ValueError: the key is registered already.
        """
        if key in self._instances:
            raise ValueError(f"{key!r} is registered already")
        counts = {need.key: need.count for need in needs}
        self._instances[key] = _Instance(key, label or str(key), counts if self.enabled else {}, max(1, priority))
        try:
            self._measure()
        except ConfigError:
            del self._instances[key]
            self._measure()
            raise
        return self._grant()

    def check(self, changed: Mapping[Hashable, Iterable[ResourceNeed]]) -> None:
        """Whether instances may need this instead of what they need; nothing changes.

        Raises:
            ConfigError: as ``register``.
        """
        before = {key: self._instances[key].needs for key in changed}
        for key, needs in changed.items() if self.enabled else ():
            self._instances[key].needs = {need.key: need.count for need in needs}
        try:
            self._measure()
        finally:
            for key, kept in before.items():
                self._instances[key].needs = kept
            self._measure()

    def unregister(self, key: Hashable) -> list[Hashable]:
        """The instance is gone; what it holds is free. Gives what is granted by that."""
        instance = self._instances.pop(key)
        self._give_back(instance)
        self._measure()
        return self._grant()

    def _measure(self) -> None:
        """How much there is of each resource."""
        demand: dict[ResourceKey, int] = {}
        for instance in self._instances.values():
            for need, count in instance.needs.items():
                demand[need] = max(demand.get(need, 0), count)
        capacity = dict(demand)
        if self._limits:
            for need, count in demand.items():
                capacity[need] = self._declared(need)
                if capacity[need] < count:
                    raise ConfigError(
                        f'Resource count for "{need[1]}" is limited to {capacity[need]} which will prevent scheduling '
                        f"of one or more model instances, the minimum required count is {count}"
                    )
        for device, name in demand:
            if device is not None and (None, name) in demand:
                raise ConfigError(
                    f'Resource "{name}" is present as both global and device-specific resource in the model '
                    "configuration."
                )
        self._capacity = capacity

    def _declared(self, need: ResourceKey) -> int:
        """The largest declaration that holds: for a global resource any of its name, else of its device or of all."""
        device, name = need
        counts = [
            limit.count
            for limit in self._limits
            if limit.name == name and (device is None or limit.device in (None, device))
        ]
        return max(counts, default=0)

    # ---- turns

    def stage(self, key: Hashable, now: int, *, urgent: bool = False) -> list[Hashable]:
        """The instance wants to execute. Gives all that is granted by that, the instance among it or not.

        ``urgent``: a running model that holds resources waits for it (a nested call): it comes first, and what is kept
        for others is not kept from it. Staging it again changes nothing but that.
        """
        instance = self._instances[key]
        if instance.holding:
            return []
        if not instance.needs:
            instance.holding = True
            return [key]
        if not instance.staged:
            self._enter(instance, now)
        instance.urgent = instance.urgent or urgent
        return self._grant()

    def _enter(self, instance: _Instance, now: int) -> None:
        self._ticks += 1
        instance.staged, instance.urgent = True, False
        instance.since, instance.order, instance.overtaken = now, self._ticks, 0

    def unstage(self, key: Hashable) -> list[Hashable]:
        """The instance has no work any more; nothing happens if it was not staged."""
        instance = self._instances[key]
        if not instance.staged:
            return []
        instance.staged = False
        return self._grant()

    def release(self, key: Hashable, *, executed: bool = True, again: int | None = None) -> list[Hashable]:
        """The instance's batch is done, or there was none (``executed=False``: its turn is not counted).

        ``again``: it has more work and is staged anew at this time (ns), before the others are looked at, as in Triton:
        only so do priorities decide among instances that always have work.

        Raises:
            ValueError: it holds nothing.
        """
        instance = self._instances[key]
        if not instance.holding:
            raise ValueError(f"{key!r} has not been granted anything")
        instance.executions += executed
        self._give_back(instance)
        if again is not None:
            if not instance.needs:
                instance.holding = True
                return [key]
            self._enter(instance, again)
        return self._grant() if instance.needs else []

    def _give_back(self, instance: _Instance) -> None:
        if instance.holding:
            instance.holding = False
            for need, count in instance.needs.items():
                self._used[need] -= count

    def _grant(self) -> list[Hashable]:
        """Gives resources to all that can have them, in order."""
        granted: list[Hashable] = []
        waiting: list[_Instance] = []
        kept: dict[ResourceKey, list[Hashable]] = {}
        for instance in sorted((each for each in self._instances.values() if each.staged), key=lambda each: each.rank):
            instance.lacks = self._lacks(instance, {} if instance.urgent else kept)
            if instance.lacks:
                waiting.append(instance)
                self._keep(instance, self._lacks(instance, {}), kept)
                self._keep_all_if_overtaken(instance, kept)
                continue
            instance.staged, instance.holding = False, True
            granted.append(instance.key)
            for need, count in instance.needs.items():
                self._used[need] = self._used.get(need, 0) + count
            for other in waiting:
                if any(need in other.needs for need in instance.needs):
                    other.overtaken += 1
                    self._keep_all_if_overtaken(other, kept)
        return granted

    def _keep(self, instance: _Instance, needs: Iterable[ResourceKey], kept: dict[ResourceKey, list[Hashable]]) -> None:
        for need in needs:
            keepers = kept.setdefault(need, [])
            if instance.key not in keepers:
                keepers.append(instance.key)

    def _keep_all_if_overtaken(self, instance: _Instance, kept: dict[ResourceKey, list[Hashable]]) -> None:
        if instance.overtaken >= PATIENCE and not instance.urgent:
            self._keep(instance, instance.needs, kept)

    def _lacks(
        self, instance: _Instance, kept: dict[ResourceKey, list[Hashable]]
    ) -> dict[ResourceKey, tuple[Hashable, ...]]:
        """The resources that stand in the way, each with those that it is kept for."""
        return {
            need: tuple(kept.get(need, ()))
            for need, count in instance.needs.items()
            if need in kept or self.free(need) < count
        }

    # ---- looking

    def free(self, resource: ResourceKey) -> int:
        """How much of a resource is not held."""
        return self._capacity.get(resource, 0) - self._used.get(resource, 0)

    @property
    def capacity(self) -> dict[ResourceKey, int]:
        """How much there is of each resource that an instance needs."""
        return dict(self._capacity)

    def is_holding(self, key: Hashable) -> bool:
        """Whether the instance has been granted its turn and has not given it back."""
        return self._instances[key].holding

    def executions(self, key: Hashable) -> int:
        """Turns of the instance so far."""
        return self._instances[key].executions

    def waits(self) -> list[ResourceWait]:
        """Who waits for what, and who has it; one entry for each resource that is lacking."""
        found = []
        for instance in sorted((each for each in self._instances.values() if each.staged), key=lambda each: each.rank):
            for need, kept_for in instance.lacks.items():
                holders = tuple(each.key for each in self._instances.values() if each.holding and need in each.needs)
                count, free = instance.needs[need], self.free(need)
                wait = ResourceWait(instance.key, instance.label, instance.since, need, count, free, holders, kept_for)
                found.append(wait)
        return found

    def label(self, key: Hashable) -> str:
        """The name that the instance was registered under."""
        return self._instances[key].label


def wait_report(limiter: RateLimiter, calls: Sequence[NestedCall], now: int, after: int) -> str | None:
    """What a watchdog says when a nested call has waited for ``after`` ns or longer; None where none has.

    For example ``B waits for A; C waits for R held by B``.
    """
    if not any(now - call.since >= after for call in calls):
        return None
    parts = [f"{call.caller} waits for {call.callee}" for call in calls]
    for wait in limiter.waits():
        device, name = wait.resource
        text = f"{wait.label} waits for {name}" + ("" if device is None else f" of device {device}")
        holders = list(dict.fromkeys(limiter.label(key) for key in wait.held_by))
        keepers = list(dict.fromkeys(limiter.label(key) for key in wait.kept_for))
        if holders:
            text += f" held by {', '.join(holders)}"
        elif keepers:
            text += f" kept for {', '.join(keepers)}"
        parts.append(text)
    return "; ".join(dict.fromkeys(parts))


def wait_cycle(limiter: RateLimiter, calls: Sequence[NestedCall]) -> list[str] | None:
    """Names of models that wait for each other in a circle; None if there is none.

    Such a circle does not end by itself, unless one of the models has another instance that can go on.
    """
    edges: dict[str, set[str]] = {}
    for call in calls:
        edges.setdefault(call.caller, set()).add(call.callee)
    for wait in limiter.waits():
        others = {limiter.label(key) for key in (*wait.held_by, *wait.kept_for)}
        edges.setdefault(wait.label, set()).update(others - {wait.label})
    for start in sorted(edges):
        path = _path_back(edges, start)
        if path is not None:
            return path
    return None


def _path_back(edges: dict[str, set[str]], start: str) -> list[str] | None:
    """The shortest way from a name back to itself."""
    paths = [[start]]
    seen: set[str] = set()
    while paths:
        path = paths.pop(0)
        for after in sorted(edges.get(path[-1], ())):
            if after == start:
                return [*path, start]
            if after not in seen:
                seen.add(after)
                paths.append([*path, after])
    return None
