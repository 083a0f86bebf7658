"""Who waited for whom: the timeline's table, its parts, and queue depths, on records made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from record_helpers import MS, START, Book, busy_instance

from workbench.errors import NotFound
from workbench.records.timeline import timeline_of
from workbench.records.waiting import queue_depth, waits_of


def test_a_wait_is_split_into_the_instances_other_batches_and_the_rest() -> None:
    frame = timeline_of(busy_instance().columns(), START).frame().set_index("seq")
    slow = frame.loc[1]
    assert (slow.waited_ms, slow.busy_ms, slow.free_ms) == (7.0, 6.0, 1.0)
    assert (slow.behind, slow.ahead, slow.batch_seq, slow.batch_rows, slow.batch_requests) == (18, 2, 19, 3, 2)
    assert (slow.reason, slow.instance, slow.compute_ms, slow.total_ms) == ("delay", "m_0", 5.0, 12.5)
    assert (frame.loc[9].busy_ms, frame.loc[9].behind, frame.loc[9].ahead) == (5.0, 17, 1)
    assert (frame.loc[2].busy_ms, frame.loc[2].free_ms, frame.loc[2].behind) == (0.0, 0.5, -1)
    assert frame.loc[3].waited_ms == 0
    assert frame.loc[7].arrival_ms == 0


def test_a_refused_request_waited_until_its_end_and_an_ensemble_in_no_queue() -> None:
    book = Book()
    book.request(1, 0, end=30, status="TIMEOUT", error="Request timeout expired")
    book.request(2, 0, begun=1, computed=20, model="pipeline")
    waits = waits_of(book.columns().requests, book.columns().batches)
    assert (waits.busy + waits.free).tolist() == [30 * MS, 0]
    assert waits.batch.tolist() == [-1, -1]


def test_waits_are_those_of_a_plain_count_on_random_records() -> None:
    rng = np.random.default_rng(7)
    book, at = Book(), {"a": 0.0, "b": 0.0}
    expected = {}
    spans: dict[str, list[tuple[float, float]]] = {"a": [], "b": []}
    for number in range(60):
        instance = "ab"[number % 2]
        begin = at[instance] + float(rng.integers(0, 3))
        end = begin + float(rng.integers(1, 9))
        book.batch(number, begin, end, instance=instance)
        arrival = max(0.0, begin - float(rng.integers(0, 20)))
        book.request(number, arrival, batch=number)
        expected[number] = sum(max(0.0, min(b, begin) - max(a, arrival)) for a, b in spans[instance])
        spans[instance].append((begin, end))
        at[instance] = end
    frame = timeline_of(book.columns(), START).frame().set_index("seq")
    assert frame.busy_ms.to_dict() == pytest.approx(expected)
    assert (frame.busy_ms + frame.free_ms == frame.waited_ms).all()


def test_the_depth_of_a_queue_follows_arrivals_and_batches() -> None:
    columns = busy_instance().columns()
    times, depth = queue_depth(columns.requests, waits_of(columns.requests, columns.batches))["m"]
    found = dict(zip(((times - START) / MS).tolist(), depth.tolist(), strict=True))
    # 9 waits from 1 to 6, 1 from 2 to 9, 2 from 8.5 to 9
    assert found == {1: 1, 2: 2, 6: 1, 8.5: 2, 9: 0}


def test_a_part_keeps_what_its_requests_waited_for() -> None:
    columns = busy_instance().columns()
    whole = timeline_of(columns, START).frame().set_index("seq")
    part = timeline_of(columns, START + 20 * MS, last_s=0.0065)  # what ended after 13.5 ms
    assert part.requests["seq"].tolist() == [1, 2]
    assert part.batches["batch_seq"].tolist() == [18, 19], "the batch before is there, too"
    now = part.frame().set_index("seq")
    for column in ("waited_ms", "busy_ms", "behind", "ahead", "batch_rows", "reason"):
        assert now[column].tolist() == whole.loc[[1, 2], column].tolist(), column
    nothing = timeline_of(columns, START + 10**12, last_s=1)
    assert len(nothing.frame()) == 0
    assert nothing.instances == []


def test_a_models_timeline_has_what_was_made_for_it() -> None:
    book = Book()
    book.batch(1, 1, 4, model="step", instance="step_0")
    book.batch(2, 4, 5, model="step", instance="step_0")
    book.batch(3, 0, 9, model="other", instance="other_0")
    book.request(10, 0, begun=0.5, computed=5, model="pipeline")
    book.request(11, 1, batch=1, parent_seq=10)
    book.request(12, 2, batch=2)
    book.request(13, 0, batch=3)
    data = timeline_of(book.columns(), START, model="pipeline")
    assert sorted(data.requests["seq"].tolist()) == [10, 11]
    assert data.instances == [("step", "step_0")]
    assert len(data.batches["done"]) == 2, "what others asked of the step kept it busy, too"
    with pytest.raises(NotFound, match="no request of 'nobody' is recorded"):
        timeline_of(book.columns(), START, model="nobody")
