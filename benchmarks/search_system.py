"""What keeping models apart is worth: queries' p99 while the batch worker runs flat out, and what it costs the worker.

    python benchmarks/search_system.py [--quick] [--json] [--rate QUERIES/S] [--models REPOSITORY]

The samples ``qry_embedding_ts`` (asked in an open loop, one short text a request) and ``ctx_embedding`` (fed by
``workbench embed`` as it comes: two full batches of 64 texts in flight) on one server, served three ways in turn:

- defaults: without isolation. The configurations say nothing of instances, threads, cores or turns, so Triton chooses:
  every core for each model, and two instances of an ONNX model on a CPU;
- together: the samples' instances (one for documents, which is already half of it), threads as Triton chooses them;
- apart, as ``docs/search_system.md`` says: ``--host-policy`` gives each of the two cores of its own, each has as many
  threads as that is, and the queries' model one instance a core; the server itself is started on the queries' cores,
  the worker's program and the tokenizer that it asks run on the cores of the model for documents.

The queries' generator is pinned nowhere and goes first where that is allowed (``sent late`` tells): a client has cores
of its own. Queries come at a fifth of the rate that one
client gets who waits for each answer, apart and without a worker.

Each round has a block of each with queries and worker, and one of the worker alone (served apart), in an order that
turns round; all blocks of a round get the same arrivals. Ratios are of the blocks of one round. Judged are the defaults
against apart. With ``--quick`` a p99 has few queries behind it. Not judged: together against apart, queries alone (no
p99 apart is below that), and together with a worker that gives way (``--yield-to``).

Medians of rounds; the spread is their range, or the 95 % interval of the median from six rounds on. Programs beside it
hit the short waits most, so apart, and make the ratio smaller. Against them ``nice -n -15`` helps, a real-time policy
(``chrt``) does not: under it what shares a core takes turns of 100 ms, which makes together slower than anybody's is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.paired import interval
from support.servers import Server, ours

from workbench.clock import monotonic_ns, sleep
from workbench.config import ConfigDocument, Edit
from workbench.profiling import Load, Measurer, Point, ServerTarget
from workbench.samples import build

QUERY, CONTEXT, TOKENIZER = "qry_embedding_ts", "ctx_embedding", "tokenizer"
WORDS = (
    "the parcel plane train dough bread fog airport password order refund bank light rain snow mountain kitchen",
    "window garden river city night morning market letter music player match final score doctor cold tea nose rest",
)
DOCUMENTS = 50_000
"""More than a worker gets through."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    rounds: int
    block_s: float


FULL = Size(6, 15.0)
QUICK = Size(3, 8.0)


@dataclass(frozen=True, slots=True)
class Block:
    """What a block gave: ms of the queries (nan where none were sent), texts/s (0 without a worker).

    ``compute_ms`` is the model's mean by the server's statistics, ``lag_ms`` the p99 of how late queries were sent.
    """

    documents: float
    p50_ms: float = math.nan
    p99_ms: float = math.nan
    compute_ms: float = math.nan
    lag_ms: float = math.nan


class Variant:
    """A way to serve: the server, its queries' load, and on which cores the worker's program runs."""

    def __init__(
        self, name: str, server: Server, worker_cores: Sequence[int], examples: Path, opened: contextlib.ExitStack
    ) -> None:
        self.name, self._server, self._cores = name, server, worker_cores
        target = ServerTarget(f"http://{server.http}", pid=server.pid)
        self._queries = opened.enter_context(Measurer(target, QUERY, inputs=examples))

    def alone(self, seconds: float) -> tuple[float, float]:
        """Queries/s of one client that waits for each answer, and their p50 in ms."""
        point = self._measure(Load.closed(1, warmup_s=1.0, duration_s=seconds, max_duration_s=seconds))
        return point.throughput, point.p50_ms

    def _measure(self, load: Load) -> Point:
        with going_first():  # the first call starts the generator
            return self._queries.measure(load)

    def block(
        self, seconds: float, rate: float, folder: Path, *, seed: int, ask: bool, work: bool, flags: Sequence[str] = ()
    ) -> Block:
        """One block: queries where ``ask``, the worker beside them where ``work``.

        Raises:
            RuntimeError: a query failed, or the worker does not run.
        """
        with contextlib.ExitStack() as opened:
            database = opened.enter_context(self._worker(folder, flags)) if work else None
            before, start = _count(database), monotonic_ns()
            found: dict[str, float] = {}
            if ask:
                lasts = {"duration_s": seconds, "max_duration_s": seconds}
                point = self._measure(Load.open(rate, warmup_s=1.0, max_warmup_s=1.0, seed=seed, **lasts))
                if point.failed:
                    raise RuntimeError(f"{self.name}: {point.failed} queries failed: {point.errors}")
                found = {"p50_ms": point.p50_ms, "p99_ms": point.p99_ms, "lag_ms": point.lag_p99_ms}
                found["compute_ms"] = point.compute_infer_ms
            else:
                sleep(seconds)
            done = (_count(database) - before) / ((monotonic_ns() - start) / 1e9)
        return Block(done, **found)

    @contextlib.contextmanager
    def _worker(self, folder: Path, flags: Sequence[str]) -> Iterator[Path]:
        """``workbench embed`` on a copy of the table, running."""
        database = folder / "running.db"
        database.unlink(missing_ok=True)
        shutil.copy(folder / "documents.db", database)
        command = [
            sys.executable, "-m", "workbench.cli", "embed", str(database), "-u", f"http://{self._server.http}", *flags,
        ]  # fmt: skip
        with (folder / "worker.log").open("w") as log:
            with on_cores(self._cores):
                process = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                deadline = monotonic_ns() + int(60e9)
                while _count(database) < 64:
                    if process.poll() is not None or monotonic_ns() > deadline:
                        raise RuntimeError(f"the worker does not run:\n{(folder / 'worker.log').read_text()}")
                    sleep(0.05)
                yield database
            finally:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(30)
                finally:
                    process.kill()
                    process.wait()


