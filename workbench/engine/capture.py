"""Capture of what clients send: every request that reaches a model, with when it came, to be sent again as load.

A capture takes what is asked from outside (both front ends, and ``infer`` of an engine in this process), not what
models ask one another. It is taken where requests are accepted: those that a full queue turned away are in it, as they
are part of the load; those that do not fit the model are counted only. What is kept is packed (``protocol.packed``) and
bounded: the first requests until the limit is reached (``first``), or the newest (``last``). Nothing that is served
waits for it: it costs a copy of the inputs. Large BYTES tensors, which take a step for each element, are packed on a
thread.

With no capture under way a request pays for one look at an empty dictionary.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import TypeVar, get_args

from workbench.clock import Clock
from workbench.engine.captured import size_of
from workbench.errors import InvalidRequest, NotFound, NotReady, QueueFull, WorkbenchError
from workbench.protocol.packed import Head, PackedRequest, data_of, head_bytes, head_of, packed_bytes
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.records import EventLog
from workbench.records.capture import CaptureStatus, Keep

T = TypeVar("T")

LARGEST_BYTES = 64 << 30
LONGEST_S = 3600.0
AT_A_TIME = 4
"""How many captures an engine has at a time, those included whose requests nobody has fetched yet."""

FETCH_S = 600.0
"""How long what was captured is kept for whoever asked for it, once the capture has ended."""

PART_BYTES = 8 << 20
"""About how much ``part`` gives at a time."""

_HEADS = 4096  # distinct heads that are looked for; a client may send a new one each time
_ON_THREAD = 4096  # elements of a BYTES tensor from which on it is packed on a thread
BACKLOG_BYTES = 256 << 20
"""How much may wait for that, the strings themselves included; what comes then is packed where it is."""


class _Capture:
    """One capture; ``lock`` is for what it holds: requests come from the loop and from callers' threads."""

    def __init__(self, model: str, keep: Keep, limit: int, started: int) -> None:
        self.id = secrets.token_hex(8)
        self.model = model
        self.keep = keep
        self.limit = limit
        self.started = started
        self.ended = 0
        self.ended_by = ""
        self.kept: deque[PackedRequest] = deque()
        self.size = 0
        self.missed = 0
        self.refused = 0
        self.full_ns = 0
        self.over = False  # what comes now is only counted
        self.heads: dict[Head, Head] = {}
        self.lock = threading.Lock()
        self.sorted = False
        self.timer: asyncio.TimerHandle | None = None

    def wants(self) -> bool:
        """A request has come: whether it is to be kept; else it is counted."""
        if self.over:
            self.miss()
        return not self.over

    def miss(self) -> None:
        """A request is not kept."""
        with self.lock:
            self.missed += 1

    def refuse(self) -> None:
        """A request did not fit the model."""
        with self.lock:
            self.refused += 1

    def add(self, arrival: int, head: Head, id: str, data: tuple[bytes, ...]) -> None:
        """Keeps a request, as far as the limit goes."""
        size = packed_bytes(id, data)
        with self.lock:
            if self.over:  # it was packed on a thread meanwhile
                self.missed += 1
                return
            known = self.heads.get(head)
            bears = known is None  # the cost of its head, which it is the first to have
            if known is None:
                if len(self.heads) >= _HEADS:
                    self.heads.clear()
                self.heads[head] = known = head
                size += head_bytes(head)
            self.size += size
            self.kept.append((arrival, known, id, data, size, bears))
            if self.size > self.limit:
                self._make_room(arrival)

    def _make_room(self, arrival: int) -> None:
        self.full_ns = self.full_ns or max(1, arrival - self.started)
        self.over = self.keep == "first"
        while self.size > self.limit:
            self.missed += 1
            gone = self.kept.pop() if self.over else self.kept.popleft()
            self.size -= gone[4]
            if gone[5]:
                self.heads.pop(gone[1], None)

    def part(self, after: int) -> list[PackedRequest]:
        with self.lock:
            if not self.sorted:  # what was packed on a thread has come late
                self.kept = deque(sorted(self.kept, key=itemgetter(0)))
                self.sorted = True
            size, found = 0, []
            for each in islice(self.kept, after, None):
                size += each[4]
                found.append(each)
                if size > PART_BYTES:
                    break
        return found

    def status(self) -> CaptureStatus:
        with self.lock:
            return CaptureStatus(
                self.id, self.model, self.keep, self.limit, self.started, self.ended, self.ended_by, len(self.kept),
                self.size, self.missed, self.refused, self.full_ns,
            )  # fmt: skip


