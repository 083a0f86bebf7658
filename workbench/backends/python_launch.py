"""Starting the processes of Python models, and forwarding what they print.

A ``Keeper`` is one thread for each loaded model. It starts every process of that model, because Linux ties a child's
parent-death signal to the *thread* that started it, and it reads their standard output and error, so that a model that
prints a gigabyte costs the event loop nothing.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from workbench.backends.base import BackendHost, InstanceSpec, LogLevel
from workbench.backends.host_policy import HostPolicy
from workbench.backends.python_output import LineForwarder
from workbench.errors import BackendError, WorkbenchError

CHILD_FILE = Path(__file__).parent / "_child" / "main.py"


class Child:
    """A started process with the server's end of its socket pair (not blocking)."""

    __slots__ = ("popen", "sock")

    def __init__(self, popen: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.popen = popen
        self.sock = sock

    def end(self, wait_s: float, terminate_s: float = 2.0) -> str:
        """Waits for the process to end, then terminates it, then kills it. Blocks. Gives what it took."""
        steps: list[tuple[str, float, Callable[[], None] | None]] = [
            ("ended", wait_s, None),
            ("terminated", terminate_s, self.popen.terminate),
            ("killed", 10.0, self.popen.kill),
        ]
        for name, seconds, action in steps:
            if action is not None:
                action()
            try:
                self.popen.wait(seconds)
            except subprocess.TimeoutExpired:
                continue
            self._end_group()
            return name
        return "not ended"

    def _end_group(self) -> None:
        """Kills what the model has started and left: the process leads a group of its own."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)


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


class Keeper:
    """The thread that starts a model's processes and reads what they print."""

    def __init__(self, host: BackendHost, model: str) -> None:
        self._host = host
        self._model = model
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._pipes: set[IO[bytes]] = set()
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._main, name=f"workbench-keeper-{model}", daemon=True)
        self._thread.start()

    def spawn(self, interpreter: str, instance: str, spec: InstanceSpec | None = None) -> Future[Child]:
        """Starts a process, under the host policy of an instance and with the device that it may see.

        The future fails with BackendError where that does not work, with the policy's error where that is why.
        """
        future: Future[Child] = Future()

        def job() -> None:
            try:
                future.set_result(self._spawn(interpreter, instance, spec))
            except WorkbenchError as error:
                future.set_exception(error)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                future.set_exception(
                    BackendError(f"cannot start the process of '{instance}': {error}", where=interpreter)
                )

        if not self.run(job):
            future.set_exception(BackendError(f"model '{self._model}' is closed"))
        return future

    def run(self, job: Callable[[], None]) -> bool:
        """Runs something short on the keeper's thread; False where it has ended."""
        with self._lock:
            if self._closed:
                return False
            self._jobs.put(job)
            os.write(self._wake_write, b"x")
        return True

    def close(self) -> None:
        """Ends the thread and closes the pipes. Call it when the processes have ended. Blocks."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(None)
            os.write(self._wake_write, b"x")
        self._thread.join()
        os.close(self._wake_write)

    def _spawn(self, interpreter: str, instance: str, spec: InstanceSpec | None) -> Child:
        policy = HostPolicy() if spec is None else spec.host_policy
        seen = {} if spec is None or not spec.visible_devices else {"CUDA_VISIBLE_DEVICES": spec.visible_devices}
        ours, theirs = socket.socketpair()
        try:
            with policy.pinned():  # the process inherits it from this thread
                popen = subprocess.Popen(
                    [interpreter, "-u", str(CHILD_FILE), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, **seen},
                    start_new_session=True,  # a Ctrl-C in the notebook is not for the models
                )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        for pipe, level in ((popen.stdout, "info"), (popen.stderr, "warning")):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            forward = LineForwarder(self._log_for(instance), level, self._host.clock)  # type: ignore[arg-type]
            self._pipes.add(pipe)
            self._selector.register(pipe, selectors.EVENT_READ, forward)
        return Child(popen, ours)

    def _log_for(self, instance: str) -> Callable[[LogLevel, str], None]:
        return lambda level, text: self._host.log(level, text, model=self._model, instance=instance)

    def _main(self) -> None:
        running = True
        while running:
            for key, _ in self._selector.select():
                if key.data is None:
                    os.read(self._wake_read, 4096)
                    while not self._jobs.empty():
                        job = self._jobs.get()
                        if job is None:
                            running = False
                        else:
                            job()
                else:
                    self._read(key.fileobj, key.data)
        for pipe in list(self._pipes):
            while self._read(pipe, self._selector.get_key(pipe).data):
                pass
            if pipe in self._pipes:
                self._drop(pipe)
        self._selector.close()
        os.close(self._wake_read)

    def _read(self, pipe: Any, forward: LineForwarder) -> bool:
        """Reads a piece; whether there may be more."""
        try:
            data = os.read(pipe.fileno(), 65536)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        forward.feed(data)
        if not data:
            self._drop(pipe)
        return bool(data)

    def _drop(self, pipe: Any) -> None:
        self._selector.unregister(pipe)
        self._pipes.discard(pipe)
        pipe.close()
