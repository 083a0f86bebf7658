"""The client's side of a measurement: latencies, throughput, stability and the checks of the books."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.profiling.claims import claimable
from workbench.profiling.intervals import Estimate, mean_of_series, nearest_rank, quantile, quantile_of, worth_of
from workbench.profiling.load import Load
from workbench.profiling.samples import Samples
from workbench.profiling.stability import Stability, differs, imprecise, throughput_of


@dataclass(frozen=True, slots=True)
class ClientSide:
    """What the generator's stamps say; see ``Point`` for the fields. The arrays are ascending.

    ``p99_worth`` is how many independent requests the latencies are worth for p99, ``p99_claimable_ms`` the lowest goal
    that p99 is shown to hold.
    """

    n: int
    failed: int
    throughput: Estimate
    latency_ms: NDArray[np.float64]
    sent_latency_ms: NDArray[np.float64]
    lag_ms: NDArray[np.float64]
    mean: Estimate
    p50: Estimate
    p90: Estimate
    p95: Estimate
    p99: Estimate
    p99_worth: float
    p99_claimable_ms: float
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
    if load.mix:
        counted = np.zeros(len(samples.status), np.bool_)
        for index, part in enumerate(load.parts):
            counted |= (samples.class_of == index) & counted_requests(samples, part)
        return counted
    begin, end = samples.window
    scheduled: NDArray[np.bool_] = samples.scheduled < end
    if load.kind == "open":
        counted = scheduled & (samples.scheduled >= begin)
    else:
        counted = _ended(samples) | ((samples.done == 0) & scheduled)
    return counted


def lags_ms(samples: Samples, load: Load) -> NDArray[np.float64]:
    """How late the requests that a point is about were sent, ascending; without those that their sequence held back."""
    was_sent = counted_requests(samples, load) & (samples.sent > 0)
    if len(samples.held):
        was_sent &= ~samples.held
    return np.sort((samples.sent - samples.scheduled)[was_sent] / 1e6)


def _ended(samples: Samples) -> NDArray[np.bool_]:
    begin, end = samples.window
    ended: NDArray[np.bool_] = (samples.done >= begin) & (samples.done < end) & (samples.done > 0)
    return ended


def client_side(
    samples: Samples, load: Load, rows: float | Sequence[float], stability: Stability = "interval"
) -> ClientSide:
    """Evaluates the stamps of one load point; ``rows`` is the number of inferences in a request, or in those of each
    class.

    A closed loop counts the requests that *ended* in the window. An open loop counts those *scheduled* in it, answered
    whenever: leaving out what was still under way would hide the slowest. Throughput is of what ended in either case.
    ``stability`` is the rule by which the window is judged.
    """
    begin, end = samples.window
    ok = samples.ok
    ended = _ended(samples)
    counted = counted_requests(samples, load)
    # In the order in which they ended: those of one batch side by side, so that their likeness shows.
    chosen = np.flatnonzero(counted & ok)
    chosen = chosen[np.argsort(samples.done[chosen], kind="stable")]
    series = (samples.done - samples.scheduled)[chosen] / 1e6
    latency = np.sort(series)
    sent = np.sort((samples.done - samples.sent)[chosen] / 1e6)
    lag = lags_ms(samples, load)
    mean = mean_of_series(series)
    # A client that fails pauses: then throughput and latency are not tied to each other.
    clients = load.clients if bool((ok | ~counted).all()) else 0
    each = _rows_of(samples, rows)
    throughput = throughput_of(samples.done[ended & ok], each[ended & ok], begin, end, mean, clients)
    worth = worth_of(series, latency, 0.99)
    unstable: list[str] = []
    if not samples.stopped and len(series):
        if stability == "interval":
            unstable = imprecise(throughput, mean, samples.seconds, closed=not load.has_open)
        else:
            answered = (samples.done - samples.scheduled)[ended & ok] / 1e6
            unstable = differs(samples.done[ended & ok], answered, begin, end)
        unstable += _overload(samples, ended, load, each)
    law, complaint = _littles_law(samples, ended)
    if complaint:
        unstable.append(complaint)
    return ClientSide(
        n=len(latency),
        failed=int((counted & ~ok).sum()),
        throughput=throughput,
        latency_ms=latency,
        sent_latency_ms=sent,
        lag_ms=lag,
        mean=mean,
        p50=quantile_of(series, latency, 0.5),
        p90=quantile_of(series, latency, 0.9),
        p95=quantile_of(series, latency, 0.95),
        p99=quantile(latency, 0.99, worth),
        p99_worth=worth,
        p99_claimable_ms=claimable(latency, 0.99, worth),
        littles_law=law,
        unstable=tuple(unstable),
    )


def _rows_of(samples: Samples, rows: float | Sequence[float]) -> NDArray[np.float64]:
    if isinstance(rows, Sequence):
        return np.array(rows, np.float64)[samples.class_of]
    return np.full(len(samples.status), float(rows))


def _overload(samples: Samples, ended: NDArray[np.bool_], load: Load, rows: NDArray[np.float64]) -> list[str]:
    """An open loop offers what the server does not give: nothing settles, whatever the intervals say. What it refuses
    at once is no load that it cannot carry."""
    begin, end = samples.window
    seconds = (end - begin) / 1e9
    found = []
    for index, part in enumerate(load.parts):
        mine = samples.class_of == index if load.mix else np.ones(len(ended), np.bool_)
        due = mine & (samples.scheduled >= begin) & (samples.scheduled < end)
        mine = ended & mine
        answered = mine & samples.ok
        enough = 0.95 * int(due.sum()) - 3 * math.sqrt(int(due.sum()))
        if part.kind == "closed" or int(answered.sum()) >= enough:
            continue
        name = f"{load.mix[index][0]}: " if load.mix else ""
        asked, given = rows[due].sum() / seconds, rows[answered].sum() / seconds
        offered = f"{asked:.0f}/s were offered, {given:.0f}/s answered"
        found.append(
            f"{name}{offered}, the others failed" if int(mine.sum()) >= enough else f"{name}overload: {offered}"
        )
    return found


def _littles_law(samples: Samples, ended: NDArray[np.bool_]) -> tuple[float, str]:
    """L = λW: the mean number under way, integrated over the window, against throughput times mean latency; of what was
    refused, too, for it is under way until then."""
    begin, end = samples.window
    started = samples.sent > 0
    until = np.where(samples.done > 0, samples.done, end)
    inside = np.minimum(until, end) - np.maximum(samples.sent, begin)
    under_way = float(np.clip(inside[started], 0, None).sum()) / max(end - begin, 1)
    latency = (samples.done - samples.sent)[ended & started]  # what was refused unsent was never under way
    if len(latency) == 0 or latency.sum() == 0:
        return math.nan, ""
    expected = float(latency.sum()) / max(end - begin, 1)
    ratio = under_way / expected
    # What is cut off at the window's two edges is at most what is under way there.
    allowed = 0.05 + 2 * under_way / len(latency)
    if abs(ratio - 1) > allowed:
        return ratio, f"Little's law does not hold: {under_way:.1f} requests under way, {expected:.1f} expected"
    return ratio, ""
