"""The sample tokenizer and a small ONNX model, served by a process of their own, and a load on them."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from onnx_models import add_model

import workbench as wb
from workbench.client import HttpClient
from workbench.clock import monotonic_ns, sleep
from workbench.samples import SampleError, build
from workbench.session.remote import WorkbenchServer


@pytest.fixture(scope="session")
def tokenizer_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample tokenizer alone."""
    target = tmp_path_factory.mktemp("live") / "model_repository"
    try:
        build(target, models=["tokenizer"])
    except SampleError as error:
        if "cannot download" not in error.message:
            raise
        pytest.skip(f"the weights of the sample models cannot be downloaded here: {error.message}")
    return target


@pytest.fixture
def server(tokenizer_repository: Path, tmp_path: Path) -> Iterator[WorkbenchServer]:
    """Tokenizer (a process instance) and ``double`` (ONNX), freshly served from a copy."""
    root = tmp_path / "models"
    shutil.copytree(tokenizer_repository, root)
    add_model(root, "double")
    with wb.serve(root) as served:
        assert isinstance(served, WorkbenchServer)
        yield served


@dataclass(frozen=True, slots=True)
class RealTriton:
    """A running real tritonserver."""

    http: str
    grpc: str
    metrics: str
    log: Path


StartTriton = Callable[..., AbstractContextManager[RealTriton]]


@pytest.fixture(scope="session")
def start_triton(oracle: Path, tmp_path_factory: pytest.TempPathFactory) -> StartTriton:
    """Starts the real tritonserver on a repository: a context manager."""

    @contextmanager
    def start(repository: Path, *, control_mode: str = "explicit") -> Iterator[RealTriton]:
        folder = tmp_path_factory.mktemp("triton")
        ports = _free_ports(3)
        command = [
            str(oracle / "real-tritonserver"),
            f"--model-repository={repository}",
            f"--model-control-mode={control_mode}",
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
            f"--http-port={ports[0]}",
            f"--grpc-port={ports[1]}",
            f"--metrics-port={ports[2]}",
            "--exit-on-error=false",
            "--exit-timeout-secs=2",
        ]
        if control_mode == "explicit":
            command.append("--load-model=*")
        http, grpc, metrics = (f"127.0.0.1:{port}" for port in ports)
        log_file = folder / "triton.log"
        running = RealTriton(f"http://{http}", f"grpc://{grpc}", f"http://{metrics}/metrics", log_file)
        with running.log.open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_ready(running, process)
            yield running
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    return start


def _wait_ready(running: RealTriton, process: subprocess.Popen[bytes]) -> None:
    end = monotonic_ns() + 170 * 10**9  # the first run makes its environment
    with HttpClient(running.http) as client:
        while not client.is_live():
            if process.poll() is not None or monotonic_ns() > end:
                raise AssertionError(f"tritonserver did not start:\n{running.log.read_text()[-3000:]}")
            sleep(0.1)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
