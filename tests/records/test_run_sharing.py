"""Notes, files for others and exports of stored runs; runs that are being written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from workbench.cli import main
from workbench.errors import AlreadyExists, InvalidRequest, NotFound, NotReady, Unsupported
from workbench.profiling import Load, Point
from workbench.records import RecordRing, Run, RunStore

SECRET = b"what a customer wrote"
POINT = Point(
    model="m", load=Load.closed(4), settings={"dynamic_batching.preferred_batch_size": [4, 8]}, valid=True, stable=True,
    n=100, throughput=100.0, throughput_low=99.0, throughput_high=101.0, p99_ms=2.5, url="http://inner-host:8000",
    config={"max_batch_size": 8},
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    store = RunStore(tmp_path / "runs")
    with store.create("sweep", model="m", title="first", url="http://inner-host:8000") as run:
        number = run.add_point(POINT.to_json(), row=POINT.row(), key="k", config=POINT.config)
        ring = RecordRing(8)
        ring.add_batch(1, "m", 0, "i", 2, 2, "full", 5, 9)
        run.add_records(number, ring.read())
        run.add_samples(number, {"sent": np.arange(4), "status": np.zeros(4, np.int32)})
        run._add_blob(number, "captured", 1, "{}", SECRET * 50)
        run.finish()
    return store


def test_notes_are_kept_and_shown(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.annotate("latest", "  before the new kernel ")
    store.annotate("latest", "quiet machine")
    with store.open("latest") as run:
        assert [note["text"] for note in run.meta["notes"]] == ["before the new kernel", "quiet machine"]
        assert run.info.note == "quiet machine"
    with pytest.raises(InvalidRequest, match="must say something"):
        store.annotate("latest", "  ")
    assert main(["runs", "annotate", "latest", "third", "--runs", str(store.directory)]) == 0
    assert main(["runs", "show", "--runs", str(store.directory)]) == 0
    shown = capsys.readouterr().out
    assert "before the new kernel" in shown
    assert "third" in shown
    assert store.frame()["note"].tolist() == ["third"]


def test_a_shared_file_is_whole_and_says_what_is_in_it(store: RunStore, tmp_path: Path) -> None:
    store.annotate("latest", "quiet machine")
    shared = store.share("latest", tmp_path / "for_you")
    assert shared.path.name == "for_you.run.sqlite"
    assert (shared.points, shared.configurations, shared.samples, shared.captured, shared.notes) == (1, 1, 4, 0, 1)
    assert shared.left_out == ("the server's address and process", "captured inputs")
    assert "left out: the server's address and process, captured inputs" in repr(shared)
    data = shared.path.read_bytes()
    for gone in (SECRET, b"inner-host"):
        assert gone not in data
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [shared.path.name], "one file, whole"
    with RunStore(tmp_path / "elsewhere").open(shared.path) as run:
        assert run.info.status == "done"
        assert Point.from_json(run.points()[0]).throughput == 100.0
        assert run.samples(1)["sent"].tolist() == [0, 1, 2, 3]
        assert run.records(1).batches["reason"].tolist() == ["full"]
        assert run.environment()["cpus"] >= 1
    with store.open("latest") as run:
        assert run.meta["url"] == "http://inner-host:8000", "the run itself is as it was"
        assert run._blob(1, "captured")[1] == SECRET * 50


def test_captured_inputs_go_along_only_when_asked_for(store: RunStore, tmp_path: Path) -> None:
    shared = store.share("latest", tmp_path / "whole", inputs=True)
    assert shared.captured == 1
    with Run(shared.path) as run:
        assert run._blob(1, "captured")[1] == SECRET * 50


def test_nothing_is_overwritten_unasked(store: RunStore, tmp_path: Path) -> None:
    first = store.share("latest", tmp_path)
    with pytest.raises(AlreadyExists, match="is there already"):
        store.share("latest", tmp_path)
    store.share("latest", tmp_path, overwrite=True)
    assert first.path.is_file()
    for to in (store.directory, store.path("latest")):
        with pytest.raises(AlreadyExists):  # the run itself
            store.share("latest", to, overwrite=True)
    target = tmp_path / "points.csv"
    target.write_text("mine")
    with pytest.raises(AlreadyExists):
        store.export("latest", target)
    assert target.read_text() == "mine"


@pytest.mark.parametrize("name", ["for_you", "for_you.sqlite", "for_you.run.sqlite", "v2.1"])
def test_a_shared_file_has_the_ending_of_a_run(store: RunStore, tmp_path: Path, name: str) -> None:
    shared = store.share("latest", tmp_path / name)
    assert shared.path.name == name.removesuffix(".sqlite").removesuffix(".run") + ".run.sqlite"


@pytest.mark.parametrize(("name", "table"), [("x.html", True), ("x.csv", True), ("x.parquet", True), ("x.zip", False)])
def test_a_run_is_not_shared_as_something_else(
    store: RunStore, tmp_path: Path, name: str, table: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["runs", "share", "latest", "--runs", str(store.directory), "--to", str(tmp_path / name)]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert f"not as {Path(name).suffix}" in said
    assert "x.run.sqlite" in said, "what to give instead"
    assert ("workbench runs export" in said) is table
    assert [path.name for path in tmp_path.iterdir()] == ["runs"], "nothing is written"


def test_tables_as_csv(store: RunStore, tmp_path: Path) -> None:
    points = pd.read_csv(store.export("latest", tmp_path / "points.csv"))
    assert points["throughput"].tolist() == [100.0]
    assert points["dynamic_batching.preferred_batch_size"].tolist() == ["[4,8]"]
    batches = pd.read_csv(store.export("latest", tmp_path / "b.csv", table="batches"))
    assert (batches["point"].tolist(), batches["reason"].tolist()) == ([1], ["full"])
    samples = pd.read_csv(store.export("latest", tmp_path / "s.csv", table="samples"))
    assert samples["sent"].tolist() == [0, 1, 2, 3]
    for to, options, text in (
        ("x.xlsx", {}, "cannot tell what to write to x.xlsx"),
        ("x.csv", {"table": "nothing"}, "no table 'nothing'"),
        ("x", {"format": "hdf"}, "no format 'hdf'"),
    ):
        with pytest.raises(InvalidRequest, match=text):
            store.export("latest", tmp_path / to, **options)
    with store.create("profile", model="m") as run:
        run.add_point(POINT.to_json(), row=POINT.row())
    with pytest.raises(NotFound, match="keeps no samples"):
        store.export(run.id, tmp_path / "none.csv", table="samples")


@pytest.mark.parametrize(("to", "module"), [("p.parquet", "pyarrow"), ("p.arrow", "pyarrow"), (None, "mlflow")])
def test_what_is_not_installed_is_said_with_what_to_install(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str | None, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Unsupported, match=f"needs {module}, which is not installed") as caught:
        store.export("latest", tmp_path / to) if to else store.to_mlflow("latest")
    assert caught.value.hint == f"pip install 'serving-workbench[{'mlflow' if to is None else 'parquet'}]'"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


class FakeMlflow:
    """MLflow's client as far as it is used: what is written lands in ``runs``."""

    def __init__(self, tracking_uri: str | None = None) -> None:
        self.uri = tracking_uri
        self.runs: dict[str, dict[str, Any]] = {}

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return f"id of {name}"

    def create_run(self, experiment_id: str, tags: dict[str, str]) -> Any:
        run_id = f"r{len(self.runs)}"
        self.runs[run_id] = {"tags": tags, "params": {}, "metrics": {}, "artifacts": [], "status": ""}
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def log_param(self, run_id: str, key: str, value: str) -> None:
        self.runs[run_id]["params"][key] = value

    def log_metric(self, run_id: str, key: str, value: float) -> None:
        self.runs[run_id]["metrics"][key] = value

    def log_artifact(self, run_id: str, path: str) -> None:
        self.runs[run_id]["artifacts"].append((Path(path).name, Path(path).stat().st_size))

    def set_terminated(self, run_id: str, status: str) -> None:
        self.runs[run_id]["status"] = status


