"""The sample tokenizer and a small ONNX model, served by a process of their own, and a load on them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from onnx_models import add_model

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
