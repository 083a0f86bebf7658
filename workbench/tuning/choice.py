"""Which of the measured configurations to take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.errors import InvalidMeasurement
from workbench.profiling import Point


@dataclass(frozen=True, slots=True)
class Choice:
    """The point taken, the ones that are as good as it (too close to call), and why in words."""

    point: Point
    tied: tuple[Point, ...]
    text: str

    @property
    def settings(self) -> Mapping[str, Any]:
        """The values to apply, by path."""
        return self.point.settings


def choose(points: Sequence[Point], *, p99_ms: float | None = None) -> Choice:
    """The configuration with the highest throughput among those that hold the latency goal.

    Points that are not valid, or failed a request, do not count. Where throughput intervals overlap the difference is
    too close to call: then the one with the lower p99 is taken.

    Args:
        points: measured points, of any loads.
        p99_ms: the goal for the 99th percentile from the scheduled time, in milliseconds; None for no goal.

    Raises:
        InvalidMeasurement: no point is valid, or none holds the goal; the text says by how much.
    """
    usable = usable_points(points)
    if not usable:
        why = "; ".join(sorted({reason for point in points for reason in (*point.reasons, point.error) if reason})[:3])
        raise InvalidMeasurement("no point of the sweep is valid", where=why, hint="measure again on a quiet machine")
    holding = [point for point in usable if p99_ms is None or point.p99_ms <= p99_ms]
    if not holding:
        nearest = min(usable, key=lambda point: point.p99_ms)
        raise InvalidMeasurement(
            f"no configuration holds p99 <= {p99_ms:g} ms",
            where=f"the nearest is {describe(nearest)} with p99 {nearest.p99_ms:.1f} ms",
            hint="lower the load, or allow more",
        )
    best = max(holding, key=lambda point: point.throughput)
    tied = [point for point in holding if throughput_interval(point)[1] >= throughput_interval(best)[0]]
    taken = min(tied, key=lambda point: (point.p99_ms, -point.throughput))
    # Never give away throughput that the intervals merely blur.
    if taken.throughput < 0.97 * best.throughput:
        taken = best
    goal = "" if p99_ms is None else f", p99 {taken.p99_ms:.1f} ms within the goal of {p99_ms:g} ms"
    others = len(tied) - 1
    text = f"{describe(taken)}: {taken.throughput:.0f} infer/s{goal}"
    if others:
        text += f"; {others} more {'is' if others == 1 else 'are'} too close to call"
    return Choice(taken, tuple(point for point in tied if point is not taken), text)


def describe(point: Point) -> str:
    """The settings and the load of a point in a line."""
    parts = [f"{path.rpartition('.')[2]} {value}" for path, value in point.settings.items()]
    return f"{', '.join(parts) or 'as configured'} at {point.load.label}"


def usable_points(points: Sequence[Point]) -> list[Point]:
    """The points whose figures may be believed and that lost no request."""
    return [point for point in points if point.valid and not point.error and not point.failed]


def throughput_interval(point: Point) -> tuple[float, float]:
    """The interval of the throughput; the figure itself where there were too few windows for one."""
    low, high = point.throughput_low, point.throughput_high
    return (point.throughput if math.isnan(low) else low, point.throughput if math.isnan(high) else high)
