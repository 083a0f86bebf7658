"""Points made by hand: what a sweep could have measured."""

from __future__ import annotations

from typing import Any

from workbench.profiling import Load, Point


def point(
    throughput: float,
    p99_ms: float,
    *,
    settings: dict[str, Any] | None = None,
    batching: int = 0,
    spread: float = 0.03,
    **more: Any,
) -> Point:
    """A valid point; ``batching`` is max_batch_size with a dynamic batcher, 0 is none."""
    config: dict[str, Any] = {"max_batch_size": batching or 1}
    if batching:
        config["dynamic_batching"] = {}
    values: dict[str, Any] = {
        "model": "m",
        "load": Load.closed(32),
        "settings": settings or {},
        "config": config,
        "n": 500,
        "throughput": throughput,
        "throughput_low": throughput * (1 - spread),
        "throughput_high": throughput * (1 + spread),
        "p50_ms": p99_ms / 2,
        "p99_ms": p99_ms,
        "mean_batch": 0.9 * batching if batching else 1.0,
        "valid": True,
        "stable": True,
    }
    return Point(**{**values, **more})
