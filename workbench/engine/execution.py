"""One batch in an instance, and the thread of a blocking instance."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from workbench.backends.base import Execution, Instance, InstanceSpec, ResponseReport, ThreadInstance
from workbench.clock import Clock
from workbench.engine.flow import Flow
from workbench.engine.ticket import Ticket
from workbench.errors import BackendError, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse
from workbench.scheduling.interface import Batch

if TYPE_CHECKING:
    from workbench.engine.books import Ended
    from workbench.engine.model import ModelVersion
    from workbench.records.columns import Row

_SHORT_NS = 300_000
"""Where a batch's inputs took longer to prepare than this, its answers do not wait for the next one's."""

_SMALL_BYTES = 1 << 20
"""Nor where the next batch's inputs are larger than this, or strings."""


class Run:
    """The engine's side of an ``Execution``: collects responses and brings them to the loop.

    Final responses wait for the batch to end, so that a thread wakes the loop once a batch; others are sent on at once.
    """

    __slots__ = (
        "batch",
        "ended",
        "epoch",
        "error",
        "execution",
        "finals",
        "finished",
        "model",
        "record",
        "slot",
        "tickets",
        "took",
    )

    def __init__(
        self,
        model: ModelVersion,
        slot: InstanceSlot,
        batch: Batch,
        tickets: list[Ticket] | None = None,
        requests: list[InferenceRequest] | None = None,
    ) -> None:
        self.model = model
        self.slot = slot
        self.batch = batch
        self.epoch = model.epoch
        if tickets is None:
            tickets = batch.items  # type: ignore[assignment]
        assert tickets is not None
        self.tickets = tickets
        self.finals: list[InferenceResponse | None] = [None] * len(tickets)
        self.finished = False
        self.error: WorkbenchError | None = None
        self.took: tuple[int, int, int] | None = None  # its durations, once it is over
        self.ended: list[Ended] | None = None  # requests that are written down when all of the batch are answered
        self.record: Row | None = None  # its row in the records, once it is written
        self.execution = Execution(
            [ticket.request for ticket in tickets] if requests is None else requests,
            self.respond,
            self.finish,
            self.is_cancelled,
            batch.seq,
            rows=[ticket.rows for ticket in tickets],
            seqs=[ticket.id for ticket in tickets],
            report=self.report,
        )
        if model.decoupled:
            for index, ticket in enumerate(tickets):
                if ticket.flow is not None:  # of an execution that gave the request back
                    ticket.flow.end()
                ticket.flow = Flow(self.execution, index)

    def respond(self, index: int, response: InferenceResponse) -> None:
        """A response of the model. Thread-safe; holds a thread whose responses are not taken (see ``flow``)."""
        finals = self.finals
        if response.final and not self.finished:
            if finals[index] is None:
                finals[index] = response
            if not self.finished:
                return
            # A decoupled model's own thread, while the batch ended on another: whether complete() has seen the response
            # is not known, and to deliver it twice does no harm.
        ticket = self.tickets[index]
        if self.model.core.inbox.on_loop:
            self.model.deliver(ticket, response)
            return
        if ticket.flow is not None and not response.final:
            ticket.flow.enter()
        self.model.core.inbox.post(self.model.deliver, ticket, response)

    def finish(self, error: WorkbenchError | None) -> None:
        """The batch has left the instance. Thread-safe; a second call does nothing."""
        if self.finished:
            return
        execution = self.execution
        if not execution.compute_end:
            execution.compute_end = self.model.core.clock()
        self.error = error
        self.finished = True
        inbox = self.model.core.inbox
        if inbox.on_loop:
            self.model.complete(self)
        elif not inbox.closed:  # else the engine has ended and has answered everything
            inbox.post(self.model.complete, self)

    def report(self, report: ResponseReport) -> None:
        """The times of a response (11.7). Thread-safe."""
        self.model.core.inbox.post(self.model.statistics.responses.add, report)

    def is_cancelled(self, index: int) -> bool:
        """Whether the client has gone away. Thread-safe."""
        return self.tickets[index].cancelled

    def release(self) -> None:
        """Every request has ended: lets go of the tensors now rather than at some garbage collection."""
        execution = self.execution
        execution.requests = ()
        execution.respond = _no_response
        execution.finish = _no_finish
        execution.is_cancelled = _is_over
        execution.report = _no_report
        self.finals = []

    def durations(self) -> tuple[int, int, int]:
        """Input, infer and output durations in ns; a stamp that the backend left out counts as the one before it."""
        if self.took is not None:
            return self.took
        execution = self.execution
        end = execution.compute_end
        start = execution.compute_start or end
        input_end = execution.input_end or start
        output_start = execution.output_start or end
        return input_end - start, output_start - input_end, end - output_start


def _no_response(index: int, response: InferenceResponse) -> None:
    """The request has ended."""


