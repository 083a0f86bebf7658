"""Which server a verb works on, and what it sweeps: what several verbs share."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from workbench.errors import InvalidRequest, NotFound, NotReady

if TYPE_CHECKING:
    from workbench.session.server import Server


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """``-u`` and ``--server``."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-u", "--url", metavar="URL", help="any running Triton: http://host:8000, grpc://host:8001 or host:8000"
    )
    where.add_argument("--server", metavar="NAME", help="a server of the workbench on this machine (workbench ps)")
    parser.add_argument(
        "-i", "--protocol", choices=["http", "grpc"], help="for an address without a scheme (default: http)"
    )


def open_server(args: argparse.Namespace) -> Server:
    """The server named; without one, the only one that runs.

    Raises:
        NotFound: none runs, or there is none of that name.
        InvalidRequest: several run and none is named.
    """
    from workbench.server import runtime
    from workbench.session.opening import attach, connect

    if args.url:
        url = args.url if "://" in args.url else f"{args.protocol or 'http'}://{args.url}"
        return connect(url)
    if args.server:
        return attach(args.server)
    running = [info["name"] for info in runtime.list_servers()]
    if not running:
        raise NotFound(
            "no server runs here", hint="start one: workbench serve --model-repository DIR; or name one with -u URL"
        )
    if len(running) > 1:
        raise InvalidRequest(f"several servers run here: {', '.join(running)}", hint="name one with --server")
    return attach(running[0])


def open_telling_server(args: argparse.Namespace) -> Server:
    """As ``open_server``; an address of a server of the workbench on this machine is that server, with its control
    plane: it tells of its requests.
    """
    from workbench.server import runtime
    from workbench.session.opening import attach

    if args.url:
        address = args.url.partition("://")[2] or args.url
        for info in runtime.list_servers():
            if address.rstrip("/") in {str(info[key]).partition("://")[2] for key in ("http", "grpc")}:
                return attach(info["name"])
    return open_server(args)


def how_to_serve(model: str, repository: Path) -> list[str]:
    """What to do to have a model served that has just been written to a repository: a line for each server that runs
    from there, else how to start one."""
    from workbench.server import runtime

    of_it = []
    with contextlib.suppress(NotReady):  # what is written is written, wherever servers leave their names
        of_it = [info for info in runtime.list_servers() if _serves(info, repository)]
    if not of_it:
        return [f"serve it: workbench serve --model-repository {shlex.quote(str(repository))}"]
    return [f"serve it: {_on(info, model, repository)}" for info in of_it]


def _serves(info: Mapping[str, Any], repository: Path) -> bool:
    return any(Path(path).resolve() == repository.resolve() for path in info["repositories"])


def _on(info: Mapping[str, Any], model: str, repository: Path) -> str:
    who, mode = f"server '{info['name']}'", info["control_mode"]
    if mode == "explicit" and info["http"]:
        return f"curl -X POST {info['http']}/v2/repository/models/{quote(model, safe='')}/load loads it on {who}"
    if mode == "poll":
        return f"{who} loads it by itself (control mode poll)"
    again = f"workbench serve --model-repository {shlex.quote(str(repository))}"
    return f"end {who} and start it again (control mode {mode} loads nothing while it runs): {again}"


def told_with(thing: object, model: str, directory: Path) -> str:
    """What was written to a repository, in words; in the place of Python's way to load it the command line's."""
    lines = [line for line in repr(thing).split("\n") if "server.load(" not in line]
    return "\n".join([*lines, *(f"  {line}" for line in how_to_serve(model, directory.parent))])


def grid_of(settings: list[str] | None) -> dict[str, list[Any]]:
    """``--set PATH=VALUES``: a JSON list of values, or one value; words without quotes, with commas between several.

    Raises:
        InvalidRequest: it is not PATH=VALUES, or a path is named twice.
    """
    from workbench.config.path import split_at_equals

    grid: dict[str, list[Any]] = {}
    for text in settings or ():
        path, values = split_at_equals(text) or ("", "")
        if not path or not values:
            raise InvalidRequest(f"cannot read --set {text}", hint="write PATH=[VALUE, ...]")
        if path in grid:
            raise InvalidRequest(f"--set names {path} twice", hint="write all its values in one list")
        grid[path] = _values(text, values)
    return grid


def _values(text: str, values: str) -> list[Any]:
    try:
        parsed = json.loads(values)
    except ValueError as error:
        words = [word.strip() for word in values.split(",")]
        if not all(_WORD.fullmatch(word) for word in words):
            raise InvalidRequest(
                f"cannot read --set {text}", hint="write PATH=[VALUE, ...] in JSON; strings in double quotes"
            ) from error
        return [_word(word) for word in words]
    return parsed if isinstance(parsed, list) else [parsed]


_WORD = re.compile(r"[A-Za-z0-9_.+-]+")


def _word(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word
