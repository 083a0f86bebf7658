"""Requests that wait while the model runs leave together (server#3624)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_models as models
from asking import Asker, wait_until
from gate_backend import Gate


def test_f01_server_3624_five_at_once_are_at_most_two_executions(root: Path, make_engine: Any, over_http: Any) -> None:
    """Five clients send a single request each: the four that come while the first one runs went out as 1, 1, 2."""
    models.add(root, "slow", models.identity(ms=200))
    engine = make_engine(root)
    client, _ = over_http(engine)
    x = np.zeros((1, 4), np.float32)
    with ThreadPoolExecutor(5) as pool:
        for each in [pool.submit(client.infer, "slow", {"INPUT0": x}) for _ in range(5)]:
            each.result(10)
    rows = models.sizes(engine, "slow")
    assert sum(rows) == 5
    assert len(rows) <= 2, rows
    assert [size for size, _ in engine.snapshot().version("slow").recent_batches] == rows, "what the panel shows"


@pytest.mark.rule("1.3b", "1.3c", "1.8a")
@pytest.mark.parametrize(
    ("count", "waiting", "expected"),
    [
        (1, [1] * 4, [4]),
        (1, [2, 1, 3], [6]),
        (1, [1] * 11, [8, 3]),
        (1, [3, 3, 3, 3], [6, 6]),
        (2, [1] * 4, [4]),
        (3, [1] * 9, [8, 1]),
    ],
)
def test_f01_server_3624_whatever_waits_leaves_in_as_few_batches_as_can_be(
    root: Path, make_engine: Any, gate: Gate, count: int, waiting: Sequence[int], expected: list[int]
) -> None:
    """The same with several instances and rows: all instances are busy, what waits is cut only where it must be."""
    models.add(root, "gate", models.gate(count=count))
    engine = make_engine(root)
    asker = Asker(engine)
    first = []
    for number in range(count):
        first += asker.send([models.ask("gate", name="x")])
        wait_until(lambda wanted=number + 1: len(gate.batches) == wanted)  # type: ignore[misc]
    later = [each for rows in waiting for each in asker.send([models.ask("gate", name="x", rows=rows)])]
    assert engine.snapshot().version("gate").pending == len(waiting)
    gate.open.set()
    for each in first + later:
        assert each.wait().error is None
    assert models.sizes(engine, "gate")[:count] == [1] * count
    assert sorted(models.sizes(engine, "gate")[count:]) == sorted(expected)
    assert len(expected) == max(1, math.ceil(sum(waiting) / 8))
