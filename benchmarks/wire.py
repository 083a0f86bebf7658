"""The wire against real Triton's: the same model.py and config, perf_analyzer, servers in turn; and in-kernel calls.

    python benchmarks/wire.py [--quick] [--json] [--only http,grpc,large,copies,onnx,kernel] [--oracle DIR]

Real Triton 2.51 (Python backend) and our server run side by side over one repository and are asked in turn, so what
else the machine does hits both. ``add_sub`` takes and gives 2 × 16 floats, max_batch_size 64, ``dynamic_batching {}``,
one instance. Every ratio is taken run by run; the row shows their median and range. CPU is that of the server and all
of its processes (perf_analyzer's is not in it), for one request. Large tensors: 4 MiB there and back; copies are
counted by a preloaded ``memcpy``, for each direction. ``mlp_4096``: load of 2 × max batch × instances against a loop of
``session.run`` at the batch size that came about. In-kernel rows are whole calls of ``Engine.infer``.

``--oracle`` (or WORKBENCH_ORACLE) is the folder with ``real-tritonserver`` and ``perf-analyzer``; without it the rows
that need them say so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.copies import CopyCounter
from support.large import ask_large
from support.load import LoadClient, Measured
from support.servers import Server, oracle_at, ours, real_triton
from support.wire_models import (
    MLP_MAX_BATCH,
    TENSOR_FLOATS,
    write_copied,
    write_identity,
    write_mlp,
    write_shared,
    write_thread,
)

from workbench.clock import monotonic_ns
from workbench.engine.captured import SLOWEST

PARTS = ("kernel", "copies", "http", "grpc", "large", "onnx")
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """A load point: ``places`` are where our model runs, its name there, and the least throughput against real's."""

    part: str
    protocol: str
    model: str
    level: int
    places: tuple[tuple[str, str, float], ...]
    window: float = 1.0
    """Of the length of a window of other cases: what is kept of large tensors would fill the memory."""


CASES = (
    *(
        Case("http", "http", "add_sub", level, (("own process", "add_sub", own), ("thread", "add_sub_thread", thread)))
        for level, own, thread in ((1, 1.3, 1.6), (8, 1.6, 2.0), (64, 1.3, 1.6))
    ),
    *(
        Case("grpc", "grpc", "add_sub", level, (("own process", "add_sub", goal),))
        for level, goal in ((1, 1.0), (8, 1.1), (64, 1.2))
    ),
    *(Case("large", protocol, "big", 4, (("own process", "big", 1.0),), window=0.4) for protocol in ("http", "grpc")),
)


class Result:
    """What was measured of a case: real Triton's and ours of each run, in turn."""

    def __init__(self) -> None:
        self.real: list[Measured] = []
        self.ours: dict[str, list[Measured]] = {}
        self.failed = "the server has no gRPC"

    def measure(self, client: LoadClient, case: Case, real: Server, server: Server) -> None:
        """One run; a failure of the load client leaves it out."""
        try:
            window_s = client.window_s * case.window
            theirs = client.measure(real, case.model, case.protocol, case.level, window_s)
            mine = {
                place: client.measure(server, model, case.protocol, case.level, window_s)
                for place, model, _ in case.places
            }
        except RuntimeError as error:
            self.failed = str(error)
            print(f"{case.protocol} {case.model} c={case.level}: left out: {error}", file=sys.stderr, flush=True)
            return
        self.real.append(theirs)
        for place, measured in mine.items():
            self.ours.setdefault(place, []).append(measured)
            print(
                f"{case.protocol} {case.model} c={case.level}, {place}: {measured.rate:.0f} infer/s, real "
                f"{theirs.rate:.0f}: {measured.rate / theirs.rate:.3f} ×; p99 {measured.p99_us:.0f} µs, real "
                f"{theirs.p99_us:.0f}",
                file=sys.stderr,
                flush=True,
            )

    def rows(self, case: Case) -> Rows:
        """The rows of all places."""
        name = f"{case.protocol} {case.model} c={case.level}"
        rows = own_rows(f"{name}, real", self.real) if self.real else []
        for place, _, goal in case.places:
            title = f"{name}, {place}"
            if place in self.ours:
                rows += compared(title, self.ours[place], self.real, goal, judge_p99=case.model == "add_sub")
            else:
                rows.append(not_measured(title, self.failed))
        return rows


