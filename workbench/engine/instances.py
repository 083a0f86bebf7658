"""Making the instances of a model, warmed up, on loader threads; which of them stay when the groups change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.backends.base import Instance, InstanceSpec
from workbench.engine.execution import InstanceSlot
from workbench.engine.model import ModelVersion
from workbench.engine.warmup import WarmupSample, build_samples
from workbench.errors import ConfigError, InvalidRequest, WorkbenchError
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


def tell_of_policies(model: ModelVersion) -> None:
    """Host policies that nobody has defined change nothing, in Triton without a word: the log has one."""
    for index, name in model.core.placement.undefined(model.config):
        text = (
            f"instance_group[{index}] of model '{model.name}' names host policy '{name}', which has no settings: "
            f"nothing is pinned (start with --host-policy={name},cpu-cores=0-3)"
        )
        model.core.events.append("log", model.name, text, level="warning")


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
            model.core.turns.register(model, [slot for slot in slots if not slot.spec.passive])
        except WorkbenchError:
            for slot in slots:
                await model.core.on_closer(slot.close)
            raise
    return slots


async def _make(model: ModelVersion, spec: InstanceSpec, samples: Sequence[WarmupSample]) -> InstanceSlot:
    core = model.core
    instance = await core.on_loader(_create, model, spec)
    if spec.passive:
        return InstanceSlot(spec, instance, core.clock)
    slot = InstanceSlot(spec, instance, core.clock)
    try:
        for sample in samples:
            for _ in range(sample.count):
                await _run_sample(model, slot, sample)
    except BaseException:
        await core.on_closer(slot.close)
        raise
    return slot


def _create(model: ModelVersion, spec: InstanceSpec) -> Instance:
    """Under the host policy: the threads that a framework starts here inherit it."""
    with spec.host_policy.pinned():
        return model.loaded.create_instance(spec)


async def _run_sample(model: ModelVersion, slot: InstanceSlot, sample: WarmupSample) -> None:
    done: asyncio.Future[None] = model.core.loop.create_future()
    left, limit = len(sample.requests), model.config.max_batch_size
    errors: list[str] = []
    if left > max(1, limit) and getattr(model.loaded, "checks_batch_size", True):
        errors = [f"batch size {left} for '{slot.spec.name}', max allowed is {limit}"] * left
        raise _failed(sample, slot, errors)

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
        raise _failed(sample, slot, errors)


def _failed(sample: WarmupSample, slot: InstanceSlot, errors: Sequence[str]) -> InvalidRequest:
    texts = "".join(f"{error}; " for error in errors)
    return InvalidRequest(f"failed to run warmup sample '{sample.name}': {texts}", where=slot.spec.name)


def plan_update(
    current: Sequence[InstanceSlot], wanted: Sequence[InstanceSpec]
) -> tuple[list[InstanceSlot], list[InstanceSpec]]:
    """Which instances stay and which must be made so that ``wanted`` is what there is; the others are to be retired.

    An instance stays when one on the same device with the same host policy is wanted; equal names are matched first.
    One whose process has been given up goes: another is made in its place.
    """
    left = [slot for slot in current if not slot.gone]
    kept: list[InstanceSlot] = []
    missing: list[InstanceSpec] = []
    unmatched: list[InstanceSpec] = []
    for spec in wanted:
        slot = next((each for each in left if each.spec.label == spec.label and _same_place(each.spec, spec)), None)
        if slot is None:
            unmatched.append(spec)
        else:
            left.remove(slot)
            kept.append(slot)
    names = {slot.spec.label for slot in kept}
    for spec in unmatched:
        slot = next((each for each in left if _same_place(each.spec, spec) and each.spec.label not in names), None)
        if slot is None:
            missing.append(spec)
        else:
            left.remove(slot)
            kept.append(slot)
            names.add(slot.spec.label)
    return kept, missing


def _same_place(a: InstanceSpec, b: InstanceSpec) -> bool:
    return (a.kind, a.device_id, a.host_policy, a.passive) == (b.kind, b.device_id, b.host_policy, b.passive)
