"""The question whether a Python model is ready, put to its ``is_ready``; for processes and for threads.

Rules: python_backend (README, ``is_ready``; python_be.cc, RunUserModelReadinessCheck), in Triton since 26.03. Release
2.51 knows nothing of it: there a model is ready as soon as it is loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from abc import ABC, abstractmethod

from workbench.backends._child import wire
from workbench.backends._child.runner import Runner
from workbench.backends.base import BackendHost, Traffic

LIMIT_S = 5.0
"""How long whoever asks waits for an answer; Triton's."""


class Readiness(ABC):
    """The ``is_ready`` of one instance; on the loop.

    It is called once at a time: whoever asks meanwhile waits for that call, and gets its answer. A call that does not
    return stays the one that is waited for, so it holds one thread of the model and no more.

    Args:
        host: the engine; its log is told what goes wrong in ``is_ready``, once.
        model: the model's name.
        instance: the instance's name in Triton's texts, ``M_0``.
    """

    def __init__(self, host: BackendHost, model: str, instance: str) -> None:
        self._host = host
        self._model = model
        self._instance = instance
        self._answer: asyncio.Future[str] | None = None
        self._told = ""
        self._open = True

    @property
    def _gone(self) -> str:
        return "Stub process is not healthy while waiting for user-defined is_ready() response"

    async def why_not(self) -> str:
        """Why the instance is not ready, in Triton's words; "" where it is. Takes ``LIMIT_S`` at most."""
        if not self._open:
            return self._gone
        answer, whose = self._answer, "in-flight"
        if answer is None:
            answer, whose = self._host.loop.create_future(), "user-defined"
            self._answer = answer
            self._ask()
        await asyncio.wait([answer], timeout=LIMIT_S)
        if answer.done():
            return answer.result()
        self._tell(f"has not returned within {LIMIT_S:g} s")
        return f"Timed out waiting for {whose} is_ready() response"

    def close(self) -> None:
        """The instance is gone: whoever waits is told so."""
        if self._open:
            self._open = False
            self._settle(self._gone)

    @abstractmethod
    def _ask(self) -> None:
        """Has the model's ``is_ready`` called; returns at once."""

    def _answered(self, ready: bool, error: str) -> None:
        if error:
            self._tell(f"failed: {error}")
        elif ready:
            self._told = ""
        why = "" if ready else error or f"Model '{self._instance}' is not ready (user-defined check failed)."
        self._settle(why)

    def _settle(self, why: str) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(why)

    def _tell(self, what: str) -> None:
        if what != self._told:
            self._told = what
            text = f"is_ready of '{self._instance}' {what}"
            self._host.log("warning", text, model=self._model, instance=self._instance)


class ProcessReadiness(Readiness):
    """Of a model in a process of its own, over the socket that came with its READY (see ``_child/readiness.py``)."""

    def __init__(self, host: BackendHost, model: str, instance: str, fd: int, traffic: Traffic) -> None:
        super().__init__(host, model, instance)
        self._sock = socket.socket(fileno=fd)
        self._sock.setblocking(False)
        self._reader = wire.FrameReader()
        self._traffic = traffic
        host.loop.add_reader(fd, self._readable)

    def close(self) -> None:
        """Closes the socket."""
        if self._open:
            if not self._host.loop.is_closed():
                self._host.loop.remove_reader(self._sock.fileno())
            self._sock.close()
        super().close()

    def _ask(self) -> None:
        question = b"".join(wire.encode(wire.CHECK, None))
        try:
            self._traffic.to_processes += self._sock.send(question)
        except OSError:  # one question at a time always fits: nobody is there
            self.close()

    def _readable(self) -> None:
        try:
            count = self._reader.read(self._sock)
            self._traffic.from_processes += count
            while self._reader.frames:
                ready, error = self._reader.frames.popleft().head
                self._answered(bool(ready), str(error))
        except BlockingIOError:
            return
        except (OSError, wire.ProtocolError, TypeError, ValueError):
            count = 0
        if not count:
            self.close()


class ThreadReadiness(Readiness):
    """Of a model on a thread: each call has a thread of its own, so that it can hang without holding anything up."""

    def __init__(self, host: BackendHost, model: str, instance: str, runner: Runner) -> None:
        super().__init__(host, model, instance)
        self._runner = runner

    @property
    def _gone(self) -> str:
        return f"Instance '{self._instance}' is closed"

    def _ask(self) -> None:
        threading.Thread(target=self._call, name="workbench-ready", daemon=True).start()

    def _call(self) -> None:
        ready, error = self._runner.check_ready()
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            self._host.loop.call_soon_threadsafe(self._answered, ready, error)
