"""The two distributions behind the intervals: incomplete beta function and Student's t (no scipy among the core)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

_TINY = 1e-300


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b) for a, b > 0; by its continued fraction, to about 1e-12.

    Of n independent draws that are each below a quantile with probability x, at least k are with probability
    I_x(k, n - k + 1).
    """
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # where the fraction converges fast
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 20_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1.0 / _away(1.0 + even * d), _away(1.0 + even / c)
        value *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1.0 / _away(1.0 + odd * d), _away(1.0 + odd / c)
        value *= d * c
        if abs(d * c - 1.0) < 1e-13:
            break
    return math.exp(log_front) * value / a


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def crossing(falling: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Where a falling function passes ``target`` between two arguments, by bisection."""
    for _ in range(80):
        middle = (low + high) / 2
        if falling(middle) > target:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@lru_cache(maxsize=512)
def student_t(df: int, confidence: float = 0.95) -> float:
    """The two-sided point of Student's t: |T| stays below it with probability ``confidence``."""
    return crossing(lambda t: incomplete_beta(df / 2, 0.5, df / (df + t * t)), 1 - confidence, 0.0, 1e4)
