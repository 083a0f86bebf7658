"""Instances from ``instance_group``: which there are to be, and making them, warmed up, on loader threads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.backends.base import InstanceSpec
from workbench.engine.execution import InstanceSlot
from workbench.engine.model import ModelVersion
from workbench.engine.warmup import WarmupSample, build_samples
from workbench.errors import ConfigError, InternalError, WorkbenchError
from workbench.protocol.tensors import InferenceResponse

MAX_INSTANCES = 1024
"""Instances of one model version: more are a slip of the keyboard, and would take the machine with them."""


def check_instance_count(config: Any) -> None:
    """Refuses more instances than any machine could run.

    Raises:
        ConfigError: there are more than ``MAX_INSTANCES``.
    """
    total = 0
    for index, group in enumerate(config.instance_group):
        total += max(1, group.count) * max(1, len(group.gpus))
        if total > MAX_INSTANCES:
            raise ConfigError(
                f"model '{config.name}' asks for {total} instances, at most {MAX_INSTANCES} are made",
                where=f"instance_group[{index}].count",
                hint="more instances than the machine has cores are seldom of use",
            )


def instance_specs(config: Any, first_index: int = 0) -> list[InstanceSpec]:
    """The instances of a normalised configuration, named ``<group>_<n>``; each GPU of a group has ``count`` of them."""
    specs: list[InstanceSpec] = []
    for group in config.instance_group:
        kind = group.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number[group.kind].name
        if group.passive:
            continue
        devices = list(group.gpus) if kind == "KIND_GPU" and group.gpus else [0]
        number = 0
        for device in devices:
            for _ in range(max(1, group.count)):
                name = f"{group.name}_{number}"
                specs.append(InstanceSpec(name, kind, device, first_index + len(specs), group.host_policy))
                number += 1
    return specs


async def make_slots(model: ModelVersion, specs: Sequence[InstanceSpec], model_dir: Path) -> list[InstanceSlot]:
    """Makes and warms up instances, all at once; if one fails, those made are closed and its error is raised.

    Raises:
        WorkbenchError: Triton's text of what an instance or its warm-up says.
    """
    samples = await model.core.on_loader(build_samples, model.config, model_dir)
    results = await asyncio.gather(*(_make(model, spec, samples) for spec in specs), return_exceptions=True)
    slots = [result for result in results if isinstance(result, InstanceSlot)]
    errors = [result for result in results if isinstance(result, BaseException)]
    if errors:
        for slot in slots:
            await model.core.on_closer(slot.close)
        raise errors[0]
    if model.core.turns is not None:
        try:
            model.core.turns.register(model, slots)
        except WorkbenchError:
            for slot in slots:
                await model.core.on_closer(slot.close)
            raise
    return slots


async def _make(model: ModelVersion, spec: InstanceSpec, samples: Sequence[WarmupSample]) -> InstanceSlot:
    core = model.core
    instance = await core.on_loader(model.loaded.create_instance, spec)
    slot = InstanceSlot(spec, instance, core.clock)
    try:
        for sample in samples:
            for _ in range(sample.count):
                await _run_sample(model, slot, sample)
    except BaseException:
        await core.on_closer(slot.close)
        raise
    return slot


async def _run_sample(model: ModelVersion, slot: InstanceSlot, sample: WarmupSample) -> None:
    done: asyncio.Future[None] = model.core.loop.create_future()
    left = len(sample.requests)
    errors: list[str] = []

    def on_response(response: InferenceResponse) -> None:
        nonlocal left
        if response.error is not None:
            errors.append(response.error.message)
        if response.final:
            left -= 1
            if not left and not done.done():
                done.set_result(None)

    for request in sample.requests:
        request.client = "warmup"
    model.warm_up(slot, sample.requests, on_response)
    await done
    if errors:
        texts = "".join(f"{error}; " for error in errors)
        raise InternalError(f"failed to run warmup sample '{sample.name}': {texts}", where=slot.spec.name)


def plan_update(
    current: Sequence[InstanceSlot], wanted: Sequence[InstanceSpec]
) -> tuple[list[InstanceSlot], list[InstanceSpec]]:
    """Which instances stay and which must be made so that ``wanted`` is what there is; the others are to be retired.

    An instance stays when one on the same device with the same host policy is wanted; equal names are matched first.
    """
    left = list(current)
    kept: list[InstanceSlot] = []
    missing: list[InstanceSpec] = []
    unmatched: list[InstanceSpec] = []
    for spec in wanted:
        slot = next((each for each in left if each.spec.name == spec.name and _same_place(each.spec, spec)), None)
        if slot is None:
            unmatched.append(spec)
        else:
            left.remove(slot)
            kept.append(slot)
    names = {slot.spec.name for slot in kept}
    for spec in unmatched:
        slot = next((each for each in left if _same_place(each.spec, spec) and each.spec.name not in names), None)
        if slot is None:
            missing.append(spec)
        else:
            left.remove(slot)
            kept.append(slot)
            names.add(slot.spec.name)
    return kept, missing


def _same_place(a: InstanceSpec, b: InstanceSpec) -> bool:
    return (a.kind, a.device_id, a.host_policy) == (b.kind, b.device_id, b.host_policy)
