"""Readiness over HTTP of Python models that have an ``is_ready``, and that the server goes on while one is asked."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
from asked_models import AskedModel
from asking import wait_until

from workbench.backends import python_readiness
from workbench.server import RunningServer

NOT_READY = (400, {"error": "Model version not ready"})
BODY = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}


@pytest.fixture
def model(tmp_path: Path) -> AskedModel:
    return AskedModel(tmp_path)


@pytest.fixture(params=["process", "thread"])
def served(
    request: pytest.FixtureRequest, model: AskedModel, tmp_path: Path, start: Callable[..., Any]
) -> Iterator[RunningServer]:
    config = model.directory.parent / "config.pbtxt"
    execution = f'parameters {{ key: "WORKBENCH_EXECUTION" value {{ string_value: "{request.param}" }} }}'
    config.write_text(config.read_text() + execution)
    with start(tmp_path) as server:
        yield server
        model.let("open")


def ready(http: Callable[..., Any], server: RunningServer, path: str = "models/m") -> tuple[int, Any]:
    answer = http(server, "GET", f"/v2/{path}/ready")
    return answer.status, answer.json if answer.body else None


def test_model_and_server_answer_as_the_model_says(
    served: RunningServer, model: AskedModel, http: Callable[..., Any]
) -> None:
    for _ in range(2):
        model.says("True")
        assert ready(http, served) == ready(http, served, "models/m/versions/1") == (200, None)
        assert ready(http, served, "health") == (200, None)
        for says in ("False", "1 / 0", "'yes'"):
            model.says(says)
            assert ready(http, served) == ready(http, served, "models/m/versions/1") == NOT_READY
            assert ready(http, served, "health") == (400, None)
            assert http(served, "GET", "/v2/health/live").status == 200
            assert http(served, "POST", "/v2/models/m/infer", BODY).status == 200
    assert http(served, "POST", "/v2/models/m/ready").status == 405
    index = http(served, "POST", "/v2/repository/index", {"ready": True}).json
    assert [row["state"] for row in index] == ["READY"]


def test_the_server_goes_on_while_a_model_is_asked(
    served: RunningServer, model: AskedModel, http: Callable[..., Any]
) -> None:
    model.says("wait_for('open')")
    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(ready, http, served) for _ in range(4)]
        asked.append(pool.submit(ready, http, served, "health"))
        wait_until(lambda: model.calls > 0)
        for _ in range(10):
            assert http(served, "GET", "/v2/health/live").status == 200
            assert http(served, "POST", "/v2/models/m/infer", BODY).status == 200
        assert not any(each.done() for each in asked)
        assert model.calls == 1
        model.let("open")
        assert [each.result(10) for each in asked] == [(200, None)] * 5


def test_the_limit_is_an_answer(
    served: RunningServer, model: AskedModel, http: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_readiness, "LIMIT_S", 0.2)
    model.says("wait_for('open')")
    assert ready(http, served) == NOT_READY
    assert ready(http, served, "health") == (400, None)
    assert http(served, "POST", "/v2/models/m/infer", BODY).status == 200
    model.let("open")
    wait_until(lambda: ready(http, served) == (200, None))


def test_a_client_that_leaves_disturbs_nobody(
    served: RunningServer, model: AskedModel, http: Callable[..., Any]
) -> None:
    model.says("wait_for('open')")
    host, _, port = served.http_url.removeprefix("http://").partition(":")
    for _ in range(3):
        with socket.create_connection((host, int(port))) as left:
            left.sendall(b"GET /v2/models/m/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
    wait_until(lambda: model.calls > 0)
    model.let("open")
    assert ready(http, served) == (200, None)


def test_answers_of_one_connection_keep_their_order(served: RunningServer, model: AskedModel) -> None:
    connection = HTTPConnection(served.http_url.removeprefix("http://"), timeout=20)
    for says, status in (("True", 200), ("False", 400), ("True", 200)):
        model.says(says)
        connection.request("GET", "/v2/models/m/ready")
        response = connection.getresponse()
        response.read()
        assert response.status == status
    connection.close()


def test_grpc_asks_too_and_goes_on_meanwhile(served: RunningServer, model: AskedModel) -> None:
    with grpcclient.InferenceServerClient(served.grpc_url.removeprefix("grpc://")) as client:
        for says in (True, False, True):
            model.says(str(says))
            assert client.is_model_ready("m") is client.is_model_ready("m", "1") is client.is_server_ready() is says
        model.says("wait_for('open')")
        before = model.calls
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(client.is_model_ready, "m"), pool.submit(client.is_server_ready)]
            wait_until(lambda: model.calls > before)
            assert client.is_server_live()
            assert not any(each.done() for each in asked)
            model.let("open")
            assert all(each.result(10) for each in asked)
