"""``workbench capture``: what clients send to a model of a running server, into a file that can be replayed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from workbench.cli.ending import terminated_as_interrupted
from workbench.cli.targets import add_server_arguments, open_telling_server
from workbench.errors import InvalidRequest

SUMMARY = "Takes down what clients send to a model, inputs included, to send it again as load."
EXAMPLE = "workbench capture mlp_4096 --for-s 30 --to traffic.trace.npz"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``capture``."""
    parser.add_argument("model", metavar="MODEL")
    add_server_arguments(parser)
    parser.add_argument(
        "--for-s", type=float, metavar="S", help="how long (default: until Ctrl-C, an hour at most)", default=None
    )
    parser.add_argument("--to", required=True, metavar="FILE", help="the file to write, for its owner's eyes only")
    parser.add_argument(
        "--limit-mb", type=float, default=256, metavar="MB", help="memory that it may take (default: %(default)s)"
    )
    parser.add_argument(
        "--keep", choices=["first", "last"], default="first", help="what stays at the limit (default: %(default)s)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    parser.add_argument("--json", action="store_true", help="what was captured, as JSON")


def run(args: argparse.Namespace) -> int:
    """Captures, saves and prints; exit code 1 where nothing was sent."""
    to = Path(args.to).expanduser()
    if to.exists() and not args.overwrite:
        raise InvalidRequest(f"{to} is there already", hint="give another name, or --overwrite")
    server = open_telling_server(args)
    try:
        with terminated_as_interrupted():
            capture = server.capture(args.model, limit_mb=args.limit_mb, keep=args.keep, for_s=args.for_s, to=to)
            if not args.json:
                print(f"capturing what is sent to '{args.model}'; Ctrl-C ends it", flush=True)
            capture.wait()
    finally:
        server.close()
    if args.json:
        print(json.dumps({**capture.status.to_json(), "notes": capture.notes, "file": str(to) if len(capture) else ""}))
    else:
        print(capture)
        if len(capture):
            print(f"{to}: workbench profile {args.model} --replay {to}, or wb.Load.replay({str(to)!r})")
        else:
            print(f"nothing came, so nothing was written: have the clients send '{args.model}' requests meanwhile")
    return 0 if len(capture) else 1
