"""The sequence batcher rule by rule. "3.1" and the like are the numbers of the reference on Triton's semantics.

Rules without a test here, and why: 3.10's swap of states (the engine's: here states are data), 3.12 (a check of the
configuration).
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from workbench.scheduling import (
    RESCHEDULE_TEXT,
    SEQUENCE_TIMEOUT_TEXT,
    Accepted,
    Batch,
    ControlTensor,
    DirectSequenceScheduler,
    Item,
    OldestSequenceScheduler,
    RejectedItem,
    Scheduler,
    SequenceScheduler,
    SequenceSettings,
    sequence_scheduler,
)

US = 1_000
MS = 1_000_000
S = 1_000_000_000


def direct(instances: int = 1, **settings: Any) -> DirectSequenceScheduler:
    made = DirectSequenceScheduler(SequenceSettings(**{"model_name": "m", "max_batch_size": 4, **settings}))
    return with_instances(made, instances)


def oldest(instances: int = 1, **settings: Any) -> OldestSequenceScheduler:
    given = {"model_name": "m", "max_batch_size": 4, "max_candidate_sequences": 4, **settings}
    return with_instances(OldestSequenceScheduler(SequenceSettings(strategy="oldest", **given)), instances)


def with_instances(made: Any, instances: int) -> Any:
    for number in range(instances):
        made.add_instance(number, 0)
    return made


BOTH = pytest.mark.parametrize("make", [direct, oldest])


def ask(scheduler: Scheduler, id: int, sequence: int | str, flags: str = "", at: int = 0, **item: Any) -> Any:
    """Offers a request; flags: S for START, E for END."""
    request = Item(id, sequence_id=sequence, sequence_start="S" in flags, sequence_end="E" in flags, **item)
    return scheduler.offer(request, at)


def put(scheduler: Scheduler, id: int, sequence: int | str, flags: str = "", at: int = 0, **item: Any) -> None:
    assert ask(scheduler, id, sequence, flags, at, **item) == Accepted()


def rows(batch: Batch | None) -> list[int | None]:
    """The ids of a batch's rows, None for null rows."""
    return [row.item.id if row.item else None for row in batch.slots] if batch else []


def run(scheduler: Scheduler, at: int = 0, instance: int = 0) -> list[int | None]:
    """Executes one batch."""
    batch = scheduler.acquire(instance, at)
    if batch is not None:
        scheduler.complete(batch, at)
    return rows(batch)


def run_all(scheduler: Scheduler, at: int = 0, instance: int = 0) -> list[list[int | None]]:
    got = []
    while batch := run(scheduler, at, instance):
        got.append(batch)
    return got


# ---- 3.1-3.3


@pytest.mark.rule("3.1")
@BOTH
def test_3_1_a_request_of_several_rows_is_refused(make: Any) -> None:
    assert ask(make(), 1, 7, "S", rows=2) == RejectedItem(
        1,
        "invalid",
        "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher",
        id_prefix=False,
    )


@pytest.mark.rule("3.2a")
@BOTH
@pytest.mark.parametrize("no_id", [0, ""])
def test_3_2_a_request_without_correlation_id_is_refused(make: Any, no_id: int | str) -> None:
    text = "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
    assert ask(make(), 1, no_id, "S") == RejectedItem(1, "invalid", text, id_prefix=False)


@pytest.mark.rule("3.2b")
@BOTH
@pytest.mark.parametrize("sequence", [7, "seven"])
def test_3_2_the_first_request_must_have_start(make: Any, sequence: int | str) -> None:
    scheduler = make()
    text = (
        f"inference request for sequence {sequence} to model 'm' must specify the START flag on the first request of"
        " the sequence"
    )
    assert ask(scheduler, 1, sequence) == RejectedItem(1, "invalid", text, id_prefix=False)
    put(scheduler, 2, sequence, "SE")
    assert ask(scheduler, 3, sequence).message == text, "after END the sequence is over, even if it has not run"


@pytest.mark.rule("3.3b")
@pytest.mark.parametrize(
    ("sequence", "expects", "given"),
    [("a", "UINT64", "BYTES"), ("a", "INT32", "BYTES"), (5, "BYTES", "UINT64")],
)
def test_3_3_the_correlation_id_must_be_of_the_type_of_the_control(
    sequence: int | str, expects: str, given: str
) -> None:
    scheduler = direct(controls=(ControlTensor("ID", "CORRID", expects),))
    text = f"sequence batching control 'ID' data-type is '{given}', but model 'm' expects '{expects}'"
    assert ask(scheduler, 1, sequence, "S") == RejectedItem(1, "invalid", text)


@pytest.mark.rule("3.3a")
def test_3_3_without_the_control_both_types_may_be_mixed() -> None:
    scheduler = direct()
    put(scheduler, 1, "1", "S")
    put(scheduler, 2, 1, "S")
    assert run(scheduler) == [1, 2]


# ---- 3.4


@pytest.mark.rule("3.4a")
def test_3_4_an_instance_has_max_batch_size_slots_and_at_least_one() -> None:
    assert direct(max_batch_size=3).sequence_statistics().slots == 3
    assert direct(max_batch_size=0, instances=2).sequence_statistics().slots == 2


