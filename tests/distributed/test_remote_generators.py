"""The load of one point from generators on a local Ray cluster of three nodes: what one generator here would send."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from asking import wait_until

import workbench as wb
from workbench.distributed.ray_generators import RayGenerators
from workbench.errors import InvalidRequest
from workbench.profiling import Load, MeasureOptions, Measurer
from workbench.profiling.load import schedule
from workbench.profiling.measuring import Measured
from workbench.profiling.merging import share_out
from workbench.profiling.plan import Plan
from workbench.profiling.trace import Trace
from workbench.session.measuring import SessionTarget
from workbench.session.remote import WorkbenchServer

try:
    import ray
except ImportError:
    pytest.skip("ray is not installed", allow_module_level=True)

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

LOAD = Load.open(100, duration_s=1.5, max_duration_s=1.5, warmup_s=0.2, max_warmup_s=0.2, generators=2, seed=17)
QUIET_NS = 5_000_000
"""With that seed nothing is sent for so long when the window opens: what is of the warm-up cannot be mistaken."""

BUSY = MeasureOptions(lag_limit_ms=1000)
"""This machine may do other things beside: what is asked here is whether the right requests are sent."""


def gone(pids: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) for pid in pids)


def measured(server: WorkbenchServer, load: Load, place: RayGenerators | None = None, **options: Any) -> Measured:
    with Measurer(SessionTarget(server), "double", options=BUSY, place=place, **options) as measurer:
        return measurer.run(load)


def window_arrivals(found: Measured, many: int) -> Any:
    """When the first requests of the window were scheduled, from its begin, ns."""
    samples = found.samples
    begin = samples.window[0]
    return (samples.scheduled[samples.scheduled >= begin + QUIET_NS] - begin)[:many]


def test_two_generators_on_nodes_send_what_one_here_sends(server: WorkbenchServer, cluster: Any) -> None:
    place = RayGenerators(wb.Ray(cluster.address), server.url, 2)
    try:
        place.open(threading.Event())
        with Measurer(SessionTarget(server), "double", options=BUSY, place=place) as measurer:
            far = measurer.run(LOAD)
            pids = place.pids
            again = measurer.run(Load.closed(4, duration_s=0.3, warmup_s=0, generators=2, min_requests=1))
            assert place.pids == pids, "they are kept from one point to the next"
    finally:
        place.close()
    assert not ray.is_initialized(), "what was connected is disconnected"
    wait_until(lambda: gone(pids), timeout_s=20)
    assert again.samples.ok.sum() > 4
    here = measured(server, Load.from_json({**LOAD.to_json(), "generators": 1}))
    assert far.samples.ok.all()
    assert not [reason for reason in far.point.reasons if "generator" in reason or "clock" in reason]
    # The same arrivals, in the same order: as well as the clocks are known, which is told.
    told = far.samples.extra["generators"]
    close_ns = 4e6 * max(each["uncertainty_ms"] for each in told)
    assert close_ns < QUIET_NS
    whole = schedule(LOAD) - int(LOAD.longest_warmup_s * 1e9)
    asked_for = whole[whole >= 0][:100]
    assert asked_for[0] > 2 * QUIET_NS
    for one in (far, here):
        assert np.abs(window_arrivals(one, 100) - asked_for).max() <= close_ns
    # Each its own part.
    shares = [share.offsets for share in share_out(LOAD, Plan.plain(1))]
    ends = [offsets[(offsets >= int(0.2e9)) & (offsets < int(1.65e9))] for offsets in shares]
    assert [each["n"] for each in told] == pytest.approx([len(each) for each in ends], abs=10)
    # Figures of the same server under the same load; on this machine all clocks are one.
    assert far.point.p50_ms == pytest.approx(here.point.p50_ms, rel=2, abs=5)
    assert far.point.throughput == pytest.approx(here.point.throughput, rel=0.2)
    assert 0 < far.point.mean_batch < 2
    nodes = {str(each["node"]) for each in told}
    assert len(nodes) == 2, "one a node, for each has one device"
    (note,) = [note for note in far.point.notes if "generators on nodes" in note]
    assert all(node in note for node in nodes)


def test_classes_and_replays_come_from_nodes_as_from_here(
    server: WorkbenchServer, cluster: Any, tmp_path: Path
) -> None:
    fixed = {"duration_s": 0.8, "max_duration_s": 0.8, "warmup_s": 0.2, "max_warmup_s": 0.2, "generators": 2}
    mixed = Load.classes({"even": Load.open(50, "constant"), "loop": Load.closed(3)}, **fixed)
    trace = Trace.at(np.arange(60) * 10_000_000).save(tmp_path / "even.trace.npz")
    replay = Load.replay(trace, warmup_s=0.0, generators=2)
    place = RayGenerators(wb.Ray(cluster.address), server.url, 2)
    try:
        place.open(threading.Event())
        with Measurer(SessionTarget(server), "double", options=BUSY, place=place) as measurer:
            classes, replayed = measurer.run(mixed), measurer.run(replay)
    finally:
        place.close()
    for found in (classes, replayed):
        assert found.samples.ok.all()
        assert len({each["node"] for each in found.samples.extra["generators"]}) == 2
        assert all(each["n"] > 10 for each in found.samples.extra["generators"])
    close_ns = 4e6 * max(each["uncertainty_ms"] for each in replayed.samples.extra["generators"])
    gaps = np.diff(replayed.samples.scheduled)
    assert replayed.point.n == 60
    assert np.abs(gaps - 10_000_000).max() <= close_ns
    assert classes.point.classes["even"].n == pytest.approx(40, abs=2)
    assert classes.point.classes["loop"].n > 20


def test_one_that_is_lost_fails_the_point_and_the_others_data_are_kept(
    server: WorkbenchServer, cluster: Any, doomed: Any
) -> None:
    place = RayGenerators(wb.Ray(cluster.address), server.url, 3)
    lost: list[str] = []
    pids: list[int] = []

    def remove(event: Any) -> None:
        if event["event"] == "window" and not lost:
            lost.append(doomed.node_id[:8])
            pids.extend(place.pids)
            cluster.remove_node(doomed, allow_graceful=False)

    try:
        place.open(threading.Event())
        load = Load.closed(6, duration_s=60, warmup_s=0.3, max_warmup_s=0.3, generators=3)
        found = measured(server, load, place, on_event=remove)
        assert not found.point.valid
        assert any(f"on node {lost[0]} was lost" in reason for reason in found.point.reasons), found.point.reasons
        assert len(found.samples.extra["generators"]) == 2
        assert found.samples.ok.sum() > 10
        assert found.samples.seconds < 50
        wait_until(lambda: sum(node["Alive"] for node in ray.nodes()) == 2, timeout_s=60)
        with pytest.raises(InvalidRequest, match="room for 2"):
            server.profile("double", rate=50, generators=3, executor=wb.Ray(cluster.address))
    finally:
        place.close()
    assert len(pids) == 3
    wait_until(lambda: gone(pids), timeout_s=20)


def test_a_stop_ends_them_and_keeps_what_they_have_measured(server: WorkbenchServer, cluster: Any) -> None:
    stop = threading.Event()
    pids: list[int] = []

    def on_event(event: Any) -> None:
        if event["event"] == "progress" and event["answered"] > 20 and not stop.is_set():
            pids.extend(place.pids)
            stop.set()

    place = RayGenerators(wb.Ray(cluster.address), server.url, 2)
    try:
        place.open(stop)
        load = Load.open(100, duration_s=60, warmup_s=0, generators=2)
        found = measured(server, load, place, on_event=on_event, stop=stop)
    finally:
        place.close()
    assert found.samples.stopped
    assert found.samples.ok.sum() > 20
    assert all(each["n"] > 0 for each in found.samples.extra["generators"])
    assert len(pids) == 2
    wait_until(lambda: gone(pids), timeout_s=20)


def test_a_loopback_address_is_refused_for_other_machines(
    server: WorkbenchServer, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.init(address=cluster.address, log_to_driver=False, logging_level=40)
    try:
        monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.7")  # as if the nodes were elsewhere
        with pytest.raises(InvalidRequest, match="an address of this machine only: generators on other machines"):
            server.profile("double", rate=50, generators=2, executor=wb.Ray(cluster.address))
    finally:
        ray.shutdown()


def test_on_the_command_line(
    server: WorkbenchServer, cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from workbench.cli import main

    arguments = ["profile", "double", "-u", server.url, "--rate", "50", "--generators", "2", "-p", "500"]
    arguments += ["--input-data", "random", "--warmup", "0.1", "--runs", str(tmp_path)]
    main([*arguments, "--executor", "ray", "--ray-address", cluster.address, "--json"])
    told = capsys.readouterr()
    assert '"points"' in told.out, told.err
    assert "generators on nodes" in told.out
