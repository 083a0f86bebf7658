"""What a person should know of a compared model's figures besides them, each in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from workbench.backends.filling import filling
from workbench.config import from_json
from workbench.profiling.ab_verdict import FEWEST
from workbench.profiling.point import Point
from workbench.tuning.compare_result import usable
from workbench.tuning.drift import Drift

Arrays = Mapping[str, NDArray[Any]]
"""An answer, or the inputs of a request, by name."""

WELL_FILLED = 0.9
"""A backend that fills batches up to a size is not worth a word where so much of it was asked for."""


def uncompared(reference: str, name: str, answers: Mapping[str, Sequence[Arrays]], found: Drift | None) -> list[str]:
    """Which outputs of the reference no drift is told of."""
    if found is None:
        return []
    left = [output for output in answers[reference][0] if output not in {each.output for each in found.outputs}]
    own = [output for output in answers[name][0] if output not in {each.name for each in found.outputs}]
    if not left:
        return []
    others = f", nor its own {', '.join(own)} with anything" if own else ""
    return [
        f"'{reference}' answers {', '.join(left)}, too, which is compared with nothing of it{others}: output_names="
        f"{{'{name}': {{REFERENCE'S NAME: ITS NAME}}}} says what belongs together"
    ]


def filled(config: Mapping[str, Any], blocks: Sequence[Point]) -> list[str]:
    """What a backend runs besides what it is asked for, from its configuration and the executions that were counted."""
    found = filling(from_json(config))
    sizes = [(rows, count) for point in blocks for rows, count in point.batch_rows.items()]
    runs = sum(count for _, count in sizes)
    if found is None or not runs:
        return []
    mean = sum(rows * count for rows, count in sizes) / runs
    if mean >= WELL_FILLED * found.rows:
        return []
    return [
        f"pads {mean:.3g} row{'s' * (mean > 1)} to {found.rows} in each batch and computes them all, as real Triton's "
        f"backend does: more rows in a request or more clients fill it; else {found.against_it}; see docs/building.md"
    ]


def too_short(blocks: Sequence[Point]) -> tuple[str, ...]:
    """Which percentiles blocks of so few requests do not have."""
    counts = [point.n for point in blocks if usable(point)]
    counted = any(point.load.requests for point in blocks)
    longer = "requests (--measurement-request-count N)" if counted else "duration_s (-p MS)"
    return tuple(
        f"no {metric.removesuffix('_ms')}: it takes {least} requests in each block, one had {min(counts)}; "
        f"longer blocks have them: {longer}"
        for metric, least in FEWEST.items()
        if counts and min(counts) < least
    )
