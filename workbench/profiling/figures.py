"""The figures that a point and each of its classes have, and how they come from evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from workbench.profiling.client_side import ClientSide
from workbench.profiling.cpu import CpuReading, cpus_between
from workbench.profiling.intervals import Estimate, nearest_rank, quantile_of
from workbench.profiling.samples import Samples
from workbench.profiling.server_side import ServerSide
from workbench.profiling.stream_side import StreamSide
from workbench.records import RecordColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a point says of its requests, and of those of each class.

    Latencies are milliseconds: ``p50_ms`` and so on from the *scheduled* time (late sends, stalls show),
    ``sent_p50_ms`` from the send. ``throughput`` is inferences (rows) per second that ended in the window. ``_low`` and
    ``_high`` are the ends of 95 % intervals, nan where there are too few requests for one.
    """

    n: int = 0
    """Requests behind the latencies."""
    sent: int = 0
    failed: int = 0
    """Requests of the window that failed or were never answered."""
    errors: Mapping[str, int] = field(default_factory=dict)
    throughput: float = math.nan
    throughput_low: float = math.nan
    throughput_high: float = math.nan
    mean_ms: float = math.nan
    mean_low: float = math.nan
    mean_high: float = math.nan
    p50_ms: float = math.nan
    p50_low: float = math.nan
    p50_high: float = math.nan
    p90_ms: float = math.nan
    p90_low: float = math.nan
    p90_high: float = math.nan
    p95_ms: float = math.nan
    p95_low: float = math.nan
    p95_high: float = math.nan
    p99_ms: float = math.nan
    p99_low: float = math.nan
    p99_high: float = math.nan
    p99_worth: float = math.nan
    """How many independent requests the n are worth for p99: those of one batch, or of one queue, are alike."""
    p99_claimable_ms: float = math.nan
    """The lowest goal that p99 is shown to hold (MLPerf's early-stopping rule, 99 %); nan with too few requests."""
    max_ms: float = math.nan
    sent_p50_ms: float = math.nan
    sent_p90_ms: float = math.nan
    sent_p95_ms: float = math.nan
    sent_p99_ms: float = math.nan
    lag_p50_ms: float = math.nan
    """How much later than scheduled the generator sent."""
    lag_p99_ms: float = math.nan

    # Of a load that streams. A time to the first response runs from the scheduled time; n counts the requests that got
    # one, and of the times between responses the pairs.
    first_response_n: int = 0
    first_response_p50_ms: float = math.nan
    first_response_p50_low: float = math.nan
    first_response_p50_high: float = math.nan
    first_response_p90_ms: float = math.nan
    first_response_p99_ms: float = math.nan
    first_response_p99_low: float = math.nan
    first_response_p99_high: float = math.nan
    between_responses_n: int = 0
    between_responses_p50_ms: float = math.nan
    between_responses_p50_low: float = math.nan
    between_responses_p50_high: float = math.nan
    between_responses_p90_ms: float = math.nan
    between_responses_p99_ms: float = math.nan
    between_responses_p99_low: float = math.nan
    between_responses_p99_high: float = math.nan
    responses_per_request: float = math.nan
    responses_per_s: float = math.nan
    """Responses that came in the window, a second: output tokens/s of a model that sends one token a response."""


def given_fields(kind: type[Any], value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass out of JSON: what it does not know is left out, None of a number becomes nan."""
    known = {item.name: item.type for item in fields(kind)}
    given = {name: item for name, item in value.items() if name in known}
    return {name: math.nan if item is None and known[name] == "float" else item for name, item in given.items()}


def client_fields(client: ClientSide, samples: Samples) -> dict[str, Any]:
    """Latencies, throughput, failures, lag."""
    latency = client.latency_ms
    return {
        "n": client.n,
        "sent": int((samples.sent > 0).sum()),
        "failed": client.failed,
        "errors": samples.errors(),
        "throughput": client.throughput.value,
        "throughput_low": client.throughput.low,
        "throughput_high": client.throughput.high,
        **_interval("mean", client.mean),
        **_interval("p50", client.p50),
        **_interval("p90", client.p90),
        **_interval("p95", client.p95),
        **_interval("p99", client.p99),
        "p99_worth": client.p99_worth,
        "p99_claimable_ms": client.p99_claimable_ms,
        "max_ms": float(latency[-1]) if len(latency) else math.nan,
        "sent_p50_ms": client.sent_at(0.5),
        "sent_p90_ms": client.sent_at(0.9),
        "sent_p95_ms": client.sent_at(0.95),
        "sent_p99_ms": client.sent_at(0.99),
        "lag_p50_ms": client.lag_at(0.5),
        "lag_p99_ms": client.lag_at(0.99),
        "littles_law": client.littles_law,
    }


def stream_fields(side: StreamSide) -> dict[str, Any]:
    """Times to the first response and between responses, how many and how fast."""
    fields: dict[str, Any] = {"responses_per_request": side.per_request, "responses_per_s": side.per_second}
    for name, times in (("first_response", side.first_ms), ("between_responses", side.between_ms)):
        fields[f"{name}_n"] = len(times)
        ordered = np.sort(times)
        fields[f"{name}_p90_ms"] = nearest_rank(ordered, 0.9)
        for part, q in (("p50", 0.5), ("p99", 0.99)):
            fields |= _interval(f"{name}_{part}", quantile_of(times, ordered, q))
    return fields


def _interval(name: str, estimate: Estimate) -> dict[str, float]:
    return {f"{name}_ms": estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def server_fields(side: ServerSide | None) -> dict[str, Any]:
    """The server's split and batch sizes; nothing where it counts nothing, or was reset."""
    if side is None or side.reset:
        return {}
    names = (
        "mean_batch", "request_ms", "queue_ms", "compute_input_ms", "compute_infer_ms", "compute_output_ms",
        "overhead_ms", "cache_hits", "cache_misses", "cache_hit_ms", "cache_miss_ms",
    )  # fmt: skip
    fields: dict[str, Any] = {name: getattr(side, name) for name in names}
    return fields | {"batch_rows": side.batch_rows, "batch_compute_ms": side.batch_compute_ms}


def cpu_fields(readings: Sequence[CpuReading], samples: Samples) -> dict[str, Any]:
    """Who used the processors between two readings; nothing without both."""
    if len(readings) != 2:
        return {}
    machine, server, stolen = cpus_between(*readings)
    generator = samples.cpu_s / samples.seconds if samples.seconds > 0 else math.nan
    known = generator + (0.0 if math.isnan(server) else server)
    other = max(0.0, machine - known)
    # Where a guest's processes are charged for what is stolen from them, a part of it is in theirs.
    return {"generator_cpu": generator, "server_cpu": server, "other_cpu": other, "stolen_cpu": min(stolen, other)}


def batch_reasons(records: RecordColumns | None, model: str, window: tuple[int, int]) -> dict[str, dict[int, int]]:
    """Executions of the window by reason and rows."""
    if records is None:
        return {}
    batches = records.batches
    chosen = (batches["model"] == model) & (batches["done"] >= window[0]) & (batches["done"] < window[1])
    out: dict[str, dict[int, int]] = {}
    for reason, rows in zip(batches["reason"][chosen], batches["rows"][chosen].tolist(), strict=True):
        sizes = out.setdefault(str(reason), {})
        sizes[rows] = sizes.get(rows, 0) + 1
    return {reason: dict(sorted(sizes.items())) for reason, sizes in sorted(out.items())}
