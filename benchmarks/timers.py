"""How exactly asked delays are got: the engine's timers, and a queue delay seen through the engine.

    python benchmarks/timers.py [--quick] [--json]

Goal: asked delays of 100, 200, 500 and 2000 µs are got within +150 µs at the median and never early.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.clock import monotonic_ns, sleep
from workbench.engine.timers import Timers, set_timer_slack

DELAYS_US = (100, 200, 500, 2000)
GOAL_US = 150.0


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the sorted values lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def row(name: str, late_ns: Sequence[int]) -> dict[str, Any]:
    """One row of the result: the median lateness, and whether it holds the goal and nothing was early."""
    late_us = [value / 1000 for value in late_ns]
    median = quantile(late_us, 0.5)
    return {
        "name": name,
        "value": round(median, 1),
        "unit": "µs late (median)",
        "goal": f"0..{GOAL_US:.0f}, none early",
        "met": median <= GOAL_US and min(late_us) >= 0,
        "n": len(late_us),
        "spread": {
            "min": round(min(late_us), 1),
            "p90": round(quantile(late_us, 0.9), 1),
            "p99": round(quantile(late_us, 0.99), 1),
            "max": round(max(late_us), 1),
        },
    }


async def timer_lateness(timers: Timers, delays_us: Sequence[int], chance: random.Random) -> dict[int, list[int]]:
    """Asks for the delays one after the other, with a pause of random length between; lateness in ns by delay."""
    late: dict[int, list[int]] = {delay: [] for delay in set(delays_us)}
    loop = asyncio.get_running_loop()
    for delay in delays_us:
        await asyncio.sleep(chance.uniform(0, 0.002))
        got: asyncio.Future[int] = loop.create_future()
        asked = monotonic_ns() + delay * 1000
        timers.call_at(asked, lambda got=got: got.set_result(monotonic_ns()))
        late[delay].append(await got - asked)
    return late


def on_a_loop_thread(runs: int, *, use_thread: bool, seed: int) -> list[dict[str, Any]]:
    """Timers on a uvloop loop in a thread of its own, as in the engine."""
    import uvloop

    chance = random.Random(seed)
    delays = [delay for delay in DELAYS_US for _ in range(runs)]
    chance.shuffle(delays)
    late: dict[int, list[int]] = {}

    def thread() -> None:
        set_timer_slack()
        loop = uvloop.new_event_loop()
        timers = Timers(loop, use_thread=use_thread)
        late.update(loop.run_until_complete(timer_lateness(timers, delays, chance)))
        timers.close()
        loop.close()

    worker = threading.Thread(target=thread, name="engine")
    worker.start()
    worker.join()
    kind = "waiting thread" if use_thread else "timerfd"
    return [row(f"timer {delay} µs ({kind})", late[delay]) for delay in DELAYS_US]


CONFIG = """backend: "onnxruntime"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { max_queue_delay_microseconds: %d }
"""


def copy_model() -> bytes:
    """An ONNX model that copies its input."""
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("IN", "OUT")]
    graph = helper.make_graph([helper.make_node("Identity", ["IN"], ["OUT"])], "copy", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return bytes(model.SerializeToString())


def write_repository(folder: Path) -> None:
    """One copying model for each delay."""
    for delay in DELAYS_US:
        version = folder / f"delay_{delay}" / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(copy_model())
        (version.parent / "config.pbtxt").write_text(CONFIG % delay)


def through_the_engine(runs: int, *, seed: int) -> list[dict[str, Any]]:
    """One request at a time to a model with a queue delay: how much later than the delay its batch was formed.

    The engine's own records tell: ``queue_start`` of the request, ``acquired`` of its batch.
    """
    import numpy as np

    from workbench.engine import EngineOptions, InferenceEngine
    from workbench.protocol.tensors import InferenceRequest, Tensor

    chance = random.Random(seed)
    delays = [delay for delay in DELAYS_US for _ in range(runs)]
    chance.shuffle(delays)
    data = np.zeros((1, 4), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        write_repository(Path(folder))
        engine = InferenceEngine(EngineOptions(repositories=(Path(folder),), lower_switch_interval=True))
        engine.start()
        try:
            before = engine.records.read().last_seq
            for delay in delays:
                sleep(chance.uniform(0, 0.001))
                response = engine.infer(InferenceRequest(f"delay_{delay}", [Tensor.from_numpy("IN", data)]))
                assert response.error is None, response.error
            records = engine.records.read(before)
        finally:
            engine.stop()
    batches, requests = records.batches, records.requests
    formed = dict(zip(zip(batches["model"], batches["batch_seq"], strict=True), batches["acquired"], strict=True))
    late: dict[int, list[int]] = {delay: [] for delay in DELAYS_US}
    for model, batch, start in zip(requests["model"], requests["batch_seq"], requests["queue_start"], strict=True):
        delay = int(model.removeprefix("delay_"))
        late[delay].append(int(formed[model, batch] - start) - delay * 1000)
    return [row(f"queue delay {delay} µs (engine)", late[delay]) for delay in DELAYS_US]


def main() -> int:
    """Runs the benchmark; exit code 0 if every goal is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    runs = 200 if args.quick else 2000
    rows = on_a_loop_thread(runs, use_thread=False, seed=args.seed)
    rows += through_the_engine(runs, seed=args.seed)
    if args.json:
        print(json.dumps({"rows": rows}, ensure_ascii=False))
    else:
        for entry in rows:
            spread = "  ".join(f"{key} {value:.1f}" for key, value in entry["spread"].items())
            met = "met" if entry["met"] else "NOT MET"
            print(f"{entry['name']:<34} {entry['value']:>7.1f} {entry['unit']}  {met:<7} n={entry['n']}  {spread}")
    return 0 if all(entry["met"] for entry in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
