"""Requests that run on the thread of whoever asks: small models in this process, without the way over the loop.

``InferenceEngine.infer`` may do so where nobody could tell the difference but by the time it takes, and by the record,
whose batch has the reason ``inline``. That is:

- an instance is idle, nothing waits for one, and nothing that was handed over before is still on its way;
- alone, the request would leave the queue at once: no ``max_queue_delay_microseconds`` holds it;
- the model answers once, has no sequences, no ``preserve_ordering``, no rate limiter and no host policy (a pinned
  thread) over it, and no test hook holds its queue;
- the backend says that its instances are bound to no thread (``any_thread``). Python models are not run so: in Triton
  all of a model runs on one thread of its own process;
- it is small: the model's last batch took less than ``LIMIT_NS``, so that a stop button and ``timeout_s``, which cannot
  end what runs here, are not missed.

Checks, errors, statistics, records and kept inputs are those of every request. Load is never sent this way: what is
measured goes through the scheduler.

**How threads and loop agree.** Whoever takes a slot out of a model's idle ones has it, until it puts it back: taking is
one call of a deque, which no other thread can come into. The loop offers models, and withdraws every offer before it
changes anything of one (configuration, state, instances). A thread takes a slot first and looks at its offer after
that; the loop withdraws first and looks after that which slots are missing, and waits for them. So a thread either sees
that its offer is gone, or the loop sees that its slot is taken.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.clock import Clock
from workbench.engine.books import (
    counts_though_failed,
    finish_response,
    note_end,
    unanswered,
    write_batch,
    write_request,
)
from workbench.engine.execution import InstanceSlot, Run, run_batch
from workbench.engine.validation import Checked, RequestValidator
from workbench.errors import Cancelled, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse
from workbench.scheduling.dynamic import DynamicBatcher
from workbench.scheduling.interface import Batch

if TYPE_CHECKING:
    from workbench.engine.model import ModelVersion

LIMIT_NS = 1_000_000
"""How long the last batch of a model may have taken for the next request to run where it is asked for."""

Key = tuple[str, int]
"""Name and version that a request asks for."""


@dataclass(slots=True, eq=False)
class Offer:
    """A version whose requests may run where they are asked for; ``at_once``: none of them is ever held."""

    model: ModelVersion
    validator: RequestValidator
    at_once: bool


class InlineCalls:
    """The offers of an engine.

    ``arriving`` has an entry for each request that other threads have handed over and the loop has not come to.
    """

    def __init__(self, clock: Clock, *, enabled: bool) -> None:
        self.arriving: deque[None] = deque()
        self._clock = clock
        self._enabled = enabled
        self._offers: dict[Key, Offer] = {}

    # ---- on the loop

    def consider(self, request: InferenceRequest, model: ModelVersion) -> None:
        """A request has gone the long way: offers its model for the next one, where that may be."""
        key = request.model_name, request.model_version
        if self._enabled and key not in self._offers and _may_run(model):
            settings = model.settings
            at_once = not (settings.batching and settings.max_queue_delay_microseconds)
            self._offers[key] = Offer(model, model.validator, at_once)

    def withdraw(self) -> None:
        """Something is about to change: whoever has not begun goes the long way."""
        self._offers.clear()

    # ---- on any thread

    def infer(self, request: InferenceRequest) -> InferenceResponse | None:
        """Runs a request here and gives its response, which may hold an error; None where it must go the long way.

        Raises:
            InvalidRequest: the request does not fit the model.
        """
        key = request.model_name, request.model_version
        offer = self._offers.get(key)
        if offer is None or self.arriving:
            return None
        model = offer.model
        scheduler, idle = model.scheduler, model.idle
        if scheduler.waiting or not idle:
            return None
        checked = offer.validator.check(request)
        if not (offer.at_once or scheduler.leaves_alone(checked.rows)):
            return None
        slot = None
        try:
            slot = idle[0]
            idle.remove(slot)
        except (IndexError, ValueError):  # somebody was quicker
            return None
        except BaseException:  # an interrupt, which comes after the call
            if slot is not None:
                idle.append(slot)
            raise
        try:
            epoch = model.epoch
            if self._offers.get(key) is not offer:
                return None
            return self._execute(key, model, slot, epoch, request, checked)
        finally:
            try:
                idle.append(slot)
            finally:
                if scheduler.waiting or slot.retired or model.is_ending:
                    model.core.inbox.post(model.came_back, slot)

    def _execute(
        self, key: Key, model: ModelVersion, slot: InstanceSlot, epoch: int, request: InferenceRequest, checked: Checked
    ) -> InferenceResponse:
        clock = self._clock
        ticket = model.make_ticket(request, checked, _nobody, clock())
        batch = Batch(
            model.scheduler.number_batch(), slot.index, [ticket], ticket.rows, "inline", ticket.arrival
        )  # fmt: skip
        run = ticket.run = Run(model, slot, batch)
        run.epoch = ticket.epoch = epoch
        error: WorkbenchError | None = Cancelled("")
        try:
            error = run_batch(slot.instance, run.execution, clock, KeyboardInterrupt)  # type: ignore[arg-type]
        finally:
            execution = run.execution
            execution.compute_end = clock()
            run.error, run.finished = error, True
            response = run.finals[0] or unanswered(run, 0)
            write_batch(run)
            finish_response(model, ticket, response)
            if response.error is None or counts_though_failed(run):
                model.statistics.execution(batch.rows, run.durations())
            write_request(model, note_end(ticket, clock()))
            model.took_ns = execution.compute_end - execution.compute_start
            if model.took_ns >= LIMIT_NS:
                self._offers.pop(key, None)
            run.release()
        return response


def _may_run(model: ModelVersion) -> bool:
    """Whether requests of a version may run where they are asked for, when nothing waits."""
    settings = model.settings
    return (
        getattr(model.loaded, "any_thread", False)
        and 0 <= model.took_ns < LIMIT_NS
        and not model.decoupled
        and model.core.turns is None
        and isinstance(model.scheduler, DynamicBatcher)
        and not settings.preserve_ordering
        and not settings.hold_until_queued
        and all(slot.runner is not None and not slot.spec.host_policy.settings for slot in model.slots)
    )


def _nobody(response: InferenceResponse) -> None:
    """Whoever asks is here, and is given the response."""
