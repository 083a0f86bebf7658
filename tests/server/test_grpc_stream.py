"""ModelInfer and ModelStreamInfer: order, final flags, decoupled models, clients that go away or dawdle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from asking import wait_until
from grpc_models import request, values_of, write_models
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from workbench.server import RunningServer, ServerOptions

STRICT = (("triton_grpc_error", "true"),)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, start: Any) -> Iterator[RunningServer]:
    with start(write_models(tmp_path_factory.mktemp("grpc")), ServerOptions(name="grpc", exit_timeout_s=5.0)) as server:
        yield server


@pytest.fixture
def stub(served: RunningServer) -> Iterator[Any]:
    with grpc.insecure_channel(served.grpc_url.removeprefix("grpc://")) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def stream(stub: Any, *requests: Any, metadata: Any = ()) -> list[Any]:
    return list(stub.ModelStreamInfer(iter(requests), timeout=30, metadata=metadata))


def running(server: RunningServer, model: str) -> int:
    return server.engine.snapshot().version(model).running


def test_answers_come_in_the_order_of_the_requests(stub: Any) -> None:
    found = stream(stub, request("slow", 1, id="slow"), request("echo", 2, id="a"), request("echo", 3, id="b"))
    assert [answer.infer_response.id for answer in found] == ["slow", "a", "b"]
    assert [values_of(answer.infer_response) for answer in found] == [[1], [2], [3]]
    assert all(answer.infer_response.parameters["triton_final_response"].bool_param for answer in found)


def test_a_decoupled_model_answers_between(stub: Any) -> None:
    found = stream(stub, request("slow", 1, id="slow"), request("repeat", 3, id="many"))
    ids = [answer.infer_response.id for answer in found]
    assert ids.count("many") == 3
    assert ids.index("many") < ids.index("slow"), "it does not wait for its turn"
    many = [answer.infer_response for answer in found if answer.infer_response.id == "many"]
    assert [values_of(answer) for answer in many] == [[0], [1], [2]]
    assert not any(answer.parameters["triton_final_response"].bool_param for answer in many)


@pytest.mark.parametrize("count", [0, 2])
def test_the_empty_final_response_comes_when_it_is_asked_for(stub: Any, count: int) -> None:
    asked = request("repeat", count, id="e", model_version="1")
    asked.parameters["triton_enable_empty_final_response"].bool_param = True
    found = [answer.infer_response for answer in stream(stub, asked)]
    assert len(found) == count + 1
    last = found[-1]
    assert (last.id, last.model_name, last.model_version, len(last.outputs)) == ("e", "repeat", "1", 0)
    assert last.parameters["triton_final_response"].bool_param
    assert len(stream(stub, request("repeat", count))) == count


def test_errors_do_not_end_a_stream(stub: Any) -> None:
    found = stream(
        stub, request("fails", 1, id="f"), request("nobody", 1, id="n"), request("repeat", -1), request("echo", 4)
    )
    said = {answer.infer_response.id: answer for answer in found if answer.error_message}
    assert "boom" in said["f"].error_message
    assert said["f"].infer_response.model_name == "fails"
    assert said["n"].error_message == "Request for unknown model: 'nobody' is not found"
    assert said["n"].infer_response == pb.ModelInferResponse(id="n")
    assert said[""].error_message == "no"
    assert [values_of(answer.infer_response) for answer in found if not answer.error_message] == [[4]]


def test_errors_end_a_stream_that_wants_it(stub: Any) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        stream(stub, request("fails", 1), request("slow", 1), request("slow", 2), metadata=STRICT)
    assert raised.value.code() == grpc.StatusCode.INTERNAL
    assert "boom" in raised.value.details()


def test_statuses_of_single_calls(stub: Any) -> None:
    for asked, code, text in [
        (request("fails", 1), "INTERNAL", "boom"),
        (request("repeat", 1), "UNIMPLEMENTED", "ModelInfer RPC doesn't support models with decoupled"),
        (request("nobody", 1), "NOT_FOUND", "Request for unknown model: 'nobody' is not found"),
        (request("echo", 1, model_version="x"), "INVALID_ARGUMENT", "(details: stol)"),
    ]:
        with pytest.raises(grpc.RpcError) as raised:
            stub.ModelInfer(asked, timeout=20)
        assert raised.value.code().name == code
        assert text in raised.value.details()


@pytest.mark.rule("1.17d")
def test_a_cancelled_call_leaves_the_queue(stub: Any, served: RunningServer) -> None:
    first = stub.ModelInfer.future(request("slow", 1), timeout=20)
    wait_until(lambda: running(served, "slow") == 1)
    waiting = stub.ModelInfer.future(request("slow", 2), timeout=20)
    wait_until(lambda: served.engine.snapshot().version("slow").pending == 1)
    waiting.cancel()
    wait_until(lambda: served.engine.snapshot().version("slow").pending == 0)
    assert values_of(first.result()) == [1]
    wait_until(lambda: failures(served, "slow") >= 1)


def failures(server: RunningServer, model: str) -> int:
    return int(server.engine.statistics(model)["model_stats"][0]["inference_stats"]["fail"]["count"])


def test_a_deadline_that_passes_cancels(stub: Any, served: RunningServer) -> None:
    failed = failures(served, "slow")
    first = stub.ModelInfer.future(request("slow", 1), timeout=20)
    wait_until(lambda: running(served, "slow") == 1)
    with pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(request("slow", 2), timeout=0.05)
    assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert values_of(first.result()) == [1]
    wait_until(lambda: failures(served, "slow") == failed + 1)


def test_a_cancelled_stream_stops_its_model(stub: Any, served: RunningServer) -> None:
    call = stub.ModelStreamInfer(iter([request("repeat", 10_000_000)]), timeout=60)
    assert values_of(next(call).infer_response) == [0]
    call.cancel()
    wait_until(lambda: running(served, "repeat") == 0)


def test_a_reader_that_dawdles_holds_the_model_back(tmp_path: Path, start: Any) -> None:
    root = write_models(tmp_path / "models")
    count, size, sent = 800, 25_000, root / "sent"
    with start(root, ServerOptions(name="dawdle", exit_timeout_s=5.0)) as server:
        options = [("grpc.http2.lookahead_bytes", 65_536), ("grpc.http2.bdp_probe", 0)]
        with grpc.insecure_channel(server.grpc_url.removeprefix("grpc://"), options=options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            call = stub.ModelStreamInfer(iter([request("repeat", count, size)]), timeout=60)
            assert len(values_of(next(call).infer_response)) == size

            def written() -> int:
                return sent.stat().st_size if sent.exists() else 0

            last = -1
            while written() != last:  # until the model has come to a stand
                last = written()
                threading.Event().wait(0.5)
            assert 0 < last < count // 2, "of 80 MB only what buffers hold was sent"
            numbers = [values_of(answer.infer_response)[-1] for answer in call]
            assert numbers == [float(number) for number in range(1, count)], "and nothing is lost"


def test_a_stream_takes_no_more_than_it_answers(tmp_path: Path, start: Any) -> None:
    from workbench.server.grpc_options import GrpcLimits, GrpcOptions

    options = ServerOptions(name="few", exit_timeout_s=5.0, grpc=GrpcOptions(limits=GrpcLimits(requests=4)))
    with (
        start(write_models(tmp_path), options) as server,
        grpc.insecure_channel(server.grpc_url.removeprefix("grpc://")) as channel,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        big = np.zeros(10_000, np.float32)
        requests = [request("slow", *big, id=str(number)) for number in range(10)]
        call = stub.ModelStreamInfer(iter(requests), timeout=60)
        most = 0
        answers = []
        for answer in call:
            answers.append(answer.infer_response.id)
            version = server.engine.snapshot().version("slow")
            most = max(most, version.pending + version.running)
        assert answers == [str(number) for number in range(10)]
        assert most <= 4 + 2, "what was taken beyond the limit is what its window let through"