def test_a_run_in_mlflow(store: RunStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    client = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=lambda tracking_uri=None: client))
    store.annotate("latest", "quiet machine")
    assert main(["runs", "export", "latest", "--mlflow", "--runs", str(store.directory)]) == 0
    assert "run r0 of MLflow's experiment serving-workbench" in capsys.readouterr().out
    parent, child = client.runs["r0"], client.runs["r1"]
    assert parent["tags"]["mlflow.runName"] == "first"
    assert parent["tags"]["mlflow.note.content"] == "quiet machine"
    assert parent["artifacts"][0][0] == store.path("latest").name
    assert child["tags"]["mlflow.parentRunId"] == "r0"
    assert child["params"]["dynamic_batching.preferred_batch_size"] == "[4,8]"
    assert child["params"]["load.concurrency"] == "4"
    assert child["metrics"]["p99_ms"] == 2.5
    assert {run["status"] for run in client.runs.values()} == {"FINISHED"}


WRITER = """
import sys
from workbench.records import RunStore
run = RunStore(sys.argv[1]).create("sweep", model="other")
run.add_point({"model": "other"})
print(run.id, flush=True)
input()
"""


def test_a_run_that_is_being_written_is_neither_deleted_nor_gone_on_with(store: RunStore, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(store.directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        name = writer.stdout.readline().strip()
        with pytest.raises(NotReady, match=f"is being written by process {writer.pid}"):
            store.delete(name)
        with store.open(name, write=True) as run, pytest.raises(NotReady, match="is being written by"):
            run.claim("a second sweep")
        assert store.share(name, tmp_path / "half").points == 1  # a copy as of now
        writer.kill()
    assert store.list()[-1].status == "interrupted"
    with store.open(name, write=True) as run:
        run.claim("goes on")
        assert run.info.status == "running"
        run.finish()
    store.delete(name)
    assert [info.model for info in store.list()] == ["m"]


def test_the_command_line(store: RunStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = ["--runs", str(store.directory)]
    with store.create("sweep", model="m") as second:
        second.add_point(POINT.to_json(), row=POINT.row(), config=POINT.config)
        second.finish()
    first = store.list()[0].id
    assert main(["runs", "diff", first, "latest", *runs]) == 0
    shown = capsys.readouterr().out
    assert "too close to call" in shown
    assert "measured at different times" in shown
    assert main(["runs", "share", first, "--to", str(tmp_path), *runs]) == 0
    assert "left out: the server's address" in capsys.readouterr().out
    assert main(["runs", "share", first, "--to", str(tmp_path), *runs]) == 1
    assert "give another name, or --overwrite" in capsys.readouterr().err
    assert main(["runs", "export", first, "--to", str(tmp_path / "x.csv"), *runs]) == 0
    assert main(["runs", "export", first, *runs]) == 1
    assert "say where to" in capsys.readouterr().err
    assert main(["runs", "delete", "latest", *runs]) == 1
    assert "name it by its id" in capsys.readouterr().err
    assert main(["runs", "delete", first, "nothing", *runs]) == 1
    assert len(store.list()) == 2, "none goes where one is not known"
    assert main(["runs", "delete", first, second.id, *runs]) == 0
    assert store.list() == []
    with pytest.raises(SystemExit):
        main(["runs", "nothing"])
