"""Measuring from the session: the verbs profile, sweep and export, and what is put back afterwards."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ensembles import chain_config
from onnx_models import add_model

import workbench as wb
from workbench.clock import sleep
from workbench.errors import InvalidRequest, NotFound, NotReady, WorkbenchError
from workbench.profiling import Load, Point, SweepResult
from workbench.session.kernel import Engine
from workbench.session.loads import loads_of
from workbench.session.measuring import SessionTarget
from workbench.session.remote import TritonServer, WorkbenchServer
from workbench.session.server import Server

DELAY = "dynamic_batching.max_queue_delay_microseconds"
QUICK: dict[str, Any] = {"duration_s": 0.3, "warmup_s": 0.05, "min_requests": 5}
ROW = [[1.0, 2.0, 3.0, 4.0]]
TWICE = chain_config("twice", "double", "double")


def test_profile_measures_one_point_in_every_place(anywhere: Server) -> None:
    point = anywhere.profile("double", concurrency=2, **QUICK)
    assert point.failed == 0
    assert point.throughput > 50
    assert 0 < point.p50_ms <= point.p99_ms
    assert point.config["max_batch_size"] == 8


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        pytest.param({"concurrency": [1, 2]}, "profile measures one load point", id="two points"),
        pytest.param({"concurrency": 1, "rate": 5}, "profile measures one load point", id="two kinds"),
        pytest.param({"concurrency": 1, "duration": 5}, "unknown option duration", id="option"),
        pytest.param({"concurrency": 0}, "concurrency must be a whole number from 1 to", id="value"),
        pytest.param({"concurrency": 10**9}, "concurrency must be a whole number from 1 to", id="too many"),
        pytest.param({"concurrency": 1.5}, "concurrency must be whole numbers", id="a part of a client"),
        pytest.param({"concurrency": "8"}, "concurrency must be whole numbers", id="text"),
        pytest.param({"rate": ["fast"]}, "rate must be numbers", id="text in a list"),
        pytest.param({"rate": {"a": 1}}, "rate must be numbers", id="mapping"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(kernel: Engine, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        kernel.profile("double", **arguments)


@pytest.mark.parametrize(
    ("model", "grid", "text"),
    [
        pytest.param("double", {"dynamic_batching.delay": [1]}, 'no field named "delay"', id="path"),
        pytest.param("double", {"max_batch_size": 8}, "needs a list of values for 'max_batch_size'", id="no list"),
        pytest.param("double", [8], "a grid maps paths to lists of values", id="no grid"),
        pytest.param("nope", {"max_batch_size": [8]}, "there are broken, double, spare", id="model"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused_before_anything_is_measured(
    server: Server, model: str, grid: dict[str, Any], text: str
) -> None:
    before = server.config("double")
    with pytest.raises(WorkbenchError) as caught:
        server.sweep(model, grid, concurrency=1, store=None, show_progress=False)
    assert text in str(caught.value)
    assert server.config("double") == before


def test_a_sweep_may_set_what_is_not_written_yet(kernel: Engine) -> None:
    kernel.revert("double")
    result = kernel.sweep("double", {"version_policy.latest.num_versions": [1]}, concurrency=1, store=None, **QUICK)
    assert isinstance(result, SweepResult)
    assert [point.error for point in result] == [""]


def test_a_measurement_in_which_the_servers_loop_stood_still_is_not_valid(kernel: Engine) -> None:
    loop = kernel.engine.loop
    stop = threading.Event()

    def hinder() -> None:
        while not stop.wait(0.15):
            loop.call_soon_threadsafe(sleep, 0.1)

    thread = threading.Thread(target=hinder)
    thread.start()
    try:
        point = kernel.profile("double", concurrency=1, duration_s=0.8, warmup_s=0.05)
    finally:
        stop.set()
        thread.join()
    assert not point.valid
    assert any("stood still" in reason for reason in point.reasons), point.reasons


def test_loads_of_lists_and_numbers() -> None:
    loads = loads_of([1, 8], 200, {"seed": 7, "distribution": "constant"})
    assert [load.label for load in loads] == ["concurrency 1", "concurrency 8", "200/s constant"]
    assert {load.seed for load in loads} == {7}


def test_a_sweep_applies_each_configuration_and_puts_the_first_one_back(server: Server, tmp_path: Path) -> None:
    server.configure("double", f"{DELAY}=123")  # applied, not saved: that is what must come back
    before = server.config("double")
    told = []
    result = server.sweep(
        "double",
        {DELAY: [0, 400]},
        concurrency=1,
        store=tmp_path,
        on_progress=told.append,
        show_progress=False,
        **QUICK,
    )
    assert isinstance(result, SweepResult)
    assert [point.config["dynamic_batching"]["max_queue_delay_microseconds"] for point in result] == [0, 400]
    assert [each.done for each in told] == [0, 1, 2]
    assert result.restored
    assert list(tmp_path.iterdir())
    after = server.config("double")
    assert (after.text, after.dirty) == (before.text, True)
    assert after.epoch > before.epoch
    assert len(result.to_frame()) == 2


def test_a_sweep_that_was_ended_early_is_resumed(kernel: Engine, tmp_path: Path) -> None:
    kernel.revert("double")
    stop = threading.Event()
    arguments: dict[str, Any] = {"concurrency": 1, "store": tmp_path, "show_progress": False, **QUICK}
    first = kernel.sweep(
        "double",
        {DELAY: [0, 400]},
        stop=stop,
        on_progress=lambda progress: stop.set() if progress.done == 1 else None,
        **arguments,
    )
    assert isinstance(first, SweepResult)
    assert (len(first), first.status) == (1, "stopped")
    whole = kernel.sweep("double", {DELAY: [0, 400]}, resume=first.run_id, **arguments)
    assert isinstance(whole, SweepResult)
    assert (len(whole), whole.status, whole.run_id) == (2, "done", first.run_id)
    assert whole[0].started == first[0].started
    assert not kernel.config("double").dirty


def test_a_sweep_of_a_remote_triton_puts_back_what_was_there(remote: TritonServer) -> None:
    try:
        remote.configure("double", f"{DELAY}=321")
        before = remote.model_config("double")
        result = remote.sweep("double", {DELAY: [0, 400]}, concurrency=1, store=None, show_progress=False, **QUICK)
        assert isinstance(result, SweepResult)
        assert [point.error for point in result] == ["", ""]
        assert result.restored
        assert remote.model_config("double") == before
        assert remote.config("double").dirty
    finally:
        remote.revert("double")
    assert not remote.config("double").dirty


def test_the_file_is_put_back_to_the_byte_when_it_was_as_saved(server: Server) -> None:
    target = SessionTarget(server)
    before = server.config("double").text
    target.configure("double", [{"path": "dynamic_batching", "op": "remove"}])
    assert "tuned live" not in server.config("double").text
    target.restore("double")
    assert server.config("double").text == before
    assert not server.config("double").dirty
    target.restore("double")  # nothing to do


def test_a_restore_that_failed_can_be_tried_again(kernel: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.revert("double")
    target = SessionTarget(kernel)
    before = kernel.config("double").text
    target.configure("double", [f"{DELAY}=55"])
    with monkeypatch.context() as patch:

        def fail(model: str, lease: str) -> None:
            raise ConnectionResetError("cut")

        patch.setattr(kernel.engine, "release_lease", fail)
        with pytest.raises(ConnectionResetError):
            target.restore("double")
    target.restore("double")
    assert kernel.config("double").text == before


@pytest.mark.parametrize("how", ["stop", "error", "interrupt"])
def test_the_configuration_is_put_back_however_a_sweep_ends(kernel: Engine, how: str) -> None:
    kernel.revert("double")
    stop = threading.Event()

    def told(progress: Any) -> None:
        if progress.done != 1:
            return
        if how == "error":
            raise ValueError("a callback of the user's")
        if how == "interrupt":
            raise KeyboardInterrupt
        stop.set()

    arguments: dict[str, Any] = {"concurrency": 1, "store": None, "show_progress": False, "stop": stop, **QUICK}
    if how == "error":
        with pytest.raises(ValueError, match="a callback"):
            kernel.sweep("double", {DELAY: [70, 80]}, on_progress=told, **arguments)
    else:
        result = kernel.sweep("double", {DELAY: [70, 80]}, on_progress=told, **arguments)
        assert isinstance(result, SweepResult)
        assert result.stopped
        assert len(result.points) == 1
    assert not kernel.config("double").dirty
    assert not kernel.session.measuring


def test_a_configuration_that_is_refused_is_a_row_and_the_sweep_goes_on(process: WorkbenchServer) -> None:
    process.revert("double")
    result = process.sweep(
        "double", {"max_batch_size": [-1, 4]}, concurrency=1, store=None, show_progress=False, **QUICK
    )
    assert isinstance(result, SweepResult)
    assert "non-negative" in result[0].error
    assert result[1].error == ""
    assert result.restored
    assert not process.config("double").dirty


def test_export_writes_what_is_applied(server: Server, tmp_path: Path) -> None:
    server.configure("double", f"{DELAY}=777")
    made = server.export(tmp_path / "bundle", models=["double"], measured={"double": {"p99_ms": 1.5}})
    written = (made.repository / "double" / "config.pbtxt").read_text()
    assert written == server.config("double").text
    assert (made.repository / "double" / "1" / "model.onnx").is_file()
    provenance = json.loads(made.provenance.read_text())
    assert provenance["models"]["double"]["measured"] == {"p99_ms": 1.5}
    assert provenance["models"]["double"]["edits"] == [{"path": DELAY, "op": "set", "value": 777}]
    assert "777" not in (server.repository_paths[0] / "double" / "config.pbtxt").read_text()
    with pytest.raises(WorkbenchError, match="not an empty directory"):
        server.export(tmp_path / "bundle", models=["double"])
    with pytest.raises(NotFound, match="no model 'nope' to export") as caught:
        server.export(tmp_path / "other", models=["nope"])
    assert "there are broken, double, spare" in caught.value.hint
    assert not (tmp_path / "other").exists()


def test_an_exported_ensemble_brings_its_models_as_they_are_tuned(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    add_model(root, "double")
    add_model(root, "spare")
    (root / "twice" / "1").mkdir(parents=True)
    (root / "twice" / "config.pbtxt").write_text(TWICE)
    with wb.Engine(root) as server:
        server.configure("double", f"{DELAY}=777")
        made = server.export(tmp_path / "bundle", models=["twice"])
    assert sorted(path.name for path in made.repository.iterdir()) == ["double", "twice"]
    assert "777" in (made.repository / "double" / "config.pbtxt").read_text()
    assert (made.repository / "twice" / "1").is_dir()
    with wb.Engine(made.repository) as again:
        answer = again.infer("twice", {"x": np.ones((1, 4), np.float32)})
    assert answer["y"].tolist() == [[4.0] * 4]


def test_loads_may_be_numpys() -> None:
    loads = loads_of(np.array([1, 2]), np.float64(5), {})
    assert [load.concurrency for load in loads[:2]] == [1, 2]
    assert loads[2].rate == 5.0
    assert json.dumps([load.to_json() for load in loads])


def test_of_two_sweeps_of_a_model_the_second_is_refused_and_the_configuration_comes_back(kernel: Engine) -> None:
    kernel.revert("double")
    before = kernel.config("double").text
    arguments: dict[str, Any] = {"concurrency": 1, "store": None, "show_progress": False, **QUICK}
    second: list[object] = []

    def told(progress: object) -> None:
        try:
            second.append(kernel.sweep("double", {DELAY: [90]}, **arguments))
        except NotReady as error:
            second.append(error.message)

    job = kernel.sweep("double", {DELAY: [70, 80]}, wait=False, on_progress=told, **arguments)
    assert not isinstance(job, SweepResult)
    assert job.wait(60) is not None
    assert set(second) == {"a sweep of 'double' runs already"}
    assert kernel.config("double").text == before
    again = kernel.sweep("double", {DELAY: [90]}, **arguments)
    assert isinstance(again, SweepResult)
    assert again.status == "done"
    assert kernel.config("double").text == before


def test_a_measured_point_is_applied_as_it_is(process: WorkbenchServer) -> None:
    best = Point(
        model="double",
        load=Load.closed(1),
        settings={"max_batch_size": 4, "dynamic_batching": {"max_queue_delay_microseconds": 300}},
    )
    try:
        process.configure("double", best)
        config = process.model_config("double")
        assert config["max_batch_size"] == 4
        assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 300
        process.configure("double", Point(model="double", load=Load.closed(1), settings={"dynamic_batching": None}))
        assert "dynamic_batching" not in process.model_config("double")
    finally:
        process.revert("double")
