"""Queue timeouts and queue sizes mean what they say (server#7512, #5783, #6796)."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_models as models
from asking import Asked, Asker, wait_until
from gate_backend import Gate

from workbench.clock import monotonic_ns
from workbench.errors import WorkbenchError
from workbench.session.server import Server

ROW = np.zeros((1, 4), np.float32)
TIMEOUT = "dynamic_batching { default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 200000 } }"
SERIES = "nv_inference_request_failure"


def timed(client: Server, model: str = "slow", name: str = "INPUT0") -> tuple[float, WorkbenchError | None]:
    """Asks over HTTP: after how many seconds there was an answer, and its error."""
    begun = monotonic_ns()
    error = None
    try:
        client.infer(model, {name: ROW})
    except WorkbenchError as raised:
        error = raised
    return (monotonic_ns() - begun) / 1e9, error


@pytest.mark.rule("1.9d", "2.5a", "2.5b")
def test_f03_server_7512_a_timeout_is_answered_while_the_instance_is_busy(
    root: Path, make_engine: Any, over_http: Any
) -> None:
    """The answer to a request whose queue timeout is over came only when the running batch ended."""
    models.add(root, "slow", models.identity(ms=1500, batching=TIMEOUT))
    engine = make_engine(root)
    client, metrics = over_http(engine)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(timed, client)
        wait_until(lambda: engine.snapshot().version("slow").running == 1)
        took, error = pool.submit(timed, client).result(10)
        assert not first.done(), "A has ended already: this says nothing"
        assert error is not None
        assert (error.message, error.code.http_status) == ("Request timeout expired", 503)
        assert 0.2 <= took < 1.0
        assert first.result(10)[1] is None
    wait_until(lambda: models.metric(metrics, SERIES, model="slow", version="1", reason="REJECTED") == 1)


@pytest.mark.parametrize(
    ("batching", "field"),
    [
        ("default_queue_policy { default_timeout_microseconds: 100000 }", {}),
        (
            "priority_levels: 2 default_priority_level: 2 "
            "priority_queue_policy { key: 2 value { default_timeout_microseconds: 100000 } }",
            {"priority": 2},
        ),
        (
            "default_queue_policy { default_timeout_microseconds: 60000000 allow_timeout_override: true }",
            {"timeout": 100000},
        ),
        ("max_queue_delay_microseconds: 60000000 default_queue_policy { default_timeout_microseconds: 100000 }", {}),
        ("preserve_ordering: true default_queue_policy { default_timeout_microseconds: 100000 }", {}),
    ],
)
def test_f03_server_7512_wherever_the_timeout_comes_from(
    root: Path, make_engine: Any, gate: Gate, batching: str, field: dict[str, int]
) -> None:
    """The default's, a level's, the request's own, one that is over before the queue delay is, and in kept order."""
    models.add(root, "gate", models.gate(batching=f"dynamic_batching {{ {batching} }}"))
    engine = make_engine(root)
    asker = Asker(engine)
    if "delay" not in batching:
        asker.send([models.ask("gate", name="x", priority=1)])
        assert gate.started.acquire(timeout=10)
    begun = monotonic_ns()
    late = asker.send([models.ask("gate", name="x", **field) for _ in range(3)])
    for each in late:
        error = each.wait(5).error
        assert error is not None
        assert error.message == "Request timeout expired"
    assert (monotonic_ns() - begun) / 1e9 >= 0.1
    assert len(gate.batches) == ("delay" not in batching), "a request that had timed out was executed"
    assert engine.snapshot().version("gate").failures["REJECTED"] == 3
    assert models.stats(engine, "gate")["inference_stats"]["fail"]["count"] == 3
    gate.open.set()
    wait_until(lambda: models.nothing_left(engine))


