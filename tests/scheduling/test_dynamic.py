"""The dynamic batcher rule by rule. "1.4a" and the like are the numbers of the reference on Triton's semantics.

Rules without a test here, and why: 1.5.5 (a formed batch waiting in front of an instance: late binding has none), 1.10
(Triton's idle polling), 1.13 (eager_batching: no scheduler effect), 1.14 (C++ batching strategies).
"""

from __future__ import annotations

from typing import Any

import pytest

from workbench.scheduling import (
    Accepted,
    Batch,
    BatcherSettings,
    DynamicBatcher,
    Item,
    QueuePolicy,
    RejectedItem,
    Scheduler,
)

US = 1_000
MS = 1_000_000


def batcher(**settings: Any) -> DynamicBatcher:
    return DynamicBatcher(BatcherSettings(**{"max_batch_size": 8, **settings}))


def put(scheduler: Scheduler, *ids: int, at: int = 0, **item: Any) -> None:
    for id in ids:
        assert scheduler.offer(Item(id, **item), at) == Accepted()


def ids(batch: Batch | None) -> list[int]:
    return [item.id for item in batch.items] if batch else []


def taken(scheduler: Scheduler, at: int = 0) -> list[tuple[list[int], str]]:
    """All that an idle instance gets by asking until nothing comes, as (ids, reason)."""
    got = []
    while batch := scheduler.acquire(0, at):
        got.append((ids(batch), batch.reason))
    return got


# ---- 1.1-1.3


@pytest.mark.rule("1.1c")
def test_1_1_without_dynamic_batching_each_request_is_a_batch_and_no_policy_applies() -> None:
    policy = QueuePolicy(default_timeout_microseconds=1, max_queue_size=1)
    direct = batcher(
        batching=False,
        max_queue_delay_microseconds=500,
        default_queue_policy=policy,
        priority_levels=2,
        default_priority_level=1,
    )
    put(direct, 1, 2, priority=2)
    put(direct, 3, priority=1, rows=30)
    assert direct.expire(10 * MS) == ()
    assert taken(direct, 10 * MS) == [([1], "direct"), ([2], "direct"), ([3], "direct")]


@pytest.mark.rule("1.2a", "1.5.3")
def test_1_2_without_preferred_sizes_max_batch_size_is_the_preferred_one() -> None:
    scheduler = batcher(max_batch_size=4, max_queue_delay_microseconds=100)
    put(scheduler, 1, 2, 3)
    assert scheduler.acquire(0, 0) is None
    put(scheduler, 4)
    assert taken(scheduler) == [([1, 2, 3, 4], "full")]


@pytest.mark.rule("1.2c")
def test_1_2_with_max_batch_size_0_requests_go_one_by_one_at_once() -> None:
    scheduler = batcher(max_batch_size=0, max_queue_delay_microseconds=100)
    put(scheduler, 1, 2)
    assert taken(scheduler) == [([1], "full"), ([2], "full")]


@pytest.mark.rule("1.3b", "1.3c")
def test_1_3_requests_of_several_rows_are_never_split_and_the_maximum_is_never_passed() -> None:
    scheduler = batcher(max_batch_size=8)
    put(scheduler, 1, 2, 3, rows=3)
    batches = [scheduler.acquire(0, 0), scheduler.acquire(0, 0)]
    assert [(ids(b), b.rows, b.reason) for b in batches if b] == [([1, 2], 6, "full"), ([3], 3, "no_delay")]


@pytest.mark.rule("1.3b", "1.3c")
def test_1_3_nor_is_the_maximum_passed_when_the_delay_is_over() -> None:
    scheduler = batcher(max_batch_size=8, max_queue_delay_microseconds=100)
    put(scheduler, 1, 2, 3, rows=3)
    batches = [scheduler.acquire(0, 100 * US), scheduler.acquire(0, 100 * US)]
    assert [(ids(b), b.rows, b.reason) for b in batches if b] == [([1, 2], 6, "full"), ([3], 3, "delay")]


# ---- 1.4


@pytest.mark.rule("1.4a")
def test_1_4a_the_first_request_is_taken_whatever_its_size() -> None:
    scheduler = batcher(max_batch_size=4, max_queue_delay_microseconds=100)
    put(scheduler, 1, rows=9)
    put(scheduler, 2)
    assert taken(scheduler) == [([1], "full")]


