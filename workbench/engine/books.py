"""What is written down of a batch and of a request that are over: statistics, records, kept inputs.

On the loop, or on the thread that has executed the request itself (``engine.inline``): what is written to takes both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.errors import Cancelled, InstanceDied, InternalError, InvalidRequest
from workbench.protocol.tensors import InferenceRequest, InferenceResponse
from workbench.records.columns import MAX_ERROR, MAX_ID, Row, shortened
from workbench.scheduling.sequence_base import RESCHEDULE_TEXT

if TYPE_CHECKING:
    from workbench.engine.execution import Run
    from workbench.engine.model import ModelVersion
    from workbench.engine.ticket import Ticket


Ended = tuple["Ticket", "InferenceRequest", "InferenceResponse | None", "Run | None", int]
"""A request that is over: its ticket, the request, of what it failed, the batch that it was in, when it was over."""


def note_end(ticket: Ticket, now: int) -> Ended:
    """A request is over, and ``ticket.failed`` says of what: what ``write_request`` needs."""
    run, failed = ticket.run, ticket.failed
    if failed is None:
        ticket.durations = (0, 0, 0) if run is None else run.durations()
    return ticket, ticket.request, failed, run, now


def write_batch(run: Run) -> None:
    """A batch has left its instance."""
    model, batch, execution = run.model, run.batch, run.execution
    records = model.core.records
    if records.writing:
        number = records.draw()
        run.record = records.rows[number % records.size] = (
            number, batch.seq, model.name, model.version, run.epoch, run.slot.label, batch.rows, len(batch.items),
            batch.reason, batch.acquired, execution.compute_end, execution.compute_start, execution.input_end,
            execution.output_start, execution.compute_end,
        )  # fmt: skip
    model.statistics.left(batch.rows, batch.reason)


def counts_though_failed(run: Run) -> bool:
    """Whether a batch counts as executed although it failed: Triton's Python backend reports it, its others do not."""
    return getattr(run.model.loaded, "counts_failed_batches", False) and not isinstance(run.error, InstanceDied)


def write_ended(run: Run) -> None:
    """All requests of a batch have been answered: writes those down that ended with it.

    In one go: between one answer and the next neither this code nor what it writes to would be cached.
    """
    ended, run.ended = run.ended, None
    for each in ended or ():
        write_request(run.model, each)


def write_request(model: ModelVersion, ended: Ended) -> None:
    """A request is over."""
    ticket, request, failed, run, now = ended
    core = model.core
    total = now - ticket.arrival
    status, text = "ok", ""
    if failed is None:
        start = 0 if run is None else run.execution.compute_start
        model.statistics.success(ticket.rows, total, start - ticket.queue_start, ticket.durations)
    else:
        error = failed.error
        assert error is not None
        # whatever a model answers with is the backend's failure, except a cancellation
        status = error.reason if run is None or isinstance(error, Cancelled) else "BACKEND"
        text = shortened(error.message, MAX_ERROR)
        model.statistics.failure(status, total)
    records = core.records
    if records.writing:
        name = request.id
        number = records.draw()
        records.rows[number % records.size] = (
            number, _batch_row(model, ticket, run) if run is None or run.record is None else run.record, ticket.id,
            shortened(name, MAX_ID) if name else name, request.client, request.parent_seq, request.priority,
            ticket.rows, ticket.shape_key, ticket.arrival, ticket.queue_start, now, status, text,
        )  # fmt: skip
    core.captured.offer(request, model.version, ticket.epoch, ticket.id, total, status)


def _batch_row(model: ModelVersion, ticket: Ticket, run: Run | None) -> Row:
    """What stands for the batch of a request that was in none, or whose batch has not ended."""
    if run is None:
        return (-1, -1, model.name, model.version, ticket.epoch, "", 0, 0, "", 0, 0, 0, 0, 0, 0)
    execution = run.execution
    return (
        -1, run.batch.seq, model.name, model.version, run.epoch, run.slot.label, 0, 0, "", 0, 0,
        execution.compute_start, execution.input_end, execution.output_start, execution.compute_end,
    )  # fmt: skip


def unanswered(run: Run, index: int) -> InferenceResponse:
    """The answer to a request that a batch has ended without one to."""
    model, error = run.model, run.error
    if error is None and run.execution.rescheduled and index in run.execution.rescheduled:
        error = InvalidRequest(RESCHEDULE_TEXT)
    if error is None:
        error = InternalError(f"model '{model.name}' ended a batch without an answer to this request")
    return InferenceResponse(model.name, model.version, run.tickets[index].request.id, error=error)


def finish_response(model: ModelVersion, ticket: Ticket, response: InferenceResponse) -> None:
    """Makes a response of the model one to this request: whose it is, the outputs that were asked for, their shapes."""
    request = ticket.request
    response.model_name = model.name
    response.model_version = model.version
    response.id = request.id
    if response.error is not None:
        ticket.failed = ticket.failed or response
        return
    if request.outputs and response.outputs:
        form = request.form
        wanted = {output.name for output in request.outputs} if form is None else form.names
        response.outputs = [tensor for tensor in response.outputs if tensor.name in wanted]
    if model.reshape_outputs:
        response.outputs = [model.reshape_outputs.apply(tensor) for tensor in response.outputs]
