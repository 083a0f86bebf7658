"""Devices as records: out of recorded lists, and out of what NVML answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.errors import InvalidRequest
from workbench.telemetry import Device, load_devices
from workbench.telemetry.devices import device_from_json, nvml_devices

RECORDED = Path(__file__).parents[1] / "recorded_devices"


@pytest.mark.parametrize(
    ("name", "count", "line"),
    [
        ("one_gpu", 1, "GPU 0: NVIDIA L4, 24.0 GiB, compute capability 8.9"),
        ("four_gpus_two_nodes", 4, "GPU 3: NVIDIA A100-SXM4-80GB, 80.0 GiB, compute capability 8.0, NUMA node 1"),
        (
            "h200_seven_slices", 7,
            "GPU 6: NVIDIA H200 MIG 1g.18gb, 16.0 GiB, compute capability 9.0, NUMA node 0",
        ),
        ("too_old", 2, "GPU 1: NVIDIA T4, 16.0 GiB, compute capability 7.5, NUMA node 0"),
        ("none", 0, ""),
    ],
)  # fmt: skip
def test_a_recorded_list_is_read_and_written_back(name: str, count: int, line: str) -> None:
    devices = load_devices(RECORDED / f"{name}.json")
    assert len(devices) == count
    if devices:
        assert devices[-1].describe() == line
    assert [device_from_json(device.to_json()) for device in devices] == list(devices)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("{}", "is no JSON array"),
        ('[{"name": "x"}]', "a device is an object with an index"),
        ("[3]", "a device is an object with an index"),
        ('[{"index": 0, "uid": "x"}]', "a device has no 'uid'"),
        ('[{"index": "0"}]', "'index' of a device cannot be \"0\""),
        ('[{"index": true}]', "'index' of a device cannot be true"),
        ('[{"index": 0, "compute_capability": "9.0"}]', "'compute_capability' of a device cannot be"),
        ('[{"index": 0}, {"index": 0}]', "has an index twice"),
    ],
)
def test_a_list_that_is_none_is_refused_in_words(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "devices.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=message):
        load_devices(path)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        load_devices(tmp_path / "missing.json")


class Gpu:
    """One GPU as NVML answers for it; with ``slices``, MIG is enabled."""

    def __init__(self, number: int, name: str, capability: tuple[int, int], slices: int | None = None) -> None:
        self.uuid = f"GPU-{number}{number}"
        self.name, self.capability, self.memory = name, capability, 80 * 2**30
        self.slices = (
            None
            if slices is None
            else [
                SimpleNamespace(uuid=f"MIG-{number}-{each}", name=f"{name} MIG 1g.10gb", memory=10 * 2**30)
                for each in range(slices)
            ]
        )


class RecordedNvml:
    """Answers as the library did on a machine with these GPUs: errors are exceptions, names may be bytes."""

    def __init__(self, *gpus: Gpu) -> None:
        self._gpus = gpus

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(name)  # an old library lacks functions

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> Gpu:
        return self._gpus[number]

    def nvmlDeviceGetUUID(self, handle: Any) -> bytes:
        return str(handle.uuid).encode()

    def nvmlDeviceGetName(self, handle: Any) -> str:
        return str(handle.name)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Gpu) -> tuple[int, int]:
        return handle.capability

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        return SimpleNamespace(total=handle.memory)

    def nvmlDeviceGetPciInfo(self, handle: Gpu) -> Any:
        return SimpleNamespace(busId="00000000:FE:1F.7")

    def nvmlDeviceGetMigMode(self, handle: Gpu) -> tuple[int, int]:
        if handle.slices is None and handle.capability < (8, 0):
            raise RuntimeError("Not Supported")
        return (int(handle.slices is not None),) * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Gpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Gpu, position: int) -> Any:
        assert handle.slices is not None
        if position >= len(handle.slices):
            raise RuntimeError("Not Found")
        return handle.slices[position]


def uuids(devices: tuple[Device, ...]) -> list[str]:
    assert [device.index for device in devices] == list(range(len(devices)))
    return [device.uuid for device in devices]


def test_nvml_is_read_into_records() -> None:
    (device,) = nvml_devices(RecordedNvml(Gpu(0, "NVIDIA T4", (7, 5))))
    assert device == Device(0, "GPU-00", "NVIDIA T4", 7.5, 80 * 2**30)
    assert not device.is_slice
    assert nvml_devices(RecordedNvml()) == ()


def test_slices_stand_for_their_gpu_and_come_behind_whole_ones() -> None:
    machine = RecordedNvml(Gpu(0, "NVIDIA H100", (9, 0), slices=3), Gpu(1, "NVIDIA H100", (9, 0)))
    devices = nvml_devices(machine)
    assert uuids(devices) == ["GPU-11", "MIG-0-0", "MIG-0-1", "MIG-0-2"]
    assert devices[1] == Device(
        1, "MIG-0-0", "NVIDIA H100 MIG 1g.10gb", 9.0, 10 * 2**30, None, "1g.10gb", parent_uuid="GPU-00"
    )
    assert uuids(nvml_devices(RecordedNvml(Gpu(0, "NVIDIA H100", (9, 0), slices=0)))) == [], "MIG, and no slice made"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["GPU-00", "GPU-11", "MIG-2-0", "MIG-2-1"]),
        ("", []),
        ("-1", []),
        ("1,0", ["GPU-11", "GPU-00"]),
        ("1, 7, 0", ["GPU-11"]),
        ("1,1", ["GPU-11"]),
        ("MIG-2-1", ["MIG-2-1"]),
        ("MIG-2", []),
        ("2", ["MIG-2-0"]),
        ("GPU-1", ["GPU-11"]),
        ("nonsense", []),
    ],
)
def test_cuda_visible_devices_restricts_and_renumbers(visible: str | None, expected: list[str]) -> None:
    machine = RecordedNvml(
        Gpu(0, "NVIDIA H100", (9, 0)), Gpu(1, "NVIDIA H100", (9, 0)), Gpu(2, "NVIDIA H100", (9, 0), slices=2)
    )
    assert uuids(nvml_devices(machine, visible)) == expected


def test_what_a_device_does_not_answer_is_unknown() -> None:
    class Silent(RecordedNvml):
        def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
            raise RuntimeError("Insufficient Permissions")

        def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> Any:
            raise RuntimeError("Unknown Error")

    (device,) = nvml_devices(Silent(Gpu(0, "odd", (9, 0))))
    assert (device.memory_bytes, device.compute_capability, device.numa_node) == (None, None, None)
    assert json.loads(json.dumps(device.to_json()))["memory_bytes"] is None
