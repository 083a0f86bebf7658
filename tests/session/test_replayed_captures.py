"""What real clients sent is sent again as it was: the same requests, at the same distances, as often as they came."""

from __future__ import annotations

import queue
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as tg
import tritonclient.http as th
from captured_models import write_summing

import workbench as wb
from workbench.clock import sleep
from workbench.protocol.tensors import InferenceRequest
from workbench.session.capture import Capture
from workbench.session.remote import TritonServer, WorkbenchServer
from workbench.session.server import Server

SECRET = b"what only the client knows"
GAPS_S = (0.02, 0.2, 0.02, 0.02, 0.2, 0.02, 0.02, 0.02, 0.2, 0.02)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkbenchServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        with wb.serve(write_summing(tmp_path_factory.mktemp("replayed"))) as server:
            assert isinstance(server, WorkbenchServer)
            yield server


@pytest.fixture(scope="module")
def over_grpc(served: WorkbenchServer) -> Iterator[TritonServer]:
    with wb.connect(served.grpc_url) as server:
        assert isinstance(server, TritonServer)
        yield server


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # traces are kept beside the notebook


def given(module: Any, values: dict[str, np.ndarray[Any, Any]]) -> list[Any]:
    inputs = []
    for kind, value in values.items():
        inputs.append(module.InferInput(kind, list(value.shape), "BYTES" if kind == "STRING" else kind))
        inputs[-1].set_data_from_numpy(value)
    return inputs


def said(request: InferenceRequest) -> tuple[Any, ...]:
    """All that a model may see of a request."""
    tensors = [(each.name, each.datatype, each.shape, each.data.tolist()) for each in request.inputs]
    wanted = [each.name for each in request.outputs]
    return request.id, request.priority, request.timeout, sorted(request.parameters.items()), wanted, tensors


@pytest.fixture(scope="module")
def traffic(served: WorkbenchServer) -> Capture:
    """Ragged requests of two clients, with long and short pauses between them."""
    with (
        th.InferenceServerClient(served.url.partition("://")[2]) as http,
        tg.InferenceServerClient(served.grpc_url.partition("://")[2]) as grpc,
    ):
        rng = np.random.default_rng(3)
        for opened, module in ((http, th), (grpc, tg)):
            opened.infer("sums", given(module, {"FP32": np.ones((1, 1), np.float32)}))  # it is connected
        with served.capture("sums") as capture:
            for at in range(len(GAPS_S) + 1):
                rows, wide = 1 + at % 3, at % 4
                texts = np.empty((rows, 2), np.object_)
                texts.reshape(-1)[:] = [SECRET + bytes([at]) * at] * (2 * rows)
                values = {
                    "FP32": rng.random((rows, wide), np.float32),
                    "STRING": texts,
                    "BOOL": rng.random((rows, 3)) > 0.5,
                }
                opened, module = ((http, th), (grpc, tg))[at % 2]
                opened.infer(
                    "sums", given(module, values), priority=at % 4, timeout=10_000_000 + at, parameters={"at": at},
                    outputs=[module.InferRequestedOutput("SUM")] if at % 2 else None,
                    request_id="" if at % 4 == 0 else f'ask "{"ü" * at}", {at}',
                )  # fmt: skip
                if at < len(GAPS_S):
                    sleep(GAPS_S[at])
    assert [request.front for _, request in capture.requests()][:3] == ["http", "grpc", "http"]
    return capture


@pytest.mark.parametrize(("protocol", "factor"), [("http", 1.0), ("grpc", 2.0)])
def test_the_same_requests_come_again_at_the_same_distances(
    served: WorkbenchServer, over_grpc: TritonServer, traffic: Capture, protocol: str, factor: float
) -> None:
    server: Server = served if protocol == "http" else over_grpc
    with served.capture("sums") as again:
        point = server.profile("sums", wb.Load.replay(traffic, factor, warmup_s=0))
    assert point.failed == 0
    first, second = traffic.requests(), again.requests()
    assert [said(request) for _, request in second] == [said(request) for _, request in first]
    assert len({request.id for _, request in first}) == 9  # with those that have none
    assert {request.front for _, request in second} == {protocol}
    gaps = np.diff([at for at, _ in second]) * factor
    long = np.array(GAPS_S) > 0.1
    assert np.median(gaps[long]) > 0.15
    assert np.median(gaps[~long]) < 0.1
    assert sum(gaps) == pytest.approx(first[-1][0] - first[0][0], rel=0.3)


