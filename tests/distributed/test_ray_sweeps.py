"""A sweep over a local Ray cluster of three nodes on one device: a local one's rows, and no point lost with a node."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from asking import wait_until
from onnx_models import add_model

import workbench as wb
from workbench.errors import ConnectionFailed, InvalidRequest, Unsupported
from workbench.profiling import Progress, SweepJob, SweepResult
from workbench.records.runs import RunStore
from workbench.session.remote import WorkbenchServer
from workbench.session.sharding import serving_of

try:
    import ray
except ImportError:
    pytest.skip("ray is not installed", allow_module_level=True)

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

DELAY = "dynamic_batching.max_queue_delay_microseconds"
GRID = {DELAY: [0, 20_000, 40_000]}
LOAD: dict[str, Any] = {"concurrency": [1, 2], "duration_s": 0.4, "warmup_s": 0.05, "min_requests": 1}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shared") / "models"
    root.mkdir()
    add_model(root, "double")
    return root


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[WorkbenchServer]:
    with wb.serve(repository) as opened:
        yield opened


def cells(result: SweepResult) -> list[tuple[Any, int]]:
    return [(point.settings[DELAY], point.load.concurrency) for point in result]


def measured_by(result: SweepResult) -> set[str]:
    return {point.environment["served"]["node"] for point in result if not point.error}


def test_no_cluster_is_said(server: WorkbenchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConnectionFailed, match="no Ray cluster"):
        server.sweep("double", {}, store=None, executor="ray", show_progress=False, **LOAD)
    assert not ray.is_initialized(), "one was started instead"
    with pytest.raises(InvalidRequest, match="no executor 'dask'"):
        server.sweep("double", {}, store=None, executor="dask", show_progress=False, **LOAD)


def test_the_rows_are_those_of_a_local_sweep(server: WorkbenchServer, cluster: Any, tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    local = server.sweep("double", GRID, store=store, show_progress=False, **LOAD)
    heard: list[Progress] = []
    far = server.sweep(
        "double", GRID, store=store, executor=wb.Ray(cluster.address), show_progress=False, on_progress=heard.append,
        **LOAD,
    )  # fmt: skip
    assert isinstance(local, SweepResult)
    assert isinstance(far, SweepResult)
    assert far.status == "done", far
    assert cells(far) == cells(local)
    assert far.to_frame().columns.tolist() == local.to_frame().columns.tolist()
    assert [progress.done for progress in heard] == list(range(7))
    assert len(measured_by(far)) == 3, "every node has measured"
    for a, b in zip(local, far, strict=True):
        assert not b.error
        assert b.config == a.config
        assert b.environment["device"] == a.environment["device"]
        # Within their intervals, with what a machine that does other things adds.
        delay_ms = a.settings[DELAY] / 1e3
        if delay_ms and a.load.concurrency == 1:
            assert b.p50_ms == pytest.approx(a.p50_ms, rel=0.15)
    # One at a time on one device: no two windows lie on one another.
    windows = sorted((datetime.fromisoformat(point.started), point.duration_s) for point in far)
    for (begin, length_s), (following, _) in itertools.pairwise(windows):
        assert (following - begin).total_seconds() >= length_s
    # The keys are the same, too: either run goes on as the other would.
    with store.open(local.run_id) as one, store.open(far.run_id) as other:
        assert one.keys() == other.keys()
        assert len(other.keys()) == 6
    again = server.sweep("double", GRID, store=store, resume=far.run_id, show_progress=False, **LOAD)
    assert isinstance(again, SweepResult)
    assert [point.throughput for point in again] == [point.throughput for point in far], "measured again"


def test_a_stop_keeps_what_was_measured(server: WorkbenchServer, cluster: Any) -> None:
    stop = threading.Event()

    def on_progress(progress: Progress) -> None:
        if progress.done == 2:
            stop.set()

    result = server.sweep(
        "double", GRID, store=None, executor=wb.Ray(cluster.address, resource="single"), show_progress=False, stop=stop,
        on_progress=on_progress, **LOAD,
    )  # fmt: skip
    assert isinstance(result, SweepResult)
    assert result.stopped
    assert 2 <= len(result) < 6
    assert not ray.is_initialized(), "what the sweep has connected it disconnects"


def test_what_a_node_lacks_is_said(server: WorkbenchServer, cluster: Any, repository: Path, tmp_path: Path) -> None:
    def refused(kind: type[Exception], match: str, **settings: Any) -> None:
        with pytest.raises(kind, match=match):
            server.sweep(
                "double", {}, store=None, executor=wb.Ray(cluster.address, **settings), show_progress=False, **LOAD
            )

    refused(Unsupported, "offers the resource 'GPU'", resource="GPU")
    other = tmp_path / "other"
    other.mkdir()
    add_model(other, "double")
    (other / "double" / "1" / "notes.txt").write_text("another file")
    refused(InvalidRequest, "other files here", repository=str(other), resource="single")
    server.configure("double", f"{DELAY}=7")
    try:
        refused(InvalidRequest, "edits that are not saved")
    finally:
        server.revert("double")


def test_a_node_lost_in_the_middle_loses_no_point(
    server: WorkbenchServer, cluster: Any, doomed: Any, tmp_path: Path
) -> None:
    name = doomed.node_id[:8]
    store = RunStore(tmp_path / "runs")
    executor = wb.Ray(cluster.address).bind(serving_of(server, "double"))
    job = server.sweep("double", GRID, store=store, executor=executor, show_progress=False, wait=False, **LOAD)
    assert isinstance(job, SweepJob)
    try:
        wait_until(lambda: name in executor.measuring or job.done, timeout_s=150)
        cluster.remove_node(doomed, allow_graceful=False)
    finally:
        result = job.wait(200)
    assert isinstance(result, SweepResult)
    assert result.status == "done", result
    assert cells(result) == [(delay, clients) for delay in GRID[DELAY] for clients in LOAD["concurrency"]]
    assert not any(point.error for point in result)
    (again,) = [point for point in result if any("given out again" in note for note in point.notes)]
    assert again.environment["served"]["node"] != name
    with store.open(result.run_id) as run:
        assert len(run.points()) == len(run.keys()) == 6, "no point is lost and none is there twice"
