"""Sampling: plausible numbers, and words instead of errors where there is nothing to see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from asking import wait_until

from workbench import telemetry
from workbench.telemetry import Sampler, family


class Ticking:
    """A clock that moves when the test says so."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def test_the_machine_is_described() -> None:
    sample = telemetry.sample()
    assert 0 <= sample.cpu.utilization <= 1
    assert 1 <= sample.cpu.cores <= (os.cpu_count() or 1)
    assert 0 < sample.cpu.memory_used_bytes < sample.cpu.memory_total_bytes
    assert sample.processes == ()
    json.dumps(sample.to_json())


def test_either_a_gpu_or_the_reason_why_not() -> None:
    sample = telemetry.sample()
    assert bool(sample.gpus) != bool(sample.gpu_note)
    assert telemetry.gpu_note() == sample.gpu_note
    if sample.gpus:
        gpu = sample.gpus[0]
        assert gpu.uuid.startswith(("GPU-", "MIG-"))
        assert gpu.name
    else:
        assert sample.gpu_note.startswith("no GPU here: ")


def test_a_busy_process_shows_as_busy() -> None:
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        clock = Ticking()
        sampler = Sampler(clock=clock)
        sampler.sample([child.pid])
        used = sum(child_times(child.pid))
        while sum(child_times(child.pid)) - used < 0.2:
            pass
        clock.now = 200_000_000
        (found,) = sampler.sample([child.pid]).processes
        assert found.pid == child.pid
        assert 0.8 < found.cpu_cores < 3
        assert found.rss_bytes > 1_000_000
    finally:
        child.kill()
        child.communicate()


def child_times(pid: int) -> tuple[float, float]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / ticks, int(fields[12]) / ticks


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_samples_in_quick_succession_keep_the_last_shares() -> None:
    clock = Ticking()
    sampler = Sampler(clock=clock)
    begun = sum(psutil.cpu_times())
    wait_until(lambda: sum(psutil.cpu_times()) > begun + 0.5)  # else the first sample is too early to have a share
    clock.now = 10_000_000_000
    first = sampler.sample([os.getpid()])
    clock.now += 1
    second = sampler.sample([os.getpid()])
    assert second.cpu.utilization == first.cpu.utilization
    assert second.processes[0].cpu_cores == first.processes[0].cpu_cores


def test_processes_that_are_gone_are_left_out() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert [found.pid for found in telemetry.sample([child.pid, os.getpid(), 2**31 - 1]).processes] == [os.getpid()]


def test_a_broken_driver_is_a_note_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def broken() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", broken)
    sample = Sampler().sample()
    assert sample.gpus == ()
    assert sample.gpu_note.startswith("no GPU here: NVML says: ")


class Device:
    """As much of pynvml as a driver with one GPU answers; energy and power are not supported."""

    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        pass

    class NVMLError_LibraryNotFound(NVMLError):
        pass

    def __init__(self) -> None:
        self.joules = 1_000_000

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": b"Some GPU",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5, total=10),
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=os.getpid(), usedGpuMemory=3)],
            "nvmlDeviceGetTemperature": 50,
            "nvmlDeviceGetClockInfo": 1200,
            "nvmlDeviceGetTotalEnergyConsumption": self.joules,
        }
        if name in answers:
            return lambda *_: answers[name]
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def unsupported(*_: Any) -> Any:
            raise Device.NVMLError("Not Supported")

        return unsupported


def test_what_a_gpu_tells_is_passed_on_and_the_rest_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setitem(sys.modules, "pynvml", device)
    sampler = Sampler()
    (gpu,) = sampler.sample([os.getpid()]).gpus
    assert (gpu.name, gpu.uuid, gpu.utilization) == ("Some GPU", "GPU-1", 0.4)
    assert (gpu.memory_used_bytes, gpu.memory_total_bytes) == (5, 10)
    assert (gpu.power_watts, gpu.power_limit_watts, gpu.energy_joules) == (None, None, 0.0)
    assert gpu.process_bytes == {os.getpid(): 3}
    device.joules += 2500
    assert sampler.sample().gpus[0].energy_joules == 2.5
    assert sampler.gpu_note == ""


def test_a_family_is_a_process_and_what_it_has_started() -> None:
    # Says so on its output once its own child runs, and ends with its input.
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "input()\n"
        "child.communicate(b'')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        assert family(parent.pid) == (parent.pid, grandchild)
        assert {parent.pid, grandchild} < set(family())
        parent.communicate("\n")
    assert family(parent.pid) == ()
