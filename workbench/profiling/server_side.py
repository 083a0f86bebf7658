"""The server's side of a measurement: differences of Triton's statistics, as perf_analyzer defines them.

queue = Δqueue.ns / Δqueue.count, each compute part likewise by its own count, request = Δsuccess.ns / Δsuccess.count,
overhead = max(0, request - queue - (input + infer + output)), mean batch = Δinference_count / Δexecution_count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_PARTS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")

Counters = dict[str, dict[str, int]]
"""Flat: ``{"success": {"count", "ns"}, ..., "execution": {...}, "batch:8": {"count", "ns"}}``."""


@dataclass(frozen=True, slots=True)
class ServerSide:
    """What the server counted between two statistics answers. Times are means in milliseconds, nan where nothing ran.

    ``batch_rows`` maps the size of an execution to how often it happened, ``batch_compute_ms`` to its mean infer time.
    ``reset`` says that counters went backwards: the model was reloaded in between, and the rest means nothing.
    """

    success: int = 0
    fail: int = 0
    inferences: int = 0
    executions: int = 0
    cache_hits: int = 0
    mean_batch: float = math.nan
    request_ms: float = math.nan
    queue_ms: float = math.nan
    compute_input_ms: float = math.nan
    compute_infer_ms: float = math.nan
    compute_output_ms: float = math.nan
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
    compute = split["compute_input"] + split["compute_infer"] + split["compute_output"]
    executions = delta["execution"]["count"]
    batches = {int(name[6:]): part for name, part in delta.items() if name.startswith("batch:") and part["count"]}
    return ServerSide(
        success=delta["success"]["count"],
        fail=delta["fail"]["count"],
        inferences=delta["inference"]["count"],
        executions=executions,
        cache_hits=delta["cache_hit"]["count"],
        mean_batch=delta["inference"]["count"] / executions if executions else math.nan,
        request_ms=split["success"],
        queue_ms=split["queue"],
        compute_input_ms=split["compute_input"],
        compute_infer_ms=split["compute_infer"],
        compute_output_ms=split["compute_output"],
        overhead_ms=_overhead(split["success"], split["queue"] + compute),
        batch_rows={size: part["count"] for size, part in sorted(batches.items())},
        batch_compute_ms={size: _mean_ms(part) for size, part in sorted(batches.items())},
    )


def _overhead(request: float, known: float) -> float:
    rest = request - known
    return rest if math.isnan(rest) else max(0.0, rest)


def _mean_ms(part: Mapping[str, int]) -> float:
    return part["ns"] / part["count"] / 1e6 if part["count"] else math.nan
