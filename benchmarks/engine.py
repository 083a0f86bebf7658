"""What the engine itself costs: requests a second through ``submit`` in one process, and how long a live edit takes.

    python benchmarks/engine.py [--quick] [--json]

The model is an ONNX graph that copies 4 floats, so nearly all of the time is the engine's. Goals: more than 15,000
requests/s with 64 requests in flight; an edit of the queue delay in force in under 100 ms under that load. What records
cost is in ``benchmarks/load.py``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from support.engine_load import ClosedLoop, write_repository

from workbench.clock import sleep
from workbench.config import Edit
from workbench.engine import EngineOptions, InferenceEngine

DELAY = "dynamic_batching.max_queue_delay_microseconds"


def throughput(engine: InferenceEngine, concurrency: int, runs: int, seconds: float) -> dict[str, Any]:
    """Requests a second, over several runs."""
    rates = []
    for _ in range(runs):
        load = ClosedLoop(engine, concurrency)
        sleep(seconds / 4)
        rates.append(load.rate(seconds))
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
