"""What an engine is doing now, as plain data: for panels, metrics and ``GET /v2/workbench/state``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from workbench.backends.base import Traffic

if TYPE_CHECKING:
    from workbench.engine.entry import ModelEntry, VersionSlot

_NO_TRAFFIC = Traffic()


@dataclass(frozen=True, slots=True)
class InstanceSnapshot:
    """One instance: what it is, whether it is healthy (and if not, why), whether it runs a batch now.

    ``host_policy`` is the policy's name, ``pinned`` its settings (``cpu-cores``, ``numa-node``); ``visible_devices`` is
    the MIG slice that its process is confined to. A ``passive`` one never executes.
    """

    name: str
    kind: str
    device_id: int
    healthy: bool
    busy: bool
    why: str = ""
    host_policy: str = ""
    pinned: dict[str, str] = field(default_factory=dict)
    visible_devices: str = ""
    passive: bool = False


@dataclass(frozen=True, slots=True)
class VersionSnapshot:
    """One model version.

    ``pending`` requests wait (the gauge of section 12), ``running`` are in instances; ``oldest_ms`` is the age of the
    oldest that waits. ``failures`` counts by reason since load. ``statistics`` is Triton's entry since load.
    ``recent_batches`` are rows and reason of the last 64 batches, oldest first; ``batch_reasons`` counts all since
    load: one that left for ``shapes`` or ``inputs`` stands for a request that could not join it. ``batching`` is the
    scheduler in a word: ``dynamic``, ``sequence``, ``ensemble``, or empty where a request is a batch. ``steps`` are the
    models of an ensemble's steps, ``traffic`` the bytes that were moved for the version since load, ``details`` what
    the backend says of it: engine, precision and the like.
    """

    model: str
    version: int
    state: str
    reason: str
    config_epoch: int
    dirty: bool
    max_batch_size: int
    pending: int
    pending_rows: int
    running: int
    oldest_ms: float
    instances: tuple[InstanceSnapshot, ...]
    failures: dict[str, int]
    statistics: dict[str, Any]
    recent_batches: tuple[tuple[int, str], ...]
    load_s: float
    delay_microseconds: int
    batch_reasons: dict[str, int] = field(default_factory=dict)
    backend: str = ""
    batching: str = ""
    steps: tuple[str, ...] = ()
    traffic: Traffic = field(default_factory=Traffic)
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The whole engine: every known version, models whose directory cannot be read (name -> why), stalls of the loop.

    ``stalls`` are the last ones as (time_ns, how long in ms); ``stall_count`` and ``stall_ms`` count all.
    """

    time_ns: int
    wall_ms: int
    stopping: bool
    versions: tuple[VersionSnapshot, ...]
    unreadable: dict[str, str]
    stall_count: int
    stall_ms: float
    stalls: tuple[tuple[int, float], ...]
    timer_lateness_us: float
    last_record_seq: int
    last_event_seq: int

    def to_json(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        return asdict(self)

    def version(self, model: str, version: int = -1) -> VersionSnapshot:
        """One version's part; -1 is the highest one.

        Raises:
            KeyError: there is none.
        """
        found = [each for each in self.versions if each.model == model and version in (-1, each.version)]
        if not found:
            raise KeyError(model)
        return max(found, key=lambda each: each.version)


def version_snapshot(entry: ModelEntry, number: int, slot: VersionSlot, now: int) -> VersionSnapshot:
    """The snapshot of one version; on the loop."""
    model = slot.model
    common: dict[str, Any] = {
        "model": entry.name,
        "version": number,
        "state": slot.state,
        "reason": slot.reason,
        "config_epoch": entry.epoch,
        "dirty": entry.dirty,
        "load_s": entry.load_ns / 1e9,
    }
    if model is None:
        return VersionSnapshot(
            **common, max_batch_size=0, pending=0, pending_rows=0, running=0, oldest_ms=0.0, instances=(), failures={},
            statistics={}, recent_batches=(), delay_microseconds=0,
        )  # fmt: skip
    model.stage.settle()
    queue = model.scheduler.statistics(now)
    return VersionSnapshot(
        **common,
        max_batch_size=model.config.max_batch_size,
        pending=queue.waiting_requests,
        pending_rows=queue.waiting_rows,
        running=model.open_requests - queue.waiting_requests,
        oldest_ms=queue.oldest_age_ns / 1e6,
        instances=tuple(
            InstanceSnapshot(
                each.spec.label,
                each.spec.kind,
                each.spec.device_id,
                each.healthy,
                model.is_busy(each),
                each.why,
                each.spec.host_policy.name,
                dict(each.spec.host_policy.settings),
                each.spec.visible_devices,
                each.spec.passive,
            )
            for each in (*model.slots, *model.passive)
        ),
        failures={str(reason): count for reason, count in model.statistics.failures.items()},
        statistics=model.statistics.to_json(entry.name, number),
        recent_batches=tuple(model.statistics.recent),
        batch_reasons=dict(model.statistics.reasons),
        delay_microseconds=model.settings.max_queue_delay_microseconds,
        backend=model.config.backend or model.config.platform,
        batching=(model.config.WhichOneof("scheduling_choice") or "").partition("_")[0],
        steps=tuple(step.model_name for step in model.config.ensemble_scheduling.step),
        traffic=replace(getattr(model.loaded, "traffic", _NO_TRAFFIC)),
        details=dict(getattr(model.loaded, "details", {})),
    )