@pytest.mark.rule("3.4b")
def test_3_4_oldest_has_max_candidate_sequences_slots() -> None:
    assert oldest(max_candidate_sequences=9).sequence_statistics().slots == 9
    assert oldest(max_candidate_sequences=0, max_batch_size=3).sequence_statistics().slots == 3


@pytest.mark.rule("3.4a")
def test_slots_that_nobody_needs_cost_nothing() -> None:
    tracemalloc.start()
    try:
        for scheduler in (direct(2, max_batch_size=2**31 - 1), oldest(2, max_candidate_sequences=2**31 - 1)):
            assert scheduler.sequence_statistics().slots == 2 * (2**31 - 1)
            for number in range(1, 7):
                put(scheduler, number, number, "S")
            assert [run(scheduler, instance=number) for number in (0, 1)] == [[1, 3, 5], [2, 4, 6]]
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.rule("3.4c")
def test_3_4_the_lowest_free_slot_number_over_the_instances_is_taken_first() -> None:
    scheduler = direct(instances=2)
    for id in (1, 2, 3):
        put(scheduler, id, id, "S")
    assert (run(scheduler, instance=0), run(scheduler, instance=1)) == ([1, 3], [2])


@pytest.mark.rule("3.4d")
@BOTH
def test_3_4_without_a_free_slot_whole_sequences_wait_in_order(make: Any) -> None:
    scheduler = make(max_batch_size=1, max_candidate_sequences=1)
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 2, "S")
    put(scheduler, 3, 3, "SE")
    put(scheduler, 4, 2, "E")
    assert scheduler.sequence_statistics().backlog == 2
    put(scheduler, 5, 1, "E")
    assert run_all(scheduler) == [[1], [5], [2], [4], [3]]


@BOTH
def test_3_4_a_sequence_that_ended_in_the_backlog_may_start_again_behind_it(make: Any) -> None:
    scheduler = make(max_batch_size=1, max_candidate_sequences=1)
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 2, "SE")
    put(scheduler, 3, 2, "S")
    put(scheduler, 4, 2, "E")
    put(scheduler, 5, 1, "E")
    assert run_all(scheduler) == [[1], [5], [2], [3], [4]]


@pytest.mark.rule("3.4e")
@BOTH
def test_3_4_start_on_a_live_id_continues_in_the_same_slot_with_a_warning(make: Any) -> None:
    scheduler = make(max_batch_size=2, max_candidate_sequences=2)
    put(scheduler, 1, 9, "S")
    put(scheduler, 2, 9, "S")
    put(scheduler, 3, 9, "E")
    assert scheduler.take_notices() == [
        "sequence 9 for model 'm' has a conflict. The previous sequence did not end before this sequence start."
        " Previous sequence will be terminated early."
    ]
    assert scheduler.take_notices() == []
    batches = [scheduler.acquire(0, 0)]
    scheduler.complete(batches[0], 0)
    batches.append(scheduler.acquire(0, 0))
    assert [(rows(b), b.slots[0].slot, b.slots[0].start) for b in batches] == [([1], 0, True), ([2], 0, True)]


@BOTH
def test_3_4_start_on_a_live_id_in_the_backlog_joins_it_there(make: Any) -> None:
    scheduler = make(max_batch_size=1, max_candidate_sequences=1)
    put(scheduler, 1, 1, "SE")
    put(scheduler, 2, 2, "S")
    put(scheduler, 3, 2, "S")
    assert len(scheduler.take_notices()) == 1
    assert run_all(scheduler) == [[1], [2], [3]]


# ---- 3.5


@pytest.mark.rule("3.5a", "3.5b", "3.9e")
def test_3_5_requests_stay_in_their_slot_and_empty_slots_below_are_null_rows() -> None:
    scheduler = direct()
    for id, sequence in ((1, 10), (2, 20), (3, 30)):
        put(scheduler, id, sequence, "S")
    assert run(scheduler) == [1, 2, 3]
    put(scheduler, 4, 30)
    put(scheduler, 5, 20)
    batch = scheduler.acquire(0, 0)
    assert rows(batch) == [None, 5, 4]
    assert [row.ready for row in batch.slots] == [False, True, True]
    assert (batch.rows, [item.id for item in batch.items], batch.reason) == (3, [5, 4], "sequence")


@pytest.mark.rule("3.5a")
def test_3_5_a_null_row_between_keeps_others_in_their_place_when_a_sequence_ends() -> None:
    scheduler = direct()
    put(scheduler, 1, 10, "SE")
    put(scheduler, 2, 20, "S")
    assert run(scheduler) == [1, 2]
    put(scheduler, 3, 20)
    assert run(scheduler) == [None, 3]
    put(scheduler, 4, 40, "S")
    put(scheduler, 5, 20)
    assert run(scheduler) == [4, 5], "a new sequence takes the free slot"


