"""Models side by side: the same inputs, the same load, in turn on a warm server, and how far their answers are apart.

Measured one after the other, models differ by whatever the machine did meanwhile; so each round measures a short block
of every one, in an order drawn by the seed. Ratios are taken round by round, against the reference.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.clock import monotonic_ns
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.profiling.ab_verdict import METRICS
from workbench.profiling.interrupting import interrupt_stops
from workbench.profiling.load import Load
from workbench.profiling.measuring import Measurer, failed_point
from workbench.profiling.point import Point
from workbench.profiling.requests import Inputs, prepare
from workbench.profiling.target import Target, directory_of
from workbench.profiling.verdict import MeasureOptions
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.repository.example_inputs import FILE_NAME, Example, inputs_of, load_example_inputs
from workbench.tuning.compare_notes import Arrays, filled, too_short, uncompared
from workbench.tuning.compare_result import (
    FIGURES,
    CompareResult,
    ModelFigures,
    Startup,
    against,
    figure_over,
)
from workbench.tuning.drift import Drift, Metric, check_kinds, drift, matched_names
from workbench.tuning.vectors import Kind

Ask = Callable[[str, Mapping[str, Any]], Mapping[str, NDArray[Any]]]
"""Asks a model once: (name, inputs by its own names) to its outputs."""

_MOST_BYTES = 2**28
"""So large may the examples be that are drawn besides those of the load."""


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
    stop: threading.Event | None = None,
    on_block: Callable[[int, int, Point], None] | None = None,
    on_step: Callable[[Step], None] | None = None,
    failed: Mapping[str, str] | None = None,
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
        on_step: hears how far it is: of asking, of loading each in a server of its own, of the blocks.
        failed: of models that are known not to serve: why. They are told, not measured.

    Raises:
        InvalidRequest: fewer than two models, or a reference that is not among them.
        WorkbenchError: the reference does not serve, or does not answer.
    """
    options, stop, tell = options or CompareOptions(), stop or threading.Event(), on_step or _silent
    names = list(dict.fromkeys(models))
    reference = _reference(names, reference)
    errors = dict(failed or {})
    configs = _configs(target, names, reference, errors)
    examples = _examples(target, reference, configs[reference], load, inputs, options.examples)
    side = _Sides(configs, reference, input_names or {}, examples)
    errors |= {name: text for name in side.names if (text := side.unmatched(name) or side.unsendable(name, load))}
    answers: dict[str, list[Arrays]] = {}
    starts: dict[str, Startup] = {}
    blocks: dict[str, list[Point]] = {name: [] for name in names}
    with interrupt_stops(stop):
        try:
            _ask_all(side, ask, options.asking_s, stop, tell, answers, errors)
            drifts = _drifts(side, answers, output_names or {}, options, errors)
            if startup is not None:
                _start_all(side, startup, stop, tell, answers, starts)
            _measure(target, side, load, options, stop, _both(tell, on_block), blocks, skip=errors)
        except KeyboardInterrupt:  # the second one, or one that came elsewhere than to the main thread
            stop.set()
            drifts = _drifts(side, answers, output_names or {}, options, errors)
    measured = {
        name: ModelFigures(
            name,
            _backend(configs.get(name, {})),
            tuple(blocks[name]),
            {metric: figure_over(blocks[name], metric) for metric in FIGURES},
            drift=drifts.get(name),
            startup=starts.get(name, Startup()),
            notes=_notes(side, name, answers, drifts.get(name), blocks[name], stop.is_set()) if name in configs else (),
            error=errors.get(name, ""),
        )
        for name in names
    }
    return CompareResult(_against(measured, reference), reference, load, tuple(examples), answers, stop.is_set())


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


def _backend(config: Mapping[str, Any]) -> str:
    return str(config.get("backend") or config.get("platform") or "")


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
    names: Mapping[str, Any],
    starts: dict[str, Startup],
) -> None:
    """Fills ``starts`` with what it takes to have each."""
    for done, name in enumerate(names):
        if stop.is_set():
            return
        tell(Step(f"loading {name} in a server of its own", done, len(names)))
        starts[name] = startup(name, side.inputs(name)[0])


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


