from __future__ import annotations

import math

import numpy as np
import pytest

from workbench.profiling.intervals import mean_of, nearest_rank, quantile
from workbench.profiling.verdict import P99_REQUESTS


def test_percentiles_are_perf_analyzers() -> None:
    values = np.arange(1.0, 101.0)
    # index floor(q * (n - 1) + 0.5)
    assert nearest_rank(values, 0.5) == 51
    assert nearest_rank(values, 0.99) == 99
    assert math.isnan(nearest_rank(values[:0], 0.5))


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
def test_the_interval_holds_the_truth_as_often_as_it_says(q: float) -> None:
    rng = np.random.default_rng(5)
    truth = -math.log(1 - q)
    draws, held = 400, 0
    for _ in range(draws):
        estimate = quantile(np.sort(rng.exponential(size=1000)), q)
        held += estimate.low <= truth <= estimate.high
    assert 0.93 <= held / draws <= 0.99


@pytest.mark.full
@pytest.mark.parametrize("q", [0.5, 0.99])
def test_coverage_over_many_draws(q: float) -> None:
    rng = np.random.default_rng(6)
    truth = math.exp(0.5 * {0.5: 0.0, 0.99: 2.3263478740408408}[q])
    held = 0
    for _ in range(2000):
        estimate = quantile(np.sort(np.exp(0.5 * rng.standard_normal(2000))), q)
        held += estimate.low <= truth <= estimate.high
    assert 0.93 <= held / 2000 <= 0.97


def test_too_few_values_leave_an_end_open() -> None:
    estimate = quantile(np.arange(100.0), 0.99)
    assert math.isnan(estimate.high)
    assert not math.isnan(estimate.low)
    assert not math.isnan(quantile(np.arange(1000.0), 0.99).high)
    assert math.isnan(quantile(np.arange(3.0), 0.5).low)
    assert math.isnan(quantile(np.arange(float(P99_REQUESTS - 1)), 0.99).high)
    assert not math.isnan(quantile(np.arange(float(P99_REQUESTS)), 0.99).high)


def test_means_have_students_interval() -> None:
    estimate = mean_of(np.array([1.0, 2.0, 3.0]))
    assert estimate.value == 2
    assert estimate.high - 2 == pytest.approx(4.303 / math.sqrt(3))
    assert math.isnan(mean_of(np.array([1.0])).low)