@pytest.mark.rule("3.5d")
def test_3_5_one_batch_at_a_time_runs_in_an_instance() -> None:
    scheduler = direct()
    put(scheduler, 1, 1, "S")
    batch = scheduler.acquire(0, 0)
    put(scheduler, 2, 1)
    assert scheduler.acquire(0, 0) is None
    scheduler.complete(batch, 0)
    assert run(scheduler) == [2]


@pytest.mark.rule("3.5f")
def test_3_5_without_delay_or_utilization_a_batch_leaves_at_once() -> None:
    for settings in ({"max_queue_delay_microseconds": 100}, {"minimum_slot_utilization": 1.0}):
        scheduler = direct(**settings)
        put(scheduler, 1, 1, "S")
        assert run(scheduler) == [1]


@pytest.mark.rule("3.5e")
def test_3_5_a_batch_waits_until_enough_slots_are_ready() -> None:
    scheduler = direct(max_queue_delay_microseconds=100, minimum_slot_utilization=0.5)
    put(scheduler, 1, 1, "S")
    assert scheduler.acquire(0, 0) is None
    assert scheduler.next_deadline() == 100 * US + 1
    put(scheduler, 2, 2, "S", at=50)
    batch = scheduler.acquire(0, 50)
    assert (rows(batch), batch.reason) == ([1, 2], "sequence")


@pytest.mark.rule("3.5e")
def test_3_5_a_batch_waits_no_longer_than_the_delay() -> None:
    scheduler = direct(max_queue_delay_microseconds=100, minimum_slot_utilization=1.0)
    put(scheduler, 1, 1, "S")
    assert scheduler.acquire(0, 100 * US) is None
    batch = scheduler.acquire(0, 100 * US + 1)
    assert (rows(batch), batch.reason) == ([1], "delay")


def test_3_5_utilization_is_compared_in_single_precision() -> None:
    """0.1 in the configuration is 0.100000001...; one of ten slots is enough all the same."""
    scheduler = direct(
        max_batch_size=10, max_queue_delay_microseconds=100, minimum_slot_utilization=0.10000000149011612
    )
    put(scheduler, 1, 1, "S")
    assert run(scheduler) == [1]


def test_3_5_a_request_of_another_shape_waits_and_its_row_is_null() -> None:
    scheduler = direct()
    put(scheduler, 1, 1, "S", shape_key="a")
    put(scheduler, 2, 2, "S", shape_key="b")
    put(scheduler, 3, 3, "S", shape_key="a")
    assert run_all(scheduler) == [[1, None, 3], [None, 2]]


def test_3_5_a_request_with_other_optional_inputs_waits_too() -> None:
    scheduler = direct()
    put(scheduler, 1, 1, "S", input_set=frozenset("a"))
    put(scheduler, 2, 2, "S", input_set=frozenset("ab"))
    assert run_all(scheduler) == [[1, None], [None, 2]]


# ---- 3.6


@pytest.mark.rule("3.6a", "3.6d")
def test_3_6_one_request_of_a_sequence_is_under_way_at_a_time() -> None:
    scheduler = oldest()
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 1)
    put(scheduler, 3, 2, "S")
    batch = scheduler.acquire(0, 0)
    assert rows(batch) == [1, 3]
    assert scheduler.acquire(0, 0) is None
    scheduler.complete(batch, 0)
    assert run(scheduler) == [2]


@pytest.mark.rule("3.6b")
def test_3_6_the_inner_batcher_waits_for_preferred_sizes_until_its_delay() -> None:
    scheduler = oldest(preferred_batch_sizes=(2,), max_queue_delay_microseconds=100)
    put(scheduler, 1, 1, "S")
    assert scheduler.acquire(0, 0) is None
    assert scheduler.next_deadline() == 100 * US
    put(scheduler, 2, 2, "S", at=10)
    batch = scheduler.acquire(0, 10)
    assert (rows(batch), batch.reason) == ([1, 2], "full")
    put(scheduler, 3, 3, "S", at=20)
    late = scheduler.acquire(0, 20 + 100 * US)
    assert (rows(late), late.reason) == ([3], "delay")


def test_3_6_requests_go_in_the_order_in_which_their_sequences_were_ready() -> None:
    scheduler = oldest(max_batch_size=1)
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 1)
    put(scheduler, 3, 2, "S")
    put(scheduler, 4, 2)
    assert run_all(scheduler) == [[1], [3], [2], [4]]


def test_3_6_a_slot_is_reused_while_the_end_of_its_sequence_runs_but_waits_for_it() -> None:
    scheduler = oldest(max_candidate_sequences=1)
    put(scheduler, 1, 1, "SE")
    put(scheduler, 2, 2, "SE")
    batch = scheduler.acquire(0, 0)
    assert rows(batch) == [1]
    assert scheduler.acquire(0, 0) is None
    scheduler.complete(batch, 0)
    assert run(scheduler) == [2]


def test_3_6_rows_name_the_slot_whose_state_they_use() -> None:
    scheduler = oldest()
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 2, "S")
    run(scheduler)
    put(scheduler, 3, 2)
    batch = scheduler.acquire(0, 0)
    assert [(row.slot, row.item.id) for row in batch.slots] == [(1, 3)]


