"""GPUs through NVML. Nothing here raises: what a device does not tell is None, and no library is a note in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

_NO_LIBRARY = "no GPU here: NVIDIA's driver library (libnvidia-ml) is not installed"


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU now. ``utilization`` 0..1; sizes in bytes; power in watts; what the device does not tell is None.

    ``energy_joules`` counts from the first sample of this process. ``process_bytes``: memory held by each asked pid.
    """

    index: int
    name: str
    uuid: str
    utilization: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None
    power_limit_watts: float | None
    energy_joules: float | None
    temperature_c: float | None
    clock_mhz: float | None
    process_bytes: dict[int, int]


class Nvml:
    """A connection to NVML, opened at the first use and kept."""

    def __init__(self) -> None:
        self._module: Any = None
        self._handles: list[tuple[int, Any, str, str]] = []
        self._energy: dict[int, int] = {}
        self._opened = False
        self.note = ""

    def open(self) -> None:
        """Looks for the library and its devices, once; ``note`` says why there are none."""
        if self._opened:
            return
        self._opened = True
        try:
            import pynvml
        except ImportError:
            self.note = "no GPU here: the package nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError_LibraryNotFound:
            self.note = _NO_LIBRARY
            return
        except pynvml.NVMLError as error:
            self.note = f"no GPU here: NVML says: {error}"
            return
        self._module = pynvml
        for index in range(count):
            handle = self._ask(lambda i=index: pynvml.nvmlDeviceGetHandleByIndex(i))
            if handle is None:
                continue
            name = _text(self._ask(pynvml.nvmlDeviceGetName, handle)) or f"GPU {index}"
            uuid = _text(self._ask(pynvml.nvmlDeviceGetUUID, handle))
            self._handles.append((index, handle, name, uuid))
        if not self._handles:
            self.note = "no GPU here: NVML finds no device that may be used"

    def _ask(self, function: Callable[..., Any], *args: Any) -> Any:
        """What NVML answers, or None."""
        try:
            return function(*args)
        except Exception:  # NVMLError in its many kinds, and what a half-broken driver makes of it
            return None

    def sample(self, pids: Iterable[int] = ()) -> tuple[GpuSample, ...]:
        """All devices now."""
        self.open()
        return tuple(self._one(*entry, pids=tuple(pids)) for entry in self._handles)

    def _one(self, index: int, handle: Any, name: str, uuid: str, *, pids: tuple[int, ...]) -> GpuSample:
        nvml, ask = self._module, self._ask
        usage = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        return GpuSample(
            index=index,
            name=name,
            uuid=uuid,
            utilization=None if usage is None else usage.gpu / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_watts=_scaled(ask(nvml.nvmlDeviceGetPowerUsage, handle), 1000),
            power_limit_watts=_scaled(ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1000),
            energy_joules=self._energy_since_start(index, ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)),
            temperature_c=_scaled(ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU), 1),
            clock_mhz=_scaled(ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM), 1),
            process_bytes=self._held_by(handle, pids),
        )

    def _energy_since_start(self, index: int, millijoules: int | None) -> float | None:
        if millijoules is None:
            return None
        return (millijoules - self._energy.setdefault(index, millijoules)) / 1000

    def _held_by(self, handle: Any, pids: tuple[int, ...]) -> dict[int, int]:
        if not pids:
            return {}
        running = self._ask(self._module.nvmlDeviceGetComputeRunningProcesses, handle) or ()
        return {int(entry.pid): int(entry.usedGpuMemory or 0) for entry in running if entry.pid in pids}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _scaled(value: Any, divisor: float) -> float | None:
    return None if value is None else float(value) / divisor
