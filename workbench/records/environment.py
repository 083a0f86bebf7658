"""Where a measurement was made: processor, memory, load, frequency, versions."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from workbench.clock import utc_now_iso

_PACKAGES = ("serving-workbench", "numpy", "onnxruntime", "uvloop", "httptools", "grpcio", "tritonclient", "tokenizers")


def capture_environment() -> dict[str, Any]:
    """What a reader of the numbers needs to know of this machine; JSON values, nothing that names a person or host."""
    memory = psutil.virtual_memory()
    environment: dict[str, Any] = {
        "captured": utc_now_iso(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "cpu_model": _cpu_model(),
        "cpus": psutil.cpu_count() or 0,
        "cpus_usable": _usable_cpus(),
        "cpu_quota": _cpu_quota(),
        "memory_gib": round(memory.total / 2**30, 1),
        "memory_free_gib": round(memory.available / 2**30, 1),
        **cpu_condition(),
        "versions": _versions(),
    }
    return environment


def cpu_condition() -> dict[str, Any]:
    """What changes by the minute: load average over 1 minute, frequency in MHz, governor; None where unknown."""
    load = None
    with contextlib.suppress(OSError, AttributeError):
        load = round(os.getloadavg()[0], 2)
    frequency = None
    with contextlib.suppress(Exception):  # psutil raises what it likes where there is no such file
        reading = psutil.cpu_freq()
        frequency = round(reading.current)
    governor = None
    with contextlib.suppress(OSError):
        governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    return {"load_1m": load, "cpu_mhz": frequency, "governor": governor}


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return psutil.cpu_count() or 0


def _cpu_quota() -> float | None:
    """CPUs that the control group allows; None where there is no limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            return round(int(quota) / int(period), 2)
    return None


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