# ---- 3.7


@pytest.mark.rule("3.7a", "3.7b")
@BOTH
def test_3_7_an_idle_sequence_loses_its_slot_to_the_backlog(make: Any) -> None:
    scheduler = make(max_batch_size=1, max_candidate_sequences=1, max_sequence_idle_microseconds=1000)
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 2, "S")
    assert run_all(scheduler) == [[1]]
    assert scheduler.next_deadline() == MS
    assert scheduler.expire(MS - 1) == ()
    assert run_all(scheduler, MS - 1) == []
    assert scheduler.expire(MS) == ()
    assert run_all(scheduler, MS) == [[2]]
    assert ask(scheduler, 3, 1).kind == "invalid"


@BOTH
def test_3_7_every_request_makes_the_idle_time_begin_anew(make: Any) -> None:
    scheduler = make(max_sequence_idle_microseconds=1000)
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 1, at=MS - 1)
    assert scheduler.next_deadline() in (0, MS - 1)
    run_all(scheduler, MS - 1)
    scheduler.expire(2 * MS - 2)
    assert scheduler.next_deadline() == 2 * MS - 1
    put(scheduler, 3, 1, at=2 * MS - 2)


@BOTH
def test_3_7_what_waits_in_the_slot_of_an_idle_sequence_still_runs(make: Any) -> None:
    scheduler = make(max_batch_size=1, max_candidate_sequences=1, max_sequence_idle_microseconds=1000)
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 1)
    put(scheduler, 3, 2, "S")
    scheduler.expire(MS)
    assert run_all(scheduler, MS) == [[1], [2], [3]]


@pytest.mark.rule("3.7b")
def test_3_7_zero_means_a_second() -> None:
    scheduler = direct(max_sequence_idle_microseconds=0)
    put(scheduler, 1, 1, "S")
    run_all(scheduler)
    scheduler.expire(0)
    assert scheduler.next_deadline() == S


@pytest.mark.rule("3.7c")
@BOTH
def test_3_7_a_sequence_that_was_idle_in_the_backlog_has_50_ms_once_it_has_a_slot(make: Any) -> None:
    scheduler = make(max_batch_size=1, max_candidate_sequences=1)
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 2, "S")
    run_all(scheduler)
    for moment in (S - 1, 2 * S - 2, 3 * S - 3):
        put(scheduler, moment, 1, at=moment)
        run_all(scheduler, moment)
        scheduler.expire(moment)
    put(scheduler, 9, 1, "E", at=3 * S)
    assert run_all(scheduler, 3 * S) == [[9], [2]]
    scheduler.expire(3 * S)
    assert scheduler.next_deadline() == 3 * S + 50 * MS
    put(scheduler, 10, 2, at=3 * S + 49 * MS)


# ---- 3.8


@pytest.mark.rule("3.8a", "3.8b")
@BOTH
def test_3_8_a_timeout_counts_in_the_backlog_and_rejects_the_whole_sequence(make: Any) -> None:
    scheduler = make(max_batch_size=1, max_candidate_sequences=1)
    put(scheduler, 1, 1, "S", timeout=10)
    put(scheduler, 2, 2, "S")
    put(scheduler, 3, 2, timeout=100)
    put(scheduler, 4, 3, "S")
    run_all(scheduler)
    assert scheduler.expire(0) == ()
    assert scheduler.next_deadline() == 100 * US
    assert scheduler.expire(100 * US - 1) == ()
    expired = scheduler.expire(100 * US)
    assert [(e.id, e.kind, e.message) for e in expired] == [
        (2, "timeout", "timeout of the corresponding sequence has been expired"),
        (3, "timeout", SEQUENCE_TIMEOUT_TEXT),
    ]
    assert ask(scheduler, 5, 2, at=100 * US).kind == "invalid"
    put(scheduler, 6, 1, "E", at=100 * US)
    assert run_all(scheduler, 100 * US) == [[6], [4]]


def test_3_8_the_earliest_timeout_of_the_sequence_counts() -> None:
    scheduler = direct(max_batch_size=1)
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 2, "S", timeout=100)
    put(scheduler, 3, 2, at=10, timeout=500)
    assert [each.id for each in scheduler.expire(100 * US)] == [2, 3]


@pytest.mark.rule("3.8a")
def test_3_8_once_it_has_a_slot_there_is_no_timeout() -> None:
    scheduler = direct(max_batch_size=1)
    put(scheduler, 1, 1, "SE")
    put(scheduler, 2, 2, "S", timeout=100)
    assert run(scheduler) == [1]
    assert scheduler.expire(200 * US) == ()
    assert run(scheduler, 200 * US) == [2]


@BOTH
def test_3_8_a_sequence_past_its_timeout_gets_no_slot_even_if_nobody_asked_in_time(make: Any) -> None:
    scheduler = make(max_batch_size=1, max_candidate_sequences=1)
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 2, "S", timeout=100)
    put(scheduler, 3, 3, "S")
    put(scheduler, 4, 1, "E", at=200 * US)
    assert run_all(scheduler, 200 * US) == [[1], [4], [3]]
    assert [each.id for each in scheduler.expire(200 * US)] == [2]


