"""Triton's own HTTP clients against the server: every method that it offers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import configured
from tritonclient import http
from tritonclient.http import aio

from workbench.server import RunningServer


@pytest.fixture
def client(server: RunningServer) -> Iterator[Any]:
    made = http.InferenceServerClient(server.http_url.removeprefix("http://"), concurrency=4)
    yield made
    made.close()


def inputs(array: np.ndarray, datatype: str, *, binary: bool = True) -> list[Any]:
    tensor = http.InferInput("INPUT0", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return [tensor]


ARRAY = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("echo")
    assert client.is_model_ready("echo", "1")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata()["name"] == "triton"
    assert client.get_model_metadata("echo")["inputs"][0]["shape"] == [-1, 4]
    assert client.get_model_config("echo", "1")["max_batch_size"] == 8


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
def test_infer(client: Any, binary_in: bool, binary_out: bool | None) -> None:
    outputs = None if binary_out is None else [http.InferRequestedOutput("OUTPUT0", binary_data=binary_out)]
    result = client.infer("echo", inputs(ARRAY, "FP32", binary=binary_in), outputs=outputs, request_id="r7")
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ARRAY)
    assert result.get_response()["id"] == "r7"
    assert result.get_output("OUTPUT0")["datatype"] == "FP32"


def test_infer_with_every_parameter(client: Any) -> None:
    result = client.infer(
        "echo",
        inputs(ARRAY, "FP32"),
        model_version="1",
        sequence_id=0,
        priority=1,
        timeout=1_000_000,
        headers={"X-Any": "1"},
        query_params={"q": "1"},
        parameters={"mine": "x", "number": 3, "flag": True},
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ARRAY)
    with pytest.raises(Exception, match="triton_"):
        client.infer("echo", inputs(ARRAY, "FP32"), parameters={"triton_x": 1})


@pytest.mark.parametrize("binary", [True, False])
def test_strings(client: Any, binary: bool) -> None:
    array = np.array([["", "é日本", "long" * 1000]], dtype=object)
    result = client.infer("texts", inputs(array, "BYTES", binary=binary))
    assert [item.decode() for item in result.as_numpy("OUTPUT0").ravel()] == array.ravel().tolist()


def test_halves(client: Any) -> None:
    array = np.array([[0.5, -1.25]], np.float16)
    np.testing.assert_array_equal(client.infer("halves", inputs(array, "FP16")).as_numpy("OUTPUT0"), array)


def test_async_infer(client: Any) -> None:
    pending = [
        client.async_infer("echo", inputs(ARRAY + number, "FP32"), request_id=str(number)) for number in range(8)
    ]
    for number, request in enumerate(pending):
        result = request.get_result()
        assert result.get_response()["id"] == str(number)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ARRAY + number)


@pytest.mark.parametrize("binary", [True, False])
def test_classification(client: Any, binary: bool) -> None:
    outputs = [http.InferRequestedOutput("OUTPUT0", binary_data=binary, class_count=2)]
    found = client.infer("echo", inputs(ARRAY, "FP32"), outputs=outputs).as_numpy("OUTPUT0")
    assert [[item.decode() if isinstance(item, bytes) else item for item in row] for row in found] == [
        ["4.000000:3", "3.000000:2:two"],
        ["8.000000:3", "7.000000:2:two"],
    ]


@pytest.mark.parametrize("kind", ["gzip", "deflate"])
def test_compression(client: Any, kind: str) -> None:
    array = np.arange(4000, dtype=np.int64).reshape(2, 2000)
    result = client.infer(
        "ints", inputs(array, "INT64"), request_compression_algorithm=kind, response_compression_algorithm=kind
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)


def test_statistics(client: Any) -> None:
    client.infer("echo", inputs(ARRAY, "FP32"))
    found = client.get_inference_statistics("echo", "1")["model_stats"][0]
    assert found["inference_stats"]["success"]["count"] >= 1
    assert found["batch_stats"]
    assert {row["name"] for row in client.get_inference_statistics()["model_stats"]} >= {"echo", "texts"}


def test_repository_control(client: Any, repository: Path) -> None:
    assert {"echo", "texts"} <= {row["name"] for row in client.get_model_repository_index()}
    client.unload_model("halves")
    assert not client.is_model_ready("halves")
    client.load_model("halves")
    assert client.is_model_ready("halves")
    client.unload_model("nobody", unload_dependents=True)
    with pytest.raises(Exception, match="failed to load 'nobody', failed to poll from model repository"):
        client.load_model("nobody")


def test_load_with_config_and_files(client: Any, repository: Path) -> None:
    config = client.get_model_config("plain")
    config["max_batch_size"] = 0
    config["parameters"] = {"k": {"string_value": "v"}}
    client.load_model("plain", config=json.dumps(config))
    assert client.get_model_config("plain")["parameters"] == {"k": {"string_value": "v"}}
    weights = (repository / "echo" / "1" / "model.onnx").read_bytes()
    client.load_model("brought", config=json.dumps(configured("brought")), files={"file:1/model.onnx": weights})
    np.testing.assert_array_equal(client.infer("brought", inputs(ARRAY, "FP32")).as_numpy("OUTPUT0"), ARRAY)
    client.unload_model("brought")
    with pytest.raises(Exception, match="failed to load 'echo', failed to poll from model repository"):
        client.load_model("echo", config='{"nonsense": 1}')
    assert client.is_model_ready("echo"), "what served before still does"


def test_settings(client: Any) -> None:
    assert client.get_trace_settings()["trace_level"] == ["OFF"]
    changed = client.update_trace_settings(model_name="echo", settings={"trace_rate": "7"})
    assert changed["trace_rate"] == "7"
    assert client.update_trace_settings(model_name="echo", settings={"trace_rate": None})["trace_rate"] == "1000"
    assert client.get_trace_settings("echo")["trace_count"] == "-1"
    before = client.get_log_settings()
    assert client.update_log_settings({"log_verbose_level": 1})["log_verbose_level"] == 1
    assert client.update_log_settings({"log_verbose_level": 0}) == before


def test_shared_memory_is_off(client: Any) -> None:
    assert client.get_system_shared_memory_status() == []
    assert client.get_cuda_shared_memory_status() == []
    for attempt in (
        lambda: client.register_system_shared_memory("r", "/k", 16),
        client.unregister_system_shared_memory,
        lambda: client.register_cuda_shared_memory("r", b"raw", 0, 16),
        client.unregister_cuda_shared_memory,
    ):
        with pytest.raises(Exception, match="Client shared memory is disabled"):
            attempt()


def test_errors_reach_the_client(client: Any) -> None:
    with pytest.raises(Exception, match="Request for unknown model: 'nobody' is not found") as caught:
        client.infer("nobody", inputs(ARRAY, "FP32"))
    assert caught.value.status() == "404"
    with pytest.raises(Exception, match="batch-size must be <= 8"):
        client.infer("echo", inputs(np.zeros((9, 4), np.float32), "FP32"))


def test_generated_and_parsed_bodies(client: Any, server: RunningServer) -> None:
    body, length = http.InferenceServerClient.generate_request_body(inputs(ARRAY, "FP32"))
    import urllib.request

    request = urllib.request.Request(
        f"{server.http_url}/v2/models/echo/infer", body, {"Inference-Header-Content-Length": str(length)}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        header = answer.headers["Inference-Header-Content-Length"]
        result = http.InferenceServerClient.parse_response_body(answer.read(), header_length=int(header))
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ARRAY)


def test_the_asyncio_client(server: RunningServer) -> None:
    async def use() -> None:
        async with aio.InferenceServerClient(server.http_url.removeprefix("http://")) as client:
            assert await client.is_server_live()
            assert await client.is_server_ready()
            assert await client.is_model_ready("echo")
            assert (await client.get_server_metadata())["name"] == "triton"
            assert (await client.get_model_metadata("echo"))["name"] == "echo"
            assert (await client.get_model_config("echo"))["name"] == "echo"
            assert {row["name"] for row in await client.get_model_repository_index()} >= {"echo"}
            results = await asyncio.gather(*(client.infer("echo", inputs(ARRAY + n, "FP32")) for n in range(8)))
            for number, result in enumerate(results):
                np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ARRAY + number)
            result = await client.infer(
                "echo",
                inputs(ARRAY, "FP32"),
                request_compression_algorithm="gzip",
                response_compression_algorithm="deflate",
            )
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ARRAY)
            assert (await client.get_inference_statistics("echo"))["model_stats"]
            await client.unload_model("halves")
            await client.load_model("halves")
            assert (await client.get_trace_settings())["trace_mode"] == "triton"
            await client.update_trace_settings(settings={"trace_rate": None})
            assert (await client.get_log_settings())["log_info"] is True
            await client.update_log_settings({"log_info": True})
            assert await client.get_system_shared_memory_status() == []
            assert await client.get_cuda_shared_memory_status() == []
            with pytest.raises(Exception, match="Client shared memory is disabled"):
                await client.register_system_shared_memory("r", "/k", 16)
            with pytest.raises(Exception, match="unknown model"):
                await client.infer("nobody", inputs(ARRAY, "FP32"))

    asyncio.run(use())
