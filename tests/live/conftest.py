"""The sample tokenizer and a small ONNX model, served by a process of their own, and a load on them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from onnx_models import add_model
from real_triton import real_triton

import workbench as wb
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
        log = tmp_path_factory.mktemp("triton") / "triton.log"
        options = [f"--model-control-mode={control_mode}"]
        if control_mode == "explicit":
            options.append("--load-model=*")
        with real_triton(oracle, repository, log, options) as running:
            yield RealTriton(running.http, f"grpc://{running.grpc}", running.metrics, log)

    return start