# ---- 3.9

CONTROLS = (
    ControlTensor("START", "START", "INT32", 0, 1),
    ControlTensor("END", "END", "FP32", -1.0, 1.0),
    ControlTensor("READY", "READY", "BOOL", False, True),
    ControlTensor("ID", "CORRID", "UINT64"),
)


@pytest.mark.rule("3.9a", "3.9d", "3.9e")
def test_3_9_each_row_has_its_control_values() -> None:
    scheduler = direct(controls=CONTROLS)
    put(scheduler, 1, 10, "S")
    put(scheduler, 2, 20, "SE")
    put(scheduler, 3, 30, "S")
    first = scheduler.acquire(0, 0)
    scheduler.complete(first, 0)
    put(scheduler, 4, 10, "E")
    put(scheduler, 5, 30)
    second = scheduler.acquire(0, 0)
    shown = [
        {column.name: column.values for column in scheduler.settings.control_columns(batch.slots)}
        for batch in (first, second)
    ]
    assert shown == [
        {"START": (1, 1, 1), "END": (-1.0, 1.0, -1.0), "READY": (True, True, True), "ID": (10, 20, 30)},
        {"START": (0, 0, 0), "END": (1.0, -1.0, -1.0), "READY": (True, False, True), "ID": (10, 0, 30)},
    ]


@pytest.mark.rule("3.9c")
@pytest.mark.parametrize(("size", "shape"), [(0, (1,)), (4, (1, 1))])
def test_3_9_a_control_tensor_has_the_batch_dimension_if_the_model_has(size: int, shape: tuple[int, ...]) -> None:
    settings = SequenceSettings(max_batch_size=size, controls=CONTROLS)
    assert {column.shape for column in settings.control_columns(())} == {shape}


@pytest.mark.rule("3.9b")
@pytest.mark.parametrize(
    ("datatype", "given", "value"),
    [
        ("UINT64", 2**64 - 1, 2**64 - 1),
        ("INT64", 2**64 - 1, -1),
        ("UINT32", 2**32 + 5, 5),
        ("INT32", 2**31, -(2**31)),
        ("BYTES", "abc", "abc"),
    ],
)
def test_3_9_a_correlation_id_is_cut_to_the_tensor(datatype: str, given: int | str, value: int | str) -> None:
    scheduler = direct(controls=(ControlTensor("ID", "CORRID", datatype),))
    put(scheduler, 1, given, "S")
    batch = scheduler.acquire(0, 0)
    assert scheduler.settings.control_columns(batch.slots)[0].values == (value,)


# ---- 3.11

ITERATIVE = pytest.mark.parametrize("make", [direct, oldest])


def iterate(scheduler: SequenceScheduler, again: int, at: int = 0) -> list[tuple[int, bool, bool]]:
    """Runs batches of one; the model gives each of the first ``again`` back."""
    seen = []
    while batch := scheduler.acquire(0, at):
        row = batch.slots[0]
        seen.append((row.item.id, row.start, row.end))
        if len(seen) <= again:
            assert scheduler.reschedule(row.item, at) == Accepted()
        scheduler.complete(batch, at)
    return seen


@pytest.mark.rule("3.11a")
@ITERATIVE
def test_3_11_a_request_without_id_gets_one_and_start(make: Any) -> None:
    scheduler = make(iterative_sequence=True)
    first, second = Item(1), Item(2)
    scheduler.offer(first, 0)
    scheduler.offer(second, 0)
    assert (first.sequence_id, second.sequence_id, first.sequence_start) == (1, 2, True)
    assert run(scheduler) == [1, 2]


@ITERATIVE
def test_3_11_a_made_id_is_never_that_of_a_live_sequence(make: Any) -> None:
    scheduler = make(iterative_sequence=True)
    put(scheduler, 1, 1, "S")
    item = Item(2)
    scheduler.offer(item, 0)
    assert item.sequence_id == 2
    assert scheduler.take_notices() == []


@pytest.mark.rule("3.11b")
@ITERATIVE
def test_3_11_a_request_that_is_given_back_runs_again_without_flags_in_its_slot(make: Any) -> None:
    scheduler = make(iterative_sequence=True)
    scheduler.offer(Item(1), 0)
    assert iterate(scheduler, 2) == [(1, True, False), (1, False, False), (1, False, False)]
    assert scheduler.sequence_statistics().taken == 0


@ITERATIVE
def test_3_11_f35_one_request_with_start_and_end_runs_until_it_is_given_back_no_more(make: Any) -> None:
    scheduler = make(iterative_sequence=True)
    put(scheduler, 1, 5, "SE")
    assert iterate(scheduler, 3) == [(1, True, True), (1, False, False), (1, False, False), (1, False, False)]
    assert scheduler.sequence_statistics().taken == 0


