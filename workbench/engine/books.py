"""What is written down of a batch and of a request that are over: statistics, records, kept inputs.

On the loop, or on the thread that has executed the request itself (``engine.inline``): what is written to takes both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.errors import Cancelled, InstanceDied
from workbench.protocol.tensors import InferenceResponse
from workbench.records.columns import MAX_ERROR, MAX_ID, Row, shortened

if TYPE_CHECKING:
    from workbench.engine.execution import Run
    from workbench.engine.model import ModelVersion
    from workbench.engine.ticket import Ticket


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


def write_request(model: ModelVersion, ticket: Ticket, now: int) -> None:
    """A request is over; ``ticket.failed`` says of what."""
    core, run, request = model.core, ticket.run, ticket.request
    failed = ticket.failed
    total = now - ticket.arrival
    status, text = "ok", ""
    if failed is None:
        if run is None:
            start, durations = 0, (0, 0, 0)
        else:
            start, durations = run.execution.compute_start, run.durations()
        ticket.durations = durations
        model.statistics.success(ticket.rows, total, start - ticket.queue_start, durations)
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
            number, _batch_row(model, ticket) if run is None or run.record is None else run.record, ticket.id,
            shortened(name, MAX_ID) if name else name, request.client, request.parent_seq, request.priority,
            ticket.rows, ticket.shape_key, ticket.arrival, ticket.queue_start, now, status, text,
        )  # fmt: skip
    core.captured.offer(request, model.version, ticket.epoch, ticket.id, total, status)


def _batch_row(model: ModelVersion, ticket: Ticket) -> Row:
    """What stands for the batch of a request that was in none, or whose batch has not ended."""
    run = ticket.run
    if run is None:
        return (-1, -1, model.name, model.version, ticket.epoch, "", 0, 0, "", 0, 0, 0, 0, 0, 0)
    execution = run.execution
    return (
        -1, run.batch.seq, model.name, model.version, run.epoch, run.slot.label, 0, 0, "", 0, 0,
        execution.compute_start, execution.input_end, execution.output_start, execution.compute_end,
    )  # fmt: skip


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
