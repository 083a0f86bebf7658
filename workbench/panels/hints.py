"""Is batching working, and if not, why: sentences from what was measured, with the knob to turn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Observed:
    """What the sentences are made from.

    ``counts[(rows, reason)]`` are executed batches; ``max_in_flight`` is -1 where it is not known; ``config`` is the
    completed configuration as Triton's JSON.
    """

    counts: Mapping[tuple[int, str], int]
    queue_ms: float
    compute_ms: float
    failed_s: float
    max_in_flight: int
    config: Mapping[str, Any]

    @property
    def batches(self) -> int:
        """How many batches were executed."""
        return sum(self.counts.values())

    def number(self, reason: str) -> int:
        """How many batches were formed for a reason."""
        return sum(count for (_, each), count in self.counts.items() if each == reason)

    def share(self, reason: str) -> float:
        """The share of batches that were formed for a reason, 0 to 1."""
        return self.number(reason) / self.batches if self.batches else 0.0

    @property
    def mean_rows(self) -> float:
        """Mean rows of a batch."""
        rows = sum(size * count for (size, _), count in self.counts.items())
        return rows / self.batches if self.batches else float("nan")

    @property
    def crowded(self) -> bool:
        """Whether requests wait for an instance: longer than for compute, and than the queue delay asks them to."""
        batching = self.config.get("dynamic_batching") or {}
        delay_ms = int(batching.get("max_queue_delay_microseconds") or 0) / 1000
        return self.compute_ms > 0 and self.queue_ms > 2 * max(self.compute_ms, delay_ms)


def hints(seen: Observed) -> list[str]:
    """The sentences, the most telling first; one that says so where there is no traffic."""
    if not seen.batches:
        return ["No batch was executed in the last minute: send requests to see where their time goes."]
    found = [*_batching(seen), *_waiting(seen)]
    if seen.failed_s > 0:
        found.insert(0, f"{seen.failed_s:,.1f} requests/s fail: the overview shows the reason.")
    return found or [f"Batches of the last minute have {seen.mean_rows:.2f} rows on average; nothing stands out."]


def _batching(seen: Observed) -> list[str]:
    limit = int(seen.config.get("max_batch_size") or 0)
    dynamic = seen.config.get("dynamic_batching")
    if limit == 0:
        return ["max_batch_size is 0: the model takes one request at a time and Triton will not batch for it."]
    if "sequence_batching" in seen.config or "ensemble_scheduling" in seen.config:
        return []
    if seen.max_in_flight == 1:
        return [
            "The greatest number of requests in flight is 1: batching cannot happen, whatever the configuration. "
            "Send requests at the same time."
        ]
    if dynamic is None:
        crowd = f" though up to {seen.max_in_flight} were in flight" if seen.max_in_flight > 1 else ""
        return [f"dynamic_batching is not set: requests run one by one{crowd}. Turn it on to let them share a batch."]
    if limit == 1:
        return ["max_batch_size is 1: dynamic_batching has nothing to put together. Raise max_batch_size."]
    return _reasons(seen, limit, dynamic)


def _reasons(seen: Observed, limit: int, dynamic: Mapping[str, Any]) -> list[str]:
    delay = int(dynamic.get("max_queue_delay_microseconds") or 0)
    found = []
    # Batches of before the last edit are among them: full only counts at the size that is in force.
    full = seen.counts.get((limit, "full"), 0) / seen.batches
    if full > 0.5:
        found.append(
            f"{full:.0%} of the batches are full ({limit} rows): max_batch_size holds throughput back, "
            "if the model is faster with more rows."
        )
    if seen.share("delay") > 0.5 and not seen.crowded:
        found.append(
            f"{seen.share('delay'):.0%} of the batches left because max_queue_delay_microseconds ({delay:,}) was over, "
            f"with {seen.mean_rows:.2f} rows on average: the load brings no more rows in that time."
        )
    if seen.mean_rows < 1.2 and delay == 0 and seen.max_in_flight != 1:
        found.append(
            f"Batches have {seen.mean_rows:.2f} rows and no queue delay is set: an instance was free when most "
            "requests came. A delay would make batches larger and requests slower: it pays only where instances are "
            "busy."
        )
    for reason, text in (
        (
            "shapes",
            "shapes differ. allow_ragged_batch lifts that, where the model can take such batches",
        ),
        ("inputs", "inputs differ. Requests share a batch that give the same optional inputs"),
    ):
        if seen.share(reason) > 0.1:
            number = seen.number(reason)
            found.append(f"{number:,} request{'s' * (number != 1)} could not join: {text}.")
    return found


def _waiting(seen: Observed) -> list[str]:
    if seen.crowded and math.isfinite(seen.queue_ms):
        return [
            f"Requests wait {seen.queue_ms:,.2f} ms for {seen.compute_ms:,.2f} ms of compute: instances are the "
            "bottleneck. Larger batches, another instance, or less load."
        ]
    return []
