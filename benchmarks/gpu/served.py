"""The models that the steps serve, engines over them, and a closed loop of requests."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gpu.steps import Failed, NotProved, Place
from workbench.clock import monotonic_ns, sleep
from workbench.config import Edit
from workbench.engine import EngineOptions, InferenceEngine
from workbench.protocol.tensors import InferenceRequest, Tensor

IDS = (1000, 30000)
"""Token ids of whole words in MiniLM's vocabulary."""

_MINILM = """name: "{name}"
backend: "pytorch"
max_batch_size: 32
input [
  {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }},
  {{ name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }}
]
output [ {{ name: "sentence_embedding" data_type: TYPE_FP32 dims: [ 384 ] }} ]
instance_group [ {{ count: 1 kind: {kind} }} ]
dynamic_batching {{ }}
"""
_DETECTOR = """name: "{name}"
backend: "onnxruntime"
max_batch_size: 8
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] }} ]
output [ {{ name: "sigmoid_0.tmp_0" data_type: TYPE_FP32 dims: [ 1, -1, -1 ] }} ]
instance_group [ {{ count: 1 kind: {kind} }} ]
{more}
"""


def engine_over(place: Place, repository: Path) -> InferenceEngine:
    """A started engine over a repository, every model loaded; stopped when the check ends."""
    engine = InferenceEngine(EngineOptions((repository,), load_models=("*",)), clock=monotonic_ns)
    place.closing.append(lambda: engine.stop(5))
    engine.start()
    refused = [f"{each['name']}: {each['reason']}" for each in engine.repository_index() if each.get("reason")]
    if refused:
        raise Failed("a model was not loaded: " + "; ".join(refused))
    return engine


def minilm(place: Place) -> InferenceEngine:
    """MiniLM as TorchScript: ``minilm`` on the kind of instance that is checked, ``minilm_cpu`` on the CPU."""
    if "minilm" not in place.shared:
        repository = place.scratch / "torchscript"
        try:
            for name, kind in (("minilm", place.kind), ("minilm_cpu", "KIND_CPU")):
                put(repository, name, _MINILM.format(name=name, kind=kind), "model.pt", torchscript(place))
            place.shared["minilm"] = engine_over(place, repository)
        except Exception as error:
            place.shared["minilm"] = error
    found: InferenceEngine | Exception = place.shared["minilm"]
    if isinstance(found, Exception):
        raise found
    return found


def torchscript(place: Place) -> Path:
    """MiniLM's network, scripted by this machine's torch, with weights that were rounded to FP16; computes in FP32."""
    import torch

    from workbench.samples.torch_forms import minilm_module

    if place.gpu and not torch.cuda.is_available():
        raise NotProved(f"there is a GPU, and torch {torch.__version__} does not see it")
    path = place.scratch / "minilm.pt"
    if not path.exists():
        file = place.weights / "minilm.npz"
        if not file.is_file():
            raise NotProved(f"MiniLM's weights are not here ({file.name})")
        with np.load(file) as stored, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = minilm_module({name: stored[name].astype(np.float32) for name in stored.files})
            torch.jit.save(torch.jit.script(module), str(path))
    return path


def detector(place: Place, kind: str, more: str = "") -> InferenceEngine:
    """PP-OCR's detector under ONNX Runtime, on an engine of its own."""
    source = place.weights / "text_detector.onnx"
    if not source.is_file():
        raise NotProved(f"the detector's weights are not here ({source.name})")
    repository = place.scratch / f"detector_{kind}_{len(place.closing)}"
    put(repository, "detector", _DETECTOR.format(name="detector", kind=kind, more=more), "model.onnx", source)
    return engine_over(place, repository)


