"""Which server a verb works on, what it sweeps, and how points are shown: what several verbs share."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from workbench.session.server import Server


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """``-u`` and ``--server``."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-u", "--url", metavar="URL", help="any running Triton: http://host:8000, grpc://host:8001 or host:8000"
    )
    where.add_argument("--server", metavar="NAME", help="a server of the workbench on this machine (workbench ps)")
    parser.add_argument(
        "-i", "--protocol", choices=["http", "grpc"], help="for an address without a scheme (default: http)"
    )


def open_server(args: argparse.Namespace) -> Server:
    """The server named; without one, the only one that runs.

    Raises:
        NotFound: none runs, or there is none of that name.
        InvalidRequest: several run and none is named.
    """
    from workbench.server import runtime
    from workbench.session.opening import attach, connect

    if args.url:
        url = args.url if "://" in args.url else f"{args.protocol or 'http'}://{args.url}"
        return connect(url)
    if args.server:
        return attach(args.server)
    running = [info["name"] for info in runtime.list_servers()]
    if not running:
        raise NotFound(
            "no server runs here", hint="start one: workbench serve --model-repository DIR; or name one with -u URL"
        )
    if len(running) > 1:
        raise InvalidRequest(f"several servers run here: {', '.join(running)}", hint="name one with --server")
    return attach(running[0])


def open_telling_server(args: argparse.Namespace) -> Server:
    """As ``open_server``; an address of a server of the workbench on this machine is that server, with its control
    plane: it tells of its requests.
    """
    from workbench.server import runtime
    from workbench.session.opening import attach

    if args.url:
        address = args.url.partition("://")[2] or args.url
        for info in runtime.list_servers():
            if address.rstrip("/") in {str(info[key]).partition("://")[2] for key in ("http", "grpc")}:
                return attach(info["name"])
    return open_server(args)


def grid_of(settings: list[str] | None) -> dict[str, list[Any]]:
    """``--set PATH=VALUES``: a JSON list of values, or one value; words without quotes, with commas between several.

    Raises:
        InvalidRequest: it is not PATH=VALUES, or a path is named twice.
    """
    from workbench.config.path import split_at_equals

    grid: dict[str, list[Any]] = {}
    for text in settings or ():
        path, values = split_at_equals(text) or ("", "")
        if not path or not values:
            raise InvalidRequest(f"cannot read --set {text}", hint="write PATH=[VALUE, ...]")
        if path in grid:
            raise InvalidRequest(f"--set names {path} twice", hint="write all its values in one list")
        grid[path] = _values(text, values)
    return grid


def _values(text: str, values: str) -> list[Any]:
    try:
        parsed = json.loads(values)
    except ValueError as error:
        words = [word.strip() for word in values.split(",")]
        if not all(_WORD.fullmatch(word) for word in words):
            raise InvalidRequest(
                f"cannot read --set {text}", hint="write PATH=[VALUE, ...] in JSON; strings in double quotes"
            ) from error
        return [_word(word) for word in words]
    return parsed if isinstance(parsed, list) else [parsed]


_WORD = re.compile(r"[A-Za-z0-9_.+-]+")


def _word(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word


POINT_HEADERS = (
    "load",
    "infer/s",
    "p50 ms",
    "p95 ms",
    "p99 ms",
    "queue ms",
    "compute ms",
    "mean batch",
    "n",
    "failed",
    "verdict",
)


def point_cells(point: Any) -> tuple[Any, ...]:
    """A point's cells for a table."""
    compute = point.compute_input_ms + point.compute_infer_ms + point.compute_output_ms
    figures = (point.throughput, point.p50_ms, point.p95_ms, point.p99_ms, point.queue_ms, compute, point.mean_batch)
    return (point.load.label, *figures, point.n, point.failed, point.verdict)


_TIMES = ("p50_ms", "p90_ms", "p99_ms", "n")


def print_streams(points: Any, paths: Sequence[str] = ()) -> None:
    """Prints the table of the responses, where points streamed: how many, when the first, how far apart.

    Args:
        points: of a sweep or profile.
        paths: the settings that tell them apart.
    """
    from workbench.cli.tables import print_table
    from workbench.profiling.settings import short_name

    heads = [
        f"{title} {part.replace('_', ' ')}" if part != "n" else "n" for title in ("first", "between") for part in _TIMES
    ]
    rows = []
    for point in points:
        if point.load.streaming:
            times = [
                getattr(point, f"{name}_{part}") for name in ("first_response", "between_responses") for part in _TIMES
            ]
            settings = (json.dumps(point.settings.get(path)) for path in paths)
            rows.append((*settings, point.load.label, point.responses_per_s, point.responses_per_request, *times))
    if rows:
        names = (*map(short_name, paths), "load", "responses/s", "a request", *heads)
        print_table(names, rows, title="responses")


def print_classes(points: Any, paths: Sequence[str] = ()) -> None:
    """Prints the table of the classes of requests, where a load had several.

    Args:
        points: of a sweep or profile.
        paths: the settings that tell them apart.
    """
    from workbench.cli.tables import print_table
    from workbench.profiling.settings import short_name

    rows = []
    for point in points:
        settings = [json.dumps(point.settings.get(path)) for path in paths]
        for name, of in point.classes.items():
            figures = (of.throughput, of.p50_ms, of.p95_ms, of.p99_ms, of.n, of.failed)
            rows.append((*settings, name, of.load, of.model or point.model, *figures))
    if rows:
        heads = ("class", "load", "model", "infer/s", "p50 ms", "p95 ms", "p99 ms", "n", "failed")
        print_table((*map(short_name, paths), *heads), rows, title="classes")


def say_reasons(points: Any) -> None:
    """Prints why points are not valid, not stable or failed: each reason once, with the points that it is about."""
    from workbench.profiling.requests import NO_PRIORITIES, RANDOM_INPUTS
    from workbench.tuning.choice import describe

    about: dict[str, list[str]] = {}
    for point in points:
        reason = "; ".join(dict.fromkeys((*point.reasons, *([point.error] if point.error else []))))
        if reason:
            about.setdefault(reason, []).append(describe(point))
    for reason, places in about.items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        print(f"  ! {places[0]}{more}: {reason}")
    for point in points:
        for text in list(point.errors)[:3]:
            print(f"  ! {describe(point)}: failed: {text}")
    told = (RANDOM_INPUTS, NO_PRIORITIES)
    for note in dict.fromkeys(note for point in points for note in point.notes if note.startswith(told)):
        print(f"  {note}")
    if any("measure for" in reason for point in points for reason in point.reasons):
        print("  a longer window: -p MILLISECONDS")
