"""What paired blocks of two configurations say: which is faster, by how much, or that it is too close to call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workbench.profiling.distributions import student_t
from workbench.profiling.intervals import Estimate, mean_of
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

_UNTOLD = 10.0
"""A change above which it is only said that nothing is known: two pairs may leave it open up to 10^22."""


def deciding_metric(load: Load) -> str:
    """By what two sides under a load are told apart: throughput where it is theirs; an open loop sets it, and leaves
    the mean latency to them."""
    return "mean_ms" if load.has_open else "throughput"


def figure_of(point: Point, metric: str) -> float:
    """A figure of a block; nan for a percentile of too few requests."""
    return math.nan if point.n < FEWEST.get(metric, 0) else float(getattr(point, metric))


def counted_to(a: Point, b: Point) -> float:
    """How far the throughputs of two blocks are known as ratio to each other (its logarithm's deviation) by what is cut
    off at their edges alone: two edges, each anywhere within a round of the clients. 0 where n is not known."""
    shares = [max(1, point.load.clients) / (math.sqrt(6) * point.n) if point.n else 0.0 for point in (a, b)]
    return math.hypot(*shares)


def compare_points(metric: str, pairs: Sequence[tuple[Point, Point]], confidence: float = CONFIDENCE) -> Comparison:
    """``compare_pairs`` over blocks of A and B that stood side by side.

    Nothing where a block has too few requests for a percentile: the blocks that have enough are those in which a side
    was quick.
    """
    figures = [(figure_of(a, metric), figure_of(b, metric)) for a, b in pairs]
    if metric in FEWEST and any(math.isnan(value) for pair in figures for value in pair):
        figures = []
    errors = [counted_to(a, b) for a, b in pairs] if metric == "throughput" else []
    return compare_pairs(metric, [a for a, _ in figures], [b for _, b in figures], confidence, errors)


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
        if not self.faster:
            to = f"to {self.high:+.1%}" if self.high < _UNTOLD else "and anything"
            return f"{name}: too close to call, B - A is between {self.low:+.1%} {to}"
        # By how much the better side is better, as a share of the other one.
        ends = [self.low, self.high] if self.faster == "B" else [1 / (1 + end) - 1 for end in (self.low, self.high)]
        best = self.change if self.faster == "B" else 1 / (1 + self.change) - 1
        small, large = sorted(abs(end) for end in ends)
        return f"{name}: {self.faster} faster by {abs(best):.1%} ({small:.1%} to {large:.1%})"


def compare_pairs(
    metric: str,
    a: Sequence[float],
    b: Sequence[float],
    confidence: float = CONFIDENCE,
    errors: Sequence[float] = (),
) -> Comparison:
    """Compares one figure over pairs of blocks that were measured side by side.

    The logarithms of b/a are averaged, with Student's interval: what slows the machine for both blocks of a pair
    cancels, and pairs are independent although latencies within a block are not. Pairs without a figure are left out.
    Figures that are counted are known no better than their counts, however equal those are: ten blocks of two requests
    each are no ten readings of exactly 2/s.

    Args:
        metric: one of ``METRICS``.
        a: the figure in each block of A.
        b: in the block of B that stood beside it.
        confidence: of the interval.
        errors: how far the logarithm of each pair's ratio is known by itself (``counted_to``).
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    known = (first > 0) & (second > 0)  # nan is neither
    ratios = np.log(second[known] / first[known])
    found = mean_of(ratios, confidence)
    if len(errors) == len(known) and len(ratios) > 1:
        found = _no_better(found, ratios, np.asarray(errors, dtype=np.float64)[known], confidence)
    change, low, high = (math.expm1(value) for value in (found.value, found.low, found.high))
    faster: Literal["A", "B", ""] = ""
    if low > 0 or high < 0:
        faster = "B" if (low > 0) == (metric == "throughput") else "A"
    return Comparison(metric, change, low, high, len(ratios), confidence, faster)


def _no_better(
    found: Estimate, ratios: NDArray[np.float64], errors: NDArray[np.float64], confidence: float
) -> Estimate:
    """An interval no narrower than the errors of its parts; where those vary far less than their errors would have
    them, the errors are one and the same in all of them, and do not average out."""
    error = math.sqrt(float(np.mean(errors**2)))
    locked = float(np.std(ratios, ddof=1)) < error / 3
    least = student_t(10_000, confidence) * error / (1 if locked else math.sqrt(len(ratios)))
    half = max(found.high - found.value, least)
    return Estimate(found.value, found.value - half, found.value + half)


def looks(first: int, most: int) -> list[int]:
    """After how many pairs there is a verdict at the soonest, at each doubling, and at the latest."""
    found = [min(first, most)]
    while found[-1] < most:
        found.append(min(2 * found[-1], most))
    return found


def confidence_of(count: int) -> float:
    """The confidence of each of some looks, so that all of them together err as rarely as one of 95 % (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / count
