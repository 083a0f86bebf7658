"""Sweeps: a grid of configurations × loads, applied live, with the configuration restored whatever happens."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.clock import Clock, monotonic_ns
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.profiling.executing import Executor, Item, LocalExecutor, Outcome, Work, text_of
from workbench.profiling.interrupting import interrupt_stops
from workbench.profiling.load import Load
from workbench.profiling.point import Point
from workbench.profiling.requests import Inputs
from workbench.profiling.resume import Resumed
from workbench.profiling.settings import by_model
from workbench.profiling.sweep_result import Progress, SweepResult, write_point
from workbench.profiling.target import Configurable
from workbench.profiling.verdict import MeasureOptions
from workbench.records.runs import Run, RunStore

Grid = Mapping[str, Sequence[Any]]
"""Values by path, such as ``{"dynamic_batching.max_queue_delay_microseconds": [0, 500]}``; None removes the field."""

MOST_POINTS = 100_000
"""So many points a sweep may have; at a second each they take more than a day."""

_OVERHEAD_S = 0.6  # what a point takes beside its load, before one has been measured


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What a sweep may be told beside its grid.

    ``kind`` is what its run is stored as.
    ``keep_samples`` stores the stamps of every request, and the server's records, with each point. ``resume`` names a
    run of the store to go on with; True takes the newest one of the same model, grid and loads, or begins a new one.
    Its points of the same model content, configuration as read back, inputs, load, seed and device are taken as they
    are, with their verdicts (``remeasure``: only the valid ones); those that failed or were cut short are measured and
    take their places in it. Where the model's files are not on this machine, all are measured again, unless ``content``
    says what they are (a version, a git hash). ``attempts`` is how often a point is measured before a verdict of not
    valid is kept: what disturbed it once (another program) may be over. ``part`` has the numbers of the points that are
    measured, where it is not all of them (``sweeping.items_of``).
    """

    title: str = ""
    kind: str = "sweep"
    keep_samples: bool = False
    resume: str | bool = ""
    remeasure: bool = False
    content: str = ""
    attempts: int = 2
    part: tuple[int, ...] | None = None
    measure: MeasureOptions = field(default_factory=MeasureOptions)
    clock: Clock = monotonic_ns


def listed(grid: Grid) -> dict[str, list[Any]]:
    """A grid with its values in lists; what gives them only once may be asked once.

    Raises:
        InvalidRequest: a path without values, more combinations than ``MOST_POINTS``.
    """
    if not isinstance(grid, Mapping):
        raise InvalidRequest(
            f"a grid maps paths to lists of values, got {grid!r:.80}", hint='{"max_batch_size": [4, 8]}'
        )
    lists: dict[str, list[Any]] = {}
    for path, values in grid.items():
        given: Any = values
        if not isinstance(path, str):
            raise InvalidRequest(
                f"a grid maps paths to lists of values, got the path {path!r:.80}", hint='{"max_batch_size": [4, 8]}'
            )
        if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
            raise InvalidRequest(f"the grid needs a list of values for '{path}', got {given!r:.80}")
        lists[path] = list(itertools.islice(given, MOST_POINTS + 1))  # it may never end
        if not lists[path]:
            raise InvalidRequest(f"the grid needs a list of values for '{path}', got an empty one")
    if math.prod(map(len, lists.values())) > MOST_POINTS:
        raise InvalidRequest(
            f"the grid has more than {MOST_POINTS} combinations: a sweep would take days", hint="give fewer values"
        )
    return lists


def combinations(grid: Grid) -> list[dict[str, Any]]:
    """Every combination of a grid's values; one empty combination for an empty grid.

    Raises:
        InvalidRequest: as ``listed``.
    """
    lists = listed(grid)
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def items_of(grid: Grid, loads: Sequence[Load]) -> list[Item]:
    """The points of a sweep: every load under every combination, those of one configuration beside each other.

    Raises:
        InvalidRequest: a path without values, no load.
    """
    if not loads:
        raise InvalidRequest("a sweep needs at least one load")
    settings = combinations(grid)
    if len(settings) * len(loads) > MOST_POINTS:
        raise InvalidRequest(
            f"{len(settings)} configurations at {len(loads)} loads are more than {MOST_POINTS} points: a sweep would "
            "take days",
            hint="give fewer values",
        )
    pairs = itertools.product(settings, loads)
    return [Item(number, settings, load) for number, (settings, load) in enumerate(pairs)]


