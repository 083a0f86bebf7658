"""What a machine with only numpy, torch and onnxruntime can show. Without a GPU the same steps run on the CPU."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from typing import Any

import numpy as np

from gpu.served import Load, ask, drift, minilm, sentence, set_config
from gpu.steps import Failed, NotProved, Place, Step
from workbench.clock import sleep

NOT_NEEDED = ("uvloop", "httptools", "ngh2", "bokeh", "orjson", "psutil", "ml_dtypes", "grpc", "pandas")
"""Requirements of the package that an engine alone runs without."""

_LEAN = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
from pathlib import Path
import numpy as np
import onnxruntime
from gpu.report import loaded
from workbench.engine import EngineOptions, InferenceEngine
from workbench.protocol.tensors import InferenceRequest, Tensor
engine = InferenceEngine(EngineOptions((Path(sys.argv[1]),), load_models=("minilm_cpu",)))
engine.start()
ids = [Tensor.from_numpy(name, np.ones((1, 8), np.int64)) for name in ("input_ids", "attention_mask")]
assert engine.infer(InferenceRequest("minilm_cpu", ids), 60).as_numpy("sentence_embedding").shape == (1, 384)
engine.stop(5)
print(", ".join(loaded()))
"""

_SHAPES = ((1, 8), (8, 25), (32, 64))
_LARGEST_DRIFT = 1e-3
"""Of the largest value: FP32 on two devices, which add up in different orders."""


def machine(place: Place) -> dict[str, Any]:
    """What is here."""
    import torch

    found: dict[str, Any] = {
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch": torch.__version__,
        "CUDA of torch": torch.version.cuda or "none: a build for CPUs",
    }
    if not torch.cuda.is_available():
        raise NotProved(f"no GPU here: torch {torch.__version__} sees none", **found)
    properties = torch.cuda.get_device_properties(0)
    return found | {
        "GPU": properties.name,
        "compute capability": f"{properties.major}.{properties.minor}",
        "memory, GiB": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "devices": torch.cuda.device_count(),
    }


def lean(place: Place) -> dict[str, Any]:
    """In a process in which nothing else of the package's requirements can be imported, an engine answers."""
    if not place.archived:
        raise NotProved("this is not the archive: `make gpu-archive`, then run it where only torch and onnxruntime are")
    minilm(place)
    command = [sys.executable, "-c", _LEAN.format(names=NOT_NEEDED), str(place.scratch / "torchscript")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=80, check=False)
    if ended.returncode:
        raise Failed(f"an engine without them does not run: {ended.stderr.strip().splitlines()[-1]}")
    return {"not importable": ", ".join(NOT_NEEDED), "imported": ended.stdout.strip()}


def torchscript(place: Place) -> dict[str, Any]:
    """The instance of the GPU answers as that of the CPU, and its weights lie on the GPU."""
    import torch

    engine = minilm(place)
    rng = np.random.default_rng(2)
    rows = []
    for batch, length in _SHAPES:
        inputs = sentence(rng, batch, length)
        got, wanted = (ask(engine, name, inputs, "sentence_embedding") for name in ("minilm", "minilm_cpu"))
        rows.append({"batch": batch, "tokens": length, "drift": f"{drift(got, wanted):.1e}"})
        if drift(got, wanted) > _LARGEST_DRIFT or not np.isfinite(got).all():
            raise Failed(f"{batch} x {length}: answers differ by {drift(got, wanted):.2e} of the largest", shapes=rows)
    figures: dict[str, Any] = {"shapes": rows}
    if place.gpu:
        held = torch.cuda.memory_allocated()
        figures["held on the GPU, MB"] = round(held / 1e6, 1)
        if held < 80e6:
            raise Failed(f"the weights are 90 MB, and torch holds {held / 1e6:.1f} MB on the GPU", **figures)
    return figures


def nvml(place: Place) -> dict[str, Any]:
    """NVML sees the device, its memory, and that it is busy while the model is under load."""
    from workbench.telemetry.nvml import Nvml

    reader = Nvml()
    idle = reader.sample((os.getpid(),))
    if not idle:
        raise NotProved(reader.note)
    load = Load(minilm(place), "minilm", [sentence(np.random.default_rng(3), 8, 64)])
    samples = []
    thread = threading.Thread(target=lambda: samples.append(load.measure(8, 3)))
    thread.start()
    busy = []
    while thread.is_alive():
        busy.append(reader.sample((os.getpid(),))[0])
        sleep(0.1)
    most = max((each.utilization or 0 for each in busy), default=0)
    gpu = busy[-1]
    figures = {
        "device": gpu.name,
        "largest utilization under load": most,
        "memory used, MB": round((gpu.memory_used_bytes or 0) / 1e6),
        "of this process, MB": round(gpu.process_bytes.get(os.getpid(), 0) / 1e6) or "not told",
        "power, W": max((each.power_watts or 0 for each in busy), default=0) or "not told",
        "clock, MHz": gpu.clock_mhz,
        "temperature, C": gpu.temperature_c,
        "samples": len(busy),
    }
    if not most or not gpu.memory_used_bytes:
        raise Failed("NVML says that the GPU is idle, or holds nothing, while a model runs on it", **figures)
    return figures


