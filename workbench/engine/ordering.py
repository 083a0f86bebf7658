"""The answers of a model with ``preserve_ordering``, in the order of its requests."""

from __future__ import annotations

import asyncio
from collections import deque

from workbench.engine.ticket import Ticket
from workbench.protocol.tensors import InferenceResponse


class AnswerOrder(deque[Ticket]):
    """The requests that keep an order among each other and are not answered to the end, oldest first; on the loop.

    Args:
        loop: is told of callbacks that fail.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop

    def keep(self, ticket: Ticket) -> None:
        """The answers of this request come behind those of the requests that were here before it."""
        ticket.held = []
        self.append(ticket)

    def send(self, ticket: Ticket, response: InferenceResponse) -> None:
        """A response, when those before it are sent; at once for a request that keeps no order."""
        if ticket.held is None:
            self.call(ticket, response)
        else:
            ticket.held.append(response)
        while self and self[0].held:
            head = self[0]
            held, head.held = head.held, []
            for each in held or ():
                self.call(head, each)
                if each.final:
                    self.popleft()

    def call(self, ticket: Ticket, response: InferenceResponse) -> None:
        """Sends a response to whoever asked."""
        try:
            ticket.on_response(response)
        except Exception as error:
            self._loop.call_exception_handler({"message": "a response callback failed", "exception": error})
        if response.final:
            ticket.release()