@ITERATIVE
def test_3_11_an_iterative_sequence_is_never_idle_while_its_request_runs(make: Any) -> None:
    scheduler = make(iterative_sequence=True, max_sequence_idle_microseconds=1000)
    scheduler.offer(Item(1), 0)
    batch = scheduler.acquire(0, 0)
    scheduler.expire(10 * MS)
    assert scheduler.reschedule(batch.items[0], 10 * MS) == Accepted()
    scheduler.complete(batch, 10 * MS)
    assert run(scheduler, 10 * MS) == [1]


@ITERATIVE
def test_3_11_the_backlog_follows_when_an_iterative_sequence_is_finished(make: Any) -> None:
    scheduler = make(iterative_sequence=True, max_batch_size=1, max_candidate_sequences=1)
    scheduler.offer(Item(1), 0)
    scheduler.offer(Item(2), 0)
    assert [id for id, _, _ in iterate(scheduler, 2)] == [1, 1, 1, 2]


@pytest.mark.rule("3.11c")
def test_3_11_giving_back_needs_an_iterative_model() -> None:
    scheduler = direct()
    put(scheduler, 1, 1, "S")
    batch = scheduler.acquire(0, 0)
    answer = scheduler.reschedule(batch.items[0], 0)
    assert (answer.kind, answer.message) == ("invalid", RESCHEDULE_TEXT)


@ITERATIVE
def test_3_11_a_request_whose_sequence_was_ended_meanwhile_does_not_run_again(make: Any) -> None:
    scheduler = make(iterative_sequence=True)
    scheduler.offer(Item(1), 0)
    batch = scheduler.acquire(0, 0)
    assert scheduler.evict(0, 0) == []
    assert scheduler.reschedule(batch.items[0], 0) == RejectedItem(1, "cancelled", "")
    scheduler.complete(batch, 0)
    assert scheduler.sequence_statistics().taken == 0


# ---- 3.13


@pytest.mark.rule("3.13a", "3.13b")
@BOTH
def test_3_13_a_removed_instance_serves_its_sequences_to_the_end(make: Any) -> None:
    scheduler = make(instances=2, max_batch_size=1, max_candidate_sequences=1)
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 2, "S")
    assert not scheduler.remove_instance(0, 0)
    put(scheduler, 3, 3, "SE")
    assert scheduler.departed(0) == []
    put(scheduler, 4, 1, "E")
    assert run_all(scheduler, instance=0) == [[1], [4]]
    assert scheduler.departed(0) == [0]
    assert scheduler.departed(0) == ()
    put(scheduler, 5, 2, "E")
    assert run_all(scheduler, instance=1) == [[2], [5], [3]]


@BOTH
def test_3_13_an_instance_without_sequences_may_go_at_once(make: Any) -> None:
    scheduler = make(instances=2)
    assert scheduler.remove_instance(1, 0)
    assert scheduler.sequence_statistics().slots == 4


@pytest.mark.rule("3.13a")
@BOTH
def test_3_13_an_instance_goes_only_after_its_batch(make: Any) -> None:
    scheduler = make()
    put(scheduler, 1, 1, "SE")
    batch = scheduler.acquire(0, 0)
    assert not scheduler.remove_instance(0, 0)
    scheduler.complete(batch, 0)
    assert scheduler.departed(0) == [0]


@BOTH
def test_a_new_instance_takes_sequences_from_the_backlog(make: Any) -> None:
    scheduler = make(instances=0, max_batch_size=2, max_candidate_sequences=2)
    for id in (1, 2, 3):
        put(scheduler, id, id, "S")
    scheduler.add_instance(0, 0)
    assert run_all(scheduler) == [[1, 2]]
    scheduler.add_instance(1, 0)
    assert run_all(scheduler, instance=1) == [[3]]


# ---- 1.16, 1.17


@pytest.mark.rule("1.16b")
@BOTH
def test_1_16_a_stopping_server_starts_no_sequence_but_goes_on_with_live_ones(make: Any) -> None:
    scheduler = make()
    put(scheduler, 1, 1, "S")
    scheduler.stop(0)
    text = "Server is stopping, scheduler for model has stopped accepting new inference requests"
    assert ask(scheduler, 2, 2, "S") == RejectedItem(2, "stopping", text, id_prefix=False)
    put(scheduler, 3, 1, "E")
    assert run_all(scheduler) == [[1], [3]]


@pytest.mark.rule("1.17a")
@BOTH
def test_1_17_a_cancelled_request_ends_its_sequence_behind_what_waits_before_it(make: Any) -> None:
    scheduler = make(max_batch_size=1, max_candidate_sequences=1)
    put(scheduler, 1, 1, "S")
    for id in (2, 3, 4):
        put(scheduler, id, 1)
    put(scheduler, 5, 5, "S")
    assert scheduler.cancel(3, 0)
    assert scheduler.expire(0) == [RejectedItem(4, "cancelled", "")]
    assert ask(scheduler, 6, 1).kind == "invalid"
    assert run_all(scheduler) == [[1], [2], [5]]


