"""Is the device busy: CPU and memory always, GPUs through NVML where there are any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np

from workbench.charts.strips import Series, StripInfo, device_strip, draw_strip, update_strip
from workbench.charts.style import Chart
from workbench.panels.base import Panel, stale_badge
from workbench.panels.html import NONE, chip, escape, number, table
from workbench.panels.live import halves
from workbench.panels.views import NOTHING

if TYPE_CHECKING:
    from workbench.session.server import Server
    from workbench.session.state import SessionSnapshot

GIB = 2**30


class DevicesPanel(Panel):
    """Strips of use over the last two minutes, what each GPU and server process takes now, where instances are."""

    title = "Devices"

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._head = W.HTML()
        self._details = W.HTML()
        snapshot = server.session.snapshot()
        self._cpu = self._chart(draw_strip, update_strip, cpu_info(snapshot))
        self._memory = self._chart(draw_strip, update_strip, memory_info(snapshot))
        views = [self._cpu.view, self._memory.view]
        self._gpu = None
        if gpus_of(snapshot):
            self._gpu = self._chart(draw_strip, update_strip, gpu_info(snapshot))
            views.append(self._gpu.view)
        self._build([self._head, halves(*views), self._details])

    def _show(self, snapshot: SessionSnapshot) -> None:
        self._head.value = devices_head(snapshot)
        self._cpu.show(cpu_info(snapshot))
        self._memory.show(memory_info(snapshot))
        if self._gpu is not None:
            self._gpu.show(gpu_info(snapshot))
        self._details.value = details_html(snapshot)

    def _static(self) -> list[str | Chart]:
        snapshot = self.state.snapshot()
        return [devices_head(snapshot), *(box.draw_again() for box in self._boxes), details_html(snapshot)]

    def _text(self) -> str:
        snapshot = self.state.snapshot()
        cpu = cpu_of(snapshot)
        if not cpu:
            return f"{self.server.name}: no device readings: {no_readings(snapshot)}"
        gpus = [f"{gpu['name']}: {_percent(gpu.get('utilization'))}" for gpu in gpus_of(snapshot)]
        return (
            f"CPU {_percent(cpu.get('utilization'))} of {cpu.get('cores')} cores; memory "
            f"{cpu.get('memory_used_bytes', 0) / GIB:.1f} of {cpu.get('memory_total_bytes', 0) / GIB:.1f} GiB; "
            + ("; ".join(gpus) or gpu_note(snapshot))
        )


def _devices(snapshot: SessionSnapshot) -> dict[str, Any]:
    return dict(snapshot.devices) if snapshot.devices else {}


def cpu_of(snapshot: SessionSnapshot) -> dict[str, Any]:
    """The machine's CPU and memory now; empty where nothing was read."""
    return dict(_devices(snapshot).get("cpu") or {})


def gpus_of(snapshot: SessionSnapshot) -> list[dict[str, Any]]:
    """The GPUs now."""
    return list(_devices(snapshot).get("gpus") or [])


def gpu_note(snapshot: SessionSnapshot) -> str:
    """Why there is no GPU."""
    return str(_devices(snapshot).get("gpu_note") or "no GPU here")


def no_readings(snapshot: SessionSnapshot) -> str:
    """Why nothing at all is read."""
    if snapshot.error:
        return snapshot.error
    return (
        "this server gives none over its connection; read its /metrics"
        if snapshot.server.get("kind") == "remote"
        else "none yet"
    )


def _columns(snapshot: SessionSnapshot, name: str) -> tuple[Any, Any]:
    history = snapshot.device_history
    return history.get("t_s", NOTHING), history.get(name, NOTHING)


def cpu_info(snapshot: SessionSnapshot) -> StripInfo:
    """Use of all cores in percent."""
    seconds, percent = _columns(snapshot, "cpu_percent")
    cores = cpu_of(snapshot).get("cores")
    title = f"CPU, {cores} cores" if cores else "CPU"
    return device_strip(title, "% of all cores", seconds, [Series("cpu", "CPU", np.asarray(percent, float))], y_max=100)


def memory_info(snapshot: SessionSnapshot) -> StripInfo:
    """Memory in use in GiB, against what the machine has."""
    seconds, used = _columns(snapshot, "memory_bytes")
    total = cpu_of(snapshot).get("memory_total_bytes")
    title = f"Memory, {total / GIB:.1f} GiB" if total else "Memory"
    series = [Series("memory", "memory", np.asarray(used, float) / GIB)]
    return device_strip(title, "GiB", seconds, series, y_max=total / GIB if total else None)


