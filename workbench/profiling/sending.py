"""Which request is sent next, and by whom: the part of a run that touches no socket and reads no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from workbench.profiling.arrivals import arrivals
from workbench.profiling.load import Load
from workbench.profiling.plan import ID_COUNT, ID_FROM, ClassPlan, Plan
from workbench.profiling.recorder import Recorder
from workbench.profiling.trace import END, START

Transmit = Callable[[int, int, bool, int], None]
"""Sends: the request's number, the index of its message, whether it streams, its correlation id (0: none)."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One after the other: requests of one correlation id, of which the next is sent when the last is answered."""

    kind: int
    id: int = 0
    steps: list[int] = field(default_factory=list)
    step: int = 0
    busy: bool = False
    last: int = 0
    """The message that was sent last, without flags."""
    open: bool = False
    """The server knows of it, and has not been told of its end."""
    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    """Requests of a trace that have come meanwhile: number and message with its flags."""


Client = int | Sequence
"""Who sends one request after the other: one client of the class with that index, or a sequence."""


class _Class:
    """What a class has sent so far."""

    def __init__(self, load: Load, plan: ClassPlan, seed: int) -> None:
        self.plan = plan
        self.closed = load.kind == "closed"
        self.clients = load.concurrency if self.closed else 0
        self.sequences = load.sequences
        self.variation = load.sequence_length_variation
        self.rng = np.random.default_rng([load.seed, seed, 1])
        self.begun = 0
        self.sent = 0
        self.free: deque[Sequence] = deque()
        self.waiting: deque[int] = deque()

    def steps(self) -> list[int]:
        """The messages of the next sequence."""
        plan = self.plan
        self.begun += 1
        if plan.streams:
            return list(plan.streams[(self.begun - 1) % len(plan.streams)])
        spread = int(plan.length * self.variation)
        length = max(1, plan.length + int(self.rng.integers(-spread, spread + 1)))
        begin = self.sent
        self.sent += length
        return [plan.first + 4 * ((begin + index) % plan.count) for index in range(length)]