@pytest.mark.rule("1.17a")
@BOTH
def test_1_17_in_the_backlog_the_whole_sequence_is_cancelled(make: Any) -> None:
    scheduler = make(max_batch_size=1, max_candidate_sequences=1)
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 2, "S")
    put(scheduler, 3, 2)
    put(scheduler, 4, 4, "S")
    assert scheduler.cancel(3, 0)
    assert scheduler.next_deadline() is not None
    assert [each.id for each in scheduler.expire(0)] == [2]
    put(scheduler, 5, 1, "E")
    assert run_all(scheduler) == [[1], [5], [4]]


@BOTH
def test_1_17_what_runs_or_is_unknown_cannot_be_cancelled(make: Any) -> None:
    scheduler = make()
    put(scheduler, 1, 1, "S")
    batch = scheduler.acquire(0, 0)
    assert not scheduler.cancel(1, 0)
    assert not scheduler.cancel(99, 0)
    scheduler.complete(batch, 0)
    put(scheduler, 2, 1)
    assert run(scheduler) == [2]


def test_1_17_a_request_before_the_inner_batcher_or_in_it_ends_its_sequence_all_the_same() -> None:
    scheduler = oldest(max_queue_delay_microseconds=100)
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 1)
    assert scheduler.acquire(0, 0) is None
    assert scheduler.cancel(1, 0)
    assert scheduler.expire(0) == [RejectedItem(2, "cancelled", "")]
    assert scheduler.waiting == 0
    assert scheduler.sequence_statistics().taken == 0


def test_1_17_cancelling_the_end_in_the_inner_batcher_spares_the_next_sequence_of_the_slot() -> None:
    scheduler = oldest(max_queue_delay_microseconds=100, max_candidate_sequences=1)
    put(scheduler, 1, 1, "SE")
    put(scheduler, 2, 2, "S")
    assert scheduler.cancel(1, 0)
    assert run(scheduler, 100 * US) == [2]


@BOTH
def test_a_dead_instance_gives_up_what_waits_in_its_slots(make: Any) -> None:
    scheduler = make(instances=2, max_batch_size=1, max_candidate_sequences=1)
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 1)
    put(scheduler, 3, 3, "S")
    assert sorted(scheduler.evict(0, 0)) == [1, 2]
    assert scheduler.expire(0) == ()
    assert ask(scheduler, 4, 1).kind == "invalid"
    assert run_all(scheduler, instance=1) == [[3]]


@BOTH
def test_what_timed_out_in_the_backlog_is_not_lost_with_a_dead_instance(make: Any) -> None:
    scheduler = make(max_batch_size=1, max_candidate_sequences=1)
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 2, "S", timeout=10)
    assert scheduler.evict(0, 20 * US) == [1]
    assert [(each.id, each.kind) for each in scheduler.expire(20 * US)] == [(2, "timeout")]


@BOTH
def test_clear_takes_out_everything_that_waits_and_ends_all_sequences(make: Any) -> None:
    scheduler = make(max_batch_size=1, max_candidate_sequences=1)
    put(scheduler, 1, 1, "S")
    batch = scheduler.acquire(0, 0)
    put(scheduler, 2, 1)
    put(scheduler, 3, 3, "S")
    put(scheduler, 4, 4, "S", timeout=10)
    assert sorted(scheduler.clear(20 * US)) == [2, 3]
    assert [(each.id, each.kind) for each in scheduler.expire(20 * US)] == [(4, "timeout")]
    assert scheduler.waiting == 0
    assert ask(scheduler, 5, 1).kind == "invalid"
    scheduler.complete(batch, 20 * US)
    put(scheduler, 6, 1, "SE", at=20 * US)
    assert run_all(scheduler, 20 * US) == [[6]]


# ---- changes in place, test hooks, snapshots


@BOTH
def test_reconfigure_keeps_every_sequence_in_its_slot(make: Any) -> None:
    scheduler = make(max_batch_size=3, max_candidate_sequences=3)
    for id in (1, 2, 3):
        put(scheduler, id, id, "S")
    run_all(scheduler)
    strategy = scheduler.settings.strategy
    smaller = SequenceSettings(
        model_name="m", max_batch_size=2 if strategy == "direct" else 3, strategy=strategy, max_candidate_sequences=2
    )
    scheduler.reconfigure(smaller, 0)
    put(scheduler, 4, 4, "S")
    put(scheduler, 5, 3, "E")
    assert [id for batch in run_all(scheduler) for id in batch if id] == [5]
    assert scheduler.sequence_statistics().backlog == 1, "the third slot is not given out again"
    put(scheduler, 6, 1, "E")
    assert [id for batch in run_all(scheduler) for id in batch if id] == [6, 4]


@BOTH
def test_reconfigure_with_more_slots_lets_the_backlog_in(make: Any) -> None:
    scheduler = make(max_batch_size=1, max_candidate_sequences=1)
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 2, "S")
    strategy = scheduler.settings.strategy
    more = SequenceSettings(model_name="m", max_batch_size=2, strategy=strategy, max_candidate_sequences=2)
    scheduler.reconfigure(more, 0)
    assert sorted(id for batch in run_all(scheduler) for id in batch if id) == [1, 2]


