"""What a model's configuration says about batching, in the form that the schedulers work with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

TimeoutAction = Literal["REJECT", "DELAY"]
_ACTIONS: tuple[TimeoutAction, TimeoutAction] = ("REJECT", "DELAY")


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Triton's ``ModelQueuePolicy``: what happens to requests that wait for long, and how many may wait.

    Times are in microseconds; 0 means no timeout, and 0 as ``max_queue_size`` no limit.
    """

    timeout_action: TimeoutAction = "REJECT"
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0

    def timeout_microseconds(self, asked: int) -> int:
        """The timeout that applies to a request which asked for ``asked`` microseconds; 0 for none.

        Triton lets a request shorten the default, never lengthen it, and never create one where the default is 0.
        """
        default = self.default_timeout_microseconds
        if self.allow_timeout_override and 0 < asked < default:
            return asked
        return default


@dataclass(frozen=True, slots=True)
class BatcherSettings:
    """Settings of the dynamic batcher; field names are Triton's.

    ``batching=False`` is the direct scheduler: each request is one batch and no queue policy applies. ``instances`` is
    how many batches can run at once. ``preferred_batch_sizes`` may be empty: then max_batch_size is the one preferred
    size, as Triton's normalisation has it. ``hold_until_queued`` is Triton's test hook TRITONSERVER_DELAY_SCHEDULER: no
    batch is formed before so many requests wait; once, and not without batching.

    Raises:
        ValueError: a negative number, or a default priority level outside 1..priority_levels.
    """

    max_batch_size: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = QueuePolicy()
    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=dict, hash=False)
    batching: bool = True
    instances: int = 1
    hold_until_queued: int = 0

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_queue_delay_microseconds", "priority_levels", "instances"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.priority_levels and not 1 <= self.default_priority_level <= self.priority_levels:
            raise ValueError(
                f"default_priority_level must be in 1..{self.priority_levels}, got {self.default_priority_level}"
            )

    @property
    def max_rows(self) -> int:
        """The most rows of a batch that holds more than one request."""
        return max(1, self.max_batch_size)

    @property
    def effective_preferred_sizes(self) -> tuple[int, ...]:
        """The preferred sizes after Triton's normalisation (NormalizeModelConfig)."""
        if self.preferred_batch_sizes:
            return self.preferred_batch_sizes
        return (self.max_batch_size,) if self.max_batch_size > 0 else ()

    def level(self, priority: int) -> int:
        """The level in which a request of this priority waits: 0 where there are no levels (SetPriority)."""
        if not self.priority_levels or not self.batching:
            return 0
        return priority if 1 <= priority <= self.priority_levels else self.default_priority_level

    def policy(self, level: int) -> QueuePolicy:
        """The queue policy of a level; a level's own policies are ignored where priority_levels is 0."""
        if not self.batching:
            return QueuePolicy()
        if self.priority_levels:
            return self.priority_queue_policy.get(level, self.default_queue_policy)
        return self.default_queue_policy

    @property
    def prefetches_in_triton(self) -> bool:
        """Whether real Triton forms batches ahead of time with these settings (PayloadSlotAvailable)."""
        policy = self.default_queue_policy
        return not (
            self.priority_levels
            or policy.default_timeout_microseconds
            or policy.allow_timeout_override
            or policy.max_queue_size
        )


def _policy(message: Any) -> QueuePolicy:
    return QueuePolicy(
        timeout_action=_ACTIONS[message.timeout_action],
        default_timeout_microseconds=message.default_timeout_microseconds,
        allow_timeout_override=message.allow_timeout_override,
        max_queue_size=message.max_queue_size,
    )


def settings_from_config(message: Any) -> BatcherSettings:
    """The batcher's settings of a normalised ``ModelConfig`` message.

    Args:
        message: the protobuf message, or anything with the same fields. A model without ``dynamic_batching`` gets the
            direct scheduler.
    """
    instances = sum(max(1, group.count) * max(1, len(group.gpus)) for group in message.instance_group) or 1
    if not message.HasField("dynamic_batching"):
        return BatcherSettings(max_batch_size=message.max_batch_size, batching=False, instances=instances)
    batching = message.dynamic_batching
    return BatcherSettings(
        max_batch_size=message.max_batch_size,
        preferred_batch_sizes=tuple(batching.preferred_batch_size),
        max_queue_delay_microseconds=batching.max_queue_delay_microseconds,
        preserve_ordering=batching.preserve_ordering,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        default_queue_policy=_policy(batching.default_queue_policy),
        priority_queue_policy={int(k): _policy(v) for k, v in sorted(batching.priority_queue_policy.items())},
        instances=instances,
    )
