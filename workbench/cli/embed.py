"""``workbench embed``: the batch worker beside a server, from a table of texts to a table of vectors."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cli.ending import handled_by
from workbench.cli.targets import add_server_arguments, open_server

if TYPE_CHECKING:
    from workbench.session.batch_worker import Progress

SUMMARY = "Embeds the texts of a SQLite table through a running server (also a real Triton); ends with Ctrl-C."
EXAMPLE = "workbench embed documents.db -u grpc://localhost:8001 --yield-to qry_embedding_ts"

_EVERY_S = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``embed``."""
    parser.add_argument("database", metavar="FILE", help="SQLite; vectors go into a table of it, batch by batch")
    add_server_arguments(parser)
    parser.add_argument("--table", default="documents", metavar="NAME", help="the texts (default: %(default)s)")
    parser.add_argument("--key", default="id", metavar="COLUMN", help="a row's key (default: %(default)s)")
    parser.add_argument("--text", default="text", metavar="COLUMN", help="its text (default: %(default)s)")
    parser.add_argument("--vectors", default="vectors", metavar="NAME", help="what is written (default: %(default)s)")
    parser.add_argument(
        "--model", action="append", metavar="NAME",
        help="asked one after the other: the first takes texts, the last gives vectors "
        "(default: tokenizer, then ctx_embedding)",
    )  # fmt: skip
    parser.add_argument("--batch-size", type=int, default=0, metavar="ROWS", help="(default: what fits, at most 64)")
    parser.add_argument("--in-flight", type=int, default=2, metavar="N", help="batches at once (default: %(default)s)")
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="sent with each request; 1 is the highest")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--once", action="store_true", help="end when nothing is left")
    when.add_argument("--poll-s", type=float, default=2.0, metavar="S", help="look for new rows (default: %(default)s)")
    parser.add_argument("--yield-to", default="", metavar="MODEL", help="send nothing while its requests wait")
    parser.add_argument(
        "--max-queue-ms", type=float, default=2.0, metavar="MS", help="longer than this (default: %(default)s)"
    )
    parser.add_argument(
        "--max-ms", type=float, default=0.0, metavar="MS", help="or take longer than this (default: any)"
    )
    parser.add_argument(
        "--max-pause-s", type=float, default=10.0, metavar="S", help="then one batch goes (default: %(default)s)"
    )
    parser.add_argument(
        "--give-up-s",
        type=float,
        default=0.0,
        metavar="S",
        help="end where the server is away for so long",
    )
    parser.add_argument("--json", action="store_true", help="what was done, as JSON")


def run(args: argparse.Namespace) -> int:
    """Works; exit code 1 where a row has no vector at the end."""
    from workbench.client import connect
    from workbench.session.batch_table import DocumentTable, TableNames
    from workbench.session.batch_worker import BatchWorker, WorkerOptions

    models = tuple(args.model or WorkerOptions().models)
    options = WorkerOptions(
        models=models, batch_size=args.batch_size, in_flight=args.in_flight, priority=args.priority,
        poll_s=None if args.once else args.poll_s, yield_to=args.yield_to, max_queue_ms=args.max_queue_ms,
        max_ms=args.max_ms, max_pause_s=args.max_pause_s, give_up_s=args.give_up_s,
    )  # fmt: skip
    names = TableNames(table=args.table, key=args.key, text=args.text, vectors=args.vectors)
    stop = threading.Event()
    show = _Shown(args.json)
    with open_server(args) as server:
        url = server.url
    with (
        contextlib.closing(connect(url)) as client,
        DocumentTable(Path(args.database), models[-1], names) as table,
        _stopped_by_signal(stop),
    ):
        done = BatchWorker(table, client, options, on_progress=show, stop=stop).run()
    show.end(done)
    return 1 if done.failed else 0


def _stopped_by_signal(stop: threading.Event) -> contextlib.AbstractContextManager[None]:
    """The first signal lets what was sent be committed; the second ends at once, and loses nothing committed."""

    def told(number: int, frame: object) -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    return handled_by(told, "SIGINT", "SIGTERM", "SIGHUP")


class _Shown:
    """A line that is written over on a terminal, else one where the state changes and every ten seconds."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._terminal = quiet, sys.stderr.isatty()
        self._state, self._next_s = "", 0.0

    def __call__(self, progress: Progress) -> None:
        if self._quiet:
            return
        if self._terminal:
            print(f"\r\x1b[K{progress}", end="", file=sys.stderr, flush=True)
            return
        worth_a_line = progress.state != self._state and progress.state in ("server away", "waiting for rows")
        if worth_a_line or progress.seconds >= self._next_s:
            self._next_s = progress.seconds + _EVERY_S
            print(progress, file=sys.stderr, flush=True)
        self._state = progress.state

    def end(self, progress: Progress) -> None:
        if self._quiet:
            print(json.dumps({**asdict(progress), "rate": progress.rate}))
        elif self._terminal:
            print(f"\r\x1b[K{progress}", file=sys.stderr)
        else:
            print(progress)