def gpu_info(snapshot: SessionSnapshot) -> StripInfo:
    """Mean use of the GPUs in percent."""
    seconds, use = _columns(snapshot, "gpu_utilization")
    values = np.asarray(use, float) * 100
    title = "GPU" if len(gpus_of(snapshot)) == 1 else f"GPU, mean of {len(gpus_of(snapshot))}"
    return device_strip(title, "% of time busy", seconds, [Series("gpu", "GPU", values)], y_max=100)


def devices_head(snapshot: SessionSnapshot) -> str:
    """The line above the strips."""
    cpu = cpu_of(snapshot)
    if not cpu:
        text = f'<span class="wb-muted">No device readings: {escape(no_readings(snapshot))}</span>'
        return f'<div class="wb-head"><b>Devices</b>{text}{stale_badge(snapshot)}</div>'
    gpus = gpus_of(snapshot)
    gpu = (
        chip(f"{len(gpus)} GPU", "ok")
        if gpus
        else chip("no GPU", "off") + f' <span class="wb-muted">{escape(gpu_note(snapshot))}</span>'
    )
    load = cpu.get("load")
    facts = [f"CPU {_percent(cpu.get('utilization'))} of {cpu.get('cores')} cores"]
    if load is not None:
        facts.append(f"load {load:.2f}")
    if cpu.get("frequency_mhz"):
        facts.append(f"{cpu['frequency_mhz']:,.0f} MHz")
    return (
        f'<div class="wb-head"><b>Devices</b><span class="wb-muted">{escape(" · ".join(facts))}</span>'
        f"<span>{gpu}</span>{stale_badge(snapshot)}</div>"
    )


def details_html(snapshot: SessionSnapshot) -> str:
    """Tables of the GPUs, of the server's processes and of the instances."""
    out = []
    gpus = gpus_of(snapshot)
    if gpus:
        headers = ("GPU", "busy", "memory (GiB)", "power (W)", "temperature (°C)", "clock (MHz)")
        out.append(table(headers, [_gpu_cells(gpu) for gpu in gpus]))
    processes = _devices(snapshot).get("processes") or []
    if processes:
        columns = ("process", "pid", "CPU (cores)", "memory (MiB)", "threads")
        out.append(
            table(
                columns,
                [
                    [
                        escape(p.get("name", "")),
                        str(p.get("pid", NONE)),
                        number(p.get("cpu_cores"), 2),
                        number((p.get("rss_bytes") or 0) / 2**20, 0),
                        str(p.get("threads", NONE)),
                    ]
                    for p in processes
                ],
            )
        )
    if snapshot.instances:
        placed = ("instance", "model", "device", "host policy", "cores", "NUMA node")
        out.append(table(placed, [_instance_cells(instance) for instance in snapshot.instances], left=2))
    return "".join(out)


def _instance_cells(instance: Mapping[str, Any]) -> list[str]:
    kind = str(instance.get("kind", "")).removeprefix("KIND_")
    device = f"GPU {instance.get('device_id')}" if kind == "GPU" else kind
    if instance.get("visible_devices"):
        device += f" (MIG slice {instance['visible_devices']})"
    if instance.get("passive"):
        device += ", passive"
    pinned = instance.get("pinned") or {}
    return [
        escape(str(instance.get("name", ""))),
        escape(str(instance.get("model", ""))),
        escape(device),
        escape(str(instance.get("host_policy", ""))) if pinned else NONE,
        escape(pinned.get("cpu-cores", "")) or NONE,
        escape(pinned.get("numa-node", "")) or NONE,
    ]


def _gpu_cells(gpu: dict[str, Any]) -> list[str]:
    used, total = gpu.get("memory_used_bytes"), gpu.get("memory_total_bytes")
    memory = f"{used / GIB:.1f} of {total / GIB:.1f}" if used is not None and total else NONE
    power = number(gpu.get("power_watts"), 0)
    if gpu.get("power_limit_watts"):
        power += f" of {number(gpu['power_limit_watts'], 0)}"
    return [
        f"{gpu.get('index')}: {escape(gpu.get('name', ''))}",
        _percent(gpu.get("utilization")),
        memory,
        power,
        number(gpu.get("temperature_c"), 0),
        number(gpu.get("clock_mhz"), 0),
    ]


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{share:.0%}"
