"""Models side by side: the same inputs, the same load, in turn on a warm server, and how far their answers are apart.

Measured one after the other, models differ by whatever the machine did meanwhile; so each round measures a short block
of every one, in an order drawn by the seed. Ratios are taken round by round, against the reference.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidRequest, WorkbenchError
from workbench.profiling.ab_verdict import (
    CONFIDENCE,
    FEWEST,
    METRICS,
    Comparison,
    compare_pairs,
    confidence_of,
    deciding_metric,
    figure_of,
)
from workbench.profiling.interrupting import interrupt_stops
from workbench.profiling.intervals import NOTHING, Estimate, mean_of
from workbench.profiling.load import Load
from workbench.profiling.measuring import Measurer, failed_point
from workbench.profiling.point import Point
from workbench.profiling.requests import Inputs, prepare
from workbench.profiling.sweep_result import write_point
from workbench.profiling.target import Target
from workbench.profiling.verdict import MeasureOptions
from workbench.records.runs import RunStore
from workbench.tuning.drift import Drift, Metric, WorstExample, drift, matched_names

if TYPE_CHECKING:
    import pandas as pd

    from workbench.protocol.tensors import InferenceRequest

Ask = Callable[[str, Mapping[str, Any]], Mapping[str, NDArray[Any]]]
"""Asks a model once: (name, inputs by its own names) to its outputs."""

SHOWN = ("throughput", "p50_ms", "p95_ms", "p99_ms")
"""The figures of the table."""


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
        return sum(point.n for point in self.blocks if _usable(point))

    def row(self) -> dict[str, Any]:
        """One flat row."""
        row: dict[str, Any] = {"model": self.model, "backend": self.backend, "n": self.n}
        for name in SHOWN:
            figure = self.figures.get(name, NOTHING)
            row |= {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}
        row |= {"memory_mb": self.startup.memory_mb, "load_s": self.startup.load_s, "first_ms": self.startup.first_ms}
        speed = self.against.get("throughput")
        row["throughput_change"] = speed.change if speed else 0.0
        row["max_abs"] = self.drift.max_abs if self.drift else 0.0
        found = self.against.get(deciding_metric(self.blocks[0].load)) if self.blocks else None
        row["verdict"] = self.error or (found.text if found else "the reference")
        return row


@dataclass(frozen=True, slots=True)
class CompareResult:
    """Models side by side. ``answers`` are their outputs on the example inputs, by model."""

    models: tuple[ModelFigures, ...]
    reference: str
    load: Load
    inputs: tuple[Mapping[str, NDArray[Any]], ...]
    answers: Mapping[str, Sequence[Mapping[str, NDArray[Any]]]]
    stopped: bool = False

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
        compared = {each.model: _compare(each, best, pairs, self.metric) for each in others}
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
            KeyError: it is the reference, it has failed, or was not compared.
        """
        found = self._drift(model)
        at = found.worst
        return WorstExample(model, self.reference, at, self.inputs[at], self.answers[self.reference][at],
                            self.answers[model][at], found)  # fmt: skip

    def pairs(self, model: str) -> list[tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]]:
        """The reference's outputs and a model's, example by example, by the reference's names; raises as ``worst``."""
        names = {output.output: output.name for output in self._drift(model).outputs}
        return [
            ({name: a[name] for name in names}, {name: b[own] for name, own in names.items()})
            for a, b in zip(self.answers[self.reference], self.answers[model], strict=True)
        ]

    def _drift(self, model: str) -> Drift:
        found = self[model].drift
        if found is None:
            raise KeyError(f"there is no drift of {model!r}: {self[model].error or 'it is the reference'}")
        return found

    def to_frame(self) -> pd.DataFrame:
        """One row a model."""
        import pandas as pd

        return pd.DataFrame([each.row() for each in self.models])

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
        heads = ("model", "backend", "infer/s", "p50 ms", "p95 ms", "p99 ms", "MiB", "load s", "first ms", "max |Δ|")
        rows = [heads, *(_cells(each, self.reference) for each in self.models)]
        widths = [max(len(row[at]) for row in rows) for at in range(len(heads))]
        lines = [f"{self.verdict} ({self.load.label})"]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        for each in self.models:
            if each.model != self.reference and not each.error:
                lines.append(f"{each.model} (B) against {self.reference} (A): {each.against[self.metric].text}")
            if each.drift is not None:
                lines += [f"  {output.text}" for output in each.drift.outputs]
                if each.drift.metric == each.drift.metric:
                    lines.append(f"  own metric {each.drift.metric:.4g}")
        for each in self.models:
            lines += [f"  ! {each.model}: {each.error}"] if each.error else []
            lines += [f"  note: {each.model}: {note}" for note in each.notes]
            left_out = dict.fromkeys(why for point in each.blocks if not _usable(point) for why in _why(point))
            lines += [f"  ! a block of {each.model} was left out: {why}" for why in left_out]
        if self.stopped:
            lines.append("  stopped before its end")
        return "\n".join(lines)


