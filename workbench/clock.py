"""The one place where clocks are read: time is an argument everywhere else.

All times inside are integer nanoseconds of ``CLOCK_MONOTONIC``, which every process of a machine shares, so stamps
taken in the load generator, in the server and in a model's process can be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], int]
"""Something that gives the time now, in nanoseconds."""

monotonic_ns: Clock = time.monotonic_ns


def wall_ms() -> int:
    """Milliseconds since the epoch (Triton's ``last_inference``)."""
    return time.time_ns() // 1_000_000


def utc_now_iso() -> str:
    """The time now as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def sleep(seconds: float) -> None:
    """Blocks the calling thread; never call it on an event loop."""
    time.sleep(seconds)