@pytest.mark.rule("1.4b")
def test_1_4b_beyond_the_largest_preferred_size_what_was_gathered_before_goes() -> None:
    scheduler = batcher(preferred_batch_sizes=(4,), max_queue_delay_microseconds=100)
    put(scheduler, 1, rows=3)
    assert scheduler.acquire(0, 0) is None
    put(scheduler, 2, rows=2)
    assert taken(scheduler) == [([1], "full")]
    assert scheduler.waiting == 1


@pytest.mark.rule("1.4b")
def test_1_4b_the_scan_goes_on_so_that_the_delay_of_all_that_fits_is_seen() -> None:
    """The old request of level 2 lies beyond the preferred size; its age sends all that fits into the maximum."""
    scheduler = batcher(
        preferred_batch_sizes=(2,), max_queue_delay_microseconds=100, priority_levels=2, default_priority_level=2
    )
    put(scheduler, 1, at=0)
    put(scheduler, 2, 3, at=50 * US, priority=1)
    assert ids(scheduler.acquire(0, 99 * US)) == [2, 3]
    put(scheduler, 4, 5, at=99 * US, priority=1)
    assert taken(scheduler, 100 * US) == [([4, 5, 1], "delay")]


@pytest.mark.rule("1.4c", "1.5.3")
def test_1_4c_a_request_that_does_not_fit_sends_what_is_there_and_is_not_skipped() -> None:
    scheduler = batcher(max_batch_size=8, max_queue_delay_microseconds=100)
    put(scheduler, 1, rows=5)
    put(scheduler, 2, rows=4)
    put(scheduler, 3, rows=3)
    assert taken(scheduler) == [([1], "full")]
    assert taken(scheduler, 100 * US) == [([2, 3], "delay")]


@pytest.mark.rule("1.4c")
def test_1_4c_nor_is_it_skipped_when_the_delay_is_over() -> None:
    scheduler = batcher(max_batch_size=8, max_queue_delay_microseconds=100)
    put(scheduler, 1, rows=5)
    put(scheduler, 2, rows=4)
    put(scheduler, 3, rows=3)
    assert taken(scheduler, 100 * US) == [([1], "full"), ([2, 3], "delay")]


@pytest.mark.rule("1.4d", "1.5.3")
@pytest.mark.parametrize(("key", "reason"), [("shape_key", "shapes"), ("input_set", "inputs")])
def test_1_4d_other_shapes_or_inputs_send_what_is_there_and_are_not_skipped(key: str, reason: str) -> None:
    scheduler = batcher(max_batch_size=16, max_queue_delay_microseconds=500_000)
    put(scheduler, 1, **{key: "a"})
    assert scheduler.acquire(0, 0) is None
    put(scheduler, 2, **{key: "b"})
    put(scheduler, 3, **{key: "a"})
    assert taken(scheduler) == [([1], reason), ([2], reason)]
    assert taken(scheduler, 500_000 * US) == [([3], "delay")]


@pytest.mark.rule("1.4e", "1.5.1")
def test_1_4e_the_largest_reachable_preferred_size_wins() -> None:
    scheduler = batcher(max_batch_size=16, preferred_batch_sizes=(2, 4, 12), max_queue_delay_microseconds=100)
    put(scheduler, *range(7))
    assert taken(scheduler) == [([0, 1, 2, 3], "preferred"), ([4, 5], "preferred")]
    assert taken(scheduler, 100 * US) == [([6], "delay")]


@pytest.mark.rule("1.4e")
def test_1_4e_a_preferred_size_counts_rows_and_must_be_met_exactly() -> None:
    scheduler = batcher(preferred_batch_sizes=(4, 8), max_queue_delay_microseconds=100)
    put(scheduler, 1, rows=3)
    put(scheduler, 2, rows=2)
    assert scheduler.acquire(0, 0) is None
    put(scheduler, 3, rows=3)
    assert taken(scheduler) == [([1, 2, 3], "full")]


# ---- 1.5-1.7


@pytest.mark.rule("1.5.1")
def test_1_5_1_a_preferred_size_leaves_exactly_and_the_rest_stays_queued() -> None:
    scheduler = batcher(preferred_batch_sizes=(4,), max_queue_delay_microseconds=100)
    put(scheduler, *range(6))
    batch = scheduler.acquire(3, 7)
    assert batch is not None
    assert (ids(batch), batch.instance, batch.acquired) == ([0, 1, 2, 3], 3, 7)
    assert scheduler.acquire(3, 7) is None
    assert scheduler.waiting == 2


@pytest.mark.rule("1.5.2")
def test_1_5_2_nothing_pending_gives_nothing() -> None:
    scheduler = batcher(default_queue_policy=QueuePolicy(default_timeout_microseconds=10))
    assert scheduler.acquire(0, 0) is None
    put(scheduler, 1)
    assert scheduler.acquire(0, 11 * US) is None
    assert [r.id for r in scheduler.expire(11 * US)] == [1]