class Sender:
    """Decides what is sent; a run calls it when an arrival is due and when an answer has come.

    Args:
        load: what to send.
        plan: with which messages.
        recorder: the book of requests; each is entered when it is due.
        transmit: sends one.
        sent: when its open loops send, and what (``arrivals``); None draws them from the load.
        ids_from: where its correlation ids begin, so that several generators do not take the same ones.
    """

    def __init__(
        self,
        load: Load,
        plan: Plan,
        recorder: Recorder,
        transmit: Transmit,
        sent: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
        *,
        ids_from: int = 0,
    ) -> None:
        self._plan = plan
        self._recorder = recorder
        self._transmit = transmit
        self._trace = bool(load.trace)
        offsets, marks = arrivals(load) if sent is None else sent
        self._marks: list[int] = marks.tolist() if load.mix or load.trace else []
        self.offsets: list[int] = offsets.tolist()
        """When the open loops send, ns from the start."""
        loads = [part for _, part in load.mix] or [load] * len(plan.classes)
        self._classes = [
            _Class(part, kind, index) for index, (part, kind) in enumerate(zip(loads, plan.classes, strict=True))
        ]
        self._held: dict[int, Sequence] = {}
        self._traced: dict[int, Sequence] = {}
        self._all: list[Sequence] = []
        self._row_of: dict[int, int] = {}
        self._next_id = ids_from % ID_COUNT
        self._first, self._count = plan.classes[0].first, plan.classes[0].count
        self._plain = len(plan.classes) == 1 and not plan.classes[0].length and not self._trace
        self._streaming = plan.classes[0].streaming
        self.ending = False

    # -- what a run calls ---------------------------------------------------------------------------------------------

    def begin(self, now: Callable[[], int]) -> None:
        """Every client of the closed loops sends its first request."""
        for index, kind in enumerate(self._classes):
            for _ in range(kind.clients):
                if kind.plan.length:
                    sequence = self._new(index)
                    self._step(sequence, self._recorder.new(now(), index))
                else:
                    self._send(index, now())
            if kind.plan.length and not kind.closed and not self._trace:
                kind.free.extend(self._new(index) for _ in range(kind.sequences))

    def arrive(self, arrival: int, due: int) -> None:
        """The arrival of that index is due."""
        if self._plain:
            number = self._recorder.new(due)
            self._transmit(number, self._first + number % self._count, self._streaming, 0)
        elif self._trace:
            self._arrive_traced(self._marks[arrival], due)
        else:
            index = self._marks[arrival] if self._marks else 0
            kind = self._classes[index]
            if not kind.plan.length:
                self._send(index, due)
                return
            number = self._recorder.new(due, index)
            if kind.free:
                self._step(kind.free.popleft(), number)
            else:
                self._recorder.held[number] = 1
                kind.waiting.append(number)

    def request_id(self, number: int) -> str:
        """What a request of a trace called itself when it was recorded; asked once of each that is sent."""
        row = self._row_of.pop(number, -1)
        return self._plan.request_ids[row] if row >= 0 else ""

    def refuse(self, arrival: int, due: int, text: str) -> None:
        """The arrival of that index is due, and fails unsent."""
        index = 0
        if self._marks:
            mark = self._marks[arrival]
            index = self._plan.class_of[mark] if self._trace else mark
        self._recorder.finish(self._recorder.new(due, index), text)

    def ended(self, number: int, ok: bool) -> Client | None:
        """A request has its answer or error: gives its client, which then may ``go_on``; None where there is none."""
        sequence = self._held.pop(number, None) if self._held else None
        if sequence is None:
            kind = self._recorder.class_of[number]
            return kind if self._classes[kind].closed and not self._trace else None
        sequence.busy = False
        if not ok and sequence.step == 1:  # it was never begun: the others of it would be refused, too
            sequence.step, sequence.open = len(sequence.steps), False
        return sequence

    def go_on(self, client: Client, now: int) -> None:
        """A client sends its next request, if it has one."""
        if isinstance(client, int):
            if not self.ending:
                self._send(client, now)
        elif not client.busy:
            self._go_on(client, now)

    def _go_on(self, sequence: Sequence, now: int) -> None:
        kind = self._classes[sequence.kind]
        if sequence.waiting:
            self._send_of(sequence, *sequence.waiting.popleft())
        elif kind.waiting:
            self._step(sequence, kind.waiting.popleft())
        elif self.ending:
            if sequence.open:
                self._close(sequence, now)
        elif self._trace:
            return
        elif kind.closed:
            self._step(sequence, self._recorder.new(now, sequence.kind))
        else:
            kind.free.append(sequence)

    def finish(self, now: int) -> None:
        """Nothing more is to be sent but what ends the sequences that are open."""
        self.ending = True
        for sequence in (*self._all, *self._traced.values()):
            if sequence.open and not sequence.busy:
                self._close(sequence, now)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send(self, index: int, scheduled: int) -> None:
        kind = self._classes[index]
        plan = kind.plan
        kind.sent += 1
        number = self._recorder.new(scheduled, index)
        self._transmit(number, plan.first + (kind.sent - 1) % plan.count, plan.streaming, 0)

    def _new(self, index: int) -> Sequence:
        sequence = Sequence(index)
        self._all.append(sequence)
        return sequence

    def _step(self, sequence: Sequence, number: int) -> None:
        if sequence.step >= len(sequence.steps):
            sequence.steps, sequence.step = self._classes[sequence.kind].steps(), 0
            sequence.id = self._fresh_id()
        step, sequence.step = sequence.step, sequence.step + 1
        flags = START * (step == 0) | END * (step == len(sequence.steps) - 1)
        self._send_of(sequence, number, sequence.steps[step] + flags)

    def _send_of(self, sequence: Sequence, number: int, message: int) -> None:
        streaming = self._classes[sequence.kind].plan.streaming
        flags = (message - self._classes[sequence.kind].plan.first) % 4
        sequence.last = message - flags
        sequence.open = not flags & END
        sequence.busy = True
        self._held[number] = sequence
        self._transmit(number, message, streaming, sequence.id)

    def _close(self, sequence: Sequence, now: int) -> None:
        self._send_of(sequence, self._recorder.new(now, sequence.kind), sequence.last + END)

    def _arrive_traced(self, row: int, due: int) -> None:
        plan = self._plan
        index, message, key = plan.class_of[row], plan.message_of[row], plan.sequence_of[row]
        number = self._recorder.new(due, index)
        if self._plan.request_ids:
            self._row_of[number] = row
        if not key:
            self._transmit(number, message, self._classes[index].plan.streaming, 0)
            return
        flags = plan.flags[row]
        sequence = self._traced.get(key)
        if sequence is None or flags & START:
            sequence = self._traced[key] = Sequence(index, self._fresh_id())
        if sequence.busy:
            self._recorder.held[number] = 1
            sequence.waiting.append((number, message + flags))
        else:
            self._send_of(sequence, number, message + flags)

    def _fresh_id(self) -> int:
        self._next_id = (self._next_id + 1) % ID_COUNT
        return ID_FROM + self._next_id
