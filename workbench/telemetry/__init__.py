"""Device and process sampling: CPU and memory through psutil, GPUs through NVML where there are any."""

from workbench.telemetry.nvml import GpuSample
from workbench.telemetry.sampler import CpuSample, DeviceSample, ProcessSample, Sampler, family, gpu_note, sample

__all__ = ["CpuSample", "DeviceSample", "GpuSample", "ProcessSample", "Sampler", "family", "gpu_note", "sample"]
