"""The inputs of requests that failed and of the slowest ones, kept to be run again (``server.replay``).

Two stores of half the limit each, so that a flood of failures does not push the slow requests out. The oldest go first.
A model's slowest are the ``SLOWEST`` longest of one epoch of its configuration; a longer one takes the shortest's
place.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

import numpy as np

from workbench.errors import NotFound
from workbench.protocol.tensors import InferenceRequest, Tensor

LIMIT_BYTES = 64 << 20
SLOWEST = 8
"""How many of a model's slowest requests are kept."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A request that was kept. ``model_version`` of the request is the version that it went to.

    ``seq`` is its record's, ``duration_ns`` from arrival to end, ``size`` the bytes of its inputs.
    """

    seq: int
    why: Literal["failed", "slow"]
    duration_ns: int
    size: int
    request: InferenceRequest


@dataclass(frozen=True, slots=True)
class CapturedRow:
    """A kept request in a list: what ``Captured`` says, without the inputs."""

    seq: int
    model: str
    version: int
    request_id: str
    why: str
    duration_ns: int
    size: int


_NONE: tuple[int, list[tuple[int, int]]] = (-1, [])


class CapturedRequests:
    """The kept requests of one engine. Thread-safe.

    Args:
        limit: bytes of inputs that are kept altogether; a request above half of it is not kept.
    """

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self._largest = limit // 2
        self._failed, self._slow = _Store(self._largest), _Store(self._largest)
        self._slowest: dict[tuple[str, int], tuple[int, list[tuple[int, int]]]] = {}
        self._lock = threading.Lock()

    def offer(
        self, request: InferenceRequest, version: int, epoch: int, seq: int, duration_ns: int, status: str
    ) -> None:
        """Looks at a request that is over, and keeps it where it failed or was slow.

        ``status`` is its record's. What was refused or cancelled has not failed in the model, and comes in floods.
        """
        if status in ("REJECTED", "CANCELED"):
            return
        if status != "ok":
            if (size := size_of(request)) > self._largest:
                return
            failed = Captured(seq, "failed", duration_ns, size, _copy(request, version))
            with self._lock:
                self._failed.add(failed)
            return
        key = (request.model_name, version)
        of_epoch, longest = self._slowest.get(key, _NONE)
        if of_epoch == epoch and len(longest) == SLOWEST and duration_ns <= longest[0][0]:
            return
        if (size := size_of(request)) > self._largest:
            return
        slow = Captured(seq, "slow", duration_ns, size, _copy(request, version))
        with self._lock:
            of_epoch, longest = self._slowest.get(key, _NONE)
            if of_epoch != epoch:
                longest = []
                self._slowest[key] = (epoch, longest)
            if len(longest) < SLOWEST:
                heapq.heappush(longest, (duration_ns, seq))
            else:
                shortest = heapq.heappushpop(longest, (duration_ns, seq))[1]
                if shortest == seq:
                    return
                self._slow.drop(shortest)
            self._slow.add(slow)

    def rows(self) -> list[CapturedRow]:
        """What is kept, by ``seq``."""
        with self._lock:
            found = [*self._failed.kept.values(), *self._slow.kept.values()]
        return [
            CapturedRow(
                each.seq, each.request.model_name, each.request.model_version, each.request.id, each.why,
                each.duration_ns, each.size,
            )
            for each in sorted(found, key=lambda each: each.seq)
        ]  # fmt: skip

    def get(self, seq: int) -> InferenceRequest:
        """The request of a record.

        Raises:
            NotFound: it is not kept (any more).
        """
        with self._lock:
            found = self._failed.kept.get(seq) or self._slow.kept.get(seq)
        if found is None:
            raise NotFound(
                f"the inputs of request {seq} are not kept",
                hint=f"kept are those that failed and each model's {SLOWEST} slowest, the newest of them within "
                f"{LIMIT_BYTES >> 20} MiB: captured() lists them",
            )
        return found.request


class _Store:
    """Requests in the order in which they came, within a limit of bytes."""

    def __init__(self, limit: int) -> None:
        self.kept: OrderedDict[int, Captured] = OrderedDict()
        self._limit = limit
        self._size = 0

    def add(self, captured: Captured) -> None:
        self.kept[captured.seq] = captured
        self._size += captured.size
        while self._size > self._limit:
            self._size -= self.kept.popitem(last=False)[1].size

    def drop(self, seq: int) -> None:
        found = self.kept.pop(seq, None)
        if found is not None:
            self._size -= found.size


_OVERHEAD = 1024
"""What a request costs besides its tensors: with it, many small ones are bounded too."""


def size_of(request: InferenceRequest) -> int:
    """About how many bytes it takes to keep a request."""
    return _OVERHEAD + sum(_bytes(tensor) for tensor in request.inputs)


def _bytes(tensor: Tensor) -> int:
    if tensor.data.dtype == np.object_:
        items = tensor.data.ravel().tolist()  # all without a step of Python's for each string
        return sum(map(len, items)) + 48 * len(items)
    return tensor.data.nbytes


def _copy(request: InferenceRequest, version: int) -> InferenceRequest:
    """The request with inputs of its own: the buffers that they came in may be used again, and the caller's arrays may
    change.
    """
    inputs = [Tensor(t.name, t.datatype, t.shape, t.data.copy()) for t in request.inputs]
    return InferenceRequest(
        request.model_name, inputs, request.outputs, version, request.id, request.parameters, request.priority,
        request.timeout, request.sequence_id, request.sequence_start, request.sequence_end, request.client,
        request.parent_seq,
    )  # fmt: skip
