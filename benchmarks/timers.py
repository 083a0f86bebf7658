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
import threading
from collections.abc import Sequence
from typing import Any

from workbench.clock import monotonic_ns
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


def main() -> int:
    """Runs the benchmark; exit code 0 if every goal is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    runs = 200 if args.quick else 2000
    rows = on_a_loop_thread(runs, use_thread=False, seed=args.seed)
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
