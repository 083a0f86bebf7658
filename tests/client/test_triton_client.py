"""Every method of the clients, against the workbench over HTTP and the real Triton over HTTP and gRPC."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from workbench.client import TritonClient, connect
from workbench.errors import ConnectionFailed, InvalidRequest, NotFound, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, RequestedOutput, Tensor

ORACLE = [pytest.mark.full, pytest.mark.oracle, pytest.mark.timeout(240)]


@pytest.fixture(
    params=[
        "workbench-http",
        pytest.param("triton-http", marks=ORACLE),
        pytest.param("triton-grpc", marks=ORACLE),
    ]
)
def client(request: pytest.FixtureRequest) -> Iterator[TritonClient]:
    where, protocol = request.param.split("-")
    addresses = request.getfixturevalue(f"{where}_server")
    made = connect(getattr(addresses, protocol))
    yield made
    made.close()


def request_of(first: float = 1.0, rows: int = 1, **changes: object) -> InferenceRequest:
    x = np.full((rows, 4), first, np.float32)
    t = np.array([[f"zwölf {row}".encode()] for row in range(rows)], dtype=np.object_)
    inputs = [Tensor.from_numpy("X", x), Tensor.from_numpy("T", t)]
    return InferenceRequest("echo", inputs, **changes)  # type: ignore[arg-type]


def test_health_and_metadata(client: TritonClient) -> None:
    assert client.is_live()
    assert client.is_ready()
    assert client.is_model_ready("echo")
    assert client.is_model_ready("echo", "1")
    assert not client.is_model_ready("nobody")
    assert client.server_metadata()["name"] == "triton"
    assert "statistics" in client.server_metadata()["extensions"]
    metadata = client.model_metadata("echo")
    assert metadata["versions"] == ["1"]
    by_name = {entry["name"]: entry for entry in metadata["inputs"]}
    assert by_name["X"]["datatype"] == "FP32"
    assert [int(dim) for dim in by_name["X"]["shape"]] == [-1, 4]


def test_config_is_tritons_json_over_either_protocol(client: TritonClient) -> None:
    config = client.model_config("echo")
    assert config["max_batch_size"] == 4
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 100
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    assert config["input"][0]["dims"] == [4]
    assert config["backend"] == "python"


def test_repository_index(client: TritonClient) -> None:
    (row,) = client.repository_index()
    assert (row["name"], row["version"], row["state"]) == ("echo", "1", "READY")
    assert client.repository_index(ready=True)[0]["name"] == "echo"


def test_infer_gives_the_tensors_back(client: TritonClient) -> None:
    for rows in (1, 3):
        response = client.infer(request_of(2.5, rows, id="r-1"))
        assert response.error is None
        assert response.id == "r-1"
        assert response.model_name == "echo"
        assert response.model_version == 1
        assert response.as_numpy("X_OUT").tolist() == [[2.5] * 4] * rows
        assert [item[0].decode() for item in response.as_numpy("T_OUT")] == [f"zwölf {row}" for row in range(rows)]


def test_only_the_outputs_asked_for(client: TritonClient) -> None:
    response = client.infer(request_of(outputs=[RequestedOutput("T_OUT")]))
    assert [tensor.name for tensor in response.outputs] == ["T_OUT"]


def test_priority_timeout_and_version_are_accepted(client: TritonClient) -> None:
    response = client.infer(request_of(priority=0, timeout=60_000_000, model_version=1))
    assert response.model_version == 1


def test_errors_keep_tritons_text(client: TritonClient) -> None:
    with pytest.raises(WorkbenchError) as refused:
        client.infer(request_of(13.0))
    assert "thirteen is refused" in refused.value.message
    with pytest.raises(WorkbenchError) as unknown:
        client.infer(InferenceRequest("nobody", request_of().inputs))
    assert unknown.value.message == "Request for unknown model: 'nobody' is not found"
    assert isinstance(unknown.value, NotFound | InvalidRequest)
    with pytest.raises(InvalidRequest) as large:
        client.infer(request_of(1.0, rows=5))
    assert "inference request batch-size must be <= 4 for 'echo'" in large.value.message
    assert client.url in str(large.value)  # for people: where it happened
    wrong = InferenceRequest("echo", [Tensor.from_numpy("X", np.zeros((1, 4), np.int32)), request_of().inputs[1]])
    with pytest.raises(InvalidRequest, match="data-type"):
        client.infer(wrong)
    assert client.is_ready()


def test_statistics_count_what_was_asked(client: TritonClient) -> None:
    def counts() -> tuple[int, int]:
        (entry,) = client.statistics("echo")["model_stats"]
        return entry["inference_stats"]["success"]["count"], entry["inference_count"]

    before = counts()
    for _ in range(3):
        client.infer(request_of(rows=2))
    for _ in range(250):  # the real Triton answers before it counts
        after = counts()
        if after[0] - before[0] >= 3:
            break
        threading.Event().wait(0.02)
    assert (after[0] - before[0], after[1] - before[1]) == (3, 6)
    assert client.statistics()["model_stats"][0]["name"] == "echo"
    with pytest.raises(WorkbenchError, match="'nobody' is not"):
        client.statistics("nobody")


def test_load_with_another_configuration_and_back(client: TritonClient) -> None:
    original = client.model_config("echo")
    config = copy.deepcopy(original)
    config["max_batch_size"] = 2
    config["dynamic_batching"].pop("preferred_batch_size", None)  # filled in with 4, which would not fit any more
    client.load("echo", config)
    assert client.model_config("echo")["max_batch_size"] == 2
    with pytest.raises(InvalidRequest, match="must be <= 2"):
        client.infer(request_of(rows=3))
    client.load("echo")  # the files have not changed, so Triton does nothing and the override stays
    assert client.model_config("echo")["max_batch_size"] == 2
    client.load("echo", original)
    assert client.model_config("echo")["max_batch_size"] == 4


def test_unload_and_load(client: TritonClient) -> None:
    client.unload("echo")
    deadline = threading.Event()
    for _ in range(200):
        if not client.is_model_ready("echo"):
            break
        deadline.wait(0.05)
    assert not client.is_model_ready("echo")
    client.load("echo")
    assert client.is_model_ready("echo")
    with pytest.raises(WorkbenchError):
        client.load("nobody")


def test_one_client_serves_many_threads(client: TritonClient) -> None:
    wrong: list[object] = []

    def ask(number: int) -> None:
        for step in range(10):
            value = float(100 * number + step + 20)
            got = client.infer(request_of(value)).as_numpy("X_OUT")[0, 0]
            if got != value:
                wrong.append((number, step, got))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_closed_client_says_so(client: TritonClient) -> None:
    other = connect(client.url)
    other.is_live()
    other.close()
    with pytest.raises(ConnectionFailed, match="closed"):
        other.server_metadata()
