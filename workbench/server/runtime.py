"""Runtime files: how a running server is found (``workbench ps``, ``wb.attach``). Only its owner can read one.

``$XDG_STATE_HOME/serving-workbench/servers/NAME.json``, written whole or not at all; one whose process is gone is
dropped by whoever looks.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import TypedDict, cast

import psutil

from workbench.errors import InvalidRequest, NotFound, NotReady

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ServerInfo(TypedDict):
    """What a runtime file holds. ``http``, ``grpc``, ``metrics``: addresses (empty when off); ``started`` is ISO 8601.

    ``created`` is the process's start time, so that a number that another process has got since is not taken for it.
    """

    name: str
    pid: int
    http: str
    grpc: str
    metrics: str
    repositories: list[str]
    token: str
    started: str
    detached: bool
    version: str
    control_mode: str
    created: float


def directory() -> Path:
    """The folder of runtime files; made, for the owner only, when it is missing.

    Raises:
        NotReady: there is no such place, or it cannot be made.
    """
    try:
        path = _state_home() / "serving-workbench" / "servers"
    except RuntimeError as error:  # neither HOME nor an entry for the user, as in some containers
        raise _unwritable("HOME", error) from error
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _unwritable(str(path), error) from error
    with contextlib.suppress(OSError):
        path.chmod(0o700)
    return path


def _state_home() -> Path:
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    return given if given.is_absolute() else Path.home() / ".local" / "state"  # a relative one does not count (XDG)


def _unwritable(where: str, error: Exception) -> NotReady:
    return NotReady(
        f"the folder of running servers cannot be used: {error}",
        where=where,
        hint="set XDG_STATE_HOME to a directory that you may write",
    )


def check_name(name: str) -> str:
    """The name, if it can name a server.

    Raises:
        InvalidRequest: it holds something else than letters, digits, ``.``, ``_`` and ``-``.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"'{name}' cannot name a server",
            hint="use up to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit",
        )
    return name


def process_created(pid: int) -> float:
    """When a process started, 0.0 when it does not exist."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return 0.0


def write(info: ServerInfo) -> Path:
    """Writes a runtime file, replacing one of the same name.

    Raises:
        InvalidRequest: the name cannot name a server.
        NotReady: the folder cannot be written.
    """
    path = directory() / f"{check_name(info['name'])}.json"
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # mode 0600
        try:
            with os.fdopen(handle, "w") as stream:
                json.dump(info, stream, indent=1)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _unwritable(str(path), error) from error
    return path


def read(name: str) -> ServerInfo:
    """The runtime file of a server that runs; a stale one is removed.

    Raises:
        InvalidRequest: the name cannot name a server.
        NotFound: no server of that name runs.
    """
    info = _find(directory() / f"{check_name(name)}.json")
    if info is None:
        raise NotFound(f"no server named '{name}' runs here", hint="workbench ps lists the running servers")
    return info


def _find(path: Path) -> ServerInfo | None:
    try:
        seen = _mark(path)
        text = path.read_text()
    except OSError:
        return None  # not there; a file that appears from now on is another's
    info = _parse(text)
    if info is not None and _alive(info):
        return info
    with contextlib.suppress(OSError):
        if _mark(path) == seen:  # and not of a server that has started meanwhile
            path.unlink()
    return None


def _mark(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def list_servers() -> list[ServerInfo]:
    """The servers that run, oldest first; stale files are removed."""
    found = [info for path in sorted(directory().glob("*.json")) if (info := _find(path)) is not None]
    return sorted(found, key=lambda info: (info["started"], info["name"]))


def remove(name: str, pid: int | None = None) -> None:
    """Removes a runtime file; with ``pid`` only if it is that process's."""
    path = directory() / f"{check_name(name)}.json"
    if pid is not None:
        info = _load(path)
        if info is not None and info["pid"] != pid:
            return
    path.unlink(missing_ok=True)


def free_name(wanted: str) -> str:
    """``wanted``, or ``wanted-2`` and so on when a running server has the name."""
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", wanted).strip("-._")[:48] or "server"
    name, number = base, 1
    while _find(directory() / f"{name}.json") is not None:
        number += 1
        name = f"{base}-{number}"
    return name


def _load(path: Path) -> ServerInfo | None:
    try:
        return _parse(path.read_text())
    except OSError:
        return None


def _parse(text: str) -> ServerInfo | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict) or not ServerInfo.__required_keys__ <= value.keys():
        return None
    return cast("ServerInfo", value)


def _alive(info: ServerInfo) -> bool:
    try:
        process = psutil.Process(info["pid"])
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return abs(float(process.create_time()) - info["created"]) < 2.0
    except (psutil.Error, TypeError, ValueError):
        return False
