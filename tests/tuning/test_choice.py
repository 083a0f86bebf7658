"""The configuration that is taken, and the ones that are not."""

from __future__ import annotations

import pytest
from tuning_points import point

from workbench.errors import InvalidMeasurement
from workbench.tuning import choose


def test_the_highest_throughput_within_the_goal_is_taken() -> None:
    points = [point(100, 5, settings={"a": 1}), point(300, 40, settings={"a": 2}), point(500, 90, settings={"a": 3})]
    assert choose(points).settings == {"a": 3}
    assert choose(points, p99_ms=50).settings == {"a": 2}
    assert "goal of 50 ms" in choose(points, p99_ms=50).text


def test_a_goal_that_is_held_by_too_few_requests_is_not_shown_to_be_held() -> None:
    few = point(300, 40, n=100, p99_worth=100.0)
    assert "not shown: p99 needs at least 459 requests, had 100" in choose([few], p99_ms=50).text
    enough = point(300, 40, n=2000, p99_worth=2000.0, p99_claimable_ms=48.0)
    assert "not shown" not in choose([enough], p99_ms=50).text
    assert "not shown" not in choose([few]).text


def test_among_those_too_close_to_call_the_lower_latency_is_taken() -> None:
    points = [point(500, 90, settings={"a": 1}), point(495, 60, settings={"a": 2}), point(300, 10, settings={"a": 3})]
    choice = choose(points)
    assert choice.settings == {"a": 2}
    assert [other.settings for other in choice.tied] == [{"a": 1}]
    assert "too close to call" in choice.text


def test_a_wide_interval_does_not_win_over_real_throughput() -> None:
    points = [point(500, 90, settings={"a": 1}), point(300, 10, settings={"a": 2}, spread=0.9)]
    assert choose(points).settings == {"a": 1}


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"valid": False, "reasons": ("the generator lagged",)}, id="not valid"),
        pytest.param({"failed": 3}, id="lost requests"),
        pytest.param({"error": "the model is gone"}, id="failed"),
    ],
)
def test_points_that_must_not_be_believed_do_not_count(bad: dict[str, object]) -> None:
    points = [point(900, 5, settings={"a": 1}, **bad), point(100, 5, settings={"a": 2})]
    assert choose(points).settings == {"a": 2}
    with pytest.raises(InvalidMeasurement, match="no point of the sweep is valid"):
        choose(points[:1])


def test_a_choice_that_had_not_settled_says_so() -> None:
    assert "not stable" in choose([point(500, 20, settings={"a": 1}, stable=False), point(100, 5)]).text
    assert "not stable" not in choose([point(500, 20, settings={"a": 1})]).text


def test_nobody_is_sent_to_measure_again_what_was_refused() -> None:
    with pytest.raises(InvalidMeasurement) as caught:
        choose([point(0, 0, settings={"a": 1}, valid=False, error="the configuration was refused: why")])
    assert "measure again" not in caught.value.hint
    assert "the configuration was refused: why" in caught.value.where


def test_a_goal_that_none_holds_names_the_nearest() -> None:
    with pytest.raises(InvalidMeasurement, match="p99 <= 2 ms") as caught:
        choose([point(100, 5.0, settings={"a": 1}), point(300, 40.0)], p99_ms=2)
    assert "p99 5.0 ms" in caught.value.where
