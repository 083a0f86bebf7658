"""One load point, run on the generator's event loop: warm-up, measured window, drain."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import gc
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from workbench.clock import Clock, monotonic_ns
from workbench.profiling.fruitless import Fruitless
from workbench.profiling.led import Led, Turn
from workbench.profiling.load import Load
from workbench.profiling.plan import Plan, with_id, with_request_id
from workbench.profiling.recorder import GONE_NS, Recorder
from workbench.profiling.samples import Samples
from workbench.profiling.sending import Client, Sender
from workbench.profiling.wake import Waker

Emit = Callable[[dict[str, Any]], None]
"""Tells whoever asked for the run what happens: ``{"event": "window"|"window_end"|"progress", ...}``."""

_START_DELAY_NS = 5_000_000
_LOOK_NS = 100_000_000
_EARLY_NS = 1_000_000
_STRIDE = 104_729


class Transport(Protocol):
    """How requests reach the server."""

    spare: int
    unreachable: str
    """Why the last attempt to connect failed; empty once one succeeds."""

    async def open(self, connections: int) -> None:
        """Connects; raises OSError where nobody answers."""

    def send(self, number: int, message: bytes, streaming: bool) -> None:
        """Sends a request; its end is told through ``on_done``."""

    async def close(self) -> None:
        """Hangs up."""

    @property
    def connections(self) -> int:
        """How many connections are open."""


MakeTransport = Callable[[Recorder, Callable[[int, str | None], None]], Transport]


class LoadRun:
    """Drives one load point. ``stop`` ends it early; what was measured until then is kept.

    With ``led`` it is one of several that send one load: when it begins and what its window is comes from there.
    """

    def __init__(
        self,
        load: Load,
        plan: Plan,
        messages: Sequence[bytes],
        sent: tuple[NDArray[np.int64], NDArray[np.int64]],
        make: MakeTransport,
        emit: Emit,
        clock: Clock = monotonic_ns,
        led: Led | None = None,
    ) -> None:
        self.load = load
        self.led = led
        self.emit = emit
        self.clock = clock
        self.recorder = Recorder(clock)
        self.transport = make(self.recorder, self._done)
        self._plan = plan
        self._messages = messages
        ids_from = os.getpid() * _STRIDE + clock() // 1000  # not those of another generator, nor of the run before
        self._sender = Sender(load, plan, self.recorder, self._transmit, sent, ids_from=ids_from)
        self._offsets = self._sender.offsets
        self._next = 0
        self._start = 0
        self._sending = False
        self._stopped = False
        self._over = asyncio.Event()
        self._counted = asyncio.Event()
        """Set with the answer that ends a window of so many requests."""
        self._empty = asyncio.Event()
        self._window = [0, 0]
        self._fruitless = Fruitless()
        self._left = 0
        """So many answers are still to come in a window of so many requests; 0 where none are counted."""
        self._cpu = [0.0, 0.0]
        self._answered_before = 0
        self._paused = 0
        self._gone = False
        self._waker: Waker | None = None
        self._warmth: dict[str, Any] = {}
        self._told_until = 0
        self._began = 0
        self._gone_since = 0
        self._answered_last = 0
        self._lost = ""

    async def run(self) -> Samples:
        """The whole point. ``extra["server_lost"]`` of the samples says why it ended early, if the server was lost.

        Raises:
            OSError: the server cannot be reached at the start.
        """
        load = self.load
        first = sum(part.clients or min(64, max(4, int(part.rate * 0.02))) for part in load.parts)
        try:
            await self.transport.open(min(first, 256))
            self.transport.spare = 4 if load.has_open else 0
            gc.collect()
            gc.freeze()
            gc.disable()
            self._begin(0 if self.led is None else await self._called(self.led))
            await (self._watch() if self.led is None else self._follow(self.led))
            drained = await self._drain()
        finally:
            gc.enable()
            gc.unfreeze()  # the next run's collection frees what this one had: its messages, its book
            self._sending, self._gone = False, True
            if self._waker is not None:
                self._waker.close()
            connections = self.transport.connections
            await self.transport.close()
        samples = self.recorder.samples(
            (self._window[0], self._window[1]),
            stopped=self._stopped,
            drained=drained,
            cpu_s=self._cpu[1] - self._cpu[0],
        )
        samples.extra.update(connections=connections, **self._warmth)
        if self._lost:
            samples.extra["server_lost"] = self._lost
        if self._fruitless.said:
            samples.extra["fruitless"] = self._fruitless.said
        samples.extra["nice"] = os.nice(0) if hasattr(os, "nice") else 0
        return samples

    def stop(self) -> None:
        """Ends the run now."""
        self._stopped = True
        self._sending = False
        self._break_off()
        self._empty.set()

    def _break_off(self) -> None:
        self._over.set()
        self._counted.set()
        if self.led is not None:
            self.led.release(self.clock())

    # -- sending ------------------------------------------------------------------------------------------------------

    def _begin(self, start: int) -> None:
        """Sends from now on; an open loop's arrivals count from ``start``, 0: from a moment later than now."""
        self._sending = not self._stopped
        self._start = self._began = self.clock()
        if self._sending:
            self._sender.begin(self.clock)
        if not self.load.has_open:
            return
        self._start = start or self.clock() + _START_DELAY_NS
        self._waker = Waker(asyncio.get_running_loop(), self._send_due)
        if self._offsets:
            self._waker.arm(self._start + self._offsets[0])

    def _transmit(self, number: int, message: int, streaming: bool, sequence_id: int) -> None:
        body = self._messages[message]
        if sequence_id:
            body = with_id(body, self._plan.id_at[message], sequence_id, varint=self._plan.varint)
        if self._plan.room_at:
            body = with_request_id(body, self._plan.room_at[message], self._sender.request_id(number))
        self.transport.send(number, body, streaming)

    def _send_due(self, until: int = 0) -> None:
        """Sends what is due by now; with ``until``, only what was due before."""
        offsets, start, recorder = self._offsets, self._start, self.recorder
        limit = self.load.max_in_flight
        while self._sending and self._next < len(offsets):
            due = start + offsets[self._next]
            if until and due >= until:
                return
            if due > self.clock():
                if self._waker is not None:
                    self._waker.arm(due)
                return
            self._next += 1
            if recorder.in_flight >= limit:
                self._sender.refuse(self._next - 1, due, f"not sent: {limit} requests were under way already")
            else:
                self._sender.arrive(self._next - 1, due)

    def _done(self, number: int, error: str | None) -> None:
        if not self.recorder.finish(number, error):
            return
        if self._left and error is None:
            self._count_one(self.recorder.done[number])
        client = self._sender.ended(number, error is None)
        if client is not None and not self._stopped:
            if error is not None:
                # A server that refuses at once must not be hammered: a failed client pauses for a moment.
                self._paused += 1
                asyncio.get_running_loop().call_later(0.005, self._again, client)
            else:
                self._sender.go_on(client, self.recorder.done[number])
        self._look_whether_empty()

    def _again(self, client: Client) -> None:
        self._paused -= 1
        if not self._stopped and not self._gone:
            self._sender.go_on(client, self.clock())
        self._look_whether_empty()

    def _cease(self) -> None:
        """Sends nothing more but what was due in the window (a timer may be late), and what ends open sequences."""
        if self.load.has_open:
            self._send_due(self._window[1])
        self._sending = False
        if not self._stopped:
            self._sender.finish(self.clock())

    def _look_whether_empty(self) -> None:
        if not self._sending and self.recorder.in_flight == 0 and self._paused == 0:
            self._empty.set()

    # -- the window ---------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        load = self.load
        await self._warm_up()
        self._open_window()
        begin = self._window[0]
        longest = begin + int(load.longest_s * 1e9)
        if load.requests:
            await self._count(longest)
        else:
            await self._settle(begin + int(load.duration_s * 1e9), longest)
        self._cease()
        self.emit({"event": "window_end", "start": self._window[0], "end": self._window[1]})

    async def _settle(self, least: int, longest: int) -> None:
        """The window lasts until ``least``, and on until its figures are known, or until ``longest``."""
        await self._until(least)
        while True:
            # The window ends before it is looked at: looking takes a moment in which nothing is sent.
            self._window[1], self._cpu[1] = self.clock(), _cpu_s()
            if self._over.is_set() or self._window[1] >= longest or self._enough():
                return
            await self._until(min(longest, self._window[1] + _LOOK_NS))

    async def _count(self, longest: int) -> None:
        """The window lasts until so many requests are answered, or until ``longest``, or until too many have failed or
        nothing is answered any more (``fruitless``)."""
        load, recorder = self.load, self.recorder
        self._fruitless = Fruitless(
            load.requests, recorder.answered, recorder.failed, self.clock(), load.longest_silence_s
        )
        self._left = self.load.requests + (0 if self.load.has_open else 1)
        await self._until(longest, self._counted)
        self._left = 0
        self._window[1], self._cpu[1] = self._window[1] or self.clock(), _cpu_s()

    def _count_one(self, done: int) -> None:
        """One more answer of a window of so many. That of a closed loop begins with an answer, as it ends with one:
        begun anywhere in a round of its clients it would be too short by up to a round."""
        if done < self._window[0]:
            return  # at the very time of the one that it begins with
        if self._left > self.load.requests:
            self._window[0] = done + 1
        self._left -= 1
        if self._left == 0:
            self._window[1] = done + 1  # it is the last one of the window
            self._counted.set()

    async def _called(self, led: Led) -> int:
        """Waits for the common start, with closed loops also until it is there: open ones have a timer for that, which
        must be set before."""
        self.emit({"event": "ready"})
        start = await self._time_of(led, "begin")
        if any(part.kind == "closed" for part in self.load.parts):
            early = _EARLY_NS if self.load.has_open else 0
            await asyncio.sleep(max(0, start - self.clock() - early) / 1e9)
        return start

    async def _follow(self, led: Led) -> None:
        begin = await self._time_of(led, "open")
        # The warm-up's arrivals go on until then; a loop's own timer may be late by a millisecond.
        await asyncio.sleep(max(0, begin - self.clock() - _EARLY_NS) / 1e9)
        self._open_window(begin)
        end = await self._time_of(led, "end")
        self._window[1], self._cpu[1] = max(end, self._window[0]), _cpu_s()
        self._cease()

    async def _time_of(self, led: Led, turn: Turn) -> int:
        while (at := await led.wait(turn, _LOOK_NS / 1e9)) is None:
            if self._sending:
                self._show_life()
                now = self.clock()
                led.tell(self.recorder.answers_between(self._told_until, now))
                self._told_until = now
        return at

    async def _warm_up(self) -> None:
        load, begin = self.load, self._start
        longest = begin + int(load.longest_warmup_s * 1e9)
        await self._until(begin + int(load.warmup_s * 1e9))
        warm = load.warmup_s == 0 or not load.settles
        while not warm and not self._over.is_set() and self.clock() < longest:
            warm = self.recorder.warm(begin)
            if not warm:
                await self._until(min(longest, self.clock() + _LOOK_NS))
        self._warmth = {"warm": warm or self._over.is_set(), "warmup_s": (self.clock() - begin) / 1e9}

    def _enough(self) -> bool:
        begin, end = self._window
        if self._in_window() < self.load.min_requests:
            return False
        return self.recorder.known_well(begin, end, self.load.clients)

    def _open_window(self, at: int = 0) -> None:
        # Without a warm-up the window begins with the first arrival, which a late timer must not leave out.
        at_once = self.load.has_open and self.load.warmup_s == 0
        self._window[0] = at or (self._start if at_once else self.clock())
        if self.load.has_open and self.load.warmup_s > 0:
            # However long the warm-up took, the window has the arrivals that every other window of this load has.
            self.recorder.count_before(self._window[0])
            warmup = int(self.load.longest_warmup_s * 1e9)
            self._next = bisect.bisect_left(self._offsets, warmup)
            self._start = self._window[0] - warmup
            if self._waker is not None and self._next < len(self._offsets):
                self._waker.arm(self._start + self._offsets[self._next])
        self._cpu[0] = _cpu_s()
        self._answered_before = self.recorder.answered
        self.emit({"event": "window", "start": self._window[0]})

    def _in_window(self) -> int:
        return self.recorder.answered - self._answered_before

    async def _until(self, deadline: int, event: asyncio.Event | None = None) -> None:
        """Waits, also for an event, with signs of life; ends early when stopped, or when nothing has ever been answered
        but errors."""
        event = event if event is not None else self._over
        while not self._over.is_set() and not event.is_set():
            left = deadline - self.clock()
            if left <= 0:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), min(left / 1e9, 0.2))
            self._show_life()

    def _show_life(self) -> None:
        recorder = self.recorder
        so_far = {"responses": len(recorder.response_at), "under_way": recorder.in_flight + self._paused}
        self.emit({"event": "progress", "answered": recorder.answered, "failed": recorder.failed, **so_far})
        if recorder.hopeless(self._start):
            self._break_off()
        now = self.clock()
        if not self._counted.is_set() and self._fruitless.look(recorder.answered, recorder.failed, now, **so_far):
            self._break_off()
        self._look_whether_gone()

    def _look_whether_gone(self) -> None:
        """A server that takes no connections any more fails all that is still to come, too, and so does one that has
        unloaded the model: then the run is broken off, and what was measured is kept."""
        why, answered = self.transport.unreachable, self.recorder.answered
        if text := self.recorder.broken_off(self._began):
            self._give_up_on(text)
        elif not why or answered != self._answered_last or not self._gone_since:
            self._gone_since = self.clock() if why else 0
            self._answered_last = answered
        elif self.clock() - self._gone_since > GONE_NS:
            self._give_up_on(self.recorder.loss("server", why, self._gone_since - self._began))

    def _give_up_on(self, why: str) -> None:
        self._lost = self._lost or why
        self._break_off()

    async def _drain(self) -> bool:
        if (self.recorder.in_flight or self._paused) and not self._stopped:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), self.load.drain_s)
        text = "no answer: the run was stopped" if self._stopped else f"no answer {self.load.drain_s:g} s after the end"
        return self.recorder.give_up(text) == 0


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system
