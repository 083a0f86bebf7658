"""What a process of its own costs a Python model, against a thread of the server.

    python benchmarks/python_instances.py [--quick] [--json]

Both instances are driven through the seam of the engine from one event loop, one batch at a time: from handing it over
to its end, back on the loop. The model adds one to every request's input. Thread and process take turns, so what else
the machine does hits both.

Goal: a batch of 64 requests of 16 floats costs a process instance at most 1.5 × the time of a thread instance.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from workbench.backends.base import Execution, InstanceSpec, ModelContext
from workbench.backends.custom_metrics import CustomMetrics
from workbench.backends.python import PythonBackend
from workbench.clock import monotonic_ns
from workbench.config import ConfigDocument, to_json
from workbench.errors import WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor

GOAL = 1.5
SIZES = ((1, 16), (8, 16), (64, 16), (64, 4096), (1, 1_000_000))
"""(requests in a batch, floats in a request)."""

MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", data + 1)]))
        return responses
"""
CONFIG = b"""name: "add" backend: "python" max_batch_size: 64
input { name: "IN" data_type: TYPE_FP32 dims: -1 } output { name: "OUT" data_type: TYPE_FP32 dims: -1 }
"""


class Host:
    """The engine's side of the seam, as much as this needs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.clock = monotonic_ns
        self.metrics = CustomMetrics()

    def infer(self, request: InferenceRequest, on_response: Any) -> Any:
        raise NotImplementedError

    def log(self, level: str, message: str, **names: Any) -> None:
        print(f"{level}: {message}", file=sys.stderr)

    def instance_state(self, instance: str, healthy: bool, why: str, *, gone: bool = False) -> None:
        print(f"{instance}: {why}", file=sys.stderr)


class Worker:
    """The thread of a thread instance, as the engine has one: batches in through a queue, ends out to the loop."""

    def __init__(self, instance: Any) -> None:
        self.batches: SimpleQueue[Execution | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._main, args=(instance,), daemon=True)
        self.thread.start()

    def _main(self, instance: Any) -> None:
        while (execution := self.batches.get()) is not None:
            error: WorkbenchError | None = None
            try:
                instance.execute(execution)
            except WorkbenchError as raised:
                error = raised
            execution.finish(error)


def one_batch(loop: asyncio.AbstractEventLoop, requests: list[InferenceRequest]) -> tuple[Execution, Any, list[Any]]:
    """A batch, the future of its end, and its answers."""
    answers: list[InferenceResponse | None] = [None] * len(requests)
    end: asyncio.Future[int] = loop.create_future()
    home = threading.get_ident()

    def finish(error: WorkbenchError | None) -> None:
        if threading.get_ident() == home:
            end.set_result(monotonic_ns())
        else:
            loop.call_soon_threadsafe(lambda: end.set_result(monotonic_ns()))

    execution = Execution(requests, answers.__setitem__, finish, lambda index: False)
    return execution, end, answers


async def time_batch(loop: asyncio.AbstractEventLoop, start: Any, requests: list[InferenceRequest]) -> int:
    """Nanoseconds from handing a batch over to its end."""
    execution, end, answers = one_batch(loop, requests)
    began = monotonic_ns()
    execution.compute_start = began
    start(execution)
    took = await end - began
    for request, answer in zip(requests, answers, strict=True):
        assert answer is not None
        assert answer.outputs[0].data.flat[0] == request.inputs[0].data.flat[0] + 1
    return int(took)


async def measure(
    loop: asyncio.AbstractEventLoop, starts: dict[str, Any], runs: int, seed: int
) -> list[dict[str, Any]]:
    """Rows for every size: the two times and their ratio."""
    chance = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for count, floats in SIZES:
        data = chance.random((count, 1, floats), dtype=np.float32)
        requests = [InferenceRequest("add", [Tensor.from_numpy("IN", each)]) for each in data]
        took: dict[str, list[float]] = {name: [] for name in starts}
        repeats = max(20, runs * 64 // max(64, count * floats // 256))
        for turn in range(repeats + 10):
            for name, start in starts.items():
                microseconds = await time_batch(loop, start, requests) / 1000
                if turn >= 10:
                    took[name].append(microseconds)
        label = f"{count} × {floats} floats"
        medians = {name: statistics.median(values) for name, values in took.items()}
        for name, values in took.items():
            rows.append(row(f"{label}: {name}", medians[name], "µs a batch (median)", values))
        ratio = medians["process"] / medians["thread"]
        judged = (count, floats) == (64, 16)
        ratios = [p / t for p, t in zip(took["process"], took["thread"], strict=True)]
        rows.append(row(f"{label}: process / thread", ratio, "×", ratios, goal=GOAL if judged else None))
    return rows


def row(name: str, value: float, unit: str, values: list[float], goal: float | None = None) -> dict[str, Any]:
    """One row of the result."""
    low, high = np.percentile(values, [10, 90])
    return {
        "name": name,
        "value": round(value, 2),
        "unit": unit,
        "goal": "" if goal is None else f"<= {goal}",
        "met": None if goal is None else value <= goal,
        "n": len(values),
        "spread": {"p10": round(float(low), 2), "p90": round(float(high), 2)},
    }


def run(runs: int, seed: int) -> list[dict[str, Any]]:
    """Opens the model in both ways and measures."""
    import uvloop

    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    message = ConfigDocument.parse(CONFIG).message
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder) / "add" / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL)
        models, instances = [], {}
        for mode in ("thread", "process"):
            context = ModelContext(
                "add", 1, message, json.dumps(to_json(message)), version.parent, version, Host(loop), {}, mode
            )
            models.append(PythonBackend().open(context))
            instances[mode] = models[-1].create_instance(InstanceSpec(f"add_{mode}", "KIND_CPU", 0, 0))
        worker = Worker(instances["thread"])
        starts = {"thread": worker.batches.put, "process": instances["process"].start}
        try:
            return asyncio.run_coroutine_threadsafe(measure(loop, starts, runs, seed), loop).result()
        finally:
            worker.batches.put(None)
            worker.thread.join()
            for instance in instances.values():
                instance.close()
            for model in models:
                model.close()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()


def main(argv: list[str] | None = None) -> int:
    """Prints a table, or JSON; exit code 0 where the goal is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    sys.setswitchinterval(0.0005)  # as the server does
    rows = run(300 if options.quick else 3000, options.seed)
    if options.json:
        print(json.dumps({"rows": rows}, indent=1, ensure_ascii=False))
    else:
        for each in rows:
            met = {None: "", True: "met", False: "MISSED"}[each["met"]]
            spread = f"{each['spread']['p10']}..{each['spread']['p90']}"
            print(
                f"{each['name']:34} {each['value']:10} {each['unit']:20} {spread:>20} n={each['n']:<6}"
                f"{each['goal']:8} {met}"
            )
    return 0 if all(each["met"] is not False for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