def _count(database: Path | None) -> int:
    """Vectors committed so far."""
    if database is None:
        return 0
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
        try:
            return int(connection.execute("SELECT COUNT(*) FROM vectors").fetchone()[0])
        except sqlite3.OperationalError:
            return 0


@contextlib.contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """What is started meanwhile runs on these cores, as by ``taskset``."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def going_first() -> Iterator[None]:
    """What is started meanwhile goes before all others; without effect where that is not allowed."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def write_documents(path: Path) -> None:
    """A table of texts of 10 to 60 words from a seed."""
    words = " ".join(WORDS).split()
    rng = np.random.default_rng(11)
    lengths = rng.integers(10, 61, DOCUMENTS)
    chosen = iter(rng.integers(0, len(words), int(lengths.sum())).tolist())
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE documents (id INTEGER PRIMARY KEY, text TEXT)")
        texts = (" ".join(words[next(chosen)] for _ in range(length)) for length in lengths)
        connection.executemany("INSERT INTO documents VALUES (?, ?)", enumerate(texts))


def write_variants(source: Path, folder: Path, query_cores: int, bulk_cores: int) -> tuple[Path, Path, Path]:
    """The repositories ``defaults``, ``together`` and ``apart``: Triton's threads in two, as many as cores in one."""
    defaults, together, apart = folder / "defaults", folder / "together", folder / "apart"
    for target in (defaults, together, apart):
        for model in (QUERY, CONTEXT, TOKENIZER):
            shutil.copytree(source / model, target / model)
    for target in (defaults, together):
        _edit(target / QUERY, [Edit('parameters["INTRA_OP_THREAD_COUNT"]', "remove", None)])
        _edit(target / CONTEXT, [Edit('parameters["intra_op_thread_count"]', "remove", None)])
    for model in (QUERY, CONTEXT):
        _edit(defaults / model, [Edit("instance_group", "remove", None)])
    _edit(apart / QUERY, [Edit("instance_group[0].count", "set", query_cores)])
    _edit(apart / CONTEXT, [Edit('parameters["intra_op_thread_count"].string_value', "set", str(bulk_cores))])
    return defaults, together, apart


def _edit(model: Path, edits: Sequence[Edit]) -> None:
    file = model / "config.pbtxt"
    file.write_bytes(ConfigDocument.parse(file.read_bytes()).edit(edits).data)


def row(name: str, values: Sequence[float], unit: str, *, at_least: float | None = None) -> dict[str, Any]:
    """The median of rounds, judged where there is a goal."""
    value = statistics.median(values)
    low, high = (min(values), max(values)) if len(values) < 6 else interval(list(values))[1:]
    return {
        "name": name,
        "value": round(value, 2),
        "unit": unit,
        "goal": None if at_least is None else f">= {at_least:g}",
        "met": None if at_least is None else value >= at_least,
        "n": len(values),
        "spread": {"low": round(low, 2), "high": round(high, 2)},
    }


