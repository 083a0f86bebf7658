"""The advice on batching follows what was measured, whatever the model is called."""

from __future__ import annotations

import pytest
from tuning_points import point

from workbench.errors import InvalidMeasurement
from workbench.tuning import advise_batching

PAYS = {"batch_rows": {1: 400, 8: 60}, "batch_compute_ms": {1: 6.0, 8: 9.0}}
PAYS_NOT = {"batch_rows": {1: 400, 8: 60}, "batch_compute_ms": {1: 8.0, 8: 66.0}}


def test_batching_is_advised_where_it_pays() -> None:
    advice = advise_batching([point(150, 200, **PAYS), point(800, 40, batching=8, **PAYS)])
    assert advice.batching == "on"
    assert advice.gain == pytest.approx(800 / 150)
    assert advice.speedup[8] == pytest.approx(8 * 6 / 9)
    assert "turn batching on" in advice.text
    assert "a batch of 8 takes 1.5 × as long as a single one (9.0 against 6.0 ms): 5.3 × as many rows" in advice.text


def test_batching_is_left_off_where_it_does_not_pay() -> None:
    advice = advise_batching([point(120, 270, **PAYS_NOT), point(122, 280, batching=8, **PAYS_NOT)])
    assert advice.batching == "off"
    assert "a batch of 8 takes 8.2 × as long as a single one (66.0 against 8.0 ms): no more rows" in advice.text


def test_exchanged_curves_exchange_the_advice() -> None:
    for curve, wanted in ((PAYS, "on"), (PAYS_NOT, "off")):
        gain = 4.0 if curve is PAYS else 1.02
        assert (
            advise_batching([point(100, 200, **curve), point(100 * gain, 90, batching=8, **curve)]).batching == wanted
        )


def test_a_gain_that_the_service_times_do_not_show_is_not_believed() -> None:
    """Another process slowed the first point down: the executions themselves tell that batching does not pay."""
    assert advise_batching([point(60, 500, **PAYS_NOT), point(122, 280, batching=8, **PAYS_NOT)]).batching == "off"


def test_a_gain_within_the_spread_is_too_close_to_call() -> None:
    advice = advise_batching([point(100, 200, spread=0.3, **PAYS), point(120, 190, batching=8, spread=0.3, **PAYS)])
    assert advice.batching == "off"
    assert "too close to call" in advice.text


def test_a_gain_that_breaks_the_goal_is_none() -> None:
    advice = advise_batching([point(150, 20, **PAYS), point(800, 40, batching=8, **PAYS)], p99_ms=30)
    assert advice.batching == "off"
    assert "p99 <= 30 ms" in advice.text


def test_only_points_at_the_same_load_are_compared() -> None:
    from workbench.profiling import Load

    with pytest.raises(InvalidMeasurement, match="both with and without at the same load"):
        advise_batching([point(150, 20), point(800, 40, batching=8, load=Load.closed(64))])


def test_a_batch_size_seen_once_says_nothing() -> None:
    rare = {"batch_rows": {1: 400, 8: 60, 31: 1}, "batch_compute_ms": {1: 6.0, 8: 9.0, 31: 900.0}}
    assert set(advise_batching([point(150, 200, **rare), point(800, 40, batching=8, **rare)]).curve) == {1, 8}


def test_a_difference_where_nothing_was_batched_is_not_batchings_doing() -> None:
    from workbench.profiling import Load

    alone = {"load": Load.closed(1), **PAYS}
    advice = advise_batching([point(25, 80, **alone), point(95, 20, batching=8, mean_batch=1.0, **alone)])
    assert advice.batching == "off"
    assert "never waited together" in advice.text


def test_the_heaviest_load_decides() -> None:
    from workbench.profiling import Load

    light = {"load": Load.closed(1), **PAYS}
    points = [point(25, 80, **light), point(95, 20, batching=8, mean_batch=1.0, **light)]
    advice = advise_batching([*points, point(150, 200, **PAYS), point(800, 40, batching=8, **PAYS)])
    assert advice.batching == "on"
    assert "at concurrency 32" in advice.text


def test_where_batching_is_on_the_advice_is_to_keep_it() -> None:
    points = [point(150, 200, **PAYS), point(800, 40, batching=8, **PAYS)]
    assert advise_batching(points, batching_now=True).text.startswith("keep batching on: ")
