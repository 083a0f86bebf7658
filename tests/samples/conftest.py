"""The sample repository, built once for these tests from the download cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.samples import SampleError, build


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("samples") / "model_repository"
    try:
        build(target)
    except SampleError as error:
        if "cannot download" not in error.message:
            raise
        pytest.skip(f"the weights of the sample models cannot be downloaded here: {error.message}")
    return target