@pytest.mark.rule("1.5.4")
def test_1_5_4_the_delay_counts_from_the_oldest_and_is_over_when_its_age_reaches_it() -> None:
    scheduler = batcher(max_queue_delay_microseconds=100)
    put(scheduler, 1, at=0)
    put(scheduler, 2, at=60 * US)
    assert scheduler.acquire(0, 100 * US - 1) is None
    assert scheduler.next_deadline() == 100 * US
    assert taken(scheduler, 100 * US) == [([1, 2], "delay")]


@pytest.mark.rule("1.5.6")
def test_1_5_6_waits_for_the_earlier_of_the_delay_and_the_next_timeout() -> None:
    policy = QueuePolicy(default_timeout_microseconds=90, allow_timeout_override=True)
    scheduler = batcher(max_queue_delay_microseconds=100, default_queue_policy=policy)
    assert scheduler.next_deadline() is None
    put(scheduler, 1, at=0)
    put(scheduler, 2, at=10 * US, timeout=30)
    assert scheduler.next_deadline() == 40 * US + 1
    assert [r.id for r in scheduler.expire(40 * US + 1)] == [2]
    assert scheduler.next_deadline() == 90 * US + 1
    assert scheduler.cancel(1, 50 * US)
    assert scheduler.next_deadline() is None


@pytest.mark.rule("1.6a")
def test_1_6_when_the_delay_is_over_preferred_sizes_are_ignored() -> None:
    scheduler = batcher(preferred_batch_sizes=(2, 4), max_queue_delay_microseconds=100)
    put(scheduler, *range(7))
    assert taken(scheduler, 100 * US) == [([0, 1, 2, 3, 4, 5, 6], "delay")]


@pytest.mark.rule("1.6b", "1.5.4")
def test_1_6_without_delay_what_waits_goes_and_preferred_sizes_only_cut_an_overlarge_queue() -> None:
    scheduler = batcher(preferred_batch_sizes=(4,))
    put(scheduler, 1, 2, 3)
    assert taken(scheduler) == [([1, 2, 3], "no_delay")]
    put(scheduler, *range(6))
    assert taken(scheduler) == [([0, 1, 2, 3], "full"), ([4, 5], "no_delay")]


@pytest.mark.rule("1.7a")
def test_1_7_one_request_above_the_largest_preferred_size_goes_at_once_alone() -> None:
    scheduler = batcher(preferred_batch_sizes=(2, 4), max_queue_delay_microseconds=100)
    put(scheduler, 1, rows=6)
    assert taken(scheduler) == [([1], "full")]


@pytest.mark.rule("1.7b")
def test_1_7_a_preferred_size_out_of_reach_waits_for_the_delay() -> None:
    scheduler = batcher(preferred_batch_sizes=(8,), max_queue_delay_microseconds=100)
    put(scheduler, 1, 2)
    assert taken(scheduler, 99 * US) == []
    assert taken(scheduler, 100 * US) == [([1, 2], "delay")]


# ---- 1.8, 1.9: what late binding replaces


@pytest.mark.rule("1.8a")
def test_1_8_whoever_arrives_before_the_instance_asks_is_in_the_batch() -> None:
    """Triton hands 4 to a busy instance's queue; here the preferred size is chosen when the instance asks."""
    scheduler = batcher(preferred_batch_sizes=(4, 8))
    put(scheduler, 1, 2, 3, 4, at=0)
    put(scheduler, 5, 6, 7, 8, at=5 * MS)
    assert taken(scheduler, 6 * MS) == [([1, 2, 3, 4, 5, 6, 7, 8], "full")]


@pytest.mark.rule("1.8a")
def test_1_8_an_acquired_batch_does_not_grow() -> None:
    scheduler = batcher()
    put(scheduler, 1)
    batch = scheduler.acquire(0, 0)
    put(scheduler, 2)
    assert ids(batch) == [1]


@pytest.mark.rule("1.9c", "2.6b")
def test_1_9_whatever_is_not_running_counts_as_waiting() -> None:
    """Triton would form up to two batches per instance and let two more queues' worth in (without a queue policy)."""
    scheduler = batcher(max_batch_size=1, default_queue_policy=QueuePolicy(max_queue_size=2))
    put(scheduler, 1)
    running = scheduler.acquire(0, 0)
    put(scheduler, 2, 3)
    assert isinstance(scheduler.offer(Item(4), 0), RejectedItem)
    assert scheduler.statistics(5).waiting_requests == 2
    assert running is not None
    scheduler.complete(running, 5)
    assert ids(scheduler.acquire(0, 5)) == [2]
    put(scheduler, 4)


