"""Pure batching decisions: no I/O, no thread, no clock."""

from __future__ import annotations

from workbench.scheduling.dynamic import QUEUE_FULL_TEXT, TIMEOUT_TEXT, DynamicBatcher
from workbench.scheduling.interface import (
    Accepted,
    Batch,
    Item,
    QueueStatistics,
    Reason,
    RejectedItem,
    RejectKind,
    Scheduler,
)
from workbench.scheduling.settings import BatcherSettings, QueuePolicy, settings_from_config

__all__ = [
    "QUEUE_FULL_TEXT",
    "TIMEOUT_TEXT",
    "Accepted",
    "Batch",
    "BatcherSettings",
    "DynamicBatcher",
    "Item",
    "QueuePolicy",
    "QueueStatistics",
    "Reason",
    "RejectKind",
    "RejectedItem",
    "Scheduler",
    "settings_from_config",
]
