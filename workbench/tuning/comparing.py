"""Models side by side: the same inputs, the same load, in turn on a warm server, and how far their answers are apart.

Measured one after the other, models differ by whatever the machine did meanwhile; so each round measures a short block
of every one, in an order drawn by the seed. Ratios are taken round by round, against the reference.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from workbench.clock import monotonic_ns
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.profiling.interrupting import interrupt_stops
from workbench.profiling.load import Load
from workbench.profiling.measuring import Measurer, failed_point
from workbench.profiling.point import Point
from workbench.profiling.requests import Inputs
from workbench.profiling.target import Target
from workbench.profiling.verdict import MeasureOptions
from workbench.records.runs import RunStore
from workbench.tuning.compare_inputs import examples_of, of_model
from workbench.tuning.compare_notes import Arrays, filled, too_short, uncompared
from workbench.tuning.compare_result import (
    CompareBook,
    CompareResult,
    ModelFigures,
    Startup,
    all_against,
    figures_of,
)
from workbench.tuning.drift import Drift, Metric, check_kinds, drift, matched_names
from workbench.tuning.vectors import Kind

Ask = Callable[[str, Mapping[str, Any]], Mapping[str, NDArray[Any]]]
"""Asks a model once: (name, inputs by its own names) to its outputs."""


@dataclass(frozen=True, slots=True)
class Step:
    """How far a comparison is: ``what`` is done now (``asking minilm_ts``), ``done`` of ``total`` steps of that."""

    what: str
    done: int
    total: int

    @property
    def text(self) -> str:
        """In a line."""
        return f"{self.what}: {self.done} of {self.total}"


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """How it is compared: ``rounds`` of a block of each model, ``seed`` for their order, ``top_k``, ``metric`` and
    ``kinds`` as in ``drift``, ``examples`` how many requests the answers are compared on at most, ``asking_s`` how long
    a model is asked for that at most (one answer is always waited for)."""

    rounds: int = 6
    seed: int = 1
    top_k: int = 5
    metric: Metric | None = None
    examples: int = 32
    asking_s: float = 10.0
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    measure: MeasureOptions = field(default_factory=MeasureOptions)

    def __post_init__(self) -> None:
        if self.rounds < 2 or self.examples < 1:
            raise InvalidRequest("it takes at least 2 rounds and 1 example to compare")
        if not self.asking_s > 0:
            raise InvalidRequest(f"asking_s must be above 0, got {self.asking_s}", hint="seconds a model, such as 10")
        if self.metric is not None and not callable(self.metric):
            raise InvalidRequest(
                f"metric must be a function of two dictionaries of arrays, got {self.metric!r:.80}",
                hint='metric=lambda reference, other: float(abs(reference["y"] - other["y"]).max())',
            )
        check_kinds(self.kinds)


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
    store: RunStore | None = None,
    title: str = "",
    stop: threading.Event | None = None,
    on_block: Callable[[int, int, Point], None] | None = None,
    on_step: Callable[[Step], None] | None = None,
    failed: Mapping[str, str] | None = None,
) -> CompareResult:
    """Measures models in turn under one load with one set of inputs, and compares their answers.

    Ctrl-C or ``stop`` end it early; what was measured until then is kept. Whoever is killed leaves a run with the
    blocks so far (``CompareResult.open``). A model that fails is told, the others go on.

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
        store: where to write the blocks, each as soon as it is measured.
        title: what a person calls the run.
        stop: once set, ends it.
        on_block: hears (done, of how many, the point), once it is stored.
        on_step: hears how far it is: of asking, of loading each in a server of its own, of the blocks.
        failed: of models that are known not to serve: why. They are told, not measured.

    Raises:
        InvalidRequest: fewer than two models, or a reference that is not among them.
        InternalError: nothing can be written to the store; nothing has been measured then.
        WorkbenchError: the reference does not serve, or does not answer.
    """
    options, stop, tell = options or CompareOptions(), stop or threading.Event(), on_step or _silent
    names = list(dict.fromkeys(models))
    reference = _reference(names, reference)
    errors = dict(failed or {})
    configs = _configs(target, names, reference, errors)
    examples = examples_of(target, reference, configs[reference], load, inputs, options.examples)
    side = _Sides(configs, reference, input_names or {}, examples)
    errors |= {name: text for name in side.names if (text := side.unmatched(name) or side.unsendable(name, load))}
    so_far = _SoFar(names, side, load, options, output_names or {}, errors, stop)
    with ExitStack() as stack:
        if store is not None:
            so_far.book = stack.enter_context(CompareBook(store, so_far.result(), title=title, url=target.url))
        try:
            with interrupt_stops(stop):  # also while a block is being stored
                _ask_all(side, ask, options.asking_s, stop, tell, so_far.answers, errors)
                so_far.judge_answers()
                if startup is not None:
                    _start_all(side, startup, stop, tell, so_far)
                _measure(target, side, load, options, stop, so_far.keep, _both(tell, on_block), skip=errors)
        except KeyboardInterrupt:  # the second one, or one that came elsewhere than to the main thread
            stop.set()
            if not so_far.drifts:
                so_far.judge_answers()
        return so_far.ended()


@dataclass(slots=True)
class _SoFar:
    """What is known of the models: ever more while they are asked, loaded and measured."""

    names: Sequence[str]
    side: _Sides
    load: Load
    options: CompareOptions
    output_names: Mapping[str, Mapping[str, str]]
    errors: dict[str, str]
    stop: threading.Event
    answers: dict[str, list[Arrays]] = field(default_factory=dict)
    starts: dict[str, Startup] = field(default_factory=dict)
    blocks: dict[str, list[Point]] = field(default_factory=lambda: defaultdict(list))
    drifts: dict[str, Drift] = field(default_factory=dict)
    book: CompareBook | None = None

    def keep(self, name: str, turn: int, block: Point) -> None:
        """Takes a model's block of a round, and stores it."""
        self.blocks[name].append(block)
        if self.book is not None:
            self.book.write(block, turn, self.result())

    def started(self, name: str, start: Startup) -> None:
        """Takes what it took to have a model, and stores it."""
        self.starts[name] = start
        self._learned()

    def ended(self) -> CompareResult:
        """What was found in the end, stored."""
        result = self.result()
        if self.book is None:
            return result
        self.book.finish(result)
        return replace(result, run_id=self.book.run.id, unstored=self.book.unstored)

    def _learned(self) -> None:
        if self.book is not None:
            self.book.found(self.result())

    def judge_answers(self) -> None:
        """Sees how far the answers are apart, and stores it."""
        self.drifts = _drifts(self.side, self.answers, self.output_names, self.options, self.errors)
        self._learned()

    def result(self) -> CompareResult:
        """As of now."""
        models = [self._figures(name) for name in self.names]
        return CompareResult(
            all_against(models, self.side.reference), self.side.reference, self.load, self.side.examples,
            self.answers, self.stop.is_set(), rounds=self.options.rounds,
        )  # fmt: skip

    def _figures(self, name: str) -> ModelFigures:
        blocks, found = self.blocks[name], self.drifts.get(name)
        known, config = name in self.side.configs, self.side.configs.get(name, {})
        return ModelFigures(
            name,
            str(config.get("backend") or config.get("platform") or ""),
            tuple(blocks),
            figures_of(blocks),
            drift=found,
            startup=self.starts.get(name, Startup()),
            notes=_notes(self.side, name, self.answers, found, blocks, self.stop.is_set()) if known else (),
            error=self.errors.get(name, ""),
        )


