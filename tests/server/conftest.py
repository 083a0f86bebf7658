"""Small ONNX models, an engine on them, and a server in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from workbench.engine import EngineOptions, InferenceEngine
from workbench.server import RunningServer, ServerOptions, serve_engine

ONNX_TYPES = {"FP32": 1, "UINT8": 2, "INT8": 3, "INT32": 6, "INT64": 7, "BYTES": 8, "BOOL": 9, "FP16": 10, "FP64": 11}


def write_identity(
    repository: Path, name: str, datatype: str, dims: list[int], extra: str = "", batch: int = 8
) -> None:
    """A model that gives back its input."""
    from onnx import helper, save

    shape = [None, *dims] if batch else dims
    shape = [None if dim == -1 else dim for dim in shape]
    kind = ONNX_TYPES[datatype]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])],
        name,
        [helper.make_tensor_value_info("INPUT0", kind, shape)],
        [helper.make_tensor_value_info("OUTPUT0", kind, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    save(model, str(directory / "model.onnx"))
    config_type = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    (repository / name / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "onnxruntime"\nmax_batch_size: {batch}\n'
        f'input [ {{ name: "INPUT0" data_type: {config_type} dims: {dims} }} ]\n'
        f'output [ {{ name: "OUTPUT0" data_type: {config_type} dims: {dims} label_filename: "labels.txt" }} ]\n'
        f"instance_group [ {{ count: 1 kind: KIND_CPU }} ]\n{extra}"
    )
    (repository / name / "labels.txt").write_text("zero\none\ntwo\n")


def write_repository(root: Path) -> Path:
    """The models that the server's tests share."""
    write_identity(root, "echo", "FP32", [4])
    write_identity(root, "ints", "INT64", [-1])
    write_identity(root, "texts", "BYTES", [-1])
    write_identity(root, "one_text", "BYTES", [1])
    write_identity(root, "halves", "FP16", [2])
    write_identity(root, "plain", "FP32", [2, 2], batch=0)
    return root


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared repository; not to be changed."""
    return write_repository(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def write() -> Callable[..., None]:
    """``write(repository, name, datatype, dims, extra, batch)``: adds an identity model."""
    return write_identity


@contextmanager
def running(
    repository: Path, options: ServerOptions | None = None, control_mode: str = "explicit"
) -> Iterator[RunningServer]:
    """An engine and a server on a repository."""
    engine = InferenceEngine(EngineOptions(repositories=(repository,), control_mode=control_mode))  # type: ignore[arg-type]
    engine.start()
    try:
        with serve_engine(engine, options or ServerOptions(name="test", exit_timeout_s=5.0)) as server:
            yield server
    finally:
        engine.stop(10.0)


@pytest.fixture(scope="session")
def start() -> Callable[..., AbstractContextManager[RunningServer]]:
    """Starts a server of one's own: ``start(repository, options, control_mode)``, a context manager."""
    return running


@pytest.fixture(scope="session")
def server(repository: Path) -> Iterator[RunningServer]:
    """A server with all models loaded, file overrides allowed."""
    with running(repository, ServerOptions(name="test", allow_file_override=True, exit_timeout_s=5.0)) as made:
        yield made


class Answer:
    """What a server said."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def call(
    server: RunningServer,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    *,
    token: str = "",
) -> Answer:
    """One request over a connection of its own; a body that is not bytes goes as JSON."""
    address = server.http_url.removeprefix("http://")
    connection = HTTPConnection(address, timeout=20)
    try:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        sent = dict(headers or {})
        if token:
            sent["Authorization"] = f"Bearer {token}"
        connection.request(method, path, data, sent)
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


@pytest.fixture(scope="session")
def http() -> Callable[..., Answer]:
    """``http(server, method, path, body, headers, token=...)``."""
    return call
