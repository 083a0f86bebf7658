"""Triton's own gRPC clients against the server: every method that they offer."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from onnx_models import configured
from tritonclient.grpc import aio
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

import workbench as wb
from workbench.client import connect
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.server import RunningServer, ServerOptions

ARRAY = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)


@pytest.fixture
def client(server: RunningServer) -> Iterator[Any]:
    made = triton.InferenceServerClient(server.grpc_url.removeprefix("grpc://"))
    yield made
    made.close()


def inputs(array: np.ndarray, datatype: str) -> list[Any]:
    tensor = triton.InferInput("INPUT0", list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return [tensor]


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("echo")
    assert client.is_model_ready("echo", "1")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata().name == "triton"
    assert "statistics" in client.get_server_metadata(as_json=True)["extensions"]
    metadata = client.get_model_metadata("echo")
    assert (list(metadata.inputs[0].shape), metadata.inputs[0].datatype, list(metadata.versions)) == (
        [-1, 4],
        "FP32",
        ["1"],
    )
    config = client.get_model_config("echo", "1").config
    assert (config.max_batch_size, config.backend, config.input[0].dims) == (8, "onnxruntime", [4])


def test_infer(client: Any) -> None:
    result = client.infer(
        "echo", inputs(ARRAY, "FP32"), model_version="1", request_id="r7", sequence_id=0, priority=1,
        timeout=1_000_000, headers={"x-any": "1"}, parameters={"mine": "x", "number": 3, "flag": True},
        outputs=[triton.InferRequestedOutput("OUTPUT0")],
    )  # fmt: skip
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ARRAY)
    assert result.get_response().id == "r7"
    assert result.get_output("OUTPUT0").datatype == "FP32"
    again = client.infer("echo", inputs(ARRAY * 2, "FP32"), request_id="r8")
    np.testing.assert_array_equal(again.as_numpy("OUTPUT0"), ARRAY * 2)
    assert again.get_response().id == "r8"


@pytest.mark.parametrize(
    ("model", "datatype", "array"),
    [
        ("texts", "BYTES", np.array([["", "é日本", "long" * 10_000]], dtype=object)),
        ("halves", "FP16", np.array([[0.5, -1.25]], np.float16)),
        ("ints", "INT64", np.array([[-(2**63), 2**63 - 1]], np.int64)),
        ("ints", "INT64", np.arange(100_000, dtype=np.int64).reshape(1, -1)),
        ("plain", "FP32", np.array([[1, 2], [3, 4]], np.float32)),
    ],
)
def test_data_types(client: Any, model: str, datatype: str, array: np.ndarray) -> None:
    for _ in range(2):  # the second time the message's form is known
        found = client.infer(model, inputs(array, datatype)).as_numpy("OUTPUT0")
        if datatype == "BYTES":
            assert [item.decode() for item in found.ravel()] == array.ravel().tolist()
        else:
            np.testing.assert_array_equal(found, array)


def test_async_infer(client: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    for number in range(8):
        client.async_infer(
            "echo", inputs(ARRAY + number, "FP32"), lambda result, error: answers.put((result, error)),
            request_id=str(number),
        )  # fmt: skip
    for _ in range(8):
        result, error = answers.get(timeout=20)
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ARRAY + int(result.get_response().id))


def test_stream(client: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(8):
        client.async_stream_infer("echo", inputs(ARRAY + number, "FP32"), request_id=str(number))
    client.async_stream_infer("nobody", inputs(ARRAY, "FP32"), request_id="wrong")
    client.async_stream_infer("echo", inputs(ARRAY, "FP32"), request_id="last")
    ids = []
    for _ in range(10):
        result, error = answers.get(timeout=20)
        if error is not None:
            assert "Request for unknown model: 'nobody' is not found" in str(error)
            ids.append("wrong")
        else:
            assert result.get_response().parameters["triton_final_response"].bool_param
            ids.append(result.get_response().id)
    assert ids == [*map(str, range(8)), "wrong", "last"], "in the order of the requests"
    client.stop_stream()


def test_classification(client: Any) -> None:
    outputs = [triton.InferRequestedOutput("OUTPUT0", class_count=2)]
    found = client.infer("echo", inputs(ARRAY, "FP32"), outputs=outputs).as_numpy("OUTPUT0")
    assert found.tolist() == [[b"4.000000:3", b"3.000000:2:two"], [b"8.000000:3", b"7.000000:2:two"]]


@pytest.mark.parametrize("kind", ["gzip", "deflate"])
def test_compressed_requests(client: Any, kind: str) -> None:
    array = np.zeros((2, 20_000), np.int64)
    result = client.infer("ints", inputs(array, "INT64"), compression_algorithm=kind)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)


def test_statistics(client: Any) -> None:
    client.infer("echo", inputs(ARRAY, "FP32"))
    row = client.get_inference_statistics("echo", "1").model_stats[0]
    assert row.inference_stats.success.count >= 1
    assert row.batch_stats[0].compute_infer.count >= 1
    assert {row.name for row in client.get_inference_statistics().model_stats} >= {"echo", "texts"}


def test_repository_control(client: Any, repository: Path) -> None:
    assert {"echo", "texts"} <= {row.name for row in client.get_model_repository_index().models}
    client.unload_model("halves")
    assert not client.is_model_ready("halves")
    client.load_model("halves")
    assert client.is_model_ready("halves")
    client.unload_model("nobody", unload_dependents=True)
    with pytest.raises(InferenceServerException, match="failed to load 'nobody', failed to poll from model repository"):
        client.load_model("nobody")
    config = client.get_model_config("plain", as_json=True)["config"]
    config["parameters"] = {"k": {"string_value": "v"}}
    client.load_model("plain", config=json.dumps(config))
    assert client.get_model_config("plain").config.parameters["k"].string_value == "v"
    weights = (repository / "echo" / "1" / "model.onnx").read_bytes()
    client.load_model(
        "brought_by_grpc", config=json.dumps(configured("brought_by_grpc")), files={"file:1/model.onnx": weights}
    )
    np.testing.assert_array_equal(client.infer("brought_by_grpc", inputs(ARRAY, "FP32")).as_numpy("OUTPUT0"), ARRAY)
    client.unload_model("brought_by_grpc")
    for name in ("../evil", "A" * 256):
        with pytest.raises(InferenceServerException) as caught:
            client.load_model("brought_by_grpc", config="{}", files={f"file:{name}": b"x"})
        assert caught.value.status() == "StatusCode.INTERNAL"
        assert caught.value.message() == "failed to load 'brought_by_grpc', failed to poll from model repository"
    assert client.is_server_live()


def test_settings(client: Any, server: RunningServer) -> None:
    assert client.get_trace_settings().settings["trace_level"].value == ["OFF"]
    found = client.update_trace_settings("echo", {"trace_rate": "7"}).settings
    assert found["trace_rate"].value == ["7"]
    assert client.get_trace_settings().settings["trace_rate"].value == ["1000"]
    client.update_trace_settings("echo", {"trace_rate": None})
    assert client.get_trace_settings("echo").settings["trace_rate"].value == ["1000"]
    assert client.get_log_settings().settings["log_info"].bool_param
    assert client.update_log_settings({"log_verbose_level": 1}).settings["log_verbose_level"].uint32_param == 1
    assert server.api.logging.verbose, "one set of settings for both front ends"
    client.update_log_settings({"log_verbose_level": 0})
    with pytest.raises(InferenceServerException, match="log file location can not be updated"):
        client.update_log_settings({"log_file": "x"})


def test_shared_memory(repository: Path, start: Any) -> None:
    with start(repository, ServerOptions(name="sharing", allow_client_shm=True, exit_timeout_s=5.0)) as server:
        client = triton.InferenceServerClient(server.grpc_url.removeprefix("grpc://"))
        handle = shm.create_shared_memory_region("both", "/workbench_grpc_test", 64)
        try:
            shm.set_shared_memory_region(handle, [ARRAY])
            client.register_system_shared_memory("both", "/workbench_grpc_test", 64)
            region = client.get_system_shared_memory_status().regions["both"]
            assert (region.key, region.byte_size) == ("/workbench_grpc_test", 64)
            source = triton.InferInput("INPUT0", [2, 4], "FP32")
            source.set_shared_memory("both", 32)
            target = triton.InferRequestedOutput("OUTPUT0")
            target.set_shared_memory("both", 32, offset=32)
            result = client.infer("echo", [source], outputs=[target])
            assert list(result.get_response().raw_output_contents) == [b""]
            np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [2, 4], offset=32), ARRAY)
            assert not client.get_cuda_shared_memory_status().regions
            client.unregister_cuda_shared_memory()
            with pytest.raises(InferenceServerException):
                client.register_cuda_shared_memory("gpu", b"", 0, 64)
            client.unregister_system_shared_memory("both")
            assert not client.get_system_shared_memory_status().regions
        finally:
            shm.destroy_shared_memory_region(handle)
            client.close()


def test_the_asynchronous_client(server: RunningServer) -> None:
    async def use() -> None:
        async with aio.InferenceServerClient(server.grpc_url.removeprefix("grpc://")) as client:
            assert await client.is_server_live()
            assert await client.is_server_ready()
            assert await client.is_model_ready("echo")
            assert (await client.get_server_metadata()).name == "triton"
            assert (await client.get_model_metadata("echo")).name == "echo"
            assert (await client.get_model_config("echo")).config.name == "echo"
            assert (await client.get_inference_statistics("echo")).model_stats
            assert (await client.get_model_repository_index()).models
            assert (await client.get_trace_settings()).settings
            assert (await client.get_log_settings()).settings
            assert not (await client.get_system_shared_memory_status()).regions
            assert not (await client.get_cuda_shared_memory_status()).regions
            await client.load_model("texts")
            results = await asyncio.gather(*(client.infer("echo", inputs(ARRAY + k, "FP32")) for k in range(16)))
            for number, result in enumerate(results):
                np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ARRAY + number)

            async def requests() -> Any:
                for number in range(5):
                    yield {"model_name": "echo", "inputs": inputs(ARRAY, "FP32"), "request_id": str(number)}

            ids = [result.get_response().id async for result, _ in client.stream_infer(requests())]
            assert ids == list("01234")

    asyncio.run(use())


def test_our_own_client(server: RunningServer) -> None:
    with connect(server.grpc_url) as client:
        assert client.is_ready()
        assert client.server_metadata()["name"] == "triton"
        tensor = Tensor.from_numpy("INPUT0", ARRAY)
        answer = client.infer(InferenceRequest("echo", [tensor], id="mine"))
        assert answer.id == "mine"
        np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), ARRAY)
    connected = wb.connect(server.grpc_url)
    assert connected.infer("echo", {"INPUT0": ARRAY})["OUTPUT0"].tolist() == ARRAY.tolist()
    assert "echo" in [model.name for model in connected.models()]


def test_the_servers_addresses_are_known(server: RunningServer) -> None:
    assert server.info()["grpc"] == server.grpc_url
    assert server.grpc_url.startswith("grpc://127.0.0.1:")
