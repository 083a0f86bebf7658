"""``workbench sweep``: a grid of configurations × loads."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import threading
from collections.abc import Iterator

from workbench.cli.targets import (
    POINT_HEADERS,
    add_load_arguments,
    add_server_arguments,
    grid_of,
    load_options,
    open_server,
    point_cells,
    print_streams,
    say_reasons,
)
from workbench.errors import InvalidMeasurement

SUMMARY = "Measures a grid of configurations × loads, applied live; the configuration is restored at the end."
EXAMPLE = "workbench sweep mlp_4096 --set 'max_batch_size=[8,32]' --set 'dynamic_batching=[{}]' --concurrency 32"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``sweep``."""
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument(
        "--set",
        action="append",
        metavar="PATH=VALUES",
        help="values in JSON; null removes the field; of a list field [4,8] is one value and [[4],[8]] are two; "
        "parameters[KEY]=VALUES; under an ensemble STEP:PATH=VALUES; may be repeated",
    )
    add_server_arguments(parser)
    add_load_arguments(parser)
    parser.add_argument("--p99-ms", type=float, metavar="MS", help="the latency goal for the best configuration")
    parser.add_argument("--runs", default="runs", metavar="DIR", help="the run store (default: %(default)s)")
    parser.add_argument("--title", default="", help="what to call the run")
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        default="",
        metavar="RUN",
        help="go on with a run that was ended early, measuring only what it does not have; without RUN the newest one "
        "of the same model, --set and load, or a new one",
    )
    parser.add_argument("--remeasure", action="store_true", help="with --resume: measure again what was not valid")
    parser.add_argument(
        "--content",
        default="",
        metavar="NAME",
        help="what the model's files are (a version, a git hash), to resume where they are on another machine",
    )
    parser.add_argument("--json", action="store_true", help="points and the choice as JSON")


def run(args: argparse.Namespace) -> int:
    """Measures and prints; exit code 1 when no valid point holds the goal."""
    from workbench.profiling import SweepResult
    from workbench.profiling.settings import short_name, shown
    from workbench.tuning import choose

    grid = grid_of(args.set)
    server = open_server(args)
    with contextlib.closing(server), _terminated_as_interrupted():
        result = server.sweep(
            args.model,
            grid,
            store=args.runs,
            show_progress=not args.json,
            title=args.title,
            resume=args.resume,
            remeasure=args.remeasure,
            content=args.content,
            **load_options(args),
        )
    assert isinstance(result, SweepResult)  # it has waited
    points = list(result)
    try:
        choice = choose(points, p99_ms=args.p99_ms)
        text, settings = choice.text, dict(choice.settings)
    except InvalidMeasurement as error:
        choice, text, settings = None, str(error), {}
    if args.json:
        best = {"settings": settings, "text": text} if choice is not None else None
        print(json.dumps({"run": result.run_id, "points": [p.to_json() for p in points], "best": best}))
    else:
        from workbench.cli.tables import print_table

        paths = tuple(result.grid)  # short forms are written out in it
        rows = [
            (*(json.dumps(shown(point.settings.get(path))) for path in paths), *point_cells(point)) for point in points
        ]
        print_table((*map(short_name, paths), *POINT_HEADERS), rows, title=args.model)
        print_streams(points, paths)
        say_reasons(points)
        print(f"best: {text}" if choice is not None else text)
        print(f"run {result.run_id}")
        if result.status != "done":
            why = f": {result.error}" if result.error else ""
            print(f"{result.status} after {len(points)} of {result.total} points{why}", file=sys.stderr)
            print(f"go on with it: the same command with --resume {result.run_id}", file=sys.stderr)
    if result.stopped:
        return 130
    return 0 if choice is not None and not result.error else 1


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """A sweep that is told to end (kill, a closed terminal) puts the configuration back, as after Ctrl-C."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        names = []
    before = {name: signal.signal(getattr(signal, name), interrupt) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
