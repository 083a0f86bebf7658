"""Names in a client's requests that would leave the repository: refused, and nothing is read or written out there."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.server import RunningServer, ServerOptions

Http = Callable[..., Any]
NAMES = (
    "..",
    "..%2F..%2Fetc",
    "%2e%2e",
    "a%2F..%2F..%2Fb",
    "..%5C..",
    "%2Fetc",
    "secret%00",
    ".",
    "%2e",
    "x" * 300,
    "%ff",
)
CONFIG = json.dumps(
    {
        "backend": "python",
        "max_batch_size": 0,
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}],
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
    }
)
CONTENT = base64.b64encode(b"raise RuntimeError('never to be run')").decode()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, write: Callable[..., None]) -> Path:
    """A folder with a repository ``models`` in it, and beside that a model that does not belong to it."""
    root = tmp_path_factory.mktemp("place")
    write(root / "models", "echo", "FP32", [4])
    write(root, "secret", "FP32", [4])
    return root


@pytest.fixture(scope="module")
def server(place: Path, start: Any) -> Iterator[RunningServer]:
    with start(place / "models", ServerOptions(name="paths", allow_file_override=True, exit_timeout_s=5.0)) as made:
        yield made


def tree(place: Path) -> set[Path]:
    return {path for path in place.rglob("*") if "__pycache__" not in path.parts}


@pytest.mark.parametrize("name", [*NAMES, "..%2Fsecret"])
def test_names_of_models(server: RunningServer, place: Path, http: Http, name: str) -> None:
    before = tree(place)
    for verb, body in (
        ("load", {}),
        ("load", {"parameters": {"config": CONFIG, "file:1/model.py": CONTENT}}),
        ("unload", {}),
    ):
        answer = http(server, "POST", f"/v2/repository/models/{name}/{verb}", body)
        assert answer.status in ((400, 404, 500) if verb == "load" else (200, 400, 404, 500)), (verb, answer.body)
    for path in (
        f"/v2/models/{name}",
        f"/v2/models/{name}/config",
        f"/v2/models/{name}/stats",
        f"/v2/models/{name}/infer",
    ):
        method = "POST" if path.endswith("infer") else "GET"
        assert http(server, method, path, None if method == "GET" else {}).status in (400, 404)
    assert tree(place) == before
    assert {row["name"] for row in http(server, "POST", "/v2/repository/index", {}).json} == {"echo"}


@pytest.mark.parametrize(
    "file",
    [
        "../../out",
        "1/../../../out",
        "..",
        ".",
        "",
        "1/..",
        "./../x",
        "1/\0x",
        "../secret/config.pbtxt",
        "A" * 256,
        "A" * 256 + "/model.py",
    ],
)
def test_names_of_files(server: RunningServer, place: Path, http: Http, file: str) -> None:
    before = tree(place)
    body = {"parameters": {"config": CONFIG, f"file:{file}": CONTENT}}
    answer = http(server, "POST", "/v2/repository/models/brought/load", body)
    assert answer.status == 500
    assert answer.json["error"] == "failed to load 'brought', failed to poll from model repository"
    assert tree(place) == before
    assert http(server, "GET", "/v2/models/echo/ready").status == 200


def test_an_absolute_name_is_one_in_the_model(server: RunningServer, place: Path, http: Http) -> None:
    before = tree(place)
    body = {"parameters": {"config": CONFIG, "file:/etc/workbench-test": CONTENT}}
    answer = http(server, "POST", "/v2/repository/models/brought/load", body)
    assert answer.status == 400
    assert "at least one version must be available" in answer.json["error"]
    assert tree(place) == before
    assert not Path("/etc/workbench-test").exists()


def test_files_are_refused_unless_switched_on(place: Path, start: Any, http: Http) -> None:
    with start(place / "models", ServerOptions(name="no-files", exit_timeout_s=5.0)) as server:
        body = {"parameters": {"config": CONFIG, "file:1/model.py": CONTENT}}
        answer = http(server, "POST", "/v2/repository/models/brought/load", body)
        assert answer.status == 501
        assert "--allow-file-override=true" in answer.json["error"]
        assert http(server, "POST", "/v2/repository/models/echo/load", {}).status == 200