@BOTH
def test_reconfigure_changes_the_idle_time_of_live_sequences(make: Any) -> None:
    scheduler = make()
    put(scheduler, 1, 1, "S")
    run_all(scheduler)
    settings = scheduler.settings
    shorter = SequenceSettings(
        model_name="m", max_batch_size=4, strategy=settings.strategy, max_sequence_idle_microseconds=100_000
    )
    scheduler.reconfigure(shorter, 0)
    scheduler.expire(0)
    assert scheduler.next_deadline() == 100 * MS


def test_the_strategy_cannot_change_in_place() -> None:
    with pytest.raises(ValueError, match="strategy"):
        direct().reconfigure(SequenceSettings(strategy="oldest"), 0)
    with pytest.raises(ValueError, match="iterative"):
        direct().reconfigure(SequenceSettings(iterative_sequence=True), 0)


def test_drain_ends_the_waiting_for_the_delay() -> None:
    scheduler = direct(max_queue_delay_microseconds=1000, minimum_slot_utilization=1.0)
    put(scheduler, 1, 1, "S")
    assert scheduler.acquire(0, 0) is None
    scheduler.drain(0)
    batch = scheduler.acquire(0, 0)
    assert (rows(batch), batch.reason) == ([1], "drain")
    inner = oldest(preferred_batch_sizes=(4,), max_queue_delay_microseconds=1000)
    put(inner, 1, 1, "S")
    inner.drain(0)
    assert run(inner) == [1]


@pytest.mark.rule("1.15b")
@BOTH
def test_1_15_the_test_hooks_hold_batches_until_so_much_waits_once(make: Any) -> None:
    scheduler = make(max_batch_size=2, max_candidate_sequences=2, hold_until_queued=2, hold_until_backlog=1)
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 2, "S")
    assert scheduler.acquire(0, 0) is None
    put(scheduler, 3, 3, "S")
    assert run(scheduler) == [1, 2]
    put(scheduler, 4, 1)
    assert run(scheduler) == [4]


@BOTH
def test_statistics_count_all_that_waits(make: Any) -> None:
    scheduler = make(max_batch_size=1, max_candidate_sequences=1)
    put(scheduler, 1, 1, "S", at=5)
    put(scheduler, 2, 1, at=6)
    put(scheduler, 3, 2, "S", at=7)
    seen = scheduler.statistics(10)
    assert (seen.waiting_requests, seen.waiting_rows, seen.oldest_age_ns, scheduler.waiting) == (3, 3, 5, 3)
    assert (scheduler.sequence_statistics().taken, scheduler.sequence_statistics().backlog) == (1, 1)


@BOTH
def test_sequences_that_are_over_leave_nothing_behind(make: Any) -> None:
    """However long the idle time and the timeouts are."""
    scheduler = make(max_batch_size=1, max_candidate_sequences=1, max_sequence_idle_microseconds=10**12)

    def serve(first: int, last: int) -> None:
        for number in range(first, last, 2):
            put(scheduler, 2 * number, number, "S", at=number, timeout=10**9)
            put(scheduler, 2 * number + 1, number + 1, "S", at=number, timeout=10**9)
            put(scheduler, 2 * number + 2, number, "E", at=number)
            put(scheduler, 2 * number + 3, number + 1, "E", at=number)
            assert len(run_all(scheduler, number)) == 4

    serve(2, 500)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        serve(502, 6_000)
        assert tracemalloc.get_traced_memory()[0] - before < 100_000
    finally:
        tracemalloc.stop()


@BOTH
def test_a_driver_without_work_is_not_woken(make: Any) -> None:
    scheduler = make()
    assert scheduler.next_deadline() is None
    put(scheduler, 1, 1, "SE")
    assert run_all(scheduler) == [[1]]
    scheduler.expire(0)
    assert scheduler.next_deadline() is None


@BOTH
def test_a_driver_that_cannot_serve_an_instance_now_does_not_spin(make: Any) -> None:
    """A time that expire has been called for is not given again (the instance may be ill)."""
    scheduler = make(max_queue_delay_microseconds=100, minimum_slot_utilization=1.0 if make is direct else 0.0)
    put(scheduler, 1, 1, "S")
    for _ in range(3):
        moment = scheduler.next_deadline()
        assert moment is not None
        if moment > 200 * US:
            break
        scheduler.expire(moment)
    assert scheduler.next_deadline() == S, "only the idle time is left"
    assert run(scheduler, 300 * US) == [1]


def test_an_id_may_wait_only_once() -> None:
    for scheduler in (direct(), oldest()):
        put(scheduler, 1, 1, "S")
        with pytest.raises(ValueError, match="waits already"):
            ask(scheduler, 1, 1)


def test_batches_are_numbered_across_instances() -> None:
    scheduler = with_instances(sequence_scheduler(SequenceSettings(max_batch_size=1), first_batch_seq=100), 2)
    put(scheduler, 1, 1, "S")
    put(scheduler, 2, 2, "S")
    assert [scheduler.acquire(number, 0).seq for number in (0, 1)] == [100, 101]
