"""Whether batching pays, read off what was measured and off nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from workbench.errors import InvalidMeasurement
from workbench.profiling import Point
from workbench.profiling.best import throughput_interval, usable_points

MINIMUM_GAIN = 1.15
"""Batching is advised from this gain in throughput on: it costs latency and memory, so a few percent do not pay."""


MINIMUM_BATCH = 1.1
"""Below this mean batch size nothing was batched."""

MINIMUM_EXECUTIONS = 5
"""Batch sizes seen less often than this say nothing about the service time."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Batching ``on`` or ``off``, in words, with the evidence.

    ``gain`` is the best throughput with batching over the best without, at the same load. ``curve`` is the measured
    service time by batch size: rows → mean milliseconds of one execution.
    """

    batching: Literal["on", "off"]
    text: str
    gain: float
    curve: Mapping[int, float]

    @property
    def speedup(self) -> Mapping[int, float]:
        """rows x t(1) / t(rows): how many times as many rows an instance does in a batch of that size."""
        one = self.curve.get(1)
        return {rows: rows * one / ms for rows, ms in self.curve.items() if ms > 0} if one else {}


def is_batching(config: Mapping[str, Any]) -> bool:
    """Whether a configuration lets requests share a batch."""
    return int(config.get("max_batch_size", 0)) > 1 and config.get("dynamic_batching") is not None


def advise_batching(points: Sequence[Point], *, p99_ms: float | None = None, batching_now: bool = False) -> Advice:
    """Advises from a sweep that holds points with batching and without, at the same load.

    Args:
        points: measured points of one model; those that are not valid do not count.
        p99_ms: only points with p99 within it count as a gain.
        batching_now: whether the configuration in force batches: the advice is then to keep it, not to turn it on.

    Raises:
        InvalidMeasurement: there is no valid point of one of the two kinds at a common load.
    """
    usable = usable_points(points)
    curve = service_curve(usable)
    pairs = _pairs(usable, p99_ms)
    if not pairs:
        kinds = {is_batching(point.config) for point in usable}
        if p99_ms is not None and len(kinds) == 2:
            text = f"leave batching off: no batched configuration holds p99 <= {p99_ms:.4g} ms{_because(curve)}"
            return Advice("off", text, 1.0, curve)
        raise InvalidMeasurement(
            "cannot advise on batching: it was not measured both with and without at the same load",
            hint="sweep dynamic_batching and max_batch_size, and include a point without",
        )
    # The heaviest load tells: where requests never wait together, a difference has another cause.
    on, off = max(pairs, key=lambda pair: pair[0].throughput)
    if on.mean_batch < MINIMUM_BATCH:
        text = f"leave batching off: at {on.load.label} requests never waited together (mean batch {on.mean_batch:.2f})"
        return Advice("off", text, on.throughput / off.throughput, curve)
    gain = on.throughput / off.throughput
    figures = f"{on.throughput:.0f} against {off.throughput:.0f} infer/s at {on.load.label}"
    figures += f" ({gain:.2g} ×, mean batch {on.mean_batch:.1f})"
    verb = "keep" if batching_now else "turn"
    separate = throughput_interval(on)[0] > throughput_interval(off)[1]
    if gain >= MINIMUM_GAIN and separate and _curve_agrees(curve):
        return Advice("on", f"{verb} batching on: {figures}{_because(curve)}", gain, curve)
    unclear = ", too close to call" if gain >= MINIMUM_GAIN and not separate else ""
    return Advice("off", f"leave batching off: {figures}{unclear}{_because(curve)}", gain, curve)


def _curve_agrees(curve: Mapping[int, float]) -> bool:
    """Whether the service times say that a batch is cheaper than its rows one by one.

    The throughput of two points measured one after the other also moves with what else the machine does; the time of
    an execution by its rows must tell the same story before batching is advised.
    """
    one = curve.get(1)
    return one is None or any(rows * one / ms >= MINIMUM_GAIN for rows, ms in curve.items() if rows > 1)


def _pairs(usable: Sequence[Point], p99_ms: float | None) -> list[tuple[Point, Point]]:
    """At each load: the best point with batching and the best without."""
    pairs = []
    for label in dict.fromkeys(point.load.label for point in usable):
        here = [point for point in usable if point.load.label == label]
        without = [point for point in here if not is_batching(point.config)]
        batched = [point for point in here if is_batching(point.config) and (p99_ms is None or point.p99_ms <= p99_ms)]
        if without and batched:
            pairs.append((max(batched, key=lambda p: p.throughput), max(without, key=lambda p: p.throughput)))
    return pairs


def service_curve(points: Sequence[Point]) -> dict[int, float]:
    """Mean milliseconds of an execution by its rows, over all points, weighted by how many executions each saw."""
    totals: dict[int, tuple[float, int]] = {}
    for point in points:
        for rows, ms in point.batch_compute_ms.items():
            count = int(point.batch_rows.get(rows, 0))
            if count > 0:
                total, number = totals.get(int(rows), (0.0, 0))
                totals[int(rows)] = (total + ms * count, number + count)
    return {rows: total / count for rows, (total, count) in sorted(totals.items()) if count >= MINIMUM_EXECUTIONS}


def _because(curve: Mapping[int, float]) -> str:
    """The service curve in a clause: what a batch costs against a single row."""
    one = curve.get(1)
    if one is None or len(curve) < 2:
        return ""
    rows, ms = max(curve.items())
    speedup = rows * one / ms
    effect = (
        f"{speedup:.1f} × as many rows in the same time" if speedup >= MINIMUM_GAIN else "no more rows in the same time"
    )
    return (
        f"; a batch of {rows} takes {ms / one:.1f} × as long as a single one ({ms:.1f} against {one:.1f} ms): {effect}"
    )