def _reference(names: Sequence[str], wanted: str) -> str:
    found = wanted or (names[0] if names else "")
    if len(names) < 2 or found not in names:
        raise InvalidRequest(
            f"comparing needs two models or more, and the reference among them; got {', '.join(names) or 'none'}, "
            f"reference '{found}'",
            hint="workbench compare MODEL MODEL ... --reference MODEL",
        )
    return found


def _silent(step: Step) -> None:
    """Nobody asks how far it is."""


def _both(
    tell: Callable[[Step], None], on_block: Callable[[int, int, Point], None] | None
) -> Callable[[int, int, Point], None]:
    def told(done: int, total: int, point: Point) -> None:
        tell(Step("measuring in turn", done, total))
        if on_block is not None:
            on_block(done, total, point)

    return told


def _configs(
    target: Target, names: Sequence[str], reference: str, errors: dict[str, str]
) -> dict[str, Mapping[str, Any]]:
    """The configurations of the models that serve; of the others ``errors`` says why they do not."""
    configs: dict[str, Mapping[str, Any]] = {}
    for name in names:
        try:
            if name == reference or name not in errors:
                configs[name] = target.model_config(name)
        except WorkbenchError as error:
            if name == reference:
                raise
            errors[name] = error.message
    return configs


def _notes(
    side: _Sides, name: str, answers: Mapping[str, Sequence[Arrays]], found: Drift | None, blocks: Sequence[Point],
    stopped: bool,
) -> tuple[str, ...]:  # fmt: skip
    """What is to be known of a model's figures."""
    notes = [
        *side.notes(name),
        *uncompared(side.reference, name, answers, found),
        *filled(side.configs[name], blocks),
    ]
    notes += too_short(blocks)
    asked = len(side.inputs(name)) if name == side.reference else len(answers.get(side.reference, ()))
    counted = len(answers.get(name, ()))
    if 0 < counted < asked and not stopped:
        notes.append(f"it answered {counted} of {asked} examples in the time for that: asking_s gives it more")
    if len({point.epoch for point in blocks}) > 1:
        notes.append("its configuration was changed between blocks: the figures are of several configurations")
    return tuple(notes)