class Wire:
    """One run of the benchmark. After ``budget_s`` no further round of points is begun: n says how many there were."""

    def __init__(self, oracle: Path | None, runs: int, window_s: float, calls: int, budget_s: float) -> None:
        self.oracle = oracle
        self.deadline = monotonic_ns() + int(budget_s * 1e9)
        self.runs = runs
        self.calls = calls
        self.client = LoadClient(oracle, window_s) if oracle is not None else None

    def run(self, parts: Sequence[str]) -> Rows:
        """The rows of the parts asked for."""
        rows: Rows = []
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            if "kernel" in parts:
                rows += self._kernel(root)
            if "copies" in parts:
                rows += self._guarded("copies of a 4 MiB tensor", lambda: self._copies(root))
            if {"http", "grpc", "large"} & set(parts):
                rows += self._guarded("against real Triton", lambda: self._against_triton(root, parts))
            if "onnx" in parts:
                rows += self._guarded("mlp_4096 against session.run", lambda: self._onnx(root))
        return rows

    def _guarded(self, name: str, measure: Callable[[], Rows]) -> Rows:
        try:
            return measure()
        except RuntimeError as error:
            return [not_measured(name, str(error))]

    def _client(self) -> LoadClient:
        if self.client is None:
            raise RuntimeError("no perf_analyzer: give --oracle or WORKBENCH_ORACLE")
        return self.client

    # ---- in this process

    def _kernel(self, root: Path) -> Rows:
        import workbench as wb

        write_identity(root / "identity_repository")
        data = np.ones((1, 16), np.float32)
        took: dict[bool, list[float]] = {True: [], False: []}
        with contextlib.ExitStack() as stack:
            engines = {
                inline: stack.enter_context(wb.Engine(root / "identity_repository", inline=inline)) for inline in took
            }
            for engine in engines.values():
                for _ in range(200):
                    engine.infer("identity", {"INPUT0": data})
            for _ in range(self.runs * 4):
                for inline, engine in engines.items():
                    took[inline].append(statistics.median(timed_calls(engine, data, self.calls)))
        return [
            row("in-kernel infer, inline: p50 of a call", took[True], "µs", at_most=30),
            row("in-kernel infer, through the scheduler: p50 of a call", took[False], "µs", at_most=200),
        ]

    # ---- copies

    def _copies(self, root: Path) -> Rows:
        repository, work = root / "copied", root / "counter"
        work.mkdir()
        write_copied(repository)
        counter = CopyCounter(work)
        rows = []
        with ours(repository, root / "copied.log", environment=counter.environment) as server:
            for protocol in ("http", "grpc"):
                if protocol == "grpc" and not server.grpc:
                    rows.append(not_measured("grpc: copies of a 4 MiB tensor", "the server has no gRPC"))
                    continue
                for model, where, way in (
                    ("sink", "own process", "in"),
                    ("source", "own process", "out"),
                    ("sink_thread", "thread", "in"),
                    ("source_thread", "thread", "out"),
                ):
                    ask_large(server, protocol, model, 2 * SLOWEST)  # the inputs of the slowest are kept: not counted
                    counts = []
                    for _ in range(5):
                        before = counter.total()
                        ask_large(server, protocol, model, 1)
                        counts.append((counter.total() - before) / (TENSOR_FLOATS * 4))
                    rows.append(row(f"{protocol} 4 MiB, {where}: copies {way}", counts, "copies", at_most=2))
        counter.close()
        return rows

    # ---- against real Triton

    def _against_triton(self, root: Path, parts: Sequence[str]) -> Rows:
        client = self._client()
        assert self.oracle is not None
        both, mine = root / "both", root / "mine"
        write_shared(both)
        write_shared(mine)
        write_thread(mine)
        with (
            real_triton(self.oracle, both, root / "real.log") as real,
            ours(mine, root / "ours.log") as server,
        ):
            cases = [case for case in CASES if case.part in parts]
            results = {case: Result() for case in cases}
            for turn in range(self.runs):
                print(f"against real Triton: run {turn + 1} of {self.runs}", file=sys.stderr)
                for case in cases:
                    if turn and monotonic_ns() > self.deadline:
                        break
                    if case.protocol == "http" or server.grpc:
                        results[case].measure(client, case, real, server)
            return [row for case in cases for row in results[case].rows(case)]

    # ---- ONNX

    def _onnx(self, root: Path) -> Rows:
        client = self._client()
        file = write_mlp(root / "onnx")
        ratios, rates, sizes = [], [], []
        with ours(root / "onnx", root / "onnx.log") as server:
            for turn in range(self.runs):
                if turn and monotonic_ns() > self.deadline:
                    break
                point = client.measure(server, "mlp_4096", "http", 2 * MLP_MAX_BATCH)
                size = max(1, round(point.batch))
                bare = bare_session(file, size, client.window_s * 2)
                rates.append(point.rate)
                sizes.append(point.batch)
                ratios.append(point.rate / bare)
        return [
            row(f"onnx mlp_4096 c={2 * MLP_MAX_BATCH}: rows/s / bare session.run", ratios, "×", at_least=0.97),
            row(f"onnx mlp_4096 c={2 * MLP_MAX_BATCH}: throughput", rates, "infer/s"),
            row(f"onnx mlp_4096 c={2 * MLP_MAX_BATCH}: batch size", sizes, "rows"),
        ]


