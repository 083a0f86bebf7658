"""Runs models: an event loop of its own, schedulers, instances, statistics, life cycle and live configuration."""

from __future__ import annotations

from workbench.engine.engine import InferenceEngine
from workbench.engine.options import ConfigState, ConfigureResult, EngineOptions, SaveResult
from workbench.engine.snapshot import EngineSnapshot, InstanceSnapshot, VersionSnapshot
from workbench.engine.ticket import Ticket

__all__ = [
    "ConfigState",
    "ConfigureResult",
    "EngineOptions",
    "EngineSnapshot",
    "InferenceEngine",
    "InstanceSnapshot",
    "SaveResult",
    "Ticket",
    "VersionSnapshot",
]
