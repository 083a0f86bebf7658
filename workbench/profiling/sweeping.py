"""Sweeps: a grid of configurations × loads, applied live, with the configuration restored whatever happens."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from workbench.clock import Clock, monotonic_ns
from workbench.errors import ConnectionFailed, InvalidRequest, WorkbenchError
from workbench.profiling.interrupting import do_all
from workbench.profiling.load import Load
from workbench.profiling.measuring import Measured, Measurer, failed_point
from workbench.profiling.paths import read_back_notes
from workbench.profiling.point import Point, edits_of
from workbench.profiling.requests import Inputs
from workbench.profiling.resume import PointKeys, Resumed
from workbench.profiling.settings import by_model
from workbench.profiling.sweep_result import Progress, SweepResult, write_point
from workbench.profiling.target import Configurable
from workbench.profiling.verdict import MeasureOptions
from workbench.records.runs import Run, RunStore

Grid = Mapping[str, Sequence[Any]]
"""Values by path, such as ``{"dynamic_batching.max_queue_delay_microseconds": [0, 500]}``; None removes the field."""

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
    valid is kept: what disturbed it once (another program) may be over.
    """

    title: str = ""
    kind: str = "sweep"
    keep_samples: bool = False
    resume: str | bool = ""
    remeasure: bool = False
    content: str = ""
    attempts: int = 2
    measure: MeasureOptions = field(default_factory=MeasureOptions)
    clock: Clock = monotonic_ns


def combinations(grid: Grid) -> list[dict[str, Any]]:
    """Every combination of a grid's values; one empty combination for an empty grid.

    Raises:
        InvalidRequest: a path without values.
    """
    if not isinstance(grid, Mapping):
        raise InvalidRequest(
            f"a grid maps paths to lists of values, got {grid!r:.80}", hint='{"max_batch_size": [4, 8]}'
        )
    lists: dict[str, list[Any]] = {}
    for path, values in grid.items():
        given: Any = values
        if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
            raise InvalidRequest(f"the grid needs a list of values for '{path}', got {given!r}")
        lists[path] = list(given)
        if not lists[path]:
            raise InvalidRequest(f"the grid needs a list of values for '{path}', got an empty one")
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


