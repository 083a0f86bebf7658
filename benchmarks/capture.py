"""What a capture of the traffic costs those who are served meanwhile.

    python benchmarks/capture.py [--quick] [--json]

Blocks with and without a capture in turn: over HTTP with 64 clients and 4 floats, with 4 clients and 4 MiB, and through
``submit`` on the engine's own loop, where there is nothing beside the engine. Then what one request costs by itself.
Medians; the spread of pairs is the 95 % interval of their median.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from support.engine_load import ClosedLoop, write_repository
from support.paired import changed_row, ratios

from workbench.clock import monotonic_ns, sleep
from workbench.engine import EngineOptions, InferenceEngine
from workbench.profiling import Load, Measurer, ServerTarget
from workbench.protocol.packed import data_of, head_of
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.server.options import ServerOptions
from workbench.server.serve import RunningServer

Rows = list[dict[str, Any]]

_LARGE = """backend: "identity"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }
instance_group { kind: KIND_CPU }
"""
_LIMIT = 512 << 20


@contextlib.contextmanager
def captured(engine: InferenceEngine, model: str, wanted: bool) -> Iterator[None]:
    """A capture under way, where it is wanted; the newest requests stay, so that it goes on at its limit."""
    if not wanted:
        yield
        return
    id = engine.begin_capture(model, limit=_LIMIT, keep="last", for_s=600.0).id
    try:
        yield
    finally:
        engine.drop_capture(id)


def over_http(engine: InferenceEngine, model: str, load: Load, elements: int, pairs: int) -> dict[str, list[float]]:
    """Ratios of pairs of blocks."""
    server = RunningServer(engine, ServerOptions(allow_grpc=False, allow_metrics=False))
    server.open()
    inputs = {"IN" if model == "copy" else "INPUT0": np.ones((1, elements), np.float32)}
    try:
        with Measurer(ServerTarget(server.http_url, pid=os.getpid()), model, inputs=inputs) as measurer:

            def measure(having: bool) -> dict[str, float]:
                with captured(engine, model, having):
                    point = measurer.measure(load)
                if point.failed:
                    raise RuntimeError(f"{point.failed} requests failed: {point.errors}")
                cpu = point.server_cpu / point.throughput
                return {"requests/s": point.throughput, "server's CPU a request": cpu, "p99": point.p99_ms}

            measure(True)  # the generator starts
            return ratios(measure, pairs)
    finally:
        server.close(5.0)


def in_kernel(engine: InferenceEngine, seconds: float, pairs: int) -> dict[str, list[float]]:
    """Ratios of pairs of blocks of one closed loop on the engine's event loop, 64 in flight."""
    loop = ClosedLoop(engine, 64)

    def measure(having: bool) -> dict[str, float]:
        with captured(engine, "copy", having):
            sleep(0.05)
            return {"requests/s": loop.rate(seconds)}

    try:
        measure(True)
        return ratios(measure, pairs)
    finally:
        loop.stop()


def packing(runs: int) -> Rows:
    """Microseconds of packing one request."""
    rows: Rows = []
    for text, elements, count in (("4 floats", 4, 5000), ("4 MiB", 1 << 20, 20)):
        request = InferenceRequest("copy", [Tensor.from_numpy("IN", np.ones((1, elements), np.float32))], id="1")
        costs = []
        for _ in range(runs):
            start = monotonic_ns()
            for _ in range(count):
                head_of(request), data_of(request)
            costs.append((monotonic_ns() - start) / count / 1000)
        rows.append(
            {
                "name": f"capture, packing {text}",
                "value": round(statistics.median(costs), 2),
                "unit": "us",
                "goal": None,
                "met": None,
                "n": runs,
                "spread": {"min": round(min(costs), 2), "max": round(max(costs), 2)},
            }
        )
    return rows


def main() -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    args = parser.parse_args()
    pairs, seconds = (4, 1.0) if args.quick else (12, 2.0)
    fixed: dict[str, Any] = {
        "duration_s": seconds, "max_duration_s": seconds, "warmup_s": 0.2, "max_warmup_s": 0.2, "min_requests": 0,
    }  # fmt: skip
    rows: Rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_repository(Path(folder))
        (Path(folder) / "large" / "1").mkdir(parents=True)
        (Path(folder) / "large" / "config.pbtxt").write_text(_LARGE)
        engine = InferenceEngine(EngineOptions((Path(folder),), lower_switch_interval=True))
        engine.start()
        try:
            for text, model, clients, elements in (("4 floats, 64", "copy", 64, 4), ("4 MiB, 4", "large", 4, 1 << 20)):
                found = over_http(engine, model, Load.closed(clients, **fixed), elements, pairs)
                rows += [changed_row(f"capture, HTTP, {text} clients: {name}", each) for name, each in found.items()]
            found = in_kernel(engine, seconds / 2, pairs)
            rows.append(changed_row("capture, in-kernel: requests/s", found["requests/s"]))
        finally:
            engine.stop()
    rows += packing(5 if args.quick else 20)
    if args.json:
        print(json.dumps({"rows": rows}))
    else:
        for row in rows:
            print(f"{row['name']:58} {row['value']:>9} {row['unit']:22} n {row['n']}  {row['spread']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
