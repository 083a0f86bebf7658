"""The client's side of a measurement: latencies, throughput, stability and the checks of the books."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.profiling.intervals import Estimate, mean_of, nearest_rank, quantile
from workbench.profiling.load import Load
from workbench.profiling.samples import Samples

PARTS = 10
"""Into how many pieces the window is cut for the throughput's interval."""

_STABLE = 0.10  # perf_analyzer's: over three windows, max/min <= 1.10


@dataclass(frozen=True, slots=True)
class ClientSide:
    """What the generator's stamps say; see ``Point`` for the fields."""

    n: int
    failed: int
    throughput: Estimate
    latency_ms: NDArray[np.float64]
    sent_latency_ms: NDArray[np.float64]
    lag_ms: NDArray[np.float64]
    p50: Estimate
    p99: Estimate
    littles_law: float
    unstable: tuple[str, ...]

    def at(self, q: float) -> float:
        """A quantile of the latency from the scheduled time."""
        return nearest_rank(self.latency_ms, q)

    def sent_at(self, q: float) -> float:
        """A quantile of the latency from the send."""
        return nearest_rank(self.sent_latency_ms, q)

    def lag_at(self, q: float) -> float:
        """A quantile of how late requests were sent."""
        return nearest_rank(self.lag_ms, q)


def counted_requests(samples: Samples, load: Load) -> NDArray[np.bool_]:
    """Which requests a point is about, by the rule of ``client_side``; failed ones are among them."""
    begin, end = samples.window
    scheduled: NDArray[np.bool_] = samples.scheduled < end
    if load.kind == "open":
        counted: NDArray[np.bool_] = scheduled & (samples.scheduled >= begin)
    else:
        counted = _ended(samples) | ((samples.done == 0) & scheduled)
    return counted


def _ended(samples: Samples) -> NDArray[np.bool_]:
    begin, end = samples.window
    ended: NDArray[np.bool_] = (samples.done >= begin) & (samples.done < end) & (samples.done > 0)
    return ended


def client_side(samples: Samples, load: Load, rows: int) -> ClientSide:
    """Evaluates the stamps of one load point; ``rows`` is the number of inferences in a request.

    A closed loop counts the requests that *ended* in the window. An open loop counts those *scheduled* in it, answered
    whenever: leaving out what was still under way would hide the slowest. Throughput is of what ended in either case.
    """
    begin, end = samples.window
    seconds = max((end - begin) / 1e9, 1e-9)
    ok = samples.ok
    ended = _ended(samples)
    counted = counted_requests(samples, load)
    chosen = counted & ok
    latency = np.sort((samples.done - samples.scheduled)[chosen] / 1e6)
    sent = np.sort((samples.done - samples.sent)[chosen] / 1e6)
    was_sent = counted & (samples.sent > 0)
    lag = np.sort((samples.sent - samples.scheduled)[was_sent] / 1e6)
    done_ok = np.sort(samples.done[ended & ok])
    edges = np.linspace(begin, end, PARTS + 1)
    per_part = np.diff(np.searchsorted(done_ok, edges)) * (rows * PARTS / seconds)
    spread = mean_of(per_part.astype(np.float64))
    throughput = len(done_ok) * rows / seconds
    unstable = [] if samples.stopped else _unstable(samples, ended & ok, load, rows)
    law, complaint = _littles_law(samples, ended & ok)
    if complaint:
        unstable.append(complaint)
    return ClientSide(
        n=len(latency),
        failed=int((counted & ~ok).sum()),
        throughput=Estimate(throughput, max(0.0, spread.low), spread.high),
        latency_ms=latency,
        sent_latency_ms=sent,
        lag_ms=lag,
        p50=quantile(latency, 0.5),
        p99=quantile(latency, 0.99),
        littles_law=law,
        unstable=tuple(unstable),
    )


def _unstable(samples: Samples, ended: NDArray[np.bool_], load: Load, rows: int) -> list[str]:
    """perf_analyzer's rule on three windows, widened by what chance alone does with so few requests."""
    begin, end = samples.window
    done = samples.done[ended]
    latency = (samples.done - samples.scheduled)[ended] / 1e6
    edges = np.linspace(begin, end, 4)
    which = np.clip(np.searchsorted(edges, done, side="right") - 1, 0, 2)
    counts = np.bincount(which, minlength=3)
    if counts.min() == 0:
        return ["nothing was answered in a third of the window"]
    reasons = []
    fewest = float(counts.min())
    ratio = counts.max() / counts.min() - 1
    if ratio > max(_STABLE, 4 / math.sqrt(fewest)):
        reasons.append(f"throughput differs by {ratio:.0%} between the thirds of the window")
    means = np.bincount(which, weights=latency, minlength=3) / counts
    varies = float(latency.std() / latency.mean()) if latency.mean() > 0 else 0.0
    ratio = means.max() / max(means.min(), 1e-9) - 1
    if ratio > max(_STABLE, 4 * varies / math.sqrt(fewest)):
        reasons.append(f"mean latency differs by {ratio:.0%} between the thirds of the window")
    if load.kind == "open":
        offered = int(((samples.scheduled >= begin) & (samples.scheduled < end)).sum())
        if len(done) < 0.95 * offered - 3 * math.sqrt(offered):
            seconds = (end - begin) / 1e9
            reasons.append(
                f"overload: {offered * rows / seconds:.0f}/s were offered, {len(done) * rows / seconds:.0f}/s answered"
            )
    return reasons


def _littles_law(samples: Samples, ended: NDArray[np.bool_]) -> tuple[float, str]:
    """L = λW: the mean number under way, integrated over the window, against throughput times mean latency."""
    begin, end = samples.window
    started = samples.sent > 0
    until = np.where(samples.done > 0, samples.done, end)
    inside = np.minimum(until, end) - np.maximum(samples.sent, begin)
    under_way = float(np.clip(inside[started], 0, None).sum()) / max(end - begin, 1)
    latency = (samples.done - samples.sent)[ended]
    if len(latency) == 0 or latency.sum() == 0:
        return math.nan, ""
    expected = float(latency.sum()) / max(end - begin, 1)
    ratio = under_way / expected
    # What is cut off at the window's two edges is at most what is under way there.
    allowed = 0.05 + 2 * under_way / len(latency)
    if abs(ratio - 1) > allowed:
        return ratio, f"Little's law does not hold: {under_way:.1f} requests under way, {expected:.1f} expected"
    return ratio, ""
