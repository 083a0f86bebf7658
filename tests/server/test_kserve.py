"""The endpoints over a real socket, with a real engine."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import urllib.parse
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.protocol.http_codec import HEADER_LENGTH, decode_response, encode_request
from workbench.protocol.tensors import InferenceRequest, RequestedOutput, Tensor
from workbench.server import RunningServer, ServerOptions

Http = Callable[..., Any]


def echo(values: Any = (1.0, 2.0, 3.0, 4.0), **fields: Any) -> dict[str, Any]:
    entry = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": list(values)} | fields
    return {"inputs": [{key: value for key, value in entry.items() if value is not ...}]}


def test_server_metadata_is_tritons(server: RunningServer, http: Http) -> None:
    answer = http(server, "GET", "/v2")
    assert answer.json["name"] == "triton"
    assert answer.json["extensions"] == [
        "classification", "sequence", "model_repository", "model_repository(unload_dependents)", "schedule_policy",
        "model_configuration", "system_shared_memory", "cuda_shared_memory", "binary_tensor_data", "parameters",
        "statistics", "trace", "logging",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/v2/health/live", 200, None),
        ("GET", "/v2/health/ready", 200, None),
        ("POST", "/v2/health/ready", 405, "Method Not Allowed"),
        ("GET", "/v2/models/echo/ready", 200, None),
        ("GET", "/v2/models/echo/versions/1/ready", 200, None),
        ("GET", "/v2/models/echo/versions/9/ready", 400, "Model version not ready"),
        ("GET", "/v2/models/nobody/ready", 400, "Model version not ready"),
        ("GET", "/v2/models/nobody", 404, "Request for unknown model: 'nobody' is not found"),
        ("GET", "/v2/models/echo/versions/9", 404, "Request for unknown model: 'echo' version 9 is not found"),
        ("GET", "/v2/models/nobody/config", 404, "Request for unknown model: 'nobody' is not found"),
        ("GET", "/v2/models/nobody/stats", 400, "requested model 'nobody' is not available"),
        ("GET", "/v2/models/echo/versions/9/stats", 400, "requested model version is not available for model 'echo'"),
        ("POST", "/v2/models/nobody/infer", 404, "Request for unknown model: 'nobody' is not found"),
        ("GET", "/v2/models/echo/infer", 405, "Method Not Allowed"),
        ("GET", "/v2/models/echo/versions/x", 404, "Not Found"),
        ("GET", "/v2/models/echo/versions/1/trace/setting", 404, "Not Found"),
        ("GET", "/v2/", 404, "Not Found"),
        ("GET", "/nothing", 404, "Not Found"),
        ("GET", "/v2/models/echo/", 404, "Not Found"),
        ("GET", "/v2/repository/index", 405, "Method Not Allowed"),
        ("POST", "/v2/repository/r/models/echo/load", 501, "'repository_name' specification is not supported"),
        ("GET", "/v2/systemsharedmemory/status", 200, None),
        ("GET", "/v2/cudasharedmemory/status", 200, None),
        (
            "GET",
            "/v2/systemsharedmemory/region/x/status",
            404,
            "Unable to find system shared memory region: 'x'",
        ),
        (
            "POST",
            "/v2/systemsharedmemory/region/x/register",
            501,
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
        ),
        (
            "POST",
            "/v2/cudasharedmemory/unregister",
            501,
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
        ),
        ("GET", "/v2/models/nobody/trace/setting", 400, "Request for unknown model : nobody"),
        (
            "GET",
            "/v2/models/echo/versions/99999999999999999999",
            400,
            "failed to get model version from specified version string '99999999999999999999' (details: stol), version "
            "should be an integral value > 0",
        ),
    ],
)
def test_paths_methods_and_texts(
    server: RunningServer, http: Http, method: str, path: str, status: int, error: str | None
) -> None:
    answer = http(server, method, path)
    assert answer.status == status
    if error is None:
        assert answer.body in (b"", b"[]")
    else:
        assert answer.json == {"error": error}


def test_model_metadata_and_config(server: RunningServer, http: Http) -> None:
    assert http(server, "GET", "/v2/models/echo").json == {
        "name": "echo",
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [-1, 4]}],
    }
    assert http(server, "GET", "/v2/models/plain").json["inputs"][0]["shape"] == [2, 2]
    config = http(server, "GET", "/v2/models/echo/config").json
    assert config["max_batch_size"] == 8
    assert config["input"][0]["is_shape_tensor"] is False  # defaults are printed


def test_infer_with_json(server: RunningServer, http: Http) -> None:
    answer = http(server, "POST", "/v2/models/echo/infer", echo() | {"id": "abc"})
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {
        "id": "abc",
        "model_name": "echo",
        "model_version": "1",
        "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}],
    }


def test_infer_with_binary_tensors_both_ways(server: RunningServer, http: Http) -> None:
    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    headers, buffers = encode_request(InferenceRequest("echo", [Tensor.from_numpy("INPUT0", array)]))
    answer = http(server, "POST", "/v2/models/echo/versions/1/infer", b"".join(buffers), headers)
    assert answer.headers["content-type"] == "application/octet-stream"
    response = decode_response(answer.body, int(answer.headers[HEADER_LENGTH.lower()]))
    np.testing.assert_array_equal(response.as_numpy("OUTPUT0"), array)


def test_64_bit_integers_keep_every_digit(server: RunningServer, http: Http) -> None:
    values = [9007199254740993, -(2**63), 2**63 - 1]
    body = {"inputs": [{"name": "INPUT0", "datatype": "INT64", "shape": [1, 3], "data": values}]}
    assert http(server, "POST", "/v2/models/ints/infer", body).json["outputs"][0]["data"] == values


def test_strings_keep_every_byte(server: RunningServer, http: Http) -> None:
    values = ["", "é", "日本", "a" * 5000]
    body = {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1, 4], "data": values}]}
    assert http(server, "POST", "/v2/models/texts/infer", body).json["outputs"][0]["data"] == values


def test_halves_only_go_as_raw_bytes(server: RunningServer, http: Http) -> None:
    array = np.array([[1.5, -2.0]], np.float16)
    request = InferenceRequest("halves", [Tensor.from_numpy("INPUT0", array)])
    headers, buffers = encode_request(request)
    answer = http(server, "POST", "/v2/models/halves/infer", b"".join(buffers), headers)
    response = decode_response(answer.body, int(answer.headers[HEADER_LENGTH.lower()]))
    np.testing.assert_array_equal(response.as_numpy("OUTPUT0"), array)
    headers, buffers = encode_request(request, binary=False)  # the input still goes raw, the output is asked as JSON
    answer = http(server, "POST", "/v2/models/halves/infer", b"".join(buffers), headers)
    assert (answer.status, answer.json["error"]) == (
        400,
        "sending FP16 data via JSON is not supported. Please use the binary data format for output",
    )


def test_raw_binary_requests(server: RunningServer, http: Http) -> None:
    array = np.arange(4, dtype=np.float32)
    answer = http(server, "POST", "/v2/models/echo/infer", array.tobytes(), {HEADER_LENGTH: "0"})
    response = decode_response(answer.body, int(answer.headers[HEADER_LENGTH.lower()]))
    np.testing.assert_array_equal(response.as_numpy("OUTPUT0"), array.reshape(1, 4))
    answer = http(server, "POST", "/v2/models/one_text/infer", b"any\0bytes", {HEADER_LENGTH: "0"})
    response = decode_response(answer.body, int(answer.headers[HEADER_LENGTH.lower()]))
    assert response.as_numpy("OUTPUT0").tolist() == [[b"any\0bytes"]]
    answer = http(server, "POST", "/v2/models/ints/infer", np.arange(3).tobytes(), {HEADER_LENGTH: "0"})
    response = decode_response(answer.body, int(answer.headers[HEADER_LENGTH.lower()]))
    assert response.as_numpy("OUTPUT0").tolist() == [[0, 1, 2]]
    answer = http(server, "POST", "/v2/models/texts/infer", b"x", {HEADER_LENGTH: "0"})
    assert answer.json["error"].endswith("For BYTE datatype raw input 'INPUT0', the model must have input shape [1]")


def test_classification(server: RunningServer, http: Http) -> None:
    body = echo((0.5, 3.0, -1.0, 2.0)) | {"outputs": [{"name": "OUTPUT0", "parameters": {"classification": 3}}]}
    output = http(server, "POST", "/v2/models/echo/infer", body).json["outputs"][0]
    assert (output["datatype"], output["shape"]) == ("BYTES", [1, 3])
    assert output["data"] == ["3.000000:1:one", "2.000000:3", "0.500000:0:zero"]


def bad(name: str) -> Any:
    """Requests that Triton refuses, with its status and text."""
    rid = "[request id: <id_unknown>] "
    table: dict[str, tuple[Any, dict[str, str], int, str]] = {
        "wrong name": (
            echo(name="X"),
            {},
            400,
            "unexpected inference input 'X' for model 'echo'",
        ),
        "wrong type": (
            echo(datatype="INT32", data=[1, 2, 3, 4]),
            {},
            400,
            rid + "inference input 'INPUT0' data-type is 'INT32', but model 'echo' expects 'FP32'",
        ),
        "batch above the maximum": (
            echo([0] * 36, shape=[9, 4]),
            {},
            400,
            rid + "inference request batch-size must be <= 8 for 'echo'",
        ),
        "unknown output": (
            echo() | {"outputs": [{"name": "Z"}]},
            {},
            400,
            "unexpected inference output 'Z' for model 'echo'",
        ),
        "header length no number": (
            b"{}",
            {HEADER_LENGTH: "x"},
            400,
            "Unable to parse Inference-Header-Content-Length, got: x",
        ),
        "header length too large": (
            b"{}",
            {HEADER_LENGTH: "3"},
            400,
            "inference header size should be in range (0, 2), got: 3",
        ),
        "header length negative": (
            b"{}",
            {HEADER_LENGTH: "-1"},
            400,
            "inference header size should be in range (0, 2), got: -1",
        ),
        "unknown encoding": (b"{}", {"Content-Encoding": "br"}, 501, "Unsupported compression type"),
        "broken gzip": (
            b"{}",
            {"Content-Encoding": "gzip"},
            500,
            "encountered inconsistent stream state during decompression",
        ),
    }
    return table[name]


@pytest.mark.parametrize(
    "name",
    [
        "wrong name",
        "wrong type",
        "batch above the maximum",
        "unknown output",
        "header length no number",
        "header length too large",
        "header length negative",
        "unknown encoding",
        "broken gzip",
    ],
)
def test_refused_requests_leave_the_server_up(server: RunningServer, http: Http, name: str) -> None:
    body, headers, status, text = bad(name)
    answer = http(server, "POST", "/v2/models/echo/infer", body, headers)
    assert (answer.status, answer.json) == (status, {"error": text})
    assert http(server, "POST", "/v2/models/echo/infer", echo()).status == 200


def test_wrong_shape_says_what_is_expected(server: RunningServer, http: Http) -> None:
    answer = http(server, "POST", "/v2/models/echo/infer", echo([1, 2, 3], shape=[1, 3]))
    assert answer.status == 400
    assert answer.json["error"].startswith(
        "[request id: <id_unknown>] unexpected shape for input 'INPUT0' for model 'echo'. Expected [-1,4], got [1,3]. "
    )


def test_an_empty_body_is_a_raw_request(server: RunningServer, http: Http) -> None:
    answer = http(server, "POST", "/v2/models/echo/infer", b"")
    assert answer.json["error"] == (
        "[request id: <id_unknown>] input byte size mismatch for input 'raw_input' for model 'echo'. Expected 16, got 0"
    )


@pytest.mark.parametrize("kind", ["gzip", "deflate"])
def test_compression_both_ways(server: RunningServer, http: Http, kind: str) -> None:
    pack = gzip.compress if kind == "gzip" else zlib.compress
    unpack = gzip.decompress if kind == "gzip" else zlib.decompress
    values = list(range(2000))
    body = json.dumps(
        {"inputs": [{"name": "INPUT0", "datatype": "INT64", "shape": [1, 2000], "data": values}]}
    ).encode()
    answer = http(
        server,
        "POST",
        "/v2/models/ints/infer",
        pack(body),
        {"Content-Encoding": kind, "Accept-Encoding": f"identity;q=0.1, {kind};q=0.9"},
    )
    assert answer.headers["content-encoding"] == kind
    assert json.loads(unpack(answer.body))["outputs"][0]["data"] == values
    plain = http(server, "POST", "/v2/models/ints/infer", body, {"Accept-Encoding": f"{kind};q=0"})
    assert "content-encoding" not in plain.headers


def test_a_gzip_bomb_is_refused(repository: Path, start: Any, http: Http) -> None:
    with start(repository, ServerOptions(max_input_size=1 << 20)) as server:
        bomb = gzip.compress(b" " * (8 << 20))
        answer = http(server, "POST", "/v2/models/echo/infer", bomb, {"Content-Encoding": "gzip"})
        assert answer.status == 400
        assert answer.json["error"].startswith("Decompressed data size exceeds the maximum allowed value of 1048576")
        answer = http(server, "POST", "/v2/models/echo/infer", b" " * ((1 << 20) + 1))
        assert (answer.status, answer.json["error"]) == (
            400,
            "request JSON size of 1048577 bytes exceeds the maximum allowed input size of 1048576 bytes. "
            "Use --http-max-input-size to increase the limit.",
        )
        raw = {
            "name": "INPUT0",
            "datatype": "INT64",
            "shape": [1, 1 << 18],
            "parameters": {"binary_data_size": 1 << 21},
        }
        head = json.dumps({"inputs": [raw], "parameters": {"binary_data_output": True}}).encode()
        answer = http(server, "POST", "/v2/models/ints/infer", head + bytes(1 << 21), {HEADER_LENGTH: str(len(head))})
        assert answer.status == 200, "the limit counts JSON; raw tensors may be larger, as in Triton"


def test_large_json_goes_through_a_thread_and_back(server: RunningServer, http: Http) -> None:
    values = list(range(300_000))
    body = {"inputs": [{"name": "INPUT0", "datatype": "INT64", "shape": [1, len(values)], "data": values}]}
    answer = http(server, "POST", "/v2/models/ints/infer", body)
    assert answer.json["outputs"][0]["data"] == values
    body["inputs"][0]["shape"] = [1, 5]
    answer = http(server, "POST", "/v2/models/ints/infer", body)
    assert (answer.status, answer.json["error"]) == (
        500,
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    )


def test_a_large_body_of_strings(server: RunningServer, http: Http) -> None:
    array = np.array([[f"string number {number}" for number in range(80_000)]], dtype=object)
    headers, buffers = encode_request(InferenceRequest("texts", [Tensor.from_numpy("INPUT0", array)]))
    answer = http(server, "POST", "/v2/models/texts/infer", b"".join(buffers), headers)
    response = decode_response(answer.body, int(answer.headers[HEADER_LENGTH.lower()]))
    assert [item.decode() for item in response.as_numpy("OUTPUT0")[0]] == array[0].tolist()


def test_statistics_count_what_was_sent(server: RunningServer, http: Http) -> None:
    def row() -> dict[str, Any]:
        found: dict[str, Any] = http(server, "GET", "/v2/models/plain/stats").json["model_stats"][0]
        return found

    before = row()
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2], [3, 4]]}]}
    for _ in range(3):
        assert http(server, "POST", "/v2/models/plain/infer", body).status == 200
    after = row()
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 3
    assert after["execution_count"] - before["execution_count"] == 3
    every = http(server, "GET", "/v2/models/stats").json["model_stats"]
    assert "plain" in [entry["name"] for entry in every]


def test_repository_index_load_and_unload(server: RunningServer, http: Http) -> None:
    assert http(server, "POST", "/v2/repository/models/texts/unload").status == 200
    http(server, "POST", "/v2/repository/models/texts/load", {})  # waits for the unload's end
    index = http(server, "POST", "/v2/repository/index", {"ready": True}).json
    assert {"name": "texts", "version": "1", "state": "READY"} in index
    answer = http(server, "POST", "/v2/repository/models/nobody/load")
    assert (answer.status, answer.json["error"]) == (
        500,
        "failed to load 'nobody', failed to poll from model repository",
    )
    assert http(server, "POST", "/v2/repository/index", {"ready": 1}).json == {
        "error": "Invalid value for 'ready': expected a boolean"
    }
    answer = http(server, "POST", "/v2/repository/models/echo/load", {"parameters": {"other": "x"}})
    assert (answer.status, answer.json["error"]) == (500, "unexpected error on creating Triton parameter")
    answer = http(server, "POST", "/v2/repository/models/echo/unload", {"parameters": {"unload_dependents": 1}})
    assert (answer.status, answer.json["error"]) == (
        500,
        "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean",
    )


def test_without_explicit_control_loading_is_refused(repository: Path, start: Any, http: Http) -> None:
    with start(repository, ServerOptions(), "none") as server:
        for verb in ("load", "unload"):
            answer = http(server, "POST", f"/v2/repository/models/echo/{verb}")
            assert (answer.status, answer.json["error"]) == (
                503,
                "explicit model load / unload is not allowed if polling is enabled",
            )
        answer = http(server, "POST", "/v2/repository/models/echo/load", {"parameters": {"config": "{}", "file:x": ""}})
        assert answer.status == 501, "file overrides are off unless switched on"


def test_logging_settings(server: RunningServer, http: Http) -> None:
    before = http(server, "GET", "/v2/logging").json
    assert before == {
        "log_file": "", "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0,
        "log_format": "default",
    }  # fmt: skip
    changed = http(server, "POST", "/v2/logging", {"log_verbose_level": 2, "log_info": False, "log_format": "ISO8601"})
    assert changed.json == before | {"log_verbose_level": 2, "log_info": False, "log_format": "ISO8601"}
    for body, status, text in [
        ({"log_file": "x"}, 501, "log file location can not be updated through network protocol"),
        ({"log_format": "x"}, 503, "invalid argument for --log_format, got: x"),
        ({"log_info": 1}, 500, "attempt to access JSON non-boolean as boolean"),
    ]:
        answer = http(server, "POST", "/v2/logging", body)
        assert (answer.status, answer.json["error"]) == (status, text)
    http(server, "POST", "/v2/logging", before | {"log_file": None})


INVALID_TRACE = "Attempting to set invalid trace setting :"


def test_trace_settings(server: RunningServer, http: Http) -> None:
    before = http(server, "GET", "/v2/trace/setting").json
    assert before["trace_level"] == ["OFF"]
    assert before["trace_rate"] == "1000"
    changed = http(server, "POST", "/v2/models/echo/trace/setting", {"trace_rate": "5", "trace_level": ["OFF"]})
    assert changed.json == before | {"trace_rate": "5"}
    assert http(server, "GET", "/v2/trace/setting").json == before
    cleared = http(server, "POST", "/v2/models/echo/trace/setting", {"trace_rate": None, "trace_level": None})
    assert cleared.json == before
    for body, status, text in [
        ({"trace_file": "x"}, 501, "trace file location can not be updated through network protocol"),
        ({"trace_rate": "x"}, 400, "Unable to parse 'trace_rate', got: x"),
        ({"trace_count": "-2"}, 400, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
        ({"trace_level": ["OFF", "TENSORS"]}, 400, "Expect only one trace level 'OFF' is specified"),
        ({"log_frequency": 3}, 500, "attempt to access JSON non-string as string"),
        ({"trace_level": ["TENSORS"], "trace_rate": "5"}, 400, f"{INVALID_TRACE}trace file name is not given"),
        ({"trace_level": ["TENSORS"], "trace_rate": "0"}, 400, f"{INVALID_TRACE}sample rate must be non-zero"),
    ]:
        answer = http(server, "POST", "/v2/trace/setting", body)
        assert (answer.status, answer.json["error"]) == (status, text)
    assert http(server, "GET", "/v2/trace/setting").json == before


def test_a_web_page_cannot_drive_the_server(server: RunningServer, http: Http) -> None:
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example:8000"}):
        answer = http(server, "POST", "/v2/repository/models/echo/unload", {}, headers)
        assert answer.status == 403
    for headers in ({"Origin": "http://localhost:8888"}, {"Host": "localhost:1"}, {"Host": "[::1]:1"}):
        assert http(server, "GET", "/v2", None, headers).status == 200


@pytest.mark.rule("1.17b", "1.17c")
def test_a_client_that_goes_away_cancels_what_waits(tmp_path: Path, write: Any, start: Any) -> None:
    delay = "dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 60000000 }"
    write(tmp_path, "patient", "FP32", [4], delay)
    with start(tmp_path) as server:
        body = json.dumps(echo()).encode()
        client = socket.create_connection(("127.0.0.1", int(server.http_url.rpartition(":")[2])), timeout=10)
        client.sendall(b"POST /v2/models/patient/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        until(lambda: server.engine.snapshot().version("patient").pending == 1)
        client.close()
        until(lambda: server.engine.snapshot().version("patient").failures["CANCELED"] == 1)
        assert server.engine.snapshot().version("patient").pending == 0


@pytest.mark.rule("2.5a", "2.6c", "2.6d")
def test_a_full_queue_and_a_timeout_are_503(tmp_path: Path, write: Any, start: Any, http: Http) -> None:
    delay = "preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 60000000"
    write(tmp_path, "full", "FP32", [4], f"dynamic_batching {{ {delay} default_queue_policy {{ max_queue_size: 1 }} }}")
    policy = "default_queue_policy { default_timeout_microseconds: 20000 }"
    write(tmp_path, "late", "FP32", [4], f"dynamic_batching {{ {delay} {policy} }}")
    with start(tmp_path) as server:
        answer = http(server, "POST", "/v2/models/late/infer", echo())
        assert (answer.status, answer.json["error"]) == (503, "Request timeout expired")
        assert server.engine.snapshot().version("late").failures["REJECTED"] == 1
        first = threading.Thread(target=http, args=(server, "POST", "/v2/models/full/infer", echo()), daemon=True)
        first.start()
        until(lambda: server.engine.snapshot().version("full").pending == 1)
        answer = http(server, "POST", "/v2/models/full/infer", echo() | {"id": "q"})
        assert (answer.status, answer.json["error"]) == (503, "[request id: q] Exceeds maximum queue size")
        assert sum(server.engine.snapshot().version("full").failures.values()) == 0, "as in Triton, it leaves no trace"
        edit = {"edits": [{"path": "dynamic_batching.max_queue_delay_microseconds", "op": "set", "value": 0}]}
        http(server, "POST", "/v2/workbench/models/full/configure", edit, token=server.token)
        first.join(10)
        assert not first.is_alive(), "the edit lets go what waits"


def test_decoupled_models_are_refused(tmp_path: Path, start: Any, http: Http) -> None:
    directory = tmp_path / "stream" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(
        "class TritonPythonModel:\n    def execute(self, requests):\n        return None\n"
    )
    (tmp_path / "stream" / "config.pbtxt").write_text(
        'backend: "python"\nmodel_transaction_policy { decoupled: true }\n'
        'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
        'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
    )
    ensemble = tmp_path / "chain" / "1"
    ensemble.mkdir(parents=True)
    (ensemble.parent / "config.pbtxt").write_text(
        'platform: "ensemble"\n'
        'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
        'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
        'ensemble_scheduling { step { model_name: "stream" model_version: -1 '
        'input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } }\n'
    )
    with start(tmp_path) as server:
        answer = http(server, "POST", "/v2/models/chain/infer", echo(shape=[4]))
        assert answer.status == 501, "an ensemble with a decoupled step is decoupled"
        answer = http(server, "POST", "/v2/models/stream/infer", echo(shape=[4]))
        assert (answer.status, answer.json["error"]) == (
            501,
            "HTTP end point doesn't support models with decoupled transaction policy",
        )


def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen within 5 s")


def test_names_with_odd_characters(tmp_path: Path, write: Any, start: Any, http: Http) -> None:
    names = ["with space", "模型", "a:b", "100%"]
    for name in names:
        write(tmp_path, name, "FP32", [4])
    with start(tmp_path) as server:
        for name in names:
            url = f"/v2/models/{urllib.parse.quote(name, safe='')}"
            assert http(server, "GET", f"{url}/ready").status == 200
            assert http(server, "GET", url).json["name"] == name
            assert http(server, "POST", f"{url}/infer", echo()).json["model_name"] == name
            assert http(server, "POST", f"/v2/repository/models/{urllib.parse.quote(name)}/load").status == 200


def test_requested_outputs_as_the_client_lists_them(server: RunningServer, http: Http) -> None:
    request = InferenceRequest("echo", [Tensor.from_numpy("INPUT0", np.zeros((1, 4), np.float32))])
    request.outputs = [RequestedOutput("OUTPUT0", {"binary_data": False})]
    headers, buffers = encode_request(request)
    answer = http(server, "POST", "/v2/models/echo/infer", b"".join(buffers), headers)
    assert answer.json["outputs"][0]["data"] == [0.0, 0.0, 0.0, 0.0]