@pytest.mark.rule("1.9c")
def test_1_9_a_request_of_higher_priority_overtakes_all_that_is_not_running() -> None:
    scheduler = batcher(max_batch_size=1, priority_levels=2, default_priority_level=2)
    put(scheduler, 1, 2, 3)
    assert ids(scheduler.acquire(0, 0)) == [1]
    put(scheduler, 4, priority=1, at=MS)
    assert taken(scheduler, MS) == [([4], "full"), ([2], "full"), ([3], "full")]


@pytest.mark.rule("1.9d")
def test_1_9_a_timeout_is_answered_when_it_passes_though_no_instance_is_idle() -> None:
    scheduler = batcher(default_queue_policy=QueuePolicy(default_timeout_microseconds=100))
    put(scheduler, 1)
    assert ids(scheduler.acquire(0, 0)) == [1]
    put(scheduler, 2, at=10)
    assert scheduler.next_deadline() == 10 + 100 * US + 1
    assert [r.id for r in scheduler.expire(10 + 100 * US + 1)] == [2]


@pytest.mark.rule("1.9a")
def test_1_9_settings_with_which_triton_forms_batches_ahead() -> None:
    assert BatcherSettings().prefetches_in_triton
    assert not BatcherSettings(priority_levels=1, default_priority_level=1).prefetches_in_triton
    for policy in (
        QueuePolicy(default_timeout_microseconds=1),
        QueuePolicy(allow_timeout_override=True),
        QueuePolicy(max_queue_size=1),
    ):
        assert not BatcherSettings(default_queue_policy=policy).prefetches_in_triton


# ---- 1.11, 1.16, 1.17


@pytest.mark.rule("1.11f")
def test_1_11_requests_with_equal_keys_share_a_batch() -> None:
    scheduler = batcher()
    put(scheduler, 1, 2, shape_key=(("X", (3,)),), input_set=frozenset({"X"}))
    put(scheduler, 3, shape_key=(("X", (3,)),), input_set=frozenset({"X", "Y"}))
    assert taken(scheduler) == [([1, 2], "inputs"), ([3], "no_delay")]


def test_draining_sends_without_waiting_and_still_takes_what_comes() -> None:
    scheduler = batcher(max_queue_delay_microseconds=1_000_000)
    put(scheduler, 1)
    assert scheduler.acquire(0, 0) is None
    scheduler.drain(5)
    assert scheduler.next_deadline() == 5
    put(scheduler, 2, at=6)
    assert taken(scheduler, 6) == [([1, 2], "drain")]


@pytest.mark.rule("1.17a")
@pytest.mark.parametrize("victim", [1, 2, 3])
def test_1_17_a_cancelled_request_leaves_from_anywhere_in_the_queue(victim: int) -> None:
    scheduler = batcher()
    put(scheduler, 1, 2, 3, rows=2)
    assert scheduler.cancel(victim, 1)
    assert not scheduler.cancel(victim, 1)
    statistics = scheduler.statistics(1)
    assert (statistics.waiting_requests, statistics.waiting_rows) == (2, 4)
    assert taken(scheduler) == [([id for id in (1, 2, 3) if id != victim], "no_delay")]


def test_1_17_a_running_request_is_not_waiting_any_more() -> None:
    scheduler = batcher()
    put(scheduler, 1)
    scheduler.acquire(0, 0)
    assert not scheduler.cancel(1, 0)
    assert not scheduler.cancel(77, 0)


def test_1_17_a_request_cancelled_after_its_time_is_up_is_answered_with_the_timeout() -> None:
    scheduler = batcher(default_queue_policy=QueuePolicy(default_timeout_microseconds=100))
    put(scheduler, 1)
    assert not scheduler.cancel(1, 101 * US)
    assert [r.id for r in scheduler.expire(101 * US)] == [1]


def test_1_17_when_the_oldest_is_cancelled_the_delay_counts_from_the_next() -> None:
    scheduler = batcher(max_queue_delay_microseconds=100)
    put(scheduler, 1, at=0)
    put(scheduler, 2, at=30 * US)
    assert scheduler.acquire(0, 30 * US) is None
    assert scheduler.cancel(1, 40 * US)
    assert scheduler.next_deadline() == 130 * US
    assert taken(scheduler, 129 * US) == []
    assert taken(scheduler, 130 * US) == [([2], "delay")]


