"""What a point is measured on: the kind of device, which is part of a point's key, and which one it is."""

from __future__ import annotations

import hashlib
import platform
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import InvalidMeasurement
from workbench.records.environment import capture_environment
from workbench.telemetry.devices import find_devices

if TYPE_CHECKING:
    from workbench.profiling.point import Point

_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Linux's name for a machine since its start: that of the host in all of its containers."""


def device_kind(environment: Mapping[str, Any] | None = None) -> str:
    """The kind of device that a server of this machine runs on, in words: processor, how many of it, GPUs.

    Figures of two kinds are never compared; two machines of one kind count as alike.

    Args:
        environment: of this machine, where it has been captured already.
    """
    found = environment if environment is not None else capture_environment()
    quota = found.get("cpu_quota")
    cpus = min(found["cpus_usable"], quota) if quota else found["cpus_usable"]
    names = [device.name or "GPU" for device in find_devices()]
    gpus = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return ", ".join([f"{found['cpu_model'] or 'unknown processor'} ({cpus:g} CPUs)", *gpus])


def device_token() -> str:
    """Which device it is: equal for processes that would disturb each other's measurements, wherever they run.

    Those are all of one machine, containers of it too: whatever else they use, they share its processors.
    """
    try:
        machine = _BOOT.read_text().strip()
    except OSError:
        machine = f"{platform.node()} {uuid.getnode():x}"
    return hashlib.sha256(machine.encode()).hexdigest()[:16]


def device_of(point: Point) -> str:
    """The kind of device that a point was measured on; empty where it does not say (files from elsewhere, say)."""
    return str(point.environment.get("device") or point.environment.get("cpu_model") or "")


def check_one_device(points: Iterable[Point]) -> None:
    """Refuses to compare points of different kinds of device.

    Raises:
        InvalidMeasurement: the text names them.
    """
    kinds = list(dict.fromkeys(kind for kind in map(device_of, points) if kind))
    if len(kinds) > 1:
        raise InvalidMeasurement(
            f"the points were measured on {len(kinds)} kinds of device, which are not compared",
            where="; ".join(kinds),
            hint="choose among the points of one: [p for p in points if p.environment['device'] == ...]",
        )
