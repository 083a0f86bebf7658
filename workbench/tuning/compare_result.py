"""What a comparison of models leaves: figures of each, its answers beside the reference's, the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.profiling.ab_verdict import (
    CONFIDENCE,
    FEWEST,
    Comparison,
    compare_points,
    confidence_of,
    deciding_metric,
    figure_of,
)
from workbench.profiling.intervals import NOTHING, Estimate, mean_of
from workbench.profiling.left_out import left_out
from workbench.profiling.load import Load
from workbench.profiling.point import Point
from workbench.profiling.sweep_result import write_point
from workbench.records.runs import RunStore
from workbench.tuning.drift import Drift, WorstExample

if TYPE_CHECKING:
    import pandas as pd

FIGURES: Mapping[str, str] = {
    "throughput": "infer/s", "mean_ms": "mean ms", "p50_ms": "p50 ms", "p95_ms": "p95 ms", "p99_ms": "p99 ms",
}  # fmt: skip
"""The figures of a model, with how a table heads them."""


def shown_figures(metric: str) -> list[str]:
    """The figures of a table, the deciding one first; the mean latency only where it decides."""
    others = [name for name in FIGURES if name not in (metric, "mean_ms")]
    return [metric, *others]


@dataclass(frozen=True, slots=True)
class Startup:
    """What it takes to have a model: in a server of its own, with nothing else loaded.

    ``load_s`` until it is ready, ``first_ms`` of the first request, ``memory_mb`` (MiB) that the server and its
    processes have more after that request than before loading. ``why`` says why nothing is known.
    """

    load_s: float = float("nan")
    first_ms: float = float("nan")
    memory_mb: float = float("nan")
    why: str = ""


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """One model: geometric means over its blocks, each with its 95 % interval (Student's, over blocks, for requests of
    one block are not independent; a percentile only of blocks with requests enough for it), ``against`` the reference
    figure by figure (each of them with 95 % for all models together), and its ``drift`` from it."""

    model: str
    backend: str
    blocks: tuple[Point, ...]
    figures: Mapping[str, Estimate]
    against: Mapping[str, Comparison] = field(default_factory=dict)
    drift: Drift | None = None
    startup: Startup = field(default_factory=Startup)
    notes: tuple[str, ...] = ()
    error: str = ""

    @property
    def n(self) -> int:
        """Requests behind the figures."""
        return sum(point.n for point in self.blocks if usable(point))

    @property
    def problems(self) -> list[str]:
        """What went wrong, each in a sentence."""
        found = [self.error] if self.error else []
        if self.drift is not None and self.drift.metric_error:
            found.append(self.drift.metric_error)
        text = left_out([_why(point) for point in self.blocks if not (usable(point) or self.error)], len(self.blocks))
        return [*found, *([text] if text else [])]

    @property
    def remarks(self) -> list[str]:
        """What else a person should know of the figures, each in a sentence."""
        unknown = f"nothing of memory, loading and first request: {self.startup.why}"
        return [*self.notes, *([unknown] if self.startup.why else [])]

    def row(self, metric: str = "throughput") -> dict[str, Any]:
        """One flat row; ``change`` against the reference and ``verdict`` are of the figure ``metric``."""
        row: dict[str, Any] = {"model": self.model, "backend": self.backend, "n": self.n}
        for name in FIGURES:
            figure = self.figures.get(name, NOTHING)
            row |= {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}
        row |= {"memory_mb": self.startup.memory_mb, "load_s": self.startup.load_s, "first_ms": self.startup.first_ms}
        found, is_reference = self.against.get(metric), not self.against and not self.error
        row |= {"metric": metric, "change": found.change if found else 0.0 if is_reference else math.nan}
        row["max_abs"] = self.drift.max_abs if self.drift else 0.0 if is_reference else math.nan
        row["examples"] = self.drift.examples if self.drift else 0
        row["verdict"] = self.error or (found.text if found else "the reference")
        return row


@dataclass(frozen=True, slots=True)
class CompareResult:
    """Models side by side. ``answers`` are their outputs on the first of the example ``inputs``, by model; ``unstored``
    says why the comparison is not in the store, if it was to be."""

    models: tuple[ModelFigures, ...]
    reference: str
    load: Load
    inputs: tuple[Mapping[str, NDArray[Any]], ...]
    answers: Mapping[str, Sequence[Mapping[str, NDArray[Any]]]]
    stopped: bool = False
    unstored: str = ""

    def __getitem__(self, model: str) -> ModelFigures:
        for each in self.models:
            if each.model == model:
                return each
        raise KeyError(f"no model {model!r}; compared were {', '.join(each.model for each in self.models)}")

    @property
    def metric(self) -> str:
        """By what it is judged which is fastest; see ``deciding_metric``."""
        return deciding_metric(self.load)

    @property
    def fastest(self) -> str:
        """The model that is best in ``metric``, of those that did not fail; empty where none was measured."""
        found = {each.model: each.figures[self.metric].value for each in self.models if not each.error}
        known = {model: value for model, value in found.items() if value > 0}
        best = max if self.metric == "throughput" else min
        return best(known, key=lambda model: known[model]) if known else ""

    @property
    def verdict(self) -> str:
        """Which is fastest, which others are too close to call, in a sentence."""
        if not self.fastest:
            return "no verdict: no model was measured"
        best = self[self.fastest]
        others = [each for each in self.models if each.model != best.model and not each.error]
        # The best is known after the fact only: each pair of models might have been the one that is looked at.
        pairs = (len(others) + 1) * len(others) // 2
        compared = {each.model: against(each, best, pairs, self.metric) for each in others}
        unknown = [name for name, found in compared.items() if math.isnan(found.low)]
        close = [name for name, found in compared.items() if not found.faster and name not in unknown]
        text = f"{best.model} has the {'highest throughput' if self.metric == 'throughput' else 'lowest mean latency'}"
        if close:
            text += f"; too close to call: {', '.join(close)}"
        if unknown:
            text += f"; too few blocks to tell it from {', '.join(unknown)}: measure more rounds"
        return text

    def worst(self, model: str) -> WorstExample:
        """The example on which a model differs most from the reference.

        Raises:
            KeyError: it is the reference, it has failed, or was not asked before the end.
        """
        found = self._drift(model)
        at = found.worst
        return WorstExample(model, self.reference, at, self.inputs[at], self.answers[self.reference][at],
                            self.answers[model][at], found)  # fmt: skip

    def pairs(self, model: str) -> list[tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]]:
        """The reference's outputs and a model's, by the reference's names, of each example that both answered; raises
        as ``worst``."""
        names = {output.output: output.name for output in self._drift(model).outputs}
        return [
            ({name: a[name] for name in names}, {name: b[own] for name, own in names.items()})
            for a, b in zip(self.answers[self.reference], self.answers[model], strict=False)
        ]

    def _drift(self, model: str) -> Drift:
        found = self[model].drift
        if found is None:
            other = "it is the reference" if model == self.reference else "it was stopped before it answered"
            raise KeyError(f"there is no drift of {model!r}: {self[model].error or other}")
        return found

    def rows(self) -> list[dict[str, Any]]:
        """One flat row a model, by the figure that decides."""
        return [each.row(self.metric) for each in self.models]

    def to_frame(self) -> pd.DataFrame:
        """One row a model."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def save(self, store: RunStore, *, title: str = "") -> str:
        """Writes the blocks as a run of the store, with what was found, and gives its id."""
        about = {
            "reference": self.reference, "verdict": self.verdict, "load": self.load.to_json(),
            "models": [each.model for each in self.models],
            "drift": {each.model: [o.to_json() for o in each.drift.outputs] for each in self.models if each.drift},
        }  # fmt: skip
        with store.create("compare", model=self.reference, title=title, **about) as run:
            for each in self.models:
                for point in each.blocks:
                    write_point(run, point, "")
            run.finish("stopped" if self.stopped else "done")
            return run.id

    def __repr__(self) -> str:
        figures = shown_figures(self.metric)
        heads = [("model", "backend", *(FIGURES[name] for name in figures))]
        lines = [
            f"{self.verdict} ({self.load.label})",
            *columns([*heads, *(_speed(each, figures) for each in self.models)]),
        ]
        if any(each.startup.load_s == each.startup.load_s for each in self.models):
            startups = [("model", "MiB", "load s", "first ms"), *map(_startup, self.models)]
            lines += ["", *columns(startups)]
        lines.append("")
        for each in self.models:
            if self.metric in each.against and not each.error:
                lines.append(f"{each.model} (B) against {self.reference} (A): {each.against[self.metric].text}")
            if each.drift is not None:
                count = each.drift.examples
                lines.append(f"  answers to {count} example{'s' * (count != 1)}: {each.drift.lines[0]}")
                lines += [f"    {line}" for line in each.drift.lines[1:]]
        for each in self.models:
            lines += [f"  ! {each.model}: {text}" for text in each.problems]
            lines += [f"  note: {each.model}: {text}" for text in each.remarks]
        lines += ["  stopped before its end"] if self.stopped else []
        lines += [f"  ! {self.unstored}"] if self.unstored else []
        return "\n".join(lines)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _speed(each: ModelFigures, figures: Sequence[str]) -> tuple[str, ...]:
    return (each.model, each.backend, *(estimate_text(each.figures.get(name, NOTHING)) for name in figures))


