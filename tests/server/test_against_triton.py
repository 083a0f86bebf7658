"""The same requests to a real Triton (2.51) and to the server: same status, same body.

Texts out of Triton's JSON parser are exempt. Known differences, and so not in the table: what later sources check and
2.51 does not (a header length that is no number, ``ready`` and ``unload_dependents`` that are no booleans, path
traversal in a model's name); broken gzip (an error here, an empty body there); percent-encoded names (decoded here);
shapes of terabytes and classes of strings (an error here, the end of the process there).
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from real_triton import real_triton

from workbench.protocol.http_codec import HEADER_LENGTH
from workbench.server import RunningServer

pytestmark = [pytest.mark.full, pytest.mark.oracle, pytest.mark.timeout(300)]

MODEL = """import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        given = [pb.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb.InferenceResponse([pb.Tensor("OUTPUT0", array)]) for array in given]
"""


@pytest.fixture(scope="module")
def triton(oracle: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Triton with the same configurations over a Python model; gives its address."""
    models = tmp_path_factory.mktemp("triton")
    for source in repository.iterdir():
        target = models / source.name
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.onnx"))
        config = (target / "config.pbtxt").read_text()
        (target / "config.pbtxt").write_text(config.replace('"onnxruntime"', '"python"'))
        (target / "1").mkdir(exist_ok=True)
        (target / "1" / "model.py").write_text(MODEL)
    with real_triton(
        oracle, models, models.parent / "triton.log", ["--model-control-mode=explicit", "--load-model=*"]
    ) as addresses:
        yield addresses.http.removeprefix("http://")


def entry(**fields: Any) -> dict[str, Any]:
    made = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]} | fields
    return {key: value for key, value in made.items() if value is not ...}


def one(**fields: Any) -> dict[str, Any]:
    return {"inputs": [entry(**fields)]}


def binary(tail: bytes, size: int | None = None, **fields: Any) -> tuple[bytes, dict[str, str]]:
    parameters = {"binary_data_size": len(tail) if size is None else size}
    head = json.dumps(one(data=..., parameters=parameters, **fields)).encode()
    return head + tail, {HEADER_LENGTH: str(len(head))}


def infer(model: str = "echo") -> str:
    return f"/v2/models/{model}/infer"


def text(*values: Any, rows: int = 1) -> dict[str, Any]:
    return one(datatype="BYTES", shape=[1, rows], data=list(values))


Row = tuple[str, str, Any, dict[str, str]]


