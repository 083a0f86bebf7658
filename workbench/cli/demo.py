"""``workbench demo``: the main job on real models, end to end.

Builds the sample repository if it is missing, serves it, measures each model as it is, sweeps batching, takes the best
configuration that answers no slower than before, measures again, exports. Every figure is measured in this run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import InvalidMeasurement, InvalidRequest, NotFound

if TYPE_CHECKING:
    from workbench.profiling import Point
    from workbench.session.server import Server
    from workbench.tuning import Advice

SUMMARY = "The main job on real models: build, serve, sweep, choose the best under the goal, export."
EXAMPLE = "workbench demo --model mlp_4096 --model magika"

BATCH_SIZES = (8, 16, 32)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One model's result: measured before and after, and what was advised."""

    before: Point
    after: Point
    advice: Advice
    tried: int

    def to_json(self) -> dict[str, Any]:
        """As ``summary.json`` has it."""
        return {
            "before": _figures(self.before),
            "after": _figures(self.after),
            "batching": self.advice.batching,
            "advice": self.advice.text,
            "gain": self.advice.gain,
            "service_ms_by_rows": {str(rows): ms for rows, ms in self.advice.curve.items()},
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``demo``."""
    parser.add_argument("--model-repository", metavar="DIR", help="(default: the sample repository, built if missing)")
    parser.add_argument(
        "--model", action="append", metavar="NAME", help="only this model; may be repeated (default: all)"
    )
    parser.add_argument(
        "--concurrency", type=int, default=32, metavar="N", help="clients of the closed loop (default: %(default)s)"
    )
    parser.add_argument(
        "--p99-ms", type=float, metavar="MS", help="the latency goal (default: no slower than before, at the same load)"
    )
    parser.add_argument(
        "--to",
        default="runs/demo",
        metavar="DIR",
        help="where summary.json, the runs and the export go (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds", type=float, default=2.5, metavar="S", help="length of a measured window (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args: argparse.Namespace) -> int:
    """Runs the demo; exit code 0 only when every model was measured, advised on and exported."""
    from workbench.samples import default_repository
    from workbench.session.opening import serve

    say = _quiet if args.json else _say
    repository, to = Path(args.model_repository or default_repository()), Path(args.to)
    _build_if_missing(repository, args.model, say)
    outcomes: dict[str, Outcome] = {}
    with serve(repository, models=args.model or ("*",), name=None) as server:
        models, ensembles, streams = _ready(server, args.model)
        for model in models:
            outcomes[model] = _tune(server, model, args, say)
        if ensembles:
            say(f"\n{', '.join(ensembles)}: batching is that of the models it is made of, which are tuned above")
        if streams:
            say(f"\n{', '.join(streams)}: answers in streams and shares no call: workbench profile {streams[0]}")
        exported = server.export(
            to / "export",
            models=[*models, *ensembles, *streams],
            measured={model: outcome.to_json() for model, outcome in outcomes.items()},
            provenance={"demo": {"concurrency": args.concurrency, "p99_goal_ms": args.p99_ms}},
            overwrite=True,
        )
    summary = {"models": {model: outcome.to_json() for model, outcome in outcomes.items()}}
    (to / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    if args.json:
        print(json.dumps(summary, indent=2))
    else:
        _print(outcomes, args.p99_ms)
        print(exported)
        print(f"summary: {to / 'summary.json'}")
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


def _quiet(text: str) -> None:
    """Says nothing: standard output is JSON."""


def _build_if_missing(repository: Path, models: Sequence[str] | None, say: Any) -> None:
    """Builds the sample models where the repository is theirs and something is missing; another one is left alone."""
    from workbench.samples import build, model_names, sources_directory

    ours = not repository.exists() or repository.resolve() == sources_directory().resolve()
    if not ours:
        return
    wanted = [name for name in models or model_names() if name in model_names()]
    say(f"sample models in {repository}: {', '.join(wanted)}")
    for built in build(repository, models=wanted):
        say(f"  {built}")


def _ready(server: Server, wanted: Sequence[str] | None) -> tuple[list[str], list[str], list[str]]:
    """The models to tune; the ensembles, which batch nothing themselves; those that stream and take no batches.

    Raises:
        NotFound: a model that was asked for is not there or not ready.
        InvalidRequest: one that was asked for is an ensemble, or streams.
    """
    from workbench.session.pipelines import composing_models

    table = server.models()
    ready = [row.name for row in table if row.ready]
    for row in table:
        if (wanted is None or row.name in wanted) and not row.ready:
            raise NotFound(f"model '{row.name}' is not ready: {row.reason}", where=server.url)
    missing = [name for name in wanted or () if name not in ready]
    if missing:
        raise NotFound(f"no model {', '.join(missing)}", where=server.url, hint=f"there are {', '.join(ready)}")
    ensembles = [name for name in dict.fromkeys(ready) if table[name].batching == "ensemble"]
    if wanted is not None and ensembles:
        steps = ", ".join(composing_models(server.config(ensembles[0]).effective))
        raise InvalidRequest(
            f"'{ensembles[0]}' is an ensemble and has no batching of its own",
            where=server.url,
            hint=f"tune what it is made of: {steps}",
        )
    streams = [name for name in dict.fromkeys(ready) if _only_streams(server.config(name).effective)]
    if wanted is not None and streams:
        raise InvalidRequest(
            f"'{streams[0]}' answers in streams and takes no batches: there is nothing to choose here",
            where=server.url,
            hint=f"measure its responses: workbench profile {streams[0]}",
        )
    return [name for name in dict.fromkeys(ready) if name not in (*ensembles, *streams)], ensembles, streams


def _only_streams(config: Mapping[str, Any]) -> bool:
    decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
    return bool(decoupled) and not config.get("max_batch_size", 0)


def _tune(server: Server, model: str, args: argparse.Namespace, say: Any) -> Outcome:
    from workbench.profiling import SweepResult
    from workbench.tuning import advise_batching, choose, is_batching

    options: dict[str, Any] = {
        "concurrency": args.concurrency,
        "duration_s": args.seconds,
        "store": Path(args.to) / "runs",
        "show_progress": not args.json,
        "title": "demo",
    }

    def measure(grid: dict[str, list[Any]]) -> list[Point]:
        result = server.sweep(model, grid, **options)
        assert isinstance(result, SweepResult)
        return list(result)

    say(f"\n{model}: as it is, at concurrency {args.concurrency}")
    before = measure({})[0]
    say(f"  {_line(before)}")
    points = [before]
    if is_batching(before.config):
        points += measure({"dynamic_batching": [None]})
    points += measure({"max_batch_size": list(BATCH_SIZES), "dynamic_batching": [{}]})
    for point in points[1:]:
        say(f"  {_setting(point)}: {_line(point)}")
    goal = args.p99_ms if args.p99_ms is not None else before.p99_ms
    advice = advise_batching(points, p99_ms=goal, batching_now=is_batching(before.config))
    kept = [point for point in points if is_batching(point.config) == (advice.batching == "on")]
    choice = choose(kept, p99_ms=args.p99_ms if advice.batching == "off" else goal)
    say(f"  {advice.text}")
    # What is too close to call is no reason to change a configuration.
    changed = choice.point is not before and before not in choice.tied
    if changed:
        server.configure(model, choice.point)
    after = measure({})[0]
    say(f"  after{'' if changed else ', unchanged'}: {_line(after)}")
    for when, point in (("before", before), ("after", after)):
        if point.error or not point.valid or point.failed:
            raise InvalidMeasurement(f"{model}, {when}: {_line(point)}", hint="measure again on a quiet machine")
    return Outcome(before, after, advice, len(points))


def _figures(point: Point) -> dict[str, Any]:
    return {
        "throughput": point.throughput,
        "throughput_interval": [point.throughput_low, point.throughput_high],
        "p50_ms": point.p50_ms,
        "p99_ms": point.p99_ms,
        "mean_batch": point.mean_batch,
        "n": point.n,
        "failed": point.failed,
        "load": point.load.label,
        "verdict": point.verdict,
        "config": dict(point.config),
    }


def _setting(point: Point) -> str:
    return ", ".join(
        f"{path} {'off' if value is None else json.dumps(value)}" for path, value in point.settings.items()
    )


def _line(point: Point) -> str:
    if point.error:
        return f"failed: {point.error}"
    figures = f"{point.throughput:.0f} infer/s, p50 {point.p50_ms:.1f} ms, p99 {point.p99_ms:.1f} ms"
    figures += f", mean batch {point.mean_batch:.1f}"
    return figures + ("" if point.valid else f" (not valid: {'; '.join(point.reasons)})")


def _print(outcomes: dict[str, Outcome], p99_ms: float | None) -> None:
    from workbench.cli.points import claim_of, goal_text
    from workbench.cli.tables import print_table, say

    rows = []
    for model, outcome in outcomes.items():
        unchanged = outcome.after.config == outcome.before.config
        for when, point in (("before", outcome.before), ("unchanged" if unchanged else "after", outcome.after)):
            rows.append(
                (
                    model,
                    when,
                    point.throughput,
                    point.p50_ms,
                    point.p99_ms,
                    point.mean_batch,
                    point.config.get("max_batch_size", 0),
                )
            )
    print_table(
        ("model", "", "infer/s", "p50 ms", "p99 ms", "mean batch", "max_batch_size"), rows, title="Before and after",
        least=("max_batch_size", "mean batch"),
    )  # fmt: skip
    for model, outcome in outcomes.items():
        say(f"{model}: {outcome.advice.text}")
        if p99_ms is not None and outcome.after.p99_ms <= p99_ms:
            if (claim := claim_of(outcome.after, p99_ms))["verdict"] == "open":
                say(f"  ! {claim['text']}")
            say(goal_text(outcome.after, p99_ms, "--seconds {s}"))
    if any(outcome.after.config == outcome.before.config for outcome in outcomes.values()):
        print("unchanged: measured again under the same configuration; the difference is the machine's")
