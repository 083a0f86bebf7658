"""What a comparison of models leaves: figures of each, its answers beside the reference's, the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidRequest
from workbench.profiling.ab_verdict import (
    CONFIDENCE,
    FEWEST,
    METRICS,
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
from workbench.profiling.run_book import RunBook
from workbench.records.runs import Run, RunStore
from workbench.tuning.drift import Drift, OutputDrift, WorstExample

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
    """Models side by side. ``answers`` are their outputs on the first of the example ``inputs``, by model; a run of the
    store keeps neither.

    ``rounds`` is how many were to be measured. ``stopped`` says that it was ended early, ``interrupted`` that its
    process went away before its end, ``running`` that it is still being measured: it has no verdict before its end.
    ``error`` is what broke it off, ``run_id`` where it is stored, ``unstored`` why it is not, or not whole.
    """

    models: tuple[ModelFigures, ...]
    reference: str
    load: Load
    inputs: tuple[Mapping[str, NDArray[Any]], ...]
    answers: Mapping[str, Sequence[Mapping[str, NDArray[Any]]]]
    stopped: bool = False
    unstored: str = ""
    rounds: int = 0
    interrupted: bool = False
    running: bool = False
    error: str = ""
    run_id: str = ""

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
        """The model that is best in ``metric``, of those that did not fail; empty where none was measured, or where the
        rounds are not over."""
        if self.error or self.running:
            return ""
        found = {each.model: each.figures[self.metric].value for each in self.models if not each.error}
        known = {model: value for model, value in found.items() if value > 0}
        best = max if self.metric == "throughput" else min
        return best(known, key=lambda model: known[model]) if known else ""

    @property
    def verdict(self) -> str:
        """Which is fastest, which others are too close to call, in a sentence."""
        if self.error:
            return f"no verdict: {self.error}"
        if self.running:
            return f"no verdict yet: {self.progress}"
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

    @property
    def progress(self) -> str:
        """How far it came, in words: the rounds in which all models were measured that did not fail."""
        well = [each for each in self.models if not each.error]
        done = min((len(each.blocks) for each in well or self.models), default=0)
        return f"{done}{f' of {self.rounds}' if self.rounds else ''} rounds measured"

    def worst(self, model: str) -> WorstExample:
        """The example on which a model differs most from the reference.

        Raises:
            KeyError: it is the reference, it has failed, or was not asked before the end; or it is of a run of the
                store.
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
        if model not in self.answers:
            raise KeyError(f"a run of the store does not keep the answers of {model!r}: compare again")
        return found

    def rows(self) -> list[dict[str, Any]]:
        """One flat row a model, by the figure that decides; while it is being measured without a verdict."""
        early = {"change": math.nan, "verdict": ""} if self.running else {}
        return [each.row(self.metric) | early for each in self.models]

    def to_frame(self) -> pd.DataFrame:
        """One row a model."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def save(self, store: RunStore, *, title: str = "") -> str:
        """Writes the blocks as a run of the store, with what was found, and gives its id.

        Raises:
            InternalError: not all of it can be written there.
        """
        with CompareBook(store, self, title=title) as book:
            rounds = max((len(each.blocks) for each in self.models), default=0)
            for turn in range(rounds):
                for each in self.models:
                    if turn < len(each.blocks):
                        book.write(each.blocks[turn], turn, self)
            book.finish(self)
            return book.stored()

    @classmethod
    def open(cls, store: RunStore | str | Path = "runs", run: str | Path = "latest") -> CompareResult:
        """A comparison out of the run store, also one that was killed in the middle: the rounds that it has are judged.

        Args:
            store: the store, or its directory.
            run: an id, the beginning of one, ``latest``, or a file.

        Raises:
            NotFound: there is no such run.
            InvalidRequest: it is no comparison, or of a version that stored the blocks and the verdict only.
        """
        store = RunStore(store) if isinstance(store, str | Path) else store
        with store.open(run) as opened:
            return _read(opened)

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
            if self.metric in each.against and not (each.error or self.running):
                lines.append(f"{each.model} (B) against {self.reference} (A): {each.against[self.metric].text}")
            if each.drift is not None:
                count = each.drift.examples
                lines.append(f"  answers to {count} example{'s' * (count != 1)}: {each.drift.lines[0]}")
                lines += [f"    {line}" for line in each.drift.lines[1:]]
        for each in self.models:
            lines += [f"  ! {each.model}: {text}" for text in each.problems]
            lines += [f"  note: {each.model}: {text}" for text in each.remarks]
        if self.stopped:
            how = "broken off, its process is gone" if self.interrupted else "stopped before its end"
            lines.append(f"  {how}: {self.progress}")
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


def figures_of(blocks: Sequence[Point]) -> dict[str, Estimate]:
    """Every figure over a model's blocks."""
    return {metric: figure_over(blocks, metric) for metric in FIGURES}


