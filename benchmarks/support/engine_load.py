"""An engine over a model that costs next to nothing, and a closed loop on the engine's own event loop."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from workbench.clock import monotonic_ns, sleep
from workbench.engine import InferenceEngine
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor

_CONFIG = """backend: "onnxruntime"
max_batch_size: 64
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { }
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""


def write_repository(folder: Path) -> None:
    """One model, ``copy``: an ONNX graph that copies 4 floats."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("IN", "OUT")]
    graph = helper.make_graph([helper.make_node("Identity", ["IN"], ["OUT"])], "copy", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "copy" / "1").mkdir(parents=True)
    (folder / "copy" / "1" / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "copy" / "config.pbtxt").write_text(_CONFIG)


class ClosedLoop:
    """Keeps ``concurrency`` requests in flight from the engine's own loop, as a front end would."""

    def __init__(self, engine: InferenceEngine, concurrency: int) -> None:
        self.engine = engine
        self.input = Tensor.from_numpy("IN", np.ones((1, 4), np.float32))
        self.count = self.failed = 0
        self.left = concurrency
        self.running = True
        self.done = threading.Event()
        engine.loop.call_soon_threadsafe(lambda: [self.send() for _ in range(concurrency)])

    def send(self) -> None:
        self.engine.submit(InferenceRequest("copy", [self.input]), self.collect)

    def collect(self, response: InferenceResponse) -> None:
        self.count += 1
        self.failed += response.error is not None
        if self.running:
            self.send()
            return
        self.left -= 1
        if not self.left:
            self.done.set()

    def rate(self, seconds: float) -> float:
        """Requests a second from now on."""
        start, count = monotonic_ns(), self.count
        sleep(seconds)
        return (self.count - count) / ((monotonic_ns() - start) / 1e9)

    def stop(self) -> None:
        """Lets what is in flight end."""
        self.running = False
        self.done.wait(10)
