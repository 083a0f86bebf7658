"""One sample of the machine, its GPUs and some processes: well under a millisecond without a GPU; never raises."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from workbench.clock import Clock, monotonic_ns
from workbench.telemetry.nvml import GpuSample, Nvml

_SHORTEST_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class CpuSample:
    """The machine: ``utilization`` 0..1 over all cores since the last sample, ``load`` the 1-minute load average.

    ``cores`` are those that this process may use. Sizes in bytes, frequency in MHz (None where the system hides it).
    """

    utilization: float
    cores: int
    load: float
    frequency_mhz: float | None
    memory_total_bytes: int
    memory_used_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """A process: ``cpu_cores`` is CPU time by wall time since the last sample (1.0: one core is busy)."""

    pid: int
    name: str
    cpu_cores: float
    rss_bytes: int
    threads: int


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """All of it at ``time_ns`` (CLOCK_MONOTONIC). ``gpu_note`` says why ``gpus`` is empty."""

    time_ns: int
    cpu: CpuSample
    gpus: tuple[GpuSample, ...]
    processes: tuple[ProcessSample, ...]
    gpu_note: str

    def to_json(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        value = asdict(self)
        for gpu in value["gpus"]:
            gpu["process_bytes"] = {str(pid): size for pid, size in gpu["process_bytes"].items()}
        return value


class Sampler:
    """Takes samples; shares are over the time since its last one. Thread-safe."""

    def __init__(self, *, clock: Clock = monotonic_ns) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._nvml = Nvml()
        self._cpu_before = _cpu_times()
        self._utilization = 0.0
        self._measured_ns = clock()
        self._processes: dict[int, tuple[psutil.Process, int, float, float]] = {}

    def sample(self, pids: Iterable[int] = ()) -> DeviceSample:
        """The machine, its GPUs and the processes that exist of ``pids``."""
        wanted = tuple(dict.fromkeys(pids))
        with self._lock:
            now = self._clock()
            gpus = self._nvml.sample(wanted)
            cpu = self._cpu(now)
            processes = tuple(found for pid in wanted if (found := self._process(pid, now)) is not None)
            for pid in [pid for pid in self._processes if not psutil.pid_exists(pid)]:
                del self._processes[pid]
            return DeviceSample(now, cpu, gpus, processes, self._nvml.note)

    @property
    def gpu_note(self) -> str:
        """Why no GPU is seen; empty where one is."""
        with self._lock:
            self._nvml.open()
            return self._nvml.note

    def _cpu(self, now: int) -> CpuSample:
        if now - self._measured_ns >= _SHORTEST_NS:
            before, after = self._cpu_before, _cpu_times()
            total = after[1] - before[1]
            # The kernel counts in ticks of 10 ms: a share over a tick or two is noise.
            if total >= _SHORTEST_NS / 1e9:
                self._utilization = min(1.0, max(0.0, (after[0] - before[0]) / total))
                self._cpu_before, self._measured_ns = after, now
        total_bytes = used_bytes = 0
        with contextlib.suppress(OSError, RuntimeError):
            memory = psutil.virtual_memory()
            total_bytes, used_bytes = memory.total, memory.total - memory.available
        return CpuSample(self._utilization, _cores(), _load(), _frequency(), total_bytes, used_bytes)

    def _process(self, pid: int, now: int) -> ProcessSample | None:
        try:
            known = self._processes.get(pid)
            process = known[0] if known is not None and known[0].is_running() else psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                used = times.user + times.system
                rss, threads, name = process.memory_info().rss, process.num_threads(), process.name()
        except (psutil.Error, OSError, ValueError):
            self._processes.pop(pid, None)
            return None
        cores = 0.0
        if known is None or known[0] is not process:
            self._processes[pid] = (process, now, used, 0.0)
        elif now - known[1] >= _SHORTEST_NS:
            cores = max(0.0, (used - known[2]) / ((now - known[1]) / 1e9))
            self._processes[pid] = (process, now, used, cores)
        else:
            cores = known[3]
        return ProcessSample(pid, name, cores, rss, threads)


def _cpu_times() -> tuple[float, float]:
    """Busy and total seconds of all cores since boot."""
    try:
        times = psutil.cpu_times()
    except (OSError, RuntimeError):
        return 0.0, 0.0
    # guest time is already in user time
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return total - times.idle - getattr(times, "iowait", 0.0), total


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _load() -> float:
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


def _frequency() -> float | None:
    try:
        found = psutil.cpu_freq()
    except (OSError, RuntimeError, NotImplementedError, AttributeError):
        return None
    return float(found.current) or None


_LOCK = threading.Lock()
_SHARED: list[Sampler] = []


def _shared() -> Sampler:
    """The process's own sampler: its first sample costs the search for NVML, so there is one."""
    with _LOCK:
        if not _SHARED:
            _SHARED.append(Sampler())
        return _SHARED[0]


def sample(pids: Iterable[int] = ()) -> DeviceSample:
    """A sample now; shares are over the time since the last call in this process."""
    return _shared().sample(pids)


def gpu_note() -> str:
    """``no GPU here: ...`` with the reason; empty where there is a GPU."""
    return _shared().gpu_note


def family(pid: int | None = None) -> tuple[int, ...]:
    """A process and those that it has started: a server and the processes of its Python models.

    ``pid`` None is this process. A process that is gone has no family.
    """
    try:
        parent = psutil.Process(pid)
        return (parent.pid, *(child.pid for child in parent.children(recursive=True)))
    except psutil.Error:
        return ()
