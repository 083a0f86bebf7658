"""Whether batching pays, read off what was measured and off nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from workbench.errors import InvalidMeasurement
from workbench.profiling import Point

MINIMUM_GAIN = 1.15
"""Batching is advised from this gain in throughput on: it costs latency and memory, so a few percent do not pay."""


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
    return (
        int(config.get("max_batch_size", 0)) > 1
        and "dynamic_batching" in config
        and config["dynamic_batching"] is not None
    )


def advise_batching(points: Sequence[Point], *, p99_ms: float | None = None) -> Advice:
    """Advises from a sweep that holds points with batching and without, at the same load.

    Args:
        points: measured points of one model; those that are not valid do not count.
        p99_ms: only points with p99 within it count as a gain.

    Raises:
        InvalidMeasurement: there is no valid point of one of the two kinds at a common load.
    """
    usable = [point for point in points if point.valid and not point.error and not point.failed]
    pairs: list[tuple[float, Point, Point]] = []
    for label in dict.fromkeys(point.load.label for point in usable):
        here = [point for point in usable if point.load.label == label]
        without = [point for point in here if not is_batching(point.config)]
        batched = [point for point in here if is_batching(point.config) and (p99_ms is None or point.p99_ms <= p99_ms)]
        if without and batched:
            off, on = max(without, key=_throughput), max(batched, key=_throughput)
            pairs.append((on.throughput / off.throughput, on, off))
    curve = service_curve(usable)
    if not pairs:
        if (
            p99_ms is not None
            and any(is_batching(point.config) for point in usable)
            and any(not is_batching(p.config) for p in usable)
        ):
            return Advice("off", f"leave batching off: no batched configuration holds p99 <= {p99_ms:g} ms", 1.0, curve)
        raise InvalidMeasurement(
            "cannot advise on batching: it was not measured both with and without at the same load",
            hint="sweep dynamic_batching and max_batch_size, and include a point without",
        )
    gain, on, off = max(pairs, key=lambda pair: pair[0])
    certain = _low(on) > _high(off)
    if gain >= MINIMUM_GAIN and certain:
        text = f"turn batching on: {on.throughput:.0f} against {off.throughput:.0f} infer/s at {on.load.label} ({gain:.1f} ×)"
        return Advice("on", text + _because(curve, pays=True), gain, curve)
    if gain >= MINIMUM_GAIN:
        text = f"leave batching off: the gain of {gain:.2f} × at {on.load.label} is too close to call"
    else:
        text = f"leave batching off: {on.throughput:.0f} against {off.throughput:.0f} infer/s at {on.load.label} ({gain:.2f} ×)"
    return Advice("off", text + _because(curve, pays=False), gain, curve)


def service_curve(points: Sequence[Point]) -> dict[int, float]:
    """Mean milliseconds of an execution by its rows, over all points, weighted by how many executions each saw."""
    totals: dict[int, tuple[float, int]] = {}
    for point in points:
        for rows, ms in point.batch_compute_ms.items():
            count = int(point.batch_rows.get(rows, 0))
            if count > 0:
                total, number = totals.get(int(rows), (0.0, 0))
                totals[int(rows)] = (total + ms * count, number + count)
    return {rows: total / number for rows, (total, number) in sorted(totals.items())}


def _because(curve: Mapping[int, float], *, pays: bool) -> str:
    """The service curve in a clause: what a batch costs against a single row."""
    one = curve.get(1)
    if one is None or len(curve) < 2:
        return ""
    rows, ms = max(curve.items())
    relation = "only" if pays else "already"
    return (
        f"; a batch of {rows} takes {relation} {ms / one:.1f} × as long as a single one ({ms:.1f} against {one:.1f} ms)"
    )


def _throughput(point: Point) -> float:
    return point.throughput


def _low(point: Point) -> float:
    return point.throughput_low if point.throughput_low == point.throughput_low else point.throughput


def _high(point: Point) -> float:
    return point.throughput_high if point.throughput_high == point.throughput_high else point.throughput
