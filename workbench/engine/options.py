"""What the engine is told, and what it tells of a change of configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from workbench.config.validation import MIN_COMPUTE_CAPABILITY
from workbench.telemetry.devices import Device

if TYPE_CHECKING:
    from workbench.config.document import ConfigDocument

ControlMode = Literal["none", "poll", "explicit"]

BACKEND_DIRECTORY = Path("/opt/tritonserver/backends")
"""Where Triton looks for backends unless it is told otherwise."""

_LEADING_NUMBER = re.compile(r"\s*\+?(\d+)")


def scheduling_hooks(environment: Mapping[str, str]) -> tuple[int, int]:
    """``hold_until_queued`` and ``hold_until_backlog`` as Triton reads them from the environment (1.15).

    They are TRITONSERVER_DELAY_SCHEDULER and TRITONSERVER_BACKLOG_DELAY_SCHEDULER; what is no number counts as 0, as
    for C's ``atoi``.
    """
    names = ("TRITONSERVER_DELAY_SCHEDULER", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER")
    queued, backlog = (_LEADING_NUMBER.match(environment.get(name, "")) for name in names)
    return int(queued[1]) if queued else 0, int(backlog[1]) if backlog else 0


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of an engine; names and meanings are tritonserver's where it has them.

    ``load_models`` counts in explicit mode (``("*",)`` loads all); none and poll load all. ``backend_config`` maps a
    backend's name to its settings. ``load_threads`` is how many models load at once. ``record_capacity`` is how many
    requests the record ring keeps. ``lower_switch_interval`` makes Python threads hand over faster: only for a process
    that does nothing else. ``freeze_imports`` puts frameworks out of the garbage collector's sight
    (``backends.imports``): only for such a process, too. ``poll_s`` is how often poll mode looks. ``config_name``
    picks ``configs/NAME.pbtxt``. ``nested_wait_report_s``: a nested call (BLS) that waits so long in a queue is
    reported by an event, 0 for never.
    ``rate_limit_resources`` are NAME:COUNT or NAME:COUNT:DEVICE; they count with ``rate_limit`` execution_count.

    ``inline`` lets ``infer`` run requests of small models on the calling thread (``engine.inline``).
    ``busy_poll_us`` is how long the loop stays awake for a model's process, and for a next request
    (``engine.busy_poll``): only for a process that does nothing else.

    ``gpus`` are the devices, numbers or records (``telemetry.load_devices``), None asks NVML; those of a compute
    capability below ``min_compute_capability`` are not used. ``host_policies`` maps a policy's name to its settings
    (``numa-node``, ``cpu-cores``). Python-based backends are ``<backend_directory>/<name>/model.py``.
    ``hold_until_queued`` and ``hold_until_backlog`` are Triton's test hooks (1.15): nothing leaves a batcher until as
    many requests are queued; ``scheduling_hooks`` reads them from the environment.
    """

    repositories: tuple[Path, ...]
    control_mode: ControlMode = "explicit"
    load_models: tuple[str, ...] = ("*",)
    auto_complete: bool = True
    strict_readiness: bool = True
    exit_on_error: bool = False
    python_execution: Literal["process", "thread"] = "process"
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    load_threads: int = 4
    record_capacity: int = 65536
    lower_switch_interval: bool = False
    freeze_imports: bool = False
    gpus: tuple[int | Device, ...] | None = None
    min_compute_capability: float = MIN_COMPUTE_CAPABILITY
    host_policies: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    backend_directory: Path = BACKEND_DIRECTORY
    hold_until_queued: int = 0
    hold_until_backlog: int = 0
    poll_s: float = 15.0
    config_name: str = ""
    rate_limit: Literal["off", "execution_count"] = "off"
    rate_limit_resources: tuple[str, ...] = ()
    nested_wait_report_s: float = 10.0
    inline: bool = True
    busy_poll_us: float = 0.0


@dataclass(frozen=True, slots=True, repr=False)
class ConfigureResult:
    """What an applied (or, in a dry run, a possible) change of configuration did.

    ``change_class`` is ``live``, ``instances``, ``reload`` or ``none``; ``reasons`` say why; ``triton`` says what real
    Triton would do. ``diff`` is against the file on disk; ``dirty`` says whether it is not empty. ``config`` is the
    normalised configuration as Triton's JSON. The same wherever the server runs: ``from_json`` reads it off the wire.
    """

    model: str
    epoch: int
    change_class: str
    reasons: tuple[str, ...]
    triton: str
    diff: str
    took_ms: float
    dirty: bool
    config: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ConfigureResult:
        """Reads what ``to_json`` gave, as the control plane answers it."""
        return cls(
            model=str(data["model"]),
            epoch=int(data["epoch"]),
            change_class=str(data["change_class"]),
            reasons=tuple(data.get("reasons", ())),
            triton=str(data.get("triton", "")),
            diff=str(data.get("diff", "")),
            took_ms=float(data.get("took_ms", 0.0)),
            dirty=bool(data.get("dirty", False)),
            config=dict(data.get("config", {})),
        )

    def __repr__(self) -> str:
        lines = [f"{self.model}: {self.change_class}, config_epoch {self.epoch}, {self.took_ms:.1f} ms"]
        lines += [f"  {reason}" for reason in self.reasons]
        if self.triton:
            lines.append(f"  {self.triton}")
        if self.diff:
            lines.append(self.diff.rstrip())
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, repr=False)
class SaveResult:
    """A written config.pbtxt: where, and what changed (a unified diff, empty when nothing did)."""

    model: str
    path: str
    diff: str

    def to_json(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        return f"{self.path}\n{self.diff.rstrip()}" if self.diff else f"{self.path}: nothing to save"


@dataclass(frozen=True, slots=True)
class ConfigState:
    """A model's configuration: applied ``document``, bytes on disk (None without a file), and the normalised form."""

    document: ConfigDocument
    saved: bytes | None
    epoch: int
    dirty: bool
    effective: dict[str, Any]

    @property
    def text(self) -> str:
        """The applied configuration as text."""
        return self.document.data.decode("utf-8", "replace")

    @property
    def saved_text(self) -> str:
        """The file as text; empty without a file."""
        return "" if self.saved is None else self.saved.decode("utf-8", "replace")
