"""``workbench timeline``: what a running server's requests waited for, and a trace of it for Perfetto."""

from __future__ import annotations

import argparse
import json

from workbench.cli.targets import add_server_arguments, open_telling_server

SUMMARY = "Who waited for whom: the latest requests and batches of a running server, from its records."
EXAMPLE = "workbench timeline mlp_4096 --last 5 --perfetto trace.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``timeline``."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="one model and what is made for it (default: all)")
    add_server_arguments(parser)
    parser.add_argument("--last", type=float, metavar="S", help="only what ended in the last seconds")
    parser.add_argument(
        "--perfetto", metavar="FILE", help="write a trace for https://ui.perfetto.dev (.gz compresses it)"
    )
    parser.add_argument(
        "--request", metavar="ID", help="where the time of one request went: its number in the records, or its id"
    )
    parser.add_argument("--json", action="store_true", help="one object a request, as JSON")


def run(args: argparse.Namespace) -> int:
    """Prints; exit code 1 where there is no record."""
    server = open_telling_server(args)
    try:
        timeline = server.timeline(args.model, last=args.last)
        if args.perfetto:
            timeline.perfetto(args.perfetto)
        if args.request is not None:
            found = timeline.waterfall(int(args.request) if args.request.isdecimal() else args.request)
            told = {"title": found.data.title, "sentence": found.sentence, "notes": list(found.data.notes)}
            print(json.dumps(told | {"phases": found.frame().to_dict("records")}) if args.json else found)
            return 0
    finally:
        server.close()
    if args.json:
        print(timeline.frame().to_json(orient="records"))
    else:
        print(timeline)
        if args.perfetto:
            print(f"{args.perfetto}: open it in https://ui.perfetto.dev")
    return 0
