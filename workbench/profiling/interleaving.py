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
from typing import TYPE_CHECKING, Any, Literal

from workbench.errors import InvalidRequest, NotReady, WorkbenchError
from workbench.profiling.ab_verdict import (
    METRICS,
    Comparison,
    compare_pairs,
    confidence_of,
    deciding_metric,
    figure_of,
    looks,
)
from workbench.profiling.interrupting import interrupt_stops
from workbench.profiling.load import Load
from workbench.profiling.measuring import Measurer, failed_point
from workbench.profiling.point import Point, edits_of
from workbench.profiling.requests import Inputs
from workbench.profiling.settings import by_model, short_name
from workbench.profiling.sweep_result import write_point
from workbench.profiling.target import Configurable, lost_of, restore_all
from workbench.profiling.verdict import MeasureOptions
from workbench.records.runs import RunStore

if TYPE_CHECKING:
    import pandas as pd

Name = Literal["A", "B"]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: the settings that are applied (values by path), of which model; none leaves it as it is."""

    name: Name
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """In a line."""
        settings = ", ".join(f"{short_name(path)} {value}" for path, value in self.settings.items())
        return f"{self.model} {settings or 'as configured'}"


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


@dataclass(frozen=True, slots=True)
class Block:
    """A measured block: whose, in which pair (from 0), and its point."""

    side: Name
    pair: int
    point: Point


@dataclass(frozen=True, slots=True)
class ABResult:
    """Two configurations compared. ``blocks`` are in the order of measuring, failed and not valid ones among them.

    ``faster`` is ``A``, ``B`` or empty; ``comparisons`` has every figure, each with its own interval; ``metric`` is the
    one that decides. ``stopped`` says that it was ended early, ``error`` what broke it off, ``unstored`` why the store
    does not have it.
    """

    a: Side
    b: Side
    load: Load
    blocks: tuple[Block, ...]
    comparisons: Mapping[str, Comparison]
    metric: str
    stopped: bool = False
    restored: bool = True
    error: str = ""
    unstored: str = ""

    @property
    def faster(self) -> Literal["A", "B", ""]:
        """The better side, if there is one."""
        return self.comparisons[self.metric].faster

    @property
    def verdict(self) -> str:
        """In a sentence, by the figure that decides."""
        if self.error:
            return f"no verdict: {self.error}"
        return self.comparisons[self.metric].text

    def to_frame(self) -> pd.DataFrame:
        """One row a block: side, pair, and the point's row."""
        import pandas as pd

        return pd.DataFrame([{"side": b.side, "pair": b.pair, **b.point.row()} for b in self.blocks])

    def save(self, store: RunStore, *, title: str = "") -> str:
        """Writes the blocks as a run of the store, with the verdict, and gives its id."""
        sides = {side.name: {"model": side.model, "settings": dict(side.settings)} for side in (self.a, self.b)}
        about = {"sides": sides, "verdict": self.verdict, "load": self.load.to_json(), "seed": self.load.seed}
        with store.create("ab", model=self.a.model, title=title, **about) as run:
            for block in self.blocks:
                write_point(run, block.point, "")
            run.finish("failed" if self.error else "stopped" if self.stopped else "done")
            return run.id

    def __repr__(self) -> str:
        lines = [self.verdict, f"  A: {self.a.label}", f"  B: {self.b.label}", f"  {self.load.label}"]
        lines += [f"  {each.text}" for name, each in self.comparisons.items() if name != self.metric]
        left_out = {why: None for block in self.blocks if not _usable(block) for why in _why(block)}
        if self.stopped:
            lines.append("  stopped before its end")
        if not self.restored:
            lines.append("  ! the configuration could not be restored")
        lines += [f"  ! a block was left out: {why}" for why in left_out]
        lines += [f"  ! {self.unstored}"] if self.unstored else []
        return "\n".join(lines)


def _usable(block: Block) -> bool:
    return block.point.valid and not block.point.failed and not block.point.error


