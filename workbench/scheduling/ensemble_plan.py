"""The plan of an ensemble: its steps as a graph, checked against the models that it is composed of.

What its own configuration decides is checked first (``config.validate_ensemble``), then what the composing models
decide: mappings, data types, shapes, batch sizes, decoupled models. Source: ``ensemble_utils.cc``,
``ensemble_scheduler.cc``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from workbench.config.problem import Problem
from workbench.errors import ConfigError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor as a configuration describes it: ``datatype`` as there (TYPE_FP32), dims without the batch dimension.

    ``reshape`` is None where the configuration has none.
    """

    name: str
    datatype: str
    dims: Shape
    optional: bool = False
    reshape: Shape | None = None

    @property
    def inner_dims(self) -> Shape:
        """The dims behind the reshape."""
        return self.dims if self.reshape is None else self.reshape


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What a plan needs to know of a composing model. ``decoupled`` of an ensemble is that of its plan."""

    name: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    decoupled: bool = False


def describe_model(message: Any, *, decoupled: bool | None = None) -> ModelDescription:
    """The description of a model by its completed ``ModelConfig`` message; ``decoupled`` for ensembles."""
    given = message.model_transaction_policy.decoupled if decoupled is None else decoupled
    return ModelDescription(
        message.name,
        message.max_batch_size,
        tuple(_spec(tensor, optional=tensor.optional) for tensor in message.input),
        tuple(_spec(tensor) for tensor in message.output),
        given,
    )


def _spec(message: Any, *, optional: bool = False) -> TensorSpec:
    kind = message.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[message.data_type].name
    reshape = tuple(message.reshape.shape) if message.HasField("reshape") else None
    return TensorSpec(message.name, kind, tuple(message.dims), optional, reshape)


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step: a model, and which ensemble tensor each of its inputs and outputs is.

    ``inputs`` and ``outputs`` are pairs (the model's name, the ensemble tensor's), by the model's name; ``version`` -1
    is the latest; ``input_dims`` are the dims of the model's inputs, for batch bridging.
    """

    index: int
    model: str
    version: int
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    batching: bool
    decoupled: bool
    input_dims: Mapping[str, Shape] = field(hash=False)

    @property
    def label(self) -> str:
        """How the step is named to people."""
        return f"step {self.index} ('{self.model}')"


@dataclass(frozen=True, slots=True)
class EnsemblePlan:
    """A checked ensemble. ``decoupled`` iff a step is; ``max_inflight_requests`` is per step, 0 for no limit."""

    name: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    steps: tuple[PlanStep, ...]
    decoupled: bool
    max_inflight_requests: int = 0

    def output_names(self) -> tuple[str, ...]:
        """Names of the ensemble's outputs in the order of its configuration."""
        return tuple(output.name for output in self.outputs)

    def consumers(self, tensor: str) -> tuple[int, ...]:
        """Indexes of the steps that have the tensor as an input."""
        return tuple(step.index for step in self.steps if any(name == tensor for _, name in step.inputs))

    def needed_steps(self, outputs: Iterable[str]) -> frozenset[int]:
        """Indexes of the steps without which some of these outputs cannot be made (5.2); the others are pruned."""
        makers = {tensor: step for step in self.steps for _, tensor in step.outputs}
        needed: set[int] = set()
        wanted = list(outputs)
        while wanted:
            step = makers.get(wanted.pop())
            if step is not None and step.index not in needed:
                needed.add(step.index)
                wanted.extend(tensor for _, tensor in step.inputs)
        return frozenset(needed)

    def upstream_steps(self) -> dict[int, frozenset[int]]:
        """For each step all steps that its inputs depend on."""
        return {
            step.index: self.needed_steps(tensor for _, tensor in step.inputs) - {step.index} for step in self.steps
        }


# ---- shapes


