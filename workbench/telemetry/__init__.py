"""Device and process sampling: CPU and memory through psutil, GPUs through NVML where there are any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.telemetry.devices import Device, find_devices, load_devices
from workbench.telemetry.nvml import GpuSample

if TYPE_CHECKING:
    from workbench.telemetry.sampler import CpuSample, DeviceSample, ProcessSample, Sampler, family, gpu_note, sample

__all__ = [
    "CpuSample",
    "Device",
    "DeviceSample",
    "GpuSample",
    "ProcessSample",
    "Sampler",
    "family",
    "find_devices",
    "gpu_note",
    "load_devices",
    "sample",
]


def __getattr__(name: str) -> Any:
    """The sampler is loaded when asked for: the engine needs only the devices, and runs without psutil."""
    if name not in __all__:
        raise AttributeError(f"module 'workbench.telemetry' has no attribute '{name}'")
    from workbench.telemetry import sampler

    return getattr(sampler, name)
