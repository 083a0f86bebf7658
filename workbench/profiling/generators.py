"""Load generators in processes of their own: one, or several that send one load together and whose stamps add up.

Several are led from here. They connect, begin at one time, and tell ten times a second what has been answered; by what
all of them tell it is judged when the warm-up has settled and how long the window lasts, as one generator judges for
itself. One that dies ends the run: what the others have measured is kept, and the samples say who was lost.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from workbench.clock import Clock, monotonic_ns
from workbench.errors import InternalError, InvalidRequest
from workbench.profiling.driver import STOP_NS, Frame, GeneratorProcess, Job, OnEvent, longest_ns
from workbench.profiling.fruitless import Fruitless
from workbench.profiling.led import Turn
from workbench.profiling.merging import Share, merge, share_out
from workbench.profiling.samples import Samples
from workbench.profiling.stability import known_well, warm

_LEAD_NS = 20_000_000
"""A turn is announced so long before it comes, so that all processes of this machine have heard of it."""

_LOOK_NS = 100_000_000
"""Whether it is long enough is judged so often; generators tell no more often either."""

_COUNTS = ("answered", "failed", "responses", "under_way")
"""What a generator tells of its progress."""


class Generator(Protocol):
    """One of several generators, as ``GeneratorProcess`` is one; its stamps and times are of the clock here."""

    @property
    def pid(self) -> int | None:
        """Its process id, while it lives."""

    def launch(self) -> bool:
        """Starts it without waiting until it is there; False where it runs already."""

    def greet(self) -> None:
        """Waits until one that was launched is there."""

    def begin(self, job: Job, share: Share) -> None:
        """Hands over its share of a run, which waits for its turns."""

    def heard(self) -> list[Frame | None]:
        """What it has said since the last time, without waiting; None at the end where it has ended."""

    def tell(self, head: dict[str, Any], blob: bytes = b"") -> None:
        """Sends a command."""

    def result(self, frame: Frame | None, url: str) -> Samples | None:
        """The samples where a frame has them; None where the run goes on."""

    def close(self) -> None:
        """Ends it, also in the middle of a run."""


class Place(Protocol):
    """Where generators run, if not on this machine. ``close`` is called in any case, also when ``open`` has failed."""

    lead_ns: int
    """How long before it comes a turn is announced, so that all have heard of it."""

    @property
    def where(self) -> str:
        """Words for it."""

    def open(self, stop: threading.Event) -> None:
        """Gets hold of the machines, before anything is measured.

        Args:
            stop: once set, nothing more is waited for.
        """

    def make(self) -> Generator:
        """One more generator, which runs once it is launched."""

    def close(self) -> None:
        """Ends all of them and lets go of the machines."""


Phase = Literal["connecting", "warm-up", "opening", "window", "ending"]


class Generators:
    """As many generators as a load asks for, kept from one run to the next. Not thread-safe."""

    def __init__(self, *, clock: Clock = monotonic_ns, place: Place | None = None) -> None:
        self._clock = clock
        self._place = place
        self._news = threading.Event()
        self._processes: list[Generator] = []

    @property
    def pids(self) -> list[int]:
        """The processes that live."""
        return [process.pid for process in self._processes if process.pid is not None]

    def run(self, job: Job, on_event: OnEvent, stop: threading.Event | None = None) -> Samples:
        """Runs one load point; arguments and errors as ``GeneratorProcess.run``.

        ``extra["lost"]`` of the samples says in words which generators of several did not come to the end.

        Raises:
            InvalidRequest: an open loop has fewer sequences than generators.
        """
        load, count = job.load, job.load.generators
        divided = load.kind == "open" and not load.trace and job.sent.classes[0].length > 0
        if divided and load.sequences < count:
            raise InvalidRequest(
                f"{count} generators cannot divide {load.sequences} sequences at once", hint=f"sequences={count}"
            )
        while len(self._processes) < count:
            self._processes.append(self._made())
        chosen = self._processes[:count]
        if count == 1 and isinstance(chosen[0], GeneratorProcess):
            return chosen[0].run(job, on_event, stop)
        try:
            for process in [each for each in chosen if each.launch()]:
                process.greet()
            lead_ns = _LEAD_NS if self._place is None else self._place.lead_ns
            return _Lead(chosen, job, on_event, stop, self._news, self._clock, lead_ns).run()
        except BaseException:
            self.close()
            raise

    def _made(self) -> Generator:
        if self._place is not None:
            return self._place.make()
        return GeneratorProcess(clock=self._clock, news=self._news)

    def close(self) -> None:
        """Ends the processes, also in the middle of a run. May be called twice."""
        for process in self._processes:
            process.close()

    def __enter__(self) -> Generators:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Lead:
    """One run of several generators."""

    def __init__(
        self,
        processes: list[Generator],
        job: Job,
        on_event: OnEvent,
        stop: threading.Event | None,
        news: threading.Event,
        clock: Clock,
        lead_ns: int,
    ) -> None:
        self._processes = processes
        self._lead_ns = lead_ns
        self._job = job
        self._load = job.load
        self._least_ns = 0 if job.load.requests else int(job.load.duration_s * 1e9)
        self._on_event = on_event
        self._stop = stop
        self._news = news
        self._clock = clock
        count = len(processes)
        self._shares = share_out(job.load, job.sent)
        self._samples: list[Samples | None] = [None] * count
        self._lost: dict[int, str] = {}
        self._ready: set[int] = set()
        self._progress = [dict.fromkeys(_COUNTS, 0) for _ in processes]
        self._fruitless = Fruitless()
        self._told: list[NDArray[np.int64]] = []
        """What was answered: a row of times scheduled and one of times done."""
        self._known = [0] * count
        """Until when (by its last answer) each has told."""
        self._phase: Phase = "connecting"
        self._start = 0
        self._window = [0, 0]
        self._warm = True
        self._look = 0
        self._stopping = False
        self._cut_short = False

    def run(self) -> Samples:
        for process, share in zip(self._processes, self._shares, strict=True):
            process.begin(self._job, share)
        deadline = self._clock() + longest_ns(self._load)
        while len(self._lost) + sum(each is not None for each in self._samples) < len(self._processes):
            self._news.wait(0.01)
            self._news.clear()
            for index, process in enumerate(self._processes):
                for frame in process.heard() if self._under_way(index) else ():
                    self._hear(index, frame)
            self._advance(self._clock())
            if self._stop is not None and self._stop.is_set() and not self._stopping:
                # Some may hear of the end and be done before they hear of the stop.
                self._stopping, self._cut_short = True, self._phase != "ending"
                self._finish(self._clock())
                self._tell({"cmd": "stop"})
                deadline = min(deadline, self._clock() + STOP_NS)
            if self._clock() > deadline:
                for index in filter(self._under_way, range(len(self._processes))):
                    self._lose(index, "does not answer any more")
                    self._processes[index].close()
        return self._merged()

    def _merged(self) -> Samples:
        parts = [each for each in self._samples if each is not None]
        if not parts:
            raise InternalError("; ".join(self._losses()), where=self._job.url)
        samples = merge(parts)
        if self._load.warmup_s == 0 and len(samples.scheduled):
            # All of it belongs to the window; by the clocks of other machines the first may come a little before it.
            begin, end = samples.window
            samples = replace(samples, window=(min(begin, int(samples.scheduled[0])), end))
        extra: dict[str, Any] = {"warm": self._warm, "warmup_s": max(0, self._window[0] - self._start) / 1e9}
        if self._fruitless.said:
            extra["fruitless"] = self._fruitless.said
        if self._lost:
            extra["lost"] = self._losses()
        return replace(samples, stopped=samples.stopped or self._cut_short, extra={**samples.extra, **extra})

    def _losses(self) -> list[str]:
        return [text for _, text in sorted(self._lost.items())]

    def _under_way(self, index: int) -> bool:
        return self._samples[index] is None and index not in self._lost

    # -- hearing ------------------------------------------------------------------------------------------------------

    def _hear(self, index: int, frame: Frame | None) -> None:
        try:
            samples = self._processes[index].result(frame, self._job.url)
            self._samples[index] = None if samples is None else self._shares[index].of_the_whole(samples)
        except InternalError as error:
            self._lose(index, error.message.removeprefix("the load generator "))
            return
        if frame is None:
            return
        head, blob = frame
        if head["event"] == "ready":
            self._ready.add(index)
        elif head["event"] == "answers":
            told = np.frombuffer(blob, np.int64).reshape(2, -1)
            self._told.append(told)
            self._known[index] = max(self._known[index], int(told[1].max(initial=0)))
        elif head["event"] == "progress":
            self._progress[index] = {name: head[name] for name in _COUNTS}
            self._on_event({"event": "progress", **self._so_far})
        elif head["event"] == "done":  # it has given up: the others go on for nothing
            self._finish(self._clock())

    def _lose(self, index: int, why: str) -> None:
        self._lost[index] = f"load generator {index + 1} of {len(self._processes)} {why}"
        self._finish(self._clock())

    # -- leading ------------------------------------------------------------------------------------------------------

    def _advance(self, now: int) -> None:
        load, phase = self._load, self._phase
        if phase == "connecting" and len(self._ready) == len(self._processes):
            self._start = self._turn("begin", now + self._lead_ns)
            self._phase = "warm-up"
        elif phase == "warm-up" and now >= max(self._start + int(load.warmup_s * 1e9) - self._lead_ns, self._look):
            self._look = now + _LOOK_NS
            settled = load.warmup_s == 0 or not load.settles or self._settled()
            if settled or now >= self._start + int(load.longest_warmup_s * 1e9) - self._lead_ns:
                self._warm = settled
                # Without a warm-up it begins with the load: the first arrival belongs to it.
                at = max(now + self._lead_ns, self._start) if load.warmup_s > 0 else self._start
                self._window[0] = self._turn("open", at)
                self._phase = "opening"
        elif phase == "opening" and now >= self._window[0]:
            self._phase = "window"
            so_far = self._so_far
            self._fruitless = Fruitless(
                load.requests, so_far["answered"], so_far["failed"], now, load.longest_silence_s
            )
            self._on_event({"event": "window", "start": self._window[0]})
        elif phase == "window" and now >= max(self._window[0] + self._least_ns, self._look):
            self._look = now + _LOOK_NS
            if now >= self._window[0] + int(load.longest_s * 1e9) or self._enough() or self._in_vain(now):
                self._finish(now)

    def _finish(self, now: int) -> None:
        """Ends the window now, wherever the run stands: whoever reads the server at its two edges hears of both."""
        if self._phase in ("connecting", "warm-up"):
            if not self._start:
                self._start = self._turn("begin", now)
            self._window[0] = self._turn("open", now)
        if self._phase in ("connecting", "warm-up", "opening"):
            self._on_event({"event": "window", "start": self._window[0]})
        if self._phase != "ending":
            self._phase = "ending"
            self._window[1] = self._turn("end", max(now, self._window[0]))
            self._on_event({"event": "window_end", "start": self._window[0], "end": self._window[1]})

    def _turn(self, turn: Turn, at: int) -> int:
        self._tell({"cmd": turn, "at": at})
        return at

    def _tell(self, command: dict[str, Any]) -> None:
        for index, process in enumerate(self._processes):
            if self._under_way(index):
                try:
                    process.tell(command)
                except InternalError:
                    continue  # it has died: what it said last is heard, then its end

    # -- judging ------------------------------------------------------------------------------------------------------

    def _answers(self) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
        """When requests were answered, after how many ms, and until when all have told."""
        told = np.concatenate(self._told, axis=1) if self._told else np.empty((2, 0), np.int64)
        self._told = [told]
        return told[1], (told[1] - told[0]) / 1e6, min(self._known)

    def _settled(self) -> bool:
        done, latency, known = self._answers()
        return known > self._start and warm(done, latency, self._start, known)

    def _enough(self) -> bool:
        done, latency, known = self._answers()
        begin, load = self._window[0], self._load
        if int(((done >= begin) & (done < known)).sum()) < (load.requests or load.min_requests):
            return False
        return bool(load.requests) or known_well(done, latency, begin, known, self._load.clients)

    def _in_vain(self, now: int) -> bool:
        return self._fruitless.look(now=now, **self._so_far)

    @property
    def _so_far(self) -> dict[str, int]:
        """What all of them have told, added up."""
        return {name: sum(each[name] for each in self._progress) for name in _COUNTS}
