"""``%%triton_model name``: the cell is the model.py of a model. It is written, loaded beside the old one, and serves.

After ``%load_ext workbench``. A cell that is broken is not applied: the version before goes on serving, its file is put
back, and the cell shows what the model raised, with the line. Lines of model.py are those of the cell.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from workbench.clock import monotonic_ns
from workbench.config import ConfigDocument, Edit
from workbench.errors import InvalidRequest, LoadFailed, Unsupported, WorkbenchError
from workbench.panels.html import chip, escape
from workbench.protocol.datatypes import BY_CONFIG, BY_WIRE
from workbench.repository.models import check_name
from workbench.session.server import Server

FIRST_LINE = "# model.py of '{name}', the cell of %%triton_model.\n"
"""Stands where the magic stands in the cell, so that both count their lines alike."""

_TENSOR = re.compile(r"(?P<name>[^:\[\]]+):(?:(?i:TYPE_))?(?P<type>[A-Za-z0-9]+)\[(?P<dims>[-\d,\s]*)\]")
_FRAME = re.compile(r"^\s+(?P<file>.+)\((?P<line>\d+)\): (?P<name>.+)$", re.MULTILINE)
_EXAMPLE = "%%triton_model {name} --inputs X:FP32[4] --outputs Y:FP32[4] --max-batch-size 8"
_HOW = _EXAMPLE.format(name="NAME")


class CellRefused(LoadFailed):
    """The cell was not applied. Shown in the cell without the workbench's own frames."""

    def __init__(self, message: str, lines: Sequence[str], *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.lines = list(lines)

    def _render_traceback_(self) -> list[str]:
        return self.lines


@dataclass(frozen=True, slots=True)
class Applied:
    """A cell that serves. ``took_ms`` is from the cell's start until the new version takes requests."""

    name: str
    path: Path
    took_ms: float
    first: bool

    def __repr__(self) -> str:
        what = "loaded" if self.first else "reloaded; requests went on meanwhile"
        return f"{self.name} is READY after {self.took_ms:.0f} ms ({what})\n  {self.path}"

    def _repr_html_(self) -> str:
        what = "loaded" if self.first else "reloaded; requests went on meanwhile"
        return (
            f"{chip('READY', 'ok')} <b>{escape(self.name)}</b> after {self.took_ms:.0f} ms ({what})"
            f"<br><code>{escape(self.path)}</code>"
        )


def register(shell: Any) -> None:
    """Gives an IPython shell the magic."""

    def triton_model(line: str, cell: str | None = None) -> Applied | None:
        """Writes the cell as the model.py of a model and applies it: ``%%triton_model NAME [options]``.

        ``%triton_model --help`` lists the options.
        """
        __tracebackhide__ = True
        try:
            if cell is not None:
                return apply(line, cell, shell.user_ns)
            _parse(line)
            raise InvalidRequest("the lines of model.py are missing", hint=f"{_HOW}, and model.py below it")
        except _Help as text:
            sys.stdout.write(f"{text}\n")
            return None
        except WorkbenchError as error:
            if not isinstance(error, CellRefused):  # what is wrong is the line, not a place in the workbench
                text_lines = f"{type(error).__name__}: {error}".splitlines()
                error._render_traceback_ = lambda: text_lines  # type: ignore[attr-defined]
            raise

    shell.register_magic_function(triton_model, "line_cell", "triton_model")


def apply(line: str, cell: str, names: Mapping[str, Any]) -> Applied:
    """Writes and applies a cell.

    Args:
        line: what stands behind ``%%triton_model``.
        cell: the lines below.
        names: the notebook's variables, among them the server.

    Raises:
        InvalidRequest: the line cannot be read, or does not say enough for a new model.
        Unsupported: the server's files are on another machine.
        CellRefused: the model did not load.
    """
    started = monotonic_ns()
    options = _parse(line)
    check_name(options.name)
    server = _server(names, options.server)
    directory = _directory(server, options)
    first = not (directory / "config.pbtxt").is_file()
    version = _latest(directory) if options.version is None else options.version
    if version < 1:
        raise InvalidRequest(f"%%triton_model: --version {version}: versions are numbered from 1", hint=_HOW)
    path = directory / str(version) / "model.py"
    source = FIRST_LINE.format(name=options.name) + cell
    config = _config(directory, options, source)
    _compile(source, path, options.name)
    with _put_back([path, directory / "config.pbtxt"]) as kept:
        _write(directory / "config.pbtxt", config)
        _write(path, source.encode())
        try:
            server.load(options.name)
        except WorkbenchError as error:
            serves = any(row["name"] == options.name for row in server.repository_index(ready=True))
            if serves:
                kept.restore()
            raise _refused(options.name, error.message, path, source, serves=serves) from None
        rows = server.repository_index(ready=True)
        served = [row["version"] for row in rows if row["name"] == options.name and row.get("version")]
        if served and str(version) not in served:
            text = f"version {version} is not served: version_policy chooses {', '.join(served)}"
            kept.restore(also_new=True)
            server.load(options.name)
            raise _refused(options.name, text, path, source, serves=True)
    return Applied(options.name, path, (monotonic_ns() - started) / 1e6, first)


class _Help(Exception):
    """``--help`` was asked for; the text."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidRequest(f"%%triton_model: {message}", hint=_HOW)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _Help(f"{self.format_help()}\nexample:\n  {_HOW}")

    def print_help(self, file: Any = None) -> None:
        """Said by ``exit``."""


def _parse(line: str) -> argparse.Namespace:
    parser = _Parser(prog="%%triton_model", description="The cell is the model.py of a model.")
    parser.add_argument("name", help="of the model, a new one or one that is there")
    parser.add_argument("--inputs", nargs="+", metavar="NAME:TYPE[DIMS]", default=[], help="X:FP32[4] TEXT:BYTES[1]")
    parser.add_argument("--outputs", nargs="+", metavar="NAME:TYPE[DIMS]", default=[])
    parser.add_argument("--max-batch-size", type=int, metavar="N", help="above 0, DIMS are without the batch axis")
    parser.add_argument("--decoupled", action="store_true", help="it answers a request any number of times")
    parser.add_argument("--version", type=int, metavar="N", help="default: the highest there is, else 1")
    parser.add_argument("--server", metavar="VARIABLE", help="where there are several")
    parser.add_argument("--to", metavar="REPOSITORY", help="for a new model, where the server has several")
    try:
        return parser.parse_args(shlex.split(line))
    except ValueError as error:
        raise InvalidRequest(f"%%triton_model: {error}", hint=_HOW) from None


def _server(names: Mapping[str, Any], wanted: str | None) -> Server:
    found = {name: each for name, each in names.items() if isinstance(each, Server) and not name.startswith("_")}
    if wanted is not None:
        if wanted not in found:
            raise InvalidRequest(f"'{wanted}' is no server", hint=f"there are: {', '.join(found) or 'none'}")
        return found[wanted]
    open_ones = {id(each): each for each in found.values() if not each.closed}
    if len(open_ones) == 1:
        return next(iter(open_ones.values()))
    if not open_ones:
        raise InvalidRequest("there is no server in this notebook", hint='server = wb.serve("model_repository")')
    if not found.get("server", _CLOSED).closed:
        return found["server"]
    raise InvalidRequest("there are several servers in this notebook", hint=f"--server {' or '.join(found)}")


class _Closed:
    closed = True


_CLOSED = _Closed()


def _directory(server: Server, options: argparse.Namespace) -> Path:
    directory = server.model_directory(options.name)
    if directory is not None:
        return directory
    repositories = [path for path in server.repository_paths if path.is_dir()]
    if not repositories:
        raise Unsupported(
            "a cell cannot be applied: the model repository of this server is not on this machine",
            where=server.url,
            hint="write and test it with wb.serve here, then export it",
        )
    name = str(options.name)
    if options.to is None:
        return repositories[0] / name
    chosen = Path(options.to).expanduser().resolve()
    if chosen not in repositories:
        raise InvalidRequest(f"{options.to} is no repository of this server", hint=", ".join(map(str, repositories)))
    return chosen / name


def _latest(directory: Path) -> int:
    numbers = [int(each.name) for each in directory.glob("*/") if each.name.isdigit() and int(each.name) > 0]
    return max(numbers, default=1)


def _config(directory: Path, options: argparse.Namespace, source: str) -> bytes:
    """The configuration with what the line says; everything else stays as it is.

    Raises:
        InvalidRequest: nothing says what a new model takes and gives.
    """
    path = directory / "config.pbtxt"
    edits = [
        Edit(field, "set", [_tensor(text) for text in texts])
        for field, texts in (("input", options.inputs), ("output", options.outputs))
        if texts
    ]
    if options.max_batch_size is not None:
        edits.append(Edit("max_batch_size", "set", options.max_batch_size))
    if options.decoupled:
        edits.append(Edit("model_transaction_policy.decoupled", "set", True))
    if path.is_file():
        text = path.read_bytes()
    else:
        text = f'name: "{options.name}"\nbackend: "python"\n'.encode()
        if not (options.inputs and options.outputs) and "auto_complete_config" not in source:
            raise InvalidRequest(
                f"what does '{options.name}' take and give? It is new, and the cell has no auto_complete_config",
                hint=_EXAMPLE.format(name=options.name),
            )
        if options.max_batch_size:
            edits.append(Edit("dynamic_batching", "set", {}))
    return ConfigDocument.parse(text, path=str(path)).edit(edits).data


def _tensor(text: str) -> dict[str, Any]:
    found = _TENSOR.fullmatch(text)
    row = None
    if found is not None:
        kind = found["type"].upper()
        row = BY_WIRE.get(kind) or BY_CONFIG.get(f"TYPE_{kind}")
    if found is None or row is None:
        raise InvalidRequest(
            f"'{text}' is no tensor", hint=f"write NAME:TYPE[DIMS], as X:FP32[4]; types: {', '.join(BY_WIRE)}"
        )
    dims = [int(dim) for dim in found["dims"].split(",") if dim.strip()]
    return {"name": found["name"], "data_type": row.config, "dims": dims}


def _compile(source: str, path: Path, name: str) -> None:
    """Refuses what is no Python, before anything is written."""
    try:
        compile(source.encode(), str(path), "exec")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the cell of model '{name}' has no UTF-8 form: {error.object[error.start]!r} in line "
            f"{source.count(chr(10), 0, error.start) + 1}",
            hint="write it as an escape",
        ) from None
    except SyntaxError as error:
        text = f"{type(error).__name__}: {error.msg}"
        head = f"model '{name}' is not applied: the cell is no Python"
        lines = [head, f"  {text}", *_excerpt(source, error.lineno or 0, "")]
        raise CellRefused(f"{head}: {text} (line {error.lineno})", lines) from None


def _refused(name: str, text: str, path: Path, source: str, *, serves: bool) -> CellRefused:
    """The server's text, with the lines of the cell that its traceback names."""
    head = f"model '{name}' is not applied; " + (
        "the version before goes on serving" if serves else "no version of it serves"
    )
    frames = [found for found in _FRAME.finditer(text) if Path(found["file"]) == path]
    lines = [head, *(f"  {line}" for line in text.strip().splitlines())]
    if frames:
        lines += _excerpt(source, int(frames[0]["line"]), frames[0]["name"])
    return CellRefused(f"{head}: {text}", lines)


def _excerpt(source: str, line: int, function: str) -> list[str]:
    lines = source.splitlines()
    if not 0 < line <= len(lines):
        return []
    around = range(max(2, line - 2), min(len(lines), line + 1) + 1)
    shown = [f"{'---->' if number == line else '     '} {number:3} {lines[number - 1]}" for number in around]
    return ["", f"  line {line} of the cell" + (f", in {function}:" if function else ":"), *shown]


class _Kept:
    """What files held, to be put back with their times: the server then finds nothing changed."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths if path.is_file()}
        self._new = [path for path in paths if path not in self._files]

    def restore(self, also_new: bool = False) -> None:
        for path, (data, time) in self._files.items():
            _write(path, data)
            os.utime(path, ns=(time, time))
        for path in self._new if also_new else ():
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it holds something else
                path.parent.rmdir()


@contextlib.contextmanager
def _put_back(paths: Sequence[Path]) -> Iterator[_Kept]:
    """Puts files back where something else than the model goes wrong (the disk is full, Ctrl-C)."""
    kept = _Kept(paths)
    try:
        yield kept
    except CellRefused:
        raise
    except BaseException:
        kept.restore()
        raise


def _write(path: Path, data: bytes) -> None:
    """Writes a file in one step, unless it is so already and is no source, and forgets what was compiled from it.

    Python takes a compiled file for current whose source has the same size and the same second.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".py" and path.is_file() and path.read_bytes() == data:
        return
    scratch = path.with_name(f".{path.name}.writing")
    scratch.write_bytes(data)
    scratch.replace(path)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)
