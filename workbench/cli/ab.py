"""``workbench ab``: which of two configurations is faster, measured in turn."""

from __future__ import annotations

import argparse
import contextlib
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

import orjson

from workbench.cli.ending import terminated_as_interrupted
from workbench.cli.load_arguments import add_load_arguments, one_load
from workbench.cli.targets import add_server_arguments, grid_of, open_server
from workbench.cli.wording import in_flags
from workbench.errors import InvalidRequest

if TYPE_CHECKING:
    from workbench.profiling import ABResult

SUMMARY = "Compares two configurations in interleaved blocks until one is faster or it is too close to call."
EXAMPLE = "workbench ab mlp_4096 --b max_batch_size=32 --b 'dynamic_batching={}' --concurrency 8"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ab``."""
    parser.add_argument("model", metavar="MODEL")
    for side in ("a", "b"):
        parser.add_argument(
            f"--{side}",
            action="append",
            metavar="PATH=VALUE",
            help=f"what {side.upper()} sets, in JSON, null removes the field; may be repeated; without any it is the "
            "configuration as it is",
        )
    parser.add_argument("--against", default="", metavar="MODEL", help="B's model, where it is another one")
    add_server_arguments(parser)
    add_load_arguments(parser)
    parser.add_argument("--metric", choices=["throughput", "mean_ms", "p50_ms", "p99_ms"], help="by what it is decided")
    parser.add_argument("--pairs", type=int, default=6, help="pairs of blocks before the first look (default: 6)")
    parser.add_argument("--max-pairs", type=int, default=24, help="at most (default: 24)")
    parser.add_argument("--runs", default="runs", metavar="DIR", help="the run store (default: %(default)s)")
    parser.add_argument("--title", default="", help="what to call the run")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Measures and prints; exit code 0 when it was measured, whoever is faster."""
    a, b = _side(args.a, "--a"), _side(args.b, "--b")
    options = one_load(args, "ab")
    with contextlib.closing(open_server(args)) as server, terminated_as_interrupted():
        result = server.ab(
            args.model, a, b, against=args.against, metric=args.metric, pairs=args.pairs, max_pairs=args.max_pairs,
            store=args.runs, title=args.title, show_progress=not args.json, **options,
        )  # fmt: skip
    if args.json:
        print(_json(result))
    else:
        from workbench.cli.tables import say

        say(told(result))
        if result.run_id:
            print(f"run {result.run_id}")
    if result.stopped:
        return 130
    return 1 if result.error or result.unstored else 0


def told(result: ABResult) -> str:
    """The verdict and the figures, with the flags of the command line."""
    return "\n".join([in_flags(repr(result)), *_longer(result)])


def _longer(result: ABResult) -> list[str]:
    """How long a block must be for the percentile that is to decide."""
    from workbench.profiling.ab_verdict import FEWEST, METRICS

    least, counts = FEWEST.get(result.metric, 0), [block.point.n for block in result.blocks if block.usable]
    if not counts or min(counts) >= least:
        return []
    more = 11 * least / (10 * max(1, min(counts)))
    option = f"-p {math.ceil(result.load.duration_s * more) * 1000}"
    if result.load.requests:  # a window that ends after so many, however long it may last
        option = f"--measurement-request-count {math.ceil(result.load.requests * more)}"
    name = METRICS[result.metric]
    return [f"  {name} takes {least} requests of each block, one had {min(counts)}: {option} gives them"]


def _json(result: ABResult) -> str:
    sides = {each.name: {"model": each.model, "settings": dict(each.settings)} for each in (result.a, result.b)}
    found = {
        "verdict": result.verdict,
        "faster": result.faster,
        "metric": result.metric,
        "restored": result.restored,
        "unstored": result.unstored,
        "run": result.run_id,
        "sides": sides,
        "load": result.load.to_json(),
        "comparisons": {name: asdict(each) for name, each in result.comparisons.items()},
        "blocks": [{"side": each.side, "pair": each.pair, "point": each.point.to_json()} for each in result.blocks],
    }
    return orjson.dumps(found).decode()  # nan becomes null


def _side(given: list[str] | None, option: str) -> dict[str, object]:
    """The values that a side sets: one for each path."""
    out: dict[str, object] = {}
    for text in given or ():
        path, values = next(iter(grid_of([text]).items()))
        if path in out:
            raise InvalidRequest(f"{option} names {path} twice")
        out[path] = _value(text, values)
    return out


def _value(text: str, values: list[object]) -> object:
    """One value; a list is one, too, for there is nothing to sweep here."""
    if text.partition("=")[2].lstrip().startswith("["):
        return values
    if len(values) != 1:
        raise InvalidRequest(f"cannot read {text}", hint="write PATH=VALUE")
    return values[0]
