"""Triton's checks of an ensemble that its own configuration decides (ValidateEnsembleSchedulingConfig).

What depends on the composing models (types, shapes, versions, cycles between ensembles) is not decided here.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from workbench.config.problem import Problem
from workbench.config.schema import Message

_STEPS = "ensemble_scheduling.step"


@dataclass(slots=True, eq=False)
class _Tensor:
    """A tensor of the ensemble's graph: who it is made from, who is made from it."""

    name: str
    path: str
    is_output: bool
    ready: bool = False
    before: list[_Tensor] = field(default_factory=list)
    after: list[_Tensor] = field(default_factory=list)


def ensemble_problems(message: Message) -> Iterator[Problem]:
    """What Triton refuses about an ensemble; stops at what makes the rest meaningless."""
    name = message.name
    if message.platform != "ensemble":
        text = f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble"
        yield Problem("ensemble_scheduling", text)
        return
    if message.instance_group:
        yield Problem("instance_group", f"instance group should not be specified for ensemble '{name}'")
    if message.HasField("optimization"):
        yield Problem("optimization", f"optimization should not be specified for ensemble '{name}'")
    if message.model_warmup:
        yield Problem("model_warmup", f"model_warmup can not be specified for ensemble '{name}'")
    if not message.ensemble_scheduling.step:
        yield Problem("ensemble_scheduling", f"must specify 'step' for ensemble '{name}'")
        return
    tensors: dict[str, _Tensor] = {}
    broken = False
    for problem in _build(message, tensors):
        broken = True
        yield problem
    if not broken:
        yield from _flow(message, tensors)


def _build(message: Message, tensors: dict[str, _Tensor]) -> Iterator[Problem]:
    name = message.name
    for index, step in enumerate(message.ensemble_scheduling.step):
        place = f"{_STEPS}[{index}]"
        for each in ("model_name", "input_map", "output_map"):
            if not getattr(step, each):
                yield Problem(place, f"must specify '{each}' in step {index} of ensemble '{name}'")
        made: list[_Tensor] = []
        for key in sorted(step.output_map):
            tensor = step.output_map[key]
            path = f"{place}.output_map[{json.dumps(key)}]"
            known = tensors.setdefault(tensor, _Tensor(tensor, path, is_output=False))
            if known.is_output:
                text = f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{name}'"
                yield Problem(path, f"{text} step {index}")
            known.is_output = True
            made.append(known)
        for key in sorted(step.input_map):
            tensor = step.input_map[key]
            path = f"{place}.input_map[{json.dumps(key)}]"
            known = tensors.setdefault(tensor, _Tensor(tensor, path, is_output=False))
            for output in made:
                output.before.append(known)
                known.after.append(output)


def _flow(message: Message, tensors: dict[str, _Tensor]) -> Iterator[Problem]:
    name = message.name
    waiting: deque[_Tensor] = deque()
    for index, tensor in enumerate(message.input):
        known = tensors.get(tensor.name)
        if known is None:
            yield Problem(f"input[{index}]", f"ensemble input '{tensor.name}' for ensemble {name}' is not used")
            continue
        known.ready = True
        waiting.append(known)
    while waiting:
        for after in waiting.popleft().after:
            if not after.ready and all(before.ready for before in after.before):
                after.ready = True
                waiting.append(after)
    outputs: set[str] = set()
    for index, tensor in enumerate(message.output):
        known = tensors.get(tensor.name)
        if known is None:
            yield Problem(f"output[{index}]", f"ensemble output '{tensor.name}' for ensemble {name}' is not used")
        elif not known.ready:
            text = f"output '{tensor.name}' for ensemble '{name}' is not written"
            if known.before:
                text += f": at least one of its depending tensors, '{known.before[0].name}', is not connected"
            yield Problem(f"output[{index}]", text)
        outputs.add(tensor.name)
    for known in tensors.values():
        if known.name not in outputs and not (known.ready and known.after):
            yield Problem(known.path, f"ensemble tensor '{known.name}' is unused in ensemble '{name}'")
