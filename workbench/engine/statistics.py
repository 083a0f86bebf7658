"""Inference statistics to the letter of Triton's (infer_stats.cc): per request, per execution, failures by reason.

All durations are nanoseconds. Each request of a batch adds the whole batch's compute durations, as in Triton.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from workbench.clock import wall_ms
from workbench.engine.response_statistics import ResponseStatistics
from workbench.errors import FailureReason

REASONS: tuple[FailureReason, ...] = ("REJECTED", "CANCELED", "BACKEND", "OTHER")


class ModelStatistics:
    """The counters of one model version. Thread-safe, but for ``responses``, which the loop alone writes.

    They live as long as the version does: a reload starts new ones, an edit in place does not.
    """

    __slots__ = (
        "_counting",
        "batches",
        "compute_infer_ns",
        "compute_input_ns",
        "compute_output_ns",
        "execution_count",
        "fail_count",
        "fail_ns",
        "failures",
        "inference_count",
        "last_inference_ms",
        "queue_ns",
        "reasons",
        "recent",
        "responses",
        "success_count",
        "success_ns",
    )

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self.success_count = self.success_ns = 0
        self.fail_count = self.fail_ns = 0
        self.queue_ns = 0
        self.compute_input_ns = self.compute_infer_ns = self.compute_output_ns = 0
        self.inference_count = self.execution_count = 0
        self.last_inference_ms = 0
        self.failures: dict[FailureReason, int] = dict.fromkeys(REASONS, 0)
        # batch size -> [count, input ns, infer ns, output ns]
        self.batches: dict[int, list[int]] = {}
        self.responses = ResponseStatistics()
        self.recent: deque[tuple[int, str]] = deque(maxlen=64)
        self.reasons: dict[str, int] = {}

    def left(self, rows: int, reason: str) -> None:
        """A batch has left the queue, for a reason of ``scheduling.interface``; also one that failed then."""
        with self._counting:
            self.recent.append((rows, reason))
            self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def success(self, rows: int, total_ns: int, queue_ns: int, durations: tuple[int, int, int]) -> None:
        """A request that succeeded; ``durations`` are input, infer and output of the batch it was in."""
        input_ns, infer_ns, output_ns = durations
        with self._counting:
            self.success_count += 1
            self.success_ns += total_ns
            self.queue_ns += queue_ns
            self.compute_input_ns += input_ns
            self.compute_infer_ns += infer_ns
            self.compute_output_ns += output_ns
            self.inference_count += rows

    def failure(self, reason: FailureReason, total_ns: int) -> None:
        """A request that failed after it was accepted."""
        with self._counting:
            self.fail_count += 1
            self.fail_ns += total_ns
            self.failures[reason] += 1

    def execution(self, rows: int, durations: tuple[int, int, int]) -> None:
        """A batch that was executed and did not fail as a whole."""
        input_ns, infer_ns, output_ns = durations
        with self._counting:
            self.execution_count += 1
            self.last_inference_ms = wall_ms()
            row = self.batches.get(rows)
            if row is None:
                row = self.batches[rows] = [0, 0, 0, 0]
            row[0] += 1
            row[1] += input_ns
            row[2] += infer_ns
            row[3] += output_ns

    def to_json(self, name: str, version: int) -> dict[str, Any]:
        """Triton's ``model_stats`` entry (11.8)."""
        with self._counting:
            return self._to_json(name, version)

    def _to_json(self, name: str, version: int) -> dict[str, Any]:
        success, fail = self.success_count, self.fail_count
        return {
            "name": name,
            "version": str(version),
            "last_inference": self.last_inference_ms,
            "inference_count": self.inference_count,
            "execution_count": self.execution_count,
            "inference_stats": {
                "success": _pair(success, self.success_ns),
                "fail": _pair(fail, self.fail_ns),
                "queue": _pair(success, self.queue_ns),
                "compute_input": _pair(success, self.compute_input_ns),
                "compute_infer": _pair(success, self.compute_infer_ns),
                "compute_output": _pair(success, self.compute_output_ns),
                "cache_hit": _pair(0, 0),
                "cache_miss": _pair(0, 0),
            },
            "response_stats": self.responses.to_json(),
            "batch_stats": [
                {
                    "batch_size": size,
                    "compute_input": _pair(count, input_ns),
                    "compute_infer": _pair(count, infer_ns),
                    "compute_output": _pair(count, output_ns),
                }
                for size, (count, input_ns, infer_ns, output_ns) in sorted(self.batches.items())
            ],
            "memory_usage": [],
        }


def _pair(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}
