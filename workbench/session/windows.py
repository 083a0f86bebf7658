"""From cumulative statistics and records to what happened lately."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.profiling.server_side import Counters, ServerSide, counters_by_model, difference

HISTOGRAM_S = 60.0
_MAX_BATCHES = 50_000
COLUMNS = (
    "requests_s",
    "throughput",
    "queue_ms",
    "compute_input_ms",
    "compute_infer_ms",
    "compute_output_ms",
    "mean_batch",
    "failed_s",
    "p50_ms",
    "p99_ms",
    "max_in_flight",
)


@dataclass(frozen=True, slots=True)
class ModelWindow:
    """One model between two polls.

    ``throughput`` is inferences (rows) per second, ``requests_s`` requests per second, the parts are mean milliseconds
    per request as perf_analyzer takes them (each by its own count), percentiles come from the records (nan without
    them). ``max_in_flight`` is the greatest number of requests that were in the server at once, -1 without records.
    """

    seconds: float
    requests: int
    failed: int
    throughput: float
    requests_s: float
    failed_s: float
    queue_ms: float
    compute_input_ms: float
    compute_infer_ms: float
    compute_output_ms: float
    mean_batch: float
    p50_ms: float
    p99_ms: float
    max_in_flight: int = -1


@dataclass(frozen=True, slots=True)
class Histogram:
    """Executed batches of the last minute: ``counts[reason][rows]``; the reason is ``unknown`` without records."""

    seconds: float
    counts: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many batches."""
        return sum(sum(by_rows.values()) for by_rows in self.counts.values())


class WindowTracker:
    """Keeps the windows of every model. Not thread-safe: its owner holds a lock."""

    def __init__(self, history_s: float) -> None:
        self._history_s = history_s
        self.last_seq = -1
        self._previous: dict[str, tuple[int, Counters]] = {}
        self._windows: dict[str, ModelWindow] = {}
        self._history: dict[str, deque[tuple[float, ...]]] = {}
        self._batches: dict[str, deque[tuple[int, str, int, int]]] = {}

    def update(self, now: int, statistics: Mapping[str, Any], columns: Any) -> None:
        """Takes in a statistics answer and the records since the last one."""
        latencies, in_flight = self._take_records(now, columns)
        totals = counters_by_model(statistics)
        for model, entry in totals.items():
            polled, before = self._previous.get(model, (now, entry))
            self._previous[model] = (now, entry)
            side = difference(before, entry)
            if side.reset:  # reloaded in between
                continue
            if polled < now:
                window = _window(now - polled, side, latencies.get(model), in_flight.get(model, -1))
                self._windows[model] = window
                rows = self._history.setdefault(model, deque())
                rows.append((float(now), *(float(getattr(window, column)) for column in COLUMNS)))
                _drop_old(rows, now - self._history_s * 1e9)
            if columns is None:
                self._keep_batches(model, ((now, "unknown", rows, count) for rows, count in side.batch_rows.items()))
        self._forget(now)
        for gone in set(self._previous) - set(totals):
            self._windows.pop(gone, None)
            del self._previous[gone]

    def windows(self) -> dict[str, ModelWindow]:
        """The latest window of each model."""
        return dict(self._windows)

    def history(self, now: int) -> dict[str, dict[str, NDArray[np.float64]]]:
        """Columns over the last minutes, ``t_s`` relative to now."""
        out = {}
        for model, rows in list(self._history.items()):
            _drop_old(rows, now - self._history_s * 1e9)
            if not rows:
                del self._history[model]  # a model that is gone
                continue
            table = np.array(rows, dtype=np.float64).reshape(-1, len(COLUMNS) + 1)
            out[model] = {
                "t_s": (table[:, 0] - now) / 1e9,
                **{name: table[:, index + 1] for index, name in enumerate(COLUMNS)},
            }
        return out

    def histograms(self) -> dict[str, Histogram]:
        """Batches of the last minute by reason and rows."""
        out = {}
        for model, entries in self._batches.items():
            counts: dict[str, dict[int, int]] = {}
            for _, reason, rows, number in entries:
                by_rows = counts.setdefault(reason, {})
                by_rows[rows] = by_rows.get(rows, 0) + number
            out[model] = Histogram(HISTOGRAM_S, counts)
        return out

    def _take_records(self, now: int, columns: Any) -> tuple[dict[str, NDArray[np.float64]], dict[str, int]]:
        latencies: dict[str, NDArray[np.float64]] = {}
        in_flight: dict[str, int] = {}
        if columns is None:
            return latencies, in_flight
        self.last_seq = max(self.last_seq, int(columns.last_seq))
        requests, batches = columns.requests, columns.batches
        names = np.asarray(requests["model"])
        # What was rejected in no time is no latency, and a warm-up is nobody's request.
        answered = (requests["status"] == "ok") & (requests["client"] != "warmup")
        for model in np.unique(names) if len(names) else ():
            mask = (names == model) & answered
            arrival, end = requests["arrival"][mask], requests["end"][mask]
            done = end > 0
            latencies[str(model)] = (end[done] - arrival[done]) / 1e6
            in_flight[str(model)] = greatest_overlap(arrival[done], end[done])
        for model, reason, rows, done_at in zip(
            batches["model"], batches["reason"], batches["rows"], batches["done"], strict=True
        ):
            self._keep_batches(str(model), [(int(done_at) or now, str(reason), int(rows), 1)])
        return latencies, in_flight

    def _keep_batches(self, model: str, batches: Iterable[tuple[int, str, int, int]]) -> None:
        self._batches.setdefault(model, deque(maxlen=_MAX_BATCHES)).extend(batches)

    def _forget(self, now: int) -> None:
        for model, entries in list(self._batches.items()):
            _drop_old(entries, now - HISTOGRAM_S * 1e9)
            if not entries:
                del self._batches[model]


def _drop_old(rows: deque[Any], before: float) -> None:
    while rows and rows[0][0] < before:
        rows.popleft()


def greatest_overlap(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> int:
    """The greatest number of intervals that are open at once."""
    if not len(starts):
        return 0
    times = np.concatenate([starts, ends])
    steps = np.concatenate([np.ones(len(starts), np.int64), -np.ones(len(ends), np.int64)])
    # At equal times an end comes before a start: a client that sends its next request on an answer is one in flight.
    order = np.lexsort((steps, times))
    return int(np.cumsum(steps[order]).max())


def _window(elapsed: int, side: ServerSide, latencies: NDArray[np.float64] | None, in_flight: int) -> ModelWindow:
    seconds = elapsed / 1e9
    p50, p99 = (float("nan"), float("nan"))
    if latencies is not None and len(latencies):
        p50, p99 = (float(value) for value in np.percentile(latencies, (50, 99)))
    return ModelWindow(
        seconds=seconds,
        requests=side.success,
        failed=side.fail,
        throughput=side.inferences / seconds,
        requests_s=side.success / seconds,
        failed_s=side.fail / seconds,
        queue_ms=side.queue_ms,
        compute_input_ms=side.compute_input_ms,
        compute_infer_ms=side.compute_infer_ms,
        compute_output_ms=side.compute_output_ms,
        mean_batch=side.mean_batch,
        p50_ms=p50,
        p99_ms=p99,
        max_in_flight=in_flight,
    )
