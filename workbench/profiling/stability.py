"""Whether a load has settled: when the warm-up may end, whether a window is long enough, whether its figures hold.

Two rules for a window. ``interval``, the default: the 95 % intervals of mean latency and (in a closed loop, where it is
the server's and not the schedule's) of throughput lie within 10 % of the figure; a drift or a stall widens them, and so
do too few requests. ``three_windows``, perf_analyzer's: over three windows, max/min of each is at most 1.10.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workbench.profiling.intervals import Estimate, mean_of, mean_of_series

Stability = Literal["interval", "three_windows"]

PARTS = 10
"""Into how many pieces the window is cut for the throughput's interval."""

SHARE = 0.10
"""perf_analyzer's stability percentage, and how far an interval's ends may lie from their figure."""

_Stamps = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Thirds:
    """Three windows back to back: answers in each, and the mean latency of each in ms (nan without answers)."""

    counts: NDArray[np.int64]
    means: NDArray[np.float64]
    varies: float
    """Deviation of a single latency from its window's mean, as a share of the mean."""

    @property
    def fewest(self) -> int:
        """Answers in the emptiest window."""
        return int(self.counts.min())

    @property
    def throughput(self) -> float:
        """max/min - 1 of the throughput."""
        return float(self.counts.max() / self.counts.min()) - 1

    @property
    def latency(self) -> float:
        """max/min - 1 of the mean latency."""
        return float(self.means.max() / max(float(self.means.min()), 1e-9)) - 1


def thirds(done: _Stamps, latency_ms: NDArray[np.float64], begin: int, end: int) -> Thirds:
    """Cuts what ended from ``begin`` to ``end`` (ns) into three windows of the same length."""
    inside = (done >= begin) & (done < end)
    done, latency_ms = done[inside], latency_ms[inside]
    edges = np.linspace(begin, end, 4)
    which = np.clip(np.searchsorted(edges, done, side="right") - 1, 0, 2)
    counts = np.bincount(which, minlength=3)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.bincount(which, weights=latency_ms, minlength=3) / counts
    mean = float(latency_ms.mean()) if len(latency_ms) else 0.0
    return Thirds(counts, means, float((latency_ms - means[which]).std()) / mean if mean > 0 else 0.0)


def warm(done: _Stamps, latency_ms: NDArray[np.float64], begin: int, now: int) -> bool:
    """Whether a warm-up that began at ``begin`` has settled: its second half, in three windows, differs by no more than
    10 %, or than chance makes so few requests differ in four of five cases; a longer warm-up costs little. Fewer than
    five answers in a window tell nothing."""
    parts = thirds(done, latency_ms, begin + (now - begin) // 2, now)
    if parts.fewest < 5:
        return False
    chance = 2.5 / math.sqrt(parts.fewest)
    return parts.throughput <= max(SHARE, chance) and parts.latency <= max(SHARE, chance * parts.varies)


def throughput_of(
    done: _Stamps, rows: float | NDArray[np.float64], begin: int, end: int, mean: Estimate, clients: int = 0
) -> Estimate:
    """Rows per second of the answers that ended in a window, with its interval.

    It comes from the counts in ten parts of the window. In a closed loop a part may be shorter than a request, and
    clients that go in step make its counts jump although nothing varies. There throughput is clients / mean latency
    (Little's law), so it is known as well as the mean latency, and as the clients' phase at the two edges lets it be
    counted; the narrower of the two intervals is taken.

    Args:
        done: when requests were answered, ns.
        rows: of one request, or of each.
        begin: of the window, ns.
        end: of the window, ns.
        mean: the mean latency.
        clients: of a closed loop; 0 for an open one.
    """
    seconds = max((end - begin) / 1e9, 1e-9)
    inside = np.flatnonzero((done >= begin) & (done < end))
    order = inside[np.argsort(done[inside], kind="stable")]
    ended = done[order]
    each = np.broadcast_to(np.asarray(rows, np.float64), done.shape)[order]
    until = np.concatenate(([0.0], np.cumsum(each)))[np.searchsorted(ended, np.linspace(begin, end, PARTS + 1))]
    spread = mean_of(np.diff(until) * (PARTS / seconds))
    value = float(each.sum()) / seconds
    low, high = max(0.0, spread.low), spread.high
    if not len(ended) or math.isnan(spread.low):
        return Estimate(value, low, high)
    # Equal counts in all parts do not mean that it is known exactly: an answer more or less lies at the edges.
    edges = value * _EDGES * max(1, clients) / len(ended)
    low, high = max(0.0, min(low, value - edges)), max(high, value + edges)
    if clients and not math.isnan(mean.share):
        half = math.hypot(value * mean.share, edges)
        if 2 * half < high - low:
            low, high = max(0.0, value - half), value + half
    return Estimate(value, low, high)


_EDGES = 1.96 / math.sqrt(6)
"""Two edges, each anywhere within a round of the clients: a deviation of 1 / sqrt(6) rounds."""


def known_well(done: _Stamps, latency_ms: NDArray[np.float64], begin: int, end: int, clients: int = 0) -> bool:
    """Whether a window that ends now holds the rule ``interval``; latencies in any order near that of time."""
    inside = (done >= begin) & (done < end)
    mean = mean_of_series(latency_ms[inside])
    throughput = throughput_of(done, 1, begin, end, mean, clients)
    return not imprecise(throughput, mean, (end - begin) / 1e9, closed=clients > 0)


def imprecise(throughput: Estimate, mean: Estimate, seconds: float, *, closed: bool) -> list[str]:
    """What the rule ``interval`` has against a window of so many seconds."""
    reasons = []
    for name, estimate in (("throughput", throughput), ("mean latency", mean)):
        if name == "throughput" and not closed:
            continue
        share = estimate.share
        if math.isnan(share):
            reasons.append(f"{name} has no interval: too few requests, measure for longer")
        elif share > SHARE:
            longer = f"measure for about {math.ceil(seconds * (share / SHARE) ** 2)} s"
            reasons.append(f"{name} is known to ±{share:.0%} only: {longer if share < 0.5 else 'it has not settled'}")
    return reasons


def differs(done: _Stamps, latency_ms: NDArray[np.float64], begin: int, end: int) -> list[str]:
    """What perf_analyzer's rule has against a window, cut into three."""
    parts = thirds(done, latency_ms, begin, end)
    if parts.fewest == 0:
        return ["nothing was answered in a third of the window"]
    found = (("throughput", parts.throughput), ("mean latency", parts.latency))
    return [f"{name} differs by {by:.0%} between the thirds of the window" for name, by in found if by > SHARE]
