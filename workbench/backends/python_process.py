"""An instance of a Python model in a process of its own: batches, answers, nested requests, death, restart."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from typing import Any, Literal

from workbench.backends._child import wire
from workbench.backends.base import Execution, InstanceSpec, ModelContext, Traffic
from workbench.backends.python_calls import ProcessCalls
from workbench.backends.python_channel import ServerChannel
from workbench.backends.python_flights import Flights
from workbench.backends.python_launch import Child, Keeper, exit_text
from workbench.backends.python_options import ProcessOptions
from workbench.backends.python_questions import Questions
from workbench.backends.python_readiness import ProcessReadiness
from workbench.errors import BackendError, InstanceDied


class State(Enum):
    """The life of an instance's process."""

    STARTING = "starting"
    READY = "ready"
    DOWN = "down"
    GONE = "gone"
    CLOSING = "closing"


class ProcessInstance:
    """A ``LoopInstance``. Everything runs on the loop's thread except ``open`` and ``close``."""

    kind: Literal["loop"] = "loop"

    def __init__(
        self, context: ModelContext, spec: InstanceSpec, keeper: Keeper, options: ProcessOptions, traffic: Traffic
    ) -> None:
        self._context = context
        self._host = context.host
        self._loop = context.host.loop
        self._spec = spec
        self._keeper = keeper
        self._options = options
        self._traffic = traffic
        self._state = State.STARTING
        self._child: Child | None = None
        self._channel: ServerChannel | None = None
        self._pidfd = -1
        self._spawning: Future[Child] | None = None
        self._opened: Future[None] | None = None
        self._flights = Flights(context, spec.name, self._send_frame)
        self._waiting: deque[Execution] = deque()
        self._calls: ProcessCalls | None = None
        self._questions = Questions(context.host, spec.name)
        self.readiness: ProcessReadiness | None = None
        self._failures = 0
        self._ready_at = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        """The process's id, 0 while there is none."""
        return self._child.popen.pid if self._child is not None else 0

    @property
    def _dead_text(self) -> str:
        return f"Stub process '{self._spec.name}' is not healthy."

    # Opening and closing: on a loader thread

    def open(self) -> None:
        """Starts the process and waits until the model is initialized.

        Raises:
            BackendError: what the model raised, in Triton's words; or the process died.
        """
        self._spawning = self._keeper.spawn(self._options.interpreter, self._spec.label, self._spec)
        child = self._spawning.result()
        opened: Future[None] = Future()
        self._opened = opened
        self._loop.call_soon_threadsafe(self._attach, child)
        try:
            opened.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the process: finalize, then terminate, then kill. Blocks; not on the loop."""
        child = self._on_loop(self._begin_close)
        if self._spawning is not None:  # a restart is under way: what it starts is not wanted any more
            try:
                late = self._spawning.result(30.0)
            except (BackendError, TimeoutError):
                late = None
            if late is not None:
                late.sock.close()
                late.end(0.0, 0.0)
        if child is not None:
            how = child.end(self._options.finalize_s, self._options.terminate_s)
            if how != "ended":
                self._log("warning", f"finalize took more than {self._options.finalize_s:g} s: the process was {how}")
        self._on_loop(self._end_close)

    def _on_loop(self, function: Callable[[], Any]) -> Any:
        """Runs something on the loop and waits; here, where the loop does not run any more."""
        if not self._loop.is_running():
            return function()
        done: Future[Any] = Future()

        def call() -> None:
            try:
                done.set_result(function())
            except BaseException as error:
                done.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # closed meanwhile
            return function()
        return done.result(10.0)

    def _begin_close(self) -> Child | None:
        self._state = State.CLOSING
        if self._timer is not None:
            self._timer.cancel()
        if self._channel is not None:
            self._channel.send(wire.FINALIZE, None)
        self._fail_waiting()
        return self._child

    def _end_close(self) -> None:
        if self._channel is not None:
            self._channel.drain()
        self._detach()
        self._fail_flights()
        self._fail_waiting()

    # Batches

    def start(self, execution: Execution) -> None:
        """Sends a batch to the process; one that comes while the process is restarted waits."""
        if self._state is State.READY:
            self._flights.start(execution)
        elif self._state in (State.GONE, State.CLOSING):
            execution.finish(InstanceDied(self._dead_text, where=self._spec.name))
        else:
            self._waiting.append(execution)

    def _frame(self, frame: wire.Frame) -> None:
        if frame.kind == wire.RESPONSES:
            self._responses(frame)
        elif frame.kind == wire.CALL:
            if self._calls is not None:
                self._calls.take(frame)
        elif frame.kind == wire.LOG:
            level, message = frame.head
            self._log(level, message)
        elif frame.kind == wire.READY:
            for fd in frame.fds:  # the model has an is_ready
                self.readiness = ProcessReadiness(self._host, self._context.name, self._spec.name, fd, self._traffic)
            self._ready()
        elif frame.kind == wire.FAILED:
            self._failed_to_open(frame.head[0])
        else:
            raise wire.ProtocolError(f"a frame of unknown kind {frame.kind}")

    def _responses(self, frame: wire.Frame) -> None:
        buffer = self._channel.payload(frame) if frame.slab_id and self._channel is not None else frame.payload
        if self._flights.responses(frame.head, buffer):
            self._failures = 0  # it works: a request that kills it now and then must not end it for all others

    def _send_frame(self, kind: int, head: Any, packer: wire.Packer | None = None) -> None:
        if self._channel is not None:
            self._channel.send(kind, head, packer)

    # The process's life

    def _attach(self, child: Child) -> None:
        if self._state is State.CLOSING:
            return  # close ends it
        self._spawning = None
        self._child = child
        self._channel = ServerChannel(self._loop, child.sock, self._frame, self._ended, self._traffic)
        self._calls = ProcessCalls(self._host, self._flights, self._channel, self._questions)
        if hasattr(os, "pidfd_open"):
            # the end of the stream may not come: a process that the model forked holds the socket too
            self._pidfd = os.pidfd_open(child.popen.pid)
            self._loop.add_reader(self._pidfd, self._exited)
        args = dict(self._options.setup["args"])
        args["model_instance_name"] = self._spec.name
        args["model_instance_kind"] = self._spec.kind.removeprefix("KIND_")
        args["model_instance_device_id"] = str(self._spec.local_device_id)
        self._channel.send(wire.SETUP, {**self._options.setup, "args": args, "mode": "run", "parent": os.getpid()})

    def _detach(self) -> None:
        if self._pidfd >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._questions.close()
        if self.readiness is not None:
            self.readiness.close()
            self.readiness = None
        if self._calls is not None:
            self._calls.close()
            self._calls = None

    def _ready(self) -> None:
        if self._state is State.CLOSING:
            return
        restarted = self._opened is None
        self._state = State.READY
        self._ready_at = self._host.clock()
        if self._opened is not None:
            opened, self._opened = self._opened, None
            opened.set_result(None)
        if restarted:
            self._log("warning", f"the process of '{self._spec.name}' runs again (pid {self.pid})")
            self._host.instance_state(self._spec.label, True, "restarted")
        while self._waiting and self._state is State.READY:
            self._flights.start(self._waiting.popleft())

    def _failed_to_open(self, text: str) -> None:
        if self._opened is not None:
            opened, self._opened = self._opened, None
            opened.set_exception(BackendError(text, where=self._spec.name))
        else:
            self._log("error", f"initialize of '{self._spec.name}' failed on restart: {text}")

    def _exited(self) -> None:
        if self._channel is not None:
            self._channel.drain()
        if self._channel is not None:
            self._channel.close()
            self._ended("")

    def _ended(self, why: str) -> None:
        """The process is gone, or has stopped making sense."""
        child, self._child = self._child, None
        self._detach()
        if child is not None:
            if why:
                child.popen.kill()
            if self._state is State.CLOSING:
                self._child = child  # close waits for it
            else:
                self._reap(child)
        if self._state in (State.CLOSING, State.GONE):
            self._fail_flights()
            return
        self._down(why)

    def _down(self, why: str) -> None:
        lasted = self._host.clock() - self._ready_at if self._state is State.READY else 0
        if lasted > self._options.settled_s * 1e9:
            self._failures = 0
        opening = self._opened is not None
        self._state = State.DOWN
        self._fail_flights()
        if opening:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.set_exception(InstanceDied(self._dead_text, where=self._spec.name, hint=why))
            return
        self._failures += 1
        gone = self._failures > self._options.restarts
        text = self._dead_text + (f" It died {self._failures} times and is not started again." if gone else "")
        self._log("error", text + (f" ({why})" if why else ""))
        self._host.instance_state(self._spec.label, False, text, gone=gone)
        if gone:
            self._state = State.GONE
            self._fail_waiting()
            return
        delay = 0.0
        if self._failures > 1:
            delay = min(self._options.backoff_s * 2 ** (self._failures - 2), self._options.backoff_limit_s)
        self._timer = self._loop.call_later(delay, self._restart)

    def _restart(self) -> None:
        self._timer = None
        future = self._spawning = self._keeper.spawn(self._options.interpreter, self._spec.label, self._spec)

        def done(future: Future[Child]) -> None:
            error = future.exception()
            if error is None:
                self._loop.call_soon_threadsafe(self._attach, future.result())
            else:
                self._loop.call_soon_threadsafe(self._not_started, str(error))

        future.add_done_callback(done)

    def _not_started(self, why: str) -> None:
        self._spawning = None
        if self._state is not State.CLOSING:
            self._down(why)

    def _reap(self, child: Child) -> None:
        """Takes the exit status, off the loop, and says how the process ended."""

        def reap() -> None:
            child.end(1.0, 1.0)
            self._log("error", f"the process of '{self._spec.name}' {exit_text(child.popen.returncode)}")

        self._keeper.run(reap)

    def _fail_flights(self) -> None:
        self._flights.fail(InstanceDied(self._dead_text, where=self._spec.name))

    def _fail_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft().finish(InstanceDied(self._dead_text, where=self._spec.name))

    def _log(self, level: str, message: str) -> None:
        self._host.log(level, message, model=self._context.name, instance=self._spec.label)  # type: ignore[arg-type]