def chosen_items(grid: Grid, loads: Sequence[Load], part: tuple[int, ...] | None = None) -> list[Item]:
    """Those of ``items_of`` whose numbers are in ``part``; all without one.

    Raises:
        InvalidRequest: ``part`` names a point that the sweep does not have.
    """
    items = items_of(grid, loads)
    if part is None:
        return items
    if not all(0 <= number < len(items) for number in part):
        raise InvalidRequest(f"the sweep has the points 0 to {len(items) - 1}, its part names {list(part)}")
    return [items[number] for number in sorted(set(part))]


class Sweeper:
    """One sweep, run once by ``run``; ``sweep`` and ``SweepJob`` are the usual ways to it.

    Arguments as ``sweep``; ``target`` may be None where an ``executor`` is given.
    """

    def __init__(
        self,
        target: Configurable | None,
        model: str,
        grid: Grid,
        loads: Sequence[Load],
        *,
        inputs: Inputs = None,
        store: RunStore | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        stop: threading.Event | None = None,
        options: SweepOptions | None = None,
        executor: Executor | None = None,
    ) -> None:
        if executor is None and target is None:
            raise InvalidRequest("a sweep needs a target or an executor")
        self._executor: Executor = executor if executor is not None else LocalExecutor(target)  # type: ignore[arg-type]
        self._model = model
        self._loads = list(loads)
        self._options = options if options is not None else SweepOptions()
        self._items = chosen_items(grid, loads, self._options.part)
        self._grid = {path: list(values) for path, values in grid.items()}
        self._swept = tuple(by_model(self._grid, model))
        self._inputs = inputs
        self._store = store
        self._on_progress = on_progress
        self._stop = stop if stop is not None else threading.Event()
        self._began = self._measured = 0
        self._resumed = Resumed()
        self._run: Run | None = None
        self._unstored = ""
        self._order: dict[int, int] = {}
        self.points: list[Point] = []

    @property
    def total(self) -> int:
        """How many points there will be."""
        return len(self._items)

    def run(self) -> SweepResult:
        """Measures every point. Ctrl-C and ``stop`` end it early and keep what was measured.

        The original configuration is applied again in any case, also when measuring raises.

        Raises:
            NotReady: the model is being swept by somebody else, or the run that is to be resumed is being written.
        """
        options = self._options
        self._began = options.clock()
        stopped, error, restored = False, "", True
        work = Work(
            self._model, self._swept, self._inputs, options.content, options.attempts,
            keyed=self._store is not None, keep_samples=options.keep_samples, measure=options.measure,
        )  # fmt: skip
        try:
            self._executor.open(work, self._stop)
            self._run = self._open_run()
            self._tell(None)
            with interrupt_stops(self._stop):  # also while a point is being stored
                error = self._executor.run(self._items, self._resumed.keys, self._take)
            stopped = self._stop.is_set()
        except KeyboardInterrupt:
            stopped = True
        except Exception as problem:
            error = text_of(problem)  # of the run that is left; it is raised
            raise
        finally:
            complaint = self._executor.close()
            if complaint:
                restored, error = False, f"{error}; {complaint}" if error else complaint
            run = self._run
            result = SweepResult(
                self._model, self._grid, self._in_order(), self.total, stopped, restored, error, run.id if run else ""
            )
            if run is not None:
                self._close_run(run, result)
            if self._unstored:
                text = f"{result.error}; {self._unstored}" if result.error else self._unstored
                result = replace(result, error=text)
        return result

    def _in_order(self) -> tuple[Point, ...]:
        """The points in the order of the grid and the loads, in whatever order they came."""
        return tuple(self.points[index] for _, index in sorted(self._order.items()))

    def _close_run(self, run: Run, result: SweepResult) -> None:
        self._store_safely(lambda: run.set_meta(restored=result.restored, error=result.error))
        self._store_safely(lambda: run.finish(result.status))
        run.close()

    def _store_safely(self, write: Callable[[], None]) -> None:
        """A store that takes no more (a full disk, say) is told of in the result: what is measured is not lost."""
        if self._unstored:
            return
        try:
            write()
        except WorkbenchError as error:
            self._unstored = f"from point {len(self.points)} on nothing was stored: {error.message} ({error.where})"

    def _take(self, outcome: Outcome) -> None:
        """Keeps what came of an item; one that the run has already comes from there."""
        item, point = outcome.item, outcome.point
        if point is None:
            known = self._resumed.find(outcome.key)
            assert known is not None, "only known keys are taken as they are"
            point = replace(known, settings=dict(item.settings))
        self._measured += outcome.point is not None
        self._order[item.number] = len(self.points)
        self.points.append(point)
        run = self._run
        if run is not None and outcome.point is not None:
            self._store_safely(lambda: self._write(outcome, point, run))
        self._tell(point)

    def _write(self, outcome: Outcome, point: Point, run: Run) -> None:
        number = write_point(run, point, outcome.key, self._resumed.outdated(point))
        if outcome.samples is not None:
            streamed = ("response_of", "response_at") if point.load.streaming else ()
            classes = ("class_of",) if point.classes else ()
            held = ("held",) if outcome.samples.held.any() else ()
            stamps = ("scheduled", "sent", "done", "status", *streamed, *classes, *held)
            run.add_samples(number, {name: getattr(outcome.samples, name) for name in stamps})
            if outcome.records is not None:
                run.add_records(number, outcome.records)

    def _tell(self, point: Point | None) -> None:
        if self._on_progress is None:
            return
        done, left = len(self.points), self.total - len(self.points)
        if self._measured:  # what a run that is resumed had already took no time
            each = (self._options.clock() - self._began) / 1e9 / self._measured
            eta = each * left
        else:
            loads = [item.load for item in self._items if item.number not in self._order]
            eta = sum(load.warmup_s + load.duration_s + _OVERHEAD_S for load in loads)
        self._on_progress(Progress(done, self.total, eta, point))

    def _open_run(self) -> Run | None:
        if self._store is None:
            return None
        about: dict[str, Any] = {"grid": self._grid, "loads": [load.to_json() for load in self._loads]}
        if self._options.part is not None:
            about["part"] = list(self._options.part)
        wanted = self._options.resume
        if wanted is True:
            wanted = self._store.newest(self._options.kind, model=self._model, **about) or ""
        if wanted:
            run = self._store.open(str(wanted), write=True)
            try:
                run.claim(f"sweep of '{self._model}'")
                self._resumed = Resumed(run, only_valid=self._options.remeasure)
                run.set_meta(total=self.total)
            except BaseException:
                run.close()
                raise
            return run
        return self._store.create(
            self._options.kind,
            model=self._model,
            title=self._options.title,
            url=self._executor.where,
            total=self.total,
            seed=self._loads[0].seed,
            **about,
        )