def _startup(each: ModelFigures) -> tuple[str, ...]:
    start = each.startup
    shown = ((start.memory_mb, 0), (start.load_s, 2), (start.first_ms, 1))
    return (each.model, *("-" if value != value else f"{value:.{digits}f}" for value, digits in shown))


def estimate_text(found: Estimate) -> str:
    """A figure with its interval, with as many digits as it is worth."""
    if found.value != found.value:
        return "-"
    digits = 0 if found.value >= 100 else 1 if found.value >= 10 else 2
    ends = "" if found.low != found.low else f" [{found.low:.{digits}f}, {found.high:.{digits}f}]"
    return f"{found.value:.{digits}f}{ends}"


def usable(point: Point) -> bool:
    """Whether a block's figures may be believed."""
    return point.valid and not point.failed and not point.error


def _why(point: Point) -> list[str]:
    if point.error:
        return [point.error]
    return [*point.reasons, *([f"{point.failed} requests failed"] if point.failed else [])][:1]


def against(ours: ModelFigures, theirs: ModelFigures, count: int, metric: str) -> Comparison:
    """One model (B) against another (A), over the rounds in which both were measured well; ``count`` comparisons err
    together as rarely as one."""
    pairs = [(a, b) for a, b in zip(theirs.blocks, ours.blocks, strict=False) if usable(a) and usable(b)]
    confidence = confidence_of(max(1, count))  # so that the comparisons of all models in it err as rarely as one
    return compare_points(metric, pairs, confidence)


def figure_over(blocks: Sequence[Point], metric: str) -> Estimate:
    """The geometric mean of the blocks' figures with its interval: what slows a block does so by a factor.

    Nothing where a block has too few requests for a percentile: the blocks that have enough are those in which the
    model was quick, and of them alone p99 may come out below p50.
    """
    found = np.array([figure_of(point, metric) for point in blocks if usable(point)])
    if metric in FEWEST and np.isnan(found).any():
        found = found[:0]
    logs = mean_of(np.log(found[found > 0]), CONFIDENCE)
    return Estimate(*(math.exp(end) for end in (logs.value, logs.low, logs.high)))
