"""Engines and servers for the tests that are named after public threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_fixtures import gate, make_engine  # noqa: F401

import workbench as wb
from workbench.engine import InferenceEngine
from workbench.server import RunningServer, ServerOptions, serve_engine
from workbench.session.server import Server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty repository."""
    made = tmp_path / "models"
    made.mkdir()
    return made


@pytest.fixture
def over_http() -> Iterator[Callable[[InferenceEngine], tuple[Server, str]]]:
    """Serves an engine over HTTP: gives it as any Triton's client sees it, and the address of its metrics."""
    running: list[RunningServer] = []
    opened: list[Server] = []

    def serve(engine: InferenceEngine) -> tuple[Server, str]:
        running.append(serve_engine(engine, ServerOptions(metrics_interval_s=0.05)))
        opened.append(wb.connect(running[-1].http_url))
        return opened[-1], running[-1].metrics_url

    yield serve
    for client in opened:
        client.close()
    for each in running:
        each.close(5)
