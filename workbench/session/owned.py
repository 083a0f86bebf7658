"""Starting a server in the background, so that an owned one never outlives its parent."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path

from workbench.clock import monotonic_ns, sleep
from workbench.errors import InvalidRequest, LoadFailed, NotFound
from workbench.server import runtime

# -P: a user's json.py beside the notebook must not be imported; hence this package's own path comes last, too.
_BOOTSTRAP = "import sys; sys.path.append(sys.argv.pop(1)); from workbench.server.main import main; sys.exit(main())"
_ROOT = Path(__file__).resolve().parents[2]


class OwnedProcess:
    """A child that ends when this process does: the server watches the read end of a pipe that only we hold open."""

    def __init__(self, process: subprocess.Popen[bytes], write_fd: int) -> None:
        self._process = process
        self._write_fd = write_fd
        if hasattr(os, "register_at_fork"):
            # A forked child (a data loader's, say) must not hold the pipe open after we have ended.
            mine = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: _let_go(mine()))

    @property
    def pid(self) -> int:
        """The child."""
        return self._process.pid

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, once it has ended; None if it still runs then."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def stop(self, timeout_s: float = 40.0) -> None:
        """Lets the server finish what runs, then waits for its end; kills it when it takes too long."""
        _let_go(self)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _let_go(owned: OwnedProcess | None) -> None:
    if owned is not None and owned._write_fd >= 0:
        descriptor, owned._write_fd = owned._write_fd, -1
        with contextlib.suppress(OSError):
            os.close(descriptor)


class NameTaken(InvalidRequest):
    """Another process is starting, or runs, a server of this name."""


def launch(
    arguments: Sequence[str], *, name: str, detached: bool, timeout_s: float
) -> tuple[runtime.ServerInfo, OwnedProcess | None]:
    """Starts the server, as ``python -m workbench.server`` does, and waits until it is ready.

    Returns:
        its runtime file and, unless it is detached, the process.

    Raises:
        NameTaken: there is a server of this name.
        LoadFailed: it ended before it was ready (its last lines are the ``where``), or took longer than ``timeout_s``.
    """
    command = [sys.executable, "-P", "-c", _BOOTSTRAP, str(_ROOT), *arguments, "--name", name]
    log = _open_log(name)
    read_fd = write_fd = -1
    try:
        if detached:
            command.append("--detached")
        else:
            read_fd, write_fd = os.pipe()
            command += ["--owner-fd", str(read_fd)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(read_fd,) if read_fd >= 0 else (),
            start_new_session=True,  # Ctrl-C in the notebook's terminal is not meant for the server
        )
    except BaseException:
        if write_fd >= 0:
            os.close(write_fd)
        raise
    finally:
        os.close(log)
        if read_fd >= 0:
            os.close(read_fd)
    owned = None if detached else OwnedProcess(process, write_fd)
    try:
        return _wait_ready(process, name, timeout_s), owned
    except BaseException:
        # Also on Ctrl-C while it loads: nobody would hold it then.
        if owned is not None:
            owned.stop(1.0)
        elif process.poll() is None:
            process.kill()
            process.wait()
        raise


def _wait_ready(process: subprocess.Popen[bytes], name: str, timeout_s: float) -> runtime.ServerInfo:
    deadline = monotonic_ns() + int(timeout_s * 1e9)
    while True:
        info = _published(name)
        if info is not None and info["pid"] == process.pid:
            return info
        code = process.poll()
        if code is not None or monotonic_ns() > deadline:
            why = f"ended with exit code {code}" if code is not None else f"was not ready after {timeout_s:g} s"
            path = log_path(name)
            raise LoadFailed(f"the server {why}", where=tail(path), hint=f"its log is {path}")
        sleep(0.02)


def log_path(name: str) -> Path:
    """Where a server that was started from Python writes its log: beside the runtime files, for the owner only."""
    return runtime.directory() / f"{name}.log"


def _open_log(name: str) -> int:
    """The log, emptied, with a lock that the server holds as long as it lives: two starts never get one name.

    Raises:
        NameTaken: a server holds it.
        LoadFailed: it cannot be written.
    """
    path = log_path(name)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except OSError as error:
        raise LoadFailed(f"the server's log cannot be written: {error.strerror}", where=str(path)) from error
    try:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
    except OSError as error:
        os.close(descriptor)
        raise NameTaken(f"a server named {name!r} runs already", hint=f"attach({name!r}), or another name") from error
    return descriptor


def _published(name: str) -> runtime.ServerInfo | None:
    try:
        return runtime.read(name)
    except NotFound:
        return None


def tail(path: Path, lines: int = 12) -> str:
    """The last lines of a log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 400 * lines))
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        return f"{path}: {error.strerror}"
    return "\n".join(text.splitlines()[-lines:])
