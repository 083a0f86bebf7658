"""Whether the load generator, and what watches a server, can be believed.

    python benchmarks/load.py [--quick] [--json] [--only rate,floor,script,stall,records,panel]

- ``rate``: 10,000 scheduled requests/s over HTTP against a target that only answers (``support/null_target.py``): how
  late they were sent, and how much of a core the generator took.
- ``floor``: the least that a round trip takes, and the most that the generator can send in a closed loop.
- ``script``: a target whose latencies are known gives exactly their percentiles.
- ``stall``: a server that stands still 1 s in 10 shows it in p99 from the scheduled time; a single client that waits
  for each answer (a closed loop, latency from its sends) does not see it.
- ``records``: what writing a record of every request and batch costs, over HTTP (64 clients; a model in a process of
  its own, as Triton's Python backend has it, and the least model there is, on a thread) and on the engine's own loop
  (64 in flight, and 1). One server under one load; its loop switches records on and off every 100 ms
  (``support/switched.py``), and requests/s and the loop's CPU time a request are compared block by neighbouring block.
  "Off" is the engine as it is without the writing: no call, no row. Also the difference itself, in µs a request.
- ``panel``: what an open panel changes at concurrency 8 of a model on one thread (JupyterLab and Chromium, the panel
  ``live``). One page, kernel, server and measurer throughout; before a block the panel comes into the page and has
  drawn itself, or goes. With the session told that something is measured, as ``server.profile`` does, and (fewer pairs)
  not told; and the CPU that kernel and browser take more.

Medians of runs or pairs; the spread is their range, of pairs the 95 % interval of the median. Where a hypervisor takes
some of the processors, the half of the pairs that it took least from is judged. A change is within its goal where its
whole interval is, and is not decided where the interval reaches across the goal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.engine_load import ClosedLoop, write_repository
from support.null_target import INPUTS, null_target
from support.paired import changed_row
from support.switched import Alternation, Switched
from support.wire_models import write_shared

from workbench.clock import monotonic_ns
from workbench.engine import EngineOptions, InferenceEngine
from workbench.engine.ticket import OnResponse, Ticket
from workbench.profiling import Load, Measurer, Point, Samples, ServerTarget
from workbench.protocol.tensors import InferenceRequest
from workbench.server.main import spare_collector
from workbench.server.options import ServerOptions
from workbench.server.serve import RunningServer

Rows = list[dict[str, Any]]

LATENCIES_MS = (*[5.0] * 56, *[20.0] * 36, *[50.0] * 6, *[120.0] * 2)
"""The script: of a hundred requests 56 take 5 ms, and so on."""

KNOWN_MS = {"p50_ms": 5.0, "p90_ms": 20.0, "p95_ms": 50.0, "p99_ms": 120.0}


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: runs and their seconds, pairs of blocks and their seconds."""

    runs: int
    run_s: float
    script_s: float
    stalls: int
    pairs: int
    block_s: float
    panel_pairs: int
    panel_s: float


FULL = Size(8, 3.0, 5.0, 2, 200, 0.1, 40, 1.5)
QUICK = Size(3, 1.5, 2.0, 1, 40, 0.1, 3, 1.5)


def row(
    name: str, values: Sequence[float], unit: str, *, at_most: float | None = None, at_least: float | None = None
) -> dict[str, Any]:
    """One row: the median of the values, judged where there is a goal."""
    value = statistics.median(values)
    met = None
    if at_most is not None or at_least is not None:
        met = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
    goal = " ".join(
        ([f">= {at_least:g}"] if at_least is not None else []) + ([f"<= {at_most:g}"] if at_most is not None else [])
    )
    digits = 0 if value >= 1000 else 1 if value >= 20 else 3
    return {
        "name": name,
        "value": round(value, digits),
        "unit": unit,
        "goal": goal or None,
        "met": met,
        "n": len(values),
        "spread": {"low": round(min(values), digits), "high": round(max(values), digits)},
    }


def fixed(seconds: float) -> dict[str, float]:
    """Options of a load whose window is not prolonged."""
    return {"duration_s": seconds, "max_duration_s": seconds, "warmup_s": 0.5, "max_warmup_s": 0.5}


def inside(samples: Samples) -> np.ndarray:
    """Which requests were scheduled in the window and sent."""
    begin, end = samples.window
    chosen: np.ndarray = (samples.scheduled >= begin) & (samples.scheduled < end) & (samples.sent > 0)
    return chosen


def lag_us(samples: Samples, share: float) -> float:
    """A quantile of how late the window's requests were sent."""
    chosen = inside(samples)
    return float(np.quantile((samples.sent - samples.scheduled)[chosen], share)) / 1e3


# ---- the generator


