"""Percentiles and the intervals around them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Two-sided 95 % points of Student's t by degrees of freedom (1..30).
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval; nan where there are too few requests to say."""

    value: float
    low: float
    high: float


NOTHING = Estimate(math.nan, math.nan, math.nan)


def nearest_rank(ordered: NDArray[np.float64], q: float) -> float:
    """The quantile as perf_analyzer takes it: index floor(q * (n - 1) + 0.5) of the sorted values; nan for none."""
    if len(ordered) == 0:
        return math.nan
    return float(ordered[int(q * (len(ordered) - 1) + 0.5)])


def quantile(ordered: NDArray[np.float64], q: float) -> Estimate:
    """A quantile of sorted values with its distribution-free interval from order statistics.

    The ranks come from the binomial distribution of how many values lie below the true quantile, each side with at
    most 2.5 %. Where the sample is too small for a rank to exist, that end is nan: 300 requests bound no p99. Values
    are taken as independent; neighbouring latencies are not quite, so near saturation the truth varies more.
    """
    n = len(ordered)
    if n == 0:
        return NOTHING
    low, high = _ranks(n, q)
    return Estimate(
        nearest_rank(ordered, q),
        float(ordered[low - 1]) if low >= 1 else math.nan,
        float(ordered[high - 1]) if high <= n else math.nan,
    )


def _ranks(n: int, q: float) -> tuple[int, int]:
    """Ranks (from 1) of the ends: the largest r with P(X <= r - 1) <= 2.5 %, the smallest with >= 97.5 %."""
    spread = math.sqrt(n * q * (1 - q))
    first = max(0, int(n * q - 10 * spread) - 10)
    last = min(n, int(n * q + 10 * spread) + 10)
    k = np.arange(first, last + 1)
    log_choose = math.lgamma(n + 1) - np.array([math.lgamma(i + 1) + math.lgamma(n - i + 1) for i in k.tolist()])
    cdf = np.cumsum(np.exp(log_choose + k * math.log(q) + (n - k) * math.log1p(-q)))
    low = first + int(np.searchsorted(cdf, 0.025, side="right"))
    high = first + int(np.searchsorted(cdf, 0.975, side="left")) + 1
    return low, high


def mean_of(parts: NDArray[np.float64]) -> Estimate:
    """The mean of a few independent readings with its interval by Student's t; one reading has no interval."""
    n = len(parts)
    if n == 0:
        return NOTHING
    mean = float(np.mean(parts))
    if n == 1:
        return Estimate(mean, math.nan, math.nan)
    t = _T95[n - 2] if n - 2 < len(_T95) else 1.96
    half = t * float(np.std(parts, ddof=1)) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half)
