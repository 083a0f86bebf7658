"""A model's own environment (EXECUTION_ENV_PATH), lent to this process for a replay: its packages and its variables.

Only where its Python is of this process's version. What this process has imported already stays as it is: a package of
the environment that is there in another version is named, where the model's files import it.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import BackendError, Unsupported

LIMIT_S = 60.0
"""How long an interpreter may take to say what it is."""
_ASK = (
    "import json, os, sys; print(); print(json.dumps([list(sys.version_info[:2]), [p for p in sys.path if p], "
    "dict(os.environ)]))"
)
_OF_SHELLS = frozenset(("_", "SHLVL", "PWD", "OLDPWD", "PS1"))


@dataclass(frozen=True)
class _Environment:
    """What an interpreter says of itself."""

    python: tuple[int, ...]
    path: list[str]
    variables: dict[str, str]


@contextlib.contextmanager
def borrowed(model: str, interpreter: str, model_dir: Path, say: Callable[[str], None]) -> Iterator[None]:
    """For the time of a ``with``, imports find what ``interpreter`` has, and ``os.environ`` is as there.

    Args:
        model: its name, for texts.
        interpreter: that of the model's environment; this process's own is nothing to do.
        model_dir: the model's files: which packages they import.
        say: is told what is not as in the environment.

    Raises:
        Unsupported: it is of another version of Python.
        BackendError: it does not run.
    """
    if interpreter == sys.executable:
        yield
        return
    theirs = _ask(model, interpreter)
    if theirs.python != sys.version_info[:2]:
        own = ".".join(map(str, sys.version_info[:2]))
        raise Unsupported(
            f"'{model}' runs on Python {'.'.join(map(str, theirs.python))} of its environment, this process is Python "
            f"{own}: its requests cannot be replayed here",
            where=interpreter,
            hint="resend() asks its process again and gives its traceback; for a debugger, replay it in a kernel of "
            "that Python",
        )
    own_path, variables = list(sys.path), dict(os.environ)
    before = set(sys.modules)
    places = [place for place in theirs.path if place not in own_path]
    for line in _differing(model_dir, places):
        say(f"replayed in this process: {line}")
    sys.path[:] = [*places, *own_path]
    changed = {key: value for key, value in theirs.variables.items() if key not in _OF_SHELLS}
    os.environ.update({key: value for key, value in changed.items() if variables.get(key) != value})
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = own_path
        os.environ.clear()
        os.environ.update(variables)
        _forget(set(sys.modules) - before, places)


def _ask(model: str, interpreter: str) -> _Environment:
    try:
        ran = subprocess.run([interpreter, "-c", _ASK], capture_output=True, text=True, timeout=LIMIT_S, check=True)
        version, path, variables = json.loads(ran.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        said = (getattr(error, "stderr", "") or "").strip().splitlines()[-1:]
        raise BackendError(
            f"the Python of the environment of '{model}' does not run: {' '.join(said) or error}", where=interpreter
        ) from error
    return _Environment(tuple(version), path, variables)


def _differing(model_dir: Path, places: list[str]) -> Iterator[str]:
    """The packages that the model imports and that are loaded here in another version than the environment has."""
    wanted = {name for file in model_dir.rglob("*.py") for name in _imported(file)}
    theirs = {each.name.lower(): each.version for each in importlib.metadata.distributions(path=places) if each.name}
    homes = importlib.metadata.packages_distributions()
    for name in sorted(wanted & set(sys.modules)):
        for package in homes.get(name, ())[:1]:
            here, there = importlib.metadata.version(package), theirs.get(package.lower(), "")
            if there and there != here:
                yield f"with {package} {here}, its environment has {there}"


def _imported(file: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _forget(names: set[str], places: list[str]) -> None:
    """Takes what was imported out of the environment out of ``sys.modules``, as far as it can be imported again.

    A package with compiled modules stays: most cannot be loaded twice.
    """
    files = {name: getattr(sys.modules[name], "__file__", None) or "" for name in names if name in sys.modules}
    theirs = {
        name: file for name, file in files.items() if any(file.startswith(f"{place}{os.sep}") for place in places)
    }
    compiled = {name.partition(".")[0] for name, file in theirs.items() if not file.endswith((".py", ".pyc"))}
    for name in theirs:
        if name.partition(".")[0] not in compiled:
            del sys.modules[name]
