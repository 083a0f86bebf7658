"""A sweep in shards: files complete in themselves, a run of each, and the whole sweep again when they are merged."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from workbench.cli import main
from workbench.distributed import JobOptions, job_manifest, merge_runs, read_shard
from workbench.distributed.worker import Surroundings, Worker
from workbench.errors import AlreadyExists, InvalidMeasurement, InvalidRequest, NotFound, Unsupported
from workbench.profiling import Load, Point, SweepResult
from workbench.profiling.executing import Item, Work
from workbench.profiling.sweep_result import write_point
from workbench.records.runs import RunStore
from workbench.session.remote import WorkbenchServer
from workbench.session.sharding import open_target, run_shard, serving_of, write_shards
from workbench.tuning import choose

DELAY = "dynamic_batching.max_queue_delay_microseconds"
GRID = {DELAY: [0, 500]}
LOAD: dict[str, Any] = {"concurrency": [1, 2], "duration_s": 0.15, "warmup_s": 0.02, "min_requests": 1}
INPUTS = '{"data": [{"x": [1, 2, 3, 4]}]}'


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inputs") / "inputs.json"
    path.write_text(INPUTS)
    return path


@pytest.fixture(scope="module")
def local(server: WorkbenchServer, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunStore, str]:
    """The sweep as one, measured where it was planned."""
    store = RunStore(tmp_path_factory.mktemp("local"))
    result = server.sweep("double", GRID, store=store, show_progress=False, inputs=inputs, **LOAD)
    assert isinstance(result, SweepResult)
    return store, result.run_id


@pytest.fixture
def folder(server: WorkbenchServer, inputs: Path, tmp_path: Path) -> Path:
    to = tmp_path / "shards"
    write_shards(server, "double", GRID, to, 2, inputs=inputs, **LOAD)
    return to


def copied(repository: Path, to: Path) -> Path:
    """The repository on another machine."""
    return Path(shutil.copytree(repository, to))


def test_shards_measured_elsewhere_are_merged_into_the_local_sweep(
    folder: Path, repository: Path, local: tuple[RunStore, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    there, runs = copied(repository, tmp_path / "there"), tmp_path / "runs"
    first = run_shard(folder / "shard-0.json", repository=there, store=runs, show_progress=False)
    assert [point.settings[DELAY] for point in first] == [0, 0]
    assert all(point.environment["served"]["by"] == "its worker" for point in first)
    # A pod finds its file by its index.
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    shard = ["sweep", "--shard", str(folder), "--model-repository", str(there), "--runs", str(runs)]
    assert main(shard) == 0
    assert "concurrency 2" in capsys.readouterr().out
    store = RunStore(runs)
    names = [info.id for info in store.list()]
    assert main(["runs", "merge", *names, "--runs", str(runs), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["points"], told["missing"], told["notes"]) == (4, 0, [])
    with store.open(told["run"]) as merged, local[0].open(local[1]) as whole:
        assert merged.info.status == "done"
        assert merged.info.kind == "sweep"
        assert merged.keys() == whole.keys()
        assert len(merged.points()) == 4
        assert [(p["settings"], p["load"]) for p in merged.points()] == [
            (p["settings"], p["load"]) for p in whole.points()
        ]
        assert (merged.meta["grid"], merged.meta["loads"]) == (whole.meta["grid"], whole.meta["loads"])


@pytest.mark.full
def test_what_is_missing_is_said_and_a_sweep_goes_on_with_it(
    folder: Path, server: WorkbenchServer, inputs: Path, tmp_path: Path
) -> None:
    store = RunStore(tmp_path / "runs")
    result = run_shard(folder / "shard-1.json", store=store, show_progress=False)
    other = run_shard(folder / "shard-1.json", store=tmp_path / "others", show_progress=False)
    again = run_shard(folder / "shard-1.json", store=store, show_progress=False)
    assert again.run_id == result.run_id, "it goes on with what it has begun"
    assert [point.throughput for point in again] == [point.throughput for point in result]
    merged = merge_runs(store, [result.run_id, RunStore(tmp_path / "others").path(other.run_id)], title="half")
    assert (merged.points, merged.missing) == (2, 2)
    assert "2 points are in none of the runs" in repr(merged)
    assert store.open(merged.run_id).info.status == "stopped"
    whole = server.sweep("double", GRID, store=store, show_progress=False, inputs=inputs, resume=merged.run_id, **LOAD)
    assert isinstance(whole, SweepResult)
    known = {point.throughput for point in (*result, *other)}
    assert [point.throughput in known for point in whole] == [False, False, True, True]


def test_what_is_not_the_planned_model_is_refused(
    folder: Path, repository: Path, server: WorkbenchServer, tmp_path: Path
) -> None:
    there = copied(repository, tmp_path / "there")
    shard = folder / "shard-0.json"
    config = there / "double" / "config.pbtxt"
    written = config.read_text()
    config.write_text(written.replace("count: 1", "count: 2"))
    with pytest.raises(InvalidRequest, match=r"config.pbtxt of 'double' here is another"):
        run_shard(shard, repository=there, store=tmp_path, show_progress=False)
    config.write_text(written)
    (there / "double" / "1" / "more").write_text("another file")
    with pytest.raises(InvalidRequest, match="other files here"):
        run_shard(shard, repository=there, store=tmp_path, show_progress=False)
    with pytest.raises(NotFound, match="no model 'double' here"):
        run_shard(shard, repository=tmp_path, store=tmp_path, show_progress=False)
    with pytest.raises(AlreadyExists):
        write_shards(server, "double", GRID, folder, 2, **LOAD)
    with pytest.raises(InvalidRequest, match="4 points cannot be divided into 5"):
        write_shards(server, "double", GRID, tmp_path / "five", 5, **LOAD)


def test_a_worker_of_another_version_does_not_measure(server: WorkbenchServer) -> None:
    planned = replace(Surroundings.here(), version="0.0.1")
    with pytest.raises(Unsupported, match=r"planned with 0\.0\.1"):
        Worker(serving_of(server, "double"), Work("double"), None, planned).open()


@pytest.mark.full
def test_a_worker_whose_server_dies_hands_its_item_back(server: WorkbenchServer) -> None:
    """The text has it measured by another worker: what this one has of it is no point of the sweep."""
    worker = Worker(serving_of(server, "double"), Work("double"), None, Surroundings.here())
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    worker.open()
    try:
        served = {child for child in psutil.Process().children(recursive=True) if child.pid not in before}
        killer = threading.Timer(1.0, lambda: [child.kill() for child in served])
        killer.start()
        outcome, broken = worker.measure(Item(0, {}, Load.closed(2, duration_s=60, warmup_s=0.0)))
        killer.join()
    finally:
        worker.close()
    assert "the server was lost" in broken
    assert outcome is not None
    assert outcome.point is not None
    assert outcome.point.n > 0
    assert not outcome.point.valid


def test_a_shard_of_another_version_is_not_measured(folder: Path) -> None:
    """Its loads may have options that are not known here: they would be left out, and another load sent."""
    path = folder / "shard-0.json"
    shard = json.loads(path.read_text())
    path.write_text(json.dumps({**shard, "planned_with": "99.0.0", "loads": [{**shard["loads"][0], "shape": "new"}]}))
    with pytest.raises(Unsupported, match=r"planned with 99\.0\.0"):
        read_shard(path, open_target)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "cannot be read"),
        ("[" * 200_000, "cannot be read"),
        ("[]", "no shard file"),
        ('{"workbench_shard": 2}', "of version 2"),
        ('{"workbench_shard": 1, "model": "m"}', "not complete"),
    ],
)
def test_a_file_that_is_no_shard_is_refused(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "shard.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=match):
        read_shard(path, open_target)
    with pytest.raises(NotFound):
        read_shard(tmp_path / "none", open_target)


@pytest.mark.parametrize("bad", [None, -1, "x", []], ids=repr)
@pytest.mark.parametrize("part", ["model", "grid", "repository", "options"])
def test_a_shard_edited_by_hand_is_refused_in_words(folder: Path, tmp_path: Path, part: str, bad: object) -> None:
    path = tmp_path / "edited.json"
    path.write_text(json.dumps({**json.loads((folder / "shard-0.json").read_text()), part: bad}))
    with pytest.raises(InvalidRequest, match="not complete"):
        read_shard(path, open_target)


def test_runs_of_other_sweeps_files_and_devices_are_told_apart(folder: Path, tmp_path: Path) -> None:
    shard = read_shard(folder / "shard-0.json", open_target)
    store = RunStore(tmp_path / "runs")
    about: dict[str, Any] = {"grid": GRID, "loads": [load.to_json() for load in shard.loads]}

    def stored(key: str, device: str, throughput: float, **changes: Any) -> str:
        point = Point(
            model="double", load=shard.loads[0], settings={DELAY: 0}, valid=True, stable=True, n=100,
            throughput=throughput, p99_ms=1.0, environment={"device": device},
        )  # fmt: skip
        with store.create("shard", model="double", **{**about, **changes}) as run:
            write_point(run, point, key)
            run.finish()
            return run.id

    one = stored("k1", "a processor", 100.0)
    with pytest.raises(InvalidRequest, match="not of one sweep: they differ in grid"):
        merge_runs(store, [one, stored("k1", "a processor", 100.0, grid={DELAY: [1]})])
    with pytest.raises(InvalidRequest, match="other files, inputs or configuration"):
        merge_runs(store, [one, stored("k2", "a processor", 100.0)])
    with pytest.raises(InvalidRequest, match="at least two"):
        merge_runs(store, [one, one])
    merged = merge_runs(store, [one, stored("k3", "another processor", 200.0)])
    assert (merged.points, merged.missing) == (2, 3)
    assert "2 kinds of device, which are not compared" in merged.notes[0]
    with store.open(merged.run_id) as run:
        points = [Point.from_json(each) for each in run.points()]
    for choosing in (lambda: choose(points), lambda: SweepResult("double", GRID, tuple(points), 2).best()):
        with pytest.raises(InvalidMeasurement, match="2 kinds of device"):
            choosing()
    assert choose(points[1:]).point.throughput == 200.0


def test_of_two_measurements_of_a_point_the_later_is_kept_in_whatever_order_they_are_named(
    folder: Path, tmp_path: Path
) -> None:
    shard = read_shard(folder / "shard-0.json", open_target)
    store = RunStore(tmp_path / "runs")

    def stored(throughput: float, started: str) -> str:
        point = Point(
            model="double", load=shard.loads[0], settings={DELAY: 0}, valid=True, stable=True, n=100,
            throughput=throughput, started=started, environment={"device": "a processor"},
        )  # fmt: skip
        loads = [load.to_json() for load in shard.loads]
        with store.create("shard", model="double", grid=GRID, loads=loads) as run:
            write_point(run, point, "k1")
            run.finish()
            return run.id

    early, late = stored(100.0, "2026-12-01T08:00:00+00:00"), stored(200.0, "2026-12-01T09:00:00+00:00")
    for runs in ([early, late], [late, early]):
        with store.open(merge_runs(store, runs).run_id) as run:
            assert [point["throughput"] for point in run.points()] == [200.0]


def test_the_job_has_a_pod_a_shard_and_one_a_machine(server: WorkbenchServer, tmp_path: Path) -> None:
    import yaml

    to = tmp_path / "shards"
    job = JobOptions("registry.example/workbench:1", gpus=1, node_labels={"gpu": "t4"})
    paths = write_shards(server, "double", GRID, to, 3, job=job, **LOAD)
    assert [path.name for path in paths] == ["shard-0.json", "shard-1.json", "shard-2.json", "job.yaml"]
    text = paths[-1].read_text()
    assert "*id" not in text
    config_map, made = yaml.safe_load_all(text)
    assert json.loads(config_map["data"]["shard-2.json"]) == json.loads(paths[2].read_text())
    spec = made["spec"]
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", 3)
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    command = container["command"]
    assert command[:2] == ["workbench", "sweep"]
    assert command[command.index("--shard") + 1] == mounts["shards"]
    assert command[command.index("--runs") + 1] == mounts["runs"]
    assert {each["name"] for each in pod["volumes"]} == set(mounts)
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod["nodeSelector"] == {"gpu": "t4"}
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    for wrong in (JobOptions(""), JobOptions("image", name="Not_A_Name")):
        with pytest.raises(InvalidRequest):
            job_manifest([read_shard(paths[0], open_target)], wrong)


@pytest.mark.full
def test_the_manifests_hold_to_the_schema_of_kubernetes(folder: Path) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    manifests = job_manifest([read_shard(folder / "shard-0.json", open_target)], JobOptions("image:1"))
    for manifest in manifests:
        assert kubernetes_validate.validate(manifest, "1.33", strict=True)
    manifests[1]["spec"]["completionMod"] = "Indexed"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifests[1], "1.33", strict=True)
