"""``workbench ps``: the servers that run on this machine."""

from __future__ import annotations

import argparse
import json
from typing import Any

SUMMARY = "Lists the servers of the workbench that run on this machine."
EXAMPLE = "workbench ps --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ps``."""
    parser.add_argument("--json", action="store_true", help="a JSON list (without the tokens)")


def run(args: argparse.Namespace) -> int:
    """Prints a table, or JSON."""
    from workbench.server import runtime

    shown = ("name", "pid", "http", "grpc", "metrics", "control_mode", "detached", "started", "repositories")
    servers: list[dict[str, Any]] = [{key: dict(info)[key] for key in shown} for info in runtime.list_servers()]
    if args.json:
        print(json.dumps(servers, indent=2))
        return 0
    if not servers:
        print("no server runs here; start one with: workbench serve --model-repository DIR")
        return 0
    from workbench.cli.tables import print_table

    rows: list[tuple[Any, ...]] = [
        (
            s["name"],
            s["pid"],
            s["http"],
            s["control_mode"],
            "yes" if s["detached"] else "no",
            s["started"],
            ", ".join(s["repositories"]),
        )
        for s in servers
    ]
    heads = ("name", "pid", "address", "control mode", "detached", "started", "repositories")
    print_table(heads, rows, least=("started", "detached", "control mode", "pid"), long=["repositories"])
    return 0
