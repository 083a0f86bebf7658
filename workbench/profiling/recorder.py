"""The book that a running load keeps: what was scheduled, sent and answered."""

from __future__ import annotations

import re
from array import array

import numpy as np
from numpy.typing import NDArray

from workbench.clock import Clock
from workbench.profiling.samples import MAX_TEXTS, OK, OTHER_TEXTS, Samples
from workbench.profiling.stability import known_well, warm

PENDING = -1

GONE_NS = 3_000_000_000
"""A load is broken off after so long without its server, or model: one that is started again at once may come back."""

_GIVE_UP_NS = 1_500_000_000
"""So long a load goes on of which nothing is ever answered but errors."""

_NOT_THERE = re.compile(r"Request for unknown model|is not at ready state|stopped accepting new inference requests")
"""How Triton refuses requests to a model that is not loaded, or is being unloaded."""


class Unavailable:
    """Since when every request has failed because the model is not there: it was unloaded, say."""

    def __init__(self) -> None:
        self.text = ""
        self.since = self._last = 0

    def hear(self, error: str | None, now: int) -> None:
        """A request has its answer, or its error."""
        if error is None or not _NOT_THERE.search(error):
            self.since = 0
            return
        self.text, self._last = error, now
        self.since = self.since or now

    @property
    def for_good(self) -> bool:
        """Whether that has lasted so long that nothing else is to be expected."""
        return bool(self.since) and self._last - self.since >= GONE_NS


class Recorder:
    """Stamps of every request of a run. Used by one thread."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.scheduled = array("q")
        self.sent = array("q")
        self.done = array("q")
        self.status = array("i")
        self.class_of = array("i")
        self.held = array("b")
        """1 for a request that its sequence kept waiting: that it is sent late is no fault of the generator's."""
        self.response_of = array("q")
        self.response_at = array("q")
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}
        self.in_flight = 0
        self.answered = 0
        self.failed = 0
        self._unavailable = Unavailable()
        self._told = 0

    def new(self, scheduled: int, kind: int = 0) -> int:
        """A request begins, of the class with that index; gives its number."""
        self.scheduled.append(scheduled)
        self.sent.append(0)
        self.done.append(0)
        self.status.append(PENDING)
        self.class_of.append(kind)
        self.held.append(0)
        self.in_flight += 1
        return len(self.sent) - 1

    def count_before(self, begin: int) -> None:
        """What was due from ``begin`` until now is taken for due right before it: a window that began then, of which
        this is heard late, has arrivals of its own for that time."""
        number = len(self.scheduled) - 1
        while number >= 0 and self.scheduled[number] >= begin:
            self.scheduled[number] = begin - 1
            number -= 1

    def respond(self, number: int, when: int) -> None:
        """One of the responses of a stream has come; those of a request that is over already are not counted."""
        if self.status[number] == PENDING:
            self.response_of.append(number)
            self.response_at.append(when)

    def finish(self, number: int, error: str | None) -> bool:
        """A request has its answer, or its error; False if it had one already."""
        if self.status[number] != PENDING:
            return False
        self.done[number] = self.clock()
        self.in_flight -= 1
        if error is None:
            self.status[number] = OK
            self.answered += 1
        else:
            self.status[number] = self._code(error)
            self.failed += 1
        self._unavailable.hear(error, self.done[number])
        return True

    def give_up(self, text: str) -> int:
        """Every request without an answer fails with ``text``; gives how many."""
        missing = [number for number, status in enumerate(self.status) if status == PENDING]
        for number in missing:
            self.finish(number, text)
            self.done[number] = 0
        return len(missing)

    def broken_off(self, began: int) -> str:
        """Why a load that began then is to end now, for its model is not there any more; empty where it is to go on."""
        gone = self._unavailable
        return self.loss("model", gone.text, gone.since - began) if gone.for_good else ""

    def hopeless(self, began: int) -> bool:
        """Whether nothing has ever been answered but errors, in a load that began then."""
        return self.answered == 0 and self.failed >= 10 and self.clock() - began > _GIVE_UP_NS

    def loss(self, of: str, why: str, after_ns: int) -> str:
        """In words that a load was broken off."""
        answered = f"{self.answered} requests had been answered until then"
        return f"{why}; the {of} was lost {after_ns / 1e9:.1f} s after the load began, {answered}"

    def warm(self, begin: int) -> bool:
        """Whether a warm-up that began at ``begin`` has settled by now."""
        return warm(*self._answers(), begin, self.clock())

    def known_well(self, begin: int, end: int, clients: int) -> bool:
        """Whether a window's figures would be known well enough if it ended at ``end``; see ``stability``."""
        return known_well(*self._answers(), begin, end, clients)

    def answers_between(self, begin: int, end: int) -> bytes:
        """The requests answered from ``begin`` to before ``end``: when scheduled, and behind that when done, int64.

        For one span after the other: ``begin`` is the ``end`` of the call before. Those that were over by then are not
        looked at again, as nothing is sent meanwhile.
        """
        first = self._told
        status, done = np.array(self.status[first:], dtype=np.int32), np.array(self.done[first:], dtype=np.int64)
        scheduled = np.array(self.scheduled[first:], dtype=np.int64)
        chosen = (status == OK) & (done >= begin) & (done < end)
        under_way = np.flatnonzero((status == PENDING) | (done >= end))
        self._told = first + (int(under_way[0]) if len(under_way) else len(status))
        return bytes(scheduled[chosen].tobytes() + done[chosen].tobytes())

    def _answers(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """When requests were answered, and after how many ms."""
        ok = np.array(self.status, dtype=np.int32) == OK
        done, scheduled = np.array(self.done, dtype=np.int64)[ok], np.array(self.scheduled, dtype=np.int64)[ok]
        return done, (done - scheduled) / 1e6

    def _code(self, text: str) -> int:
        text = text[:500]
        code = self._codes.get(text)
        if code is None:
            if len(self.texts) >= MAX_TEXTS:
                text = OTHER_TEXTS
                if text in self._codes:
                    return self._codes[text]
            self.texts.append(text)
            code = self._codes[text] = len(self.texts)
        return code

    def samples(self, window: tuple[int, int], *, stopped: bool, drained: bool, cpu_s: float) -> Samples:
        """Everything so far."""
        return Samples(
            np.array(self.scheduled, dtype=np.int64),
            np.array(self.sent, dtype=np.int64),
            np.array(self.done, dtype=np.int64),
            np.array(self.status, dtype=np.int32),
            list(self.texts),
            window,
            stopped,
            drained,
            cpu_s,
            response_of=np.array(self.response_of, dtype=np.int64),
            response_at=np.array(self.response_at, dtype=np.int64),
            class_of=np.array(self.class_of, dtype=np.int32),
            held=np.array(self.held, dtype=np.bool_),
        )
