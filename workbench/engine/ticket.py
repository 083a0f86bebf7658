"""An accepted request on its way, from the queue to its last response."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from workbench.protocol.tensors import InferenceRequest, InferenceResponse
from workbench.scheduling.interface import Item

if TYPE_CHECKING:
    from workbench.engine.execution import Run
    from workbench.engine.flow import Flow
    from workbench.engine.model import ModelVersion

OnResponse = Callable[[InferenceResponse], None]

_ENDED = InferenceRequest("", [])


def _ended(response: InferenceResponse) -> None:
    """The request has had its last response."""


class Ticket(Item):
    """A request that was accepted. ``id`` is the ``seq`` of its record.

    ``cancel`` ends it: at once with a CANCELLED response while it waits; when it runs already, the model is told and
    answers when it likes.
    """

    __slots__ = (
        "arrival",
        "by_hand",
        "cancelled",
        "durations",
        "epoch",
        "failed",
        "flow",
        "held",
        "let_go",
        "model",
        "on_response",
        "queue_start",
        "request",
        "run",
    )

    durations: tuple[int, int, int]
    """Input, infer and output durations of a request that has succeeded; not set before."""

    queue_start: int
    """When it came into the queue (ns); later than ``arrival`` where its model has given it back."""

    def __init__(
        self,
        model: ModelVersion,
        request: InferenceRequest,
        on_response: OnResponse,
        seq: int,
        rows: int,
        now: int,
        shape_key: Hashable = None,
        input_set: Hashable = None,
    ) -> None:
        Item.__init__(self, seq, rows, request.priority, now, request.timeout, None, shape_key, input_set)
        self.model = model
        self.request = request
        self.on_response = on_response
        self.arrival = self.queue_start = now
        self.epoch = model.epoch
        self.run: Run | None = None
        self.cancelled = False
        self.failed: InferenceResponse | None = None
        # Responses kept back for preserve_ordering; None when the order does not matter. The documented meaning is kept
        # (model_config.proto: the order of requests); since release 25.09 Triton's code holds it within a batch only.
        self.held: list[InferenceResponse] | None = None

        # A decoupled model's responses on their way; with ``by_hand`` whoever asked says when it has taken one.
        self.flow: Flow | None = None
        self.by_hand = False
        self.let_go: Callable[[], None] | None = None  # ends the hold of an ensemble that takes no response for now

    def hold(self) -> None:
        """Whoever asked takes no further response for now. On the loop."""

    def resume(self) -> None:
        """Whoever asked takes responses again. On the loop."""

    def release(self) -> None:
        """The last response has been sent: lets go of the request's tensors, whoever still holds the ticket."""
        self.on_response = _ended
        self.request = _ENDED
        self.failed = None

    def cancel(self) -> None:
        """Cancels the request. On the loop's thread; nothing happens when it has ended."""
        self.model.cancel(self)
