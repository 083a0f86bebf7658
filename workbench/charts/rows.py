"""The measured points as the charts want them: plain figures with their units in the names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

COMPONENTS = ("queue", "compute_input", "compute_infer", "compute_output")
"""The parts of a request's time in the server, in their order."""

COMPONENT_LABEL = {
    "queue": "queue",
    "compute_input": "compute input",
    "compute_infer": "compute infer",
    "compute_output": "compute output",
}
"""The parts in words; the names are those of Triton's statistics."""


@dataclass(frozen=True, slots=True)
class PointRow:
    """One measured load point: a configuration under a load.

    ``configuration`` and ``load`` are short labels; ``note`` is what to know about a valid point (not stable, ...);
    ``histogram`` counts executed batches by (rows, reason).
    """

    configuration: str
    load: str
    throughput: float
    p50_ms: float
    p99_ms: float
    p90_ms: float = float("nan")
    p95_ms: float = float("nan")
    mean_batch: float = float("nan")
    queue_ms: float = float("nan")
    compute_input_ms: float = float("nan")
    compute_infer_ms: float = float("nan")
    compute_output_ms: float = float("nan")
    n: int = 0
    failures: int = 0
    valid: bool = True
    why_not: str = ""
    note: str = ""
    histogram: Mapping[tuple[int, str], int] = field(default_factory=dict)


def configurations(rows: Iterable[PointRow]) -> list[str]:
    """The configurations in the order in which they first appear."""
    return list(dict.fromkeys(row.configuration for row in rows))
