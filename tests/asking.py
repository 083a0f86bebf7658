"""Sending requests from a test: many at once, collecting every response."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import psutil

from workbench.engine import InferenceEngine, Ticket
from workbench.errors import WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse

Children = Callable[[], list[psutil.Process]]
"""What the fixture ``children`` gives."""


class Asked:
    """One request that was sent: its responses so far, or the error that submit raised."""

    def __init__(self) -> None:
        self.responses: list[InferenceResponse] = []
        self.refused: WorkbenchError | None = None
        self.ticket: Ticket | None = None
        self.ended = threading.Event()
        self.order: int = -1

    def wait(self, timeout_s: float = 10.0) -> InferenceResponse:
        """The final response."""
        assert self.ended.wait(timeout_s), "no final response"
        assert self.responses, self.refused
        return self.responses[-1]

    @property
    def error(self) -> WorkbenchError | None:
        return self.refused or next((each.error for each in self.responses if each.error is not None), None)


class Asker:
    """Sends requests on the engine's loop and numbers their ends."""

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine = engine
        self.ends = 0

    def send(self, requests: Iterable[InferenceRequest], *, by_hand: bool = False) -> list[Asked]:
        """Sends all of them in one go of the loop; with ``by_hand`` nobody says that a response has been taken."""
        asked: list[Asked] = []
        done = threading.Event()

        def send() -> None:
            asked.extend(self.send_here(each) for each in requests)
            for each in asked:
                if each.ticket is not None and by_hand:
                    each.ticket.by_hand = True
            done.set()

        self.engine.loop.call_soon_threadsafe(send)
        assert done.wait(10)
        return asked

    def send_here(self, request: InferenceRequest) -> Asked:
        """Sends one request from the engine's loop, on which this is called."""
        each = Asked()
        try:
            each.ticket = self.engine.submit(request, self._collector(each))
        except WorkbenchError as error:
            each.refused = error
            each.ended.set()
        return each

    def _collector(self, each: Asked) -> Callable[[InferenceResponse], None]:
        def collect(response: InferenceResponse) -> None:
            each.responses.append(response)
            if response.final:
                each.order = self.ends
                self.ends += 1
                each.ended.set()

        return collect


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Waits for a condition, looking every few milliseconds."""
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.005)):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("the condition never came true")
