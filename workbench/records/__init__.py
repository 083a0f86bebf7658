"""What a request and a run leave behind, and the run store."""

from __future__ import annotations

from workbench.records.columns import (
    BATCH_COLUMNS,
    REQUEST_COLUMNS,
    RecordColumns,
    RecordRing,
    decode_columns,
    encode_columns,
)
from workbench.records.events import Event, EventLog

__all__ = [
    "BATCH_COLUMNS",
    "REQUEST_COLUMNS",
    "Event",
    "EventLog",
    "RecordColumns",
    "RecordRing",
    "decode_columns",
    "encode_columns",
]
