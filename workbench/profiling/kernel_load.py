"""The load on a target inside this process: sent from the calling thread, which shares the GIL with the engine."""

from __future__ import annotations

import bisect
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from workbench.clock import Clock, monotonic_ns
from workbench.profiling.fruitless import Fruitless
from workbench.profiling.load import Load
from workbench.profiling.recorder import Recorder
from workbench.profiling.requests import Prepared
from workbench.profiling.samples import Samples
from workbench.profiling.sending import Client, Sender
from workbench.profiling.target import InKernelTarget
from workbench.protocol.tensors import InferenceResponse

_Answer = tuple[int, int, str | None, bool]
"""A request's number, when, its error text, and whether it is the end of the request."""

_PAUSE_NS = 5_000_000
_TICK_NS = 50_000_000


class KernelLoad:
    """Drives one load point against an ``InKernelTarget``."""

    def __init__(
        self,
        target: InKernelTarget,
        prepared: Prepared,
        load: Load,
        *,
        on_event: Callable[[dict[str, Any]], None],
        stop: threading.Event | None = None,
        clock: Clock = monotonic_ns,
    ) -> None:
        self._target = target
        self._requests = prepared.requests
        self._load = load
        self._on_event = on_event
        self._stop = stop if stop is not None else threading.Event()
        self._clock = clock
        self._recorder = Recorder(clock)
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._later: list[tuple[int, Client]] = []
        self._sender = Sender(load, prepared.plan, self._recorder, self._transmit, ids_from=clock() // 1000)
        self._offsets = self._sender.offsets
        self._next = 0
        self._start = self._began = 0
        self._left, self._count_from, self._counted_at = load.requests + (0 if load.has_open else 1), 0, 0
        self._latest = 0
        self._fruitless = Fruitless()
        self._lost = ""

    def run(self) -> Samples:
        """The whole point: warm-up, window, drain."""
        load, clock, recorder = self._load, self._clock, self._recorder
        self._start = self._began = clock()
        self._sender.begin(clock)
        warmth = self._warm_up()
        begin, answered = clock() if load.warmup_s > 0 else self._start, recorder.answered
        if load.warmup_s > 0:
            # However long the warm-up took, the window has the arrivals that every other window of this load has.
            warmup = int(load.longest_warmup_s * 1e9)
            self._next, self._start = bisect.bisect_left(self._offsets, warmup), begin - warmup
        self._on_event({"event": "window", "start": begin})
        if load.requests:
            self._count_from = begin
            self._fruitless = Fruitless(
                load.requests, recorder.answered, recorder.failed, begin, load.longest_silence_s
            )
            self._until(begin + int(load.longest_s * 1e9))
            begin, end = self._count_from, self._counted_at or clock()
        else:
            end = self._settled(begin, answered)
        if not self._stop.is_set():
            self._send_arrivals(end)  # this thread may have stood still: what was due in the window is in the books
        self._sender.finish(end)
        self._on_event({"event": "window_end", "start": begin, "end": end})
        drained = self._drain(end)
        samples = recorder.samples((begin, end), stopped=self._stop.is_set(), drained=drained, cpu_s=0.0)
        samples.extra.update(warmth)
        if self._lost:
            samples.extra["server_lost"] = self._lost
        if self._fruitless.said:
            samples.extra["fruitless"] = self._fruitless.said
        return samples

    def _settled(self, begin: int, answered: int) -> int:
        """Goes on until a window that began with so many answers is long enough; gives its end."""
        load, clock, recorder = self._load, self._clock, self._recorder
        self._until(begin + int(load.duration_s * 1e9))
        longest = begin + int(load.longest_s * 1e9)
        while True:
            end = clock()
            if self._over or end >= longest:
                return end
            if recorder.answered - answered >= load.min_requests and recorder.known_well(begin, end, load.clients):
                return end
            self._until(min(longest, end + 2 * _TICK_NS))

    def _warm_up(self) -> dict[str, Any]:
        load, clock, begin = self._load, self._clock, self._start
        longest = begin + int(load.longest_warmup_s * 1e9)
        self._until(begin + int(load.warmup_s * 1e9))
        warm = load.warmup_s == 0 or not load.settles
        while not warm and not self._over and clock() < longest:
            warm = self._recorder.warm(begin)
            if not warm:
                self._until(min(longest, clock() + 2 * _TICK_NS))
        return {"warm": warm or self._over, "warmup_s": (clock() - begin) / 1e9}

    def _transmit(self, number: int, message: int, streaming: bool, sequence_id: int) -> None:
        request = replace(self._requests[message])
        if sequence_id:
            request.sequence_id = str(sequence_id) if isinstance(request.sequence_id, str) else sequence_id
        request.id = self._sender.request_id(number) or request.id
        recorder, answers, clock = self._recorder, self._answers, self._clock
        first_error: list[str] = []

        def on_response(response: InferenceResponse) -> None:
            if response.error is not None:
                first_error.append(response.error.message)
            elif streaming and (response.outputs or response.parameters):  # else it only says that there are no more
                answers.put((number, clock(), None, False))
            if response.final:
                answers.put((number, clock(), first_error[0] if first_error else None, True))

        recorder.sent[number] = clock()
        try:
            self._target.submit(request, on_response)
        except Exception as error:
            answers.put((number, clock(), getattr(error, "message", None) or f"{type(error).__name__}: {error}", True))

    def _until(self, deadline: int) -> None:
        """Sends and receives until a time, until so many are answered, or until it is over."""
        while not self._over and not self._counted_at:
            now = self._clock()
            if now >= deadline:
                return
            wake = min(deadline, now + _TICK_NS)
            wake = self._send_due(now, wake)
            try:
                self._take(self._answers.get(timeout=max(0, wake - self._clock()) / 1e9))
            except queue.Empty:
                continue

    @property
    def _over(self) -> bool:
        """Whether it was stopped, or all that is still to come would fail: the model is gone, or answers nothing of a
        window that is to have so many requests."""
        self._lost = self._lost or self._recorder.broken_off(self._began)
        recorder = self._recorder
        in_vain = not self._counted_at and self._fruitless.look(
            recorder.answered, recorder.failed, self._clock(),
            responses=len(recorder.response_at), under_way=recorder.in_flight + len(self._later),
        )  # fmt: skip
        return bool(self._lost) or self._stop.is_set() or in_vain

    def _send_due(self, now: int, wake: int) -> int:
        """Sends what is due and gives the time of what comes next, ``wake`` at the latest."""
        while self._later and self._later[0][0] <= now:
            self._sender.go_on(self._later.pop(0)[1], now)
        if self._later:
            wake = min(wake, self._later[0][0])
        return min(wake, self._send_arrivals() or wake)

    def _send_arrivals(self, until: int = 0) -> int:
        """Sends what is due by now, with ``until`` only what was due before; gives when the next one is, 0: never."""
        while self._next < len(self._offsets):
            due: int = self._start + self._offsets[self._next]
            if due > self._clock() or 0 < until <= due:
                return due
            self._next += 1
            if self._recorder.in_flight >= self._load.max_in_flight:
                text = f"not sent: {self._load.max_in_flight} requests were under way already"
                self._sender.refuse(self._next - 1, due, text)
            else:
                self._sender.arrive(self._next - 1, due)
        return 0

    def _take(self, answer: _Answer) -> None:
        number, done, error, final = answer
        if not final:
            self._recorder.respond(number, done)
            return
        if not self._recorder.finish(number, error):
            return
        self._recorder.done[number] = done
        if self._count_from and error is None and done >= self._count_from:
            self._count_one(done)
        client = self._sender.ended(number, error is None)
        if client is None:
            return
        if error is None:
            self._sender.go_on(client, done)
        else:  # as over HTTP: a client that failed pauses for a moment
            self._later.append((self._clock() + _PAUSE_NS, client))

    def _count_one(self, done: int) -> None:
        """One more answer of a window of so many. That of a closed loop begins with an answer, as over the network."""
        if self._left > self._load.requests:
            self._count_from = done + 1
        self._left -= 1
        self._latest = max(self._latest, done)  # answers of several threads come in almost the order of their stamps
        if self._left == 0:
            self._counted_at = self._latest + 1  # all that were counted are in the window

    def _drain(self, end: int) -> bool:
        deadline = end + int(self._load.drain_s * 1e9)
        while (self._recorder.in_flight or self._later) and not self._stop.is_set() and self._clock() < deadline:
            now = self._clock()
            while self._later and self._later[0][0] <= now:
                self._sender.go_on(self._later.pop(0)[1], now)
            try:
                self._take(self._answers.get(timeout=0.05))
            except queue.Empty:
                continue
        return self._recorder.give_up(f"no answer {self._load.drain_s:g} s after the end") == 0