class Sweeper:
    """One sweep, run once by ``run``; ``sweep`` and ``SweepJob`` are the usual ways to it."""

    def __init__(
        self,
        target: Configurable,
        model: str,
        grid: Grid,
        loads: Sequence[Load],
        *,
        inputs: Inputs = None,
        store: RunStore | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        stop: threading.Event | None = None,
        options: SweepOptions | None = None,
    ) -> None:
        if not loads:
            raise InvalidRequest("a sweep needs at least one load")
        self._target = target
        self._model = model
        self._plan = combinations(grid)
        self._grid = {path: list(values) for path, values in grid.items()}
        self._swept = list(by_model(self._grid, model))
        self._loads = list(loads)
        self._inputs = inputs
        self._store = store
        self._on_progress = on_progress
        self._stop = stop if stop is not None else threading.Event()
        self._options = options if options is not None else SweepOptions()
        self._began = 0
        self._keys = PointKeys(target, model, inputs, self._options.content)
        self._resumed = Resumed()
        self._held: list[str] = []
        self._unstored = ""
        self.points: list[Point] = []

    @property
    def total(self) -> int:
        """How many points there will be."""
        return len(self._plan) * len(self._loads)

    def run(self) -> SweepResult:
        """Measures every point. Ctrl-C and ``stop`` end it early and keep what was measured.

        The original configuration is applied again in any case, also when measuring raises.

        Raises:
            NotReady: the model is being swept by somebody else, or the run that is to be resumed is being written.
        """
        self._began = self._options.clock()
        stopped, error, restored, run = False, "", True, None
        try:
            self._hold()
            run = self._open_run()
            self._tell(None)
            with Measurer(
                self._target, self._model, inputs=self._inputs, stop=self._stop, options=self._options.measure
            ) as measurer:
                error = self._measure_all(measurer, run)
            stopped = self._stop.is_set()
        except KeyboardInterrupt:
            stopped = True
        finally:
            complaint = self._restore()
            if complaint:
                restored, error = False, f"{error}; {complaint}" if error else complaint
            result = SweepResult(
                self._model, self._grid, tuple(self.points), self.total, stopped, restored, error, run.id if run else ""
            )
            if run is not None:
                self._close_run(run, result)
            if self._unstored:
                text = f"{result.error}; {self._unstored}" if result.error else self._unstored
                result = replace(result, error=text)
        return result

    def _close_run(self, run: Run, result: SweepResult) -> None:
        self._store_safely(lambda: run.set_meta(restored=result.restored, error=result.error))
        self._store_safely(lambda: run.finish(result.status))
        run.close()

    def _hold(self) -> None:
        """Takes the models at the server, where it can: also the one that is only measured."""
        hold = getattr(self._target, "hold", None)
        if hold is not None:
            models = list(dict.fromkeys((*self._swept, self._model)))
            hold(models, f"sweep of '{self._model}'")
            self._held = models

    def _lost(self) -> str:
        """Why the server has taken a model back, if it has: what is measured from then on is of no configuration."""
        tell = getattr(self._target, "lost", None)
        return str(tell()) if tell is not None else ""

    def _store_safely(self, write: Callable[[], None]) -> None:
        """A store that takes no more (a full disk, say) is told of in the result: what is measured is not lost."""
        if self._unstored:
            return
        try:
            write()
        except WorkbenchError as error:
            self._unstored = f"from point {len(self.points)} on nothing was stored: {error.message} ({error.where})"

    def _measure_all(self, measurer: Measurer, run: Run | None) -> str:
        """Gives what broke the sweep off, or nothing."""
        unreachable = 0
        for settings in self._plan:
            refused = ""
            try:
                self._apply(settings)
            except ConnectionFailed as error:
                return error.message
            except WorkbenchError as error:
                if self._lost():
                    return self._lost()
                refused = f"the configuration was refused: {error.message}"
            for load in self._loads:
                if self._stop.is_set():
                    return ""
                if not refused and self._reuse(load, settings):
                    continue
                measured: Measured | None = None
                if refused:
                    point = failed_point(self._model, load, settings, refused)
                else:
                    try:
                        steps = self._step_configs()
                        measured = self._run(measurer, load, settings)
                        point, unreachable = self._completed(measured.point, steps), 0
                    except Exception as error:
                        point = failed_point(self._model, load, settings, _text(error))
                        unreachable = unreachable + 1 if isinstance(error, ConnectionFailed) else 0
                    if lost := self._lost():
                        self._keep(failed_point(self._model, load, settings, lost), run, None)
                        return lost
                self._keep(point, run, measured)
                if unreachable >= 2:
                    return point.error
        return ""

    def _run(self, measurer: Measurer, load: Load, settings: Mapping[str, Any]) -> Measured:
        """Measures a point, once more when it is not valid; the note says why the first attempt was not kept."""
        measured = measurer.run(load, settings)
        for _ in range(self._options.attempts - 1):
            if measured.point.valid or self._stop.is_set():
                break
            first = "; ".join(measured.point.reasons)
            measured = measurer.run(load, settings)
            note = f"measured again, the attempt before was not valid: {first}"
            measured = replace(measured, point=replace(measured.point, notes=(*measured.point.notes, note)))
        return measured

    def _apply(self, settings: Mapping[str, Any]) -> None:
        for model, own in by_model(settings, self._model).items():
            self._target.configure(model, edits_of(own))

    def _step_configs(self) -> dict[str, Mapping[str, Any]]:
        """What is loaded of the steps that are swept."""
        steps = [model for model in self._swept if model != self._model]
        return {model: self._target.model_config(model) for model in steps}

    def _keep(self, point: Point, run: Run | None, measured: Measured | None) -> None:
        self.points.append(point)
        if run is not None:
            self._store_safely(lambda: self._write(point, run, measured))
        self._tell(point)

    def _completed(self, point: Point, steps: Mapping[str, Mapping[str, Any]]) -> Point:
        """A measured point with the steps' configurations, and with a note where the server read a value otherwise."""
        notes = list(point.notes)
        for model, own in by_model(point.settings, self._model).items():
            notes += read_back_notes(own, steps.get(model, point.config))
        return replace(point, step_configs=steps, notes=tuple(notes))

    def _write(self, point: Point, run: Run, measured: Measured | None) -> None:
        whole = measured is not None and not measured.samples.stopped
        key = self._keys.key(point.load, point.config, point.step_configs) if whole and not point.error else ""
        number = write_point(run, point, key, self._resumed.outdated(point))
        if measured is not None and self._options.keep_samples:
            streamed = ("response_of", "response_at") if point.load.streaming else ()
            stamps = ("scheduled", "sent", "done", "status", *streamed)
            run.add_samples(number, {name: getattr(measured.samples, name) for name in stamps})
            if measured.records is not None:
                run.add_records(number, measured.records)

    def _reuse(self, load: Load, settings: Mapping[str, Any]) -> bool:
        """Takes a point of the run that is resumed, if it has this one."""
        if not self._resumed:
            return False
        try:
            if not self._keys.comparable():
                return False
            key = self._keys.key(load, self._target.model_config(self._model), self._step_configs())
        except WorkbenchError:
            return False  # measuring it will say why
        point = self._resumed.find(key)
        if point is None:
            return False
        self.points.append(replace(point, settings=dict(settings)))
        self._tell(self.points[-1])
        return True

    def _restore(self) -> str:
        """Applies the original configuration; on a thread, so that another Ctrl-C does not keep it from that."""
        models = self._held or self._swept
        if not models:
            return ""
        complaints: list[str] = []

        def failed(index: int, error: Exception) -> None:
            of = "" if models[index] == self._model else f" of '{models[index]}'"
            complaints.append(f"the configuration{of} could not be restored: {_text(error)}")

        do_all([partial(self._target.restore, model) for model in models], failed)
        return "; ".join(complaints)

    def _tell(self, point: Point | None) -> None:
        if self._on_progress is None:
            return
        done, left = len(self.points), self.total - len(self.points)
        if done:
            each = (self._options.clock() - self._began) / 1e9 / done
            eta = each * left
        else:
            eta = sum(load.warmup_s + load.duration_s + _OVERHEAD_S for load in self._loads) * len(self._plan)
        self._on_progress(Progress(done, self.total, eta, point))

    def _open_run(self) -> Run | None:
        if self._store is None:
            return None
        loads = [load.to_json() for load in self._loads]
        wanted = self._options.resume
        if wanted is True:
            wanted = self._store.newest(self._options.kind, model=self._model, grid=self._grid, loads=loads) or ""
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
            url=self._target.url,
            grid=self._grid,
            loads=loads,
            total=self.total,
            seed=self._loads[0].seed,
        )