def _against(measured: Mapping[str, ModelFigures], reference: str) -> tuple[ModelFigures, ...]:
    count = len(measured) - 1
    theirs = measured[reference]
    return tuple(
        ours
        if ours is theirs
        else replace(ours, against={metric: against(ours, theirs, count, metric) for metric in METRICS})
        for ours in measured.values()
    )


def _examples(
    target: Target, reference: str, config: Mapping[str, Any], load: Load, inputs: Inputs, count: int
) -> list[dict[str, NDArray[Any]]]:
    """The inputs of the requests that the load sends to the reference, by its names, the same ones once; where they are
    the model's example inputs and fewer than ``count``, those that come after them, too."""
    prepared = prepare(target, reference, config, _to(reference, load), inputs)

    def arrays(request: InferenceRequest) -> dict[str, NDArray[Any]]:
        return {tensor.name: tensor.data for tensor in request.inputs}

    found: list[dict[str, NDArray[Any]]] = []
    own = inputs is None and not (load.inputs or load.trace or load.mix)
    further = _further(target, reference, config, load, count) if own else ()
    for request in itertools.chain(prepared.requests, further):
        if len(found) >= count:
            break
        given = arrays(request)
        if not any(_same(given, other) for other in found):
            found.append(given)
    return found


def _further(
    target: Target, reference: str, config: Mapping[str, Any], load: Load, count: int
) -> Iterator[InferenceRequest]:
    """Requests of a model's example inputs, in their order: a load keeps a few of those that are drawn from ranges."""
    directory = directory_of(target, reference)
    if directory is None or not (directory / FILE_NAME).is_file() or config.get("sequence_batching"):
        return
    specs, optional = inputs_of(config)
    rows = load.batch_size if int(config.get("max_batch_size", 0) or 0) > 0 else 0

    def drawn(number: int) -> list[Example]:
        return load_example_inputs(directory, specs, seed=load.seed, count=number, batch_size=rows, optional=optional)

    size = sum(array.nbytes for array in drawn(1)[0].values())
    for example in drawn(min(count, _MOST_BYTES // max(1, size))):
        yield InferenceRequest(reference, [Tensor.from_numpy(name, array) for name, array in example.items()])


def _same(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(array, b[name]) for name, array in a.items())


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
        self._examples = examples
        self._own = own = {
            name: [str(entry["name"]) for entry in config.get("input", ())] for name, config in configs.items()
        }
        self._renamed = {name: given.get(name) or matched_names(own[reference], own[name]) for name in configs}

    def inputs(self, model: str) -> list[dict[str, NDArray[Any]]]:
        """For one model."""
        renamed = self._renamed[model]
        return [{renamed.get(name, name): array for name, array in example.items()} for example in self._examples]

    def unmatched(self, model: str) -> str:
        """What keeps the examples from being sent to a model, in words; empty where nothing does."""
        own, names = self._own[model], dict.fromkeys(name for example in self._examples for name in example)
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


def _to(model: str, load: Load) -> Load:
    """A load of this model: a replay would go to the models that were captured."""
    return replace(load, model=model) if load.trace else load


def _measure(
    target: Target,
    side: _Sides,
    load: Load,
    options: CompareOptions,
    stop: threading.Event,
    on_block: Callable[[int, int, Point], None],
    blocks: dict[str, list[Point]],
    *,
    skip: dict[str, str],
) -> None:
    """Rounds of blocks; a model that cannot be measured is written to ``skip`` with the reason."""
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
                    point = measurers[name].measure(replace(_to(name, block), seed=load.seed + turn))
                except WorkbenchError as error:
                    skip[name] = f"it could not be measured: {error.message}"
                    point = failed_point(name, block, {}, error.message)
                blocks[name].append(point)
                done += 1
                on_block(done, total, point)
