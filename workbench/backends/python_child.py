"""A started process of a Python model: how it ends, what is left of it, and how that is said."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable


class Child:
    """A started process with the server's end of its socket pair (not blocking).

    It leads a process group of its own. What the model has started and left is killed with it, and before its exit
    status is taken: until then nobody else can get the group's number.
    """

    __slots__ = ("_held", "popen", "sock")

    def __init__(self, popen: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.popen = popen
        self.sock = sock
        self._held: socket.socket | None = None

    def how_ended(self) -> str:
        """How the process ended, in words; "" while it lives. The exit status stays to be taken."""
        if self.popen.returncode is not None:
            return exit_text(self.popen.returncode)
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return "" if self.popen.poll() is None else exit_text(self.popen.returncode)
        try:
            found = os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return "ended"
        if found is None:
            return ""
        return exit_text(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)

    def signal(self, number: int) -> None:
        """Sends a signal to the process alone, if it lives."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self.popen.send_signal(number)

    def abort(self) -> None:
        """Has the process print where all of its threads are, and end."""
        if self._held is None:  # it ends at once where its connection closes: that must not be before it has printed
            with contextlib.suppress(OSError):
                self._held = self.sock.dup()
        self.signal(signal.SIGABRT)

    def kill(self) -> None:
        """Kills the process and what it has started, as far as its exit status has not been taken."""
        if self.popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)
            self.signal(signal.SIGKILL)  # it may have moved to another group

    def reap(self) -> None:
        """Takes the exit status of a process that has ended; what it had started is killed."""
        self.kill()
        self.popen.wait()
        if self._held is not None:
            self._held.close()
            self._held = None

    def end(self, wait_s: float, terminate_s: float = 2.0) -> str:
        """Waits for the process to end, then terminates it, then kills it. Blocks. Gives what it took."""
        steps: list[tuple[str, float, Callable[[], None] | None]] = [
            ("ended", wait_s, None),
            ("terminated", terminate_s, lambda: self.signal(signal.SIGTERM)),
            ("killed", 10.0, self.kill),
        ]
        for name, seconds, action in steps:
            if action is not None:
                action()
            if self._has_ended_within(seconds):
                self.reap()
                return name
        return "not ended"

    def _has_ended_within(self, seconds: float) -> bool:
        if not hasattr(os, "pidfd_open"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(seconds)
            return self.popen.returncode is not None
        if self.popen.returncode is not None:
            return True
        fd = os.pidfd_open(self.popen.pid)
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            return bool(poll.poll(seconds * 1000))
        finally:
            os.close(fd)


def exit_text(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "ended"
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with code {code}"
