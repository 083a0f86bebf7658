"""The command line: one module a verb, imported when it is used.

A verb's module has ``SUMMARY``, ``EXAMPLE``, ``add_arguments(parser)`` and ``run(args) -> exit code``. The exit code is
0 only when it worked: 1 is a finding or a failure, 2 a command line that cannot be read.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any, NoReturn

from workbench.errors import WorkbenchError

VERBS: tuple[str, ...] = (
    "demo",
    "models",
    "serve",
    "ps",
    "doctor",
    "lint",
    "config",
    "package",
    "build",
    "profile",
    "sweep",
    "ab",
    "compare",
    "timeline",
    "capture",
    "embed",
    "runs",
    "export",
)

_SUMMARIES = {
    "demo": "the main job on real models: serve, sweep, choose the best, export",
    "models": "build the sample models",
    "serve": "serve model repositories (takes tritonserver's own flags)",
    "ps": "the servers that run on this machine",
    "doctor": "what is installed, which backends and devices work",
    "lint": "check a repository or a config.pbtxt",
    "config": "print a config.pbtxt as JSON or normalised text",
    "package": "make a model directory out of a model file or a function",
    "build": "make another form of a model (TensorRT, ONNX, OpenVINO, ...)",
    "profile": "measure a model at one load or a range of loads",
    "sweep": "measure a grid of configurations × loads",
    "ab": "which of two configurations is faster, measured in turn",
    "compare": "models side by side: speed, memory, loading, answers",
    "timeline": "who waited for whom on a running server; a trace for Perfetto",
    "capture": "take down what clients send to a model, to send it again as load",
    "embed": "embed a table's texts through a server, giving way to queries",
    "runs": "list, show, diff, merge, annotate, export, share, delete runs",
    "export": "write the tuned repository for production",
}


def _module(verb: str) -> ModuleType:
    return importlib.import_module(f"workbench.cli.{verb}")


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = ["usage: workbench VERB [options]", "", "Serve, tune and profile Triton model repositories.", ""]
    lines += [f"  {verb.ljust(width)}  {_SUMMARIES[verb]}" for verb in VERBS]
    lines += ["", "workbench VERB --help shows a verb's options and an example."]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; gives its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        from workbench import __version__

        print(f"workbench {__version__}")
        return 0
    verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        close = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        print(f"workbench: there is no verb '{verb}'.{hint} See workbench --help.", file=sys.stderr)
        return 2
    if verb == "serve":
        # Its flags are tritonserver's; the server reads them itself.
        from workbench.server.main import main as serve_main

        return serve_main(rest)
    return _run(verb, rest)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line, without a screen of options before it."""

    elsewhere: Mapping[str, str] = MappingProxyType({})
    """Options of another tool that people bring along -> what to write here."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse; another tool's options are told first, and not what is missing because of them."""
        for each in args or ():
            if each.partition("=")[0] in self.elsewhere:
                self.error(f"unrecognized arguments: {each}")
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        close = difflib.get_close_matches(unknown[1], _options(self), n=1, cutoff=0.75) if unknown else []
        hint = f"did you mean {close[0]}? " if close else ""
        if unknown and unknown[1] in self.elsewhere:
            hint = f"{self.elsewhere[unknown[1]]}; "
        self.exit(2, f"{self.prog}: error: {message}\n  what to do: {hint}{self.prog} --help shows the options\n")


def _options(parser: argparse.ArgumentParser) -> list[str]:
    found: dict[str, None] = {}
    for action in parser._actions:
        found |= dict.fromkeys(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                found |= dict.fromkeys(_options(each))
    return list(found)


def _run(verb: str, rest: Sequence[str]) -> int:
    module = _module(verb)
    parser = _Parser(
        prog=f"workbench {verb}",
        description=module.SUMMARY,
        epilog=f"example:\n  {module.EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.elsewhere = getattr(module, "ELSEWHERE", {})
    module.add_arguments(parser)
    args = parser.parse_args(rest)
    try:
        return int(module.run(args))
    except WorkbenchError as error:
        from workbench.cli.wording import in_flags

        error.message, error.hint = in_flags(error.message, parser), in_flags(error.hint, parser)
        if getattr(args, "json", False):
            print(json.dumps({"error": error.message, "where": error.where, "hint": error.hint}))
        else:
            print(f"workbench {verb}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"workbench {verb}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone; nothing is wrong with us.
        sys.stderr.close()
        return 0