def _no_finish(error: WorkbenchError | None) -> None:
    """The batch has ended."""


def _no_report(report: ResponseReport) -> None:
    """The request has ended."""


def _is_over(index: int) -> bool:
    return True


class InstanceSlot:
    """One instance of a model version as the dispatcher sees it."""

    __slots__ = (
        "gone",
        "healthy",
        "index",
        "instance",
        "label",
        "patience_s",
        "ready",
        "retired",
        "run",
        "runner",
        "spec",
        "why",
    )

    def __init__(self, spec: InstanceSpec, instance: Instance, clock: Clock) -> None:
        self.spec = spec
        self.index = spec.index
        self.label = spec.label
        self.instance = instance
        # a passive instance never executes
        threaded = instance.kind == "thread" and not spec.passive
        self.runner = InstanceThread(instance, spec, clock) if threaded else None
        self.run: Run | None = None
        self.retired = False
        self.ready = False
        self.healthy = True
        self.gone = False
        self.patience_s: float | None = None
        self.why = ""

    def start(self, run: Run, clock: Clock) -> None:
        """Hands a batch to the instance; returns at once. On the loop."""
        self.run = run
        if self.runner is not None:
            self.runner.put(run.execution)
            return
        run.execution.compute_start = clock()
        try:
            self.instance.start(run.execution)  # type: ignore[union-attr]
        except WorkbenchError as error:
            run.finish(error)
        except Exception as error:
            run.finish(BackendError(f"{type(error).__name__}: {error}", where=self.spec.name))

    def look_at_health(self) -> None:
        """Takes over what an instance's process has come to while nobody was told: before it serves."""
        health: tuple[bool, str, bool] | None = getattr(self.instance, "health", None)
        if health is not None:
            self.healthy, self.why, self.gone = health

    def close(self) -> None:
        """Ends the instance and its thread. Blocks: on a closer thread, once, after its last batch."""
        if self.runner is not None:
            self.runner.stop(self.patience_s)
        self.instance.close()


def run_batch(
    instance: ThreadInstance, execution: Execution, clock: Clock, interrupts: type[BaseException] | tuple[()] = ()
) -> WorkbenchError | None:
    """Executes a batch on the calling thread and gives what it failed of; ``interrupts`` are not failures of it."""
    execution.compute_start = clock()
    try:
        instance.execute(execution)
    except WorkbenchError as raised:
        return raised
    except interrupts:
        raise
    except BaseException as raised:
        hint = "".join(traceback.format_exception(raised))
        return BackendError(f"{type(raised).__name__}: {raised}", hint=hint)
    return None


class InstanceThread:
    """The thread on which a blocking instance executes."""

    def __init__(self, instance: Instance, spec: InstanceSpec, clock: Clock) -> None:
        self._instance = instance
        self._policy = spec.host_policy
        self._clock = clock
        self._queue: SimpleQueue[Execution | None] = SimpleQueue()
        self.put = self._queue.put
        self.following: Callable[[], Execution | None] = _nothing
        """Gives the thread its next batch when it is done with one, where one stands ready (``engine.staging``)."""
        self._thread = threading.Thread(target=self._main, name=f"workbench-{spec.label}", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """Ends the thread after what it has been given. Blocks, for ``timeout_s`` at most (a model may hang)."""
        self.following = _nothing
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _main(self) -> None:
        with contextlib.suppress(WorkbenchError):  # the thread that has made the instance would have failed of it
            self._policy.pin()
        get, clock, instance = self._queue.get, self._clock, self._instance
        tells = getattr(instance, "tells_ready", False)
        while (execution := get()) is not None:
            while execution is not None:
                error = run_batch(instance, execution, clock)  # type: ignore[arg-type]
                execution.compute_end = clock()
                execution.ready()  # where it failed before it called that
                execution.ready = _is_ready
                following = self.following()
                if following is None or not (tells and _prepares_soon(execution, following)):
                    execution.finish(error)
                else:  # the loop, once woken, would take the interpreter away in the middle of preparing inputs
                    following.ready = partial(execution.finish, error)
                execution, following = following, None
                error = None  # its traceback holds the batch's tensors, and this thread may be idle for long


def _prepares_soon(last: Execution, following: Execution) -> bool:
    """Whether the inputs of a batch take so little time to prepare that the answers to the last one may wait for it."""
    if last.input_end - last.compute_start > _SHORT_NS:
        return False
    size = 0
    for request in following.requests:
        for tensor in request.inputs:
            if tensor.datatype == "BYTES":  # a step for each string
                return False
            size += tensor.data.nbytes
    return size <= _SMALL_BYTES


def _nothing() -> Execution | None:
    """No batch is ever staged for an instance that does not serve."""
    return None


def _is_ready() -> None:
    """The batch before is answered."""
