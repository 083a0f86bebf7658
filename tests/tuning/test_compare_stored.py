"""A comparison in the run store: each block as it comes, so that whoever is killed leaves a run that can be opened."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import wait_until
from onnx_models import add_model

import workbench as wb
from workbench.cli import main
from workbench.errors import InternalError, InvalidRequest
from workbench.profiling import Load, MeasureOptions, Point
from workbench.records.runs import Run, RunStore
from workbench.tuning.compare_result import CompareResult, ModelFigures, Startup, figures_of
from workbench.tuning.drift import Drift, OutputDrift

NAME = "compare-stored-test"
LENIENT = MeasureOptions(lag_limit_ms=1e3, stall_share=1.0, other_cpu_limit=10.0)
"""The machine may be busy with other things: that is not what is tested."""
QUICK: dict[str, Any] = {
    "measure": LENIENT, "concurrency": 1, "rounds": 3, "duration_s": 0.15, "warmup_s": 0.02, "startup": False,
    "show_progress": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wb.Server]:
    root = tmp_path_factory.mktemp("stored") / "models"
    root.mkdir()
    for name in ("double", "spare"):
        add_model(root, name)
    with wb.serve(root, name=NAME) as opened:
        yield opened


def blocks_in(store: RunStore) -> int:
    return sum(info.points for info in store.list())


def test_each_block_is_in_the_run_before_the_next_one_is_measured(server: wb.Server, tmp_path: Path) -> None:
    store, heard = RunStore(tmp_path), list[CompareResult]()

    def on_block(done: int, total: int, point: Point) -> None:
        heard.append(CompareResult.open(store))
        assert store.list()[0].status == "running"
        early = CompareResult.open(store).to_frame()
        assert set(early.verdict) == {""}
        assert early.change.isna().all()
        assert [each.blocks[-1].started for each in heard[-1].models if each.model == point.model] == [point.started]

    result = server.compare(["double", "spare"], store=store, title="two", on_block=on_block, **QUICK | {"rounds": 2})
    assert [sum(len(each.blocks) for each in so_far.models) for so_far in heard] == [1, 2, 3, 4]
    assert [so_far.verdict for so_far in heard] == [
        f"no verdict yet: {done} of 2 rounds measured" for done in (0, 1, 1, 2)
    ]
    assert all(each.running and not each.fastest for each in heard), "no verdict before its end: that were peeking"
    assert not any("against double" in repr(so_far) for so_far in heard)
    assert repr(heard[0]["spare"].drift) == repr(result["spare"].drift), "what was asked before is known"
    (info,) = store.list()
    assert (info.id, info.status, info.title, info.points) == (result.run_id, "done", "two", 4)
    again = CompareResult.open(store, result.run_id)
    assert repr(again) == repr(result)
    assert (again.stopped, again.running, again.interrupted) == (False, False, False)
    with pytest.raises(KeyError, match="does not keep the answers of 'spare'"):
        again.worst("spare")
    with store.open(result.run_id) as run:
        assert run.meta["verdict"] == result.verdict
        assert list(run.frame()["round"]) == [0, 0, 1, 1]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_one_that_is_killed_leaves_its_rounds_and_says_how_far_it_came(
    server: wb.Server, tmp_path: Path, how: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    store, runs = RunStore(tmp_path), ["--runs", str(tmp_path)]
    words = ["compare", "double", "spare", "--server", NAME, "--rounds", "300", "-p", "150", "--warmup", "0.02"]
    with subprocess.Popen(
        [sys.executable, "-m", "workbench.cli", *words, "--no-startup", "--title", "mine", *runs],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        try:
            wait_until(lambda: process.poll() is not None or blocks_in(store) >= 7, 60.0)
            assert process.poll() is None
            process.send_signal(how)
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    killed = how == signal.SIGKILL
    assert process.returncode == (-9 if killed else 130)
    (info,) = store.list()
    assert (info.kind, info.status, info.title) == ("compare", "interrupted" if killed else "stopped", "mine")
    result = CompareResult.open(tmp_path)
    counts = [len(each.blocks) for each in result.models]
    assert sum(counts) == info.points >= 7
    assert (result.stopped, result.interrupted, result.error) == (True, killed, "")
    assert result.progress == f"{min(counts)} of 300 rounds measured"
    assert result["spare"].against["throughput"].pairs <= min(counts)
    assert result["spare"].drift is not None
    assert result["spare"].drift.max_abs == 0
    ended = f"{'broken off, its process is gone' if killed else 'stopped before its end'}: {result.progress}"
    assert ended in repr(result)
    assert killed or f"run {info.id}" in said
    assert main(["runs", "list", *runs, "--json"]) == 0
    assert [each["status"] for each in json.loads(capsys.readouterr().out)] == [info.status]
    assert main(["runs", "show", *runs]) == 0
    shown = capsys.readouterr().out
    assert ended in shown
    assert info.status in shown.splitlines()[0]
    with store.open(info.id) as run:
        assert run.meta["verdict"].startswith("not ended: ") == killed


def test_one_that_is_killed_while_models_are_loaded_has_their_answers(server: wb.Server, tmp_path: Path) -> None:
    """Loading each in a server of its own takes minutes where there are many."""
    known = list[CompareResult]()

    def on_step(step: Any) -> None:
        if step.what.startswith("loading"):
            known.append(CompareResult.open(tmp_path))

    server.compare(["double", "spare"], store=tmp_path, on_step=on_step, **QUICK | {"rounds": 2, "startup": True})
    assert [each["spare"].drift is not None for each in known] == [True, True]
    assert [each["spare"].against["throughput"].pairs for each in known] == [0, 0]
    assert math.isnan(known[0]["double"].startup.load_s)
    assert known[1]["double"].startup.load_s > 0
    assert known[0].progress == "0 of 2 rounds measured"


@pytest.mark.parametrize("how", ["stop", "raised"])
def test_however_it_ends_the_run_says_so(server: wb.Server, tmp_path: Path, how: str) -> None:
    stop, store = threading.Event(), RunStore(tmp_path)

    def on_block(done: int, total: int, point: Point) -> None:
        if done == 5 and how == "stop":
            stop.set()
        elif done == 5:
            raise RuntimeError("a slip of ours")

    options: dict[str, Any] = {"store": store, "stop": stop, "on_block": on_block, **QUICK | {"rounds": 9}}
    if how == "raised":
        with pytest.raises(RuntimeError):
            server.compare(["double", "spare"], **options)
    else:
        assert server.compare(["double", "spare"], **options).run_id == store.list()[0].id
    result = CompareResult.open(store)
    assert store.list()[0].status == ("failed" if how == "raised" else "stopped")
    assert result.progress == "2 of 9 rounds measured"
    assert result["spare"].against["throughput"].pairs == 2
    if how == "raised":
        assert result.verdict == "no verdict: it broke off: a slip of ours"
    else:
        assert "has the highest throughput" in result.verdict
        assert "stopped before its end: 2 of 9 rounds measured" in repr(result)


@pytest.mark.parametrize("how", ["gone", "disk"])
def test_a_store_that_takes_no_more_loses_no_comparison(
    server: wb.Server, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, add_point = RunStore(tmp_path / "runs"), Run.add_point

    def full(run: Run, *given: Any, **more: Any) -> int:
        if how == "disk" and run.info.points == 2:
            raise InternalError("the run cannot be written: database or disk is full", where="here")
        if how == "gone" and run.info.points == 2:
            shutil.rmtree(store.directory)
        return add_point(run, *given, **more)

    monkeypatch.setattr(Run, "add_point", full)
    result = server.compare(["double", "spare"], store=store, **QUICK)
    assert [len(each.blocks) for each in result.models] == [3, 3]
    assert result["spare"].against["throughput"].pairs == 3
    assert "has the highest throughput" in result.verdict
    assert result.unstored.startswith("from block 3 on nothing was stored: the run cannot be written: ")
    assert f"! {result.unstored}" in repr(result)
    words = ["compare", "double", "spare", "--server", NAME, "--rounds", "2", "--no-startup", "-p", "150"]
    assert main([*words, "--runs", str(store.directory), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["unstored"].startswith("from block 3 on nothing was stored: ")
    assert said["verdict"]
    if how == "disk":
        again = CompareResult.open(store, result.run_id)
        assert [len(each.blocks) for each in again.models] == [1, 1]
        assert {each.status for each in store.list()} == {"failed"}, "and not running until this process ends"


def test_nothing_is_asked_where_nothing_can_be_stored(server: wb.Server, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file, where a directory is to be")

    def answered() -> int:
        return int(server.statistics().to_frame().requests.sum())

    before = answered()
    with pytest.raises(InternalError, match="cannot be written"):
        server.compare(["double", "spare"], store=tmp_path / "runs", **QUICK)
    assert answered() == before


def test_what_is_no_comparison_is_refused(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.create("sweep", model="m").close()
    with pytest.raises(InvalidRequest, match="is no comparison that can be judged: it is a sweep"):
        CompareResult.open(store)
    with store.create("compare", model="m", told="m has the highest throughput") as old:
        pass
    with pytest.raises(InvalidRequest, match="it has blocks and verdict only"):
        CompareResult.open(store, old.id)


def test_a_run_keeps_all_that_is_said_of_the_models(tmp_path: Path) -> None:
    """Infinite and unknown figures among it, which JSON does not have."""

    def blocks(model: str) -> tuple[Point, ...]:
        return tuple(Point(model=model, load=Load.closed(1), valid=True, n=500, throughput=each) for each in (10, 11))

    def figures(name: str, backend: str, **more: Any) -> ModelFigures:
        of_it = () if "error" in more else blocks(name)
        return ModelFigures(name, backend, of_it, figures_of(of_it), **more)

    output = OutputDrift("y", "z", 8, 0.5, 0.25, math.inf, kind="scores", why="it sums to one", top_1=0.5, k=5, nans=1)
    drift = Drift("b", "a", (output,), 3, metric=0.125, metric_error="your metric, on example 0 of 'b': it raised")
    models = (
        figures("b", "openvino", drift=drift, startup=Startup(1.5, 2.5, 300.0), notes=("pads",)),
        figures("a", "python", startup=Startup(why="its files are not on this machine")),
        figures("lost", "", error="it does not serve"),
    )
    made = CompareResult(models, "a", Load.closed(1), (), {}, stopped=True, rounds=9)
    again = CompareResult.open(tmp_path, made.save(RunStore(tmp_path), title="kept"))
    assert [each.model for each in again.models] == ["b", "a", "lost"]
    assert (again["b"].backend, again["b"].startup, again["b"].notes) == ("openvino", Startup(1.5, 2.5, 300), ("pads",))
    found = again["b"].drift
    assert found is not None
    assert repr(found) == repr(drift)
    assert found.outputs[0].max_rel == math.inf
    assert math.isnan(found.outputs[0].kendall_tau)
    assert again["a"].startup.why == "its files are not on this machine"
    assert again["lost"].problems == ["it does not serve"]
    assert (again.stopped, again.interrupted, again.progress) == (True, False, "2 of 9 rounds measured")
    assert again["b"].figures["throughput"].value == pytest.approx(math.sqrt(110))
    assert RunStore(tmp_path).list()[0].title == "kept"
