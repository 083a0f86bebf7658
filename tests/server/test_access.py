"""Restricted APIs, the token of repository control, and headers that go on to the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.errors import InvalidRequest
from workbench.protocol.tensors import InferenceRequest
from workbench.server import RunningServer, ServerOptions
from workbench.server.access import CATEGORIES, GRPC_PREFIX, has_token, parse_restrictions
from workbench.server.forwarding import HeaderForwarding

Http = Callable[..., Any]
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
OF_CATEGORY = {
    "health": ["/v2/health/live", "/v2/health/ready", "/v2/models/echo/ready", "/v2/models/echo/versions/1/ready"],
    "metadata": ["/v2", "/v2/models/echo"],
    "inference": ["/v2/models/echo/infer", "/v2/models/echo/generate", "/v2/models/echo/generate_stream"],
    "shared-memory": ["/v2/systemsharedmemory/status", "/v2/cudasharedmemory/region/x/register"],
    "model-config": ["/v2/models/echo/config"],
    "model-repository": ["/v2/repository/index", "/v2/repository/models/echo/load"],
    "statistics": ["/v2/models/stats", "/v2/models/echo/stats"],
    "trace": ["/v2/trace/setting", "/v2/models/echo/trace/setting"],
    "logging": ["/v2/logging"],
}


@pytest.fixture(scope="module")
def closed(repository: Path, start: Any) -> Iterator[RunningServer]:
    restricted = parse_restrictions(
        ["inference,health:Pass-Word=s3cret", "model-repository,metadata,shared-memory:k=v", "model-config:k=w",
         "statistics,trace,logging:k=v=w"],
        "http-restricted-api", "api",
    )  # fmt: skip
    with start(repository, ServerOptions(name="closed", http_restricted=restricted, exit_timeout_s=5.0)) as made:
        yield made


@pytest.mark.parametrize("category", CATEGORIES)
def test_a_restricted_api_needs_its_header(closed: RunningServer, http: Http, category: str) -> None:
    header, value = {
        "inference": ("Pass-Word", "s3cret"), "health": ("Pass-Word", "s3cret"), "model-config": ("k", "w"),
        "statistics": ("k", "v=w"), "trace": ("k", "v=w"), "logging": ("k", "v=w"),
    }.get(category, ("k", "v"))  # fmt: skip
    for path in OF_CATEGORY[category]:
        for sent in ({}, {header: value + "x"}, {header: ""}, {"other": value}):
            refused = http(closed, "GET", path, None, sent)
            assert (refused.status, refused.json) == (
                403, {"error": f"This API is restricted, expecting header '{header}'"}
            ), path  # fmt: skip
        assert http(closed, "GET", path, None, {header.upper(): value}).status != 403


def test_who_has_the_control_planes_token_is_let_through(repository: Path, start: Any, http: Http) -> None:
    restricted = parse_restrictions([",".join(CATEGORIES) + ":k=v"], "http-restricted-api", "api")
    options = ServerOptions(
        name="owned", token="own3r", repository_token="t0k", http_restricted=restricted, exit_timeout_s=5.0
    )
    owner = {"Authorization": "Bearer own3r"}
    with start(repository, options) as server:
        for path in ("/v2", "/v2/health/ready", "/v2/models/stats", "/v2/models/echo/config", "/v2/logging"):
            assert http(server, "GET", path, None, owner).status == 200, path
            for other in ("Bearer own3", "Bearer t0k", "Bearer ", "own3r"):
                assert http(server, "GET", path, None, {"Authorization": other}).status == 403, (path, other)
        assert http(server, "POST", "/v2/models/echo/infer", BODY, owner).status == 200
        assert http(server, "POST", "/v2/repository/models/halves/unload", {}, owner).status == 200
        only_the_header = http(server, "POST", "/v2/repository/models/halves/load", {}, {"k": "v"})
        assert only_the_header.status == 401
    with start(
        repository, ServerOptions(name="none", token="", http_restricted=restricted, exit_timeout_s=5.0)
    ) as made:
        for sent in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer"}):
            assert http(made, "GET", "/v2", None, sent).status == 403, "no token is nobody's"


def test_restrictions_are_read_as_triton_reads_them() -> None:
    found = parse_restrictions(["health:a=b"], "grpc-restricted-protocol", "protocol", GRPC_PREFIX)
    assert found["health"].header == "triton-grpc-protocol-a"
    assert found["health"].is_met({b"triton-grpc-protocol-a": b"b"})
    form = "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got "
    for entries, text in (
        (["health"], form + "health"),
        (["health:k"], form + "health:k"),
        ([":k=v"], form + ":k=v"),
        (["health:=v"], form + "health:=v"),
        (["health:k="], form + "health:k="),
        (["x:k=v"], "unknown restricted api 'x' "),
        (["health:k=v", "health:j=v"], "restricted api 'health' can not be specified in multiple config groups"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            parse_restrictions(entries, "http-restricted-api", "api")
        assert caught.value.message == text


def test_repository_control_with_a_token(repository: Path, start: Any, http: Http) -> None:
    with start(repository, ServerOptions(name="guarded", repository_token="t0k", exit_timeout_s=5.0)) as server:
        for verb in ("load", "unload"):
            path = f"/v2/repository/models/halves/{verb}"
            for sent in ({}, {"Authorization": "Bearer t0"}, {"Authorization": "t0k"}):
                refused = http(server, "POST", path, {}, sent)
                assert refused.status == 401
                assert refused.headers["www-authenticate"] == "Bearer"
                assert "repository's token" in refused.json["error"]
            assert http(server, "POST", path, {}, {"Authorization": "Bearer t0k"}).status == 200
        assert http(server, "POST", "/v2/repository/index", {}).status == 200, "reading needs none"
        assert http(server, "POST", "/v2/models/echo/infer", BODY).status == 200
    assert has_token("", b"")


MODEL = """import json
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        texts = [np.array([request.parameters()], dtype=object) for request in requests]
        return [pb.InferenceResponse([pb.Tensor("OUT", text)]) for text in texts]