# ---- 2: priorities and queue policies


@pytest.mark.rule("2.1a", "2.1c")
def test_2_1_levels_count_from_1_and_others_fall_to_the_default() -> None:
    scheduler = batcher(max_batch_size=1, priority_levels=3, default_priority_level=2)
    for id, priority in enumerate([3, 0, 9, 2, 1]):
        put(scheduler, id, priority=priority)
    order = [batch for batch, _ in taken(scheduler)]
    assert order == [[4], [1], [2], [3], [0]]


@pytest.mark.rule("2.1b")
def test_2_1_without_levels_any_priority_is_ignored() -> None:
    scheduler = batcher(max_batch_size=1)
    item = Item(1, priority=7)
    scheduler.offer(item, 0)
    put(scheduler, 2, priority=1)
    assert item.level == 0
    assert [batch for batch, _ in taken(scheduler)] == [[1], [2]]


@pytest.mark.rule("1.4-order", "2.2a", "2.2b", "2.2c")
def test_2_2_levels_are_strict_with_their_delayed_before_the_next_and_a_batch_may_mix_them() -> None:
    policy = QueuePolicy("DELAY", default_timeout_microseconds=10)
    scheduler = batcher(priority_levels=2, default_priority_level=2, priority_queue_policy={1: policy})
    put(scheduler, 1, at=0, priority=1)
    put(scheduler, 2, at=5 * US, priority=2)
    put(scheduler, 3, at=10 * US, priority=1)
    assert taken(scheduler, 11 * US) == [([3, 1, 2], "no_delay")]


@pytest.mark.rule("2.2d")
def test_2_2_a_higher_arrival_reforms_what_was_about_to_wait() -> None:
    scheduler = batcher(
        preferred_batch_sizes=(3, 8), max_queue_delay_microseconds=100, priority_levels=2, default_priority_level=2
    )
    put(scheduler, 1, rows=2)
    assert scheduler.acquire(0, 0) is None
    put(scheduler, 2, rows=3, priority=1)
    assert taken(scheduler) == [([2], "preferred")]


@pytest.mark.rule("2.3a", "2.3b", "2.6a")
def test_2_3_a_level_has_its_own_policy_or_else_the_default_one() -> None:
    one, default = QueuePolicy(max_queue_size=1), QueuePolicy(max_queue_size=2)
    scheduler = batcher(
        priority_levels=2, default_priority_level=2, default_queue_policy=default, priority_queue_policy={1: one}
    )
    put(scheduler, 1, priority=1)
    put(scheduler, 2, 3, priority=2)
    assert isinstance(scheduler.offer(Item(4, priority=1), 0), RejectedItem)
    assert isinstance(scheduler.offer(Item(5, priority=2), 0), RejectedItem)


@pytest.mark.rule("2.3c")
def test_2_3_level_policies_are_ignored_without_levels() -> None:
    scheduler = batcher(priority_queue_policy={1: QueuePolicy(max_queue_size=1), 0: QueuePolicy(max_queue_size=1)})
    put(scheduler, 1, 2, 3, priority=1)


@pytest.mark.rule("2.4a", "2.4-override", "2.4c")
@pytest.mark.parametrize(
    ("default", "override", "asked", "applies"),
    [
        (100, False, 10, 100),
        (100, True, 10, 10),
        (100, True, 0, 100),
        (100, True, 500, 100),  # 18.2: it cannot lengthen a timeout ...
        (0, True, 10, None),  # ... nor create one
        (0, False, 0, None),
    ],
)
def test_2_4_a_request_may_only_shorten_the_default_timeout(
    default: int, override: bool, asked: int, applies: int | None
) -> None:
    scheduler = batcher(default_queue_policy=QueuePolicy("REJECT", default, override))
    item = Item(1, timeout=asked)
    scheduler.offer(item, 7)
    deadline = None if applies is None else 7 + applies * US
    assert item.deadline == deadline
    if deadline is None:
        assert scheduler.expire(10**15) == ()
    else:
        assert scheduler.expire(deadline) == ()  # expires when now > deadline
        assert [r.id for r in scheduler.expire(deadline + 1)] == [1]


@pytest.mark.rule("2.5a", "2.7")
def test_2_5_reject_answers_tritons_text_once_and_the_request_never_runs() -> None:
    scheduler = batcher(default_queue_policy=QueuePolicy(default_timeout_microseconds=100))
    put(scheduler, 1)
    assert scheduler.acquire(0, 10**9) is None
    assert scheduler.next_deadline() is not None  # something is to be answered
    assert scheduler.expire(10**9) == [RejectedItem(1, "timeout", "Request timeout expired")]
    assert scheduler.expire(10**9) == ()
    assert scheduler.next_deadline() is None


