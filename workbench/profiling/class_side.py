"""Figures of each class of a load beside the total."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from workbench.profiling.client_side import client_side
from workbench.profiling.figures import Figures, client_fields, given_fields, stream_fields
from workbench.profiling.load import Load
from workbench.profiling.plan import Plan
from workbench.profiling.samples import Samples
from workbench.profiling.stream_side import stream_side


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFigures(Figures):
    """What a point says of one class of its requests."""

    model: str = ""
    """The model that its requests went to, where it is another than the point's."""
    load: str = ""
    """What was sent, in words."""
    streaming: bool = False

    def row(self, name: str) -> dict[str, Any]:
        """For a table: each figure under ``NAME_figure``."""
        kept = ["n", "failed", "throughput", "mean_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms"]
        if self.streaming:
            kept += ["first_response_p50_ms", "first_response_p99_ms", "responses_per_s"]
        return {f"{name}_{figure}": getattr(self, figure) for figure in kept}

    def line(self, name: str) -> str:
        """For a person."""
        to = f" to {self.model}" if self.model else ""
        first = f"  first response p50 {self.first_response_p50_ms:.2f}" if self.streaming else ""
        return (
            f"  {name} ({self.load}{to}): {self.throughput:.1f} infer/s, n {self.n}, {self.failed} failed, ms  "
            f"p50 {self.p50_ms:.2f}  p95 {self.p95_ms:.2f}  p99 {self.p99_ms:.2f}{first}"
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ClassFigures:
        """Reads what ``dataclasses.asdict`` gave, None for nan."""
        return cls(**given_fields(cls, value))


def class_figures(samples: Samples, load: Load, plan: Plan) -> dict[str, ClassFigures]:
    """By class; empty for a load that has only one."""
    if not load.mix and (not load.trace or len(plan.classes) == 1):
        return {}
    known = {item.name for item in fields(ClassFigures)}
    found = {}
    for index, kind in enumerate(plan.classes):
        part = load.mix[index][1] if load.mix else load
        mine = samples.of_class(index)
        figures = client_fields(client_side(mine, part, kind.rows), mine)
        figures |= stream_fields(stream_side(mine, part)) if kind.streaming else {}
        label = part.label if load.mix else "as recorded"
        kept: dict[str, Any] = {name: value for name, value in figures.items() if name in known}
        found[kind.name] = ClassFigures(model=kind.model, load=label, streaming=kind.streaming, **kept)
    return found