_Pack = Callable[[tuple[_Capture, ...], int, InferenceRequest], None]


class Captures:
    """The captures of an engine; on the loop, except where it says otherwise.

    ``running`` has those under way, by model; it is looked at for every request, on any thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, events: EventLog) -> None:
        self.running: dict[str, tuple[_Capture, ...]] = {}
        self._all: dict[str, _Capture] = {}
        self._loop = loop
        self._clock = clock
        self._events = events
        self._heads: dict[Hashable, Head] = {}
        self._packer = ThreadPoolExecutor(1, thread_name_prefix="workbench-capture")  # has no thread until it is used
        self._backlog = 0
        self._counting = threading.Lock()

    # ---- requests

    def through(self, submit: Callable[[], T], request: InferenceRequest) -> T:
        """Has a request accepted by ``submit``, and takes it down if that gives anything but None. On any thread."""
        captures = self.running.get(request.model_name)
        if captures is None:
            return submit()
        arrival = self._clock()
        try:
            accepted = submit()
        except QueueFull:
            self._take(request, arrival)
            raise
        except WorkbenchError:
            for each in captures:
                each.refuse()
            raise
        if accepted is not None:
            self._take(request, arrival)
        return accepted

    def _take(self, request: InferenceRequest, arrival: int) -> None:
        captures = self.running.get(request.model_name, ())
        for each in captures:
            if each.over:
                captures = tuple(each for each in captures if each.wants())
                break
        if not captures:
            return
        self._or_miss(self._pack, captures, arrival, request)

    def _or_miss(self, pack: _Pack, captures: tuple[_Capture, ...], arrival: int, request: InferenceRequest) -> None:
        try:
            pack(captures, arrival, request)
        except Exception as error:  # no memory, say: the request is served all the same
            for each in captures:
                each.miss()
            text = f"a request was not captured: {type(error).__name__}: {error}"
            self._events.append("log", request.model_name, text, level="error")

    def _pack(self, captures: tuple[_Capture, ...], arrival: int, request: InferenceRequest) -> None:
        form = request.form
        if form is not None:  # of numbers, small, and most of it is known
            key = form, request.model_version, request.client, request.front
            head = self._heads.get(key)
            if head is None:
                if len(self._heads) >= _HEADS:
                    self._heads.clear()
                head = self._heads[key] = head_of(request)
            data = tuple([each.data.tobytes() for each in request.inputs])
            for capture in captures:
                capture.add(arrival, head, request.id, data)
            return
        strings = 0
        for each in request.inputs:
            if each.datatype == "BYTES":
                strings += each.data.size
        if strings < _ON_THREAD:
            _add(captures, arrival, request)
            return
        self._pack_later(captures, arrival, request)

    def _pack_later(self, captures: tuple[_Capture, ...], arrival: int, request: InferenceRequest) -> None:
        size = size_of(request)
        with self._counting:
            # one alone may be larger: where it is would be the worst place to pack it
            crowded = self._backlog > 0 and self._backlog + size > BACKLOG_BYTES
        if crowded:
            _add(captures, arrival, request)
            return

        copied = [Tensor(each.name, each.datatype, each.shape, each.data.copy()) for each in request.inputs]
        kept = replace(request, inputs=copied)

        def pack() -> None:
            try:
                self._or_miss(_add, captures, arrival, kept)
            finally:
                with self._counting:
                    self._backlog -= size

        with self._counting:
            self._backlog += size
        self._packer.submit(pack)

    # ---- captures

    def begin(self, model: str, *, limit: int, keep: Keep, for_s: float) -> CaptureStatus:
        """Begins to take down what is sent to a model; it ends by ``end``, or after ``for_s``.

        Args:
            model: its name.
            limit: bytes that what is kept may take.
            keep: the first requests up to the limit, or the newest within it.
            for_s: how long at most, seconds.

        Raises:
            InvalidRequest: a limit or a time that makes no sense.
            NotReady: there are as many captures as may be.
        """
        if keep not in get_args(Keep):
            raise InvalidRequest(f"keep must be 'first' or 'last', got {keep!r:.40}")
        if not 1 << 16 <= limit <= LARGEST_BYTES:
            raise InvalidRequest(f"a capture's limit is from 64 KiB to {LARGEST_BYTES >> 30} GiB, got {limit} bytes")
        if not 0 < for_s <= LONGEST_S:
            raise InvalidRequest(f"a capture lasts up to {LONGEST_S:g} s, got {for_s:g}")
        if len(self._all) >= AT_A_TIME:
            raise NotReady(
                f"{AT_A_TIME} captures are kept already, the most at a time: of "
                + ", ".join(f"'{each.model}'" for each in self._all.values()),
                hint=f"stop one; what is captured and not fetched is let go {FETCH_S:g} s after its end",
            )
        capture = _Capture(model, keep, limit, self._clock())
        self._all[capture.id] = capture
        self.running[model] = (*self.running.get(model, ()), capture)
        capture.timer = self._loop.call_later(for_s, self._end, capture, "time")
        self._events.append("capture", model, f"what is sent to '{model}' is captured from now on, inputs included")
        return capture.status()

    def end(self, id: str) -> CaptureStatus:
        """Ends a capture; nothing happens where it has ended.

        Raises:
            NotFound: there is none of this id (any more).
        """
        capture = self._find(id)
        self._end(capture, "stop")
        return capture.status()

    def _end(self, capture: _Capture, why: str) -> None:
        if capture.ended:
            return
        left = tuple(each for each in self.running[capture.model] if each is not capture)
        if left:
            self.running[capture.model] = left
        else:
            del self.running[capture.model]
        if not self.running:
            self._heads.clear()  # they name clients
        capture.ended, capture.ended_by = self._clock(), why
        if capture.timer is not None:
            capture.timer.cancel()
        capture.timer = self._loop.call_later(FETCH_S, self.drop, capture.id)
        text = f"capture of '{capture.model}' has ended: {len(capture.kept)} requests"
        self._events.append("capture", capture.model, text)

    def status(self, id: str) -> CaptureStatus:
        """How a capture stands.

        Raises:
            NotFound: there is none of this id (any more).
        """
        return self._find(id).status()

    def statuses(self) -> list[CaptureStatus]:
        """All captures: those under way, and those that nobody has fetched yet."""
        return [each.status() for each in self._all.values()]

    def drop(self, id: str) -> None:
        """Lets go of a capture; one that is under way ends. Nothing happens where there is none of this id."""
        capture = self._all.get(id)
        if capture is not None:
            self._end(capture, "stop")
            del self._all[id]
            if capture.timer is not None:
                capture.timer.cancel()

    def part(self, id: str, after: int) -> tuple[str, list[PackedRequest]]:
        """The model and requests of a capture that has ended, from the ``after``-th on, in their order: about
        ``PART_BYTES`` of them, none where there are no more. On any thread but the loop's: it may wait.

        Raises:
            InvalidRequest: it has not ended.
            NotFound: there is none of this id (any more).
        """
        capture = self._find(id)
        if not capture.ended:
            raise InvalidRequest("the capture goes on: end it first", where=f"model '{capture.model}'")
        self._packer.submit(_nothing).result()  # behind what is being packed
        return capture.model, capture.part(after)

    def close(self) -> None:
        """Ends all captures; what they hold is lost."""
        for id in list(self._all):
            self.drop(id)
        self._packer.shutdown(wait=False)

    def _find(self, id: str) -> _Capture:
        capture = self._all.get(id)
        if capture is None:
            raise NotFound(
                f"there is no capture {id!r:.40}",
                hint=f"what is captured is let go when it is fetched, and {FETCH_S:g} s after the end of the capture",
            )
        return capture


def _add(captures: tuple[_Capture, ...], arrival: int, request: InferenceRequest) -> None:
    head, data = head_of(request), data_of(request)
    for each in captures:
        each.add(arrival, head, request.id, data)


def _nothing() -> None:
    """What waits is done before this."""
