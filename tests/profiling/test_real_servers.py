"""Measuring a server of the workbench and the real Triton, by the same code."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from served_echo import Addresses

from workbench.profiling import Load, Measurer, Point, ServerTarget, WorkbenchTarget, measure, sweep
from workbench.records import RunStore

DELAY = "dynamic_batching.max_queue_delay_microseconds"


def target_of(addresses: Addresses) -> WorkbenchTarget:
    return WorkbenchTarget(addresses.http, addresses.token, repositories=[addresses.root])


def check_split(point: Point) -> None:
    """What must hold between the server's side and the client's."""
    assert point.n > 20
    assert point.failed == 0
    assert point.request_ms >= point.queue_ms + point.compute_infer_ms
    assert point.request_ms <= point.mean_ms * 1.3 + 1
    assert sum(size * count for size, count in point.batch_rows.items()) == pytest.approx(point.n, rel=0.3)
    assert 1 <= point.mean_batch <= 4
    assert point.inputs == "example_inputs.json"


def test_a_point_on_the_workbench_knows_why_batches_left(workbench_server: Addresses) -> None:
    load = Load.closed(8, duration_s=0.6, warmup_s=0.2, min_requests=0)
    with Measurer(target_of(workbench_server), "echo") as measurer:
        measured = measurer.run(load)
    point = measured.point
    check_split(point)
    assert point.epoch is not None
    assert not any("counted" in reason or "lost" in reason for reason in point.reasons)
    assert set(point.batch_reasons) <= {"full", "preferred", "delay", "no_delay", "shapes"}
    by_rows: dict[int, int] = {}
    for sizes in point.batch_reasons.values():
        for rows, count in sizes.items():
            by_rows[rows] = by_rows.get(rows, 0) + count
    assert sum(by_rows.values()) == pytest.approx(sum(point.batch_rows.values()), rel=0.2)
    assert point.server_cpu > 0.01  # the model's own process counts too
    # Each request of the generator has a record, and the stamps of both sides fit.
    assert measured.records is not None
    requests = measured.records.requests
    assert len(requests["seq"]) == len(measured.samples.sent)
    assert requests["arrival"].min() >= measured.samples.sent.min()
    assert requests["end"].max() <= measured.samples.done.max()


def test_a_sweep_on_the_workbench_restores_comments_and_all(workbench_server: Addresses, tmp_path: Path) -> None:
    target = target_of(workbench_server)
    before = target.control.config("echo")
    file_before = (workbench_server.root / "echo" / "config.pbtxt").read_bytes()
    load = Load.open(150, duration_s=0.6, warmup_s=0.2, min_requests=0)
    result = sweep(target, "echo", {DELAY: [0, 20000], "max_batch_size": [4]}, [load], store=RunStore(tmp_path))
    assert [point.error for point in result] == ["", ""]
    assert [point.config["dynamic_batching"]["max_queue_delay_microseconds"] for point in result] == [0, 20000]
    # The same arrivals, and the delay does what it is for.
    assert result[1].mean_batch > result[0].mean_batch + 0.5
    assert "delay" in result[1].batch_reasons
    assert result[1].queue_ms > result[0].queue_ms + 2
    assert result.restored
    after = target.control.config("echo")
    assert after["text"] == before["text"]
    assert after["epoch"] > before["epoch"]
    assert (workbench_server.root / "echo" / "config.pbtxt").read_bytes() == file_before
    frame = result.to_frame()
    assert frame[DELAY].tolist() == [0, 20000]
    target.close()


def test_what_the_server_refuses_is_a_row(workbench_server: Addresses) -> None:
    load = Load.closed(1, duration_s=0.1, warmup_s=0.0, min_requests=0)
    result = sweep(target_of(workbench_server), "echo", {"max_batch_size": [-1, 4]}, [load])
    assert "refused" in result[0].error
    assert result[1].error == ""
    assert result.restored


def test_a_request_that_the_model_refuses_is_counted_by_its_text(workbench_server: Addresses) -> None:
    inputs = {"X": np.full((1, 4), 13, np.float32), "T": np.array([[b"x"]], dtype=np.object_)}
    load = Load.closed(2, duration_s=0.2, warmup_s=0.0, min_requests=0)
    point = measure(target_of(workbench_server), "echo", load, inputs=inputs)
    assert not point.valid
    assert any("thirteen is refused" in text for text in point.errors)


@pytest.mark.full
@pytest.mark.oracle
@pytest.mark.timeout(240)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_real_triton(triton_server: Addresses, protocol: str) -> None:
    target = ServerTarget(getattr(triton_server, protocol), repositories=[triton_server.root], pid=triton_server.pid)
    assert target.protocol == protocol
    for load in (Load.closed(8, duration_s=0.8, warmup_s=0.2), Load.open(200, duration_s=0.8, warmup_s=0.2)):
        point = measure(target, "echo", load)
        check_split(point)
        assert not any("counted" in reason or "others used" in reason for reason in point.reasons)
        assert point.batch_reasons == {}  # Triton keeps no records
        assert point.epoch is None
        assert not math.isnan(point.server_cpu)
    inputs = {"X": np.full((1, 4), 13, np.float32), "T": np.array([[b"x"]], dtype=np.object_)}
    point = measure(target, "echo", Load.closed(2, duration_s=0.2, warmup_s=0.0, min_requests=0), inputs=inputs)
    assert any("thirteen is refused" in text for text in point.errors)
    target.close()


@pytest.mark.full
@pytest.mark.oracle
@pytest.mark.timeout(240)
def test_a_grpc_server_that_is_not_there() -> None:
    from free_ports import free_ports

    from workbench.errors import ConnectionFailed

    (port,) = free_ports(1)
    with pytest.raises(ConnectionFailed):
        measure(ServerTarget(f"grpc://127.0.0.1:{port}"), "echo", Load.closed(1))