def dims_agree(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether dims are equal where neither is variable (CompareDimsWithWildcard)."""
    return len(a) == len(b) and all(x == y or -1 in (x, y) for x, y in zip(a, b, strict=True))


def dims_text(dims: Iterable[int]) -> str:
    """Dims as Triton writes them: ``[-1,16]``."""
    return "[" + ",".join(str(dim) for dim in dims) + "]"


def bridge_shape(config_dims: Sequence[int], batching: bool, batch_size: int, shape: Shape) -> Shape:
    """The full shape in which a tensor goes to a model, or out of the ensemble (5.3, ReshapeTensorDims).

    Where a batching model gets a tensor that was made without a batch and already fits its dims, a batch of 1 is put in
    front; where a model without batching gets a batch of 1 that does not fit, the batch dimension is taken off.

    Args:
        config_dims: of the receiving input or output, without batch dimension.
        batching: whether the receiver batches.
        batch_size: of whoever made the tensor, 0 for none.
        shape: the tensor's own.
    """
    if batching and not batch_size and dims_agree(config_dims, shape):
        return (1, *shape)
    if not batching and batch_size == 1 and not dims_agree(config_dims, shape):
        return shape[1:]
    return shape


def reshape_input(spec: TensorSpec, batching: bool, shape: Shape) -> Shape:
    """The full shape of an ensemble's input after the ``reshape`` of its configuration, variable dims in order."""
    if spec.reshape is None:
        return shape
    batch, rest = (shape[:1], shape[1:]) if batching else ((), shape)
    variable = iter([size for dim, size in zip(spec.dims, rest, strict=True) if dim == -1])
    return batch + tuple(next(variable) if dim == -1 else dim for dim in spec.reshape)


# ---- checks

_Refuse = Callable[[Problem], None]
"""Takes what is wrong: raises it, or collects it and lets the check go on."""


@dataclass(slots=True, eq=False)
class _Node:
    """An ensemble tensor, and the model that its type and shape are inferred from."""

    model: str
    datatype: str = ""
    dims: Shape = ()
    batching: bool = False
    decoupled: bool = False
    label: int = 0
    visited: bool = False
    before: list[_Node] = field(default_factory=list)
    after: list[_Node] = field(default_factory=list)
    sibling: _Node | None = None

    @property
    def full_dims(self) -> Shape:
        return (-1, *self.dims) if self.batching else self.dims


def plan_ensemble(message: Any, models: Mapping[str, ModelDescription]) -> EnsemblePlan:
    """The plan of an ensemble's normalised ``ModelConfig`` message.

    Args:
        message: of the ensemble.
        models: the composing models by name; those that are missing are named in the error.

    Raises:
        ConfigError: Triton's text of what is wrong; a ``ValidationError`` where the configuration alone decides it.
    """
    from workbench.config.validate_ensemble import ensemble_problems
    from workbench.config.validation import ValidationError

    def refuse(problem: Problem) -> NoReturn:
        raise ValidationError(problem)

    for problem in ensemble_problems(message):
        refuse(problem)
    steps = message.ensemble_scheduling.step
    missing = sorted({step.model_name for step in steps if step.model_name not in models})
    if missing:
        raise ConfigError(
            f"ensemble {message.name} contains models that are not available or ambiguous: {', '.join(missing)}"
        )
    me = describe_model(message)
    decoupled = _label_decoupled(me, _tensors(message, me, models, refuse), refuse)
    limit = getattr(message.ensemble_scheduling, "max_inflight_requests", 0)
    plan_steps = tuple(_plan_step(index, step, models[step.model_name]) for index, step in enumerate(steps))
    return EnsemblePlan(me.name, me.max_batch_size, me.inputs, me.outputs, plan_steps, decoupled, limit)


def plan_problems(message: Any, models: Mapping[str, ModelDescription]) -> list[Problem]:
    """All that ``plan_ensemble`` would refuse about the composing models, each with its place in the configuration.

    Args:
        message: of an ensemble that is right in itself, normalised.
        models: the composing models by name, all of them.
    """
    found: list[Problem] = []
    me = describe_model(message)
    nodes = _tensors(message, me, models, found.append)
    if not found:
        _label_decoupled(me, nodes, found.append)
    return found


def _tensors(
    message: Any, me: ModelDescription, models: Mapping[str, ModelDescription], refuse: _Refuse
) -> dict[str, _Node]:
    """The ensemble's tensors by name, checked against what the models say of them."""
    nodes: dict[str, _Node] = {}
    for spec in (*me.inputs, *me.outputs):
        nodes.setdefault(spec.name, _Node(me.name, spec.datatype, spec.inner_dims, me.max_batch_size > 0))
    for index, step in enumerate(message.ensemble_scheduling.step):
        model = models[step.model_name]
        if model.max_batch_size and model.max_batch_size < me.max_batch_size:
            text = (
                f"ensemble {me.name} allows maximum batch size {me.max_batch_size}, but it contains model {model.name} "
                f"which only allows maximum batch size to be {model.max_batch_size}"
            )
            refuse(Problem("max_batch_size", text))
        place = f"ensemble_scheduling.step[{index}]"
        _map_inputs(me.name, step, model, nodes, place, refuse)
        _map_outputs(me.name, step, model, nodes, place, refuse)
    return nodes


def _plan_step(index: int, step: Any, model: ModelDescription) -> PlanStep:
    return PlanStep(
        index,
        step.model_name,
        step.model_version,
        tuple(sorted(step.input_map.items())),
        tuple(sorted(step.output_map.items())),
        model.max_batch_size > 0,
        model.decoupled,
        {spec.name: spec.dims for spec in model.inputs},
    )


def _map_inputs(
    ensemble: str, step: Any, model: ModelDescription, nodes: dict[str, _Node], place: str, refuse: _Refuse
) -> None:
    names = {spec.name for spec in model.inputs}
    for name, tensor in sorted(step.input_map.items()):
        if name not in names:
            text = (
                f"in ensemble {ensemble}, ensemble tensor {tensor} is mapping to non-existing input {name} in model "
                f"{model.name}"
            )
            refuse(Problem(_entry(place, "input_map", name), text))
    for spec in model.inputs:
        if spec.name in step.input_map:
            path = _entry(place, "input_map", spec.name)
            _match(ensemble, step.input_map[spec.name], spec, model, nodes, path, refuse)
        elif not spec.optional:
            text = (
                f"in ensemble {ensemble}, input {spec.name} in model {model.name} is not mapped to any ensemble tensors"
            )
            refuse(Problem(place, text))


def _map_outputs(
    ensemble: str, step: Any, model: ModelDescription, nodes: dict[str, _Node], place: str, refuse: _Refuse
) -> None:
    specs = {spec.name: spec for spec in model.outputs}
    known = {}
    for name, tensor in sorted(step.output_map.items()):
        if name in specs:
            known[name] = tensor
            continue
        text = (
            f"in ensemble {ensemble}, ensemble tensor {tensor} is mapped from non-existing output {name} in model "
            f"{model.name}"
        )
        refuse(Problem(_entry(place, "output_map", name), text))
    sibling = _Node(model.name)
    for name, tensor in known.items():
        node = _match(ensemble, tensor, specs[name], model, nodes, _entry(place, "output_map", name), refuse)
        node.sibling, node.decoupled = sibling, model.decoupled
        for source in sorted(set(step.input_map.values())):
            if source in nodes:  # else it is mapped to an input that does not exist
                node.before.append(nodes[source])
                nodes[source].after.append(node)


def _entry(place: str, field_name: str, key: str) -> str:
    return f"{place}.{field_name}[{json.dumps(key, ensure_ascii=False)}]"


def _match(
    ensemble: str,
    tensor: str,
    spec: TensorSpec,
    model: ModelDescription,
    nodes: dict[str, _Node],
    path: str,
    refuse: _Refuse,
) -> _Node:
    """The tensor's node, made now or found to agree with the model's input or output."""
    mine = _Node(model.name, spec.datatype, spec.dims, model.max_batch_size > 0)
    known = nodes.setdefault(tensor, mine)
    intro = f"in ensemble {ensemble}, ensemble tensor {tensor}: inconsistent"
    if known.datatype != mine.datatype:
        text = (
            f"{intro} data type: {known.datatype} is inferred from model {known.model} while {mine.datatype} is "
            f"inferred from model {mine.model}"
        )
        refuse(Problem(path, text))
    elif not dims_agree(known.dims, mine.dims) and not dims_agree(known.full_dims, mine.full_dims):
        text = (
            f"{intro} shape: {dims_text(known.full_dims)} is inferred from model {known.model} while "
            f"{dims_text(mine.full_dims)} is inferred from model {mine.model}"
        )
        refuse(Problem(path, text))
    return known


def _label_decoupled(me: ModelDescription, nodes: dict[str, _Node], refuse: _Refuse) -> bool:
    """Follows the data from the inputs, with a label for each decoupled step; whether there is any.

    A step that has inputs from different decoupled steps is refused.
    """
    sink = _Node(me.name)
    for output in me.outputs:
        node = nodes[output.name]
        sink.before.append(node)
        node.after.append(sink)
    label = 0
    waiting = [nodes[spec.name] for spec in me.inputs]
    for node in waiting:
        node.visited = True
    for node in waiting:  # grows while it is gone through
        for after in node.after:
            if after.visited or not all(before.visited for before in after.before):
                continue
            before_label = after.before[0].label
            if any(before.label != before_label for before in after.before):
                text = (
                    f"in ensemble {me.name}, step of model '{after.model}' receives inputs originated from different "
                    "decoupled models"
                )
                refuse(Problem("ensemble_scheduling", text))
            sibling = after.sibling
            if sibling is not None and sibling.visited:
                after.label = sibling.label
            else:
                label += after.decoupled
                after.label = label if after.decoupled else before_label
                if sibling is not None:
                    sibling.label, sibling.visited = after.label, True
            after.visited = True
            waiting.append(after)
    return label > 0
