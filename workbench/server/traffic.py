"""Bytes on the wire of inference requests, by the model that was asked: counted where they are read and written."""

from __future__ import annotations

from collections.abc import Callable


class WireCount:
    """One model's: requests that reached the server whole, bytes read for them, bytes written in their answers.

    Heads and bodies of HTTP, as they came and went on the sockets. Of gRPC the messages with the five bytes that frame
    each, as they went; those that came compressed count unpacked. HTTP/2's own bytes are not in it: its headers are
    packed against what the connection has sent before, whatever model that was for, so no request has a size of its
    own there. Nor is what TCP, IP and TLS add.
    """

    __slots__ = ("received", "requests", "sent")

    def __init__(self) -> None:
        self.requests = self.received = self.sent = 0

    def to_json(self) -> dict[str, int]:
        """As ``GET /v2/workbench/wire`` has it."""
        return {"requests": self.requests, "received": self.received, "sent": self.sent}


class WireCounts:
    """The counts of a front end since it started, by model name; an ensemble's steps are no requests here.

    Names come from strangers: those of models that do not serve are not kept (``serves`` tells).
    """

    def __init__(self, serves: Callable[[str], bool]) -> None:
        self._serves = serves
        self._models: dict[str, WireCount] = {}

    def begin(self, model: str, received: int) -> WireCount:
        """A request for a model; gives what its answer's bytes are added to."""
        count = self._models.get(model)
        if count is None:
            count = WireCount()
            if self._serves(model):
                self._models[model] = count
        count.requests += 1
        count.received += received
        return count

    def to_json(self) -> dict[str, dict[str, int]]:
        """By model name."""
        return {name: count.to_json() for name, count in self._models.items()}
