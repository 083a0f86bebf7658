from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from panel_helpers import wait_for, write_model

from workbench.errors import InvalidRequest
from workbench.profiling import MeasureOptions

LENIENT = MeasureOptions(lag_limit_ms=1e3, stall_share=1.0, other_cpu_limit=10.0)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    write_model(root, "slow", sleep=0.02)
    write_model(root, "quick", sleep=0.002)
    return root


@pytest.fixture
def shown(server: Any, tmp_path: Path) -> Any:
    panel = server.panel(
        "compare", models=["slow", "quick"], concurrency=1, store=str(tmp_path / "runs"), measure=LENIENT, warmup_s=0.0
    )
    panel._rounds.value, panel._seconds.value, panel._startup.value = 3, 0.3, False
    yield panel
    panel.close()


def test_a_click_compares_and_shows_speed_and_drift(shown: Any, tmp_path: Path) -> None:
    assert shown._reference.value == "slow"
    shown._run.click()
    assert shown._run.disabled
    wait_for(lambda: shown.result is not None, 60)
    assert not shown._run.disabled
    assert "quick has the highest throughput" in shown._said.value
    assert " ×</span>" in shown._table.value
    assert "100.0%" in shown._table.value  # top-1 the same
    bars = shown._speed.chart.sources["bars"].data
    assert list(bars["at"]) == ["slow", "quick"]
    assert bars["middle"][1] > bars["middle"][0]
    assert len(shown._latency.chart.sources["bars"].data["at"]) == 4
    assert "Where quick differs most" in shown._examples.value
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert "quick" in shown.to_html()
    assert repr(shown) == repr(shown.result)


def test_one_model_cannot_be_compared(shown: Any) -> None:
    shown._models.value = ["quick"]
    assert list(shown._reference.options) == ["quick"]
    shown._run.click()
    assert "choose two models or more" in shown._said.value
    with pytest.raises(InvalidRequest):
        shown.run(wait=True)
    assert repr(shown) == "Compare: nothing was compared"


def test_stop_keeps_what_was_measured(shown: Any) -> None:
    shown._rounds.value, shown._seconds.value = 100, 0.3
    shown._run.click()
    wait_for(lambda: "of 200 blocks" in shown._said.value, 60)
    shown._stop.click()
    wait_for(lambda: shown.result is not None, 60)
    assert shown.result.stopped
    assert "stopped" in shown._said.value
    assert not shown._run.disabled
