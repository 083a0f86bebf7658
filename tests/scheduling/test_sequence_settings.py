"""What a configuration says about sequences: strategies, controls (3.9), states (3.10), refusals of states."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from workbench.errors import ConfigError
from workbench.scheduling import (
    ControlTensor,
    DirectSequenceScheduler,
    DynamicBatcher,
    InitialState,
    OldestSequenceScheduler,
    Scheduler,
    SequenceSettings,
    StateSpec,
    make_scheduler,
    scheduler_settings,
    sequence_scheduler,
    sequence_settings_from_config,
)

CONTROLS = """
control_input [
  { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } ] },
  { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] },
  { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
  { name: "END" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [ -1, 1 ] } ] }
]
"""


def parsed(text: str, more: str = "") -> SequenceSettings:
    whole = f'name: "m" max_batch_size: 4 {more} sequence_batching {{ {text} }}'
    return sequence_settings_from_config(text_format.Parse(whole, pb.ModelConfig()))


def test_direct_is_read() -> None:
    text = "max_sequence_idle_microseconds: 7 direct { max_queue_delay_microseconds: 5 minimum_slot_utilization: 0.5 }"
    assert parsed(text) == SequenceSettings(
        model_name="m",
        max_batch_size=4,
        max_sequence_idle_microseconds=7,
        max_queue_delay_microseconds=5,
        minimum_slot_utilization=0.5,
    )


def test_oldest_is_read() -> None:
    text = """oldest { max_candidate_sequences: 9 preferred_batch_size: [2, 4] max_queue_delay_microseconds: 5
    preserve_ordering: true } iterative_sequence: true"""
    settings = parsed(text)
    assert settings == SequenceSettings(
        model_name="m",
        max_batch_size=4,
        strategy="oldest",
        max_candidate_sequences=9,
        preferred_batch_sizes=(2, 4),
        max_queue_delay_microseconds=5,
        preserve_ordering=True,
        iterative_sequence=True,
    )
    assert settings.inner().effective_preferred_sizes == (2, 4)


@pytest.mark.rule("3.7b")
def test_without_a_strategy_it_is_direct_and_the_idle_time_a_second() -> None:
    settings = parsed("")
    assert (settings.strategy, settings.idle) == ("direct", 1_000_000_000)
    assert isinstance(sequence_scheduler(settings), DirectSequenceScheduler)
    assert isinstance(sequence_scheduler(parsed("oldest { }")), OldestSequenceScheduler)


@pytest.mark.rule("1.1a", "1.1b", "1.1c")
def test_1_1_the_scheduler_is_chosen_by_the_configuration() -> None:
    def made(text: str) -> Scheduler:
        message = text_format.Parse(f"max_batch_size: 4 {text}", pb.ModelConfig())
        return make_scheduler(scheduler_settings(message, hold_until_queued=2, hold_until_backlog=1), first_batch_seq=7)

    direct = made("sequence_batching { }")
    assert isinstance(direct, DirectSequenceScheduler)
    assert (direct.settings.hold_until_queued, direct.settings.hold_until_backlog) == (2, 1)
    assert isinstance(made("sequence_batching { oldest { } }"), OldestSequenceScheduler)
    dynamic = made("dynamic_batching { }")
    assert isinstance(dynamic, DynamicBatcher)
    assert (dynamic.settings.batching, dynamic.settings.hold_until_queued) == (True, 2)
    assert [each.per_instance for each in (direct, dynamic, made(""))] == [True, False, False]


@pytest.mark.rule("3.9a")
def test_3_9_controls_are_read_with_their_values() -> None:
    assert parsed(CONTROLS).controls == (
        ControlTensor("START", "START", "INT32", 0, 1),
        ControlTensor("END", "END", "FP32", -1.0, 1.0),
        ControlTensor("READY", "READY", "BOOL", False, True),
        ControlTensor("ID", "CORRID", "BYTES", 0, 0),
    )


STATE = 'state [ { input_name: "IN" output_name: "OUT" data_type: TYPE_FP32 dims: [ -1, 2 ] %s } ]'


@pytest.mark.rule("3.10d")
def test_3_10_a_state_begins_with_ones_for_variable_dims() -> None:
    (state,) = parsed(STATE % "").states
    assert state == StateSpec("IN", "OUT", "FP32", (-1, 2))
    assert (state.first_shape(True), state.first_shape(False)) == ((1, 1, 2), (1, 2))


@pytest.mark.rule("3.10c")
def test_3_10_an_initial_state_is_zeros_or_a_file() -> None:
    zeros = 'initial_state { name: "s" data_type: TYPE_FP32 dims: [ 3, 2 ] zero_data: true }'
    (state,) = parsed(STATE % zeros).states
    assert state.initial == InitialState("s", "FP32", (3, 2))
    assert state.first_shape(True) == (1, 3, 2)
    file = 'initial_state { name: "s" data_type: TYPE_FP32 dims: [ 3, 2 ] data_file: "f" }'
    assert parsed(STATE % file).states[0].initial == InitialState("s", "FP32", (3, 2), "f")


GOOD = 'name: "s" data_type: TYPE_FP32 dims: [ 3, 2 ] zero_data: true'


@pytest.mark.rule("3.10h")
@pytest.mark.parametrize(
    ("states", "message"),
    [
        (
            STATE % f"initial_state [ {{ {GOOD} }}, {{ {GOOD} }} ]",
            "initial_state field for state input 'IN' must contain exactly one or zero element. Found '2' elements.",
        ),
        (
            STATE % 'initial_state { name: "s" data_type: TYPE_INT32 dims: [ 3, 2 ] zero_data: true }',
            "The data type used for 'initial_state' field of state 'IN' does not match the state data type.",
        ),
        (
            STATE % "initial_state { data_type: TYPE_FP32 dims: [ 3, 2 ] zero_data: true }",
            "Field 'name' must be set when using initial_state for state input 'IN'.",
        ),
        (
            STATE % 'initial_state { name: "s" data_type: TYPE_FP32 dims: [ 3 ] zero_data: true }',
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'IN'."
            " 1 != 2",
        ),
        (
            STATE % 'initial_state { name: "s" data_type: TYPE_FP32 dims: [ -1, 2 ] zero_data: true }',
            "'initial_state' field for state input name 'IN' contains variable dimensions.",
        ),
        (
            STATE % 'initial_state { name: "s" data_type: TYPE_FP32 dims: [ 3, 5 ] zero_data: true }',
            "'initial_state' dim for input name 'IN' doesn't match 'state' dim description. 5 != 2",
        ),
        (
            STATE % 'initial_state { name: "s" data_type: TYPE_FP32 dims: [ 3, 2 ] }',
            "initial_state setting expects state'IN' to have state_data set",
        ),
        (
            STATE % f"initial_state {{ {GOOD} }}" + " " + STATE % f"initial_state {{ {GOOD} }}",
            "State input name 'IN' specified more than once.",
        ),
        (
            STATE % "use_growable_memory: true",
            "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name 'IN'.",
        ),
        (
            STATE % "use_growable_memory: true use_same_buffer_for_input_output: true",
            "'use_growable_memory' can only work with KIND_GPU model instances right now. Please either change the "
            "instance type to KIND_GPU or set 'use_growable_memory' to false for state input 'IN'.",
        ),
    ],
)
def test_3_10_a_state_that_cannot_be_is_refused_in_tritons_words(states: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parsed(states)
    assert raised.value.message == message


@pytest.mark.rule("3.10h")
def test_3_10_growable_memory_needs_gpu_instances() -> None:
    more = "instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]"
    (state,) = parsed(STATE % "use_growable_memory: true use_same_buffer_for_input_output: true", more).states
    assert state.use_growable_memory
    assert state.use_same_buffer


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_batch_size": -1}, "max_batch_size"),
        ({"max_candidate_sequences": -1}, "max_candidate_sequences"),
        ({"minimum_slot_utilization": 1.5}, "minimum_slot_utilization"),
    ],
)
def test_nonsense_is_refused_before_it_reaches_a_queue(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SequenceSettings(**settings)
