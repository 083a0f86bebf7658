"""The batches in a model's process: what is sent, what comes back, and who is still without an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from workbench.backends._child import wire
from workbench.backends.base import Execution, ModelContext
from workbench.backends.python_convert import mixed_answers, pack_requests, uniform_answers
from workbench.errors import BackendError, WorkbenchError
from workbench.protocol.tensors import InferenceResponse

SendFrame = Callable[[int, Any, "wire.Packer | None"], None]

_NO_BOUND = 1 << 60


@dataclass(slots=True)
class Flight:
    """A batch in the process, until its last request is answered.

    ``since`` (ns) is when it was sent, or of a decoupled model when its last response came or was taken; ``ahead`` is
    how many of those came and are not taken.
    """

    execution: Execution
    open: set[int]
    since: int
    finished: bool = False
    taken: dict[int, int] = field(default_factory=dict)
    ahead: int = 0


class Flights:
    """The batches of one instance. Everything on the loop's thread.

    Args:
        context: the model.
        name: the instance's, for errors.
        send: sends a frame to the process, if there is one.
    """

    def __init__(self, context: ModelContext, name: str, send: SendFrame) -> None:
        self._context = context
        self._clock = context.host.clock
        self._name = name
        self._send = send
        self._flights: dict[int, Flight] = {}
        self._next = 0

    def start(self, execution: Execution) -> None:
        """Sends a batch to the process."""
        head, packer = pack_requests(execution.requests)
        number = self._next = self._next + 1
        flight = self._flights[number] = Flight(execution, set(range(head[0])), self._clock())
        if self._context.config.model_transaction_policy.decoupled:
            execution.taken = lambda index, over: self._taken(number, flight, index, over)
        self._send(wire.EXECUTE, (number, *head), packer)

    def _taken(self, number: int, flight: Flight, index: int, over: bool) -> None:
        """Responses of a request have been taken: the process may send as many more; it is told of several at once."""
        if self._flights.get(number) is not flight or index not in flight.open:
            return  # it has sent its last one
        flight.ahead -= 1
        flight.since = self._clock()
        count = flight.taken.get(index, 0) + 1
        if not over and count < wire.RESPONSE_WINDOW // 2:
            flight.taken[index] = count
            return
        flight.taken[index] = 0
        self._send(wire.TAKEN, (number, index, _NO_BOUND if over else count), None)

    def responses(self, head: Any, buffer: Any) -> bool:
        """Takes a RESPONSES frame; whether a batch has been executed.

        A response of a batch that is over is dropped: one thread of a decoupled model may still send while another
        ends the request, or ``execute`` raises.

        Raises:
            ProtocolError: no such batch has been sent.
        """
        number, last, input_end, output_start, error, entries, kinds, back = head
        flight = self._flights.get(number)
        if flight is None:
            if not 0 < number <= self._next:
                raise wire.ProtocolError(f"responses of a batch {number} that was not sent")
            return False
        execution = flight.execution
        flight.since = self._clock()
        if entries is None:
            answers = uniform_answers(self._context, execution.requests, kinds, buffer)
        else:
            answers = mixed_answers(self._context, execution.requests, entries, kinds, buffer)
        respond, still_open = execution.respond, flight.open
        for index, response in answers:
            if index in still_open:
                if response.final:
                    still_open.discard(index)
                else:
                    flight.ahead += 1
                respond(index, response)
        if last:
            now = self._clock()
            execution.input_end = min(max(input_end, execution.compute_start), now)
            execution.output_start = min(max(output_start, execution.input_end), now)
            flight.finished = True
            if error:
                flight.open.clear()
            if back:
                execution.rescheduled = set(back)
                still_open.difference_update(back)
            execution.finish(BackendError(error, where=self._name) if error else None)
        if flight.finished and not flight.open:
            self._flights.pop(number).execution.taken = None
        return bool(last)

    def silent_since(self) -> int | None:
        """Since when (ns) the process has owed something; None while it owes nothing.

        A decoupled model that is as far ahead of its client as it may be waits for the client, who owes it room.
        """
        owed = [flight.since for flight in self._flights.values() if flight.ahead < wire.RESPONSE_WINDOW]
        return min(owed, default=None)

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def executing(self) -> bool:
        """Whether the process has a batch that it has not finished."""
        return any(not flight.finished for flight in self._flights.values())

    def is_over(self, number: int, index: int) -> bool:
        """Whether nobody waits for a request any more."""
        flight = self._flights.get(number)
        return flight is None or flight.execution.is_cancelled(index)

    def parent(self) -> int:
        """The request that a nested one belongs to, as far as that is known: -1 where several batches are open."""
        parents = next(iter(self._flights.values())).execution.seqs if len(self._flights) == 1 else ()
        return parents[0] if parents else -1

    def executed(self, number: int) -> Execution | None:
        """The batch that a log line belongs to; 0 is of a thread of the model's, which may serve any that is open."""
        if not number and len(self._flights) == 1 and self._context.config.model_transaction_policy.decoupled:
            return next(iter(self._flights.values())).execution
        flight = self._flights.get(number)
        return None if flight is None else flight.execution

    def fail(self, error: WorkbenchError) -> None:
        """The process is gone: answers everything that is open."""
        flights, self._flights = list(self._flights.values()), {}
        for flight in flights:
            if not flight.finished:
                flight.execution.finish(error)
                continue
            for index in sorted(flight.open):
                flight.execution.respond(
                    index, InferenceResponse(self._context.name, self._context.version, error=error, final=True)
                )