def sweep(
    target: Configurable | None,
    model: str,
    grid: Grid,
    loads: Sequence[Load],
    *,
    inputs: Inputs = None,
    store: RunStore | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
    options: SweepOptions | None = None,
    executor: Executor | None = None,
) -> SweepResult:
    """Measures a grid of configurations × loads; each configuration is applied live and read back.

    All configurations see the same arrivals (the load's seed). A point that fails is a row with its reason; Ctrl-C or
    ``stop`` end the sweep and keep what was measured; the original configuration is applied again whatever happens.
    With the loads' defaults a point takes about 3.5 s, so 12 points take about 40 s.

    Args:
        target: the server; None where an executor says where to measure.
        model: its model.
        grid: values by path; an empty grid measures the loads under the configuration that is applied. Under an
            ensemble, values by ``STEP:PATH``, such as ``{"tokenizer:instance_group[0].count": [1, 2]}``.
        loads: ``[Load.closed(1), Load.closed(8), Load.open(200)]``.
        inputs: what to send; None takes the model's example inputs.
        store: where to write the points, each as soon as it is measured.
        on_progress: called before the first point and after each one, on this thread.
        stop: once set, ends the sweep at once.
        options: title, what to keep, how strictly points are judged.
        executor: where to measure; None measures at the target.

    Raises:
        InvalidRequest: a grid or loads that make no sense.
        NotReady: the model is being swept by somebody else, or the run that is to be resumed is being written.
    """
    return Sweeper(
        target, model, grid, loads, inputs=inputs, store=store, on_progress=on_progress, stop=stop, options=options,
        executor=executor,
    ).run()  # fmt: skip
