"""preserve_ordering (rule 1.12): its documented meaning, responses in request order."""

from __future__ import annotations

import random

import pytest

from workbench.scheduling import ResponseOrder


def test_1_12_a_response_waits_for_all_earlier_requests() -> None:
    order: ResponseOrder[str] = ResponseOrder()
    for id in (1, 2, 3):
        order.admit(id)
    assert order.answer(3, "c", final=True) == []
    assert order.answer(2, "b", final=True) == []
    assert order.answer(1, "a", final=True) == [(1, "a"), (2, "b"), (3, "c")]
    assert len(order) == 0


def test_the_first_in_line_streams_and_the_others_are_kept() -> None:
    order: ResponseOrder[str] = ResponseOrder()
    order.admit(1)
    order.admit(2)
    assert order.answer(1, "a1", final=False) == [(1, "a1")]
    assert order.answer(2, "b1", final=False) == []
    assert order.answer(1, final=True) == [(2, "b1")]
    assert order.answer(2, "b2", final=True) == [(2, "b2")]


def test_an_unknown_finished_or_twice_admitted_request_is_an_error() -> None:
    order: ResponseOrder[str] = ResponseOrder()
    order.admit(1)
    order.admit(2)
    with pytest.raises(ValueError, match="1"):
        order.admit(1)
    order.answer(2, "b", final=True)
    with pytest.raises(KeyError):
        order.answer(2, "again", final=True)
    with pytest.raises(KeyError):
        order.answer(9, "x", final=True)


def test_any_order_of_answers_gives_the_order_of_admission() -> None:
    chance = random.Random(3)
    for _ in range(200):
        order: ResponseOrder[int] = ResponseOrder()
        ids = chance.sample(range(100), 8)
        for id in ids:
            order.admit(id)
        left = {id: chance.randint(1, 3) for id in ids}
        released = []
        while left:
            id = chance.choice(list(left))
            left[id] -= 1
            released += order.answer(id, left[id], final=left[id] == 0)
            if not left[id]:
                del left[id]
        assert [id for index, (id, _) in enumerate(released) if index == 0 or released[index - 1][0] != id] == ids
        assert len(order) == 0
