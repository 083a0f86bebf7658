"""Engines over repositories of models that fail, and what a test has begun."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from engine_fixtures import make_engine  # noqa: F401


@pytest.fixture
def keepers() -> Callable[[], list[threading.Thread]]:
    """The threads that look after model processes, but for those that were there before the test."""
    before = set(threading.enumerate())
    return lambda: [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("workbench-keeper") and thread not in before
    ]
