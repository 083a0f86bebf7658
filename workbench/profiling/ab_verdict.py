"""What paired blocks of two configurations say: which is faster, by how much, or that it is too close to call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from workbench.profiling.intervals import mean_of
from workbench.profiling.load import Load
from workbench.profiling.point import Point

CONFIDENCE = 0.95

METRICS: Mapping[str, str] = MappingProxyType(
    {"throughput": "throughput", "mean_ms": "mean latency", "p50_ms": "p50", "p99_ms": "p99"}
)
"""What is compared, by the field of a point; higher is better of the first, lower of the others."""

FEWEST: Mapping[str, int] = MappingProxyType({"p95_ms": 20, "p99_ms": 100})
"""So many requests a block must have for a percentile: of fewer it is the largest or so, which grows with their number,
and is another figure for the side that answers more of them."""


def deciding_metric(load: Load) -> str:
    """By what two sides under a load are told apart: throughput where it is theirs; an open loop sets it, and leaves
    the mean latency to them."""
    return "mean_ms" if load.has_open else "throughput"


def figure_of(point: Point, metric: str) -> float:
    """A figure of a block; nan for a percentile of too few requests."""
    return math.nan if point.n < FEWEST.get(metric, 0) else float(getattr(point, metric))


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A in one figure: ``change`` is B/A - 1, from ``low`` to ``high`` with ``confidence``, over ``pairs``
    of blocks. ``faster`` names the better side, empty where the interval holds no change at all."""

    metric: str
    change: float
    low: float
    high: float
    pairs: int
    confidence: float
    faster: Literal["A", "B", ""]

    @property
    def text(self) -> str:
        """In a sentence."""
        name = METRICS[self.metric]
        if math.isnan(self.low):
            least = FEWEST.get(self.metric)
            of = f" with {least} requests or more" if least else ""
            counted = f"{self.pairs} pair{'s' * (self.pairs != 1)}"
            return f"{name}: no verdict, {counted} of blocks{of} {'is' if self.pairs == 1 else 'are'} too few"
        interval = f"{self.low:+.1%} to {self.high:+.1%}"
        if not self.faster:
            return f"{name}: too close to call, B - A is between {interval}"
        # By how much the better side is better, as a share of the other one.
        ends = [self.low, self.high] if self.faster == "B" else [1 / (1 + end) - 1 for end in (self.low, self.high)]
        best = self.change if self.faster == "B" else 1 / (1 + self.change) - 1
        small, large = sorted(abs(end) for end in ends)
        return f"{name}: {self.faster} faster by {abs(best):.1%} ({small:.1%} to {large:.1%})"


def compare_pairs(metric: str, a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> Comparison:
    """Compares one figure over pairs of blocks that were measured side by side.

    The logarithms of b/a are averaged, with Student's interval: what slows the machine for both blocks of a pair
    cancels, and pairs are independent although latencies within a block are not. Pairs without a figure are left out.

    Args:
        metric: one of ``METRICS``.
        a: the figure in each block of A.
        b: in the block of B that stood beside it.
        confidence: of the interval.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    known = (first > 0) & (second > 0)  # nan is neither
    ratios = np.log(second[known] / first[known])
    found = mean_of(ratios, confidence)
    change, low, high = (math.expm1(value) for value in (found.value, found.low, found.high))
    faster: Literal["A", "B", ""] = ""
    if low > 0 or high < 0:
        faster = "B" if (low > 0) == (metric == "throughput") else "A"
    return Comparison(metric, change, low, high, len(ratios), confidence, faster)


def looks(first: int, most: int) -> list[int]:
    """After how many pairs there is a verdict at the soonest, at each doubling, and at the latest."""
    found = [min(first, most)]
    while found[-1] < most:
        found.append(min(2 * found[-1], most))
    return found


def confidence_of(count: int) -> float:
    """The confidence of each of some looks, so that all of them together err as rarely as one of 95 % (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / count
