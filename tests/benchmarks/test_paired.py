"""Which pairs of a benchmark are judged, and when a small change is decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def paired(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import support.paired

    return support.paired


@pytest.mark.parametrize(
    ("stolen", "kept"),
    [
        ([0.0] * 4, [0, 1, 2, 3]),
        ([0.0, 0.02, 0.0, 0.0], [0, 2, 3]),
        ([0.3, 0.1, 0.2, 0.1, 0.4], [1, 2, 3]),
        ([0.3], [0]),
        ([], []),
    ],
)
def test_pairs_that_a_hypervisor_took_most_from_are_left_out(paired: Any, stolen: list[float], kept: list[int]) -> None:
    assert paired.undisturbed(stolen) == kept


@pytest.mark.parametrize(
    ("values", "met"),
    [([1.001] * 6, True), ([1.03] * 6, False), ([0.99, 1.03] * 3, None), ([1.001] * 5, None), ([1.03] * 5, None)],
)
def test_a_change_is_decided_by_its_interval_and_not_by_a_few_pairs(
    paired: Any, values: list[float], met: bool | None
) -> None:
    assert paired.changed_row("change", values, goal_percent=2)["met"] is met
