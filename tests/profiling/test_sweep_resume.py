"""What is the same point and what is not: files, steps, inputs, place; a run goes on with what it has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scripted_target import INPUTS, ScriptedServer, ScriptedTarget

from workbench.profiling import Load, Progress, SweepOptions, SweepResult, sweep
from workbench.records import RunStore

LOAD = Load.closed(1, duration_s=0.1, warmup_s=0.01, min_requests=0)


class Pipeline(ScriptedTarget):
    """A model that is made of another one, ``step``, whose configuration is in ``steps``."""

    steps: Mapping[str, Any] = {"max_batch_size": 2}

    def composing(self, model: str) -> list[str]:
        return ["step"]

    def model_config(self, model: str) -> Mapping[str, Any]:
        return self.steps if model == "step" else super().model_config(model)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    for name in ("m", "step"):
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "weights").write_text("one")
    return root


@pytest.fixture
def server() -> Any:
    with ScriptedServer(lambda n: 0.001) as scripted:
        yield scripted


def measured(target: ScriptedTarget, store: RunStore, inputs: Any = INPUTS, **options: Any) -> tuple[str, float]:
    """One point, resumed where it can be: its run, and a figure that is drawn anew at each measurement."""
    settings = SweepOptions(resume=True, attempts=1, **options)
    result = sweep(target, "m", {"max_batch_size": [4]}, [LOAD], inputs=inputs, store=store, options=settings)
    (point,) = result
    assert not point.error
    return result.run_id, point.throughput


def test_a_step_with_other_files_or_another_configuration_makes_another_point(
    server: ScriptedServer, files: Path, tmp_path: Path
) -> None:
    store = RunStore(tmp_path / "runs")
    target = Pipeline(server, repositories=[files])
    first = measured(target, store)
    assert measured(target, store) == first
    (files / "step" / "1" / "weights").write_text("two")
    second = measured(target, store)
    assert second[0] == first[0], "the same run"
    assert second[1] != first[1]
    target.steps = {"max_batch_size": 16}  # not swept, but what the model is made of
    third = measured(target, store)
    assert third[1] != second[1]
    assert measured(target, store) == third
    with store.open(first[0]) as run:
        assert [row["throughput"] for row in run.points()] == [third[1]], "nothing outdated is left in the run"


def test_a_file_of_inputs_counts_by_its_content(server: ScriptedServer, files: Path, tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    target = ScriptedTarget(server, repositories=[files])
    sent = tmp_path / "inputs.json"
    sent.write_text(json.dumps({"data": [{"X": [1.0, 2.0, 3.0, 4.0]}]}))
    first = measured(target, store, str(sent))
    copy = tmp_path / "copy.json"
    copy.write_bytes(sent.read_bytes())
    assert measured(target, store, copy) == first
    sent.write_text(json.dumps({"data": [{"X": [1.0, 2.0, 3.0, 5.0]}]}))
    assert measured(target, store, str(sent)) != first


def test_files_elsewhere_are_what_they_are_said_to_be(server: ScriptedServer, tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    target = ScriptedTarget(server)
    unknown = measured(target, store)
    assert measured(target, store)[1] != unknown[1]
    first = measured(target, store, content="v1")
    assert measured(target, store, content="v1") == first
    assert measured(target, store, content="v2")[1] != first[1]


def test_another_grid_or_load_begins_another_run(server: ScriptedServer, files: Path, tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    target = ScriptedTarget(server, repositories=[files])
    run, _ = measured(target, store)
    options = SweepOptions(resume=True)
    grid = {"max_batch_size": [4, 8]}
    wider = sweep(target, "m", grid, [LOAD], inputs=INPUTS, store=store, options=options)
    assert wider.run_id != run
    named = sweep(target, "m", grid, [LOAD], inputs=INPUTS, store=store, options=SweepOptions(resume=run))
    assert named.run_id == run, "a run that is named is gone on with, whatever the grid"
    assert len(store.list()) == 2


def test_what_failed_or_was_cut_short_is_measured_and_takes_its_place(
    server: ScriptedServer, files: Path, tmp_path: Path
) -> None:
    import threading

    store = RunStore(tmp_path / "runs")
    target = ScriptedTarget(server, repositories=[files])
    target.refuse = 7
    stop = threading.Event()
    long = Load.closed(1, duration_s=30, max_duration_s=30, warmup_s=0, min_requests=0)

    def told(progress: Progress) -> None:
        if progress.done == 1:
            threading.Timer(0.3, stop.set).start()  # in the middle of the next point

    grid = {"max_batch_size": [7, 8, 9]}
    first = sweep(target, "m", grid, [long], inputs=INPUTS, store=store, stop=stop, on_progress=told)
    assert [bool(point.error) for point in first] == [True, False]
    target.refuse = None
    stop.clear()

    def end(progress: Progress) -> None:
        if progress.done < 3:
            threading.Timer(0.3, stop.set).start()

    again = sweep(
        target, "m", grid, [long], inputs=INPUTS, store=store, stop=stop, on_progress=end,
        options=SweepOptions(resume=first.run_id),
    )  # fmt: skip
    assert isinstance(again, SweepResult)
    assert again[0].settings == {"max_batch_size": 7}
    assert not again[0].error
    with store.open(first.run_id) as run:
        rows = [(row["settings"]["max_batch_size"], bool(row["error"])) for row in run.points()]
    assert sorted(rows) == [(7, False), (8, False)], "one row a place"


def test_the_time_left_of_a_resumed_sweep_is_that_of_the_points_to_measure(
    server: ScriptedServer, files: Path, tmp_path: Path
) -> None:
    store = RunStore(tmp_path / "runs")
    target = ScriptedTarget(server, repositories=[files])
    first = sweep(target, "m", {"max_batch_size": [4, 8]}, [LOAD], inputs=INPUTS, store=store)
    heard: list[Progress] = []
    options = SweepOptions(resume=first.run_id)
    grid = {"max_batch_size": [4, 8, 16, 32]}
    sweep(target, "m", grid, [LOAD], inputs=INPUTS, store=store, options=options, on_progress=heard.append)
    assert [progress.done for progress in heard] == [0, 1, 2, 3, 4]
    assert heard[2].eta_s > 2 * LOAD.duration_s, "two were there already, two take their time"
    assert heard[-1].eta_s == 0


def test_a_model_that_somebody_loads_between_two_points_is_set_again(server: ScriptedServer) -> None:
    target = ScriptedTarget(server)
    before = server.config

    def told(progress: Progress) -> None:
        if progress.done == 1:  # somebody loads it as it was: both points of a configuration must have it
            server.config = before
            target.reloaded()

    result = sweep(target, "m", {"max_batch_size": [4]}, [LOAD, LOAD], inputs=INPUTS, on_progress=told)
    assert [point.config["max_batch_size"] for point in result] == [4, 4]
