"""Which of the measured configurations to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.errors import InvalidMeasurement
from workbench.profiling import Point
from workbench.profiling.best import best_and_tied, usable_points
from workbench.profiling.settings import short_name, shown


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
        InvalidMeasurement: no point is valid, or none holds the goal (the text says by how much), or they were measured
            on different kinds of device.
    """
    usable = usable_points(points)
    if not usable:
        why = "; ".join(sorted({reason for point in points for reason in (*point.reasons, point.error) if reason})[:3])
        failed = all(point.error for point in points)
        hint = "mend what failed, then sweep again" if failed else "measure again on a quiet machine"
        raise InvalidMeasurement("no point of the sweep is valid", where=why, hint=hint)
    holding = [point for point in usable if p99_ms is None or point.p99_ms <= p99_ms]
    if not holding:
        nearest = min(usable, key=lambda point: point.p99_ms)
        raise InvalidMeasurement(
            f"no configuration holds p99 <= {p99_ms:g} ms",
            where=f"the nearest is {describe(nearest)} with p99 {nearest.p99_ms:.1f} ms",
            hint="lower the load, or allow more",
        )
    taken, tied = best_and_tied(holding)
    goal = "" if p99_ms is None else f", p99 {taken.p99_ms:.1f} ms within the goal of {p99_ms:g} ms"
    text = f"{describe(taken)}: {taken.throughput:.0f} infer/s{goal}"
    claim = taken.claim(p99_ms=p99_ms) if p99_ms is not None and taken.n else None
    if claim is not None and not claim:
        text += f"; that it holds the goal is not shown: {claim.text}"
    if tied:
        text += f"; {len(tied)} more {'is' if len(tied) == 1 else 'are'} too close to call"
    if not taken.stable:
        text += "; not stable: its figures had not settled, measure it again for longer before you rely on them"
    return Choice(taken, tuple(tied), text)


def describe(point: Point) -> str:
    """The settings and the load of a point in a line."""
    parts = [f"{short_name(path)} {shown(value)}" for path, value in point.settings.items()]
    return f"{', '.join(parts) or 'as configured'} at {point.load.label}"
