"""An instance of a Python model in a process of its own: batches and answers, limits, death, restart."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from typing import Any, Literal

from workbench.backends._child import wire
from workbench.backends.base import SERVER, Execution, InstanceSpec, LogLevel, ModelContext, Origin, Traffic
from workbench.backends.python_calls import ProcessCalls
from workbench.backends.python_channel import ServerChannel
from workbench.backends.python_child import Child
from workbench.backends.python_flights import Flights
from workbench.backends.python_launch import Keeper
from workbench.backends.python_options import EXECUTE_LIMIT, INITIALIZE_LIMIT, ProcessOptions, Restarts
from workbench.backends.python_questions import Questions
from workbench.backends.python_readiness import ProcessReadiness
from workbench.errors import BackendError, InstanceDied

EXIT_S = 0.25
"""How long after the end of its stream a process is waited for, so that it can be said how it ended."""
TRACE_S = 1.0
"""How long a process that took too long may take to print where it is."""


class State(Enum):
    """The life of an instance's process."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"
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
        self._restarts = Restarts(context.host.clock)
        self._why = ""
        self._timer: asyncio.TimerHandle | None = None
        self._limit: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        """The process's id, 0 while there is none."""
        return self._child.popen.pid if self._child is not None else 0

    @property
    def health(self) -> tuple[bool, str, bool]:
        """Whether it can execute, why not, and whether that is for good."""
        return self._state is State.READY, self._why, self._state is State.GONE

    def _dead(self, hint: str = "") -> InstanceDied:
        return InstanceDied(f"Stub process '{self._spec.name}' is not healthy.", where=self._spec.name, hint=hint)

    # Opening and closing: on a loader thread

    def open(self) -> None:
        """Starts the process and waits until the model is initialized.

        Raises:
            BackendError: what the model raised, in Triton's words; the process died, or took too long; or the engine
                has stopped.
        """
        self._spawning = self._keeper.spawn(self._options.interpreter, self._spec.label, self._spec)
        child = self._spawning.result()
        opened: Future[None] = Future()
        self._opened = opened
        try:
            self._loop.call_soon_threadsafe(self._attach, child)
            while True:
                try:
                    return opened.result(0.5)
                except TimeoutError:
                    if not opened.done() and not self._loop.is_running():
                        raise BackendError("the engine stopped while the model was loaded") from None
        except RuntimeError:  # the loop is closed
            self.close()
            raise BackendError("the engine stopped while the model was loaded") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the process: finalize, then terminate, then kill. Blocks; not on the loop."""
        child, patience_s = self._on_loop(self._begin_close)
        if self._spawning is not None:  # a restart is under way: what it starts is not wanted any more
            try:
                late = self._spawning.result(30.0)
            except (BackendError, TimeoutError):
                late = None
            if late is not None:
                late.sock.close()
                late.end(0.0, 0.0)
        if child is not None:
            self._say_the_end(child.end(patience_s, self._options.terminate_s), child, patience_s)
        self._on_loop(self._end_close)

    def _say_the_end(self, how: str, child: Child, patience_s: float) -> None:
        if how != "ended":
            what = "finalize" if patience_s == self._options.finalize_s else "the batch under way, given up,"
            if patience_s:
                self._log("warning", f"{what} took more than {patience_s:g} s: the process was {how}")
        elif child.popen.returncode:
            self._log("error", f"finalize of '{self._spec.name}': the process {child.how_ended()}")

    def _on_loop(self, function: Callable[[], Any]) -> Any:
        """Runs something on the loop and waits; here, where the loop does not run any more."""
        if not self._loop.is_running():
            return function()
        done: Future[Any] = Future()

        def call() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(function())
            except BaseException as error:
                done.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # closed meanwhile
            return function()
        while True:
            try:
                return done.result(1.0)
            except TimeoutError:
                if done.done():
                    raise
                if not self._loop.is_running() and done.cancel():
                    return function()

    def _begin_close(self) -> tuple[Child | None, float]:
        """Gives the process, and how long it may take to end by itself."""
        finalizes = self._state is State.READY
        self._state = State.CLOSING
        for timer in (self._timer, self._limit):
            if timer is not None:
                timer.cancel()
        self._fail_waiting()
        if self._channel is None or not finalizes:
            return self._child, 0.0
        self._channel.send(wire.FINALIZE, None)
        # one that still executes has been given up: nobody waits for its answers
        return self._child, min(1.0, self._options.finalize_s) if self._flights.executing else self._options.finalize_s

    def _end_close(self) -> None:
        if self._channel is not None:
            self._channel.drain()
        self._detach()
        self._child = None
        self._flights.fail(self._dead())
        self._fail_waiting()

    # Batches

    def start(self, execution: Execution) -> None:
        """Sends a batch to the process; one that comes while the process is restarted waits."""
        if self._state is State.READY:
            self._send(execution)
        elif self._state in (State.GONE, State.CLOSING):
            execution.finish(self._dead(self._why))
        else:
            self._waiting.append(execution)

    def _send(self, execution: Execution) -> None:
        self._flights.start(execution)
        if self._options.execute_s and self._limit is None:
            self._look_at_limit()

    def _look_at_limit(self) -> None:
        """The time that a batch may take; asks again when the one that is silent the longest could be over it."""
        self._limit = None
        since = self._flights.silent_since()
        if not self._flights or self._state is not State.READY:
            return  # the next batch asks again
        left = self._options.execute_s
        if since is not None:
            left -= (self._host.clock() - since) / 1e9
        if left > 0:
            self._limit = self._loop.call_later(left, self._look_at_limit)
            return
        text = f"execute took more than {self._options.execute_s:g} s ({EXECUTE_LIMIT}): its process is ended"
        whole = f"Failed to process the request(s) for model instance '{self._spec.name}', message: {text}"
        self._give_up(text, InstanceDied(whole, where=self._spec.name, hint="the log says where it was"))

    def _too_long_to_start(self) -> None:
        self._limit = None
        limit = self._options.initialize_s
        text = f"initialize took more than {limit:g} s ({INITIALIZE_LIMIT}): its process is ended"
        self._give_up(text, BackendError(text, where=self._spec.name, hint="the log says where it was"))

    def _give_up(self, why: str, error: BackendError) -> None:
        """Ends a process that hangs: what it executes fails now, and it is asked to print where it is."""
        child = self._child
        if child is None:
            return
        _leave_no_core(child.popen.pid)
        child.abort()  # its faulthandler prints the stacks of all threads
        self._down(why, error, grace_s=TRACE_S)

    def _frame(self, frame: wire.Frame) -> None:
        if frame.kind == wire.RESPONSES:
            self._responses(frame)
        elif frame.kind == wire.CALL:
            if self._calls is not None:
                self._calls.take(frame)
        elif frame.kind == wire.LOG:
            level, message, source, file, line, trace, number = frame.head
            self._log(level, message, Origin(source, file, line, trace, self._flights.executed(number)))
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
            self._restarts.worked()
        if self._options.execute_s and self._limit is None and self._flights:
            self._look_at_limit()

    def _send_frame(self, kind: int, head: Any, packer: wire.Packer | None = None) -> None:
        if self._channel is not None:
            self._channel.send(kind, head, packer)

    # The process's life

    def _attach(self, child: Child) -> None:
        if self._state is State.CLOSING:
            return  # close ends it
        self._spawning = None
        self._child = child
        self._state = State.STARTING
        self._channel = ServerChannel(self._loop, child.sock, self._frame, self._ended, self._traffic)
        self._calls = ProcessCalls(self._host, self._flights, self._channel, self._questions)
        if hasattr(os, "pidfd_open"):
            # the end of the stream may not come: a process that the model forked holds the socket too
            with contextlib.suppress(OSError):  # no descriptor is left: then the stream's end has to do
                self._pidfd = os.pidfd_open(child.popen.pid)
                self._loop.add_reader(self._pidfd, self._exited)
        if self._options.initialize_s:
            self._limit = self._loop.call_later(self._options.initialize_s, self._too_long_to_start)
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
        if self._state is not State.STARTING:
            return
        restarted = self._opened is None
        self._state, self._why = State.READY, ""
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
        self._restarts.started()
        if self._opened is not None:
            opened, self._opened = self._opened, None
            opened.set_result(None)
        if restarted:
            self._log("warning", f"the process of '{self._spec.name}' runs again (pid {self.pid})")
            self._host.instance_state(self._spec.label, True, "restarted")
        while self._waiting and self._state is State.READY:
            self._send(self._waiting.popleft())

    def _failed_to_open(self, text: str) -> None:
        if self._opened is not None:
            opened, self._opened = self._opened, None
            self._state = State.GONE
            opened.set_exception(BackendError(text, where=self._spec.name))
        else:
            self._why = f"initialize failed: {text}"
            self._log("error", f"initialize of '{self._spec.name}' failed on restart: {text}")

    def _exited(self) -> None:
        """The process has exited."""
        if self._channel is not None:
            self._channel.drain()  # which may end here: then ``_ended`` has been called
        child = self._child
        if child is not None and self._state is not State.CLOSING:
            self._down(self._how_it_died(child))
        elif self._pidfd >= 0:  # ``close`` waits for it
            self._loop.remove_reader(self._pidfd)

    def _ended(self, why: str) -> None:
        """The stream has ended, or what came makes no sense: the process is ended as well."""
        child = self._child
        if child is None or self._state is State.CLOSING:
            return
        if why:
            child.kill()
            self._down(f"it was killed: {why}")
        elif self._pidfd < 0 or child.how_ended():
            self._down(self._how_it_died(child))
        else:
            self._state = State.LEAVING
            self._timer = self._loop.call_later(EXIT_S, self._still_there, child)

    def _still_there(self, child: Child) -> None:
        if self._child is child and self._state is State.LEAVING:
            child.kill()
            self._down("it closed its connection to the server, and was killed")

    def _how_it_died(self, child: Child) -> str:
        how = child.how_ended()
        if how.endswith("SIGKILL"):
            how += " (the system kills so what takes too much memory)"
        return f"it {how}" if how else "it closed its connection to the server"

    def _down(self, why: str, error: BackendError | None = None, grace_s: float = 0.0) -> None:
        """The process is as good as gone: everybody is told, what it had fails, and it is buried."""
        child, self._child = self._child, None
        if self._state is State.GONE and child is not None:  # its load has failed already
            self._detach()
            self._bury(child, 0.0, None)
            return
        for timer in (self._timer, self._limit):
            if timer is not None:
                timer.cancel()
        self._timer = self._limit = None
        starting = self._state is not State.READY and self._why.startswith("initialize failed")
        why = f"{self._why} ({why})" if starting else why
        opened, self._opened = self._opened, None
        delay = self._restarts.died(self._options) if opened is None else None
        self._state = State.DOWN if delay is not None else State.GONE
        self._detach()
        dead = error or self._dead(why)
        if opened is None:
            self._why = self._told(why, delay)
            self._log("error", self._why)
            self._host.instance_state(self._spec.label, False, self._why, gone=delay is None)
        self._flights.fail(dead)
        if delay is None:
            self._fail_waiting()
        if opened is not None:
            opened.set_exception(error or self._dead(why))
        if child is None:
            self._restart_in(delay)
        else:
            self._bury(child, grace_s, delay)

    def _bury(self, child: Child, grace_s: float, delay: float | None) -> None:
        if not self._keeper.bury(child, grace_s, lambda how: self._buried(how, delay)):
            child.end(0.0, 0.0)

    def _told(self, why: str, delay: float | None) -> str:
        name = self._spec.name
        if delay is None:
            times = "once" if self._restarts.deaths == 1 else f"{self._restarts.deaths} times in a row"
            then = f"It died {times} and is not started again: loading model '{self._context.name}' anew does that"
        elif delay:
            then = f"It is started again in {delay:g} s"
        else:
            then = "It is started again"
        return f"Stub process '{name}' is not healthy. {why[:1].upper()}{why[1:]}. {then}."

    def _buried(self, how: str, delay: float | None) -> None:
        """On the keeper's thread: the old process is gone, what it held is free, so a new one may start."""
        self._log("error", f"the process of '{self._spec.name}' {how}")
        try:
            self._loop.call_soon_threadsafe(self._restart_in, delay)
        except RuntimeError:  # the loop has ended
            return

    def _restart_in(self, delay: float | None) -> None:
        if delay is not None and self._state is State.DOWN:
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

    def _fail_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft().finish(self._dead(self._why))

    def _log(self, level: LogLevel, message: str, origin: Origin = SERVER) -> None:
        self._host.log(level, message, model=self._context.name, instance=self._spec.label, origin=origin)


def _leave_no_core(pid: int) -> None:
    """A process that is ended because it hangs leaves no file with its memory."""
    if hasattr(resource, "prlimit"):  # Linux
        with contextlib.suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
