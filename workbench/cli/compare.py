"""``workbench compare``: models side by side, measured in turn, and how far their answers are apart."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING

import orjson

from workbench.cli.ending import terminated_as_interrupted
from workbench.cli.load_arguments import add_load_arguments, one_load
from workbench.cli.targets import add_server_arguments, open_server
from workbench.cli.wording import in_flags
from workbench.errors import InvalidRequest

if TYPE_CHECKING:
    from workbench.tuning.compare_result import CompareResult

SUMMARY = "Measures models in turn under one load with the same inputs, and compares their answers with a reference's."
EXAMPLE = "workbench compare minilm minilm_ts minilm_ov --concurrency 4"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``compare``."""
    from workbench.tuning.vectors import KINDS

    parser.add_argument("models", metavar="MODEL", nargs="+")
    parser.add_argument("--reference", default="", metavar="MODEL", help="whose answers are right (default: the first)")
    add_server_arguments(parser)
    add_load_arguments(parser)
    parser.set_defaults(warmup=0.2, measurement_interval=1000.0)
    parser.add_argument("--rounds", type=int, default=6, help="blocks of each model, in turn (default: %(default)s)")
    parser.add_argument("--top-k", type=int, default=5, help="largest elements looked at (default: %(default)s)")
    parser.add_argument(
        "--examples", type=int, default=32, metavar="N", help="answers compared, at most (default: %(default)s)"
    )
    parser.add_argument(
        "--asking", type=float, default=10.0, metavar="S", help="seconds to ask each model for them (default: 10)"
    )
    parser.add_argument(
        "--output-kind", action="append", metavar="OUTPUT=KIND",
        help=f"what an output of the reference is: {', '.join(KINDS)} (default: by its values); may be repeated",
    )  # fmt: skip
    for which in ("input", "output"):
        parser.add_argument(
            f"--{which}-name", action="append", metavar="MODEL:NAME=OWN",
            help=f"which {which}s belong together, by the reference's name and the model's (default: equal names, else "
            "by their place); may be repeated",
        )  # fmt: skip
    parser.add_argument(
        "--no-startup", action="store_true", help="leave out memory, loading and first request, which take a while"
    )
    parser.add_argument("--runs", default="runs", metavar="DIR", help="the run store (default: %(default)s)")
    parser.add_argument("--title", default="", help="what to call the run")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Measures and prints; exit code 0 when all models were measured, whoever is faster."""
    options = one_load(args, "compare")
    with contextlib.closing(open_server(args)) as server, terminated_as_interrupted():
        result = server.compare(
            args.models, reference=args.reference, rounds=args.rounds, top_k=args.top_k, startup=not args.no_startup,
            store=args.runs, title=args.title, examples=args.examples, asking_s=args.asking,
            output_kinds=_kinds(args.output_kind), input_names=_names(args, "input"),
            output_names=_names(args, "output"), show_progress=not args.json, **options,
        )  # fmt: skip
    if args.json:
        print(_json(result))
    else:
        print_told(repr(result))
        if result.run_id:
            print(f"run {result.run_id}")
    if result.stopped:
        return 130
    return 1 if result.unstored or any(each.error or not each.n for each in result.models) else 0


_ELSEWHERE = "workbench runs show on a wider terminal has them"


def _kinds(given: list[str] | None) -> dict[str, str]:
    pairs = [text.rpartition("=") for text in given or ()]
    for (name, _, kind), text in zip(pairs, given or (), strict=True):
        if not name or not kind:
            raise InvalidRequest(f"--output-kind has '{text}'", hint="write OUTPUT=KIND: sentence_embedding=embedding")
    return {name: kind for name, _, kind in pairs}


def _names(args: argparse.Namespace, which: str) -> dict[str, dict[str, str]]:
    """Model -> the reference's name of an input or output -> its own."""
    found: dict[str, dict[str, str]] = {}
    for text in getattr(args, f"{which}_name") or ():
        model, _, pair = text.partition(":")
        name, _, own = pair.partition("=")
        if not (model and name and own):
            hint = f"write MODEL:NAME=OWN, the reference's name first: --{which}-name minilm_ts:ids=INPUT__0"
            raise InvalidRequest(f"--{which}-name has '{text}'", hint=hint)
        if model not in args.models:
            raise InvalidRequest(f"--{which}-name is about '{model}'", hint=f"compared are {', '.join(args.models)}")
        found.setdefault(model, {})[name] = own
    return found


def print_told(text: str) -> None:
    """Prints what a comparison says of itself, its tables as wide as the terminal."""
    from workbench.cli.tables import print_text

    print_text(in_flags(text), least=("p95 ms", "backend", "p50 ms", "p99 ms"), elsewhere=_ELSEWHERE)


def _json(result: CompareResult) -> str:
    models = [
        {
            **row,
            "error": each.error,
            "problems": each.problems,
            "notes": each.remarks,
            "comparisons": {name: asdict(found) for name, found in each.against.items()},
            "drift": [output.to_json() for output in each.drift.outputs] if each.drift else [],
        }
        for row, each in zip(result.rows(), result.models, strict=True)
    ]
    found = {
        "verdict": result.verdict, "fastest": result.fastest, "metric": result.metric, "reference": result.reference,
        "examples": len(result.inputs), "stopped": result.stopped, "models": models, "load": result.load.to_json(),
        "run": result.run_id, "unstored": result.unstored,
    }  # fmt: skip
    return orjson.dumps(found).decode()  # nan becomes null
