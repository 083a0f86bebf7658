"""An A/B in the run store: each block as it comes, so that whoever is killed leaves a run that can be opened."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from asking import wait_until
from scripted_target import INPUTS, ScriptedServer, ScriptedTarget

from workbench.errors import InternalError, InvalidRequest, NotReady
from workbench.profiling import ABOptions, ABResult, Load, Measurer, Point, ab
from workbench.profiling.ab_result import Block, Side, compare_blocks
from workbench.profiling.best import usable_points
from workbench.records.runs import Run, RunStore

BLOCK = Load.closed(2, duration_s=0.15, warmup_s=0.02, max_warmup_s=0.02, min_requests=0, drain_s=2.0)
ENDLESS = """
import sys
import numpy as np
from workbench.profiling import ABOptions, Load, ServerTarget, ab
from workbench.records.runs import RunStore
url, runs = sys.argv[1:]
load = Load.closed(2, duration_s=0.15, warmup_s=0.02, max_warmup_s=0.02, min_requests=0)
ab(ServerTarget(url), "m", {}, {}, load, inputs={"X": np.zeros((1, 4), np.float32)}, store=RunStore(runs), title="mine",
   options=ABOptions(pairs=300, max_pairs=300))
"""


def blocks_in(store: RunStore) -> int:
    return sum(info.points for info in store.list())


def test_each_block_is_in_the_run_before_the_next_one_is_measured(tmp_path: Path) -> None:
    store, heard = RunStore(tmp_path), list[ABResult]()

    def on_block(block: Block) -> None:
        heard.append(ABResult.open(store))
        assert store.list()[0].status == "running"
        assert (heard[-1].blocks[-1].side, heard[-1].blocks[-1].pair) == (block.side, block.pair)
        assert heard[-1].blocks[-1].point.started == block.point.started

    with ScriptedServer(lambda n: 0.004) as server:
        result = ab(
            ScriptedTarget(server), "m", {"max_batch_size": 4}, {"max_batch_size": 5}, BLOCK, inputs=INPUTS,
            store=store, title="two sizes", on_block=on_block, options=ABOptions(pairs=2, max_pairs=2),
        )  # fmt: skip
    assert [len(each.blocks) for each in heard] == list(range(1, len(result.blocks) + 1))
    assert all(each.running and not each.faster for each in heard), "no verdict before its end: that were peeking"
    assert heard[0].verdict == "no verdict yet: 0 of at least 2 pairs of blocks measured"
    (info,) = store.list()
    assert (info.id, info.status, info.title, info.points) == (result.run_id, "done", "two sizes", len(result.blocks))
    again = ABResult.open(store, result.run_id)
    assert (again.verdict, again.faster, again.restored) == (result.verdict, result.faster, True)
    assert repr(again) == repr(result)
    with store.open(result.run_id) as run:
        assert run.meta["verdict"] == result.verdict
        assert list(run.frame()["side"]) == [block.side for block in result.blocks]


def test_one_that_is_killed_leaves_a_run_that_says_how_far_it_came(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    with (
        ScriptedServer(lambda n: 0.004) as server,
        subprocess.Popen([sys.executable, "-c", ENDLESS, server.url, str(tmp_path)]) as process,
    ):
        try:
            wait_until(lambda: process.poll() is not None or blocks_in(store) >= 8, 60.0)
            assert process.poll() is None
        finally:
            process.kill()
    (info,) = store.list()
    assert (info.kind, info.status, info.title) == ("ab", "interrupted", "mine")
    result = ABResult.open(tmp_path)
    assert len(result.blocks) == info.points >= 8
    pairs = result.comparisons["throughput"].pairs
    assert 2 <= pairs <= len(result.blocks) // 2
    assert result.stopped
    assert not result.error
    assert result.verdict.startswith("throughput: ")
    assert result.progress == f"{pairs} of at least 300 pairs of blocks measured"
    assert f"stopped before its end: {result.progress}" in repr(result)
    with store.open(info.id) as run:
        assert run.meta["verdict"].startswith("not ended: ")


@pytest.mark.parametrize("how", ["stop", "broken", "raised"])
def test_however_it_ends_the_run_says_so(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, store, measured = threading.Event(), RunStore(tmp_path), Measurer.measure

    def measure(self: Measurer, load: Load, settings: Any = None) -> Point:
        if blocks_in(store) == 4:
            if how == "stop":
                stop.set()
            elif how == "broken":
                raise NotReady("the model went away")
            else:
                raise RuntimeError("a slip of ours")
        return measured(self, load, settings)

    monkeypatch.setattr(Measurer, "measure", measure)
    options: Any = {"inputs": INPUTS, "store": store, "stop": stop, "options": ABOptions(pairs=9, max_pairs=9)}
    with ScriptedServer(lambda n: 0.004) as server:
        target, sides = ScriptedTarget(server), ({"max_batch_size": 4}, {"max_batch_size": 5})
        if how == "raised":
            with pytest.raises(RuntimeError):
                ab(target, "m", *sides, BLOCK, **options)
        else:
            ab(target, "m", *sides, BLOCK, **options)
        assert server.config["max_batch_size"] == 8
    result = ABResult.open(store)
    status = {"stop": "stopped", "broken": "failed", "raised": "failed"}[how]
    assert store.list()[0].status == status
    assert len(result.blocks) >= 4
    assert result.comparisons["throughput"].pairs >= 2
    if how != "stop":
        assert ("the model went away" if how == "broken" else "a slip of ours") in result.verdict


def test_one_that_broke_off_and_could_not_put_back_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slip(self: Measurer, load: Load, settings: Any = None) -> Point:
        raise RuntimeError("a slip of ours")

    def gone(self: ScriptedTarget, model: str) -> None:
        raise NotReady("the server is gone")

    monkeypatch.setattr(Measurer, "measure", slip)
    monkeypatch.setattr(ScriptedTarget, "restore", gone)
    store = RunStore(tmp_path)
    sides = ({"max_batch_size": 4}, {"max_batch_size": 5})
    with ScriptedServer() as server, pytest.raises(RuntimeError):
        ab(ScriptedTarget(server), "m", *sides, BLOCK, inputs=INPUTS, store=store)
    result = ABResult.open(store)
    assert not result.restored
    assert "the configuration could not be restored" in repr(result)


def test_nothing_is_measured_where_nothing_can_be_stored(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file, where a directory is to be")
    with ScriptedServer(lambda n: 0.004) as server:
        target = ScriptedTarget(server)
        with pytest.raises(InternalError, match="cannot be written"):
            ab(target, "m", {"max_batch_size": 4}, {}, BLOCK, inputs=INPUTS, store=RunStore(tmp_path / "runs"))
        assert server.received == 0


def test_a_save_that_stores_nothing_gives_no_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(run: Run, *given: object, **more: object) -> int:
        raise InternalError("the run cannot be written: database or disk is full", where="here")

    block = Block("A", 0, Point(model="m", load=BLOCK, throughput=1.0, n=500, valid=True, stable=True))
    result = ABResult(Side("A", "m"), Side("B", "m"), BLOCK, (block,), compare_blocks([block], [6]), "throughput")
    monkeypatch.setattr(Run, "add_point", full)
    with pytest.raises(InternalError, match="disk is full"):
        result.save(RunStore(tmp_path))


def test_what_is_no_ab_is_refused(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.create("sweep", model="m").close()
    with pytest.raises(InvalidRequest, match="is no A/B that can be judged: it is a sweep"):
        ABResult.open(store)


def test_a_run_of_other_blocks_is_saved_and_opened(tmp_path: Path) -> None:
    def point(throughput: float) -> Point:
        return Point(model="m", load=BLOCK, throughput=throughput, n=500, valid=True, stable=True)

    blocks = tuple(
        Block(side, pair, point(base + pair)) for pair in range(6) for side, base in (("A", 100.0), ("B", 200.0))
    )  # fmt: skip
    assert len(usable_points([block.point for block in blocks])) == 12
    result = ABResult(
        Side("A", "m"), Side("B", "m"), BLOCK, blocks, compare_blocks(blocks, [6]), "throughput", looks=(6,)
    )
    assert result.faster == "B"
    again = ABResult.open(RunStore(tmp_path), result.save(RunStore(tmp_path)))
    assert (again.verdict, again.looks, again.stopped) == (result.verdict, (6,), False)
