"""A real engine with two small Python models, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from panel_helpers import write_model

from workbench.session.kernel import Engine


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    write_model(root, "double", sleep=0.002)
    write_model(root, "broken", code="raise RuntimeError('no such weights')\n")
    return root


@pytest.fixture
def server(repository: Path) -> Iterator[Engine]:
    engine = Engine(repository)
    yield engine
    engine.close()