def table() -> Iterator[tuple[str, Row]]:
    def post(name: str, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[str, Row]:
        return name, ("POST", path, body, headers or {})

    yield post("plain", infer(), one())
    yield post("id", infer(), one() | {"id": "q"})
    yield post("floats", infer(), one(data=[0.1, 1e-7, 1e22, 3.4e38]))
    yield post("not a number", infer(), json.dumps(one(data=[float("nan"), float("inf"), -float("inf"), 1])).encode())
    yield post("nested", infer(), one(data=[[1, 2], [3, 4]]))
    for fields in (
        {"name": "X"}, {"datatype": "INT32"}, {"datatype": "FLOAT"}, {"shape": [1, 3], "data": [1, 2, 3]},
        {"shape": ...}, {"data": ...}, {"name": ...}, {"datatype": ...}, {"name": 3}, {"datatype": 1},
        {"shape": [-1, 4]}, {"shape": [1.0, 4]}, {"shape": ["1", 4]}, {"shape": 4},
        {"shape": [9, 4], "data": [0] * 36}, {"shape": [], "data": [1]}, {"data": [1] * 5}, {"data": [1] * 3},
        {"data": 1}, {"data": None}, {"data": "abc"}, {"data": [1, 2, 3, "4"]}, {"data": [1, 2, 3, True]},
        {"data": [1, 2, 3, None]}, {"data": [1, 2, 3, {}]}, {"data": [1, 2, 3, 4, "x"]}, {"datatype": "FP16"},
        {"datatype": "BF16"}, {"parameters": [1]}, {"parameters": {"binary_data_size": 16}},
        {"data": ..., "parameters": {"binary_data_size": "16"}}, {"data": ..., "parameters": {"binary_data_size": -1}},
    ):  # fmt: skip
        yield post(f"input {fields}", infer(), one(**fields))
    for values in ([9007199254740993, -(2**63)], [2**63, 0], [1.0, 0], [2**64, 0], [True, 0]):
        yield post(f"ints {values}", infer("ints"), one(datatype="INT64", shape=[1, 2], data=values))
    yield post("strings", infer("texts"), text("é", "日本\u0000x", rows=2))
    yield post("control characters", infer("texts"), text('\n\t"\\/\u2028\x7f\x1f'))
    yield post("too few strings", infer("texts"), text("é", rows=2))
    yield post("too many strings", infer("texts"), text("é", "", "c", rows=2))
    yield post("a number for a string", infer("texts"), text("é", 1, rows=2))
    yield post("half a pair", infer("texts"), json.dumps(text("\ud83d")).encode())
    for tail, size, fields in (
        (bytes(16), None, {}), (bytes(15), 16, {}), (bytes(17), 16, {}), (bytes(12), None, {}), (b"", 0, {}),
        (bytes(16), None, {"datatype": "INT32"}), (bytes(12), None, {"shape": [1, 3]}),
        (bytes(16), None, {"datatype": "FLOAT"}),
    ):  # fmt: skip
        yield post(f"binary {len(tail)} {size} {fields}", infer(), *binary(tail, size, **fields))
    for tail, count in ((b"\0\0\0", 1), (b"\0\0\0\0", 2), (bytes(12), 2), (b"\x09\0\0\0ab", 1)):
        yield post(f"bytes {tail!r}", infer("texts"), *binary(tail, shape=[1, count], datatype="BYTES"))
    for model, body in (
        ("echo", bytes(16)), ("echo", bytes(15)), ("echo", b""), ("one_text", b"abc"), ("texts", b"abc"),
        ("ints", bytes(24)), ("ints", bytes(23)),
    ):  # fmt: skip
        yield post(f"raw {model} {len(body)}", infer(model), body, {HEADER_LENGTH: "0"})
    for length in ("-1", "99999", "5x", "+5"):
        yield post(f"header length {length}", infer(), b"{}", {HEADER_LENGTH: length})
    for body in (
        b"", b"{", b"[]", b"1", b'{"inputs":{}}', b'{"inputs":1}', b'{"inputs":[]}', b'{"inputs":[1]}',
        b'{"inputs":[]} x', b'{"id":1,"inputs":[]}', b'{"id":null,"inputs":[]}',
    ):  # fmt: skip
        yield post(f"json {body!r}", infer(), body)
    yield post("input twice", infer(), {"inputs": [entry(), entry()]})
    for parameters in (
        {"sequence_id": 1}, {"sequence_id": -1}, {"sequence_id": "s"}, {"sequence_id": 1.5}, {"sequence_start": 1},
        {"priority": -1}, {"priority": "1"}, {"priority": 1}, {"timeout": 1.5}, {"timeout": 10},
        {"binary_data_output": 1}, {"triton_x": 1}, {"x": [1]}, {"x": {}}, {"x": None}, {"x": 1.5}, {"x": 2**63},
        {"x": "s"}, [1], 1, None,
    ):  # fmt: skip
        yield post(f"parameters {parameters}", infer(), one() | {"parameters": parameters})
    for output in (
        {"name": "Z"}, {}, 1, {"name": 1}, {"name": "OUTPUT0", "parameters": 1},
        *({"name": "OUTPUT0", "parameters": parameters} for parameters in (
            {}, {"binary_data": True}, {"binary_data": 1}, {"classification": 2}, {"classification": -1},
            {"classification": 0}, {"classification": 99}, {"classification": 2, "binary_data": True},
            {"shared_memory_region": "x", "classification": 2},
        )),
    ):  # fmt: skip
        yield post(f"output {output}", infer(), one() | {"outputs": [output]})
    yield post("output twice", infer(), one() | {"outputs": [{"name": "OUTPUT0"}] * 2})
    yield post("outputs no list", infer(), one() | {"outputs": 1})
    yield post("no outputs", infer(), one() | {"outputs": []})
    classes = {"outputs": [{"name": "OUTPUT0", "parameters": {"classification": 3}}]}
    yield post("classes without batch", infer("plain"), one(shape=[2, 2], data=[3, 1, 2, 9]) | classes)
    yield post("integer classes", infer("ints"), one(datatype="INT64", shape=[2, 2], data=[3, -1, 2, 9]) | classes)
    half = json.dumps(one(datatype="FP16", shape=[1, 2], data=..., parameters={"binary_data_size": 4})).encode()
    yield post("halves as JSON", infer("halves"), half + bytes(4), {HEADER_LENGTH: str(len(half))})
    for path in (
        "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/health/x", "/v2/models/echo/", "/v2/models/echo/versions/7",
        "/v2/models/echo/versions/x", "/v2/models/echo/versions/0", "/v2/models/echo/versions/99999999999999999999",
        "/v2/models/no", "/v2/models/no/ready", "/v2/models/echo/ready", "/v2/models/echo/versions/7/ready",
        "/v2/models/no/config", "/v2/models/echo/versions/7/config", "/v2/models/no/stats",
        "/v2/models/echo/versions/7/stats", "/v2/models/echo/infer", "/v2/repository/index",
        "/v2/models/echo/trace/setting", "/v2/models/no/trace/setting", "/v2/models/echo/versions/1/trace/setting",
        "/v2/trace/setting", "/v2/logging", "/v2/systemsharedmemory/status", "/v2/cudasharedmemory/status",
        "/v2/systemsharedmemory/region/x/status", "/v2/systemsharedmemory/region/x/register", "/nope", "/v2/models",
        "/v2/models/stats/", "/v2/models/echo/ready?x=1",
    ):  # fmt: skip
        yield f"GET {path}", ("GET", path, None, {})
    for path, body in (
        ("/v2/models/no/infer", b"{}"), ("/v2/models/echo/versions/7/infer", b"{}"), ("/v2", b""),
        ("/v2/repository/index", b""), ("/v2/repository/index", b"{"), ("/v2/repository/index", {"ready": True}),
        ("/v2/repository/r/index", {}), ("/v2/repository/r/models/echo/load", {}),
        ("/v2/repository/models/no/load", {}), ("/v2/repository/models/no/load", b""),
        ("/v2/repository/models/no/unload", {}), ("/v2/repository/models/echo/load", {"parameters": {"x": "1"}}),
        ("/v2/repository/models/echo/load", {"parameters": {"x": 1}}),
        ("/v2/repository/models/echo/load", {"parameters": {"config": 1}}),
        ("/v2/repository/models/echo/load", {"parameters": {"config": "{"}}),
        ("/v2/repository/models/echo/load", {"parameters": {"config": '{"zz":1}'}}),
        ("/v2/repository/models/echo/load", {"parameters": 1}), ("/v2/repository/models/echo/load", b"{"),
        ("/v2/logging", {"log_file": "x"}), ("/v2/logging", {"log_info": 1}),
        ("/v2/logging", {"log_verbose_level": -1}),
        ("/v2/logging", {"log_format": "x"}), ("/v2/logging", b"[]"), ("/v2/logging", b""),
        ("/v2/logging", {"log_info": None}), ("/v2/trace/setting", {"trace_rate": "x"}),
        ("/v2/trace/setting", {"trace_rate": 1}), ("/v2/trace/setting", {"trace_file": "x"}),
        ("/v2/trace/setting", {"trace_count": "-2"}), ("/v2/trace/setting", {"trace_level": "OFF"}),
        ("/v2/trace/setting", {"trace_level": ["OFF", "TENSORS"]}), ("/v2/trace/setting", {"trace_level": ["X"]}),
        ("/v2/trace/setting", {"trace_rate": "99999999999"}), ("/v2/trace/setting", b""),
        ("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "5"}),
        ("/v2/trace/setting", {"trace_level": ["TENSORS"], "trace_rate": "0"}), ("/v2/trace/setting", {}),
        ("/v2/models/echo/trace/setting", {"trace_level": ["TIMESTAMPS", "TENSORS"]}),
        ("/v2/models/echo/trace/setting", {"trace_level": ["OFF"]}),
        ("/v2/models/echo/trace/setting", {"trace_level": None, "trace_rate": None}),
    ):  # fmt: skip
        yield post(f"POST {path} {body}", path, body)
    for body in (
        {"INPUT0": [1, 2, 3, 4]}, {"INPUT0": [1, 2, 3]}, {"INPUT0": 1}, {"INPUT0": [[1, 2], [3, 4]]}, {"INPUT0": "x"},
        {"INPUT0": [1, 2, 3, 4], "id": "g", "other": 3, "parameters": {"more": "x"}},
        {"INPUT0": [1, 2, 3, 4], "o": [1]},
        {"INPUT0": [1, 2, 3, 4], "parameters": 1}, {}, [], {"id": 1}, {"INPUT0": [1] * 8}, b"{", b"",
    ):  # fmt: skip
        yield post(f"generate {body}", "/v2/models/echo/generate", body)
        yield post(f"generate_stream {body}", "/v2/models/echo/generate_stream", body)
    for body in ({"INPUT0": "one"}, {"INPUT0": ["one", "two"]}, {"INPUT0": 3}, {"INPUT0": [1]}):
        yield post(f"generate {body}", "/v2/models/texts/generate", body)
        yield post(f"generate_stream {body}", "/v2/models/texts/generate_stream", body)
    yield post("generate integers", "/v2/models/ints/generate", {"INPUT0": [1, 2, 3]})
    yield post("generate halves", "/v2/models/halves/generate", {"INPUT0": [1, 2]})
    yield post("generate without batch", "/v2/models/plain/generate", {"INPUT0": [1, 2, 3, 4]})
    yield post("generate nobody", "/v2/models/nobody/generate", {})
    yield "GET generate", ("GET", "/v2/models/echo/generate", None, {})
    yield post("odd encoding", infer(), b"{}", {"Content-Encoding": "br"})
    yield post("empty gzip", infer(), b"", {"Content-Encoding": "gzip"})
    yield "PUT", ("PUT", infer(), b"{}", {})
    yield "DELETE", ("DELETE", "/v2/models/echo", None, {})


def ask(address: str, row: Row) -> tuple[int, str | None, bytes]:
    method, path, body, headers = row
    connection = HTTPConnection(address, timeout=20)
    try:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader(HEADER_LENGTH), answer.read()
    finally:
        connection.close()


def alike(left: tuple[int, str | None, bytes], right: tuple[int, str | None, bytes]) -> bool:
    if left[0] != right[0]:
        return False
    parser = b'{"error":"failed to parse the request JSON buffer: '
    if left[2].startswith(parser) and right[2].startswith(parser):
        return True
    if left[1] is not None:
        return left[1:] == right[1:]
    try:
        return repr(json.loads(left[2])) == repr(json.loads(right[2]))
    except ValueError:
        return left[2] == right[2]


def test_the_same_answers_as_a_real_triton(triton: str, server: RunningServer) -> None:
    ours = server.http_url.removeprefix("http://")
    different = []
    total = 0
    for name, row in table():
        total += 1
        theirs, mine = ask(triton, row), ask(ours, row)
        if not alike(theirs, mine):
            different.append(f"{name}\n  triton {theirs}\n  here   {mine}")
    assert total > 180
    assert not different, "\n".join(different)


def shape_of(value: Any) -> Any:
    """The structure of a JSON value: keys and types, numbers left out."""
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape_of(item) for item in value]
    return type(value).__name__


def counts_of(row: Any) -> Any:
    """What does not depend on speed."""
    return {
        "inference_count": row["inference_count"],
        "execution_count": row["execution_count"],
        "counts": {name: pair["count"] for name, pair in row["inference_stats"].items()},
        "batches": [(batch["batch_size"], batch["compute_infer"]["count"]) for batch in row["batch_stats"]],
    }


def test_the_same_statistics_after_the_same_requests(triton: str, server: RunningServer) -> None:
    ours = server.http_url.removeprefix("http://")
    rows = []
    for address in (triton, ours):
        for verb in ("unload", "load"):  # fresh counters
            status, _, body = ask(address, ("POST", f"/v2/repository/models/ints/{verb}", {}, {}))
            assert status == 200, body
        for size in (1, 3, 3, 8):
            given = one(datatype="INT64", shape=[size, 2], data=[1] * (2 * size))
            assert ask(address, ("POST", infer("ints"), given, {}))[0] == 200
        assert ask(address, ("POST", infer("ints"), one(), {}))[0] == 400  # refused before the queue: not counted
        rows.append(
            json.loads(ask(address, ("GET", "/v2/models/ints/versions/1/stats", None, {}))[2])["model_stats"][0]
        )
    assert counts_of(rows[0]) == counts_of(rows[1])
    assert shape_of(rows[0]) == shape_of(rows[1])


def test_the_same_index_and_metadata_while_models_come_and_go(triton: str, server: RunningServer) -> None:
    ours = server.http_url.removeprefix("http://")
    seen: list[list[Any]] = [[], []]
    for address, found in zip((triton, ours), seen, strict=True):
        for name in ("texts", "halves", "plain", "ints"):
            metadata = json.loads(ask(address, ("GET", f"/v2/models/{name}", None, {}))[2])
            found.append({key: value for key, value in metadata.items() if key != "platform"})
        assert ask(address, ("POST", "/v2/repository/models/halves/unload", {}, {}))[0] == 200
        for _ in range(200):
            index = json.loads(ask(address, ("POST", "/v2/repository/index", {}, {}))[2])
            (row,) = [row for row in index if row["name"] == "halves"]
            if row["state"] == "UNAVAILABLE":
                break
            threading.Event().wait(0.02)
        found.append(sorted(index, key=lambda row: str(row["name"])))
        found.append(ask(address, ("GET", "/v2/health/ready", None, {}))[0])
        found.append(ask(address, ("GET", "/v2/models/halves/ready", None, {})))
        found.append(ask(address, ("GET", "/v2/models/halves", None, {})))
        found.append(ask(address, ("POST", infer("halves"), one(), {})))
        found.append(ask(address, ("GET", "/v2/models/halves/config", None, {})))
        assert ask(address, ("POST", "/v2/repository/models/halves/load", {}, {}))[0] == 200
        found.append(ask(address, ("GET", "/v2/models/halves/ready", None, {})))
    assert seen[0] == seen[1]
