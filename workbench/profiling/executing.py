"""Where the points of a sweep are measured: work items, what comes of each, and the executor at one server.

An item is one configuration under one load. An executor takes the items of a sweep in their order and delivers an
outcome for each, in whatever order; ``LocalExecutor`` measures them one after the other at the server that it is given,
those of ``workbench.distributed`` on other machines. Items of one configuration stand beside each other, so that it is
applied once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from workbench.errors import ConnectionFailed, WorkbenchError
from workbench.profiling.generators import Place
from workbench.profiling.load import Load
from workbench.profiling.measuring import Measured, Measurer, failed_point
from workbench.profiling.paths import read_back_differences
from workbench.profiling.point import Point, edits_of
from workbench.profiling.requests import Inputs
from workbench.profiling.resume import PointKeys
from workbench.profiling.samples import Samples
from workbench.profiling.settings import by_model
from workbench.profiling.target import Configurable, lost_of, restore_all
from workbench.profiling.verdict import MeasureOptions
from workbench.records import RecordColumns


@dataclass(frozen=True, slots=True)
class Item:
    """One point to measure: its place in the sweep (from 0), the values to apply by path, and the load."""

    number: int
    settings: Mapping[str, Any]
    load: Load


@dataclass(frozen=True, slots=True)
class Work:
    """What all items of a sweep share; it can be pickled where ``inputs`` can.

    ``swept`` are the models of which a configuration changes. ``inputs``, ``content``, ``attempts`` and ``measure`` are
    as in ``SweepOptions``. ``keyed`` asks for the key of each point, ``keep_samples`` for its stamps and records.
    """

    model: str
    swept: tuple[str, ...] = ()
    inputs: Inputs = None
    content: str = ""
    attempts: int = 2
    keyed: bool = True
    keep_samples: bool = False
    measure: MeasureOptions = field(default_factory=MeasureOptions)

    @property
    def models(self) -> list[str]:
        """The models that nobody else may change meanwhile: those that are swept, and the one that is measured."""
        return list(dict.fromkeys((*self.swept, self.model)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an item.

    ``point`` is None where ``key`` was among the known ones: nothing was measured then. A point that failed or was cut
    short has no key. ``samples`` and ``records`` are there where they are to be kept.
    """

    item: Item
    point: Point | None
    key: str = ""
    samples: Samples | None = None
    records: RecordColumns | None = None


Deliver = Callable[[Outcome], None]


class Executor(Protocol):
    """Runs the items of one sweep. ``open``, ``run`` and ``close`` are called once each, ``close`` in any case."""

    @property
    def where(self) -> str:
        """Where it measures: an address, or words."""

    def open(self, work: Work, stop: threading.Event) -> None:
        """Takes the models, and whatever else is needed, before anything is measured.

        Args:
            work: what all items share.
            stop: once set, ``run`` ends soon and delivers what it has.

        Raises:
            NotReady: somebody else has one of them.
        """

    def run(self, items: Sequence[Item], known: Collection[str], deliver: Deliver) -> str:
        """Measures and delivers; gives what broke it off, or nothing.

        Args:
            items: in their order.
            known: keys of points that are there already.
            deliver: called on this thread with each outcome; not twice with one item.
        """

    def close(self) -> str:
        """Puts back what was changed; gives a complaint where that cannot be done, or nothing."""