@pytest.mark.rule("2.5c", "2.5d")
def test_2_5_delay_puts_behind_in_order_of_arrival_without_further_timeout() -> None:
    policy = QueuePolicy("DELAY", default_timeout_microseconds=100, allow_timeout_override=True)
    scheduler = batcher(max_batch_size=2, default_queue_policy=policy)
    put(scheduler, 1, at=0)
    put(scheduler, 2, at=0, timeout=20)
    put(scheduler, 3, at=90 * US)
    assert scheduler.expire(21 * US) == ()
    assert scheduler.expire(101 * US) == ()
    assert scheduler.waiting == 3
    assert taken(scheduler, 102 * US) == [([3, 1], "full"), ([2], "no_delay")]


def test_2_5_the_age_of_a_delayed_request_still_ends_the_queue_delay() -> None:
    scheduler = batcher(
        max_queue_delay_microseconds=100, default_queue_policy=QueuePolicy("DELAY", default_timeout_microseconds=50)
    )
    put(scheduler, 1, at=0)
    put(scheduler, 2, at=40 * US)
    assert taken(scheduler, 60 * US) == []
    assert scheduler.next_deadline() == 90 * US + 1  # the timeout of 2
    scheduler.expire(90 * US + 1)
    assert scheduler.next_deadline() == 100 * US
    assert taken(scheduler, 100 * US) == [([1, 2], "delay")]


def test_a_rejected_head_moves_the_end_of_the_delay() -> None:
    policy = QueuePolicy(default_timeout_microseconds=60, allow_timeout_override=True)
    scheduler = batcher(max_queue_delay_microseconds=50, default_queue_policy=policy)
    put(scheduler, 1, at=0, timeout=20)
    put(scheduler, 2, at=10 * US)
    assert scheduler.acquire(0, 10 * US) is None
    assert [r.id for r in scheduler.expire(20 * US + 1)] == [1]
    assert scheduler.next_deadline() == 60 * US
    assert taken(scheduler, 59 * US) == []


@pytest.mark.rule("2.5e", "2.6a", "2.6b")
def test_2_6_max_queue_size_counts_queued_and_delayed_of_the_level_not_what_runs() -> None:
    policy = QueuePolicy("DELAY", default_timeout_microseconds=10, max_queue_size=2)
    scheduler = batcher(max_batch_size=1, default_queue_policy=policy)
    put(scheduler, 1, 2, at=0)
    scheduler.expire(20 * US)
    refused = scheduler.offer(Item(3), 20 * US)
    assert refused == RejectedItem(3, "queue_full", "Exceeds maximum queue size")
    assert ids(scheduler.acquire(0, 21 * US)) == [1]
    put(scheduler, 3, at=21 * US)
    assert isinstance(scheduler.offer(Item(4), 21 * US), RejectedItem)


@pytest.mark.rule("2.6d")
def test_2_6_and_18_1_a_refused_request_leaves_no_trace() -> None:
    scheduler = batcher(default_queue_policy=QueuePolicy(default_timeout_microseconds=100, max_queue_size=1))
    put(scheduler, 1)
    scheduler.offer(Item(2), 0)
    assert not scheduler.cancel(2, 0)
    assert scheduler.statistics(0).waiting_requests == 1
    assert [r.id for r in scheduler.expire(10**9)] == [1]


@pytest.mark.rule("2.7")
def test_2_7_a_request_whose_time_is_up_makes_room_even_before_anybody_is_told() -> None:
    scheduler = batcher(default_queue_policy=QueuePolicy(default_timeout_microseconds=100, max_queue_size=1))
    put(scheduler, 1)
    put(scheduler, 2, at=200 * US)
    assert [r.id for r in scheduler.expire(200 * US)] == [1]


@pytest.mark.rule("1.9c")
def test_18_3_prefetch_decides_in_triton_how_many_max_queue_size_admits_here_it_is_exact() -> None:
    scheduler = batcher(max_batch_size=1, default_queue_policy=QueuePolicy(max_queue_size=5))
    put(scheduler, 0)
    scheduler.acquire(0, 0)
    answers = [scheduler.offer(Item(id), 0) for id in range(1, 9)]
    assert [isinstance(answer, Accepted) for answer in answers] == [True] * 5 + [False] * 3


# ---- driving