@pytest.mark.rule("2.6a", "2.6c", "2.6d")
@pytest.mark.parametrize("spacing_s", [0.0, 0.01, 0.05])
def test_f04_server_5783_the_queue_size_is_exact(
    root: Path, make_engine: Any, over_http: Any, gate: Gate, spacing_s: float
) -> None:
    """max_queue_size 2: of six requests, however far apart, one runs, two wait and three are refused at once."""
    policy = "dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
    models.add(root, "gate", models.gate(size=1, batching=policy))
    engine = make_engine(root)
    client, metrics = over_http(engine)
    pause = threading.Event()
    with ThreadPoolExecutor(6) as pool:
        answers: list[Future[tuple[float, WorkbenchError | None]]] = [pool.submit(timed, client, "gate", "x")]
        assert gate.started.acquire(timeout=10)
        for _ in range(5):
            pause.wait(spacing_s)
            answers.append(pool.submit(timed, client, "gate", "x"))
        wait_until(lambda: sum(each.done() for each in answers) == 3)
        wait_until(lambda: models.metric(metrics, "nv_inference_pending_request_count", model="gate", version="1") == 2)
        for took, error in [each.result() for each in answers if each.done()]:
            assert error is not None
            assert (error.message, error.code.http_status) == (
                "[request id: <id_unknown>] Exceeds maximum queue size",
                503,
            )
            assert took < 1.0
        gate.open.set()
        assert [each.result(10)[1] for each in answers].count(None) == 3
    wait_until(lambda: models.metric(metrics, "nv_inference_pending_request_count", model="gate", version="1") == 0)
    assert models.metric(metrics, SERIES, model="gate", version="1", reason="REJECTED") == 0, (
        "not counted, as in Triton"
    )


def accepted(asked: list[Asked]) -> list[bool]:
    return [each.refused is None for each in asked]


@pytest.mark.rule("1.9c", "2.6b")
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_f04_server_6796_whatever_is_prepared_ahead_counts_as_waiting(
    root: Path, make_engine: Any, gate: Gate, count: int, limit: int
) -> None:
    """With several instances and limits: as many run as there are instances, exactly the limit waits."""
    policy = f"dynamic_batching {{ default_queue_policy {{ max_queue_size: {limit} }} }}"
    models.add(root, "gate", models.gate(size=1, count=count, batching=policy))
    engine = make_engine(root)
    asker = Asker(engine)
    for number in range(count):
        assert accepted(asker.send([models.ask("gate", name="x")])) == [True]
        wait_until(lambda wanted=number + 1: len(gate.batches) == wanted)  # type: ignore[misc]
    later = [each for _ in range(limit + 3) for each in asker.send([models.ask("gate", name="x")])]
    assert accepted(later) == [True] * limit + [False] * 3
    assert engine.snapshot().version("gate").pending == limit
    gate.open.set()
    for each in later[:limit]:
        assert each.wait().error is None
    wait_until(lambda: models.nothing_left(engine))
    assert models.stats(engine, "gate")["inference_stats"]["success"]["count"] == count + limit


@pytest.mark.rule("2.5e", "2.6a")
def test_f04_server_5783_each_level_has_a_limit_of_its_own_and_the_delayed_count(
    root: Path, make_engine: Any, gate: Gate
) -> None:
    """Level 1 is full while level 2 is not; what a DELAY policy has put back still counts in its level."""
    policy = """dynamic_batching { priority_levels: 2 default_priority_level: 2
      priority_queue_policy { key: 1 value { max_queue_size: 1 } }
      priority_queue_policy { key: 2 value {
        timeout_action: DELAY default_timeout_microseconds: 1000 max_queue_size: 2 } } }"""
    models.add(root, "gate", models.gate(size=1, batching=policy))
    engine = make_engine(root)
    asker = Asker(engine)
    asker.send([models.ask("gate", name="x")])
    assert gate.started.acquire(timeout=10)
    first = asker.send([models.ask("gate", name="x", priority=level) for level in (1, 1, 2, 2, 2)])
    assert accepted(first) == [True, False, True, True, False]
    threading.Event().wait(0.02)  # the timeout of level 2 passes
    again = asker.send([models.ask("gate", name="x", priority=2)])
    assert accepted(again) == [False], "a delayed request does not count any more"
    assert engine.snapshot().version("gate").pending == 3
    gate.open.set()
    for each in first:
        assert each.refused is not None or each.wait().error is None
