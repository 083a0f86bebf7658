"""What the engine adds to the scheduler: timers, order of responses, priorities, instances that die."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asker, wait_until
from gate_backend import CONFIG as GATE_CONFIG
from gate_backend import Gate
from onnx_models import CONFIG, add_model, request

from workbench.config import Edit
from workbench.engine import InferenceEngine

LOOP = GATE_CONFIG + 'parameters { key: "loop" value { string_value: "1" } }\n'


def one_by_one(config: str) -> str:
    return config.replace("max_batch_size: 8", "max_batch_size: 1")


def test_a_queue_delay_is_held_and_never_cut_short(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    engine.configure("double", [Edit("dynamic_batching.max_queue_delay_microseconds", "set", 3000)])
    for _ in range(20):
        engine.infer(request())
    batches, rows = engine.records.read().batches, engine.records.read().requests
    waited = batches["acquired"] - rows["arrival"]
    assert set(batches["reason"]) == {"delay"}
    assert (waited >= 3_000_000).all()
    assert np.median(waited) < 3_600_000
    # a full batch does not wait
    for each in Asker(engine).send([request() for _ in range(8)]):
        each.wait()
    assert engine.records.read().batches["reason"][-1] == "full"


LARGEST = 2**64 - 1  # of the wire's and the schema's unsigned fields


@pytest.mark.parametrize(
    ("batching", "fields"),
    [
        ("priority_levels: 2 default_priority_level: 2", {"priority": LARGEST}),
        (f"priority_levels: {LARGEST} default_priority_level: {LARGEST}", {"priority": LARGEST}),
        ("", {"priority": 2**63, "timeout": LARGEST}),
        (
            f"default_queue_policy {{ default_timeout_microseconds: {LARGEST} allow_timeout_override: true }}",
            {"timeout": LARGEST - 1},
        ),
        (f"preferred_batch_size: 1 max_queue_delay_microseconds: {LARGEST}", {}),
    ],
)
def test_the_largest_numbers_of_the_wire_and_the_schema_are_answered(
    batching: str, fields: dict[str, int], gate: Gate, tmp_path: Path, make_engine: Any
) -> None:
    config = GATE_CONFIG.replace("dynamic_batching { }", f"dynamic_batching {{ {batching} }}")
    add_model(tmp_path, "gate", config=config)
    engine = make_engine(tmp_path)
    asker = Asker(engine)
    first = asker.send([request("gate")])
    assert gate.started.acquire(timeout=10)
    waiting = asker.send([request("gate", **fields)])  # behind a busy instance: its timer is armed
    gate.open.set()
    for each in first + waiting:
        assert each.wait().error is None
    assert engine.statistics("gate")["model_stats"][0]["inference_stats"]["success"]["count"] == 2


@pytest.mark.rule("2.2a")
def test_priorities_overtake(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    config = one_by_one(GATE_CONFIG).replace(
        "dynamic_batching { }", "dynamic_batching { priority_levels: 2 default_priority_level: 2 }"
    )
    add_model(tmp_path, "gate", config=config)
    engine = make_engine(tmp_path)
    asker = Asker(engine)
    first = asker.send([request("gate", id="first")])
    assert gate.started.acquire(timeout=10)
    rest = asker.send([request("gate", id=f"low{i}") for i in range(3)])
    rest += asker.send([request("gate", id=f"high{i}", priority=1) for i in range(2)])
    gate.open.set()
    for each in first + rest:
        each.wait()
    assert [batch[0] for batch in gate.batches] == ["first", "high0", "high1", "low0", "low1", "low2"]


@pytest.mark.rule("1.12a")
def test_preserve_ordering_keeps_the_order_of_requests(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    """Two loop instances; the second ends first, its answer waits for the first one's."""
    config = one_by_one(LOOP).replace("count: 1", "count: 2")
    config = config.replace("dynamic_batching { }", "dynamic_batching { preserve_ordering: true }")
    add_model(tmp_path, "gate", config=config)
    engine = make_engine(tmp_path)
    first, second, third = Asker(engine).send([request("gate", id=each) for each in "abc"])
    for _ in range(2):
        assert gate.started.acquire(timeout=10)
    by_request = {gate.instances[name].running.requests[0].id: gate.instances[name] for name in gate.instances}
    engine.loop.call_soon_threadsafe(by_request["b"].end)
    assert gate.started.acquire(timeout=10)  # the freed instance has taken the third
    assert not second.ended.is_set()
    gate.open.set()
    engine.loop.call_soon_threadsafe(by_request["b"].end)
    engine.loop.call_soon_threadsafe(by_request["a"].end)
    assert third.wait().error is None
    assert (first.order, second.order, third.order) == (0, 1, 2)


