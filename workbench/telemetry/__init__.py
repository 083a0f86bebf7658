"""Device and process sampling: CPU and memory through psutil, GPUs through NVML where there are any."""

from workbench.telemetry.devices import Device, find_devices, load_devices
from workbench.telemetry.nvml import GpuSample
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
