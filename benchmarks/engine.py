"""What the engine itself costs: requests a second through ``submit`` in one process, and how long a live edit takes.

    python benchmarks/engine.py [--quick] [--json]

The model is an ONNX graph that copies 4 floats, so nearly all of the time is the engine's. Goals: more than 15,000
requests/s with 64 requests in flight; an edit of the queue delay in force in under 100 ms under that load; records of
all requests and batches for less than 2 % of the throughput over HTTP, measured with and without them in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from workbench.clock import monotonic_ns, sleep
from workbench.config import Edit
from workbench.engine import EngineOptions, InferenceEngine
from workbench.profiling import Load, Measurer, ServerTarget
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor
from workbench.server.options import ServerOptions
from workbench.server.serve import RunningServer

CONFIG = """backend: "onnxruntime"
max_batch_size: 64
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { }
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""
DELAY = "dynamic_batching.max_queue_delay_microseconds"


def write_repository(folder: Path) -> None:
    """One model, ``copy``."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("IN", "OUT")]
    graph = helper.make_graph([helper.make_node("Identity", ["IN"], ["OUT"])], "copy", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "copy" / "1").mkdir(parents=True)
    (folder / "copy" / "1" / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "copy" / "config.pbtxt").write_text(CONFIG)


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

    def stop(self) -> None:
        """Lets what is in flight end."""
        self.running = False
        self.done.wait(10)


def throughput(engine: InferenceEngine, concurrency: int, runs: int, seconds: float) -> dict[str, Any]:
    """Requests a second, over several runs."""
    rates = []
    for _ in range(runs):
        load = ClosedLoop(engine, concurrency)
        sleep(seconds / 4)
        start, count = monotonic_ns(), load.count
        sleep(seconds)
        rates.append((load.count - count) / ((monotonic_ns() - start) / 1e9))
        load.stop()
        assert not load.failed
    goal = 15_000 if concurrency == 64 else None
    value = statistics.median(rates)
    return {
        "name": f"submit, {concurrency} in flight",
        "value": round(value),
        "unit": "requests/s (median of runs)",
        "goal": None if goal is None else f"> {goal}",
        "met": None if goal is None else value > goal,
        "n": runs,
        "spread": {"min": round(min(rates)), "max": round(max(rates))},
    }


def live_edit(engine: InferenceEngine, runs: int) -> dict[str, Any]:
    """Milliseconds until an edit of the delay is in force, under load."""
    load = ClosedLoop(engine, 64)
    took = []
    for index in range(runs):
        took.append(engine.configure("copy", [Edit(DELAY, "set", 100 + index % 2)]).took_ms)
        sleep(0.02)
    engine.revert("copy")
    load.stop()
    return {
        "name": "live edit of the queue delay, 64 in flight",
        "value": round(statistics.median(took), 2),
        "unit": "ms (median)",
        "goal": "< 100, none failed",
        "met": max(took) < 100 and not load.failed,
        "n": runs,
        "spread": {"min": round(min(took), 2), "max": round(max(took), 2)},
    }


@contextlib.contextmanager
def without_records(engine: InferenceEngine) -> Iterator[None]:
    """An engine whose ring takes nothing: what is left is the call."""
    ring: Any = engine.records
    ring.add_request = lambda *fields, **more: -1
    ring.add_batch = lambda *fields, **more: None
    try:
        yield
    finally:
        del ring.add_request, ring.add_batch


def record_overhead(engine: InferenceEngine, pairs: int, seconds: float) -> list[dict[str, Any]]:
    """What records cost a server over HTTP: points with and without them in turn, now the one first, now the other.

    Of each pair the part of the throughput that is lost, and of the process's CPU time a request that is added (which
    other processes disturb less); their medians, and between which of the ordered pairs those lie with 95 % confidence.
    """
    server = RunningServer(engine, ServerOptions(allow_grpc=False, allow_metrics=False))
    server.open()
    load = Load.closed(64, duration_s=seconds, warmup_s=seconds / 5, min_requests=1)
    inputs = {"IN": np.ones((1, 4), np.float32)}

    def measured() -> tuple[float, float]:
        point = measurer.measure(load)
        assert not point.failed
        return point.throughput, point.server_cpu / point.throughput

    lost: dict[str, list[float]] = {"requests/s": [], "CPU a request": []}
    with Measurer(ServerTarget(server.http_url, pid=os.getpid()), "copy", inputs=inputs) as measurer:
        measured()  # the generator starts
        for pair in range(pairs):
            found: dict[bool, tuple[float, float]] = {}
            for recorded in (True, False) if pair % 2 else (False, True):
                with contextlib.nullcontext() if recorded else without_records(engine):
                    found[recorded] = measured()
            lost["requests/s"].append(100 * (1 - found[True][0] / found[False][0]))
            lost["CPU a request"].append(100 * (found[True][1] / found[False][1] - 1))
    server.close(5.0)
    low = max(0, int((pairs - 1.96 * pairs**0.5) / 2))
    rows = []
    for of, values in lost.items():
        ordered, value = sorted(values), statistics.median(values)
        goal = "< 2" if of == "requests/s" else None
        rows.append(
            {
                "name": f"records of all requests and batches: {of}",
                "value": round(value, 2),
                "unit": "% (median of pairs, HTTP, 64 clients)",
                "goal": goal,
                "met": None if goal is None else value < 2,
                "n": pairs,
                "spread": {"low": round(ordered[low], 2), "high": round(ordered[pairs - 1 - low], 2)},
            }
        )
    return rows


def main() -> int:
    """Runs it; the exit code says whether the goals were met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    args = parser.parse_args()
    runs, seconds = (3, 0.5) if args.quick else (7, 2.0)
    with tempfile.TemporaryDirectory() as folder:
        write_repository(Path(folder))
        engine = InferenceEngine(EngineOptions((Path(folder),), lower_switch_interval=True))
        engine.start()
        try:
            rows = [throughput(engine, concurrency, runs, seconds) for concurrency in (1, 8, 64)]
            rows.append(live_edit(engine, 20 if args.quick else 100))
            rows += record_overhead(engine, *((20, 0.6) if args.quick else (60, 1.5)))
        finally:
            engine.stop()
    if args.json:
        print(json.dumps({"rows": rows}))
    else:
        for row in rows:
            print(f"{row['name']:50} {row['value']:>10} {row['unit']:38} goal {row['goal']}  met {row['met']}")
    return 0 if all(row["met"] in (None, True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
