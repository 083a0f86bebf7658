"""What one thing changes: blocks with and without it in turn, judged pair by pair, so that drift hits both alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

Figures = Mapping[str, float]

_FEWEST = 6
"""The range of fewer values holds their true median with less than 95 % confidence."""


def ratios(measure: Callable[[bool], Figures], pairs: int) -> dict[str, list[float]]:
    """Each figure of a block with it, divided by that of its neighbour without it.

    Args:
        measure: measures a block, with (True) or without; the order alternates from pair to pair.
        pairs: how many.
    """
    found: dict[str, list[float]] = {}
    for pair in range(pairs):
        blocks = {having: measure(having) for having in ((True, False) if pair % 2 else (False, True))}
        for name, value in blocks[True].items():
            found.setdefault(name, []).append(value / blocks[False][name])
    return found


def stolen_s() -> float:
    """Seconds of processors that a hypervisor has given to other machines so far; 0 where it does not tell."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def undisturbed(stolen: Sequence[float]) -> list[int]:
    """The pairs to judge by: those that a hypervisor took least from, where it took from some; half of them or more.

    What it takes, it takes from either side of a pair by chance: that is no property of what is compared.

    Args:
        stolen: seconds that it took during each pair.
    """
    limit = sorted(stolen)[len(stolen) // 2] if stolen else 0.0
    return [pair for pair, seconds in enumerate(stolen) if seconds <= limit]


def interval(values: list[float]) -> tuple[float, float, float]:
    """The median, and between which of the ordered values the true one lies with about 95 % confidence."""
    ordered = sorted(values)
    low = max(0, int((len(ordered) - 1.96 * len(ordered) ** 0.5) / 2))
    return statistics.median(ordered), ordered[low], ordered[len(ordered) - 1 - low]


def changed_row(name: str, values: list[float], *, goal_percent: float | None = None) -> dict[str, Any]:
    """A row with the change in percent, its interval as the spread.

    The goal is met where the whole interval lies within it, missed where the whole interval lies outside. Between the
    two, or of fewer than six pairs, it is not decided, and ``met`` is None: more pairs, or a quieter machine, would
    tell.
    """
    value, low, high = (100 * (each - 1) for each in interval(values))
    met = None
    if goal_percent is not None and len(values) >= _FEWEST:
        if -goal_percent < low and high < goal_percent:
            met = True
        elif low >= goal_percent or high <= -goal_percent:
            met = False
    return {
        "name": name,
        "value": round(value, 2),
        "unit": "% (median of pairs)",
        "goal": None if goal_percent is None else f"within {goal_percent:g} %",
        "met": met,
        "n": len(values),
        "spread": {"low": round(low, 2), "high": round(high, 2)},
    }
