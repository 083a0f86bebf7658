"""A sweep killed with -9 at a random moment: it resumes, repeats nothing, and leaves files and configuration alone."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from asking import wait_until
from onnx_models import add_model
from real_triton import real_triton
from served_echo import write_repository

import workbench as wb
from workbench.profiling import SweepResult
from workbench.records import RunStore
from workbench.session.remote import WorkbenchServer

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there"),
]

KILLS = int(os.environ.get("WORKBENCH_KILLS", "6"))
GRID = {"dynamic_batching.max_queue_delay_microseconds": [0, 70, 80], "max_batch_size": [4, 8]}
POINTS = 6
LOAD: dict[str, Any] = {"concurrency": 1, "duration_s": 0.15, "warmup_s": 0.02, "min_requests": 1}
POINT_S = 0.8
"""About what a point takes, to choose moments within one."""

SWEEPER = f"""
import sys
import workbench as wb
where, model, runs = sys.argv[1:]
server = wb.connect(where) if ":" in where else wb.attach(where)
print("begins", flush=True)
server.sweep(model, {GRID!r}, store=runs, show_progress=False, resume=True, content="as written",
             on_progress=lambda progress: print(progress.done, flush=True), **{LOAD!r})
"""


def kill_at_random(chance: random.Random, *arguments: str) -> str:
    """Runs a sweep in a process of its own and kills it at a moment drawn from its whole life; says when that was."""
    lines = chance.randrange(POINTS + 2)  # 0: while it starts; 1: before its first point is begun; ...
    after_s = chance.random() * (2.0 if lines == 0 else POINT_S)
    with subprocess.Popen(
        [sys.executable, "-c", SWEEPER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(lines):
            if not process.stdout.readline():
                break
        threading.Event().wait(after_s)  # the random moment itself
        process.kill()
        _, said = process.communicate()
    assert process.returncode in (-9, 0), said
    return f"{after_s:.2f} s after line {lines}"


def files(root: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


def stored(runs: Path) -> dict[str, tuple[str, float]]:
    """What the one run of a store has of each cell: when it was measured, and a figure."""
    infos = RunStore(runs).list()
    assert len(infos) <= 1, "a second run was begun"
    if not infos:
        return {}
    with RunStore(runs).open(infos[0].id) as run:
        points = run.points()
    cells = {str(point["settings"]): (point["started"], point["throughput"]) for point in points}
    assert len(cells) == len(points), "a point is there twice"
    return cells


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("killed") / "models"
    root.mkdir()
    add_model(root, "double")
    with wb.serve(root) as server:
        server.configure("double", "optimization.priority=PRIORITY_MAX")  # applied, not saved: it must come back
        yield server


@pytest.mark.soak
@pytest.mark.parametrize("trial", range(KILLS))
def test_a_sweep_killed_at_a_random_moment_is_resumed(served: WorkbenchServer, tmp_path: Path, trial: int) -> None:
    chance = random.Random(1000 + trial)
    runs = tmp_path / "runs"
    root = served.repository_paths[0]
    before, written = served.config("double"), files(root)
    when = kill_at_random(chance, served.name, "double", str(runs))
    measured = stored(runs)
    if trial % 10 == 0:  # the server alone, when the signs of life stop
        wait_until(lambda: not served.control.leases(), 40.0)
        assert served.config("double").text == before.text, when
    result = served.sweep("double", GRID, store=runs, show_progress=False, resume=True, content="as written", **LOAD)
    assert isinstance(result, SweepResult)
    assert (len(result), result.status, result.restored) == (POINTS, "done", True), when
    assert [point.error for point in result] == [""] * POINTS
    now = stored(runs)
    assert len(now) == POINTS, when
    assert {cell: now[cell] for cell in measured} == measured, f"measured again what was there: killed {when}"
    assert {str(point.settings): (point.started, point.throughput) for point in result} == now
    after = served.config("double")
    assert (after.text, after.dirty) == (before.text, before.dirty), when
    assert served.control.leases() == []
    assert files(root) == written, when


def test_a_sweep_of_the_real_triton_killed_at_random_moments(oracle: Path, tmp_path: Path) -> None:
    chance = random.Random(7)
    root = write_repository(tmp_path / "models")
    options = ("--model-control-mode=explicit", "--load-model=*")
    runs = tmp_path / "runs"
    with real_triton(oracle, root, tmp_path / "log", options) as addresses, wb.connect(addresses.http) as server:
        before, written = server.model_config("echo"), files(root)
        for _ in range(3):
            measured = stored(runs)
            when = kill_at_random(chance, addresses.http, "echo", str(runs))
            now = stored(runs)
            assert {cell: now[cell] for cell in measured} == measured, when
        result = server.sweep("echo", GRID, store=runs, show_progress=False, resume=True, content="as written", **LOAD)
        assert isinstance(result, SweepResult)
        assert (len(result), result.status) == (POINTS, "done"), result
        assert [point.error for point in result] == [""] * POINTS
        read = [point.config["dynamic_batching"]["max_queue_delay_microseconds"] for point in result]
        assert [int(value) for value in read] == [0, 0, 70, 70, 80, 80]
        assert {cell: stored(runs)[cell] for cell in now} == now
        assert server.model_config("echo") == before
        assert files(root) == written