@pytest.mark.rule("1.12a")
def test_preserve_ordering_holds_whatever_ends_first(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    """Four instances that end at random; answers, errors and streams come out whole, in the order of the requests."""
    chance = random.Random(3)
    config = one_by_one(LOOP).replace("count: 1", "count: 4")
    add_model(tmp_path, "gate", config=config.replace("batching { }", "batching { preserve_ordering: true }"))
    engine = make_engine(tmp_path)
    told: list[tuple[int, bool]] = []
    kinds = [chance.choice(["", "error", "stream:2", "nothing"]) for _ in range(40)]

    def on_loop(action: Callable[[], object]) -> None:
        done = threading.Event()
        engine.loop.call_soon_threadsafe(lambda: (action(), done.set()))
        assert done.wait(10)

    def send() -> None:
        for index, kind in enumerate(kinds):
            engine.submit(
                request("gate", parameters={"do": kind}),
                lambda response, index=index: told.append((index, response.final)),
            )

    on_loop(send)
    for _ in range(2000):
        if len({index for index, final in told if final}) == len(kinds):
            break
        on_loop(chance.choice(list(gate.instances.values())).end)
    expected = [
        (index, final)
        for index, kind in enumerate(kinds)
        for final in ([False, False, True] if kind == "stream:2" else [True])
    ]
    assert told == expected


def test_loop_instances_serve(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    add_model(tmp_path, "gate", config=LOOP)
    engine = make_engine(tmp_path)
    gate.open.set()
    for index, each in enumerate(Asker(engine).send([request("gate", value=float(i)) for i in range(20)])):
        np.testing.assert_array_equal(each.wait().as_numpy("y")[0], np.full(4, index, np.float32))
    assert max(len(batch) for batch in gate.batches) == 8


def test_a_dead_instance_gets_nothing_until_it_is_back(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    add_model(tmp_path, "gate", config=LOOP)
    engine: InferenceEngine = make_engine(tmp_path)
    asker = Asker(engine)
    (running,) = asker.send([request("gate")])
    assert gate.started.acquire(timeout=10)
    instance = gate.instances["gate_0_0"]
    instance.die()
    error = running.wait().error
    assert error is not None
    assert error.message == "the process ended"
    wait_until(lambda: not engine.snapshot().version("gate").instances[0].healthy)
    assert engine.snapshot().version("gate").instances[0].why == "exit code -9"
    assert not engine.is_model_ready("gate")
    (waiting,) = asker.send([request("gate")])
    wait_until(lambda: engine.snapshot().version("gate").pending == 1)
    assert not gate.started.acquire(timeout=0.05)
    gate.open.set()
    instance.revive()
    assert waiting.wait().error is None
    assert engine.is_model_ready("gate")
    assert [event.level for event in engine.events.after() if event.kind == "instance"] == ["error", "info"]


def test_when_no_instance_will_come_back_requests_fail(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    add_model(tmp_path, "gate", config=LOOP)
    engine = make_engine(tmp_path)
    asker = Asker(engine)
    running, waiting = asker.send([request("gate"), request("gate")])[0], None
    assert gate.started.acquire(timeout=10)
    (waiting,) = asker.send([request("gate")])
    gate.instances["gate_0_0"].die(gone=True)
    assert running.wait().error is not None
    assert "no instance of model 'gate' is left" in str(waiting.wait().error)
    (refused,) = asker.send([request("gate")])
    assert refused.refused is not None
    assert engine.snapshot().version("gate").pending == 0


def test_many_models_do_not_disturb_each_other(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    """A model whose only instance hangs does not hold up another."""
    add_model(tmp_path, "gate", config=GATE_CONFIG)
    add_model(tmp_path, "double", config=CONFIG)
    engine = make_engine(tmp_path)
    Asker(engine).send([request("gate") for _ in range(20)])
    assert gate.started.acquire(timeout=10)
    for _ in range(20):
        assert engine.infer(request(), 5).error is None
