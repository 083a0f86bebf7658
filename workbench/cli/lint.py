"""``workbench lint``: checks repositories, model directories, a config.pbtxt, and texts about Triton."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

SUMMARY = "Checks repositories, a config.pbtxt, or a text such as a tutorial or a model.py; exit code 1 on an error."
EXAMPLE = "workbench lint model_repository --fix"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``lint``."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        help="a repository, a model directory, a config.pbtxt, or a text: .md .txt .ipynb .py .json .yaml .sh",
    )
    parser.add_argument("--fix", action="store_true", help="apply the fixes that are offered")
    parser.add_argument(
        "--triton-release", default="25.03", metavar="R", help="what the files are meant for (default: %(default)s)"
    )
    parser.add_argument("--latency-goal-ms", type=float, metavar="MS", help="report queue delays above it")
    parser.add_argument(
        "--cores",
        type=_cores,
        metavar="N",
        help="cores of the machine they are meant for: report more threads than that; 'here' is this machine "
        "(default: not judged)",
    )
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="GPUs of that machine: report instances that need others"
    )  # fmt: skip
    parser.add_argument(
        "--rate-limit-resource", action="append", default=[], metavar="NAME:COUNT[:DEVICE]", help="as tritonserver's"
    )
    parser.add_argument(
        "--disable-auto-complete-config", action="store_true", help="judge for a server that is started with it"
    )
    parser.add_argument("--rules", action="store_true", help="list the rules, check nothing")
    parser.add_argument("--explain", metavar="RULE", help="explain one rule, check nothing")
    parser.add_argument("--json", action="store_true", help="findings (or rules) as JSON")


def _cores(text: str) -> int:
    return os.cpu_count() or 1 if text == "here" else int(text)


def run(args: argparse.Namespace) -> int:
    """Prints each finding as path:line:column."""
    if args.rules or args.explain:
        return _explain(args.explain, as_json=args.json)
    from workbench.engine.linting import lint

    report = lint(
        *args.paths,
        triton_release=args.triton_release,
        fix=args.fix,
        p99_ms=args.latency_goal_ms,
        cores=args.cores,
        gpus=args.gpus,
        rate_limit_resources=args.rate_limit_resource,
        auto_complete=not args.disable_auto_complete_config,
    )
    if args.json:
        print(json.dumps({"files": [file.to_json() for file in report]}, indent=2, ensure_ascii=False))
    else:
        print(report)
    return 0 if report.ok else 1


def _explain(name: str | None, *, as_json: bool) -> int:
    from workbench.config import RULES
    from workbench.config.spelling import closest
    from workbench.errors import NotFound

    if name is not None and name not in RULES:
        better = closest(name, RULES)
        raise NotFound(
            f"there is no rule '{name}'", hint=f"did you mean '{better}'?" if better else "--rules lists them"
        )
    chosen = RULES if name is None else {name: RULES[name]}
    if as_json:
        rows: list[dict[str, Any]] = [
            {"rule": key, "severity": rule.severity, "explanation": rule.explanation, "fix": rule.fix or None}
            for key, rule in sorted(chosen.items())
        ]
        print(json.dumps({"rules": rows}, indent=2, ensure_ascii=False))
        return 0
    for key, rule in sorted(chosen.items()):
        fix = f"\n    --fix {rule.fix}." if rule.fix else ""
        print(f"{key} ({rule.severity})\n    {rule.explanation}{fix}")
    return 0
