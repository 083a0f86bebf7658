"""Requests that are too large to be kept cost nothing: they are not copied first."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.engine.captured import LIMIT_BYTES, SLOWEST, CapturedRequests
from workbench.protocol.tensors import InferenceRequest, Tensor


@pytest.mark.parametrize("status", ["ok", "BACKEND"])
def test_what_is_too_large_to_be_kept_is_not_copied(status: str) -> None:
    kept = CapturedRequests()
    large = np.broadcast_to(np.float32(1), (1 << 46,))  # no machine has the memory for a copy
    assert large.nbytes > LIMIT_BYTES
    kept.offer(InferenceRequest("m", [Tensor.from_numpy("x", large)]), 1, 0, 0, 10**9, status)
    assert kept.rows() == []


def test_what_is_too_large_takes_no_place_among_the_slowest() -> None:
    kept = CapturedRequests(limit=1 << 16)
    large = InferenceRequest("m", [Tensor.from_numpy("x", np.ones(1 << 14, np.float32))])
    small = InferenceRequest("m", [Tensor.from_numpy("x", np.ones(16, np.float32))])
    for seq in range(2 * SLOWEST):
        kept.offer(large if seq % 2 else small, 1, 0, seq, 1000 + 100 * (seq % 2) + seq, "ok")
    assert [row.seq for row in kept.rows()] == list(range(0, 2 * SLOWEST, 2))