def timed_calls(engine: Any, data: Any, calls: int) -> Iterator[float]:
    """Microseconds of single calls."""
    for _ in range(calls):
        start = monotonic_ns()
        engine.infer("identity", {"INPUT0": data})
        yield (monotonic_ns() - start) / 1000


def bare_session(file: Path, rows: int, seconds: float) -> float:
    """Rows a second of a loop of ``session.run`` on one thread, in this process."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    data = np.random.default_rng(1).random((rows, session.get_inputs()[0].shape[1]), dtype=np.float32)
    for _ in range(3):
        session.run(None, {"input": data})
    start, count = monotonic_ns(), 0
    while monotonic_ns() - start < seconds * 1e9:
        session.run(None, {"input": data})
        count += rows
    return count / ((monotonic_ns() - start) / 1e9)


def compared(title: str, mine: Sequence[Measured], theirs: Sequence[Measured], goal: float, *, judge_p99: bool) -> Rows:
    """The rows of one load point: throughput and p99 against the other's of the same run, and our own."""
    pairs = list(zip(mine, theirs, strict=True))
    return [
        row(f"{title}: throughput / real", [a.rate / b.rate for a, b in pairs], "×", at_least=goal),
        row(f"{title}: p99 / real", [a.p99_us / b.p99_us for a, b in pairs], "×", at_most=1.0 if judge_p99 else None),
        *own_rows(title, mine),
    ]


def own_rows(title: str, points: Sequence[Measured]) -> Rows:
    """The figures of one server."""
    return [
        row(f"{title}: throughput", [each.rate for each in points], "infer/s"),
        row(f"{title}: CPU a request", [each.cpu_us for each in points], "µs"),
    ]


def row(
    name: str, values: Sequence[float], unit: str, *, at_least: float | None = None, at_most: float | None = None
) -> dict[str, Any]:
    """One row: the median of the values, judged where there is a goal."""
    value = statistics.median(values)
    goal = f">= {at_least}" if at_least is not None else f"<= {at_most}" if at_most is not None else None
    met = None if goal is None else value >= at_least if at_least is not None else value <= (at_most or 0)
    digits = 0 if value >= 1000 else 1 if value >= 20 else 2
    return {
        "name": name,
        "value": round(value, digits),
        "unit": unit,
        "goal": goal,
        "met": met,
        "n": len(values),
        "spread": {"min": round(min(values), digits), "max": round(max(values), digits)},
    }


def not_measured(name: str, why: str) -> dict[str, Any]:
    """A row that says why there is no figure."""
    return {"name": name, "value": None, "unit": why, "goal": None, "met": None, "n": 0, "spread": {}}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table, or JSON; exit code 0 where the goals are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, of {', '.join(PARTS)}")
    parser.add_argument("--oracle", type=Path, help="folder with real-tritonserver and perf-analyzer")
    parser.add_argument("--runs", type=int, help="alternating runs of each point")
    args = parser.parse_args(argv)
    # Stopped from outside, the servers end with it; what was measured until then is on standard error.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    runs, window_s, calls, budget_s = (2, 0.5, 2000, 90.0) if args.quick else (5, 1.0, 10_000, 7200.0)
    wire = Wire(oracle_at(args.oracle), args.runs or runs, window_s, calls, budget_s)
    rows = wire.run(args.only.split(","))
    if args.json:
        print(json.dumps({"rows": rows}, indent=1, ensure_ascii=False))
    else:
        for each in rows:
            met = {None: "", True: "met", False: "MISSED"}[each["met"]]
            spread = f"{each['spread']['min']}..{each['spread']['max']}" if each["spread"] else ""
            value = "-" if each["value"] is None else each["value"]
            print(
                f"{each['name']:56} {value:>9} {each['unit']:8} {spread:>18} n={each['n']:<3} "
                f"{each['goal'] or '':8} {met}"
            )
    return 0 if all(each["met"] is not False for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
