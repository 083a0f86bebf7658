"""What a model's configuration says about sequences: strategy, controls and implicit states, as data.

Source: ``model_config.proto`` (ModelSequenceBatching), ``sequence_batch_scheduler.cc``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from workbench.errors import ConfigError
from workbench.scheduling.interface import SlotRow
from workbench.scheduling.settings import BatcherSettings

IDLE_DEFAULT_MICROSECONDS = 1_000_000
"""``max_sequence_idle_microseconds`` where it is 0."""

ControlKind = Literal["START", "END", "READY", "CORRID"]
ControlValue = int | float | bool | str

_BOOLEAN_PAIRS = (("int32_false_true", "INT32"), ("fp32_false_true", "FP32"), ("bool_false_true", "BOOL"))
_INTEGER_BITS = {"UINT64": 64, "INT64": 64, "UINT32": 32, "INT32": 32}


def as_float32(value: float) -> float:
    """The value rounded to single precision, in which Triton compares slot utilizations."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


@dataclass(frozen=True, slots=True)
class ControlTensor:
    """An input by which a model learns where in its sequence a row is.

    ``datatype`` is the wire name. The values are those of a false and a true row; CORRID has none.
    """

    name: str
    kind: ControlKind
    datatype: str
    false_value: ControlValue = 0
    true_value: ControlValue = 1

    def value(self, row: SlotRow) -> ControlValue:
        """What the row's element of this tensor is. A null row is false in all, and its correlation id 0 or empty.

        A correlation id is cut to the width of an integer tensor, as Triton copies its lower bytes.
        """
        if self.kind == "CORRID":
            return self._correlation_id(row)
        if self.kind == "READY":
            return self.true_value if row.ready else self.false_value
        flag = row.start if self.kind == "START" else row.end
        return self.true_value if flag and row.ready else self.false_value

    def _correlation_id(self, row: SlotRow) -> ControlValue:
        given = row.correlation_id
        if self.datatype == "BYTES":
            return str(given) if row.ready else ""
        bits = _INTEGER_BITS[self.datatype]
        number = given & ((1 << bits) - 1) if row.ready and isinstance(given, int) else 0
        return number - (1 << bits) if self.datatype.startswith("INT") and number >> (bits - 1) else number


@dataclass(frozen=True, slots=True)
class ControlColumn:
    """One control tensor for a whole batch: a value a row. ``shape`` is that of one row's tensor."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: tuple[ControlValue, ...]


@dataclass(frozen=True, slots=True)
class InitialState:
    """How a state begins: zeros (``data_file`` empty) or the file ``initial_state/<data_file>`` of the model."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    data_file: str = ""


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One implicit state: ``output_name`` of a response becomes ``input_name`` of the sequence's next request."""

    input_name: str
    output_name: str
    datatype: str
    dims: tuple[int, ...]
    initial: InitialState | None = None
    use_same_buffer: bool = False
    use_growable_memory: bool = False

    def first_shape(self, batching: bool) -> tuple[int, ...]:
        """The shape at the start of a sequence: variable dims are 1; with the batch dimension where there is one."""
        dims = self.initial.dims if self.initial is not None else self.dims
        return ((1,) if batching else ()) + tuple(1 if dim == -1 else dim for dim in dims)