def _why(block: Block) -> list[str]:
    failed = [f"{block.point.failed} requests failed"] if block.point.failed else []
    return [block.point.error] if block.point.error else [*block.point.reasons, *failed][:1]


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
        self._load = load
        self._measure = measure
        self._options = options if options is not None else ABOptions()
        self._stop = stop if stop is not None else threading.Event()
        self._on_block = on_block
        self._metric = self._options.metric or deciding_metric(load)
        self.blocks: list[Block] = []
        self.pair = 0
        """The number of the pair that is being measured."""

    def run(self) -> None:
        """Measures until it is decided; what has been measured is in ``blocks``, also when this raises."""
        plan = looks(self._options.pairs, self._options.max_pairs)
        order = random.Random(self._options.seed)
        for target in plan:
            while len(self._pairs()) < target:
                # A pair that is not valid is measured again, but not for ever: the machine may stay busy.
                if self._stop.is_set() or self.pair >= 2 * self._options.max_pairs:
                    return
                sides = list(self._sides)
                order.shuffle(sides)
                for side in sides:
                    if self._stop.is_set():
                        return
                    self._keep(Block(side.name, self.pair, self._measure(side, self._of_pair(self.pair))))
                self.pair += 1
            if self.compare()[self._metric].faster:
                return

    def _of_pair(self, pair: int) -> Load:
        return replace(self._load, seed=self._load.seed + pair)

    def _keep(self, block: Block) -> None:
        self.blocks.append(block)
        if self._on_block is not None:
            self._on_block(block)

    def _pairs(self) -> list[dict[str, Point]]:
        """The pairs of which both blocks may be believed."""
        found: dict[int, dict[str, Point]] = {}
        for block in self.blocks:
            if _usable(block):
                found.setdefault(block.pair, {})[block.side] = block.point
        return [pair for pair in found.values() if len(pair) == 2]

    def compare(self) -> dict[str, Comparison]:
        """Every figure over the pairs so far, each with the confidence of one look among those that are planned."""
        pairs = self._pairs()
        confidence = confidence_of(len(looks(self._options.pairs, self._options.max_pairs)))
        return {
            name: compare_pairs(
                name, [figure_of(p["A"], name) for p in pairs], [figure_of(p["B"], name) for p in pairs], confidence
            )
            for name in METRICS
        }

    def result(self, *, stopped: bool = False, restored: bool = True, error: str = "") -> ABResult:
        """What there is."""
        a, b = self._sides
        if not error and not stopped and self.blocks and not self._pairs():
            error = "no pair of blocks is valid: " + "; ".join(
                dict.fromkeys(why for block in self.blocks for why in _why(block))
            )
        return ABResult(
            a, b, self._load, tuple(self.blocks), self.compare(), self._metric, stopped, restored, error
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
    stop: threading.Event | None = None,
    on_block: Callable[[Block], None] | None = None,
    options: ABOptions | None = None,
) -> ABResult:
    """Compares two configurations in interleaved blocks; the original one is applied again whatever happens.

    Ctrl-C or ``stop`` end it early; what was measured until then is kept and judged.

    Args:
        target: the server.
        model: its model.
        a: values by configuration path, such as ``{"max_batch_size": 4}``; empty for the configuration as it is.
        b: the other one's.
        load: of one block; its ``duration_s`` is not prolonged.
        against: the model of B, where that is another one.
        inputs: what to send; None takes each model's example inputs.
        stop: once set, ends it.
        on_block: hears of each block.
        options: how long it is tried, and by which figure it is decided.

    Raises:
        NotReady: somebody else changes the model's configuration now.
    """
    options = options if options is not None else ABOptions()
    stop = stop if stop is not None else threading.Event()
    sides = Side("A", model, dict(a)), Side("B", against or model, dict(b))
    block = replace(load, max_duration_s=load.duration_s)
    with ExitStack() as stack:
        measurers = {
            name: stack.enter_context(Measurer(target, name, inputs=inputs, stop=stop, options=options.measure))
            for name in dict.fromkeys(side.model for side in sides)
        }
        switch = _Switch(target, sides)

        def measure(side: Side, load: Load) -> Point:
            switch.to(side)
            point = measurers[side.model].measure(load, side.settings)
            if lost := lost_of(target):
                raise NotReady(lost)
            return point

        run = Interleaver(*sides, block, measure, options=options, stop=stop, on_block=on_block)
        error, complaints = "", list[str]()
        switch.hold()
        try:
            with interrupt_stops(stop):
                run.run()
        except KeyboardInterrupt:
            stop.set()
        except WorkbenchError as broke:
            error = f"{switch.now} could not be measured: {broke.message}"
            failed = next(side for side in sides if side.name == switch.now)
            run.blocks.append(Block(failed.name, run.pair, failed_point(failed.model, block, failed.settings, error)))
        finally:
            complaints = switch.back()
    error = "; ".join([*([error] if error else []), *complaints])
    return run.result(stopped=stop.is_set(), restored=not complaints, error=error)


class _Switch:
    """Applies one side after the other, and the original configuration at the end."""

    def __init__(self, target: Configurable, sides: tuple[Side, Side]) -> None:
        self._target = target
        self._edits = {side.name: by_model(side.settings, side.model) for side in sides}
        measured = [side.model for side in sides]
        self._models = list(dict.fromkeys([*measured, *self._edits["A"], *self._edits["B"]]))
        self._changed = any(self._edits.values())
        self._applied: Name | None = None
        self.now: Name = "A"

    def hold(self) -> None:
        """Takes the models, where the server can keep others off them: also where nothing is set."""
        hold = getattr(self._target, "hold", None)
        if hold is not None:
            hold(self._models, f"A/B of '{self._models[0]}'")

    def to(self, side: Side) -> None:
        """Applies a side."""
        self.now = side.name
        if self._applied == side.name or not self._changed:
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

    def back(self) -> list[str]:
        """Applies the original configuration; gives what went wrong."""
        complaints: list[str] = []

        def failed(index: int, error: Exception) -> None:
            text = getattr(error, "message", "") or f"{type(error).__name__}: {error}"
            complaints.append(f"the configuration of '{self._models[index]}' could not be restored: {text}")

        if self._changed or hasattr(self._target, "hold"):
            restore_all(self._target, self._models, failed)
        return complaints
