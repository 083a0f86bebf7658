"""The devices that CUDA would offer here, as records: what models can be placed on.

A record comes from NVML, or from a JSON file that somebody recorded on another machine: placement is a decision over
records, and can be tried and tested without the hardware.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from workbench.errors import InvalidRequest

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The environment variable by which CUDA restricts and renumbers devices."""

_PCI = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True)
class Device:
    """One CUDA device: a GPU, or a MIG slice of one. What is not known is None.

    ``index`` is the number that ``instance_group.gpus`` names. Whole GPUs come first, in CUDA's order, so that theirs
    is CUDA's number; the slices follow. ``parent_uuid`` and ``mig_profile`` (``1g.10gb``) are a slice's only: one
    process can use one slice, the one that CUDA_VISIBLE_DEVICES names, as device 0.
    """

    index: int
    uuid: str = ""
    name: str = ""
    compute_capability: float | None = None
    memory_bytes: int | None = None
    numa_node: int | None = None
    mig_profile: str = ""
    parent_uuid: str = ""

    @property
    def is_slice(self) -> bool:
        """Whether it is a MIG slice."""
        return bool(self.parent_uuid or self.mig_profile)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary for JSON; ``device_from_json`` reads it."""
        return asdict(self)

    def describe(self) -> str:
        """In one line."""
        parts = [f"GPU {self.index}: {self.name or self.uuid or 'a device of unknown name'}"]
        if self.mig_profile and self.mig_profile not in self.name:
            parts.append(f"MIG slice {self.mig_profile}")
        if self.memory_bytes is not None:
            parts.append(f"{self.memory_bytes / 2**30:.1f} GiB")
        if self.compute_capability is not None:
            parts.append(f"compute capability {self.compute_capability:.1f}")
        if self.numa_node is not None:
            parts.append(f"NUMA node {self.numa_node}")
        return ", ".join(parts)


def device_from_json(value: Any) -> Device:
    """A record of a device list; ``index`` is the least that it has.

    Raises:
        InvalidRequest: it is no such record.
    """
    kinds: dict[str, tuple[type, ...]] = {
        "index": (int,),
        "compute_capability": (int, float, type(None)),
        "memory_bytes": (int, type(None)),
        "numa_node": (int, type(None)),
    }
    if not isinstance(value, dict) or "index" not in value:
        raise InvalidRequest(f"a device is an object with an index, got {json.dumps(value)}")
    names = {field.name for field in fields(Device)}
    for key, given in value.items():
        if key not in names:
            raise InvalidRequest(f"a device has no '{key}'", hint=f"it has: {', '.join(sorted(names))}")
        if not isinstance(given, kinds.get(key, (str,))) or isinstance(given, bool):
            raise InvalidRequest(f"'{key}' of a device cannot be {json.dumps(given)}")
    return Device(**value)


def load_devices(path: str | Path) -> tuple[Device, ...]:
    """Reads a device list: a JSON array of records as ``workbench doctor --json`` shows them.

    Raises:
        InvalidRequest: it cannot be read, or two devices have one index.
    """
    try:
        value = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"device list {path} cannot be read: {error}") from error
    if not isinstance(value, list):
        raise InvalidRequest(f"device list {path} is no JSON array")
    devices = tuple(device_from_json(entry) for entry in value)
    if len({device.index for device in devices}) < len(devices):
        raise InvalidRequest(f"device list {path} has an index twice")
    return tuple(sorted(devices, key=lambda device: device.index))


def nvml_devices(nvml: Any, visible: str | None = None) -> tuple[Device, ...]:
    """The devices that NVML knows, as CUDA would number them; nothing here raises for a device that does not answer.

    A GPU with MIG enabled cannot be used itself: its slices stand for it. CUDA is taken to number by PCI bus, as NVML
    does (CUDA_DEVICE_ORDER=PCI_BUS_ID; without it CUDA puts the fastest kind first, which differs on mixed machines).

    Args:
        nvml: the module ``pynvml`` after ``nvmlInit``.
        visible: the value of CUDA_VISIBLE_DEVICES, None where it is not set.
    """
    whole: list[tuple[int, Device]] = []
    slices: list[tuple[int, Device]] = []
    for number in range(_ask(nvml.nvmlDeviceGetCount) or 0):
        handle = _ask(nvml.nvmlDeviceGetHandleByIndex, number)
        if handle is None:
            continue
        gpu = _whole(nvml, handle)
        if (_ask(nvml.nvmlDeviceGetMigMode, handle) or (0,))[0]:
            slices += [(number, each) for each in _slices(nvml, handle, gpu)]
        else:
            whole.append((number, gpu))
    found = _visible(whole + slices, visible)
    found.sort(key=lambda device: device.is_slice)
    return tuple(_renumbered(found))


def _whole(nvml: Any, handle: Any) -> Device:
    capability = _ask(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    return Device(
        index=0,
        uuid=_text(_ask(nvml.nvmlDeviceGetUUID, handle)),
        name=_text(_ask(nvml.nvmlDeviceGetName, handle)),
        compute_capability=None if capability is None else capability[0] + capability[1] / 10,
        memory_bytes=None if memory is None else int(memory.total),
        numa_node=_numa_node(_ask(nvml.nvmlDeviceGetPciInfo, handle)),
    )


def _slices(nvml: Any, handle: Any, gpu: Device) -> Iterable[Device]:
    for position in range(_ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = _ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, position)
        if part is None:
            continue
        name = _text(_ask(nvml.nvmlDeviceGetName, part))
        memory = _ask(nvml.nvmlDeviceGetMemoryInfo, part)
        yield Device(
            index=0,
            uuid=_text(_ask(nvml.nvmlDeviceGetUUID, part)),
            name=name or gpu.name,
            compute_capability=gpu.compute_capability,
            memory_bytes=None if memory is None else int(memory.total),
            numa_node=gpu.numa_node,
            mig_profile=name.rpartition("MIG ")[2] if "MIG " in name else "slice",
            parent_uuid=gpu.uuid,
        )


def _visible(devices: Sequence[tuple[int, Device]], visible: str | None) -> list[Device]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order; as CUDA does, it is read up to the first wrong word."""
    if visible is None:
        return [device for _, device in devices]
    found: list[Device] = []
    for word in visible.split(","):
        text = word.strip()
        if text.isdecimal():
            chosen = [device for number, device in devices if number == int(text)]
        else:
            chosen = [device for _, device in devices if text and device.uuid.startswith(text)]
            chosen = chosen if len(chosen) == 1 else []
        if not chosen or chosen[0] in found:
            break
        found.append(chosen[0])
    return found


def _renumbered(devices: Iterable[Device]) -> Iterable[Device]:
    for index, device in enumerate(devices):
        values = device.to_json()
        values["index"] = index
        yield Device(**values)


def _numa_node(pci: Any) -> int | None:
    """The NUMA node of a PCI device by Linux; None where it is not told (-1: the machine has one node)."""
    if pci is None:
        return None
    bus = _text(getattr(pci, "busId", "")).lower()
    for name in (bus, bus[4:]):  # NVML writes the domain with eight digits, Linux with four
        try:
            node = int((_PCI / name / "numa_node").read_text())
        except (OSError, ValueError):
            continue
        return node if node >= 0 else None
    return None


def _ask(function: Callable[..., Any], *args: Any) -> Any:
    """What NVML answers, or None."""
    try:
        return function(*args)
    except Exception:  # NVMLError in its many kinds, and what a half-broken driver makes of it
        return None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def find_devices() -> tuple[Device, ...]:
    """The devices of this machine that this process may use; empty where NVML or a driver is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return ()
    try:
        return nvml_devices(pynvml, os.environ.get(VISIBLE))
    finally:
        _ask(pynvml.nvmlShutdown)