def test_a_driver_without_an_idle_instance_is_not_woken_for_the_delay() -> None:
    scheduler = batcher(max_queue_delay_microseconds=100)
    put(scheduler, *range(8))
    running = scheduler.acquire(0, 0)
    assert running is not None
    put(scheduler, 9, at=10)
    assert scheduler.next_deadline() is None
    scheduler.complete(running, 50 * US)
    assert scheduler.next_deadline() == 10 + 100 * US


def test_with_a_second_instance_idle_the_delay_wakes_though_the_last_answer_was_a_batch() -> None:
    scheduler = batcher(max_queue_delay_microseconds=100, instances=2)
    put(scheduler, *range(8))
    assert scheduler.acquire(0, 0) is not None
    put(scheduler, 9, at=10)
    assert scheduler.next_deadline() == 10 + 100 * US


def test_a_driver_that_was_told_and_has_nobody_to_ask_does_not_spin() -> None:
    scheduler = batcher(max_queue_delay_microseconds=100)
    put(scheduler, 1)
    assert scheduler.next_deadline() == 100 * US
    scheduler.expire(100 * US)
    assert scheduler.next_deadline() is None
    assert taken(scheduler, 200 * US) == [([1], "delay")]


def test_batches_are_numbered_from_where_the_caller_says() -> None:
    scheduler = DynamicBatcher(BatcherSettings(max_batch_size=1), first_batch_seq=41)
    put(scheduler, 1, 2)
    batches = [scheduler.acquire(0, 0), scheduler.acquire(0, 0)]
    assert [batch.seq for batch in batches if batch] == [41, 42]


def test_the_same_id_cannot_wait_twice() -> None:
    scheduler = batcher(default_queue_policy=QueuePolicy("DELAY", default_timeout_microseconds=1))
    put(scheduler, 1)
    for now in (0, 10 * US):  # queued, then delayed
        with pytest.raises(ValueError, match="1 waits already"):
            scheduler.offer(Item(1), now)


def test_statistics_tell_how_much_waits_and_for_how_long() -> None:
    scheduler = batcher(priority_levels=2, default_priority_level=2)
    assert scheduler.statistics(5).oldest_age_ns == 0
    put(scheduler, 1, at=10, rows=3)
    put(scheduler, 2, at=30, priority=1)
    statistics = scheduler.statistics(100)
    assert (statistics.waiting_requests, statistics.waiting_rows, statistics.oldest_age_ns) == (2, 4, 90)


# ---- reconfigure


def test_a_longer_delay_holds_what_waits_from_its_old_enqueue_time() -> None:
    scheduler = batcher()
    put(scheduler, 1, 2, at=10)
    scheduler.reconfigure(BatcherSettings(max_batch_size=8, max_queue_delay_microseconds=20_000), 500)
    assert scheduler.acquire(0, 600) is None
    assert scheduler.next_deadline() == 10 + 20 * MS


def test_a_shorter_delay_lets_go_at_once_what_has_waited_long_enough() -> None:
    scheduler = batcher(max_queue_delay_microseconds=20_000)
    put(scheduler, 1)
    assert scheduler.acquire(0, 5 * MS) is None
    scheduler.reconfigure(BatcherSettings(max_batch_size=8, max_queue_delay_microseconds=1_000), 6 * MS)
    assert scheduler.next_deadline() is not None
    assert taken(scheduler, 6 * MS) == [([1], "delay")]


def test_levels_that_appear_and_vanish_keep_what_each_request_asked_for() -> None:
    scheduler = batcher(max_batch_size=1)
    for id, priority in enumerate([3, 2, 1]):
        put(scheduler, id, priority=priority)
    for levels in (3, 2, 0, 3):
        scheduler.reconfigure(
            BatcherSettings(max_batch_size=1, priority_levels=levels, default_priority_level=min(levels, 2)), 5
        )
        assert scheduler.waiting == 3
    assert [batch for batch, _ in taken(scheduler, 6)] == [[2], [1], [0]]


def test_a_new_timeout_counts_from_the_old_enqueue_time_and_may_have_passed() -> None:
    scheduler = batcher()
    put(scheduler, 1, at=0)
    put(scheduler, 2, at=900 * US)
    policy = QueuePolicy(default_timeout_microseconds=500)
    scheduler.reconfigure(BatcherSettings(max_batch_size=8, default_queue_policy=policy), 1000 * US)
    assert [r.id for r in scheduler.expire(1000 * US)] == [1]
    assert scheduler.next_deadline() == 1400 * US + 1
    assert taken(scheduler, 1000 * US) == [([2], "no_delay")]


