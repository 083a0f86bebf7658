"""Fixtures over running engines, for the conftest files of the folders that need them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gate_backend import Gate, GateBackend

from workbench.backends.registry import BACKENDS
from workbench.engine import EngineOptions, InferenceEngine

EngineFactory = Callable[..., InferenceEngine]


@pytest.fixture
def make_engine() -> Iterator[EngineFactory]:
    """Starts engines and stops them at the end."""
    engines: list[InferenceEngine] = []

    def make(*repositories: Path, **options: object) -> InferenceEngine:
        engine = InferenceEngine(EngineOptions(tuple(repositories), **options))  # type: ignore[arg-type]
        engines.append(engine)
        engine.start()
        return engine

    yield make
    for engine in engines:
        engine.stop(5)


@pytest.fixture
def own_threads() -> Callable[[], list[threading.Thread]]:
    """The engines' threads that were not there before the test: other tests keep engines for the session."""
    before = set(threading.enumerate())
    return lambda: [each for each in threading.enumerate() if each.name.startswith("workbench-") and each not in before]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The backend ``gate`` (see gate_backend), closed at first; opened at the end so that nothing hangs."""
    gate = Gate()
    monkeypatch.setitem(BACKENDS, "gate", ("gate_backend", "GateBackend"))
    monkeypatch.setattr(GateBackend, "gate", gate)
    yield gate
    gate.open.set()
