"""Public reports on what goes over HTTP: numbers, data types, compression, shapes (F49 to F58)."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tritonclient import http
from wire_models import LIMIT, TYPES, add_echo, serving

import workbench as wb
from workbench.server import RunningServer

ODD = [math.nan, math.inf, -math.inf, 1.0, 2.0, 3.0]


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of identities IN0 -> OUT, one for each data type, named by it in lower case."""
    root = tmp_path_factory.mktemp("wire")
    for kind in TYPES:
        add_echo(root, kind.lower(), kind)
    with serving(root) as server:
        yield server


def ask(server: RunningServer, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any, bytes]:
    """Status, headers and body of a POST; a body that is not bytes goes as JSON."""
    connection = HTTPConnection(server.http_url.removeprefix("http://"), timeout=30)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, data, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def body_of(datatype: str, data: Any, shape: list[int] | None = None, **top: Any) -> dict[str, Any]:
    """An inference request in JSON."""
    shape = [1, len(data)] if shape is None else shape
    return {"inputs": [{"name": "IN0", "datatype": datatype, "shape": shape, "data": data}], **top}


def error(server: RunningServer, datatype: str, data: Any, shape: list[int] | None = None) -> tuple[int, str]:
    """Status and text of a refusal."""
    status, _, body = ask(server, f"/v2/models/{datatype.lower()}/infer", body_of(datatype, data, shape))
    return status, json.loads(body)["error"]


@pytest.mark.parametrize("binary", [False, True])
def test_f49_server_3711_not_a_number_goes_both_ways(wire: RunningServer, binary: bool) -> None:
    given = np.array([ODD], np.float32)
    client = http.InferenceServerClient(wire.http_url.removeprefix("http://"))
    tensor = http.InferInput("IN0", [1, 6], "FP32")
    tensor.set_data_from_numpy(given, binary_data=binary)
    answer = client.infer("fp32", [tensor], outputs=[http.InferRequestedOutput("OUT", binary_data=binary)])
    np.testing.assert_array_equal(answer.as_numpy("OUT"), given)
    client.close()
    with wb.connect(wire.http_url) as server:
        np.testing.assert_array_equal(server.infer("fp32", {"IN0": given})["OUT"], given)


@pytest.mark.parametrize("kind", ["generate", "generate_stream"])
def test_f49_server_3711_bare_tokens_in_every_json(wire: RunningServer, kind: str) -> None:
    _, _, body = ask(wire, "/v2/models/fp32/infer", body_of("FP32", ODD))
    assert b'"data":[NaN,Infinity,-Infinity,1.0,2.0,3.0]' in body
    _, _, body = ask(wire, f"/v2/models/fp32/{kind}", {"IN0": ODD})
    assert b'"OUT":[NaN,Infinity,-Infinity,1.0,2.0,3.0]' in body


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_f50_server_5960_halves_are_binary_only(wire: RunningServer, datatype: str) -> None:
    assert error(wire, datatype, [1.0, 2.0]) == (
        400,
        f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input IN0",
    )
    raw = np.array([[0.1, -3e4, math.inf]], {"FP16": np.float16, "BF16": ml_dtypes.bfloat16}[datatype])
    with wb.connect(wire.http_url) as server:  # which goes binary by itself
        answer = server.infer(datatype.lower(), {"IN0": raw})["OUT"]
    assert answer.tobytes() == raw.tobytes(), "bit by bit"
    head = json.dumps(
        {"inputs": [{"name": "IN0", "datatype": datatype, "shape": [1, 3], "parameters": {"binary_data_size": 6}}]}
    ).encode()
    status, _, body = ask(
        wire,
        f"/v2/models/{datatype.lower()}/infer",
        head + raw.tobytes(),
        {"Inference-Header-Content-Length": str(len(head))},
    )
    text = f"sending {datatype} data via JSON is not supported. Please use the binary data format for output"
    assert (status, json.loads(body)["error"]) == (400, text)


