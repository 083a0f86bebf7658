"""Pure batching decisions: no I/O, no thread, no clock."""

from __future__ import annotations

from workbench.scheduling.dynamic import QUEUE_FULL_TEXT, STOPPING_TEXT, TIMEOUT_TEXT, DynamicBatcher
from workbench.scheduling.interface import (
    Accepted,
    Batch,
    Item,
    QueueStatistics,
    Reason,
    RejectedItem,
    RejectKind,
    Scheduler,
    SlotRow,
)
from workbench.scheduling.ordering import ResponseOrder
from workbench.scheduling.rate_limiter import (
    NestedCall,
    RateLimiter,
    ResourceLimit,
    ResourceNeed,
    ResourceWait,
    parse_resource_limit,
    rate_limiter_needs,
    wait_cycle,
    wait_report,
)
from workbench.scheduling.sequence import DirectSequenceScheduler, OldestSequenceScheduler, sequence_scheduler
from workbench.scheduling.sequence_base import RESCHEDULE_TEXT, SequenceScheduler, SequenceStatistics
from workbench.scheduling.sequence_settings import (
    ControlColumn,
    ControlTensor,
    InitialState,
    SequenceSettings,
    StateSpec,
    sequence_settings_from_config,
)
from workbench.scheduling.sequence_slots import SEQUENCE_TIMEOUT_TEXT
from workbench.scheduling.settings import BatcherSettings, QueuePolicy, settings_from_config

__all__ = [
    "QUEUE_FULL_TEXT",
    "RESCHEDULE_TEXT",
    "SEQUENCE_TIMEOUT_TEXT",
    "STOPPING_TEXT",
    "TIMEOUT_TEXT",
    "Accepted",
    "Batch",
    "BatcherSettings",
    "ControlColumn",
    "ControlTensor",
    "DirectSequenceScheduler",
    "DynamicBatcher",
    "InitialState",
    "Item",
    "NestedCall",
    "OldestSequenceScheduler",
    "QueuePolicy",
    "QueueStatistics",
    "RateLimiter",
    "Reason",
    "RejectKind",
    "RejectedItem",
    "ResourceLimit",
    "ResourceNeed",
    "ResourceWait",
    "ResponseOrder",
    "Scheduler",
    "SequenceScheduler",
    "SequenceSettings",
    "SequenceStatistics",
    "SlotRow",
    "StateSpec",
    "parse_resource_limit",
    "rate_limiter_needs",
    "sequence_scheduler",
    "sequence_settings_from_config",
    "settings_from_config",
    "wait_cycle",
    "wait_report",
]
