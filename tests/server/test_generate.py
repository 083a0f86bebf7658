"""The generate endpoints: flat JSON in and out, server-sent events for models that answer many times."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from workbench.server import RunningServer, ServerOptions

Http = Callable[..., Any]

REPEAT = """import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb.get_input_tensor_by_name(request, "COUNT").as_numpy().ravel()[0])
            for number in range(count):
                if request.is_cancelled():
                    break
                tensor = pb.Tensor("NUMBER", pb.get_input_tensor_by_name(request, "COUNT").as_numpy() * 0 + number)
                sender.send(pb.InferenceResponse([tensor]))
            if count == 3:
                sender.send(pb.InferenceResponse(error=pb.TritonError("three is too many")))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, start: Any) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("generate")
    (root / "repeat" / "1").mkdir(parents=True)
    (root / "repeat" / "1" / "model.py").write_text(REPEAT)
    (root / "repeat" / "config.pbtxt").write_text(
        'backend: "python"\nmodel_transaction_policy { decoupled: true }\n'
        'input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
        'output [ { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
        "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    )
    with start(root, ServerOptions(name="many", exit_timeout_s=5.0)) as server:
        yield server


def events(body: bytes) -> list[Any]:
    return [json.loads(part.removeprefix(b"data: ")) for part in body.split(b"\n\n") if part]


def test_one_answer(server: RunningServer, http: Http) -> None:
    answer = http(server, "POST", "/v2/models/texts/generate", {"INPUT0": "hé", "id": "q", "temperature": 0.5})
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {
        "OUTPUT0": "hé",
        "id": "q",
        "model_name": "texts",
        "model_version": "1",
    }
    assert http(server, "POST", "/v2/models/echo/generate", {"INPUT0": [1, 2, 3, 4]}).json["OUTPUT0"] == [1, 2, 3, 4]


def test_a_stream_of_one(server: RunningServer, http: Http) -> None:
    answer = http(server, "POST", "/v2/models/texts/generate_stream", {"INPUT0": ["a", "b"]})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert events(answer.body) == [{"OUTPUT0": ["a", "b"], "model_name": "texts", "model_version": "1"}]


def test_a_stream_of_many(many: RunningServer, http: Http) -> None:
    answer = http(many, "POST", "/v2/models/repeat/generate_stream", {"COUNT": 5})
    assert [event["NUMBER"] for event in events(answer.body)] == [0, 1, 2, 3, 4]
    assert http(many, "POST", "/v2/models/repeat/generate_stream", {"COUNT": 0}).body == b""


def test_an_error_in_the_middle_is_an_event(many: RunningServer, http: Http) -> None:
    answer = http(many, "POST", "/v2/models/repeat/generate_stream", {"COUNT": 3})
    assert answer.status == 200
    assert events(answer.body)[-1] == {"error": "three is too many"}


@pytest.mark.parametrize("count", [0, 2])
def test_generate_wants_exactly_one_response(many: RunningServer, http: Http, count: int) -> None:
    answer = http(many, "POST", "/v2/models/repeat/generate", {"COUNT": count})
    assert answer.json["error"].startswith("generate expects model to produce exactly 1 response")
    assert http(many, "POST", "/v2/models/repeat/generate", {"COUNT": 1}).json["NUMBER"] == 0


@pytest.mark.parametrize("kind", ["generate", "generate_stream"])
def test_refusals_are_plain_errors(server: RunningServer, http: Http, kind: str) -> None:
    for body, status, text in [
        ({"INPUT0": [1, 2, 3]}, 400, "The schema can not convert input 'INPUT0' to tensor with proper shape"),
        ({"INPUT0": [1, 2, 3, "x"]}, 500, "Unable to parse 'data': attempt to access JSON non-number as double"),
        ([], 500, "attempt to get members for non-object"),
    ]:
        answer = http(server, "POST", f"/v2/models/echo/{kind}", body)
        assert (answer.status, answer.json["error"]) == (status, text)
    assert http(server, "POST", f"/v2/models/nobody/{kind}", {}).status == 404
    assert http(server, "GET", f"/v2/models/echo/{kind}").status == 405
    answer = http(server, "POST", f"/v2/models/echo/{kind}", b"", {"Content-Encoding": "gzip"})
    assert answer.json["error"] == "Unsupported content-encoding, only 'identity' is supported."


def test_a_connection_serves_stream_after_stream(many: RunningServer) -> None:
    connection = HTTPConnection(many.http_url.removeprefix("http://"), timeout=10)
    for count in (2, 0, 4):
        connection.request("POST", "/v2/models/repeat/generate_stream", json.dumps({"COUNT": count}))
        socket = connection.sock
        answer = connection.getresponse()
        assert [event["NUMBER"] for event in events(answer.read())] == list(range(count))
        assert connection.sock is socket, "the connection was kept"
    connection.close()


PILE = REPEAT.replace(
    "sender.send(pb.InferenceResponse([tensor]))",
    "sender.send(pb.InferenceResponse([pb.Tensor('TEXT', np.array([b'x' * 40_000], dtype=object))]))\n"
    "                open(self.log, 'a').write('.')",
).replace(
    "    def execute",
    "    def initialize(self, args):\n"
    "        self.log = os.path.join(os.path.dirname(args['model_repository']), 'sent')\n\n"
    "    def execute",
).replace("import triton", "import os\n\nimport numpy as np\nimport triton")  # fmt: skip


def test_a_reader_that_dawdles_holds_the_model_back(tmp_path: Path, start: Any) -> None:
    root = tmp_path / "models"
    (root / "pile" / "1").mkdir(parents=True)
    (root / "pile" / "1" / "model.py").write_text(PILE)
    (root / "pile" / "config.pbtxt").write_text(
        'backend: "python"\nmodel_transaction_policy { decoupled: true }\n'
        'input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
        'output [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
        "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    )
    count, sent = 1000, root / "sent"
    with start(root, ServerOptions(name="pile", exit_timeout_s=5.0)) as server:
        connection = HTTPConnection(server.http_url.removeprefix("http://"), timeout=20)
        connection.request("POST", "/v2/models/pile/generate_stream", json.dumps({"COUNT": count}))
        answer = connection.getresponse()

        def size() -> int:
            return sent.stat().st_size if sent.exists() else 0

        last = -1
        while size() != last:  # until the model has come to a stand
            last = size()
            threading.Event().wait(0.5)
        assert 0 < last < count // 2, "of 40 MB only what buffers hold, and the window of responses, was sent"
        received = events(answer.read())
        assert len(received) == count, "and nothing is lost"
        assert size() == count
        connection.close()


def test_inputs_larger_than_the_limit(repository: Path, start: Any, http: Http) -> None:
    with start(repository, ServerOptions(name="small", max_input_size=1000, exit_timeout_s=5.0)) as server:
        answer = http(server, "POST", "/v2/models/ints/generate", {"INPUT0": [1] * 126})
        assert (answer.status, answer.json["error"]) == (
            400,
            "request size of 0 bytes with input 'INPUT0' of size 1008 bytes exceeds the maximum allowed input size of "
            "1000. Use --http-max-input-size to increase the limit.",
        )
        assert http(server, "POST", "/v2/models/ints/generate", {"INPUT0": [1] * 125}).status == 200


def test_a_reader_that_leaves_cancels(many: RunningServer) -> None:
    connection = HTTPConnection(many.http_url.removeprefix("http://"), timeout=10)
    connection.request("POST", "/v2/models/repeat/generate_stream", json.dumps({"COUNT": 200_000}))
    stream = connection.getresponse()
    assert stream.readline().startswith(b"data: ")
    stream.close()
    connection.close()
    for _ in range(1000):
        if many.engine.snapshot().version("repeat").running == 0:
            break
        threading.Event().wait(0.01)
    assert many.engine.snapshot().version("repeat").running == 0
