"""What is written down of a batch and of a request that are over: statistics, records, kept inputs.

On the loop, or on the thread that has executed the request itself (``engine.inline``): what is written to takes both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.errors import Cancelled, InstanceDied
from workbench.protocol.tensors import InferenceResponse

if TYPE_CHECKING:
    from workbench.engine.execution import Run
    from workbench.engine.model import ModelVersion
    from workbench.engine.ticket import Ticket


def write_batch(run: Run) -> None:
    """A batch has left its instance."""
    model, batch = run.model, run.batch
    model.core.records.add_batch(
        batch.seq, model.name, run.epoch, run.slot.label, batch.rows, len(batch.items), batch.reason,
        batch.acquired, run.execution.compute_end,
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
    if run is None:
        start = input_end = output_start = compute_end = 0
        batch_seq, instance, epoch = -1, "", ticket.epoch
    else:
        execution = run.execution
        start, input_end = execution.compute_start, execution.input_end
        output_start, compute_end = execution.output_start, execution.compute_end
        batch_seq, instance, epoch = run.batch.seq, run.slot.label, run.epoch
    if failed is None:
        durations = (0, 0, 0) if run is None else run.durations()
        ticket.durations = durations
        model.statistics.success(ticket.rows, total, start - ticket.queue_start, durations)
    else:
        error = failed.error
        assert error is not None
        # whatever a model answers with is the backend's failure, except a cancellation
        status = error.reason if run is None or isinstance(error, Cancelled) else "BACKEND"
        text = error.message
        model.statistics.failure(status, total)
    core.records.add_request(
        model.name, model.version, epoch, request.id, request.client, request.parent_seq, request.priority,
        ticket.rows, "" if ticket.shape_key is None else ticket.shape_key, ticket.arrival, ticket.queue_start, start,
        input_end, output_start, compute_end, now, batch_seq, instance, status, text, ticket.id,
    )  # fmt: skip
    core.captured.offer(request, model.version, ticket.epoch, ticket.id, total, status)


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
