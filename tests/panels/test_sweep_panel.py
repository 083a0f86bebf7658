from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from panel_helpers import wait_for

from workbench.errors import InvalidRequest
from workbench.panels.sweep_form import BATCH, DELAY, PREFERRED, number_lists, numbers, rates, settings_label


@pytest.fixture
def shown(server: Any, tmp_path: Path) -> Any:
    panel = server.panel("sweep", model="double", store=str(tmp_path / "runs"))
    form = panel.form
    form.batch.value, form.delay.value, form.load.value = "", "0, 4000", "1, 4"
    form.seconds.value, form.goal.value = 0.3, 1000.0
    yield panel
    panel.close()


def test_the_form_says_what_it_would_cost(shown: Any) -> None:
    assert "2 configurations × 2 loads = 4 points" in shown.form.estimate.value
    shown.form.batch.value = "1, 4, 8"
    assert "6 configurations × 2 loads = 12 points" in shown.form.estimate.value
    shown.form.load.value = "1, x"
    assert "not a whole number" in shown.form.estimate.value.replace("&#x27;", "'")
    shown._run.click()
    assert shown.job is None
    assert "failed" in shown._progress.value


def test_a_click_measures_the_grid_live_and_restores_the_configuration(shown: Any, tmp_path: Path) -> None:
    before = shown.server.config("double").text
    threads = {thread.name for thread in threading.enumerate()}
    shown._run.click()
    assert shown._run.disabled
    assert not shown._stop.disabled
    wait_for(lambda: len(shown._curve.chart.sources["points"].data["throughput"]) >= 2)  # before the sweep has ended
    wait_for(lambda: shown.job is not None and shown.job.done, 60)
    shown.refresh()
    assert "done" in shown._progress.value
    assert [point.settings[DELAY] for point in shown.points] == [0, 0, 4000, 4000]
    assert all(point.n > 0 for point in shown.points)
    assert shown.server.config("double").text == before
    assert len(shown.frame) == len(shown.result.to_frame()) == 4
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert shown._table.value.count("wb-point") == 4
    assert not shown._run.disabled
    assert "configuration restored" in shown._progress.value
    assert not {t.name for t in threading.enumerate() if "sweep-" in t.name} - threads


def test_the_goal_can_be_moved_without_measuring_anew_and_best_is_applied(shown: Any) -> None:
    for _ in range(3):  # on a busy machine no point may be valid
        shown.run(wait=True)
        if any(point.valid and not point.failed for point in shown.points):
            break
    else:
        pytest.fail(f"no valid point: {[point.reasons for point in shown.points]}")
    assert shown.choice is not None
    assert not shown._apply_best.disabled
    shown.form.goal.value = 0.001
    assert shown.choice is None
    assert "none under the goal" in shown._best.value
    assert shown._apply_best.disabled
    shown.form.goal.value = 1000.0
    shown._apply_best.click()
    wait_for(lambda: "applied" in shown._best.value)
    wanted = shown.choice.settings[DELAY]
    assert f"max_queue_delay_microseconds: {wanted}" in shown.server.config("double").text


def test_stop_keeps_what_was_measured_and_restores(shown: Any) -> None:
    before = shown.server.config("double").text
    shown.form.seconds.value = 5.0
    shown._run.click()
    wait_for(lambda: shown.job is not None)
    shown._stop.click()
    wait_for(lambda: shown.job.done, 20)
    shown.refresh()
    assert "stopped" in shown._progress.value
    assert shown.server.config("double").text == before


def test_a_configuration_that_is_refused_is_a_row_that_says_so(shown: Any) -> None:
    shown.form.delay.value, shown.form.preferred.value, shown.form.load.value = "", "64", "1"
    shown._run.click()
    wait_for(lambda: shown.job is not None and shown.job.done, 60)
    shown.refresh()
    assert "not valid" in shown._table.value
    assert "no point of the sweep is valid" in shown._best.value


def test_lists_are_read_as_people_write_them() -> None:
    assert numbers("1, 8 32,8", "n") == [1, 8, 32]
    assert number_lists("4, 8; 16", "p") == [[4, 8], [16]]
    assert rates("50, 0.5") == [50.0, 0.5]
    with pytest.raises(InvalidRequest, match="'-1' is not a whole number"):
        numbers("-1", "n")
    with pytest.raises(InvalidRequest, match="rate"):
        rates("0")
    assert settings_label({BATCH: 8, DELAY: 500, PREFERRED: [4, 8]}) == "max_batch 8 · delay 500 µs · preferred 4, 8"
    assert settings_label({DELAY: None}) == "no max_queue_delay_microseconds"
    assert settings_label({}) == "as configured"
