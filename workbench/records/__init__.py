"""What a request and a run leave behind, and the run store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.records.columns import (
    BATCH_COLUMNS,
    REQUEST_COLUMNS,
    RecordColumns,
    RecordRing,
    decode_columns,
    encode_columns,
)
from workbench.records.events import Event, EventLog
from workbench.records.log_settings import LogSettings

if TYPE_CHECKING:
    from workbench.records.environment import capture_environment
    from workbench.records.holder import Holder
    from workbench.records.runs import Run, RunInfo, RunStore, point_key

_HOMES = {
    "Holder": "holder",
    "Run": "runs",
    "RunInfo": "runs",
    "RunStore": "runs",
    "capture_environment": "environment",
    "point_key": "runs",
}

__all__ = [
    "BATCH_COLUMNS",
    "REQUEST_COLUMNS",
    "Event",
    "EventLog",
    "Holder",
    "LogSettings",
    "RecordColumns",
    "RecordRing",
    "Run",
    "RunInfo",
    "RunStore",
    "capture_environment",
    "decode_columns",
    "encode_columns",
    "point_key",
]


def __getattr__(name: str) -> Any:
    """The run store is loaded when asked for: the engine needs only the ring."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'workbench.records' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"workbench.records.{home}"), name)
