"""Requests that running models make to other models (BLS) and wait for: who waits for whom, and what to do about it.

A nested call is urgent while its caller holds resources of the rate limiter: they are given back only when it has ended
(server#8358). One that waits in a queue for ``nested_wait_report_s`` is reported by an event that names who waits for
whom, for example ``B waits for A; C waits for R held by B``; a circle, which cannot end by itself, is an error. A
decoupled model whose instance is waited for, while an ensemble holds its request, goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from workbench.clock import Clock
from workbench.engine.ticket import OnResponse, Ticket
from workbench.engine.timers import Timers
from workbench.protocol.tensors import InferenceResponse
from workbench.records import EventLog
from workbench.scheduling.rate_limiter import NestedCall, RateLimiter, wait_cycle, wait_report

if TYPE_CHECKING:
    from workbench.engine.model import ModelVersion


class Call:
    """A nested call that has not ended: ``caller`` is the version that waits, ``ticket`` the request that it made."""

    __slots__ = ("caller", "since", "ticket")

    def __init__(self, caller: ModelVersion, since: int) -> None:
        self.caller = caller
        self.since = since
        self.ticket: Ticket | None = None

    def waiting(self) -> Iterator[Ticket]:
        """The requests that it waits for and that are in a queue: its own, or those of an ensemble's steps."""
        if self.ticket is not None:
            yield from self.ticket.model.waiting_for(self.ticket)


class NestedCalls:
    """The nested calls of an engine; on the loop.

    Args:
        report_after_ns: how long one waits in a queue until it is reported; 0 for never.
        limiter: whose holders and waiters the report names.
    """

    def __init__(
        self, clock: Clock, timers: Timers, events: EventLog, report_after_ns: int, limiter: RateLimiter | None
    ) -> None:
        self._clock = clock
        self._timers = timers
        self._events = events
        self._after = report_after_ns
        self._limiter = limiter if limiter is not None else RateLimiter()
        self._calls: dict[Call, None] = {}
        self._armed = False
        self._said = ""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def begin(self, caller: ModelVersion, on_response: OnResponse) -> tuple[Call, OnResponse]:
        """A model makes a call: its entry, to be given its ticket, and what is to be told of the responses instead."""
        call = Call(caller, self._clock())
        self._calls[call] = None
        self._arm()

        def told(response: InferenceResponse) -> None:
            if response.final:
                self.end(call)
            on_response(response)

        return call, told

    def end(self, call: Call) -> None:
        """The call has been answered, or was refused."""
        self._calls.pop(call, None)

    def is_awaited(self, model: ModelVersion, holders: set[str]) -> bool:
        """Whether a request in this version's queue keeps a model of these names from going on."""
        return any(
            ticket.model is model for call in self._calls if call.caller.name in holders for ticket in call.waiting()
        )

    # ---- the watchdog

    def _arm(self) -> None:
        if self._after and not self._armed:
            self._armed = True
            self._timers.call_at(self._clock() + self._after, self._look)

    def _look(self) -> None:
        self._armed = False
        if not self._calls:
            self._said = ""
            return
        self._arm()
        now = self._clock()
        late = [each for call in self._calls if now - call.since >= self._after for each in call.waiting()]
        made = [(call, call.ticket.model) for call in self._calls if call.ticket is not None]
        calls = [NestedCall(call.caller.name, callee.name, call.since) for call, callee in made]
        # an ensemble waits for those of its steps that wait in a queue
        steps = [
            NestedCall(callee.name, ticket.model.name, call.since)
            for call, callee in made
            for ticket in call.waiting()
            if ticket.model is not callee
        ]
        calls += list(dict.fromkeys(steps))
        text = wait_report(self._limiter, calls, now, self._after) if late else None
        for ticket in late:
            ticket.model.let_held_go()
        if text is None or text == self._said:
            self._said = text or ""
            return
        self._said = text
        circle = wait_cycle(self._limiter, calls)
        if circle is not None:
            text += f"; they wait for each other: {' -> '.join(circle)}"
        level = "warning" if circle is None else "error"
        self._events.append("waits", calls[0].caller, text, level=level, after_s=self._after / 1e9)
