from __future__ import annotations

import math

from workbench.profiling.server_side import Counters, counters, difference, of_steps


def statistics(success: int, queue_ns: int, infer_ns: int, executions: int, hits: int = 0) -> dict[str, object]:
    computed = success - hits
    parts = {
        "success": {"count": success, "ns": queue_ns + infer_ns + computed * 3_000_000},
        "fail": {"count": 0, "ns": 0},
        "queue": {"count": success, "ns": queue_ns},
        "compute_input": {"count": computed, "ns": computed * 1_000_000},
        "compute_infer": {"count": computed, "ns": infer_ns},
        "compute_output": {"count": computed, "ns": computed * 500_000},
        "cache_hit": {"count": hits, "ns": 0},
        "cache_miss": {"count": 0, "ns": 0},
    }
    batch = {"batch_size": 2, "compute_infer": {"count": executions, "ns": executions * 4_000_000}}
    version = {"name": "m", "version": "1", "inference_count": computed, "execution_count": executions}
    other = {"name": "other", "version": "1", "inference_count": 1, "execution_count": 1, "inference_stats": parts}
    return {"model_stats": [version | {"inference_stats": parts, "batch_stats": [batch]}, other]}


def test_the_split_is_perf_analyzers() -> None:
    before = counters(statistics(100, 200_000_000, 500_000_000, 50), "m")
    after = counters(statistics(300, 800_000_000, 1_500_000_000, 150), "m")
    side = difference(before, after)
    assert side.success == 200
    assert side.mean_batch == 2.0
    assert side.queue_ms == 3.0
    assert side.compute_input_ms == 1.0
    assert side.compute_infer_ms == 5.0
    assert side.compute_output_ms == 0.5
    assert side.request_ms == 11.0
    assert side.overhead_ms == 11 - 3 - 6.5
    assert side.batch_rows == {2: 100}
    assert side.batch_compute_ms == {2: 4.0}


def test_cache_hits_count_for_the_queue_but_not_for_compute() -> None:
    before = counters(statistics(0, 0, 0, 0), "m")
    after = counters(statistics(100, 100_000_000, 400_000_000, 40, hits=20), "m")
    side = difference(before, after)
    assert side.queue_ms == 1.0
    assert side.compute_infer_ms == 5.0
    assert side.cache_hits == 20


def test_nothing_in_between_is_nan_and_going_backwards_is_a_reset() -> None:
    now = counters(statistics(100, 1, 1, 50), "m")
    side = difference(now, now)
    assert math.isnan(side.queue_ms)
    assert math.isnan(side.mean_batch)
    assert math.isnan(side.overhead_ms)
    assert difference(now, counters(statistics(10, 1, 1, 5), "m")).reset
    assert difference(now, counters({"model_stats": []}, "m")).reset


def stretch(request_ms: float, times: dict[str, float], count: int = 10, hits: int = 0, miss_ms: float = 0) -> Counters:
    """Counters of requests of which some were found in the cache; the times are means."""
    executed = count - hits
    parts = {"success": (count, request_ms), "queue": (executed, times["queue"])}
    parts |= {name: (executed, times[name]) for name in ("compute_input", "compute_infer", "compute_output")}
    parts |= {"cache_hit": (hits, 0.5), "cache_miss": (executed if miss_ms else 0, miss_ms)}
    inside = {name: {"count": n, "ns": int(n * ms * 1e6)} for name, (n, ms) in parts.items()}
    entry = {"name": "m", "inference_count": executed, "execution_count": executed, "inference_stats": inside}
    return counters({"model_stats": [entry]}, "m")


TIMES = {"queue": 2.0, "compute_input": 1.0, "compute_infer": 5.0, "compute_output": 1.0}
NOTHING = counters({"model_stats": []}, "m")


def test_overhead_with_a_cache_is_what_neither_queue_nor_cache_nor_compute_took() -> None:
    # Of ten requests four were found (0.5 ms each), six were not (1 ms to look and insert, 7 ms to compute).
    side = difference(NOTHING, stretch(10.0, TIMES, hits=4, miss_ms=1.0))
    assert (side.cache_hits, side.cache_misses) == (4, 6)
    assert (side.cache_hit_ms, side.cache_miss_ms) == (0.5, 1.0)
    assert side.spent_ms == (4 * 0.5 + 6 * 8.0) / 10
    assert side.overhead_ms == 10.0 - 2.0 - side.spent_ms
    only = difference(NOTHING, stretch(0.75, TIMES, hits=10))
    assert only.overhead_ms != only.overhead_ms  # nothing was queued: perf_analyzer has no average of it either
    assert only.spent_ms == 0.5


def test_an_ensemble_has_the_times_of_its_steps() -> None:
    whole = difference(NOTHING, stretch(30.0, dict.fromkeys(TIMES, 0.0)))
    step = difference(NOTHING, stretch(10.0, TIMES))
    side = of_steps(whole, [step, step])
    assert side.success == 10
    assert (side.request_ms, side.queue_ms, side.compute_infer_ms) == (30.0, 4.0, 10.0)
    assert side.overhead_ms == 30.0 - 2 * 9.0
    idle = difference(NOTHING, NOTHING)
    assert of_steps(whole, [step, idle]).queue_ms == 2.0
    assert of_steps(whole, [step, difference(stretch(10.0, TIMES), NOTHING)]).reset
    assert of_steps(step, []) == step