def _ask_all(
    side: _Sides,
    ask: Ask,
    limit_s: float,
    stop: threading.Event,
    tell: Callable[[Step], None],
    answers: dict[str, list[Arrays]],
    errors: dict[str, str],
) -> None:
    """Fills ``answers`` with the outputs of every model, example by example, the reference's first.

    A model that has been asked for so long is asked no more, and no other is then asked more than the reference was.
    """
    most = len(side.inputs(side.reference))
    for name in [side.reference, *(name for name in side.names if name != side.reference)]:
        if stop.is_set():
            return
        if name in errors:
            continue
        begun = monotonic_ns()
        try:
            for place, each in enumerate(side.inputs(name)[:most]):
                if stop.is_set() or (place and (monotonic_ns() - begun) / 1e9 >= limit_s):
                    break
                tell(Step(f"asking {name}", place, most))
                answer = ask(name, each)
                answers.setdefault(name, []).append(answer)
        except WorkbenchError as error:
            if name == side.reference:
                raise
            errors[name] = error.message
            answers.pop(name, None)
        if name == side.reference:
            most = len(answers.get(name, ()))


def _start_all(
    side: _Sides,
    startup: Callable[[str, Arrays], Startup],
    stop: threading.Event,
    tell: Callable[[Step], None],
    so_far: _SoFar,
) -> None:
    """Sees what it takes to have each that has answered."""
    for done, name in enumerate(so_far.answers):
        if stop.is_set():
            return
        tell(Step(f"loading {name} in a server of its own", done, len(so_far.answers)))
        so_far.started(name, startup(name, side.inputs(name)[0]))


def _drifts(
    side: _Sides,
    answers: Mapping[str, Sequence[Mapping[str, NDArray[Any]]]],
    output_names: Mapping[str, Mapping[str, str]],
    options: CompareOptions,
    errors: dict[str, str],
) -> dict[str, Drift]:
    drifts: dict[str, Drift] = {}
    for name, ours in answers.items():
        if name == side.reference:
            continue
        try:
            drifts[name] = drift(
                name, side.reference, ours, answers[side.reference][: len(ours)], names=output_names.get(name),
                top_k=options.top_k, metric=options.metric, kinds=options.kinds,
            )  # fmt: skip
        except InvalidRequest as error:
            errors[name] = error.message
    return drifts


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
        self.configs = configs
        self.reference = reference
        self.examples = tuple(examples)
        self._own = own = {
            name: [str(entry["name"]) for entry in config.get("input", ())] for name, config in configs.items()
        }
        self._renamed = {name: given.get(name) or matched_names(own[reference], own[name]) for name in configs}

    def inputs(self, model: str) -> list[dict[str, NDArray[Any]]]:
        """For one model."""
        renamed = self._renamed[model]
        return [{renamed.get(name, name): array for name, array in example.items()} for example in self.examples]

    def unmatched(self, model: str) -> str:
        """What keeps the examples from being sent to a model, in words; empty where nothing does."""
        own, names = self._own[model], dict.fromkeys(name for example in self.examples for name in example)
        renamed = {self._renamed[model].get(name, name) for name in names}
        if not own or renamed <= set(own):
            return ""
        return (
            f"its inputs are {', '.join(own)}, those of '{self.reference}' are {', '.join(names)}: say which belong "
            f"together, input_names={{'{model}': {{REFERENCE'S NAME: ITS NAME}}}}"
        )

    def unsendable(self, model: str, load: Load) -> str:
        """What keeps a trace's requests from being replayed to a model, in words; empty where nothing does."""
        if not load.trace or not self.notes(model):
            return ""
        return (
            f"a replay sends inputs as they were captured, and {'; '.join(self.notes(model))}: compare it under "
            "rate=... or concurrency=..."
        )

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
    keep: Callable[[str, int, Point], None],
    on_block: Callable[[int, int, Point], None],
    *,
    skip: dict[str, str],
) -> None:
    """Rounds of blocks, each kept as (model, round, block); a model that cannot be measured is written to ``skip`` with
    the reason."""
    block = load.block
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
                    point = measurers[name].measure(replace(of_model(name, block), seed=load.seed + turn))
                except WorkbenchError as error:
                    skip[name] = f"it could not be measured: {error.message}"
                    point = failed_point(name, block, {}, error.message)
                keep(name, turn, point)
                done += 1
                on_block(done, total, point)
