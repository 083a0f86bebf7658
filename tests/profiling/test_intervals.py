from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray

from workbench.profiling.intervals import Estimate, mean_of, mean_of_series, nearest_rank, quantile, quantile_of

Draws = NDArray[np.float64]
NORMAL = NormalDist()
N = 4000


def test_percentiles_are_perf_analyzers() -> None:
    values = np.arange(1.0, 101.0)
    # index floor(q * (n - 1) + 0.5)
    assert nearest_rank(values, 0.5) == 51
    assert nearest_rank(values, 0.99) == 99
    assert math.isnan(nearest_rank(values[:0], 0.5))


def batches(rng: np.random.Generator, draws: int, largest: int = 16, alike: float = 0.9) -> Draws:
    """Standard normal values in the order of time; those of one batch correlate by ``alike``."""
    out = np.empty((draws, N))
    for row in out:
        batch = np.repeat(np.arange(N), rng.integers(1, largest + 1, size=N))[:N]
        shared = rng.standard_normal(batch[-1] + 1)[batch]
        row[:] = math.sqrt(alike) * shared + math.sqrt(1 - alike) * rng.standard_normal(N)
    return out


def lognormal(rng: np.random.Generator, draws: int) -> Draws:
    return np.exp(0.5 * rng.standard_normal((draws, N)))


def bimodal(rng: np.random.Generator, draws: int) -> Draws:
    slow = rng.random((draws, N)) < 0.3
    return np.where(slow, 40 + 4 * rng.standard_normal((draws, N)), 10 + rng.standard_normal((draws, N)))


def bimodal_truth(q: float) -> float:
    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        below = 0.7 * NORMAL.cdf(middle - 10) + 0.3 * NORMAL.cdf((middle - 40) / 4)
        low, high = (middle, high) if below < q else (low, middle)
    return low


def heavy_tailed(rng: np.random.Generator, draws: int) -> Draws:
    return 1 + rng.pareto(1.5, (draws, N))  # no variance


def batched(rng: np.random.Generator, draws: int) -> Draws:
    return np.exp(0.5 * batches(rng, draws))


LATENCIES: dict[str, tuple[Callable[[np.random.Generator, int], Draws], Callable[[float], float]]] = {
    "lognormal": (lognormal, lambda q: math.exp(0.5 * NORMAL.inv_cdf(q))),
    "bimodal": (bimodal, bimodal_truth),
    "heavy-tailed": (heavy_tailed, lambda q: (1 - q) ** (-1 / 1.5)),
    "batched": (batched, lambda q: math.exp(0.5 * NORMAL.inv_cdf(q))),
}


def coverage(name: str, q: float, draws: int, estimate: Callable[[Draws, Draws, float], Estimate]) -> float:
    make, truth_of = LATENCIES[name]
    truth, held = truth_of(q), 0
    rng = np.random.default_rng(6)
    for _ in range(draws // 100):
        values = make(rng, 100)
        for series, ordered in zip(values, np.sort(values, axis=1), strict=True):
            found = estimate(series, ordered, q)
            # An end that is not known holds nothing out.
            held += not (found.low > truth or found.high < truth)
    return held / draws


@pytest.mark.full
@pytest.mark.parametrize("q", [0.5, 0.99])
@pytest.mark.parametrize("name", LATENCIES)
def test_the_interval_holds_the_truth_as_often_as_it_says(name: str, q: float) -> None:
    assert 0.93 <= coverage(name, q, 2000, quantile_of) <= 0.97


@pytest.mark.parametrize("q", [0.5, 0.99])
def test_latencies_of_batches_are_not_taken_for_independent(q: float) -> None:
    assert coverage("batched", q, 300, lambda series, ordered, q: quantile(ordered, q)) < 0.7
    assert coverage("batched", q, 300, quantile_of) > 0.9


def test_a_mean_of_batched_latencies_has_an_interval_that_holds_it() -> None:
    truth, held = math.exp(0.125), 0
    for series in batched(np.random.default_rng(8), 500):
        found = mean_of_series(series)
        held += found.low <= truth <= found.high
    assert 0.92 <= held / 500 <= 0.98


def test_too_few_values_leave_an_end_open() -> None:
    estimate = quantile(np.arange(100.0), 0.99)
    assert math.isnan(estimate.high)
    assert not math.isnan(estimate.low)
    assert not math.isnan(quantile(np.arange(1000.0), 0.99).high)
    assert math.isnan(quantile(np.arange(3.0), 0.5).low)
    # An upper end exists from the smallest n with 1 - 0.99^n >= 97.5 %.
    assert math.isnan(quantile(np.arange(367.0), 0.99).high)
    assert not math.isnan(quantile(np.arange(368.0), 0.99).high)
    # A thousand that are worth a hundred bound no more than a hundred do.
    assert math.isnan(quantile(np.arange(1000.0), 0.99, worth=100).high)


def test_constant_latencies_have_no_width() -> None:
    values = np.full(1000, 5.0)
    assert quantile_of(values, values, 0.99) == Estimate(5, 5, 5)
    assert mean_of_series(values) == Estimate(5, 5, 5)


def test_means_have_students_interval() -> None:
    estimate = mean_of(np.array([1.0, 2.0, 3.0]))
    assert estimate.value == 2
    assert estimate.high - 2 == pytest.approx(4.303 / math.sqrt(3), rel=1e-4)
    assert math.isnan(mean_of(np.array([1.0])).low)
    # Of 99 %: the table's 9.925 for two degrees of freedom.
    assert mean_of(np.array([1.0, 2.0, 3.0]), 0.99).high - 2 == pytest.approx(9.925 / math.sqrt(3), rel=1e-4)
