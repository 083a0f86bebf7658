"""Starting the processes of Python models, and forwarding what they print.

A ``Keeper`` is one thread for each loaded model. It starts every process of that model, because Linux ties a child's
parent-death signal to the *thread* that started it, and it reads their standard output and error, so that a model that
prints a gigabyte costs the event loop nothing.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, Literal

from workbench.backends.base import BackendHost, InstanceSpec, LogLevel, Origin
from workbench.backends.host_policy import HostPolicy
from workbench.backends.python_child import Child
from workbench.backends.python_output import LineForwarder
from workbench.errors import BackendError, WorkbenchError

CHILD_FILE = Path(__file__).parent / "_child" / "main.py"
BURY_S = 0.01
"""How often a process that is to end is looked at."""
PIECE = 1 << 18
DRAIN_READS = 16
"""Pieces that are read at most of what a process leaves behind: a pipe holds 64 KiB, an enlarged one 1 MiB."""


@dataclass(slots=True)
class Dying:
    """A process that is to be gone: killed at ``deadline`` (ns), and then ``done`` is told how it ended."""

    child: Child
    deadline: int
    done: Callable[[str], None]


class Keeper:
    """The thread that starts a model's processes and reads what they print."""

    def __init__(self, host: BackendHost, model: str) -> None:
        self._host = host
        self._model = model
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._pipes: dict[IO[bytes], int] = {}  # with the id of the process that they are of
        self._dying: list[Dying] = []
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

    def bury(self, child: Child, grace_s: float, done: Callable[[str], None]) -> bool:
        """Sees to it that a process ends, by itself within ``grace_s`` or killed, and takes its exit status.

        Does not block. ``done`` is called on the keeper's thread with how it ended; False where the keeper has ended.
        """
        deadline = self._host.clock() + int(grace_s * 1e9)
        return self.run(lambda: self._dying.append(Dying(child, deadline, done)))

    def close(self) -> None:
        """Ends the thread and closes the pipes. Call it when the processes have ended. Blocks."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(None)
            with contextlib.suppress(BrokenPipeError):  # it was awake, has found the end, and has closed its side
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
        for pipe, level, source in ((popen.stdout, "info", "stdout"), (popen.stderr, "warning", "stderr")):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            forward = LineForwarder(self._log_for(instance, source), level, self._host.clock)  # type: ignore[arg-type]
            self._pipes[pipe] = popen.pid
            self._selector.register(pipe, selectors.EVENT_READ, forward)
        return Child(popen, ours)

    def _log_for(self, instance: str, source: Literal["stdout", "stderr"]) -> Callable[[LogLevel, str], None]:
        origin = Origin(source)
        return lambda level, text: self._host.log(level, text, model=self._model, instance=instance, origin=origin)

    def _main(self) -> None:
        running = True
        while running or self._dying:
            for key, _ in self._selector.select(BURY_S if self._dying else None):
                if key.data is None:
                    os.read(self._wake_read, 4096)
                    while not self._jobs.empty():
                        job = self._jobs.get()
                        if job is None:
                            running = False
                        else:
                            self._safely(job)
                elif key.fileobj in self._pipes:  # else it went with its process just now
                    self._safely(partial(self._read, key.fileobj, key.data))
            for dying in list(self._dying):
                self._safely(partial(self._look_at, dying))
        for pid in set(self._pipes.values()):
            self._drain(pid)
        self._selector.close()
        os.close(self._wake_read)

    def _safely(self, job: Callable[[], object]) -> None:
        """Whatever goes wrong with one process, the others need this thread."""
        try:
            job()
        except Exception as error:
            text = f"the keeper of the processes of '{self._model}': {type(error).__name__}: {error}"
            self._host.log("error", text, model=self._model)

    def _look_at(self, dying: Dying) -> None:
        how = dying.child.how_ended()
        if not how:
            if self._host.clock() >= dying.deadline:
                dying.child.kill()
            return
        self._dying.remove(dying)
        dying.child.reap()
        self._drain(dying.child.popen.pid)
        dying.done(how)

    def _drain(self, pid: int) -> None:
        """Reads what a process that is gone has printed; another one that has its streams is read no further."""
        for pipe in [pipe for pipe, owner in self._pipes.items() if owner == pid]:
            forward = self._selector.get_key(pipe).data
            for _ in range(DRAIN_READS):
                if not self._read(pipe, forward):
                    break
            if pipe in self._pipes:
                forward.feed(b"")
                self._drop(pipe)

    def _read(self, pipe: Any, forward: LineForwarder) -> bool:
        """Reads a piece; whether there may be more."""
        try:
            data = os.read(pipe.fileno(), PIECE)
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
        del self._pipes[pipe]
        pipe.close()