def measure(size: Size, rate: float | None, models: Path | None) -> list[dict[str, Any]]:
    """All rows.

    Raises:
        RuntimeError: there is one core only, this runs under a real-time policy, or something does not run.
    """
    if os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO):
        raise RuntimeError("under a real-time policy (chrt) threads do not share cores as they usually do: nice -n -15")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError("keeping models apart takes two cores")
    query, bulk = cores[: len(cores) // 2], cores[len(cores) // 2 :]
    found: dict[str, list[Block]] = {}
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        source = models or folder / "built"
        build(source, models=(QUERY, CONTEXT, TOKENIZER))
        write_documents(folder / "documents.db")
        repositories = write_variants(source, folder, len(query), len(bulk))
        # "cpu" is for what names no policy: the tokenizer
        places = {"query": query, "bulk": bulk, "cpu": bulk}
        policies = [f"--host-policy={name},cpu-cores={_ranges(each)}" for name, each in places.items()]
        servers = []
        for repository, flags, where in zip(repositories, ([], [], policies), (cores, cores, query), strict=True):
            with on_cores(where):
                servers.append(opened.enter_context(ours(repository, folder / f"{repository.name}.log", flags)))
        examples = source / QUERY / "example_inputs.json"
        defaults = Variant("defaults", servers[0], cores, examples, opened)
        together = Variant("together", servers[1], cores, examples, opened)
        apart = Variant("apart", servers[2], bulk, examples, opened)
        blocks = (
            ("defaults", defaults, {"ask": True, "work": True}),
            ("together", together, {"ask": True, "work": True}),
            ("apart", apart, {"ask": True, "work": True}),
            ("worker alone", apart, {"ask": False, "work": True}),
        )
        reached, usual_ms = apart.alone(4.0)
        rate = rate or max(1.0, reached / 5)
        print(f"{rate:.1f} queries/s; one takes {usual_ms:.1f} ms alone", file=sys.stderr, flush=True)
        for turn in range(size.rounds):
            for name, variant, what in blocks[turn % 4 :] + blocks[: turn % 4]:
                found.setdefault(name, []).append(variant.block(size.block_s, rate, folder, seed=turn, **what))
                print(f"{turn + 1}/{size.rounds} {name}: {found[name][-1]}", file=sys.stderr, flush=True)
        give_way = ["--yield-to", QUERY, "--max-queue-ms", "1", "--max-ms", f"{2 * usual_ms:.1f}", "--in-flight", "1"]
        for name, variant, work, flags in (
            ("queries alone", apart, False, []),
            ("giving way", together, True, give_way),
        ):
            found[name] = [variant.block(size.block_s, rate, folder, seed=0, ask=True, work=work, flags=flags)]
    return [row("queries", [rate], "/s"), *rows_of(found)]


def _ranges(cores: Sequence[int]) -> str:
    return ",".join(f"{core}-{core}" for core in cores)


def rows_of(found: dict[str, list[Block]]) -> list[dict[str, Any]]:
    """The table of the blocks."""
    apart, alone = found["apart"], found["worker alone"]
    better = {
        name: [a.p99_ms / b.p99_ms for a, b in zip(found[name], apart, strict=True)]
        for name in ("defaults", "together")
    }
    kept = [100 * a.documents / b.documents for a, b in zip(apart, alone, strict=True)]
    rows = [
        row("queries: p99 of the defaults / p99 apart", better["defaults"], "x", at_least=3),
        row("queries: p99 together / p99 apart", better["together"], "x"),
        row("worker, apart: of its speed alone", kept, "%", at_least=60),
    ]
    for name, blocks in found.items():
        if name != "worker alone":
            rows.append(row(f"{name}: queries' p50", [each.p50_ms for each in blocks], "ms"))
            rows.append(row(f"{name}: queries' p99", [each.p99_ms for each in blocks], "ms"))
            rows.append(row(f"{name}: the model's mean", [each.compute_ms for each in blocks], "ms"))
            rows.append(row(f"{name}: sent late, p99", [each.lag_ms for each in blocks], "ms"))
        if name != "queries alone":
            rows.append(row(f"{name}: worker", [each.documents for each in blocks], "texts/s"))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table, or JSON; exit code 0 where every goal is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter blocks")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--rate", type=float, help="queries/s (default: a fifth of one client's)")
    parser.add_argument("--models", type=Path, help="a repository with the samples (default: built for this)")
    args = parser.parse_args(argv)
    rows = measure(QUICK if args.quick else FULL, args.rate, args.models)
    if args.json:
        print(json.dumps({"rows": rows}, indent=1, ensure_ascii=False))
    else:
        for each in rows:
            met = {None: "", True: "met", False: "MISSED"}[each["met"]]
            spread = f"{each['spread']['low']}..{each['spread']['high']}"
            print(
                f"{each['name']:41} {each['value']:>9} {each['unit']:8} {spread:>18} n={each['n']:<3} "
                f"{each['goal'] or '':6} {met}"
            )
    return 0 if all(each["met"] for each in rows if each["goal"]) else 1


if __name__ == "__main__":
    sys.exit(main())
