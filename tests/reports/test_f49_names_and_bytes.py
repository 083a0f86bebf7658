"""What JSON and gRPC must carry whole: names of any characters, 64-bit integers, bytes that are no text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from wire_models import TYPES, add_echo, serving

from workbench.server import RunningServer

NAMES = ("a:b", "with space", "模型", "100%", "é+ü", "q?x", "a&b=c", "#1")
"""Names of models. One with ``/`` cannot be a folder; as a tensor's name, an id or a parameter it can come."""
TEXTS = ("a/b:c d", "模型/输入 ", '"\\', "\u2028\x7f", "😀")
NO_TEXT = [b"\xff\xfe", b"\x80", b"a\xc3", b"\xed\xa0\x80", b"\0", b"a\0b", "é".encode("latin-1"), b""]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("names")
    for kind in TYPES:
        add_echo(root, kind.lower(), kind)
    for name in NAMES:
        add_echo(root, name, "FP32")
    with serving(root) as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, served: RunningServer) -> Iterator[Any]:
    url = served.http_url if request.param == "http" else served.grpc_url
    module = http_client if request.param == "http" else grpc_client
    with module.InferenceServerClient(url.partition("://")[2]) as made:
        made.module = module
        yield made


def post(
    server: RunningServer, path: str, body: bytes, headers: dict[str, str] | None = None
) -> tuple[int, Any, bytes]:
    connection = HTTPConnection(server.http_url.removeprefix("http://"), timeout=30)
    try:
        connection.request("POST", path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def echo(client: Any, model: str, array: np.ndarray[Any, Any], datatype: str, **more: Any) -> Any:
    """What an identity gives back, through Triton's client."""
    tensor = client.module.InferInput("IN0", list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return client.infer(model, [tensor], **more)


@pytest.mark.parametrize("name", NAMES)
def test_f49_server_3711_models_of_any_name(served: RunningServer, client: Any, name: str) -> None:
    given = np.array([[1, 2]], np.float32)
    assert client.is_model_ready(name)
    metadata = client.get_model_metadata(name)
    assert (metadata["name"] if isinstance(metadata, dict) else metadata.name) == name
    answer = echo(client, name, given, "FP32")
    np.testing.assert_array_equal(answer.as_numpy("OUT"), given)
    found = answer.get_response()
    assert (found["model_name"] if isinstance(found, dict) else found.model_name) == name
    index = client.get_model_repository_index()
    rows = index if isinstance(index, list) else index.models
    assert name in [row["name"] if isinstance(row, dict) else row.name for row in rows]


@pytest.mark.parametrize("text", TEXTS)
def test_f49_server_3711_ids_and_unknown_names_come_back_whole(client: Any, text: str) -> None:
    found = echo(client, "fp32", np.array([[1]], np.float32), "FP32", request_id=text).get_response()
    assert (found["id"] if isinstance(found, dict) else found.id) == text
    tensor = client.module.InferInput(text, [1, 1], "FP32")
    tensor.set_data_from_numpy(np.array([[1]], np.float32))
    with pytest.raises(Exception, match="unexpected inference input") as caught:
        client.infer("fp32", [tensor])
    assert text in str(caught.value)
    with pytest.raises(Exception, match="unexpected inference output") as caught:
        echo(client, "fp32", np.array([[1]], np.float32), "FP32",
             outputs=[client.module.InferRequestedOutput(text)])  # fmt: skip
    assert text in str(caught.value)


@pytest.mark.parametrize("binary_in", [False, True])
@pytest.mark.parametrize("binary_out", [False, True])
def test_f51_server_8821_integers_of_64_bits_digit_by_digit(
    served: RunningServer, binary_in: bool, binary_out: bool
) -> None:
    for datatype, kind, values in (
        ("INT64", np.int64, [-(2**63), 2**63 - 1, 2**53 + 1, -(2**53) - 1, 0]),
        ("UINT64", np.uint64, [2**64 - 1, 2**63, 2**53 + 1, 0]),
    ):
        entry: dict[str, Any] = {"name": "IN0", "datatype": datatype, "shape": [1, len(values)]}
        tail = b""
        if binary_in:
            tail = np.array(values, kind).tobytes()
            entry["parameters"] = {"binary_data_size": len(tail)}
        else:
            entry["data"] = values
        outputs = [{"name": "OUT", "parameters": {"binary_data": binary_out}}]
        head = json.dumps({"inputs": [entry], "outputs": outputs}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))} if binary_in else {}
        status, got, body = post(served, f"/v2/models/{datatype.lower()}/infer", head + tail, headers)
        assert status == 200, body
        if binary_out:
            assert np.frombuffer(body[int(got["Inference-Header-Content-Length"]) :], kind).tolist() == values
        else:
            assert str(values).replace(" ", "").encode() in body, "as they are written, not by way of a double"


def test_f51_server_8821_integers_beyond_64_bits_are_refused(served: RunningServer) -> None:
    for datatype, value in (("INT64", 2**63), ("INT64", -(2**63) - 1), ("UINT64", 2**64), ("UINT64", -1)):
        body = {"inputs": [{"name": "IN0", "datatype": datatype, "shape": [1, 1], "data": [value]}]}
        status, _, answer = post(served, f"/v2/models/{datatype.lower()}/infer", json.dumps(body).encode())
        assert status in (400, 500)
        assert json.loads(answer)["error"]


def test_f49_server_3711_bytes_that_are_no_text_through_the_clients(client: Any) -> None:
    given = np.array([NO_TEXT], np.object_)
    assert echo(client, "string", given, "BYTES").as_numpy("OUT").ravel().tolist() == NO_TEXT


def test_f49_server_3711_bytes_that_are_no_text_in_json(served: RunningServer) -> None:
    """Triton passes the bytes of a JSON string on as they are, both ways."""
    for value in NO_TEXT[:4]:
        body = b'{"inputs":[{"name":"IN0","datatype":"BYTES","shape":[1,2],"data":["%b","x"]}]}' % value
        status, _, answer = post(served, "/v2/models/string/infer", body)
        assert status == 200, answer
        assert b'"data":["%b","x"]' % value in answer
        head = b'{"inputs":[{"name":"IN0","datatype":"BYTES","shape":[1,1],"parameters":{"binary_data_size":%d}}]}'
        head %= len(value) + 4
        status, _, answer = post(
            served, "/v2/models/string/infer", head + len(value).to_bytes(4, "little") + value,
            {"Inference-Header-Content-Length": str(len(head))},
        )  # fmt: skip
        assert (status, b'"data":["%b"]' % value in answer) == (200, True)


@pytest.mark.parametrize("kind", ["generate", "generate_stream"])
def test_f49_server_3711_generate_carries_them_too(served: RunningServer, kind: str) -> None:
    for value in (b"\xff\xfe", "模型 a/b:c".encode()):
        status, _, answer = post(served, f"/v2/models/string/{kind}", b'{"IN0":"%b"}' % value)
        assert (status, value in answer) == (200, True), answer
    status, _, answer = post(served, f"/v2/models/int64/{kind}", b'{"IN0":[9007199254740993,-9223372036854775808]}')
    assert (status, b"[9007199254740993,-9223372036854775808]" in answer) == (200, True), answer