class Bench:
    """Measures items at one target, one after the other; a configuration stays until an item has another one.

    Args:
        target: the server.
        work: what all items share.
        known: keys of points that are there already.
        stop: once set, a measurement ends at once and gives what it has.
        place: where the load comes from; None: from this machine.
    """

    def __init__(
        self,
        target: Configurable,
        work: Work,
        known: Collection[str],
        stop: threading.Event,
        place: Place | None = None,
    ) -> None:
        self._target = target
        self._work = work
        self.known = known
        self._stop = stop
        self._keys = PointKeys(target, work.model, work.inputs, work.content, sent_from=place.where if place else "")
        self._measurer = Measurer(target, work.model, inputs=work.inputs, stop=stop, options=work.measure, place=place)
        self._applied: Mapping[str, Any] | None = None
        self._epochs: Mapping[str, int | None] = {}
        self._refused = ""
        self._unreachable = 0
        self.gone = ""
        """Why the server was not there to the end of the item that was measured last; empty where it was."""
        self.broken = ""
        """Why nothing more can be measured here; empty while all is well."""

    def measure(self, item: Item) -> Outcome | None:
        """Applies the item's configuration, where another one is applied, and measures its load.

        None where it could not be tried; ``broken`` then says why. A point that fails is an outcome with its reason.
        """
        self.gone = ""
        if not self._apply(item.settings):
            return None
        if self._refused:
            return self._failed(item, self._refused)
        try:
            key = self._known_key(item)
            if key:
                return Outcome(item, None, key)
            outcome = self._measured(item)
        except Exception as error:
            outcome = self._failed(item, text_of(error))
            self.gone = text_of(error) if isinstance(error, ConnectionFailed) else ""
        self._unreachable = self._unreachable + 1 if self.gone else 0
        if lost := lost_of(self._target):
            self.broken = lost
            return outcome if self.gone else self._failed(item, lost)
        if self._unreachable >= 2:
            self.broken = self.gone
        return outcome

    def close(self) -> None:
        """Ends the generator's process; the configuration stays as it is."""
        self._measurer.close()

    def _apply(self, settings: Mapping[str, Any]) -> bool:
        # Somebody may have loaded a model anew since: then the settings are not in it any more.
        if self._applied is not None and self._applied == settings and self._epochs_now(settings) == self._epochs:
            return True
        self._applied, self._refused = dict(settings), ""
        try:
            for model, own in by_model(settings, self._work.model).items():
                self._target.configure(model, edits_of(own))
        except ConnectionFailed as error:
            self.broken = error.message
            return False
        except WorkbenchError as error:
            if lost := lost_of(self._target):
                self.broken = lost
                return False
            self._refused = f"the configuration was refused: {error.message}"
        self._epochs = self._epochs_now(settings)
        return True

    def _epochs_now(self, settings: Mapping[str, Any]) -> Mapping[str, int | None]:
        """The configurations that the swept models have now, by their numbers."""
        try:
            return {model: self._target.epoch(model) for model in by_model(settings, self._work.model)}
        except WorkbenchError:
            return self._epochs  # measuring will say why

    def _known_key(self, item: Item) -> str:
        """The item's key, if it is among the known ones."""
        if not self.known:
            return ""
        try:
            if not self._keys.comparable():
                return ""
            config = self._target.model_config(self._work.model)
            key = self._keys.key(item.load, config, self._step_configs())
        except WorkbenchError:
            return ""  # measuring it will say why
        return key if key in self.known else ""

    def _measured(self, item: Item) -> Outcome:
        measured = self._run(item)
        point = measured.point
        self.gone = measured.lost
        whole = self._work.keyed and not measured.samples.stopped and not measured.lost
        whole = whole and not self._read_otherwise(point)  # else it has the key of a point of other settings
        key = self._keys.key(point.load, point.config, point.step_configs) if whole else ""
        if not self._work.keep_samples:
            return Outcome(item, point, key)
        return Outcome(item, point, key, measured.samples, measured.records)

    def _run(self, item: Item) -> Measured:
        """Measures a point, once more when it is not valid; the note says why the first attempt was not kept."""
        measured = self._attempt(item)
        for _ in range(self._work.attempts - 1):
            if measured.point.valid or measured.lost or self._stop.is_set() or lost_of(self._target):
                break
            first = "; ".join(measured.point.reasons)
            # What disturbed it may have been somebody's load, after which other values are in force.
            self._applied = None
            if not self._apply(item.settings) or self._refused:
                return _noted(measured, f"not measured again: {self.broken or self._refused}")
            measured = self._attempt(item)
            measured = _noted(measured, f"measured again, the attempt before was not valid: {first}")
        return measured

    def _attempt(self, item: Item) -> Measured:
        """A measurement with the steps' configurations; not valid where the server reads a value otherwise: it is of
        another configuration then than the one that the point stands for."""
        steps = self._step_configs()
        measured = self._measurer.run(item.load, item.settings)
        point = replace(measured.point, step_configs=steps)
        if otherwise := self._read_otherwise(point):
            point = replace(point, valid=False, stable=False, reasons=(*otherwise, *point.reasons))
        return replace(measured, point=point)

    @staticmethod
    def _read_otherwise(point: Point) -> list[str]:
        """Which values of a point's settings the server read otherwise."""
        own = by_model(point.settings, point.model).items()
        return [
            text
            for model, settings in own
            for text in read_back_differences(settings, point.step_configs.get(model, point.config))
        ]

    def _step_configs(self) -> dict[str, Mapping[str, Any]]:
        """What is loaded of the steps that are swept."""
        steps = [model for model in self._work.swept if model != self._work.model]
        return {model: self._target.model_config(model) for model in steps}

    def _failed(self, item: Item, why: str) -> Outcome:
        return Outcome(item, failed_point(self._work.model, item.load, item.settings, why))