@pytest.mark.parametrize(
    ("datatype", "low", "high"),
    [
        ("INT8", -128, 127), ("INT16", -(2**15), 2**15 - 1), ("INT32", -(2**31), 2**31 - 1),
        ("UINT8", 0, 255), ("UINT16", 0, 2**16 - 1), ("UINT32", 0, 2**32 - 1),
    ],
)  # fmt: skip
def test_f51_server_8821_integers_out_of_range_are_refused(
    wire: RunningServer, datatype: str, low: int, high: int
) -> None:
    path = f"/v2/models/{datatype.lower()}/infer"
    status, _, body = ask(wire, path, body_of(datatype, [low, high]))
    assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [low, high])
    for value in (high + 1, low - 1):
        status, text = error(wire, datatype, [0, value])
        if value >= 0 or low < 0:
            assert status == 400
            assert f"value {value} of input 'IN0' is out of range for {datatype} [{low}, {high}]" in text
        else:
            assert (status, text.startswith("Unable to parse 'data': ")) == (500, True), "as Triton refuses a sign"
    for wrong in (1.5, "1", True, None):
        assert error(wire, datatype, [0, wrong])[0] == 500


def test_f51_server_8821_booleans_are_booleans(wire: RunningServer) -> None:
    _, _, body = ask(wire, "/v2/models/bool/infer", body_of("BOOL", [True, False]))
    assert json.loads(body)["outputs"][0]["data"] == [True, False]
    assert error(wire, "BOOL", [1, 0])[0] == 500, "as Triton does"


@pytest.mark.parametrize(
    ("accept", "packed"),
    [("gzip", "gzip"), ("gzip, deflate", "gzip"), ("deflate", "deflate"), ("br", None), ("gzip;q=0", None), ("", None),
     ("gzip;q=0.2, deflate;q=0.7", "deflate")],
)  # fmt: skip
@pytest.mark.parametrize("binary", [False, True])
def test_f52_server_5185_header_and_body_match(
    wire: RunningServer, accept: str, packed: str | None, binary: bool
) -> None:
    request = body_of("INT64", list(range(500)), outputs=[{"name": "OUT", "parameters": {"binary_data": binary}}])
    status, headers, body = ask(wire, "/v2/models/int64/infer", request, {"Accept-Encoding": accept})
    assert status == 200
    assert headers["Content-Encoding"] == packed
    plain = body if packed is None else zlib.decompress(body, 47)
    if binary:
        length = int(headers["Inference-Header-Content-Length"])
        assert json.loads(plain[:length])["outputs"][0]["parameters"] == {"binary_data_size": 4000}
        assert plain[length:] == np.arange(500).tobytes()
    else:
        assert json.loads(plain)["outputs"][0]["data"] == list(range(500))


def test_f52_server_5185_packings_that_are_not_known_and_bombs(wire: RunningServer) -> None:
    status, headers, body = ask(wire, "/v2/models/int64/infer", b"x", {"Content-Encoding": "br"})
    assert (status, headers["Accept-Encoding"]) == (501, "gzip, deflate")
    assert json.loads(body) == {"error": "Unsupported compression type"}
    status, _, body = ask(
        wire, "/v2/models/int64/infer", gzip.compress(bytes(50 * LIMIT)), {"Content-Encoding": "gzip"}
    )
    assert status == 400
    assert json.loads(body)["error"].startswith(f"Decompressed data size exceeds the maximum allowed value of {LIMIT}")


@pytest.mark.parametrize(
    ("shape", "status"),
    [
        ([-1, 4], 500), ([1, -4], 500), ([2**62, 2**62], 400), ([2**63, 1], 400), ([2**64, 1], 500),
        ([2**31, 2**31], 400),
    ],
)  # fmt: skip
def test_f56_server_3563_shapes_that_cannot_be(wire: RunningServer, shape: list[int], status: int) -> None:
    got, text = error(wire, "FP32", [1, 2, 3, 4], shape)
    assert got == status
    assert "shape" in text or "byte size overflow" in text
    assert error(wire, "FP32", [[1]], [1, 2])[0] == 500, "and the server is up"


def test_f58_server_6791_data_and_shape_differ(wire: RunningServer) -> None:
    text = "Unable to parse 'data': Shape does not match true shape of 'data' field"
    assert error(wire, "FP32", [[1, 2, 3]], [1, 2]) == (500, text)
    assert error(wire, "FP32", [[1]], [1, 2]) == (500, text)


def test_f58_server_6791_lists_in_generate_become_the_last_dimension(wire: RunningServer) -> None:
    for values in ([7.0], [0.0, 1.0, 2.0]):
        status, _, body = ask(wire, "/v2/models/fp32/generate", {"IN0": values})
        assert status == 200
        assert json.loads(body)["OUT"] == (values if len(values) > 1 else values[0])