def test_sequences_of_a_stream_come_again_with_ids_of_their_own_over_each_front_end(
    served: WorkbenchServer, over_grpc: TritonServer
) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with served.capture("steps") as capture, tg.InferenceServerClient(served.grpc_url.partition("://")[2]) as opened:
        opened.start_stream(lambda result, error: answers.put(error or result))
        for step in range(3):
            for id in (7, "eight"):
                x = np.full((1, 1), step, np.int32)
                opened.async_stream_infer(
                    "steps", given(tg, {"INT32": x}), sequence_id=id, sequence_start=step == 0, sequence_end=step == 2
                )
        assert all(isinstance(answers.get(timeout=10), tg.InferResult) for _ in range(6))
        opened.stop_stream()
        sleep(0.5)  # a step that is late in the replay, as the one before it was answered late, is within its window
    servers: tuple[tuple[Server, str], ...] = ((served, "http"), (over_grpc, "stream"))
    for server, front in servers:
        with served.capture("steps") as again:
            point = server.profile("steps", wb.Load.replay(capture, warmup_s=0))
        assert point.failed == 0, point.errors
        found = [request for _, request in again.requests()]
        ids = [request.sequence_id for request in found]
        assert len(set(ids)) == 2
        assert not {7, "eight"} & set(ids)
        for id in set(ids):
            assert [
                (each.sequence_start, each.sequence_end, int(each.inputs[0].data[0, 0]))
                for each in found
                if each.sequence_id == id
            ] == [(True, False, 0), (False, False, 1), (False, True, 2)]
        assert {request.front for request in found} == {front}


def test_a_capture_is_a_load_by_itself_also_in_the_kernel(kernel: wb.Engine) -> None:
    with kernel.capture("double") as capture:
        for at in range(20):
            kernel.infer("double", {"x": np.full((1 + at % 2, 4), at, np.float32)})
    with kernel.capture("double") as again:
        point = kernel.profile("double", capture)
    assert point.failed == 0
    whole = [said(request) for _, request in capture.requests()]
    assert [said(request) for _, request in again.requests()][-20:] == whole


@pytest.mark.full
@pytest.mark.oracle
@pytest.mark.timeout(120)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_perf_analyzer_sends_comes_again(served: WorkbenchServer, oracle: Path, protocol: str) -> None:
    address = (served.url if protocol == "http" else served.grpc_url).partition("://")[2]
    how = ["--streaming", "--async"] if protocol == "grpc" else ["--sync"]
    with served.capture("steps") as capture:
        done = subprocess.run(
            [
                "timeout", "-s", "KILL", "60", str(oracle / "perf-analyzer"), "-m", "steps", "-i", protocol, "-u",
                address, *how, "--concurrency-range", "2", "--sequence-length", "5", "--measurement-mode",
                "count_windows", "--measurement-request-count", "50", "-s", "999", "-r", "10",
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    trace = capture.trace
    assert len(trace) >= 100
    assert not capture.notes
    assert {request.front for _, request in capture.requests()} == {"http" if protocol == "http" else "stream"}
    with served.capture("steps") as again:
        point = served.profile("steps", wb.Load.replay(capture, 0.5, warmup_s=0))  # it came as fast as could be
    assert point.failed == 0, point.errors
    assert len(again) == len(capture)
    assert np.bincount(again.trace.sequence_of).tolist() == np.bincount(trace.sequence_of).tolist()
    values = [[request.inputs[0].data.tolist() for _, request in each.requests()] for each in (again, capture)]
    assert sorted(values[0]) == sorted(values[1])


@pytest.mark.full
def test_a_sweep_under_captured_traffic_is_shared_without_what_clients_sent(
    served: WorkbenchServer, traffic: Capture, tmp_path: Path
) -> None:
    delay = "dynamic_batching.max_queue_delay_microseconds"
    result: Any = served.sweep(
        "sums", {delay: [0, 1000]}, load=wb.Load.replay(traffic, 4.0, warmup_s=0), store=tmp_path / "store",
        show_progress=False,
    )  # fmt: skip
    assert [point.failed for point in result] == [0, 0]
    (kept,) = (tmp_path / "runs" / "traces").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    store = wb.runs(tmp_path / "store")
    shared = store.share(result.run_id, tmp_path / "shared.sqlite")
    for file in (shared.path, *(tmp_path / "store").iterdir()):
        assert SECRET not in file.read_bytes()
    assert shared.points == 2
    assert shared.captured == 0