def _text(error: Exception) -> str:
    return error.message if isinstance(error, WorkbenchError) else f"{type(error).__name__}: {error}"


def sweep(
    target: Configurable,
    model: str,
    grid: Grid,
    loads: Sequence[Load],
    *,
    inputs: Inputs = None,
    store: RunStore | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
    options: SweepOptions | None = None,
) -> SweepResult:
    """Measures a grid of configurations × loads; each configuration is applied live and read back.

    All configurations see the same arrivals (the load's seed). A point that fails is a row with its reason; Ctrl-C or
    ``stop`` end the sweep and keep what was measured; the original configuration is applied again whatever happens.
    With the loads' defaults a point takes about 3.5 s, so 12 points take about 40 s.

    Args:
        target: the server.
        model: its model.
        grid: values by path; an empty grid measures the loads under the configuration that is applied. Under an
            ensemble, values by ``STEP:PATH``, such as ``{"tokenizer:instance_group[0].count": [1, 2]}``.
        loads: ``[Load.closed(1), Load.closed(8), Load.open(200)]``.
        inputs: what to send; None takes the model's example inputs.
        store: where to write the points, each as soon as it is measured.
        on_progress: called before the first point and after each one, on this thread.
        stop: once set, ends the sweep at once.
        options: title, what to keep, how strictly points are judged.

    Raises:
        InvalidRequest: a grid or loads that make no sense.
        NotReady: the model is being swept by somebody else, or the run that is to be resumed is being written.
    """
    return Sweeper(
        target, model, grid, loads, inputs=inputs, store=store, on_progress=on_progress, stop=stop, options=options
    ).run()