"""
CONFIG = """name: "tells"
backend: "python"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "WORKBENCH_EXECUTION" value { string_value: "thread" } }
"""


def test_headers_go_on_to_the_model(tmp_path: Path, start: Any, http: Http) -> None:
    (tmp_path / "tells" / "1").mkdir(parents=True)
    (tmp_path / "tells" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "tells" / "1" / "model.py").write_text(MODEL)
    options = ServerOptions(name="forward", http_header_forward_pattern="(?i)^x-mine|priority", exit_timeout_s=5.0)
    with start(tmp_path, options) as server:

        def ask(headers: dict[str, Any]) -> Any:
            body = {
                "inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}],
                "parameters": {"own": 1, "X-Mine": "of the body"},
            }
            answer = http(server, "POST", "/v2/models/tells/infer", body, headers)
            return json.loads(answer.json["outputs"][0]["data"][0]) if answer.status == 200 else answer.json["error"]

        assert ask({"X-Mine": "1", "x-MINE-too": "ü".encode(), "Other": "2"}) == {
            "own": 1,
            "X-Mine": "1",
            "x-MINE-too": "ü",
        }
        assert ask({"X-Other": "1"}) == {"own": 1, "X-Mine": "of the body"}
        assert ask({"X-Mine": f"Bearer {options.token}"})["X-Mine"] == "of the body", "the owner's token is not"
        assert ask({"priority": "1"}) == "Header 'priority' is reserved for Triton usage and cannot be forwarded."


def test_which_headers_go_on() -> None:
    request = InferenceRequest("m", [], parameters={"p": 1})
    HeaderForwarding("").add(request, [("a", "b")])
    assert request.parameters == {"p": 1}
    HeaderForwarding("b.").add(request, [("abc", "1"), ("ABC", "2"), ("b", "3")])
    assert request.parameters == {"p": 1, "abc": "1"}
    with pytest.raises(InvalidRequest, match="Header 'triton_x' is reserved"):
        HeaderForwarding("x").add(request, [("triton_x", "1")])
    with pytest.raises(InvalidRequest, match="--http-header-forward-pattern: '\\(' is no regular expression"):
        HeaderForwarding("(")
