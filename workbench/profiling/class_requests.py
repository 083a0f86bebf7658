"""What the requests of a load are made of: the models that they go to, and the requests of one of its classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.profiling.load import Load
from workbench.profiling.plan import DEFAULT_LENGTH, ID_FROM, VARIANTS, ClassPlan, Plan
from workbench.profiling.target import Target
from workbench.profiling.trace import END, START
from workbench.protocol.tensors import InferenceRequest

Inputs = Any
"""What to send: one request's arrays by name, or several requests' in rotation, as they are sent, so with the batch
dimension where the model has one; or rows of inputs: a pandas DataFrame, or the path of a file (perf_analyzer's
--input-data, ``.csv``, ``.parquet``, ``.npy``, ``.npz``) or directory; or a ``Trace``, whose inputs are sent; of a load
of several classes also a mapping of these by class. None takes the model's example inputs."""

NO_PRIORITIES = "priorities change nothing"
"""How the note of a point begins whose requests have a priority, of a model without levels."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Requests as the plan has them. ``rows`` is the number of inferences in one (of several classes the first's);
    ``source`` says where the inputs came from."""

    requests: tuple[InferenceRequest, ...]
    rows: float
    source: str
    notes: tuple[str, ...] = ()
    plan: Plan = field(default_factory=lambda: Plan(()))


class Models:
    """The configurations of the models that a load goes to."""

    def __init__(self, target: Target, model: str, config: Mapping[str, Any]) -> None:
        self.target = target
        self.model = model
        self._known = {model: config}

    def config(self, model: str) -> Mapping[str, Any]:
        """The configuration of a model; without a name, as in all of these, of the one that is measured."""
        name = model or self.model
        if name not in self._known:
            self._known[name] = self.target.model_config(name)
        return self._known[name]

    def largest(self, model: str) -> int:
        """Its max_batch_size; 0 where requests have no batch dimension."""
        return int(self.config(model).get("max_batch_size", 0) or 0)

    def streaming(self, model: str, asked: bool) -> bool:
        """Whether its responses are streamed: where that is asked for, and always those of a decoupled model."""
        return asked or bool((self.config(model).get("model_transaction_policy") or {}).get("decoupled"))

    def sequences(self, model: str) -> bool:
        """Whether the model wants sequences: an iterative one makes them itself."""
        batching = self.config(model).get("sequence_batching")
        return batching is not None and not batching.get("iterative_sequence")

    def without_priorities(self, load: Load) -> list[str]:
        """A note where a load has a priority that its model does not go by; an ensemble hands it to its steps."""
        config = self.config(load.model)
        levels = (config.get("dynamic_batching") or {}).get("priority_levels", 0)
        if not load.priority or int(levels or 0) or config.get("ensemble_scheduling"):
            return []
        return [f"{NO_PRIORITIES}: '{load.model or self.model}' has no dynamic_batching.priority_levels"]

    def id_is_text(self, model: str) -> bool:
        """Whether its correlation ids are texts."""
        for entry in (self.config(model).get("sequence_batching") or {}).get("control_input", ()):
            for control in entry.get("control", ()):
                if control.get("kind") == "CONTROL_SEQUENCE_CORRID":
                    return str(control.get("data_type")) == "TYPE_STRING"
        return False


@dataclass(slots=True)
class Made:
    """The requests of one class; ``streams`` has the places of those that make up each sequence, if that is known."""

    requests: list[InferenceRequest]
    rows: float
    source: str
    notes: tuple[str, ...] = ()
    streams: tuple[tuple[int, ...], ...] = ()

    def plan(self, name: str, first: int, load: Load, models: Models) -> ClassPlan:
        """Its part of the plan; its messages begin at ``first``."""
        length = length_of(load, models)
        streams = tuple(tuple(first + VARIANTS * place for place in steps) for steps in self.streams) if length else ()
        return ClassPlan(
            first, len(self.requests), name, load.model, self.rows, models.streaming(load.model, load.streaming),
            length, streams,
        )  # fmt: skip

    def expanded(self, load: Load, models: Models) -> list[InferenceRequest]:
        """With what the load says of its requests; those of sequences once for each combination of flags."""
        made = [
            replace(
                request,
                priority=load.priority,
                timeout=round(load.timeout_s * 1e6),
                parameters={**request.parameters, **load.parameters},
            )
            for request in self.requests
        ]
        return with_flags(made, models.id_is_text(load.model)) if length_of(load, models) else made


def length_of(load: Load, models: Models) -> int:
    """How many requests a sequence of the load has; 0 where it sends none."""
    wanted = load.sequence_length or DEFAULT_LENGTH
    return wanted if load.sequence_length or models.sequences(load.model) else 0


def with_flags(requests: Sequence[InferenceRequest], id_is_text: bool) -> list[InferenceRequest]:
    """Each request with no flag, START, END and both, and a correlation id to be put in the place of."""
    number: int | str = str(ID_FROM) if id_is_text else ID_FROM
    return [
        replace(request, sequence_id=number, sequence_start=bool(flags & START), sequence_end=bool(flags & END))
        for request in requests
        for flags in range(VARIANTS)
    ]
