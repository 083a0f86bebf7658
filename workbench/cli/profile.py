"""``workbench profile``: a model at one load or a range of loads."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys

from workbench.cli.ending import terminated_as_interrupted
from workbench.cli.load_arguments import add_load_arguments, load_options
from workbench.cli.ray_arguments import add_ray_arguments, ray_of
from workbench.cli.targets import add_server_arguments, open_server
from workbench.cli.wording import in_flags

SUMMARY = "Measures a model at one load or a range of loads, under the configuration that is applied."
EXAMPLE = "workbench profile mlp_4096 --concurrency 1,8,32"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``profile``."""
    parser.add_argument("model", metavar="MODEL")
    add_server_arguments(parser)
    add_load_arguments(parser)
    add_ray_arguments(
        parser.add_argument_group("other machines"),
        "where the --generators run: on this machine, or on a Ray cluster's nodes, one for each of its resource",
    )
    parser.add_argument("--runs", default="runs", metavar="DIR", help="the run store (default: %(default)s)")
    parser.add_argument("--keep-samples", action="store_true", help="store each request's times, for runs export")
    parser.add_argument("--json", action="store_true", help="points as JSON")


def run(args: argparse.Namespace) -> int:
    """Measures and prints; exit code 1 when a point failed, is not valid or not stable, 130 when it was stopped."""
    with contextlib.closing(open_server(args)) as server, terminated_as_interrupted():
        result = server.sweep(
            args.model, {}, store=args.runs, show_progress=not args.json, kind="profile", generators_on=ray_of(args),
            keep_samples=args.keep_samples, **load_options(args),
        )  # fmt: skip
    points = list(result)  # type: ignore[arg-type]
    if args.json:
        print(json.dumps({"run": result.run_id, "points": [point.to_json() for point in points]}))  # type: ignore[union-attr]
    else:
        from workbench.cli.points import print_points, say_few, say_reasons

        print_points(points, title=args.model)
        say_reasons(points)
        say_few(points)
        print(f"run {result.run_id}")  # type: ignore[union-attr]
    if result.error:
        print(in_flags(str(result.error)), file=sys.stderr)
    if result.stopped:  # type: ignore[union-attr]
        print(f"stopped after {len(points)} of {result.total} points", file=sys.stderr)  # type: ignore[union-attr]
        return 130
    if result.error:
        return 1
    return 0 if points and all(point.verdict == "valid" for point in points) else 1
