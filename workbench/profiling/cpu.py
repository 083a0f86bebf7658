"""Who used the processors during a window."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import psutil

from workbench.clock import Clock, monotonic_ns


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU seconds used until now: by the whole machine, and by a process with its children (nan: not known).

    What runs at a lowered priority is not counted for the machine: it gives way to a measurement. ``stolen_s`` of
    ``machine_s`` a hypervisor gave to others while something here wanted to run ("steal"); 0 where it does not tell.
    """

    time_ns: int
    machine_s: float
    process_s: float
    stolen_s: float = 0.0


def read_cpu(pid: int | None, clock: Clock = monotonic_ns) -> CpuReading:
    """A reading; ``pid`` None reads the machine alone."""
    times = psutil.cpu_times()
    busy = sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
    busy -= getattr(times, "nice", 0.0)
    return CpuReading(clock(), busy, _tree(pid), getattr(times, "steal", 0.0))


def machine_cpus() -> int:
    """How many processors ``machine_s`` is of; 0 where that is not known."""
    return psutil.cpu_count() or 0


def _tree(pid: int | None) -> float:
    if pid is None:
        return float("nan")
    try:
        root = psutil.Process(pid)
        total = _own(root)
        for child in root.children(recursive=True):
            # A child that ends between two readings makes the later one too small; that is rare and shows as such.
            with contextlib.suppress(psutil.Error):
                total += _own(child)
        return total
    except psutil.Error:
        return float("nan")


def _own(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def cpus_between(before: CpuReading, after: CpuReading) -> tuple[float, float, float]:
    """How many CPUs were busy on average: the machine's, the process's, those stolen; nan where not known."""
    seconds = (after.time_ns - before.time_ns) / 1e9
    if seconds <= 0:
        return (math.nan,) * 3
    return (
        (after.machine_s - before.machine_s) / seconds,
        (after.process_s - before.process_s) / seconds,
        (after.stolen_s - before.stolen_s) / seconds,
    )
