"""The control plane: token, live edits, records, events, devices, shutdown."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from workbench.records import decode_columns
from workbench.server import RunningServer, ServerOptions

Http = Callable[..., Any]
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


@pytest.fixture
def own(tmp_path: Path, write: Callable[..., None], start: Any) -> Iterator[RunningServer]:
    """A server whose files may be changed, in mode none: the control plane works whatever the mode."""
    write(tmp_path, "echo", "FP32", [4], "# kept\ndynamic_batching { }\n")
    with start(tmp_path, ServerOptions(name="own"), "none") as server:
        yield server


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/state"),
        ("POST", "/models/echo/configure"),
        ("POST", "/shutdown"),
        ("GET", "/records"),
        ("GET", "/events?wait=0"),
        ("GET", "/devices"),
        ("GET", "/unheard-of"),
    ],
)
def test_nothing_works_without_the_token(server: RunningServer, http: Http, method: str, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": server.token}):
        answer = http(server, method, f"/v2/workbench{path}", {} if method == "POST" else None, headers)
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    assert http(server, "GET", "/v2/health/live").status == 200


def test_capabilities(server: RunningServer, http: Http) -> None:
    found = http(server, "GET", "/v2/workbench", token=server.token).json
    assert found["version"] == 1
    assert found["pid"] == os.getpid()
    assert "configure" in found["features"]
    assert http(server, "POST", "/v2/workbench", {}, token=server.token).status == 405
    assert http(server, "GET", "/v2/workbench/unheard-of", token=server.token).status == 404


def test_state(server: RunningServer, http: Http) -> None:
    found = http(server, "GET", "/v2/workbench/state", token=server.token).json
    versions = {row["model"]: row for row in found["versions"]}
    assert versions["echo"]["state"] == "READY"
    assert versions["echo"]["instances"]


def test_configure_save_and_revert(own: RunningServer, http: Http, tmp_path: Path) -> None:
    def control(method: str, verb: str, body: Any = None) -> Any:
        return http(own, method, f"/v2/workbench/models/echo/{verb}", body, token=own.token)

    path = "dynamic_batching.max_queue_delay_microseconds"
    before = control("GET", "config").json
    assert (before["dirty"], before["text"]) == (False, before["saved_text"])
    edit = {"edits": [{"path": path, "op": "set", "value": 20000}]}
    dry = control("POST", "configure", edit | {"dry_run": True}).json
    assert "20000" in dry["diff"]
    assert control("GET", "config").json["dirty"] is False
    result = control("POST", "configure", edit).json
    assert (result["change_class"], result["epoch"] > before["epoch"]) == ("live", True)
    after = control("GET", "config").json
    assert after["dirty"] is True
    assert "# kept" in after["text"]
    assert after["effective"]["dynamic_batching"]["max_queue_delay_microseconds"] == 20000
    config = http(own, "GET", "/v2/models/echo/config").json
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 20000
    assert "20000" not in (tmp_path / "echo" / "config.pbtxt").read_text()
    assert control("POST", "revert").status == 200
    assert control("GET", "config").json["dirty"] is False
    control("POST", "configure", edit)
    assert control("POST", "save").json["path"].endswith("config.pbtxt")
    assert "20000" in (tmp_path / "echo" / "config.pbtxt").read_text()
    assert control("POST", "unload").status == 200
    assert control("POST", "load").status == 200
    assert http(own, "POST", "/v2/models/echo/infer", BODY).status == 200


def test_bad_edits_change_nothing(own: RunningServer, http: Http) -> None:
    url = "/v2/workbench/models/echo/configure"
    for body, status in [
        ({"edits": 1}, 400),
        ({"edits": [1]}, 400),
        ({"edits": [{"op": "set"}]}, 400),
        ({"edits": [{"path": "max_batch_size", "op": "set", "value": -1}]}, 400),
        ({"edits": [], "dry_run": 1}, 500),
        ([], 400),
    ]:
        answer = http(own, "POST", url, body, token=own.token)
        assert answer.status == status, answer.body
        assert answer.json["error"]
    assert http(own, "POST", "/v2/workbench/models/nobody/configure", {"edits": []}, token=own.token).status == 404
    assert http(own, "GET", "/v2/workbench/models/nobody/config", token=own.token).status == 404
    assert http(own, "POST", "/v2/models/echo/infer", BODY).status == 200


def test_records_are_columns(server: RunningServer, http: Http) -> None:
    def read(after: int) -> Any:
        answer = http(server, "GET", f"/v2/workbench/records?after={after}", token=server.token)
        length = int(answer.headers["inference-header-content-length"])
        return decode_columns(answer.body[:length], answer.body[length:])

    last = read(-1).last_seq
    for number in range(3):
        assert http(server, "POST", "/v2/models/echo/infer", BODY | {"id": f"r{number}"}).status == 200
    columns = read(last)
    assert list(columns.requests["request_id"]) == ["r0", "r1", "r2"]
    assert set(columns.requests["model"]) == {"echo"}
    assert len(set(columns.requests["client"])) == 3
    assert (columns.requests["end"] >= columns.requests["arrival"]).all()
    for wrong in ("x", "--5", "%C2%B2"):
        assert http(server, "GET", f"/v2/workbench/records?after={wrong}", token=server.token).status == 400


def test_events_as_a_list_and_as_a_stream(server: RunningServer, http: Http) -> None:
    found = http(server, "GET", "/v2/workbench/events?wait=0", token=server.token).json
    assert any("READY" in event["text"] for event in found)
    last = found[-1]["seq"]
    assert http(server, "GET", f"/v2/workbench/events?wait=0&after={last}", token=server.token).json == []
    connection = HTTPConnection(server.http_url.removeprefix("http://"), timeout=10)
    connection.request("GET", f"/v2/workbench/events?after={last}", headers={"Authorization": f"Bearer {server.token}"})
    stream = connection.getresponse()
    assert stream.status == 200
    assert stream.getheader("Content-Type", "").startswith("text/event-stream")
    server.engine.events.append("log", "echo", "a word\nand a line", level="warning")
    line = b""
    while not line.startswith(b"data: "):
        line = stream.readline()
    event = json.loads(line[6:])
    assert (event["seq"], event["text"], event["level"]) == (last + 1, "a word\nand a line", "warning")
    connection.close()


def test_devices(server: RunningServer, http: Http) -> None:
    found = http(server, "GET", f"/v2/workbench/devices?pids={os.getpid()}", token=server.token).json
    assert found["cpu"]["memory_total_bytes"] > 0
    assert found["processes"][0]["pid"] == os.getpid()
    assert bool(found["gpus"]) != bool(found["gpu_note"])


def test_strangers_names_are_not_kept_with_the_bytes_on_the_wire(own: RunningServer, http: Http) -> None:
    assert http(own, "POST", "/v2/models/nobody/infer", BODY).status == 404
    assert http(own, "POST", "/v2/models/echo/infer", BODY).status == 200
    found = http(own, "GET", "/v2/workbench/wire", token=own.token).json
    assert list(found) == ["echo"]
    assert found["echo"]["requests"] == 1
    assert found["echo"]["received"] > len(json.dumps(BODY))


def test_shutdown_is_asked_of_the_owner(own: RunningServer, http: Http) -> None:
    assert not own.stop_requested.is_set()
    assert http(own, "POST", "/v2/workbench/shutdown", token=own.token).json == {"stopping": True}
    assert own.stop_requested.wait(5)
