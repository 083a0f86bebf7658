"""What a load generator brings back: the stamps of every request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

OK = 0
"""Status of an answered request; any other status is 1 + an index into ``Samples.texts``."""

MAX_TEXTS = 64
"""How many different error texts are kept; the rest is counted under one text."""

OTHER_TEXTS = f"(another of more than {MAX_TEXTS} different errors)"


def _no_stamps() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


def _no_classes() -> NDArray[np.int32]:
    return np.empty(0, np.int32)


def _none_held() -> NDArray[np.bool_]:
    return np.empty(0, np.bool_)


@dataclass(frozen=True, slots=True)
class Samples:
    """Raw stamps, one entry a request in the order of sending; nanoseconds of CLOCK_MONOTONIC.

    ``scheduled`` is when the request should have been sent (in a closed loop: when its client became free), ``sent``
    when it was (0: never), ``done`` when its answer or error was there (0: never). ``status`` is 0 for an answer.
    ``window`` is the measured part. ``drained`` is False when answers were still missing after the wait at the end.
    Of a load that streams every response has an entry in ``response_of``, the number of its request, and in
    ``response_at``, when it came; in the order of arrival. ``class_of`` is the index of each request's class; empty
    where there is only one. ``held`` says which requests had to wait for their sequence; empty: none.
    """

    scheduled: NDArray[np.int64]
    sent: NDArray[np.int64]
    done: NDArray[np.int64]
    status: NDArray[np.int32]
    texts: Sequence[str]
    window: tuple[int, int]
    stopped: bool = False
    drained: bool = True
    cpu_s: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)
    response_of: NDArray[np.int64] = field(default_factory=_no_stamps)
    response_at: NDArray[np.int64] = field(default_factory=_no_stamps)
    class_of: NDArray[np.int32] = field(default_factory=_no_classes)
    held: NDArray[np.bool_] = field(default_factory=_none_held)

    def only(self, chosen: NDArray[np.bool_]) -> Samples:
        """Those of some requests."""
        place = np.cumsum(chosen) - 1
        kept = chosen[self.response_of]
        return replace(
            self,
            scheduled=self.scheduled[chosen],
            sent=self.sent[chosen],
            done=self.done[chosen],
            status=self.status[chosen],
            response_of=place[self.response_of[kept]],
            response_at=self.response_at[kept],
            class_of=self.class_of[chosen] if len(self.class_of) else self.class_of,
            held=self.held[chosen] if len(self.held) else self.held,
        )

    def of_class(self, index: int) -> Samples:
        """Those of one class's requests."""
        return self.only(self.class_of == index) if len(self.class_of) else self

    @property
    def seconds(self) -> float:
        """Length of the measured window."""
        return (self.window[1] - self.window[0]) / 1e9

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Which requests were answered."""
        answered: NDArray[np.bool_] = self.status == OK
        return answered

    def errors(self) -> dict[str, int]:
        """How many requests failed with which text, the most frequent first."""
        codes, counts = np.unique(self.status[self.status > OK], return_counts=True)
        pairs = [(self.texts[int(code) - 1], int(count)) for code, count in zip(codes, counts, strict=True)]
        return dict(sorted(pairs, key=lambda pair: -pair[1]))


def pack(samples: Samples) -> tuple[dict[str, Any], bytes]:
    """The form in which the generator hands samples over: a JSON head and raw columns."""
    head = {
        "n": len(samples.sent),
        "responses": len(samples.response_of),
        "classes": len(samples.class_of),
        "texts": list(samples.texts),
        "window": list(samples.window),
        "stopped": samples.stopped,
        "drained": samples.drained,
        "cpu_s": samples.cpu_s,
        "extra": samples.extra,
    }
    times = (samples.scheduled, samples.sent, samples.done, samples.response_of, samples.response_at)
    columns = (*times, samples.status, samples.class_of, samples.held)
    return head, b"".join(column.tobytes() for column in columns)


def unpack(head: dict[str, Any], blob: bytes) -> Samples:
    """Reads what ``pack`` gave."""
    n, responses = int(head["n"]), int(head["responses"])
    stamps = np.frombuffer(blob, dtype=np.int64, count=3 * n).reshape(3, n)
    streamed = np.frombuffer(blob, dtype=np.int64, offset=24 * n, count=2 * responses).reshape(2, responses)
    status = np.frombuffer(blob, dtype=np.int32, offset=24 * n + 16 * responses, count=n)
    classes, at = int(head["classes"]), 28 * n + 16 * responses
    class_of = np.frombuffer(blob, dtype=np.int32, offset=at, count=classes)
    held = np.frombuffer(blob, dtype=np.bool_, offset=at + 4 * classes)
    window = (int(head["window"][0]), int(head["window"][1]))
    return Samples(
        stamps[0], stamps[1], stamps[2], status, head["texts"], window,
        head["stopped"], head["drained"], head["cpu_s"], head.get("extra", {}), streamed[0], streamed[1], class_of,
        held,
    )  # fmt: skip