@dataclass(frozen=True, slots=True)
class SequenceSettings:
    """Settings of the sequence batcher; field names are Triton's where it has one.

    ``strategy`` is ``direct`` unless ``oldest`` is set. ``hold_until_queued`` and ``hold_until_backlog`` are Triton's
    test hooks TRITONSERVER_DELAY_SCHEDULER and TRITONSERVER_BACKLOG_DELAY_SCHEDULER: no batch is formed before so many
    requests wait in slots and in the backlog; once.

    Raises:
        ValueError: a negative number, or a minimum_slot_utilization outside 0..1.
    """

    model_name: str = ""
    max_batch_size: int = 0
    strategy: Literal["direct", "oldest"] = "direct"
    max_sequence_idle_microseconds: int = IDLE_DEFAULT_MICROSECONDS
    max_queue_delay_microseconds: int = 0
    minimum_slot_utilization: float = 0.0
    max_candidate_sequences: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    preserve_ordering: bool = False
    iterative_sequence: bool = False
    controls: tuple[ControlTensor, ...] = ()
    states: tuple[StateSpec, ...] = ()
    hold_until_queued: int = 0
    hold_until_backlog: int = 0

    def __post_init__(self) -> None:
        for name in (
            "max_batch_size",
            "max_sequence_idle_microseconds",
            "max_queue_delay_microseconds",
            "max_candidate_sequences",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if not 0.0 <= self.minimum_slot_utilization <= 1.0:
            raise ValueError(f"minimum_slot_utilization must be in 0..1, got {self.minimum_slot_utilization}")

    @property
    def slots(self) -> int:
        """Sequence slots of each instance (3.4)."""
        if self.strategy == "oldest" and self.max_candidate_sequences > 0:
            return self.max_candidate_sequences
        return max(1, self.max_batch_size)

    @property
    def idle(self) -> int:
        """How long a sequence may be idle, in ns."""
        return (self.max_sequence_idle_microseconds or IDLE_DEFAULT_MICROSECONDS) * 1000

    @property
    def corrid(self) -> ControlTensor | None:
        """The tensor of the correlation id, if the model has one."""
        return next((control for control in self.controls if control.kind == "CORRID"), None)

    def inner(self) -> BatcherSettings:
        """Settings of the dynamic batcher that an instance has under the strategy ``oldest``."""
        return BatcherSettings(
            max_batch_size=self.max_batch_size,
            preferred_batch_sizes=self.preferred_batch_sizes,
            max_queue_delay_microseconds=self.max_queue_delay_microseconds,
            preserve_ordering=self.preserve_ordering,
        )

    def control_columns(self, rows: Sequence[SlotRow]) -> list[ControlColumn]:
        """The control tensors of a batch, to be added to the inputs of its rows (3.9).

        Each row's tensor has the shape [1], with the batch dimension [1, 1].
        """
        shape = (1, 1) if self.max_batch_size else (1,)
        return [
            ControlColumn(control.name, control.datatype, shape, tuple(control.value(row) for row in rows))
            for control in self.controls
        ]


# ---- from a configuration


def _enum_name(message: Any, field: str) -> str:
    name: str = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number[getattr(message, field)].name
    return name


def wire_datatype(message: Any) -> str:
    """The wire name of a message's ``data_type``: TYPE_STRING is BYTES."""
    name = _enum_name(message, "data_type").removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def _controls(batching: Any) -> tuple[ControlTensor, ...]:
    found: list[ControlTensor] = []
    for tensor in batching.control_input:
        for control in tensor.control:
            kind: Any = _enum_name(control, "kind").removeprefix("CONTROL_SEQUENCE_")
            if kind == "CORRID":
                found.append(ControlTensor(tensor.name, kind, wire_datatype(control), 0, 0))
                continue
            for field, datatype in _BOOLEAN_PAIRS:
                pair = getattr(control, field)
                if len(pair) == 2:
                    found.append(ControlTensor(tensor.name, kind, datatype, pair[0], pair[1]))
                    break
    order = ("START", "END", "READY", "CORRID")
    return tuple(sorted(found, key=lambda control: order.index(control.kind)))


def _initial(state: Any, seen: set[str]) -> InitialState | None:
    name = state.input_name
    if len(state.initial_state) > 1:
        raise ConfigError(
            f"initial_state field for state input '{name}' must contain exactly one or zero element. Found "
            f"'{len(state.initial_state)}' elements."
        )
    if not state.initial_state:
        return None
    initial = state.initial_state[0]
    if initial.data_type != state.data_type:
        raise ConfigError(
            f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
        )
    if not initial.name:
        raise ConfigError(f"Field 'name' must be set when using initial_state for state input '{name}'.")
    if name in seen:
        raise ConfigError(f"State input name '{name}' specified more than once.")
    seen.add(name)
    _check_dims(name, list(initial.dims), list(state.dims))
    if initial.WhichOneof("state_data") is None:
        raise ConfigError(f"initial_state setting expects state'{name}' to have state_data set")
    return InitialState(initial.name, wire_datatype(initial), tuple(initial.dims), initial.data_file)


def _check_dims(name: str, initial: list[int], state: list[int]) -> None:
    if len(initial) != len(state):
        raise ConfigError(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
            f"'{name}'. {len(initial)} != {len(state)}"
        )
    for mine, theirs in zip(initial, state, strict=True):
        if mine == -1:
            raise ConfigError(f"'initial_state' field for state input name '{name}' contains variable dimensions.")
        if theirs not in (-1, mine):
            raise ConfigError(
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. {mine} != {theirs}"
            )


def _states(batching: Any, gpu: bool) -> tuple[StateSpec, ...]:
    seen: set[str] = set()
    states = []
    for state in batching.state:
        initial = _initial(state, seen)
        if state.use_growable_memory and not state.use_same_buffer_for_input_output:
            raise ConfigError(
                "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name "
                f"'{state.input_name}'."
            )
        if state.use_growable_memory and not gpu:
            raise ConfigError(
                "'use_growable_memory' can only work with KIND_GPU model instances right now. Please either change the "
                "instance type to KIND_GPU or set 'use_growable_memory' to false for state input "
                f"'{state.input_name}'."
            )
        states.append(
            StateSpec(
                state.input_name,
                state.output_name,
                wire_datatype(state),
                tuple(state.dims),
                initial,
                state.use_same_buffer_for_input_output,
                state.use_growable_memory,
            )
        )
    return tuple(states)


def sequence_settings_from_config(
    message: Any, *, hold_until_queued: int = 0, hold_until_backlog: int = 0
) -> SequenceSettings:
    """The sequence batcher's settings of a normalised ``ModelConfig`` message with ``sequence_batching``.

    Raises:
        ConfigError: what Triton says of an implicit state when it makes the scheduler.
    """
    batching = message.sequence_batching
    oldest = batching.HasField("oldest")
    strategy = batching.oldest if oldest else batching.direct
    gpu = bool(message.instance_group) and all(
        _enum_name(each, "kind") == "KIND_GPU" for each in message.instance_group
    )
    return SequenceSettings(
        model_name=message.name,
        max_batch_size=message.max_batch_size,
        strategy="oldest" if oldest else "direct",
        max_sequence_idle_microseconds=batching.max_sequence_idle_microseconds or IDLE_DEFAULT_MICROSECONDS,
        max_queue_delay_microseconds=strategy.max_queue_delay_microseconds,
        minimum_slot_utilization=0.0 if oldest else batching.direct.minimum_slot_utilization,
        max_candidate_sequences=batching.oldest.max_candidate_sequences if oldest else 0,
        preferred_batch_sizes=tuple(batching.oldest.preferred_batch_size) if oldest else (),
        preserve_ordering=oldest and batching.oldest.preserve_ordering,
        iterative_sequence=batching.iterative_sequence,
        controls=_controls(batching),
        states=_states(batching, gpu),
        hold_until_queued=hold_until_queued,
        hold_until_backlog=hold_until_backlog,
    )
