"""``workbench sweep``: a grid of configurations × loads, here, on a Ray cluster, or in shards."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.ending import terminated_as_interrupted
from workbench.cli.load_arguments import add_load_arguments, load_options
from workbench.cli.ray_arguments import add_ray_arguments, ray_of
from workbench.cli.targets import add_server_arguments, grid_of, open_server
from workbench.cli.wording import in_flags
from workbench.errors import InvalidMeasurement, InvalidRequest

if TYPE_CHECKING:
    from workbench.profiling import Point, SweepResult
    from workbench.session.server import Server

SUMMARY = "Measures a grid of configurations × loads, applied live; the configuration is restored at the end."
EXAMPLE = "workbench sweep mlp_4096 --set 'max_batch_size=[8,32]' --set 'dynamic_batching=[{}]' --concurrency 32"
INDEX = "JOB_COMPLETION_INDEX"
"""Where Kubernetes says which index of an indexed Job a pod has."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``sweep``."""
    parser.add_argument("model", metavar="MODEL", nargs="?", default="")
    parser.add_argument(
        "--set",
        action="append",
        metavar="PATH=VALUES",
        help="values in JSON; null removes the field; of a list field [4,8] is one value and [[4],[8]] are two; "
        "parameters[KEY]=VALUES; under an ensemble STEP:PATH=VALUES; may be repeated",
    )
    parser.add_argument(
        "--model-analyzer",
        metavar="FILE",
        help="the sweeps of a configuration file of Model Analyzer, of all its models or of MODEL, in place of --set "
        "and the load",
    )
    add_server_arguments(parser)
    parser.add_argument(
        "--model-repository", metavar="DIR", help="serve this repository for the sweep, in place of a running server"
    )
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
        "of the same model, --set and load, or a new one; points that are not valid are kept",
    )
    parser.add_argument("--remeasure", action="store_true", help="with --resume: measure again what was not valid")
    parser.add_argument(
        "--content",
        default="",
        metavar="NAME",
        help="what the model's files are (a version, a git hash), to resume where they are on another machine",
    )
    parser.add_argument("--keep-samples", action="store_true", help="store each request's times, for runs export")
    parser.add_argument("--json", action="store_true", help="points and the choice as JSON")
    _add_machines(parser.add_argument_group("other machines"))


def _add_machines(group: Any) -> None:
    add_ray_arguments(group, "where to measure: at the server, or on a Ray cluster whose workers serve the repository")
    group.add_argument("--ray-repository", metavar="DIR", help="where the repository lies on the nodes, if elsewhere")
    group.add_argument("--write-shards", metavar="DIR", help="measure nothing: divide the sweep into files")
    group.add_argument("--shards", type=int, default=2, metavar="N", help="how many (default: %(default)s)")
    group.add_argument("--image", default="", help="with --write-shards: a Kubernetes Job for them, with this image")
    group.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs of a pod of that Job (default: 0)")
    group.add_argument(
        "--shard",
        metavar="FILE",
        help=f"measure the part that a file holds; of a directory the file of the index that {INDEX} names",
    )


def run(args: argparse.Namespace) -> int:
    """Measures and prints; exit code 1 when no valid point holds the goal."""
    if args.shard:
        return _run_shard(args)
    if args.model_analyzer:
        return _run_model_analyzer(args)
    if not args.model:
        raise InvalidRequest("which model?", hint=EXAMPLE)
    grid = grid_of(args.set)
    with _server(args, args.model) as server, terminated_as_interrupted():
        if args.write_shards:
            return _write_shards(args, server, grid)
        result = server.sweep(
            args.model,
            grid,
            store=args.runs,
            show_progress=not args.json,
            title=args.title,
            resume=args.resume,
            remeasure=args.remeasure,
            content=args.content,
            keep_samples=args.keep_samples,
            executor=_executor(args),
            **load_options(args),
        )
    told, code = _told(result, args, args.p99_ms)
    if args.json:
        print(json.dumps(told))
    return code


@contextlib.contextmanager
def _server(args: argparse.Namespace, *models: str) -> Iterator[Server]:
    """The server named, or one of its own for the time of the sweep."""
    if args.model_repository:
        from workbench.session.opening import serve

        server: Server = serve(args.model_repository, models=models)
    else:
        server = open_server(args)
    with contextlib.closing(server):
        yield server


def _executor(args: argparse.Namespace) -> Any:
    return ray_of(args, repository=args.ray_repository or ())


def _told(result: Any, args: argparse.Namespace, p99_ms: float | None) -> tuple[dict[str, Any], int]:
    """Prints a result, unless JSON is asked for; gives it as JSON, and the exit code."""
    from workbench.cli.points import claim_of
    from workbench.profiling import SweepResult
    from workbench.tuning import choose

    assert isinstance(result, SweepResult)  # it has waited
    points, best = list(result), None
    told: dict[str, Any] = {"run": result.run_id, "points": [point.to_json() for point in points], "best": None}
    try:
        best = choose(points, p99_ms=p99_ms)
        told["best"] = {"settings": dict(best.settings), "text": best.text}
        if p99_ms is not None:
            told["best"]["claim"] = claim_of(best.point, p99_ms)
        text = f"best: {best.text}"
    except InvalidMeasurement as error:
        text = in_flags(str(error))
    if not args.json:
        _print_points(result, text, best.point if best is not None else None, p99_ms)
        _print_run(result, f"the same command with --resume {result.run_id}")
    if result.stopped:
        return told, 130
    return told, 0 if best is not None and not result.error else 1


