"""Windows: from cumulative statistics to what happened lately."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from workbench.session.windows import WindowTracker, greatest_overlap

MS = 1_000_000


def statistics(
    requests: int, rows: int, executions: int, queue_ms: float, batches: dict[int, int], failed: int = 0
) -> dict[str, Any]:
    part = {"count": requests, "ns": int(requests * queue_ms * MS)}
    return {
        "model_stats": [
            {
                "name": "m",
                "version": "1",
                "inference_count": rows,
                "execution_count": executions,
                "inference_stats": {
                    "success": part,
                    "fail": {"count": failed, "ns": 0},
                    "queue": part,
                    "compute_input": {"count": requests, "ns": requests * MS},
                    "compute_infer": {"count": requests, "ns": requests * 2 * MS},
                    "compute_output": {"count": requests, "ns": 0},
                },
                "batch_stats": [
                    {"batch_size": size, "compute_infer": {"count": count, "ns": 0}} for size, count in batches.items()
                ],
            }
        ]
    }


def columns(
    arrivals: list[int],
    ends: list[int],
    batches: list[tuple[str, int, int]],
    status: list[str] | None = None,
    client: list[str] | None = None,
) -> Any:
    return SimpleNamespace(
        last_seq=len(arrivals),
        requests={
            "model": np.array(["m"] * len(arrivals)),
            "arrival": np.array(arrivals),
            "end": np.array(ends),
            "status": np.array(status or ["ok"] * len(arrivals)),
            "client": np.array(client or ["python"] * len(arrivals)),
        },
        batches={
            "model": np.array(["m"] * len(batches)),
            "reason": np.array([reason for reason, _, _ in batches]),
            "rows": np.array([rows for _, rows, _ in batches]),
            "done": np.array([done for _, _, done in batches]),
        },
    )


def test_a_window_is_the_difference_of_two_polls() -> None:
    tracker = WindowTracker(300.0)
    tracker.update(1_000 * MS, statistics(10, 10, 10, 5.0, {1: 10}), None)
    tracker.update(3_000 * MS, statistics(30, 50, 15, 5.0, {1: 10, 8: 5}, failed=4), None)
    window = tracker.windows()["m"]
    assert window.seconds == 2.0
    assert window.requests_s == 10.0
    assert window.throughput == 20.0
    assert window.failed_s == 2.0
    assert window.mean_batch == 8.0
    assert (window.queue_ms, window.compute_infer_ms) == (5.0, 2.0)
    assert tracker.histograms()["m"].counts == {"unknown": {8: 5}}


def test_records_give_percentiles_reasons_and_requests_in_flight() -> None:
    tracker = WindowTracker(300.0)
    tracker.update(0, statistics(0, 0, 0, 0.0, {}), columns([], [], []))
    taken = columns([0, 10 * MS, 12 * MS], [20 * MS, 30 * MS, 32 * MS], [("delay", 2, 900 * MS), ("full", 8, 950 * MS)])
    tracker.update(1_000 * MS, statistics(3, 3, 2, 1.0, {}), taken)
    window = tracker.windows()["m"]
    assert window.p50_ms == 20.0
    assert window.max_in_flight == 3
    assert tracker.histograms()["m"].counts == {"delay": {2: 1}, "full": {8: 1}}


def test_rejected_requests_and_warmups_are_no_latencies() -> None:
    tracker = WindowTracker(300.0)
    tracker.update(0, statistics(0, 0, 0, 0.0, {}), columns([], [], []))
    taken = columns(
        [0, 0, 0, 0], [20 * MS, 20 * MS, 1, 900 * MS], [], ["ok", "ok", "REJECTED", "ok"], ["a", "b", "a", "warmup"]
    )
    tracker.update(1_000 * MS, statistics(3, 3, 3, 1.0, {}), taken)
    assert tracker.windows()["m"].p50_ms == 20.0
    assert tracker.windows()["m"].p99_ms == 20.0


def test_a_model_that_is_gone_leaves_windows_at_once_and_the_history_with_time() -> None:
    tracker = WindowTracker(10.0)
    tracker.update(0, statistics(0, 0, 0, 1.0, {}), None)
    tracker.update(1_000 * MS, statistics(5, 5, 5, 1.0, {}), None)
    tracker.update(2_000 * MS, {"model_stats": []}, None)
    assert tracker.windows() == {}
    assert list(tracker.history(2_000 * MS)) == ["m"]
    assert tracker.history(20_000 * MS) == {}


def test_batches_older_than_a_minute_are_forgotten() -> None:
    tracker = WindowTracker(300.0)
    tracker.update(0, statistics(0, 0, 0, 0.0, {}), columns([], [], []))
    tracker.update(1_000 * MS, statistics(1, 1, 1, 0.0, {}), columns([0], [MS], [("full", 1, 500 * MS)]))
    tracker.update(70_000 * MS, statistics(2, 2, 2, 0.0, {}), columns([0], [MS], [("delay", 2, 69_000 * MS)]))
    assert tracker.histograms()["m"].counts == {"delay": {2: 1}}


def test_a_reloaded_model_starts_anew_instead_of_giving_negative_figures() -> None:
    tracker = WindowTracker(300.0)
    tracker.update(1_000 * MS, statistics(100, 100, 100, 1.0, {1: 100}), None)
    tracker.update(2_000 * MS, statistics(5, 5, 5, 1.0, {1: 5}), None)
    assert "m" not in tracker.windows()
    tracker.update(3_000 * MS, statistics(15, 15, 15, 1.0, {1: 15}), None)
    assert tracker.windows()["m"].requests_s == 10.0


def test_history_holds_the_last_minutes_relative_to_now() -> None:
    tracker = WindowTracker(2.0)
    for second in range(6):
        tracker.update(second * 1_000 * MS, statistics(second * 10, second * 10, second, 1.0, {}), None)
    history = tracker.history(5_000 * MS)["m"]
    assert history["t_s"].tolist() == [-2.0, -1.0, 0.0]
    assert history["throughput"].tolist() == [10.0, 10.0, 10.0]


@pytest.mark.parametrize(
    ("starts", "ends", "greatest"),
    [
        pytest.param([], [], 0, id="none"),
        pytest.param([0, 10, 20], [10, 20, 30], 1, id="one client after the other"),
        pytest.param([0, 1, 2], [10, 10, 10], 3, id="together"),
        pytest.param([0, 5, 6, 20], [10, 7, 30, 21], 3, id="overlapping"),
    ],
)
def test_greatest_overlap(starts: list[int], ends: list[int], greatest: int) -> None:
    assert greatest_overlap(np.array(starts, np.int64), np.array(ends, np.int64)) == greatest
