"""A sweep over a local Ray cluster of three nodes on one device: a local one's rows, and no point lost with a node."""

from __future__ import annotations

import itertools
import math
import threading
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
        keep_samples=True, **LOAD,
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
    # One at a time on one device: from the first request of a point to its last answer nobody else sends any.
    with store.open(far.run_id) as run:
        kept = [run.samples(int(stored["id"])) for stored in run.points()]
    spans = sorted((int(each["sent"].min()), int(each["done"].max())) for each in kept)
    assert len(spans) == 6
    for (_, ended), (following, _) in itertools.pairwise(spans):
        assert following >= ended
    # The keys are the same, too: either run goes on as the other would.
    with store.open(local.run_id) as one, store.open(far.run_id) as other:
        assert one.keys() == other.keys()
        assert len(other.keys()) == 6
    again = server.sweep("double", GRID, store=store, resume=far.run_id, show_progress=False, **LOAD)
    assert isinstance(again, SweepResult)
    assert [point.throughput for point in again] == [point.throughput for point in far], "measured again"


FIGURES = ("throughput", "mean", "p50", "p95", "p99")


def apart(here: list[SweepResult], there: list[SweepResult]) -> list[str]:
    """The figures whose intervals do not overlap, point by point. Of several sweeps each the interval is from the
    lowest end to the highest: what a run says of itself leaves out how runs, each with a server of its own, differ."""
    found = []
    for number in range(len(here[0])):
        for figure in FIGURES:
            ends = []
            for sweeps in (here, there):
                known = [
                    (low, high)
                    for point in (sweep[number] for sweep in sweeps)
                    for low, high in [(getattr(point, f"{figure}_low"), getattr(point, f"{figure}_high"))]
                    if not math.isnan(low) and not math.isnan(high)
                ]
                if known:
                    ends.append((min(low for low, _ in known), max(high for _, high in known)))
            if len(ends) == 2 and (ends[0][1] < ends[1][0] or ends[1][1] < ends[0][0]):
                point = here[0][number]
                found.append(f"{point.load.label}, {dict(point.settings)}: {figure} {ends[0]} here, {ends[1]} on nodes")
    return found


@pytest.mark.timeout(600)
def test_the_figures_are_those_of_a_local_sweep_within_their_intervals(server: WorkbenchServer, cluster: Any) -> None:
    load = {**LOAD, "duration_s": 1.0, "warmup_s": 0.2, "min_requests": 40}
    here: list[SweepResult] = []
    there: list[SweepResult] = []
    for _ in range(4):  # a machine that does other things beside makes runs differ by more
        for sweeps, executor in ((here, None), (there, wb.Ray(cluster.address))):
            result = server.sweep("double", GRID, store=None, executor=executor, show_progress=False, **load)
            assert isinstance(result, SweepResult)
            assert result.status == "done", result
            assert not any(point.error for point in result)
            sweeps.append(result)
        assert cells(there[-1]) == cells(here[-1])
        if not (left := apart(here, there)):
            break
    assert not left, left
    # There is something to compare, and it tells configurations apart: what is asked here could fail.
    slow, slower = here[0][2], here[0][4]
    assert slow.p50_high < slower.p50_low
    assert not any(math.isnan(point.throughput_low) for point in (*here[0], *there[0]))
    assert sum(not math.isnan(point.p50_low) for point in here[0]) >= 4


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
