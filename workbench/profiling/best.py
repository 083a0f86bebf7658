"""Which of measured points is the best: the one rule behind ``SweepResult.best`` and ``tuning.choose``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.profiling.device import check_one_device
from workbench.profiling.point import Point

BLUR = 0.97
"""Throughput below this share of the best is never taken for its equal, however wide the intervals are."""


def usable_points(points: Sequence[Point]) -> list[Point]:
    """The points whose figures may be believed and that lost no request."""
    return [point for point in points if point.valid and not point.error and not point.failed]


def throughput_interval(point: Point) -> tuple[float, float]:
    """The interval of the throughput; the figure itself where there were too few windows for one."""
    low, high = point.throughput_low, point.throughput_high
    return (point.throughput if math.isnan(low) else low, point.throughput if math.isnan(high) else high)


def best_and_tied(points: Sequence[Point]) -> tuple[Point, list[Point]]:
    """The point with the highest throughput, and the others that are too close to call.

    Where throughput intervals overlap the one with the lower p99 is taken, as long as it gives away no throughput that
    the intervals merely blur. ``points`` must not be empty.

    Raises:
        InvalidMeasurement: they were measured on different kinds of device.
    """
    check_one_device(points)
    top = max(points, key=lambda point: point.throughput)
    close = [point for point in points if throughput_interval(point)[1] >= throughput_interval(top)[0]]
    taken = min(close, key=lambda point: (point.p99_ms, -point.throughput))
    if taken.throughput < BLUR * top.throughput:
        taken = top
    return taken, [point for point in close if point is not taken]