def _cells(each: ModelFigures, reference: str) -> tuple[str, ...]:
    def figure(name: str) -> str:
        found = each.figures.get(name, NOTHING)
        if found.value != found.value:
            return "-"
        digits = 0 if found.value >= 100 else 1 if found.value >= 10 else 2
        ends = "" if found.low != found.low else f" [{found.low:.{digits}f}, {found.high:.{digits}f}]"
        return f"{found.value:.{digits}f}{ends}"

    def plain(value: float, digits: int) -> str:
        return "-" if value != value else f"{value:.{digits}f}"

    start = each.startup
    apart = "reference" if each.model == reference else f"{each.drift.max_abs:.2g}" if each.drift else "-"
    return (
        each.model, each.backend, figure("throughput"), figure("p50_ms"), figure("p95_ms"), figure("p99_ms"),
        plain(start.memory_mb, 0), plain(start.load_s, 2), plain(start.first_ms, 1), apart,
    )  # fmt: skip


def _usable(point: Point) -> bool:
    return point.valid and not point.failed and not point.error


def _why(point: Point) -> list[str]:
    if point.error:
        return [point.error]
    return [*point.reasons, *([f"{point.failed} requests failed"] if point.failed else [])][:1]


def _too_short(blocks: Sequence[Point]) -> tuple[str, ...]:
    """Which percentiles blocks of so few requests do not have."""
    counts = [point.n for point in blocks if _usable(point)]
    return tuple(
        f"no {metric.removesuffix('_ms')}: it takes {least} requests in a block, there were {min(counts)}; "
        "give duration_s"
        for metric, least in FEWEST.items()
        if counts and max(counts) < least
    )


def _compare(ours: ModelFigures, theirs: ModelFigures, count: int, metric: str = "throughput") -> Comparison:
    """One model (B) against another (A), over the rounds in which both were measured well."""
    pairs = [
        (figure_of(a, metric), figure_of(b, metric))
        for a, b in zip(theirs.blocks, ours.blocks, strict=False)
        if _usable(a) and _usable(b)
    ]
    confidence = confidence_of(max(1, count))  # so that the comparisons of all models in it err as rarely as one
    return compare_pairs(metric, [a for a, _ in pairs], [b for _, b in pairs], confidence)


def _figure(blocks: Sequence[Point], metric: str) -> Estimate:
    """The geometric mean of the blocks' figures with its interval: what slows a block does so by a factor."""
    found = np.array([figure_of(point, metric) for point in blocks if _usable(point)])
    logs = mean_of(np.log(found[found > 0]), CONFIDENCE)
    return Estimate(*(math.exp(end) for end in (logs.value, logs.low, logs.high)))


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """How it is compared: ``rounds`` of a block of each model, ``seed`` for their order, ``top_k`` and ``metric`` as
    in ``drift``, ``examples`` how many requests the answers are compared on."""

    rounds: int = 6
    seed: int = 1
    top_k: int = 5
    metric: Metric | None = None
    examples: int = 32
    measure: MeasureOptions = field(default_factory=MeasureOptions)

    def __post_init__(self) -> None:
        if self.rounds < 2 or self.examples < 1:
            raise InvalidRequest("it takes at least 2 rounds and 1 example to compare")


