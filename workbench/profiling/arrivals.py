"""When an open loop sends: seeded arrivals, the same for every configuration of a sweep.

``constant`` and ``poisson`` are perf_analyzer's. The other two have exactly rate × length arrivals in the warm-up, in
the window and in what may be added to it, so that their mean rate is the one asked for however short a window is:

- ``gamma``: the gaps have a gamma distribution of coefficient of variation ``cv`` (deviation / mean; shape 1 / cv²): 1
  is Poisson, below is more even, above is burstier;
- ``bursty``: an on/off process, the simplest Markov-modulated Poisson one. In a burst requests come as a Poisson stream
  of ``burst_factor`` × rate, between bursts none do. The lengths of bursts and of pauses are exponential; bursts last
  ``burst_s`` on average, so pauses last ``burst_s`` × (``burst_factor`` - 1). Lengths are scaled to fill each part.

A ``trace`` is replayed from its beginning in the warm-up and again from the window's start, as often as fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from workbench.profiling.load import Load

_Times = NDArray[np.float64]
_Stamps = NDArray[np.int64]


def arrivals(load: Load) -> tuple[_Stamps, _Stamps]:
    """When a load's open loops send, in nanoseconds from its start, ascending; and what.

    The latter is the index of the class of a load of several classes, the row of the trace of a replay, else 0. The
    longest warm-up and the longest window are covered; whenever the warm-up ends, the window's arrivals begin at
    ``longest_warmup_s``. Empty for a closed loop.

    Raises:
        WorkbenchError: the trace cannot be read.
    """
    if load.kind == "mixed":
        parts = [arrivals(part)[0] for _, part in load.mix]
        times = np.concatenate(parts)
        of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        order = np.argsort(times, kind="stable")
        return times[order], of[order]
    if load.distribution == "trace" and load.kind == "open":
        return _replayed(load)
    times = _times(load) if load.kind == "open" else np.empty(0, np.int64)
    return times, np.zeros(len(times), np.int64)


def _times(load: Load) -> _Stamps:
    length_s = load.longest_warmup_s + load.longest_s
    if load.distribution == "constant":
        count = int(np.ceil(length_s * load.rate))
        return (np.arange(count) * (1e9 / load.rate)).astype(np.int64)
    if load.distribution == "poisson":
        return _poisson(load, length_s)
    parts, begin = [], 0.0
    edges = (load.longest_warmup_s, load.duration_s, load.longest_s - load.duration_s)
    for number, part_s in enumerate(edges):
        if part_s > 0:
            rng = np.random.default_rng([load.seed, number])
            # What is left over by rounding goes into the next part.
            count = round((begin + part_s) * load.rate) - round(begin * load.rate)
            draw = _gamma if load.distribution == "gamma" else _bursts
            parts.append(begin + np.sort(draw(load, rng, part_s, count)))
        begin += part_s
    return (np.concatenate(parts) * 1e9).astype(np.int64)


def _poisson(load: Load, length_s: float) -> _Stamps:
    rng = np.random.Generator(np.random.PCG64(load.seed))
    parts: list[_Times] = []
    last = 0.0
    while last < length_s:
        gaps = rng.exponential(1.0 / load.rate, size=4096)
        times = last + np.cumsum(gaps)
        parts.append(times)
        last = float(times[-1])
    times = np.concatenate(parts)
    return (times[times < length_s] * 1e9).astype(np.int64)


def _gamma(load: Load, rng: np.random.Generator, length_s: float, count: int) -> _Times:
    """So many points on a circle of that length, seen from a random place: stationary from the first on."""
    if count == 0:
        return np.empty(0)
    gaps = rng.gamma(1 / load.cv**2, size=count)
    if gaps.sum() == 0:
        gaps[:] = 1.0
    places = np.cumsum(gaps) * (length_s / gaps.sum())
    moved: _Times = (places + rng.uniform(0, length_s)) % length_s
    return moved


def _bursts(load: Load, rng: np.random.Generator, length_s: float, count: int) -> _Times:
    on_s = length_s / load.burst_factor
    bursts = max(1, round(on_s / load.burst_s))
    lengths, pauses = rng.exponential(size=bursts), rng.exponential(size=bursts)
    lengths *= on_s / lengths.sum()
    pauses *= (length_s - on_s) / pauses.sum()
    within = np.sort(rng.uniform(0, on_s, count))  # places in time of which the pauses were cut out
    passed = np.concatenate(([0.0], np.cumsum(pauses)[:-1]))
    burst = np.minimum(np.searchsorted(np.cumsum(lengths), within, side="right"), bursts - 1)
    moved: _Times = (within + passed[burst] + rng.uniform(0, length_s)) % length_s
    return moved


def _replayed(load: Load) -> tuple[_Stamps, _Stamps]:
    from workbench.profiling.trace_files import trace_of

    trace = trace_of(load)
    times = (trace.offsets_ns / load.factor).astype(np.int64)
    warmup, window = int(load.longest_warmup_s * 1e9), int(load.longest_s * 1e9)
    # A sequence that the end of the warm-up cuts would be left open on the server.
    late = np.unique(trace.sequence_of[times >= warmup])
    early = np.flatnonzero((times < warmup) & ~(np.isin(trace.sequence_of, late) & (trace.sequence_of > 0)))
    period = max(1, int(trace.length_s / load.factor * 1e9))
    passes = -(-window // period)
    looped = (times[np.newaxis] + period * np.arange(passes)[:, np.newaxis]).reshape(-1)
    rows = np.tile(np.arange(len(times)), passes)
    inside = looped < window
    return np.concatenate((times[early], warmup + looped[inside])), np.concatenate((early, rows[inside]))
