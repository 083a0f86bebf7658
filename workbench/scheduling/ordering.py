"""The order in which responses are released under ``preserve_ordering``."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class ResponseOrder(Generic[T]):
    """Releases responses in the order in which the requests were admitted.

    This is the documented meaning of ``preserve_ordering`` (``model_config.proto``); since release 25.09 Triton's code
    enforces it within a batch only. Responses of the request that is first in line go out at once, also those of a
    stream that is not finished; all others are kept until every earlier request is finished.

    Every admitted request must be finished by an answer with ``final=True``, also one that failed, was cancelled or
    timed out: otherwise those behind it would wait for ever.
    """

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: OrderedDict[int, tuple[list[T], list[bool]]] = OrderedDict()

    def __len__(self) -> int:
        """How many admitted requests are not finished or not released."""
        return len(self._lines)

    def admit(self, id: int) -> None:
        """The request was accepted; its responses come after those of all requests admitted before.

        Raises:
            ValueError: it is admitted already.
        """
        if id in self._lines:
            raise ValueError(f"request {id} is admitted already")
        self._lines[id] = ([], [])

    def answer(self, id: int, *responses: T, final: bool) -> list[tuple[int, T]]:
        """Takes responses of a request and gives all that may go out now, as (request id, response), in order.

        Raises:
            KeyError: the request was not admitted, or is finished.
        """
        kept, finished = self._lines[id]
        if finished:
            raise KeyError(id)
        kept.extend(responses)
        if final:
            finished.append(True)
        released: list[tuple[int, T]] = []
        while self._lines:
            first, (kept, finished) = next(iter(self._lines.items()))
            released.extend((first, response) for response in kept)
            kept.clear()
            if not finished:
                break
            del self._lines[first]
        return released