def compare(
    target: Target,
    models: Sequence[str],
    load: Load,
    ask: Ask,
    *,
    reference: str = "",
    inputs: Inputs = None,
    input_names: Mapping[str, Mapping[str, str]] | None = None,
    output_names: Mapping[str, Mapping[str, str]] | None = None,
    startup: Callable[[str, Mapping[str, NDArray[Any]]], Startup] | None = None,
    options: CompareOptions | None = None,
    stop: threading.Event | None = None,
    on_block: Callable[[int, int, Point], None] | None = None,
) -> CompareResult:
    """Measures models in turn under one load with one set of inputs, and compares their answers.

    Ctrl-C or ``stop`` end it early; what was measured until then is kept. A model that fails is told, the others go on.

    Args:
        target: the server; all models are loaded.
        models: two or more.
        load: of one block; its ``duration_s`` is not prolonged.
        ask: asks a model once, for the drift.
        reference: whose answers are right; the first by default.
        inputs: what to send, by the reference's names; None takes its example inputs.
        input_names: model → the reference's name of an input → its own. By default equal names belong together, else
            those at the same place.
        output_names: the same for outputs.
        startup: what it takes to have a model; None leaves it out.
        options: how it is compared.
        stop: once set, ends it.
        on_block: hears (done, of how many, the point).

    Raises:
        InvalidRequest: fewer than two models, or a reference that is not among them.
        WorkbenchError: the reference does not answer.
    """
    options = options if options is not None else CompareOptions()
    stop = stop if stop is not None else threading.Event()
    names = list(dict.fromkeys(models))
    reference = reference or (names[0] if names else "")
    if len(names) < 2 or reference not in names:
        raise InvalidRequest(
            f"comparing needs two models or more, and the reference among them; got {', '.join(names) or 'none'}, "
            f"reference '{reference}'"
        )
    configs = {name: target.model_config(name) for name in names}
    examples = _examples(target, reference, configs[reference], load, inputs, options.examples)
    side = _Sides(configs, reference, input_names or {}, examples)
    errors: dict[str, str] = {}
    answers = _answers(side, ask, errors)
    drifts = _drifts(side, answers, output_names or {}, options, errors)
    blocks: dict[str, list[Point]] = {name: [] for name in names}
    with interrupt_stops(stop):
        starts = {
            name: startup(name, side.inputs(name)[0]) for name in answers if startup is not None and not stop.is_set()
        }
        try:
            _measure(target, side, load, options, stop, on_block, blocks, skip=errors)
        except KeyboardInterrupt:
            stop.set()
    measured = {
        name: ModelFigures(
            name,
            str(configs[name].get("backend") or configs[name].get("platform") or ""),
            tuple(blocks[name]),
            {metric: _figure(blocks[name], metric) for metric in (*SHOWN, "mean_ms")},
            drift=drifts.get(name),
            startup=starts.get(name, Startup()),
            notes=(*side.notes(name), *_too_short(blocks[name])),
            error=errors.get(name, ""),
        )
        for name in names
    }
    return CompareResult(_against(measured, reference), reference, load, tuple(examples), answers, stop.is_set())


def _answers(side: _Sides, ask: Ask, errors: dict[str, str]) -> dict[str, list[Mapping[str, NDArray[Any]]]]:
    """The outputs of every model that answers, example by example."""
    answers: dict[str, list[Mapping[str, NDArray[Any]]]] = {}
    for name in side.names:
        try:
            answers[name] = [ask(name, each) for each in side.inputs(name)]
        except WorkbenchError as error:
            if name == side.reference:
                raise
            errors[name] = error.message
    return answers


