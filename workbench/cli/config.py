"""``workbench config``: a config.pbtxt as Triton's JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

SUMMARY = "Prints a config.pbtxt as written (nothing completed) as Triton's JSON, with proto field names."
EXAMPLE = "workbench config model_repository/minilm/config.pbtxt --text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``config``."""
    parser.add_argument("file", metavar="FILE", help="a config.pbtxt, or a model directory that holds one")
    parser.add_argument("--text", action="store_true", help="normalised text instead of JSON")
    parser.add_argument("--json", action="store_true", help="JSON (the default); errors are JSON too")


def run(args: argparse.Namespace) -> int:
    """Prints the configuration; a file that Triton refuses gives its message, line and column, and exit code 1."""
    from workbench.config import ConfigDocument, to_json, to_text
    from workbench.errors import ConfigError, NotFound

    path = Path(args.file)
    if path.is_dir():
        path = path / "config.pbtxt"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotFound(f"cannot read {path}: {error.strerror}", where=str(path)) from error
    try:
        document = ConfigDocument.parse(data, path=str(path))
    except ConfigError as error:
        if args.json:
            print(json.dumps({"error": error.message, "path": str(path), "line": error.line, "column": error.column}))
        else:
            print(f"{path}:{error.line}:{error.column}: {error.message}", file=sys.stderr)
        return 1
    if args.text:
        print(to_text(document.message), end="")
    else:
        print(json.dumps(to_json(document.message, defaults=False), indent=2, ensure_ascii=False))
    return 0