class LocalExecutor:
    """Measures the items of a sweep at one server, which is configured live and restored at the end.

    Args:
        target: the server.
        place: where the load comes from; None: from this machine.
    """

    def __init__(self, target: Configurable, place: Place | None = None) -> None:
        self._target = target
        self._place = place
        self._work: Work | None = None
        self._stop = threading.Event()
        self._held: list[str] = []

    @property
    def where(self) -> str:
        """The server's address."""
        return self._target.url

    def open(self, work: Work, stop: threading.Event) -> None:
        """Takes the models at the server, where it can: also the one that is only measured.

        Raises:
            NotReady: somebody else has one of them.
            WorkbenchError: the place that the load is to come from cannot be reached.
        """
        self._work, self._stop = work, stop
        if self._place is not None:
            self._place.open(stop)
        hold = getattr(self._target, "hold", None)
        if hold is not None:
            hold(work.models, f"sweep of '{work.model}'")
            self._held = work.models

    def run(self, items: Sequence[Item], known: Collection[str], deliver: Deliver) -> str:
        """Measures the items in their order; see ``Executor``."""
        assert self._work is not None, "open comes first"
        bench = Bench(self._target, self._work, known, self._stop, self._place)
        try:
            for item in items:
                if self._stop.is_set():
                    break
                outcome = bench.measure(item)
                if outcome is not None:
                    deliver(outcome)
                if bench.broken:
                    break
        finally:
            bench.close()
        return bench.broken

    def close(self) -> str:
        """Has the original configuration applied; on a thread, so that another Ctrl-C does not keep it from that."""
        try:
            return self._restored()
        finally:
            if self._place is not None:
                self._place.close()

    def _restored(self) -> str:
        models = self._held or list(self._work.swept if self._work is not None else ())
        complaints: list[str] = []
        if self._work is None or not models:
            return ""
        measured = self._work.model

        def failed(index: int, error: Exception) -> None:
            of = "" if models[index] == measured else f" of '{models[index]}'"
            complaints.append(f"the configuration{of} could not be restored: {text_of(error)}")

        restore_all(self._target, models, failed)
        return "; ".join(complaints)


def _noted(measured: Measured, note: str) -> Measured:
    return replace(measured, point=replace(measured.point, notes=(*measured.point.notes, note)))


def text_of(error: Exception) -> str:
    """What an error says, in one line where it can."""
    return error.message if isinstance(error, WorkbenchError) else f"{type(error).__name__}: {error}"