def _drifts(
    side: _Sides,
    answers: Mapping[str, Sequence[Mapping[str, NDArray[Any]]]],
    output_names: Mapping[str, Mapping[str, str]],
    options: CompareOptions,
    errors: dict[str, str],
) -> dict[str, Drift]:
    drifts: dict[str, Drift] = {}
    for name in answers:
        if name == side.reference:
            continue
        try:
            drifts[name] = drift(
                name, side.reference, answers[name], answers[side.reference], names=output_names.get(name),
                top_k=options.top_k, metric=options.metric,
            )  # fmt: skip
        except InvalidRequest as error:
            errors[name] = error.message
    return drifts


def _against(measured: Mapping[str, ModelFigures], reference: str) -> tuple[ModelFigures, ...]:
    count = len(measured) - 1
    theirs = measured[reference]
    return tuple(
        ours
        if ours is theirs
        else replace(ours, against={metric: _compare(ours, theirs, count, metric) for metric in METRICS})
        for ours in measured.values()
    )


def _examples(
    target: Target, reference: str, config: Mapping[str, Any], load: Load, inputs: Inputs, count: int
) -> list[dict[str, NDArray[Any]]]:
    """The inputs of the requests that the load sends to the reference, by its names."""
    prepared = prepare(target, reference, config, load, inputs)

    def arrays(request: InferenceRequest) -> dict[str, NDArray[Any]]:
        return {tensor.name: tensor.data for tensor in request.inputs}

    return [arrays(request) for request in prepared.requests[:count]]


class _Sides:
    """The inputs of each model, by its own names."""

    def __init__(
        self,
        configs: Mapping[str, Mapping[str, Any]],
        reference: str,
        given: Mapping[str, Mapping[str, str]],
        examples: Sequence[Mapping[str, NDArray[Any]]],
    ) -> None:
        self.names = list(configs)
        self.reference = reference
        self._examples = examples
        own = {name: [str(entry["name"]) for entry in config.get("input", ())] for name, config in configs.items()}
        self._renamed = {name: given.get(name) or matched_names(own[reference], own[name]) for name in configs}

    def inputs(self, model: str) -> list[dict[str, NDArray[Any]]]:
        """For one model."""
        renamed = self._renamed[model]
        return [{renamed.get(name, name): array for name, array in example.items()} for example in self._examples]

    def notes(self, model: str) -> tuple[str, ...]:
        """Which inputs have other names."""
        other = {name: own for name, own in self._renamed[model].items() if name != own}
        return tuple(f"its input '{own}' gets what '{name}' gets" for name, own in other.items())


def _measure(
    target: Target,
    side: _Sides,
    load: Load,
    options: CompareOptions,
    stop: threading.Event,
    on_block: Callable[[int, int, Point], None] | None,
    blocks: dict[str, list[Point]],
    *,
    skip: dict[str, str],
) -> None:
    """Rounds of blocks; a model that cannot be measured is written to ``skip`` with the reason."""
    block = replace(load, max_duration_s=load.duration_s)
    order = random.Random(options.seed)
    with ExitStack() as stack:
        measurers = {
            name: stack.enter_context(
                Measurer(target, name, inputs=side.inputs(name), stop=stop, options=options.measure)
            )
            for name in side.names
            if name not in skip
        }
        done, total = 0, options.rounds * len(measurers)
        for turn in range(options.rounds):
            names = [name for name in measurers if name not in skip]
            order.shuffle(names)
            for name in names:
                if stop.is_set():
                    return
                try:
                    point = measurers[name].measure(replace(block, seed=load.seed + turn))
                except WorkbenchError as error:
                    skip[name] = f"it could not be measured: {error.message}"
                    point = failed_point(name, block, {}, error.message)
                blocks[name].append(point)
                done += 1
                if on_block is not None:
                    on_block(done, total, point)
