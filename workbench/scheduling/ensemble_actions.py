"""What goes in and out of an ensemble's executor: requests, references to tensors, and actions to be carried out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.errors import Code
from workbench.scheduling.ensemble_plan import PlanStep, Shape

Iteration = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor that lies elsewhere: ``value`` is opaque here, ``shape`` has the batch dimension where there is one."""

    value: Any
    shape: Shape


@dataclass(frozen=True, slots=True)
class SequenceFlags:
    """Correlation id and flags of a request, or those that a response asks of the steps behind it (5.4)."""

    correlation_id: int | str = 0
    start: bool = False
    end: bool = False


@dataclass(frozen=True, slots=True)
class EnsembleRequest:
    """A request to the ensemble.

    ``batch_size`` is 0 for an ensemble without batching; ``outputs`` are those asked for, all if empty; ``log_prefix``
    is Triton's ``[request id: ID] ``.
    """

    inputs: Mapping[str, TensorRef]
    batch_size: int = 0
    outputs: tuple[str, ...] = ()
    sequence: SequenceFlags = SequenceFlags()
    log_prefix: str = ""


@dataclass(frozen=True, slots=True)
class StartStep:
    """Send a request to a step's model, under ``token``.

    ``inputs`` have the model's names and the shapes in which it wants them; an optional input that was not provided is
    not among them. ``outputs`` are the model's outputs to ask for. Everything else (id, priority, timeout, parameters)
    is the top request's.
    """

    run: Hashable
    token: int
    step: PlanStep
    iteration: Iteration
    inputs: Mapping[str, TensorRef]
    outputs: tuple[str, ...]
    sequence: SequenceFlags


@dataclass(frozen=True, slots=True)
class Answer:
    """Send a response of the ensemble. An output that no step provided is not in it.

    ``sequence``: Triton adds it as the response parameters sequence_id, sequence_start and sequence_end; None: it does
    not.
    """

    run: Hashable
    outputs: Mapping[str, TensorRef]
    sequence: SequenceFlags | None
    final: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """Send the mere end of the stream; all responses have been sent (decoupled ensembles)."""

    run: Hashable


@dataclass(frozen=True, slots=True)
class Fail:
    """Send an error response, the last one. ``step`` says where it happened, None for the ensemble as a whole.

    ``message`` is Triton's text; ``cause`` whatever the driver gave with the step's error. In the statistics the
    ensemble's failure counts as OTHER.
    """

    run: Hashable
    message: str
    code: Code
    step: PlanStep | None = None
    cause: Any = None


@dataclass(frozen=True, slots=True)
class CancelStep:
    """Cancel the request of this token; its end is still to be told."""

    token: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Take no further response of this decoupled step's request for now: what follows it cannot keep up."""

    token: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Take responses of this step's request again."""

    token: int


Action = StartStep | Answer | Finish | Fail | CancelStep | Hold | Resume
