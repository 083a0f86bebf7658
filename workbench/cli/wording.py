"""What the rooms below say of Python's arguments, in the words of the command line: ``overwrite=True`` is ``--force``.

Errors, their hints and the reasons of a verdict are written where they arise, for Python and the command line alike.
Here arguments become flags, and calls the commands that do the same. What can only be done in Python says so.
"""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Callable, Mapping

from workbench.cli.load_arguments import FIELDS, add_load_arguments

_ALIASES: Mapping[str, tuple[str, ...]] = {
    "overwrite": ("overwrite", "force"),
    "inputs": ("inputs", "input_data"),
    "asking_s": ("asking",),
    "duration_s": ("measurement_interval",),
    "distribution": ("request_distribution",),
    **{field: (argument,) for argument, field in FIELDS.items()},
}
"""By what else an argument is known: its flag is that of the first of these which the verb has."""

_BARE = {
    "max_duration_s", "max_warmup_s", "warmup_s", "asking_s", "min_requests", "output_bytes", "max_pairs",
    "burst_factor", "burst_s", "sequence_length_variation", "example_inputs", "duration_s",
}  # fmt: skip
"""Arguments that are known for what they are without a value, too; others are words, or fields of a configuration."""

_SCALES = {"duration_s": 1000, "sequence_length_variation": 100}
"""So many of a flag's unit are one of the argument's."""

_NO_ARGUMENTS = ("help", "set", "a", "b")
"""Flags whose names are nobody's argument, but may stand in a text."""

_VALUE = r"(?:'[^']*'|\"[^\"]*\"|\{[^{}]*\}|\.\.\.|[\w.]+)?"
_LOADED = (
    "a server in control mode explicit loads it: curl -X POST HOST:PORT/v2/repository/models/{0}/load; "
    "start one in mode none again"
)

Said = str | Callable[[re.Match[str]], str]

_PHRASES: tuple[tuple[str, Said], ...] = (
    # compare
    (r"(in|out)put_names=\{'([^']*)': \{REFERENCE'S NAME: ITS NAME\}\}", r"--\1put-name \2:NAME=OWN"),
    (r"\boutputs=\{(?:MODEL: \{REFERENCE'S NAME: ITS NAME\}|\.\.\.)\}", "--output-name MODEL:NAME=OWN"),
    (r"output_kinds=\{'([^']*)': '(\w+)'\}", r"--output-kind \1=\2"),
    (r"server\.load\(NAME\) loads one that was built since", "of one built since " + _LOADED.format("NAME")),
    (r"server\.load\('([^']*)'\)", lambda found: _LOADED.format(found[1])),
    (r"(?<=but not loaded: )load\('([^']*)'\)", lambda found: _LOADED.format(found[1])),
    (r"configure\('[^']*', max_batch_size=\.\.\.\) with more than (\d+)",
     r"a max_batch_size above \1 in its config.pbtxt"),
    (r"server\.replay\(\) runs it again in this kernel(, server\.logs\(level=\"error\"\) has the traceback)?",
     "the server's log says more"),
    (r"server\.logs\(model='[^']*'\) says", "the server's log says"),
    # loads
    (r"give inputs=\.\.\. to run\(\)", "give --input-data FILE"),
    (r", or send it all: Load\.replay\(FILE, model='[^']*'\)", ""),
    (r"make the load again: Load\.replay\(FILE\)", "give --replay FILE again"),
    (r"Load\.closed\((\d+)\)", r'{"concurrency": \1}'),
    (r"Load\.classes\(\{\.\.\.\}, (\w+)=\.\.\.\)", r"leave it out there, and give \1=... beside --classes"),
    (r"Load\.classes\((.*)\)\Z", r"--classes '\1'"),
    (r"wb\.connect\(server\.grpc_url\)", "-u grpc://HOST:PORT"),
    (r"(traces of Triton) and perf_analyzer's intervals: workbench\.read_trace\(FILE\)",
     r"\1 go with --replay, perf_analyzer's intervals with --request-intervals"),
    (r"it is still held here: capture\.save\(ANOTHER FILE\)", "give another file with --to"),
    (r"give a longer timeout_s, or look", "look"),
    # servers
    (r"wb\.attach\(name\), or wb\.connect\(.*?\) with the control plane's token \(.*?\), is let through over HTTP",
     "--server NAME (workbench ps) is let through"),
    (r"wb\.attach\(NAME\)", "--server NAME"),
    (r"\(wb\.serve\)", "(workbench serve)"),
    (r"\bwb\.serve\(repository\)", "--model-repository DIR"),
    (r"\bstatistics\(\) has its totals", "GET /v2/models/stats has its totals"),
    (r"\brecords\(\) lists those", "workbench timeline --json lists those"),
    # other machines
    (r", or Ray\(runtime_env=\.\.\.\)|, Ray\(address=\.\.\.\)|Ray\(repository=\.\.\.\), ", ""),
    (r"; Ray\(start_s=\.\.\.\) waits longer", ": try again when it has ended"),
    (r"\bRay\(resource=[\"'](\w+)[\"']\)", r"--ray-resource \1"),
    # packaging
    (r"give example_inputs as a pandas DataFrame", "give a table: --example-inputs FILE.csv"),
    (r"give one request: example_inputs=.*\((--example-inputs FILE)\)", r"give one request, with the batch axis: \1"),
    (r"example_inputs=array", "--example-inputs FILE.npy"),
    # runs
    (r"\bkeep_samples=True", "--keep-samples"),
    (r"\bresume=True", "--resume"),
)  # fmt: skip
_PYTHON = re.compile(r"\b(?:wb|server|workbench)\.\w+\((?:[^()]|\([^()]*\))*\)")
"""Calls for which there is no flag."""


