"""Changing a loaded model without opening it anew: its settings, and its instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.engine.core import EngineCore
from workbench.engine.entry import ModelEntry, state_reason
from workbench.engine.execution import InstanceSlot
from workbench.engine.instances import make_slots, plan_update, tell_of_policies
from workbench.engine.model import ModelVersion
from workbench.engine.prepare import Polled
from workbench.errors import LoadFailed


def adopt(core: EngineCore, entry: ModelEntry, polled: Polled, configs: Mapping[int, Any]) -> None:
    """Puts a configuration in force in every version at once; nothing that waits or runs is lost."""
    entry.epoch += 1
    entry.document, entry.raw = polled.document, polled.raw
    for number, config in configs.items():
        model = entry.versions[number].model
        assert model is not None
        model.reconfigure(config, entry.epoch)
    core.events.append(
        "epoch", entry.name, f"configuration {entry.epoch} of '{entry.name}' is in force", epoch=entry.epoch
    )


async def update_instances(core: EngineCore, entry: ModelEntry, configs: Mapping[int, Any]) -> None:
    """Makes new instances before old ones go; if one cannot be made, nothing changes.

    Raises:
        LoadFailed: an instance could not be made, or the rate limiter has not what the instances are to need.
    """
    assert entry.source is not None
    plans: list[tuple[ModelVersion, list[InstanceSlot], list[InstanceSlot]]] = []
    number = 0
    try:
        for number, config in configs.items():
            model = entry.versions[number].model
            assert model is not None
            if core.turns is not None:
                core.turns.check(model, config)
            there = [*model.slots, *model.passive]
            kept, missing = plan_update(there, core.placement.specs(config, model.next_index))
            model.next_index += len(missing)
            plans.append((model, kept, await make_slots(model, missing, entry.source.directory)))
    except Exception as error:
        for _, _, slots in plans:
            for slot in slots:
                if core.turns is not None:
                    core.turns.forget(slot)
                await core.on_closer(slot.close)
        raise LoadFailed(
            f"load failed for model '{entry.name}': version {number} is at READY state: {state_reason(error)};\n",
            hint="the instances that were there still serve",
        ) from error
    for model, kept, slots in plans:
        for slot in slots:
            model.add_slot(slot)
        there = [*model.slots, *model.passive]
        for slot in [each for each in there if each not in kept and each not in slots]:
            model.retire_slot(slot)
        tell_of_policies(model)
