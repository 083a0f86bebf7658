"""Interleaved A/B: two configurations in turn, in short blocks, until one is faster or it is too close to call.

Measured one after the other, two configurations differ by whatever the machine did meanwhile. Here each pair of blocks
stands side by side, in an order drawn by the seed, and open loops of a pair have the same arrivals.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.errors import InvalidRequest, NotReady, WorkbenchError
from workbench.profiling.ab_result import ABBook, ABResult, Block, Name, Side, compare_blocks, usable_pairs
from workbench.profiling.ab_verdict import METRICS, Comparison, deciding_metric, looks
from workbench.profiling.interrupting import interrupt_stops
from workbench.profiling.left_out import gathered
from workbench.profiling.load import Load
from workbench.profiling.measuring import Measurer, failed_point
from workbench.profiling.paths import read_back_differences
from workbench.profiling.point import Point, edits_of
from workbench.profiling.requests import Inputs
from workbench.profiling.settings import by_model
from workbench.profiling.target import Configurable, lost_of, restore_all
from workbench.profiling.verdict import MeasureOptions
from workbench.records.runs import RunStore


@dataclass(frozen=True, slots=True)
class ABOptions:
    """How long it is tried.

    There is a look after ``pairs`` pairs of blocks and after each doubling, up to ``max_pairs``; it ends at the first
    that decides ``metric`` (None: throughput of a closed loop, mean latency of an open one). Each look has a confidence
    so high that all of them together err with 5 %. ``seed`` draws the order within the pairs.
    """

    pairs: int = 6
    max_pairs: int = 24
    metric: str | None = None
    seed: int = 1
    measure: MeasureOptions = field(default_factory=MeasureOptions)

    def __post_init__(self) -> None:
        if not 2 <= self.pairs <= self.max_pairs:
            raise InvalidRequest(f"pairs must be from 2 to max_pairs, got {self.pairs} and {self.max_pairs}")
        if self.metric is not None and self.metric not in METRICS:
            known = ", ".join(METRICS)
            raise InvalidRequest(f"there is no figure {self.metric!r} to decide by", hint=f"there are {known}")


MeasureBlock = Callable[[Side, Load], Point]
"""Applies a side and measures one block."""


class Interleaver:
    """The pairs of blocks and their verdict; ``measure`` does the rest, so it also runs in virtual time."""

    def __init__(
        self,
        a: Side,
        b: Side,
        load: Load,
        measure: MeasureBlock,
        *,
        options: ABOptions | None = None,
        stop: threading.Event | None = None,
        on_block: Callable[[Block], None] | None = None,
    ) -> None:
        self._sides = (a, b)
        self.load = load
        self._measure = measure
        self._options = options if options is not None else ABOptions()
        self._stop = stop if stop is not None else threading.Event()
        self._on_block = on_block
        self.metric = self._options.metric or deciding_metric(load)
        self.looks = tuple(looks(self._options.pairs, self._options.max_pairs))
        """After how many pairs there is a look."""
        self.blocks: list[Block] = []
        self.pair = 0
        """The number of the pair that is being measured."""

    def run(self) -> None:
        """Measures until it is decided; what has been measured is in ``blocks``, also when this raises."""
        order = random.Random(self._options.seed)
        for target in self.looks:
            while len(usable_pairs(self.blocks)) < target:
                # A pair that is not valid is measured again, but not for ever: the machine may stay busy.
                if self._stop.is_set() or self.pair >= 2 * self._options.max_pairs:
                    return
                sides = list(self._sides)
                order.shuffle(sides)
                for side in sides:
                    if self._stop.is_set():
                        return
                    self.keep(Block(side.name, self.pair, self._measure(side, self._of_pair(self.pair))))
                self.pair += 1
            if self.compare()[self.metric].faster:
                return

    def side(self, name: Name) -> Side:
        """The side of that name."""
        return self._sides[0 if name == "A" else 1]

    def _of_pair(self, pair: int) -> Load:
        return replace(self.load, seed=self.load.seed + pair)

    def keep(self, block: Block) -> None:
        """Takes a block, and tells of it."""
        self.blocks.append(block)
        if self._on_block is not None:
            self._on_block(block)

    def compare(self) -> dict[str, Comparison]:
        """Every figure over the pairs so far."""
        return compare_blocks(self.blocks, self.looks)

    def result(self, *, stopped: bool = False, restored: bool = True, error: str = "") -> ABResult:
        """What there is."""
        a, b = self._sides
        if not error and not stopped and self.blocks and not usable_pairs(self.blocks):
            whys = gathered((why, "") for block in self.blocks for why in block.why)
            error = "no pair of blocks is valid: " + "; ".join(why for why, _ in whys)
        return ABResult(
            a, b, self.load, tuple(self.blocks), self.compare(), self.metric, stopped, restored, error,
            looks=self.looks,
        )  # fmt: skip


def ab(
    target: Configurable,
    model: str,
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    load: Load,
    *,
    against: str = "",
    inputs: Inputs = None,
    store: RunStore | None = None,
    title: str = "",
    stop: threading.Event | None = None,
    on_block: Callable[[Block], None] | None = None,
    options: ABOptions | None = None,
) -> ABResult:
    """Compares two configurations in interleaved blocks; the original one is applied again whatever happens.

    Ctrl-C or ``stop`` end it early; what was measured until then is kept and judged. Whoever is killed leaves a run
    with the blocks so far (``ABResult.open``).

    Args:
        target: the server.
        model: its model.
        a: values by configuration path, such as ``{"max_batch_size": 4}``; empty for the configuration as it is.
        b: the other one's.
        load: of one block; its ``duration_s`` is not prolonged.
        against: the model of B, where that is another one.
        inputs: what to send; None takes each model's example inputs.
        store: where to write the blocks, each as soon as it is measured.
        title: what a person calls the run.
        stop: once set, ends it.
        on_block: hears of each block, once it is stored.
        options: how long it is tried, and by which figure it is decided.

    Raises:
        NotReady: somebody else changes the model's configuration now.
        InternalError: nothing can be written to the store; nothing has been measured then.
    """
    options = options if options is not None else ABOptions()
    stop = stop if stop is not None else threading.Event()
    sides = Side("A", model, dict(a)), Side("B", against or model, dict(b))
    block = load.block
    with ExitStack() as stack:
        measurers = {
            name: stack.enter_context(Measurer(target, name, inputs=inputs, stop=stop, options=options.measure))
            for name in dict.fromkeys(side.model for side in sides)
        }
        switch = _Switch(target, sides)
        book: ABBook | None = None

        def measure(side: Side, load: Load) -> Point:
            switch.to(side)
            point = measurers[side.model].measure(load, side.settings)
            if lost := lost_of(target):
                raise NotReady(lost)
            return switch.checked(side, point)

        def keep(block: Block) -> None:
            if book is not None:
                book.write(block)
            if on_block is not None:
                on_block(block)

        run = Interleaver(*sides, block, measure, options=options, stop=stop, on_block=keep)
        switch.hold()
        try:
            if store is not None:
                about = (store, sides, block, run.metric, run.looks)
                book = stack.enter_context(ABBook(*about, title=title, url=target.url))
            error = _run(run, switch, stop)
        finally:
            complaints = switch.back()
            if book is not None and complaints:
                book.not_restored()
        error = "; ".join([*([error] if error else []), *complaints])
        result = run.result(stopped=stop.is_set(), restored=not complaints, error=error)
        if book is None:
            return result
        book.finish(result)
        return replace(result, run_id=book.run.id, unstored=book.unstored)


def _run(run: Interleaver, switch: _Switch, stop: threading.Event) -> str:
    """Runs it to its end, or until it is interrupted; gives what broke it off, or nothing."""
    try:
        with interrupt_stops(stop):  # also while a block is being stored
            run.run()
    except KeyboardInterrupt:
        stop.set()
    except WorkbenchError as broke:
        side = run.side(switch.now)
        error = f"{side.name} could not be measured: {broke.message}"
        run.keep(Block(side.name, run.pair, failed_point(side.model, run.load, side.settings, error)))
        return error
    return ""


class _Switch:
    """Applies one side after the other, and the original configuration at the end."""

    def __init__(self, target: Configurable, sides: tuple[Side, Side]) -> None:
        self._target = target
        self._edits = {side.name: by_model(side.settings, side.model) for side in sides}
        measured = [side.model for side in sides]
        self._models = list(dict.fromkeys([*measured, *self._edits["A"], *self._edits["B"]]))
        self._changed = any(self._edits.values())
        self._applied: Name | None = None
        self._epochs: Mapping[str, int | None] = {}
        self._seen: dict[Name, Mapping[str, Mapping[str, Any]]] = {}
        self.now: Name = "A"

    def hold(self) -> None:
        """Takes the models, where the server can keep others off them: also where nothing is set."""
        hold = getattr(self._target, "hold", None)
        if hold is not None:
            hold(self._models, f"A/B of '{self._models[0]}'")

    def to(self, side: Side) -> None:
        """Applies a side, where it is not applied: somebody may have loaded a model anew since."""
        self.now = side.name
        if not self._changed or (self._applied == side.name and self._epochs_now() == self._epochs):
            return
        mine, other = self._edits[side.name], self._edits["B" if side.name == "A" else "A"]
        for model in self._models:
            edits, others = mine.get(model, {}), other.get(model, {})
            if others.keys() - edits.keys():  # what only the other sets goes back to what it was, whole blocks too
                self._target.restore(model)
                self.hold()
            if edits:
                self._target.configure(model, edits_of(edits))
        self._applied = side.name
        self._epochs = self._epochs_now()

    def _epochs_now(self) -> Mapping[str, int | None]:
        """The configurations that the models have now, by their numbers."""
        try:
            return {model: self._target.epoch(model) for model in self._models}
        except WorkbenchError:
            return self._epochs  # measuring will say why

    def checked(self, side: Side, point: Point) -> Point:
        """The point of a block, not valid where the server reads a value otherwise than it was set.

        Raises:
            NotReady: the side's blocks before had another configuration.
        """
        if point.error or not point.valid:
            return point
        edits = self._edits[side.name]
        steps = {model: self._target.model_config(model) for model in edits if model != side.model}
        configs = {side.model: point.config, **steps}
        otherwise = [text for model, own in edits.items() for text in read_back_differences(own, configs[model])]
        if otherwise:
            return replace(point, valid=False, stable=False, reasons=(*otherwise, *point.reasons))
        before = self._seen.setdefault(side.name, configs)
        for model, config in configs.items():
            changed = sorted(key for key in {*config, *before[model]} if config.get(key) != before[model].get(key))
            if changed:
                raise NotReady(
                    f"somebody else has changed '{model}' ({', '.join(changed)}): its blocks before had another "
                    "configuration"
                )
        return point

    def back(self) -> list[str]:
        """Applies the original configuration; gives what went wrong."""
        complaints: list[str] = []

        def failed(index: int, error: Exception) -> None:
            text = getattr(error, "message", "") or f"{type(error).__name__}: {error}"
            complaints.append(f"the configuration of '{self._models[index]}' could not be restored: {text}")

        if self._changed or hasattr(self._target, "hold"):
            restore_all(self._target, self._models, failed)
        return complaints