def _print_points(
    result: SweepResult, verdict: str = "", best: Point | None = None, p99_ms: float | None = None
) -> None:
    """The table, what is wrong with it, and the verdict; what p99 is worth: of the best point where it has a goal."""
    from workbench.cli.points import goal_text, print_points, say_few, say_reasons
    from workbench.cli.tables import say

    print_points(list(result), tuple(result.grid), title=result.model)  # short forms are written out in the grid
    say_reasons(result)
    if best is None or p99_ms is None:
        say_few(result)
    if verdict:
        say(verdict)
    if best is not None and p99_ms is not None:
        say(goal_text(best, p99_ms))


def _print_run(result: SweepResult, again: str) -> None:
    print(f"run {result.run_id}")
    if result.status != "done":
        why = f": {in_flags(result.error)}" if result.error else ""
        print(f"{result.status} after {len(result)} of {result.total} points{why}", file=sys.stderr)
        print(f"go on with it: {again}", file=sys.stderr)


def _write_shards(args: argparse.Namespace, server: Server, grid: dict[str, list[Any]]) -> int:
    from workbench.distributed import JobOptions
    from workbench.session.sharding import write_shards

    job = JobOptions(args.image, gpus=args.gpus) if args.image else None
    paths = write_shards(
        server, args.model, grid, Path(args.write_shards), args.shards, job=job, title=args.title,
        content=args.content, keep_samples=args.keep_samples, **load_options(args),
    )  # fmt: skip
    if args.json:
        print(json.dumps({"files": [str(path) for path in paths]}))
        return 0
    for path in paths:
        print(path)
    print("on each machine, with a copy of the repository: workbench sweep --shard FILE --model-repository DIR")
    if job is not None:
        print(f"or on Kubernetes: kubectl apply -f {paths[-1]} (claims '{job.models_claim}' and '{job.runs_claim}')")
    print("then, where the runs lie: workbench runs merge RUN RUN ...")
    return 0


def _run_shard(args: argparse.Namespace) -> int:
    """Measures a part; the exit code is 0 when it was measured whole, whatever was found."""
    from workbench.session.sharding import run_shard

    path = Path(args.shard)
    if path.is_dir():
        index = os.environ.get(INDEX, "")
        if not index.isdecimal():
            raise InvalidRequest(f"which file of the directory? {INDEX} does not say", where=str(path))
        path = path / f"shard-{index}.json"
    with terminated_as_interrupted():
        result = run_shard(
            path, repository=args.model_repository, store=args.runs, remeasure=args.remeasure,
            show_progress=not args.json,
        )  # fmt: skip
    if args.json:
        print(json.dumps({"run": result.run_id, "points": [point.to_json() for point in result]}))
    else:
        _print_points(result)
        _print_run(result, "the same command")
    if result.stopped:
        return 130
    return 0 if result.status == "done" else 1


def _run_model_analyzer(args: argparse.Namespace) -> int:
    """One sweep after the other; the exit code is that of the first that has another one than 0."""
    from workbench.tuning.model_analyzer import read_model_analyzer

    if args.set or args.write_shards:
        raise InvalidRequest("the grid is in the file of Model Analyzer: --set and --write-shards do not go with it")
    config = read_model_analyzer(args.model_analyzer)
    if args.model and args.model not in [plan.model for plan in config.models]:
        names = ", ".join(plan.model for plan in config.models)
        raise InvalidRequest(f"the file has no model '{args.model}'", where=str(config.path), hint=f"it has {names}")
    plans = [plan for plan in config.models if args.model in ("", plan.model)]
    left_out = [*config.not_understood, *(f"{plan.model}: {text}" for plan in plans for text in plan.not_understood)]
    for text in left_out:
        print(f"not understood: {in_flags(text)}", file=sys.stderr)
    in_the_file = ("concurrency", "rate", "distribution", "batch_size", "streaming", "load")
    more = {name: value for name, value in load_options(args).items() if name not in in_the_file and value is not None}
    sweeps, codes = [], []
    with _server(args, *(plan.model for plan in plans)) as server, terminated_as_interrupted():
        for plan in plans:
            goal = args.p99_ms if args.p99_ms is not None else plan.p99_ms
            for arguments in plan.sweeps():
                result = server.sweep(
                    plan.model,
                    **{**arguments, **more},
                    store=args.runs,
                    show_progress=not args.json,
                    title=args.title,
                    resume=bool(args.resume),
                    remeasure=args.remeasure,
                    content=args.content,
                    keep_samples=args.keep_samples,
                    executor=_executor(args),
                )
                told, code = _told(result, args, goal)
                sweeps.append({"model": plan.model, **told})
                codes.append(code)
                if code == 130:
                    break
            if 130 in codes:
                break
    if args.json:
        print(json.dumps({"sweeps": sweeps, "not_understood": left_out}))
    return next((code for code in codes if code), 0)
