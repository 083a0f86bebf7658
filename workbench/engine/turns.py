"""The rate limiter above all instances (section 4): ``--rate-limit=execution_count``.

An idle instance whose model has work is staged; what ``scheduling.RateLimiter`` grants asks its scheduler for a batch,
or gives its turn back where none may leave yet. Without the limiter nothing here is in the way of a request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from workbench.clock import Clock
from workbench.errors import WorkbenchError
from workbench.scheduling.rate_limiter import RateLimiter, ResourceNeed, parse_resource_limit, rate_limiter_needs

if TYPE_CHECKING:
    from workbench.engine.execution import InstanceSlot
    from workbench.engine.model import ModelVersion
    from workbench.engine.nested import NestedCalls

Needs = tuple[tuple[ResourceNeed, ...], int]
"""What an instance takes for a batch, and its priority."""


class Turns:
    """The instances of all models and whose turn it is; on the loop.

    Args:
        limits: values of ``--rate-limit-resource``.

    Raises:
        InvalidRequest: a limit cannot be read.
    """

    def __init__(self, limits: Iterable[str], clock: Clock) -> None:
        self.limiter = RateLimiter([parse_resource_limit(text) for text in limits])
        self._clock = clock
        self._models: dict[InstanceSlot, ModelVersion] = {}
        self._needs: dict[InstanceSlot, Needs] = {}
        self._granted: deque[Hashable] = deque()
        self.nested: NestedCalls | None = None
        self._acting = False

    # ---- instances

    def register(self, model: ModelVersion, slots: Sequence[InstanceSlot]) -> None:
        """Instances are there; all or none.

        Raises:
            ConfigError: Triton's text: a resource that they need does not suffice, or is both global and per device.
        """
        done: list[InstanceSlot] = []
        try:
            for slot in slots:
                self._register(model, slot, _needs(model.config, slot))
                done.append(slot)
        except WorkbenchError:
            for slot in done:
                self.forget(slot)
            raise

    def check(self, model: ModelVersion, config: Any) -> None:
        """Whether a model's instances may need what a configuration says; nothing changes.

        Raises:
            ConfigError: as ``register``.
        """
        self.limiter.check({slot: _needs(config, slot)[0] for slot in model.slots if slot in self._models})

    def renew(self, model: ModelVersion) -> None:
        """A model's configuration has changed: its instances need what their groups say now."""
        for slot in model.slots:
            needs = _needs(model.config, slot)
            if slot not in self._models or self._needs.get(slot) == needs:
                continue
            before = self._needs[slot]
            self.forget(slot)
            try:
                self._register(model, slot, needs)
            except WorkbenchError as error:
                model.core.events.append("log", model.name, error.message, level="error", instance=slot.spec.label)
                self._register(model, slot, before)

    def _register(self, model: ModelVersion, slot: InstanceSlot, needs: Needs) -> None:
        granted = self.limiter.register(slot, needs[0], needs[1], model.name)
        self._models[slot] = model
        self._needs[slot] = needs
        self._carry_out(granted)

    def forget(self, slot: InstanceSlot) -> None:
        """An instance goes; what it holds is free."""
        if self._models.pop(slot, None) is not None:
            del self._needs[slot]
            self._carry_out(self.limiter.unregister(slot))

    # ---- turns

    def look(self, model: ModelVersion, idle: Iterable[InstanceSlot]) -> None:
        """A model's queue or instances have changed: its idle instances want a turn, or none any more."""
        now, waiting = self._clock(), model.pending
        urgent = bool(self.nested) and bool(waiting) and self._is_awaited(model)
        for slot in list(idle):
            if slot not in self._models or self.limiter.is_holding(slot):
                continue
            self._carry_out(self.limiter.stage(slot, now, urgent=urgent) if waiting else self.limiter.unstage(slot))

    def _is_awaited(self, model: ModelVersion) -> bool:
        """Whether a model that holds resources waits for a request in this one's queue."""
        holders = {
            self._models[slot].name for slot, needs in self._needs.items() if needs[0] and self.limiter.is_holding(slot)
        }
        return self.nested is not None and self.nested.is_awaited(model, holders)

    def done(self, slot: InstanceSlot, *, again: bool) -> None:
        """An instance's batch is done; ``again``: it is idle and its model has more work."""
        if slot in self._models and self.limiter.is_holding(slot):
            self._carry_out(self.limiter.release(slot, again=self._clock() if again else None))

    def _carry_out(self, granted: Iterable[Hashable]) -> None:
        queue = self._granted
        queue.extend(granted)
        if self._acting:
            return
        self._acting = True
        try:
            while queue:
                slot: Any = queue.popleft()
                model = self._models.get(slot)
                if model is not None and not model.take_turn(slot) and self.limiter.is_holding(slot):
                    queue.extend(self.limiter.release(slot, executed=False))
        finally:
            self._acting = False


def _needs(config: Any, slot: InstanceSlot) -> Needs:
    """What the instance's group says."""
    name = slot.spec.name.rpartition("_")[0]
    for group in config.instance_group:
        if group.name == name:
            return rate_limiter_needs(group, slot.spec.device_id)
    return (), 0
