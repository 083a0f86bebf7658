"""The server's side of a measurement: differences of Triton's statistics, as perf_analyzer defines them.

queue = Δqueue.ns / Δqueue.count, each compute part likewise by its own count, request = Δsuccess.ns / Δsuccess.count,
overhead = max(0, request - queue - rest), mean batch = Δinference_count / Δexecution_count. The rest is input + infer +
output; with a response cache it is the mean over hits and misses of what each spent on cache and compute. An ensemble's
queue, compute and rest are the sums of its steps' means (each model once, those of ensembles within it too).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_PARTS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")

Counters = dict[str, dict[str, int]]
"""Flat: ``{"success": {"count", "ns"}, ..., "execution": {...}, "batch:8": {"count", "ns"}}``."""


@dataclass(frozen=True, slots=True)
class ServerSide:
    """What the server counted between two statistics answers. Times are means in milliseconds, nan where nothing ran.

    ``spent_ms`` is the mean of what perf_analyzer takes off request and queue to get the overhead.
    ``batch_rows`` maps the size of an execution to how often it happened, ``batch_compute_ms`` to its mean infer time.
    ``reset`` says that counters went backwards: the model was reloaded in between, and the rest means nothing.
    """

    success: int = 0
    fail: int = 0
    inferences: int = 0
    executions: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    mean_batch: float = math.nan
    request_ms: float = math.nan
    queue_ms: float = math.nan
    compute_input_ms: float = math.nan
    compute_infer_ms: float = math.nan
    compute_output_ms: float = math.nan
    cache_hit_ms: float = math.nan
    cache_miss_ms: float = math.nan
    spent_ms: float = math.nan
    overhead_ms: float = math.nan
    batch_rows: Mapping[int, int] = field(default_factory=dict)
    batch_compute_ms: Mapping[int, float] = field(default_factory=dict)
    reset: bool = False


def counters(statistics: Mapping[str, Any], model: str) -> Counters:
    """The counters of a model, over all its versions."""
    return counters_by_model(statistics).get(model) or _none()


def counters_by_model(statistics: Mapping[str, Any]) -> dict[str, Counters]:
    """The counters of every model in a statistics answer, each over all its versions."""
    models: dict[str, Counters] = {}
    for entry in statistics.get("model_stats", ()):
        out = models.setdefault(entry.get("name", ""), _none())
        out["inference"]["count"] += int(entry.get("inference_count", 0))
        out["execution"]["count"] += int(entry.get("execution_count", 0))
        parts = entry.get("inference_stats") or {}
        for name in _PARTS:
            _add(out[name], parts.get(name))
        for batch in entry.get("batch_stats") or ():
            _add(out.setdefault(f"batch:{int(batch['batch_size'])}", {"count": 0, "ns": 0}), batch.get("compute_infer"))
    return models


def _none() -> Counters:
    return {name: {"count": 0, "ns": 0} for name in (*_PARTS, "inference", "execution")}


def _add(total: dict[str, int], part: Mapping[str, Any] | None) -> None:
    if part:
        total["count"] += int(part.get("count", 0))
        total["ns"] += int(part.get("ns", 0))


def difference(before: Counters, after: Counters) -> ServerSide:
    """What happened between two answers."""
    zero = {"count": 0, "ns": 0}
    delta = {
        name: {key: value.get(key, 0) - before.get(name, zero).get(key, 0) for key in ("count", "ns")}
        for name, value in after.items()
    }
    gone = any(name not in after and value.get("count", 0) for name, value in before.items())
    if gone or any(part["count"] < 0 or part["ns"] < 0 for part in delta.values()):
        return ServerSide(reset=True)
    split = {name: _mean_ms(delta[name]) for name in _PARTS}
    spent = _spent(delta)
    executions = delta["execution"]["count"]
    batches = {int(name[6:]): part for name, part in delta.items() if name.startswith("batch:") and part["count"]}
    return ServerSide(
        success=delta["success"]["count"],
        fail=delta["fail"]["count"],
        inferences=delta["inference"]["count"],
        executions=executions,
        cache_hits=delta["cache_hit"]["count"],
        cache_misses=delta["cache_miss"]["count"],
        mean_batch=delta["inference"]["count"] / executions if executions else math.nan,
        request_ms=split["success"],
        queue_ms=split["queue"],
        compute_input_ms=split["compute_input"],
        compute_infer_ms=split["compute_infer"],
        compute_output_ms=split["compute_output"],
        cache_hit_ms=split["cache_hit"],
        cache_miss_ms=split["cache_miss"],
        spent_ms=spent,
        overhead_ms=_overhead(split["success"], split["queue"] + spent),
        batch_rows={size: part["count"] for size, part in sorted(batches.items())},
        batch_compute_ms={size: _mean_ms(part) for size, part in sorted(batches.items())},
    )


def of_steps(whole: ServerSide, steps: Sequence[ServerSide]) -> ServerSide:
    """An ensemble's split: its own counts and request time, the times of the models that it is made of."""
    if whole.reset or not steps:
        return whole
    if any(step.reset for step in steps):
        return ServerSide(reset=True)
    times: dict[str, Any] = {name: _sum(getattr(step, name) for step in steps) for name in _OF_STEPS}
    return replace(whole, **times, overhead_ms=_overhead(whole.request_ms, times["queue_ms"] + times["spent_ms"]))


_OF_STEPS = (
    "queue_ms", "compute_input_ms", "compute_infer_ms", "compute_output_ms", "cache_hit_ms", "cache_miss_ms",
    "spent_ms",
)  # fmt: skip


def _sum(values: Iterable[float]) -> float:
    """Of what is known; nan when nothing is."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) if known else math.nan


def _spent(delta: Mapping[str, Mapping[str, int]]) -> float:
    """Cache and compute, averaged over executions and cache hits."""
    parts = ("compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    count = delta["compute_input"]["count"] + delta["cache_hit"]["count"]
    return sum(delta[name]["ns"] for name in parts) / count / 1e6 if count else math.nan


def _overhead(request: float, known: float) -> float:
    rest = request - known
    return rest if math.isnan(rest) else max(0.0, rest)


def _mean_ms(part: Mapping[str, int]) -> float:
    return part["ns"] / part["count"] / 1e6 if part["count"] else math.nan
