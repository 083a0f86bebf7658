"""One request as a waterfall: its sentence, its bars, and who is shown beside it."""

from __future__ import annotations

import pytest
from record_helpers import Book, busy_instance

from workbench.errors import NotFound
from workbench.records.waterfall import waterfall_of


def test_it_says_in_a_sentence_where_the_time_went() -> None:
    found = waterfall_of(busy_instance().columns(), 1)
    assert found.title == 'Request 1 "slow one" of m: 12.5 ms'
    assert found.sentence == (
        "Waited 6.00 ms for instance m_0, busy with batches 17 and 18 (10 rows); waited 1.00 ms for more requests to "
        "share its batch (max_queue_delay_microseconds); ran 5.00 ms on m_0 in batch 19, with 1 other request (3 rows; "
        "formed because the queue delay was over)."
    )
    one = waterfall_of(busy_instance().columns(), 9)
    assert one.sentence.startswith("Waited 5.00 ms for instance m_0, busy with batch 17 (8 rows); ran 2.00 ms")
    assert "alone (2 rows; formed because it was full)" in one.sentence


def test_rows_of_many_batches_before_are_said_of_all_of_them() -> None:
    book = Book()
    for number in range(1, 6):
        book.batch(number, number, number + 1, rows=8)
    book.batch(6, 6, 7)
    book.request(1, 1, batch=6)
    sentence = waterfall_of(book.columns(), 1).sentence
    assert "busy with 5 batches up to batch 5 (40 rows together)" in sentence


def test_of_a_model_that_does_not_batch_the_requests_before_are_named() -> None:
    book = Book()
    for number, seq in enumerate((41, 43, 42, 44, 40)):
        book.batch(number + 1, number * 10, number * 10 + 10, reason="direct")
        book.request(seq, number, batch=number + 1)
    columns = book.columns()
    ran = "alone (1 row; formed because the model does not batch)."
    assert waterfall_of(columns, 43).sentence == (
        f"Waited 9.00 ms for instance m_0, busy with request 41 (1 row); ran 10.0 ms on m_0 in batch 2, {ran}"
    )
    assert "waited 27.0 ms for instance m_0, busy with requests 41, 43 and 42 (3 rows); " in (
        waterfall_of(columns, 44).sentence.lower()
    )
    assert "busy with 4 requests up to request 44 (4 rows together)" in waterfall_of(columns, 40).sentence


def test_a_request_that_was_never_taken_says_what_its_instances_did() -> None:
    book = Book()
    book.batch(1, 0, 20, reason="direct")
    book.request(1, 0, batch=1)
    book.request(2, 5, end=15, status="CANCELLED")
    book.batch(2, 0, 9, model="other", instance="other_0")
    assert waterfall_of(book.columns(), 2).sentence == (
        "Waited 10.0 ms in the queue while m_0 was busy with request 1 (1 row) and was refused (cancelled)."
    )
    book.batch(3, 10, 14, instance="m_1", rows=4)
    assert "while 2 instances were busy with batches 1 and 3 (5 rows) and" in waterfall_of(book.columns(), 2).sentence


def test_its_bars_are_the_request_what_it_waited_for_and_its_batch_mates() -> None:
    found = waterfall_of(busy_instance().columns(), "slow one")
    assert [(bar.kind, bar.seq, bar.batch_seq) for bar in found.bars] == [
        ("request", 1, 19), ("before", -1, 17), ("before", -1, 18), ("mate", 2, 19),
    ]  # fmt: skip
    assert [name for name, _, _ in found.bars[0].phases] == ["queue", "compute infer", "answer"]
    text = found.to_text(width=50)
    lines = text.splitlines()
    assert lines[0] == found.title
    # 12.5 ms on 50 letters: 7 ms of queue, 5 ms of infer, 0.5 ms until the answer
    assert next(line for line in lines if line.startswith("1 m")).split("|")[1] == "-" * 28 + "#" * 20 + "=" * 2
    assert "same batch" in lines[-2]


def test_what_was_made_for_a_request_is_told_with_its_own_wait() -> None:
    book = Book()
    book.batch(1, 0, 8, model="last", instance="last_0")
    book.batch(2, 8, 10, model="last", instance="last_0", rows=4, requests=2)
    book.batch(3, 0, 1, model="first", instance="first_0")
    book.request(20, 0, begun=0.01, computed=10, model="pipeline", request_id="mine")
    book.request(21, 0, batch=3, parent_seq=20, request_id="mine")
    book.request(22, 1, batch=2, parent_seq=20, request_id="mine")
    book.request(23, 3, batch=2)
    found = waterfall_of(book.columns(), "mine")
    assert found.request.seq == 20, "not one of those made for it, although they have its id"
    assert found.notes == ()
    assert [(bar.kind, bar.depth) for bar in found.bars] == [
        ("request", 0), ("child", 1), ("child", 1), ("before", 2),
    ]  # fmt: skip
    assert found.sentence == (
        "Its steps took 10.0 ms, the longest last (request 22) 9.00 ms, which waited 7.00 ms for instance last_0, busy "
        "with batch 1 (1 row) and ran 2.00 ms on last_0 in batch 2, with 1 other request (4 rows; formed because it "
        "was full)."
    )


def test_a_model_that_asks_others_says_how_long_they_took() -> None:
    book = Book()
    book.batch(1, 0, 10, model="asks", instance="asks_0", reason="direct")
    book.batch(2, 1, 9, model="asked", instance="asked_0", reason="direct")
    book.request(1, 0, batch=1)
    book.request(2, 1, batch=2, parent_seq=1)
    assert waterfall_of(book.columns(), 1).sentence == (
        "Ran 10.0 ms on asks_0 in batch 1, alone (1 row; formed because the model does not batch); of that, requests "
        "to other models took 8.00 ms (asked (request 2) 8.00 ms), which ran 8.00 ms on asked_0 in batch 2, alone (1 "
        "row; formed because the model does not batch)."
    )


def test_a_refused_request_and_one_without_a_record() -> None:
    book = Book()
    book.request(5, 0, end=30, status="TIMEOUT", error="Request timeout expired", request_id="late")
    book.request(6, 40, end=41, status="TIMEOUT", request_id="late")
    found = waterfall_of(book.columns(), 5)
    assert found.sentence == "Waited 30.0 ms in the queue and was refused (timeout)."
    assert found.notes == ("Request timeout expired",)
    assert found.title.endswith("30.0 ms, failed (timeout)")
    assert [name for name, _, _ in found.request.phases] == ["queue"]
    newest = waterfall_of(book.columns(), "late")
    assert newest.request.seq == 6
    assert newest.notes == ("Of 2 requests with this id the newest.",)
    for unknown in (99, "99"):
        with pytest.raises(NotFound, match=f"no record of request {unknown!r}"):
            waterfall_of(book.columns(), unknown)
