"""What is sent: closed and open loops, and the seeded schedule of an open one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidRequest

Kind = Literal["closed", "open"]
Distribution = Literal["constant", "poisson"]


MAX_CONCURRENCY = 16384
"""Clients of a closed loop, each with a connection of its own: ports and descriptors end not far above."""

MAX_GENERATORS = 64
"""Processes that send one load."""


@dataclass(frozen=True, slots=True)
class Load:
    """One load point.

    A *closed* loop keeps ``concurrency`` requests under way: each client sends its next request when it has its answer.
    An *open* loop sends at ``rate`` requests/s whatever the server does, spaced as ``distribution`` says.

    ``warmup_s`` is sent before and not counted; and longer (up to ``max_warmup_s``, 0: ten times ``warmup_s``) until
    throughput and latency have settled. The measured window lasts ``duration_s``, and longer (up to ``max_duration_s``,
    0: twice ``duration_s``) while fewer than ``min_requests`` have been answered in it or the intervals of throughput
    and mean latency are wider than 10 %. With the defaults a point that settles takes about 3 s, so a sweep of 12
    points stays under a minute. ``batch_size`` is the number of rows
    of one request. After the window answers are awaited for up to ``drain_s``. An open loop holds at most
    ``max_in_flight`` requests; what would exceed that is counted as failed. ``streaming`` sends to the endpoint that
    gives any number of responses to a request and stamps each of them; a decoupled model is measured so anyway.
    ``generators`` processes send it together: they divide its clients or its arrivals, and their stamps are merged.

    Raises:
        InvalidRequest: a value that makes no sense.
    """

    kind: Kind = "closed"
    concurrency: int = 1
    rate: float = 0.0
    distribution: Distribution = "poisson"
    duration_s: float = 2.5
    warmup_s: float = 0.5
    batch_size: int = 1
    seed: int = 1
    min_requests: int = 100
    max_duration_s: float = 0.0
    max_warmup_s: float = 0.0
    drain_s: float = 10.0
    max_in_flight: int = 4096
    streaming: bool = False
    generators: int = 1

    def __post_init__(self) -> None:
        if self.kind not in ("closed", "open"):
            raise InvalidRequest(f"load kind must be 'closed' or 'open', got {self.kind!r}")
        if self.distribution not in ("constant", "poisson"):
            raise InvalidRequest(f"distribution must be 'constant' or 'poisson', got {self.distribution!r}")
        if self.kind == "closed" and not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise InvalidRequest(f"concurrency must be from 1 to {MAX_CONCURRENCY}, got {self.concurrency}")
        if self.kind == "open" and not self.rate > 0:
            raise InvalidRequest(f"an open loop needs a rate above 0 requests/s, got {self.rate}")
        if not self.duration_s > 0 or self.warmup_s < 0 or self.batch_size < 1 or self.drain_s < 0:
            raise InvalidRequest("duration_s and batch_size must be positive, warmup_s and drain_s not negative")
        if not 1 <= self.generators <= MAX_GENERATORS:
            raise InvalidRequest(f"generators must be from 1 to {MAX_GENERATORS}, got {self.generators}")
        if self.kind == "closed" and self.generators > self.concurrency:
            raise InvalidRequest(f"{self.generators} generators cannot divide {self.concurrency} clients")
        if self.kind == "open" and self.rate * (self.longest_warmup_s + self.longest_s) > 50_000_000:
            raise InvalidRequest("more than 50 million requests in one load point")

    @classmethod
    def closed(cls, concurrency: int, **options: Any) -> Load:
        """A closed loop of ``concurrency`` clients."""
        return cls(kind="closed", concurrency=concurrency, **options)

    @classmethod
    def open(cls, rate: float, distribution: Distribution = "poisson", **options: Any) -> Load:
        """An open loop of ``rate`` requests/s."""
        return cls(kind="open", rate=rate, distribution=distribution, **options)

    @property
    def clients(self) -> int:
        """Of a closed loop; 0 for an open one."""
        return self.concurrency if self.kind == "closed" else 0

    @property
    def longest_warmup_s(self) -> float:
        """How long the warm-up may become."""
        return max(self.warmup_s, self.max_warmup_s or 10 * self.warmup_s)

    @property
    def longest_s(self) -> float:
        """How long the measured window may become."""
        return max(self.duration_s, self.max_duration_s or 2 * self.duration_s)

    @property
    def label(self) -> str:
        """Short text for tables and axes."""
        rows = "" if self.batch_size == 1 else f" × {self.batch_size} rows"
        if self.kind == "closed":
            return f"concurrency {self.concurrency}{rows}"
        return f"{self.rate:g}/s {self.distribution}{rows}"

    def to_json(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Load:
        """Reads what ``to_json`` gave."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: item for name, item in value.items() if name in known})


def schedule(load: Load) -> NDArray[np.int64]:
    """When an open loop sends, in nanoseconds from its start: the longest warm-up and the longest window.

    The same load gives the same schedule, so all configurations of a sweep see the same arrivals: whenever the warm-up
    ends, the window's begin at ``longest_warmup_s``.
    """
    length_s = load.longest_warmup_s + load.longest_s
    if load.distribution == "constant":
        count = int(np.ceil(length_s * load.rate))
        return (np.arange(count) * (1e9 / load.rate)).astype(np.int64)
    rng = np.random.Generator(np.random.PCG64(load.seed))
    parts: list[NDArray[np.float64]] = []
    last = 0.0
    while last < length_s:
        gaps = rng.exponential(1.0 / load.rate, size=4096)
        times = last + np.cumsum(gaps)
        parts.append(times)
        last = float(times[-1])
    times = np.concatenate(parts)
    return (times[times < length_s] * 1e9).astype(np.int64)
