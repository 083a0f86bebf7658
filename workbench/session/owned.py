"""Starting a server in the background, so that an owned one never outlives its parent."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from workbench.clock import monotonic_ns, sleep
from workbench.errors import LoadFailed, NotFound
from workbench.server import runtime


class OwnedProcess:
    """A child that ends when this process does: the server watches the read end of a pipe that only we hold open."""

    def __init__(self, process: subprocess.Popen[bytes], write_fd: int) -> None:
        self._process = process
        self._write_fd = write_fd

    @property
    def pid(self) -> int:
        """The child."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def stop(self, timeout_s: float = 40.0) -> None:
        """Lets the server finish what runs, then waits for its end; kills it when it takes too long."""
        if self._write_fd >= 0:
            os.close(self._write_fd)
            self._write_fd = -1
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def launch(
    arguments: Sequence[str], *, name: str, detached: bool, timeout_s: float
) -> tuple[runtime.ServerInfo, OwnedProcess | None]:
    """Starts ``python -m workbench.server`` and waits until it is ready.

    Returns:
        its runtime file and, unless it is detached, the process.

    Raises:
        LoadFailed: it ended before it was ready (its last lines are the ``where``), or took longer than ``timeout_s``.
    """
    command = [sys.executable, "-m", "workbench.server", *arguments, "--name", name]
    log_path = Path(tempfile.gettempdir()) / f"workbench-{os.getuid() if hasattr(os, 'getuid') else 0}-{name}.log"
    read_fd = write_fd = -1
    if detached:
        command.append("--detached")
    else:
        read_fd, write_fd = os.pipe()
        command += ["--owner-fd", str(read_fd)]
    descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            pass_fds=(read_fd,) if read_fd >= 0 else (),
            start_new_session=True,  # Ctrl-C in the notebook's terminal is not meant for the server
        )
    finally:
        os.close(descriptor)
        if read_fd >= 0:
            os.close(read_fd)
    owned = None if detached else OwnedProcess(process, write_fd)
    deadline = monotonic_ns() + int(timeout_s * 1e9)
    while True:
        info = _published(name)
        if info is not None and info["pid"] == process.pid:
            return info, owned
        code = process.poll()
        if code is not None or monotonic_ns() > deadline:
            if owned is not None:
                owned.stop(1.0)
            elif code is None:
                process.kill()
            why = f"ended with exit code {code}" if code is not None else f"was not ready after {timeout_s:.0f} s"
            raise LoadFailed(f"the server {why}", where=_tail(log_path), hint=f"its log is {log_path}")
        sleep(0.02)


def _published(name: str) -> runtime.ServerInfo | None:
    try:
        return runtime.read(name)
    except NotFound:
        return None


def _tail(path: Path, lines: int = 12) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return str(path)
