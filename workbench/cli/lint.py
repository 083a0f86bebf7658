"""``workbench lint``: checks a repository or a config.pbtxt."""

from __future__ import annotations

import argparse
import json

SUMMARY = "Checks a repository or a config.pbtxt; exit code 1 where an error is found."
EXAMPLE = "workbench lint model_repository --fix"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``lint``."""
    parser.add_argument("path", metavar="PATH", help="a config.pbtxt, a model directory or a repository")
    parser.add_argument("--fix", action="store_true", help="apply the fixes that are offered")
    parser.add_argument(
        "--triton-release", default="25.03", metavar="R", help="what the file is meant for (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Prints each finding as path:line:column."""
    from workbench.engine.linting import lint

    report = lint(args.path, triton_release=args.triton_release, fix=args.fix)
    if args.json:
        print(json.dumps({"files": [file.to_json() for file in report]}, indent=2, ensure_ascii=False))
    else:
        print(report)
    return 0 if report.ok else 1
