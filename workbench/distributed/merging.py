"""Several runs of parts of one sweep, put together into one run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import InvalidRequest, NotFound
from workbench.profiling.device import device_of
from workbench.profiling.load import Load
from workbench.profiling.point import Point
from workbench.profiling.resume import place_of
from workbench.profiling.sweep_result import write_point
from workbench.profiling.sweeping import items_of
from workbench.records.runs import Run, RunStore


@dataclass(frozen=True, slots=True)
class Merged:
    """The run that was made: its ``points``, how many of the sweep are ``missing``, and what to know of it."""

    run_id: str
    points: int
    missing: int
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        lines = [f"run {self.run_id}: {self.points} points" + (f", {self.missing} missing" if self.missing else "")]
        return "\n".join([*lines, *(f"  ! {note}" for note in self.notes)])


@dataclass(frozen=True, slots=True)
class _Found:
    run: Run
    number: int
    key: str
    point: Point

    @property
    def rank(self) -> tuple[bool, bool, str]:
        """What of two measurements of one point is kept: the whole one, then the valid one; else the later."""
        return bool(self.key), self.point.valid, self.point.started


def merge_runs(store: RunStore, runs: Sequence[str | Path], *, title: str = "") -> Merged:
    """Puts runs of one sweep together: each point once, in the order of the sweep, with its key, stamps and records.

    The result is a run as the whole sweep would have left it: ``resume`` goes on with it where points are missing.
    Points of different kinds of device are all kept, and never chosen from together.

    Args:
        store: where the runs are, and where the new one goes.
        runs: ids, beginnings of them, or files.
        title: of the new run.

    Raises:
        InvalidRequest: fewer than two runs; they are not of one sweep (model, grid, loads), or one point was measured
            with other files, inputs or configuration in two of them.
        NotFound: there is no such run.
        NotReady: one is being written.
    """
    paths = list(dict.fromkeys(store.path(run).resolve() for run in runs))
    if len(paths) < 2:
        raise InvalidRequest("merging takes at least two runs", hint="workbench runs merge RUN RUN ...")
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(contextlib.closing(Run(path))) for path in paths]
        for run in opened:
            run.check_unused()
        meta = _one_sweep(opened)
        found = _each_once(opened)
        order, missing = _in_order(meta, found)
        made = store.create(
            "sweep",
            model=str(meta.get("model", "")),
            title=title or str(meta.get("title", "")),
            grid=meta["grid"],
            loads=meta["loads"],
            total=len(order) + missing,
            seed=meta.get("seed"),
            parts=[run.id for run in opened],
        )
        with made:
            made.set_environment(opened[0].environment())
            for each in order:
                _copy(each, made)
            made.finish("stopped" if missing else "done")
            return Merged(made.id, len(order), missing, tuple(_notes(order, missing)))


def _one_sweep(opened: Sequence[Run]) -> dict[str, Any]:
    first = opened[0].meta
    if "grid" not in first or "loads" not in first:
        raise InvalidRequest(f"run {opened[0].id} is no sweep", where=str(opened[0].path))
    for run in opened[1:]:
        meta = run.meta
        other = [name for name in ("model", "grid", "loads") if meta.get(name) != first.get(name)]
        if other:
            raise InvalidRequest(
                f"runs {opened[0].id} and {run.id} are not of one sweep: they differ in {' and '.join(other)}",
                hint="`workbench runs diff` puts two runs side by side",
            )
    return first


def _each_once(opened: Sequence[Run]) -> dict[bytes, dict[str, _Found]]:
    """The best measurement of each place, by the kind of device."""
    places: dict[bytes, dict[str, _Found]] = {}
    for run in opened:
        for stored in run.points():
            point = Point.from_json(stored)
            found = _Found(run, int(stored["id"]), str(stored["key"]), point)
            here = places.setdefault(place_of(point.settings, point.load), {})
            device = "" if point.error else device_of(point)
            before = here.get(device)
            if before is not None and before.key and found.key and before.key != found.key:
                raise InvalidRequest(
                    f"{point.load.label} with {dict(point.settings) or 'the configuration as it is'} was measured with "
                    "other files, inputs or configuration in two of the runs: they are not of one sweep",
                    where=f"{before.run.id} and {run.id}",
                )
            if before is None or found.rank >= before.rank:
                here[device] = found
    for here in places.values():
        if len(here) > 1:
            here.pop("", None)  # it failed somewhere, and was measured elsewhere
    return places


def _in_order(meta: Mapping[str, Any], found: Mapping[bytes, Mapping[str, _Found]]) -> tuple[list[_Found], int]:
    loads = [Load.from_json(load) for load in meta["loads"]]
    planned = [place_of(item.settings, item.load) for item in items_of(meta["grid"], loads)]
    known = [place for place in planned if place in found]
    others = [place for place in found if place not in set(planned)]
    return [each for place in (*known, *others) for each in found[place].values()], len(planned) - len(known)


def _copy(found: _Found, made: Run) -> None:
    number = write_point(made, found.point, found.key)
    with contextlib.suppress(NotFound):  # none were kept
        made.add_samples(number, found.run.samples(found.number))
    with contextlib.suppress(NotFound):
        made.add_records(number, found.run.records(found.number))


def _notes(order: Sequence[_Found], missing: int) -> list[str]:
    kinds = sorted({device_of(each.point) for each in order} - {""})
    notes = []
    if len(kinds) > 1:
        notes.append(f"measured on {len(kinds)} kinds of device, which are not compared: {'; '.join(kinds)}")
    failed = sum(bool(each.point.error) for each in order)
    if failed:
        notes.append(f"{failed} points failed")
    if missing:
        notes.append(f"{missing} points are in none of the runs: run their shards again, or sweep with --resume")
    return notes