def test_a_timeout_that_passed_under_the_old_settings_is_answered() -> None:
    scheduler = batcher(default_queue_policy=QueuePolicy(default_timeout_microseconds=100))
    put(scheduler, 1)
    scheduler.reconfigure(BatcherSettings(max_batch_size=8), 200 * US)
    assert [r.id for r in scheduler.expire(200 * US)] == [1]


def test_a_smaller_queue_limit_refuses_new_requests_and_drops_none() -> None:
    scheduler = batcher()
    put(scheduler, 1, 2, 3)
    scheduler.reconfigure(BatcherSettings(max_batch_size=8, default_queue_policy=QueuePolicy(max_queue_size=1)), 5)
    assert isinstance(scheduler.offer(Item(4), 6), RejectedItem)
    assert taken(scheduler, 6) == [([1, 2, 3], "no_delay")]


def test_batching_can_be_switched_off_and_on_under_load() -> None:
    scheduler = batcher()
    put(scheduler, 1, 2, 3)
    scheduler.reconfigure(BatcherSettings(batching=False), 5)
    assert ids(scheduler.acquire(0, 6)) == [1]
    scheduler.reconfigure(BatcherSettings(max_batch_size=8), 7)
    assert taken(scheduler, 8) == [([2, 3], "no_delay")]


def test_a_long_queue_costs_no_more_per_request_than_a_short_one() -> None:
    """The wait of a large batch is decided once, not at every arrival: counted in looks at items, not in time."""
    looks = 0

    class Watched(Item):
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            nonlocal looks
            looks += name == "rows"
            return super().__getattribute__(name)

    per_item = []
    for count in (100, 2000):
        looks = 0
        scheduler = batcher(max_batch_size=4096, max_queue_delay_microseconds=1_000_000)
        for id in range(count):
            scheduler.offer(Watched(id), id)
            assert scheduler.acquire(0, id) is None
            scheduler.next_deadline()
        assert ids(scheduler.acquire(0, 10**12)) == list(range(count))
        per_item.append(looks / count)
    assert per_item[1] <= per_item[0] + 0.1


# ---- 1.15


@pytest.mark.rule("1.15a")
def test_1_15_the_test_hook_holds_batches_until_so_many_wait_once() -> None:
    scheduler = batcher(hold_until_queued=3, instances=1)
    put(scheduler, 1, 2)
    assert scheduler.acquire(0, 0) is None
    assert scheduler.next_deadline() is None
    put(scheduler, 3)
    assert taken(scheduler) == [([1, 2, 3], "no_delay")]
    put(scheduler, 4)
    assert taken(scheduler) == [([4], "no_delay")]


def test_1_15_the_hook_holds_nothing_without_batching_or_while_draining() -> None:
    direct = batcher(hold_until_queued=3, batching=False)
    put(direct, 1)
    assert taken(direct) == [([1], "direct")]
    draining = batcher(hold_until_queued=3)
    put(draining, 1)
    draining.drain(0)
    assert taken(draining) == [([1], "no_delay")]


def test_1_15_timeouts_pass_while_the_hook_holds() -> None:
    policy = QueuePolicy(default_timeout_microseconds=10)
    scheduler = batcher(hold_until_queued=3, default_queue_policy=policy)
    put(scheduler, 1)
    assert scheduler.acquire(0, 0) is None
    assert scheduler.next_deadline() == 10 * US + 1
    assert [each.id for each in scheduler.expire(10 * US + 1)] == [1]


# ---- no instance is left


def test_clear_takes_out_everything_that_waits_and_the_queue_goes_on() -> None:
    delayed = QueuePolicy("DELAY", default_timeout_microseconds=10)
    scheduler = batcher(priority_levels=2, default_priority_level=2, priority_queue_policy={1: delayed})
    put(scheduler, 1, 2, priority=1)
    put(scheduler, 3)
    scheduler.expire(20 * US)
    put(scheduler, 4, at=20 * US, priority=1)
    assert sorted(scheduler.clear(20 * US)) == [1, 2, 3, 4]
    assert (scheduler.waiting, scheduler.statistics(0).waiting_rows, scheduler.next_deadline()) == (0, 0, None)
    put(scheduler, 1, at=30 * US)
    assert taken(scheduler, 30 * US) == [([1], "no_delay")]


def test_clear_leaves_what_has_timed_out_to_expire() -> None:
    scheduler = batcher(default_queue_policy=QueuePolicy(default_timeout_microseconds=10))
    put(scheduler, 1)
    put(scheduler, 2, at=15 * US)
    assert scheduler.clear(20 * US) == [2]
    assert [each.id for each in scheduler.expire(20 * US)] == [1]
