"""A small repository, served in each of the places where a server can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from onnx_models import CONFIG, add_model

import workbench as wb
from workbench.session.kernel import Engine
from workbench.session.remote import TritonServer, WorkbenchServer
from workbench.session.server import Server

BROKEN = CONFIG.replace("max_batch_size: 8", "max_batch_size: many")


def small_repository(root: Path) -> Path:
    """``double`` (y = 2x), ``spare`` (the same), and ``broken``, whose config.pbtxt cannot be read."""
    root.mkdir(parents=True)
    add_model(root, "double")
    add_model(root, "spare")
    add_model(root, "broken", config=BROKEN)
    return root


@pytest.fixture(scope="module")
def module_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository that the servers of a module share."""
    return small_repository(tmp_path_factory.mktemp("served") / "models")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of a test's own."""
    return small_repository(tmp_path / "models")


@pytest.fixture(scope="module")
def module_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A state folder for servers that outlive a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def process(module_repository: Path, module_state: None) -> Iterator[WorkbenchServer]:
    """The repository in a background process."""
    with wb.serve(module_repository) as server:
        assert isinstance(server, WorkbenchServer)
        yield server


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Such a repository in this process."""
    with wb.Engine(small_repository(tmp_path_factory.mktemp("kernel") / "models")) as server:
        assert isinstance(server, Engine)
        yield server


@pytest.fixture(scope="module")
def remote(process: WorkbenchServer) -> Iterator[TritonServer]:
    """The background process as any Triton: without its control plane."""
    with wb.connect(process.url) as server:
        assert isinstance(server, TritonServer)
        yield server


@pytest.fixture(scope="module")
def foreign_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkbenchServer]:
    """Such a repository in a background process that has no runtime file here: nothing is known of it by its address,
    as of a real Triton."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("elsewhere")))
        server = wb.serve(small_repository(tmp_path_factory.mktemp("foreign") / "models"))
    with server:
        assert isinstance(server, WorkbenchServer)
        yield server


@pytest.fixture(scope="module")
def foreign(foreign_process: WorkbenchServer, module_state: None) -> Iterator[TritonServer]:
    """That one by its address."""
    with wb.connect(foreign_process.url) as server:
        assert isinstance(server, TritonServer)
        yield server


@pytest.fixture(params=["process", "kernel"])
def server(request: pytest.FixtureRequest) -> Server:
    """A server of the workbench, in each place; ``double`` is as its file has it."""
    found: Server = request.getfixturevalue(request.param)
    found.revert("double")
    return found


@pytest.fixture(params=["process", "kernel", "remote"])
def anywhere(request: pytest.FixtureRequest) -> Server:
    """A server of any kind."""
    found: Server = request.getfixturevalue(request.param)
    return found


Closing = Callable[[Server], Server]


@pytest.fixture
def closing() -> Iterator[Closing]:
    """Closes at the end what it is given."""
    opened: list[Server] = []

    def keep(server: Server) -> Server:
        opened.append(server)
        return server

    yield keep
    for server in opened:
        server.close()
