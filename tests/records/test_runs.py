from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from workbench.errors import InternalError, InvalidRequest, NotFound, Unsupported
from workbench.records import RecordRing, RunStore, point_key

WRITER = """
import sys
from workbench.records import RunStore
run = RunStore(sys.argv[1]).create("sweep", model="m")
n = 0
while True:
    run.add_point({"model": "m", "n": n, "filler": "x" * 20000}, config={"max_batch_size": n})
    n += 1
    print(n, flush=True)
"""


def test_round_trip(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    with store.create("sweep", model="m", title="first", seed=7) as run:
        number = run.add_point(
            {"model": "m", "p99_ms": np.float64(2.5), "batches": {1: 3}, "none": float("nan")},
            row={"p99_ms": 2.5},
            key="k1",
            config={"max_batch_size": 8},
            config_text="max_batch_size: 8",
        )
        run.add_point({"model": "m"}, row={"p99_ms": 3.5}, key="k2", config={"max_batch_size": 8})
        ring = RecordRing(8)
        ring.add_batch(1, "m", 0, "i", 2, 2, "full", 5, 9)
        run.add_records(number, ring.read())
        run.add_samples(number, {"sent": np.arange(4), "status": np.zeros(4, np.int32)})
        assert store.list()[0].status == "running"
        run.finish()
    info = store.list()[0]
    assert (info.kind, info.model, info.title, info.status, info.points) == ("sweep", "m", "first", "done", 2)
    with store.open("latest") as back:
        assert back.meta["seed"] == 7
        assert back.points()[0] == {
            "model": "m", "p99_ms": 2.5, "batches": {"1": 3}, "none": None, "id": 1, "key": "k1",
        }  # fmt: skip
        assert back.frame()["p99_ms"].tolist() == [2.5, 3.5]
        assert back.keys() == {"k1", "k2"}
        assert [entry["config"] for entry in back.configs()] == [{"max_batch_size": 8}] * 2
        assert back.records(number).batches["reason"].tolist() == ["full"]
        assert back.samples(number)["sent"].tolist() == [0, 1, 2, 3]
        assert back.environment()["cpus"] >= 1
        with pytest.raises(NotFound, match="keeps no records"):
            back.records(2)
        with pytest.raises(InvalidRequest, match="reading only"):
            back.add_point({})
    assert store.frame()["points"].tolist() == [2]


def test_two_runs_of_one_second_do_not_collide(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    ids = [store.create("profile", model="a/b").id for _ in range(3)]
    assert len(set(ids)) == 3
    assert [info.id for info in store.list()] == ids
    assert store.open("latest").id == ids[-1]


def test_a_store_shows_its_last_runs(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    assert repr(store).endswith("runs: 0")
    for number in range(22):
        with store.create("sweep", model="m", title=f"turn {number}") as run:
            run.finish("done")
    head, *lines = repr(store).splitlines()
    assert head.endswith(": 22, the last 20:")
    assert len(lines) == 20
    assert "sweep  m  done  0 points  turn 21" in lines[-1]
    assert store.open("latest").meta["title"] == "turn 21"


def test_delete_and_unknown(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run = store.create("sweep")
    run.close()
    store.delete(run.id)
    assert store.list() == []
    for action in (store.open, store.delete):
        with pytest.raises(NotFound, match="there is no run 'nothing'") as caught:
            action("nothing")
        assert "holds no run at all" in caught.value.hint


def test_the_beginning_of_an_id_is_enough_if_it_fits_one(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    first = store.create("sweep", model="aa")
    store.create("sweep", model="ab")
    with pytest.raises(NotFound, match="2 runs fit") as caught:
        store.open(first.id[:4])
    assert first.id in caught.value.hint
    assert store.open(first.path).id == first.id


def test_foreign_and_newer_files(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run = store.create("sweep")
    run.set_meta(schema_version=99)
    run.close()
    (tmp_path / "zz.run.sqlite").write_bytes(b"not a database, but long enough to be looked at " * 30)
    with pytest.raises(Unsupported, match="newer workbench"):
        store.open(run.id)
    with pytest.raises(InvalidRequest, match="is not a run"):
        store.open("zz")
    assert [info.status for info in store.list()] == ["unreadable", "unreadable"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_writer_leaves_a_readable_file(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = 0
        for line in process.stdout:
            told = int(line)
            if told >= 5:
                break
        os.kill(process.pid, signal.SIGKILL)
        told = max([told, *(int(line) for line in process.stdout if line.endswith(b"\n"))])
    store = RunStore(tmp_path)
    (info,) = store.list()
    assert info.status == "interrupted"
    with store.open(info.id) as run:
        numbers = [point["n"] for point in run.points()]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= told  # whatever was said to be written is there
        assert len(run.configs()) == len(numbers)
    connection = sqlite3.connect(info.path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_keys_know_equal_points_again() -> None:
    parts = {"config": {"a": 1, "b": [1, 2]}, "seed": 3, "load": {"rate": 5.0}}
    assert point_key(**parts) == point_key(seed=3, load={"rate": 5.0}, config={"b": [1, 2], "a": 1})
    assert point_key(**parts) != point_key(**{**parts, "seed": 4})
    assert point_key(x=np.arange(3)) == point_key(x=[0, 1, 2])


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of file sizes there")
def test_a_full_disk_is_said_in_words_and_leaves_no_half_of_anything(tmp_path: Path) -> None:
    import resource

    store = RunStore(tmp_path / "runs")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with store.create("sweep", model="m") as run:
        run.add_point({"model": "m", "n": 1})
        resource.setrlimit(resource.RLIMIT_FSIZE, (run.path.stat().st_size, hard))
        try:
            with pytest.raises(InternalError, match="the run cannot be written") as caught:
                run.add_point({"model": "m", "filler": "x" * 100_000})
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
            with pytest.raises(InternalError, match="the run cannot be written"):
                store.create("sweep", model="m")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert caught.value.where == str(run.path)
        assert "space" in caught.value.hint
        run.add_point({"model": "m", "n": 2})  # there is space again
        assert [point["n"] for point in run.points()] == [1, 2]
    assert [info.points for info in store.list()] == [2]
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_a_directory_that_cannot_be_made_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(InternalError, match="the run cannot be written") as caught:
            RunStore(place).create("sweep")
        assert caught.value.where == str(place)
