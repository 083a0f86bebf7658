"""Small real models and engines over them."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_fixtures import (
    gate,  # noqa: F401
    make_engine,  # noqa: F401
    own_threads,  # noqa: F401
)
from onnx_models import add_model


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one model: ``double`` (y = 2x, FP32 [4], max_batch_size 8, dynamic batching)."""
    root = tmp_path / "models"
    root.mkdir()
    add_model(root, "double")
    return root