def put(repository: Path, name: str, config: str, file: str, content: Path) -> None:
    """Writes a model directory; the file is a link."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    (version / file).symlink_to(content.resolve())


def sentence(rng: np.random.Generator, rows: int, length: int) -> dict[str, np.ndarray]:
    """Rows of random words, all of one length."""
    ids = rng.integers(*IDS, (rows, length), dtype=np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def ask(engine: InferenceEngine, model: str, inputs: Mapping[str, np.ndarray], output: str) -> np.ndarray:
    """One request's output."""
    tensors = [Tensor.from_numpy(name, array) for name, array in inputs.items()]
    return np.array(engine.infer(InferenceRequest(model, tensors), timeout_s=60).as_numpy(output))


def drift(got: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference, by the largest value."""
    return float(np.abs(got - wanted).max() / max(float(np.abs(wanted).max()), 1e-12))


class Load:
    """Keeps so many requests in flight, from the engine's own loop; ``measure`` gives figures of a window."""

    def __init__(self, engine: InferenceEngine, model: str, requests: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.engine, self.model = engine, model
        self.requests = [[Tensor.from_numpy(name, array) for name, array in each.items()] for each in requests]
        self.sent = 0
        self.latencies: list[int] = []
        self.errors: list[str] = []

    def measure(self, concurrency: int, seconds: float) -> dict[str, Any]:
        """Throughput, latency, and the server's own split, over ``seconds`` after half of it unmeasured.

        Raises:
            Failed: a request failed, or none was answered.
        """
        self.errors.clear()
        running, left, ended = True, concurrency, threading.Event()

        def send() -> None:
            began = monotonic_ns()
            tensors = self.requests[self.sent % len(self.requests)]
            self.sent += 1

            def collect(response: Any) -> None:
                nonlocal left
                self.latencies.append(monotonic_ns() - began)
                if response.error is not None:
                    self.errors.append(str(response.error))
                if running and not self.errors:
                    send()
                    return
                left -= 1
                if not left:
                    ended.set()

            self.engine.submit(InferenceRequest(self.model, tensors), collect)

        self.engine.loop.call_soon_threadsafe(lambda: [send() for _ in range(concurrency)])
        sleep(seconds / 2)  # TorchScript compiles in the first calls of a shape
        before, first, start = self._statistics(), len(self.latencies), monotonic_ns()
        sleep(seconds)
        # A slow machine answers nothing in a short window; one answer is waited for, however long it takes.
        while len(self.latencies) == first and monotonic_ns() - start < 60e9:
            sleep(0.05)
        after, last, took_s = self._statistics(), len(self.latencies), (monotonic_ns() - start) / 1e9
        running = False
        if not ended.wait(30):
            raise Failed("requests in flight were not answered within 30 s")
        if self.errors:
            raise Failed(f"a request failed under load: {self.errors[0]}")
        window_ms = np.array(self.latencies[first:last]) / 1e6
        if not len(window_ms):
            raise Failed("no request was answered in a minute")
        change = {name: after[name] - before[name] for name in after}
        count = max(change["requests"], 1)
        return {
            "concurrency": concurrency,
            "n": len(window_ms),
            "infer_per_s": round(len(window_ms) / took_s, 1),
            "p50_ms": round(float(np.percentile(window_ms, 50)), 3),
            "p99_ms": round(float(np.percentile(window_ms, 99)), 3),
            "mean_ms": round(float(window_ms.mean()), 3),
            "queue_ms": round(change["queue"] / count / 1e6, 3),
            "compute_ms": round(change["compute"] / count / 1e6, 3),
            "mean_batch": round(change["rows"] / max(change["executions"], 1), 2),
        }

    def _statistics(self) -> dict[str, int]:
        found = self.engine.statistics(self.model)["model_stats"][0]
        times = found["inference_stats"]
        return {
            "rows": int(found["inference_count"]),
            "executions": int(found["execution_count"]),
            "requests": int(times["success"]["count"]),
            "queue": int(times["queue"]["ns"]),
            "compute": sum(int(times[f"compute_{part}"]["ns"]) for part in ("input", "infer", "output")),
        }


def set_config(
    engine: InferenceEngine, model: str, path: str, value: Any = None, op: Literal["set", "remove"] = "set"
) -> None:
    """One edit of a model's configuration, in memory."""
    engine.configure(model, [Edit(path, op, value)])
