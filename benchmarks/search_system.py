"""What keeping models apart is worth: queries' p99 while the batch worker runs flat out, and what it costs the worker.

    python benchmarks/search_system.py [--quick] [--json] [--rate QUERIES/S] [--models REPOSITORY]

The samples ``qry_embedding_ts`` (asked in an open loop, one short text a request) and ``ctx_embedding`` (fed by
``workbench embed``, two batches of 32 texts in flight) on one server, served two ways that take turns:

- together: threads as Triton's backends choose them (every core for each model), nothing pinned;
- apart: ``--host-policy`` gives each of the two cores of its own and each has as many threads as that is; the worker's
  program and the tokenizer that it asks run on the cores of the model for documents.

Queries come at a fifth of the rate that one client gets who waits for each answer, apart and without a worker.

Each round has three blocks: queries and worker together, queries and worker apart, and the worker alone (served apart),
in an order that turns round. Ratios are of the blocks of one round. With ``--quick`` a p99 has few queries behind it.
Not judged: queries alone, and together with a worker that gives way (``--yield-to``).

Medians of rounds; the spread is their range, or the 95 % interval of the median from six rounds on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
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
from workbench.profiling import Load, Measurer, ServerTarget
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


FULL = Size(10, 30.0)
QUICK = Size(3, 10.0)


@dataclass(frozen=True, slots=True)
class Block:
    """What a block gave: the queries' p50 and p99 in ms (nan where none were sent), texts/s (0 without a worker)."""

    p50_ms: float
    p99_ms: float
    documents: float