def all_against(models: Sequence[ModelFigures], reference: str) -> tuple[ModelFigures, ...]:
    """The models, each with how it stands against the reference, figure by figure."""
    theirs = next(each for each in models if each.model == reference)
    return tuple(
        each
        if each is theirs
        else replace(each, against={metric: against(each, theirs, len(models) - 1, metric) for metric in METRICS})
        for each in models
    )


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


class CompareBook(RunBook):
    """The run of a comparison, open for writing.

    Args:
        store: where.
        begun: what is known before the first block: models, reference, load, rounds.
        title: what a person calls the run.
        url: of the server.

    Raises:
        InternalError: nothing can be written there.
    """

    def __init__(self, store: RunStore, begun: CompareResult, *, title: str = "", url: str = "") -> None:
        run = store.create(
            "compare",
            model=begun.reference,
            title=title,
            reference=begun.reference,
            models=[each.model for each in begun.models],
            load=begun.load.to_json(),
            rounds=begun.rounds,
            **_so_far(begun),
            **({"url": url} if url else {}),
        )
        super().__init__(run)

    def found(self, so_far: CompareResult) -> None:
        """Stores what was found besides the blocks: how far answers are apart, what loading takes."""
        self._safely(lambda: self.run.set_meta(**_so_far(so_far)))

    def write(self, block: Point, turn: int, so_far: CompareResult) -> None:
        """Stores a block of a round (from 0), and what is known with it."""
        self._keep(block, {"round": turn}, **_so_far(so_far))

    def finish(self, result: CompareResult) -> None:
        """Stores the verdict and how it ended."""
        about = {**_so_far(result), "verdict": result.verdict}
        self._end("failed" if result.error else "stopped" if result.stopped else "done", **about)


def _so_far(result: CompareResult) -> dict[str, Any]:
    about = {
        each.model: {
            "backend": each.backend, "drift": _kept(asdict(each.drift)) if each.drift else None,
            "startup": _kept(asdict(each.startup)), "notes": list(each.notes), "error": each.error,
        }
        for each in result.models
    }  # fmt: skip
    return {"verdict": f"not ended: {result.progress}", "found": about}


def _kept(value: Any) -> Any:
    """As JSON can keep it, which has neither nan nor infinity: as texts."""
    if isinstance(value, Mapping):
        return {name: _kept(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_kept(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(made: Any, value: Mapping[str, Any]) -> dict[str, Any]:
    """What ``_kept`` wrote of a dataclass, its numbers as numbers again."""
    known = {item.name: item.type for item in fields(made) if item.name in value}
    return {name: float(value[name]) if type == "float" else value[name] for name, type in known.items()}


def _read(run: Run) -> CompareResult:
    meta, status = run.meta, run.info.status
    whole = {"models", "reference", "load", "rounds", "found"} <= meta.keys()
    if meta.get("kind") != "compare" or not whole:
        why = f"it is a {meta.get('kind')}" if meta.get("kind") != "compare" else "it has blocks and verdict only"
        raise InvalidRequest(f"run {run.id} is no comparison that can be judged: {why}", where=str(run.path))
    blocks: dict[str, list[Point]] = {name: [] for name in meta["models"]}
    for each in run.points():
        blocks[each["model"]].append(Point.from_json(each))
    models = [_figures_read(name, blocks[name], meta["found"][name]) for name in meta["models"]]
    return CompareResult(
        all_against(models, meta["reference"]), meta["reference"], Load.from_json(meta["load"]), (), {},
        stopped=status in ("stopped", "interrupted"),
        rounds=int(meta["rounds"]),
        interrupted=status == "interrupted",
        running=status == "running",
        error=str(meta.get("error", "")),
        run_id=run.id,
    )  # fmt: skip


def _figures_read(name: str, blocks: Sequence[Point], about: Mapping[str, Any]) -> ModelFigures:
    drift = about["drift"]
    if drift is not None:
        outputs = tuple(OutputDrift(**_numbers(OutputDrift, each)) for each in drift["outputs"])
        drift = Drift(**{**_numbers(Drift, drift), "outputs": outputs})
    return ModelFigures(
        name, str(about["backend"]), tuple(blocks), figures_of(blocks),
        drift=drift,
        startup=Startup(**_numbers(Startup, about["startup"])),
        notes=tuple(about["notes"]),
        error=str(about["error"]),
    )  # fmt: skip