def in_flags(text: str, parser: argparse.ArgumentParser | None = None) -> str:
    """A text with a verb's flags in the place of Python's arguments.

    Args:
        text: an error's message or hint, or a reason.
        parser: the verb's; without one its flags are those of a load.
    """
    for pattern, said in _PHRASES:
        text = re.sub(pattern, said, text)
    if text.startswith("class '"):
        return text  # of a file of classes, which are written in the names of Python
    flags = _flags(parser) if parser is not None else _flags_of_loads()
    kept = _PYTHON.findall(text)
    parts = [_renamed(part, flags) for part in _PYTHON.split(text)]
    out = parts[0]
    for call, part in zip(kept, parts[1:], strict=True):
        out += f"in Python {call}{part}"
    return out


def _renamed(text: str, flags: Mapping[str, tuple[str, str]]) -> str:
    names = "|".join(sorted(map(re.escape, flags), key=len, reverse=True))
    if not names:
        return text
    # what is said twice: overwrite=True (--force)
    text = re.sub(rf"\b(?:{names})(?:={_VALUE})? \((--?[a-z][^()]*)\)", r"\1", text)

    def valued(found: re.Match[str]) -> str:
        flag, metavar = flags[found[1]]
        value = found[2].strip("'\"")
        if value == "True":
            return flag
        if found[1] in _SCALES and value.replace(".", "", 1).isdecimal():
            value = f"{float(value) * _SCALES[found[1]]:g}"
        return f"{flag} {metavar if value in ('', '...') or value.startswith('{') else value}".rstrip()

    text = re.sub(rf"(?<![\w.])({names})=({_VALUE})", valued, text)
    bare = "|".join(name for name in flags if name in _BARE)
    if bare:
        text = re.sub(rf"(?<![\w./-])({bare})(?![\w=/]|\.\w)", lambda found: _in_words(found[1], flags), text)
    return re.sub(rf"\A({names})(?= must\b)", lambda found: _in_words(found[1], flags), text)


def _in_words(name: str, flags: Mapping[str, tuple[str, str]]) -> str:
    """A flag that stands alone; where its unit is another one, that is said."""
    unit = {"duration_s": " (in seconds)", "sequence_length_variation": " / 100"}.get(name, "")
    return flags[name][0] + unit


def _flags(parser: argparse.ArgumentParser) -> dict[str, tuple[str, str]]:
    """Arguments of Python by name: the flag of each, and what its value is called."""
    own: dict[str, tuple[str, str]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                own |= _flags(each)
        elif action.option_strings and action.dest not in _NO_ARGUMENTS:
            own[action.dest] = (max(action.option_strings, key=len), str(action.metavar or "..."))
    found = dict(own)
    for name, arguments in _ALIASES.items():
        known = [own[each] for each in arguments if each in own]
        if known:
            found.setdefault(name, known[0])
    return found


@functools.cache
def _flags_of_loads() -> dict[str, tuple[str, str]]:
    parser = argparse.ArgumentParser(add_help=False)
    add_load_arguments(parser)
    return _flags(parser)