def rate(size: Size) -> Rows:
    """10,000/s from one generator, and twice as many from two."""
    rows: Rows = []
    with null_target() as (url, _), Measurer(ServerTarget(url), "m", inputs=INPUTS) as measurer:
        for arrivals, generators, asked in (("poisson", 1, 10_000), ("constant", 1, 10_000), ("poisson", 2, 20_000)):
            found = []
            for turn in range(size.runs):
                load = Load.open(asked, arrivals, generators=generators, seed=turn + 1, **fixed(size.run_s))  # type: ignore[arg-type]
                found.append(measurer.run(load).samples)
            judged = generators == 1
            name = f"{asked:,}/s {arrivals}" + ("" if judged else f", {generators} generators")
            sent = [100 * float(inside(each).sum()) / (asked * each.seconds) for each in found]
            rows.append(row(f"{name}: sent of what was asked", sent, "%"))
            rows.append(row(f"{name}: send lag p50", [lag_us(each, 0.5) for each in found], "µs"))
            late = [lag_us(each, 0.99) for each in found]
            rows.append(row(f"{name}: send lag p99", late, "µs", at_most=300 if judged else None))
            cpu = [100 * each.cpu_s / each.seconds for each in found]
            rows.append(row(f"{name}: generator's CPU", cpu, "% of a core", at_most=60 if judged else None))
    return rows


def floor(size: Size) -> Rows:
    """The least latency and the greatest rate."""
    rows: Rows = []
    with null_target() as (url, _), Measurer(ServerTarget(url), "m", inputs=INPUTS) as measurer:
        bare = [statistics.median(bare_round_trips(url, 2000)) for _ in range(size.runs)]
        rows.append(row("null target: round trip from a bare socket, p50", bare, "µs"))
        for clients, generators in ((1, 1), (8, 1), (64, 1), (64, 2)):
            load = Load.closed(clients, generators=generators, **fixed(size.run_s))  # type: ignore[arg-type]
            points = [measurer.measure(load) for _ in range(size.runs)]
            name = f"closed loop, {clients} clients" + (f", {generators} generators" if generators > 1 else "")
            rows.append(row(f"{name}: rate", [point.throughput for point in points], "requests/s"))
            if clients == 1:
                rows.append(row(f"{name}: latency p50", [1e3 * point.sent_p50_ms for point in points], "µs"))
                rows.append(row(f"{name}: latency p99", [1e3 * point.sent_p99_ms for point in points], "µs"))
    return rows


def bare_round_trips(url: str, count: int) -> list[float]:
    """Microseconds of requests over a blocking socket."""
    host, _, port = url.removeprefix("http://").partition(":")
    request = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    took = []
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            start = monotonic_ns()
            connection.sendall(request)
            connection.recv(4096)
            took.append((monotonic_ns() - start) / 1e3)
    return took


# ---- what is known comes back


def script(size: Size) -> Rows:
    """Percentiles of scripted latencies."""
    latencies = list(LATENCIES_MS) * 5
    random.Random(1).shuffle(latencies)
    with null_target(latencies) as (url, _), Measurer(ServerTarget(url), "m", inputs=INPUTS) as measurer:
        points = [
            measurer.measure(Load.open(500, "constant", **fixed(size.script_s)))  # type: ignore[arg-type]
            for _ in range(size.runs)
        ]
    return [
        row(
            f"scripted latencies, {name.removesuffix('_ms')} of {known:g} ms",
            [getattr(point, name) for point in points], "ms", at_least=known, at_most=known + 0.5,
        )
        for name, known in KNOWN_MS.items()
    ]  # fmt: skip


def stall(size: Size) -> Rows:
    """A stall of 1 s in 10: of a hundred requests ten wait, up to 1 s, so p99 from the scheduled time is 0.9 s."""
    opened: list[Point] = []
    closed: list[Point] = []
    with contextlib.ExitStack() as stack:
        url, _ = stack.enter_context(null_target([1.0], stall_every_s=10.0, stall_s=1.0))
        measurer = stack.enter_context(Measurer(ServerTarget(url), "m", inputs=INPUTS))
        for _ in range(size.stalls):
            opened.append(measurer.measure(Load.open(200, "constant", **fixed(10.0))))  # type: ignore[arg-type]
            closed.append(measurer.measure(Load.closed(1, **fixed(10.0))))  # type: ignore[arg-type]
    return [
        row(
            "stall 1 s in 10, open loop: p99 from scheduled", [point.p99_ms for point in opened], "ms",
            at_least=855, at_most=945,
        ),
        row(
            "stall 1 s in 10, one waiting client: p99 from sent", [point.sent_p99_ms for point in closed], "ms",
            at_most=20,
        ),
    ]  # fmt: skip


# ---- records


class CountedEngine(InferenceEngine):
    """An engine that counts what is asked of it."""

    asked = 0

    def submit(self, request: InferenceRequest, on_response: OnResponse, *, once: bool = False) -> Ticket:
        """As of every engine."""
        self.asked += 1
        return super().submit(request, on_response, once=once)


