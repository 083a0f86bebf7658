"""Pure batching decisions: no I/O, no thread, no clock."""

from __future__ import annotations

from workbench.scheduling.dynamic import QUEUE_FULL_TEXT, STOPPING_TEXT, TIMEOUT_TEXT, DynamicBatcher
from workbench.scheduling.ensemble_actions import (
    Action,
    Answer,
    CancelStep,
    EnsembleRequest,
    Fail,
    Finish,
    Hold,
    Resume,
    SequenceFlags,
    StartStep,
    TensorRef,
)
from workbench.scheduling.ensemble_dependencies import (
    Upstream,
    circular_dependencies,
    dependency_problem,
    required_versions,
)
from workbench.scheduling.ensemble_plan import (
    EnsemblePlan,
    ModelDescription,
    PlanStep,
    TensorSpec,
    describe_model,
    plan_ensemble,
)
from workbench.scheduling.ensemble_run import EnsembleExecutor
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
    "Action",
    "Answer",
    "Batch",
    "BatcherSettings",
    "CancelStep",
    "ControlColumn",
    "ControlTensor",
    "DirectSequenceScheduler",
    "DynamicBatcher",
    "EnsembleExecutor",
    "EnsemblePlan",
    "EnsembleRequest",
    "Fail",
    "Finish",
    "Hold",
    "InitialState",
    "Item",
    "ModelDescription",
    "NestedCall",
    "OldestSequenceScheduler",
    "PlanStep",
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
    "Resume",
    "Scheduler",
    "SequenceFlags",
    "SequenceScheduler",
    "SequenceSettings",
    "SequenceStatistics",
    "SlotRow",
    "StartStep",
    "StateSpec",
    "TensorRef",
    "TensorSpec",
    "Upstream",
    "circular_dependencies",
    "dependency_problem",
    "describe_model",
    "parse_resource_limit",
    "plan_ensemble",
    "rate_limiter_needs",
    "required_versions",
    "sequence_scheduler",
    "sequence_settings_from_config",
    "settings_from_config",
    "wait_cycle",
    "wait_report",
]