def batching(place: Place) -> dict[str, Any]:
    """Requests that wait leave together, and more of them are answered than one by one."""
    engine = minilm(place)
    load = Load(engine, "minilm", [sentence(np.random.default_rng(4), 1, 16)])
    seconds = 1.0 if place.quick else 5.0
    rows = []
    for batched in (False, True, False, True):
        set_config(engine, "minilm", "dynamic_batching", {} if batched else None, "set" if batched else "remove")
        rows.append({"dynamic_batching": "on" if batched else "off", **load.measure(32, seconds)})
    gain = sum(row["infer_per_s"] for row in rows[1::2]) / sum(row["infer_per_s"] for row in rows[::2])
    figures = {"gain": round(gain, 2), "loads": rows}
    if min(row["mean_batch"] for row in rows[1::2]) < 2 or max(row["mean_batch"] for row in rows[::2]) > 1.01:
        raise Failed("32 requests in flight make no batches, or make them where batching is off", **figures)
    if place.gpu and gain < 1.5:
        raise Failed(f"batches bring {gain:.2f} times the throughput; on a GPU it is to be more than 1.5", **figures)
    return figures


def queue_and_compute(place: Place) -> dict[str, Any]:
    """Under growing load: latency, and where the server says that it went; the two agree, and with Little."""
    engine = minilm(place)
    load = Load(engine, "minilm", [sentence(np.random.default_rng(5), 1, 16)])
    seconds = 1.0 if place.quick else 5.0
    rows = [load.measure(concurrency, seconds) for concurrency in (1, 4, 16, 64, 128)]
    for row in rows:
        row["in flight by Little"] = round(row["infer_per_s"] * row["mean_ms"] / 1e3, 1)
    short = [row["concurrency"] for row in rows if row["n"] < 10 * row["concurrency"]]
    if short:
        raise NotProved(f"too few answers in {seconds:g} s with {', '.join(map(str, short))} in flight", loads=rows)
    for row in rows:
        if abs(row["in flight by Little"] / row["concurrency"] - 1) > 0.2:
            raise Failed(f"{row['concurrency']} in flight are {row['in flight by Little']} by Little's law", loads=rows)
        if row["queue_ms"] + row["compute_ms"] > row["mean_ms"] * 1.1 + 0.1:
            raise Failed("queue and compute are more than the whole latency", loads=rows)
    if rows[-1]["queue_ms"] <= rows[0]["queue_ms"]:
        raise Failed("requests wait no longer at 128 in flight than at one", loads=rows)
    return {"loads": rows}


def instances(place: Place) -> dict[str, Any]:
    """Two instances, each on a stream of its own: the same answers under load, and what the second brings."""
    engine = minilm(place)
    inputs = sentence(np.random.default_rng(6), 4, 24)
    wanted = ask(engine, "minilm_cpu", inputs, "sentence_embedding")
    load = Load(engine, "minilm", [inputs])
    seconds = 1.0 if place.quick else 4.0
    rows = [{"instances": 1, **load.measure(16, seconds)}]
    set_config(engine, "minilm", "instance_group[0].count", 2)
    try:
        rows.append({"instances": 2, **load.measure(16, seconds)})
        worst = 0.0
        for _ in range(20):
            worst = max(worst, drift(ask(engine, "minilm", inputs, "sentence_embedding"), wanted))
    finally:
        set_config(engine, "minilm", "instance_group[0].count", 1)
    figures = {"drift": f"{worst:.1e}", "loads": rows}
    if worst > _LARGEST_DRIFT:
        raise Failed(f"answers of two instances differ by {worst:.2e} of the largest", **figures)
    return figures


TORCH_STEPS = (
    Step("machine", "a", "torch sees an NVIDIA GPU", machine, without_gpu="rehearsed"),
    Step(
        "lean engine",
        "a",
        "an engine runs with numpy, torch, onnxruntime and this archive alone",
        lean,
        without_gpu="the same",
    ),
    Step("torchscript", "a", "TorchScript on the GPU answers as on the CPU", torchscript, without_gpu="rehearsed"),
    Step("nvml", "a", "NVML tells what the GPU does while a model runs on it", nvml, without_gpu="rehearsed"),
    Step("batching", "a", "dynamic batching forms batches on the GPU and is faster", batching, without_gpu="rehearsed"),
    Step(
        "queue and compute",
        "a",
        "latency is split into queue and compute under load",
        queue_and_compute,
        without_gpu="rehearsed",
    ),
    Step("instances", "a", "two instances on streams of their own answer right", instances, without_gpu="rehearsed"),
)