class Variant:
    """A way to serve: the server, its queries' load, and on which cores the worker's program runs."""

    def __init__(
        self, name: str, server: Server, worker_cores: Sequence[int], examples: Path, opened: contextlib.ExitStack
    ) -> None:
        self.name, self._server, self._cores = name, server, worker_cores
        target = ServerTarget(f"http://{server.http}", pid=server.pid)
        self.queries = opened.enter_context(Measurer(target, QUERY, inputs=examples))

    def alone(self, seconds: float) -> tuple[float, float]:
        """Queries/s of one client that waits for each answer, and their p50 in ms."""
        point = self.queries.measure(Load.closed(1, warmup_s=1.0, duration_s=seconds, max_duration_s=seconds))
        return point.throughput, point.p50_ms

    def block(
        self, size: Size, rate: float, folder: Path, *, ask: bool, work: bool, flags: Sequence[str] = ()
    ) -> Block:
        """One block: queries where ``ask``, the worker beside them where ``work``."""
        with contextlib.ExitStack() as opened:
            database = opened.enter_context(self._worker(folder, flags)) if work else None
            before, start = _count(database), monotonic_ns()
            p50 = p99 = float("nan")
            if ask:
                seconds = {"duration_s": size.block_s, "max_duration_s": size.block_s}
                point = self.queries.measure(Load.open(rate, warmup_s=1.0, max_warmup_s=1.0, seed=7, **seconds))
                if point.failed:
                    raise RuntimeError(f"{self.name}: {point.failed} queries failed: {point.errors}")
                p50, p99 = point.p50_ms, point.p99_ms
            else:
                sleep(size.block_s)
            done = (_count(database) - before) / ((monotonic_ns() - start) / 1e9)
        return Block(p50, p99, done)

    @contextlib.contextmanager
    def _worker(self, folder: Path, flags: Sequence[str]) -> Iterator[Path]:
        """``workbench embed`` on a copy of the table, running."""
        database = folder / "running.db"
        database.unlink(missing_ok=True)
        shutil.copy(folder / "documents.db", database)
        command = [
            sys.executable, "-m", "workbench.cli", "embed", str(database), "-u", f"http://{self._server.http}",
            "--batch-size", "32", *flags,
        ]  # fmt: skip
        pin = (lambda: os.sched_setaffinity(0, self._cores)) if self._cores else None
        with (folder / "worker.log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=pin)
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


def write_variants(source: Path, folder: Path, bulk_cores: int) -> tuple[Path, Path]:
    """The repositories ``together`` and ``apart``: the same models, with Triton's threads and with as many as cores."""
    together, apart = folder / "together", folder / "apart"
    for target in (together, apart):
        for model in (QUERY, CONTEXT, TOKENIZER):
            shutil.copytree(source / model, target / model)
    edits = {
        together / QUERY: Edit('parameters["INTRA_OP_THREAD_COUNT"]', "remove", None),
        together / CONTEXT: Edit('parameters["intra_op_thread_count"]', "remove", None),
        apart / CONTEXT: Edit('parameters["intra_op_thread_count"].string_value', "set", str(bulk_cores)),
    }
    for model, edit in edits.items():
        file = model / "config.pbtxt"
        file.write_bytes(ConfigDocument.parse(file.read_bytes()).edit([edit]).data)
    return together, apart


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
        RuntimeError: there is one core only, or something does not run.
    """
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
        repositories = write_variants(source, folder, len(bulk))
        # "cpu" is for what names no policy: the tokenizer
        places = {"query": query, "bulk": bulk, "cpu": bulk}
        policies = [f"--host-policy={name},cpu-cores={_ranges(each)}" for name, each in places.items()]
        servers = [
            opened.enter_context(ours(repository, folder / f"{repository.name}.log", flags))
            for repository, flags in zip(repositories, ([], policies), strict=True)
        ]
        examples = source / QUERY / "example_inputs.json"
        together = Variant("together", servers[0], (), examples, opened)
        apart = Variant("apart", servers[1], bulk, examples, opened)
        blocks = (
            ("together", together, {"ask": True, "work": True}),
            ("apart", apart, {"ask": True, "work": True}),
            ("worker alone", apart, {"ask": False, "work": True}),
        )
        reached, usual_ms = apart.alone(4.0)
        rate = rate or max(1.0, reached / 5)
        print(f"{rate:.1f} queries/s; one takes {usual_ms:.1f} ms alone", file=sys.stderr, flush=True)
        for turn in range(size.rounds):
            for name, variant, what in blocks[turn % 3 :] + blocks[: turn % 3]:
                found.setdefault(name, []).append(variant.block(size, rate, folder, **what))
                print(f"{turn + 1}/{size.rounds} {name}: {found[name][-1]}", file=sys.stderr, flush=True)
        give_way = ["--yield-to", QUERY, "--max-queue-ms", "1", "--max-ms", f"{2 * usual_ms:.1f}", "--in-flight", "1"]
        for name, variant, work, flags in (
            ("queries alone", apart, False, []),
            ("giving way", together, True, give_way),
        ):
            found[name] = [variant.block(size, rate, folder, ask=True, work=work, flags=flags)]
    return [row("queries", [rate], "/s"), *rows_of(found)]


def _ranges(cores: Sequence[int]) -> str:
    return ",".join(f"{core}-{core}" for core in cores)


def rows_of(found: dict[str, list[Block]]) -> list[dict[str, Any]]:
    """The table of the blocks."""
    together, apart, alone = found["together"], found["apart"], found["worker alone"]
    better = [a.p99_ms / b.p99_ms for a, b in zip(together, apart, strict=True)]
    kept = [100 * a.documents / b.documents for a, b in zip(apart, alone, strict=True)]
    rows = [
        row("queries: p99 together / p99 apart", better, "x", at_least=3),
        row("worker, apart: of its speed alone", kept, "%", at_least=60),
    ]
    for name, blocks in found.items():
        if name != "worker alone":
            rows.append(row(f"{name}: queries' p50", [each.p50_ms for each in blocks], "ms"))
            rows.append(row(f"{name}: queries' p99", [each.p99_ms for each in blocks], "ms"))
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
                f"{each['name']:38} {each['value']:>9} {each['unit']:8} {spread:>18} n={each['n']:<3} "
                f"{each['goal'] or '':6} {met}"
            )
    return 0 if all(each["met"] for each in rows if each["goal"]) else 1


if __name__ == "__main__":
    sys.exit(main())