def records(size: Size) -> Rows:
    """What records cost: over HTTP with 64 clients, and on the engine's own loop with 64 and with 1 in flight."""
    rows: Rows = []
    small, copied = np.ones((1, 16), np.float32), np.ones((1, 4), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        write_repository(Path(folder))
        write_shared(Path(folder))
        engine = CountedEngine(EngineOptions((Path(folder),), lower_switch_interval=True))
        engine.start()
        spare_collector()
        try:
            found = {
                "records, HTTP, own process": records_over_http(
                    engine, size, "add_sub", {"INPUT0": small, "INPUT1": small}
                ),
                "records, HTTP, thread": records_over_http(engine, size, "copy", {"IN": copied}),
            }
            for clients in (64, 1):
                found[f"records, in-kernel, {clients} in flight"] = records_in_kernel(engine, size, clients)
        finally:
            engine.stop()
    for name, each in found.items():
        rows.append(changed_row(f"{name}: requests/s", each.rate, goal_percent=2))
        rows.append(changed_row(f"{name}: loop's CPU a request", each.cpu))
        rows += each.cost_rows(name)
    return rows


def alternation(engine: CountedEngine, pairs: int, block_s: float) -> Alternation:
    """Blocks with records written and not; the ring is full before them, as it is in a server that has run a while."""
    ring, before = engine.records, engine.asked
    for _ in range(ring.size):
        ring.add_batch(0, "", 0, "", 0, 0, "", 0, 0)

    def switch(on: bool) -> None:
        ring.writing = on

    return Alternation(engine, switch, lambda: engine.asked - before, pairs, block_s)


def records_over_http(engine: CountedEngine, size: Size, model: str, inputs: dict[str, Any]) -> Switched:
    """One closed loop of 64 clients in another process, cut into blocks."""
    server = RunningServer(engine, ServerOptions(allow_grpc=False, allow_metrics=False))
    server.open()
    seconds = 2 * size.pairs * size.block_s
    load = Load.closed(64, **fixed(1.1 * seconds + 3))  # type: ignore[arg-type]
    try:
        with Measurer(ServerTarget(server.http_url, pid=os.getpid()), model, inputs=inputs) as measurer:
            blocks = alternation(engine, size.pairs, size.block_s)
            point = measurer.measure(load)
    finally:
        server.close(5.0)
    if point.failed:
        raise RuntimeError(f"{point.failed} requests failed: {point.errors}")
    return blocks.result()


def records_in_kernel(engine: CountedEngine, size: Size, clients: int) -> Switched:
    """One closed loop on the engine's event loop, cut into blocks."""
    loop = ClosedLoop(engine, clients)
    try:
        blocks = alternation(engine, size.pairs, size.block_s)
        blocks.over.wait(60 + 4 * size.pairs * size.block_s)
    finally:
        loop.stop()
        if loop.failed:
            raise RuntimeError(f"{loop.failed} requests failed")
    return blocks.result()


# ---- a panel


def panel(size: Size) -> Rows:
    """What an open panel changes at concurrency 8 of a model on one thread."""
    from support.panel import NotHere, panel_blocks

    try:
        found = panel_blocks(size.panel_pairs, max(2, size.panel_pairs // 3), size.panel_s)
    except NotHere as why:
        return [
            {"name": "open panel", "value": None, "unit": str(why), "goal": None, "met": None, "n": 0, "spread": {}}
        ]
    rows: Rows = []
    for kind, name, goal in (("told", "open panel", 2.0), ("not told", "open panel that is not told", None)):
        rows.append(changed_row(f"{name}: requests/s", found[kind]["throughput"], goal_percent=goal))
        rows.append(changed_row(f"{name}: p50", found[kind]["p50_ms"], goal_percent=goal))
        for process in ("kernel", "browser"):
            rows.append(
                row(f"{name}: more CPU of the {process}", [100 * v for v in found[kind][process]], "% of a core")
            )
    return rows


PARTS: dict[str, Callable[[Size], Rows]] = {
    "rate": rate,
    "floor": floor,
    "script": script,
    "stall": stall,
    "records": records,
    "panel": panel,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table, or JSON; exit code 0 where every goal is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, of {', '.join(PARTS)}")
    args = parser.parse_args(argv)
    chosen = args.only.split(",")
    unknown = set(chosen) - PARTS.keys()
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    rows: Rows = []
    for name in chosen:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows += PARTS[name](QUICK if args.quick else FULL)
    if args.json:
        print(json.dumps({"rows": rows}, indent=1, ensure_ascii=False))
    else:
        for each in rows:
            met = {None: "not decided" if each["goal"] else "", True: "met", False: "MISSED"}[each["met"]]
            spread = f"{each['spread']['low']}..{each['spread']['high']}" if each["spread"] else ""
            value = "-" if each["value"] is None else each["value"]
            print(
                f"{each['name']:58} {value:>9} {each['unit']:22} {spread:>18} n={each['n']:<3} "
                f"{each['goal'] or '':14} {met}"
            )
    return 0 if all(each["met"] for each in rows if each["goal"]) else 1


if __name__ == "__main__":
    sys.exit(main())
