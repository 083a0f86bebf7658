"""Triton's test hooks: a batcher that waits until as many requests are queued as its environment says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asker, wait_until

from workbench.engine import InferenceEngine
from workbench.engine.options import scheduling_hooks
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.session.kernel import Engine

IDENTITY = """backend: "identity"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: 1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }
instance_group { kind: KIND_CPU }
"""
SEQUENCE = """backend: "sequence"
max_batch_size: 2
input { name: "INPUT" data_type: TYPE_INT32 dims: 1 }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }
instance_group { kind: KIND_CPU }
sequence_batching {
  STRATEGY
  max_sequence_idle_microseconds: 60000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
}
"""


def add(root: Path, name: str, config: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(config)


def batches(engine: InferenceEngine, model: str) -> list[int]:
    return [rows for rows, _ in engine.snapshot().version(model).recent_batches]


def question(number: int = 0, model: str = "copy") -> InferenceRequest:
    return InferenceRequest(model, [Tensor.from_numpy("INPUT0", np.full((1, 1), number, np.float32))])


@pytest.mark.rule("1.15")
def test_nothing_leaves_until_so_many_are_queued_and_then_one_batch_does(tmp_path: Path, make_engine: Any) -> None:
    add(tmp_path, "copy", IDENTITY + "dynamic_batching { }\n")
    engine = make_engine(tmp_path, hold_until_queued=8)
    asker = Asker(engine)
    asked = asker.send(question(number) for number in range(7))
    again = asker.send([question(99)])[0]
    engine.configure("copy", [])
    for each in (*asked, again):
        assert each.wait().error is None
    assert batches(engine, "copy") == [8]
    assert engine.infer(question(), 10).error is None, "once open, it stays open"
    assert batches(engine, "copy") == [8, 1]


@pytest.mark.rule("1.15")
def test_seven_wait(tmp_path: Path, make_engine: Any) -> None:
    add(tmp_path, "copy", IDENTITY + "dynamic_batching { }\n")
    engine = make_engine(tmp_path, hold_until_queued=8)
    asked = Asker(engine).send(question(number) for number in range(7))
    wait_until(lambda: engine.snapshot().version("copy").pending == 7)
    assert not asked[0].ended.wait(0.3)
    assert batches(engine, "copy") == []


@pytest.mark.rule("1.15")
def test_each_load_waits_anew_and_a_model_without_batcher_does_not(tmp_path: Path, make_engine: Any) -> None:
    add(tmp_path, "copy", IDENTITY + "dynamic_batching { }\n")
    add(tmp_path, "plain", IDENTITY)
    engine = make_engine(tmp_path, hold_until_queued=2)
    assert engine.infer(question(model="plain"), 10).error is None
    for _ in range(2):
        first = Asker(engine).send([question()])[0]
        wait_until(lambda: engine.snapshot().version("copy").pending == 1)
        assert not first.ended.is_set()
        second = Asker(engine).send([question()])[0]
        assert (first.wait().error, second.wait().error) == (None, None)
        engine.unload("copy")
        engine.load("copy")


def step(sequence: int) -> InferenceRequest:
    given = Tensor.from_numpy("INPUT", np.ones((1, 1), np.int32))
    return InferenceRequest("sum", [given], sequence_id=sequence, sequence_start=True)


@pytest.mark.rule("1.15")
def test_the_backlog_of_a_sequence_batcher(tmp_path: Path, make_engine: Any) -> None:
    add(tmp_path, "sum", SEQUENCE.replace("STRATEGY", "direct { }"))
    engine = make_engine(tmp_path, hold_until_queued=2, hold_until_backlog=1)
    asked = Asker(engine).send([step(1), step(2)])
    wait_until(lambda: engine.snapshot().version("sum").pending == 2)
    assert not asked[0].ended.wait(0.2), "two are in slots, none waits for one"
    (third,) = Asker(engine).send([step(3)])
    assert [each.wait().error for each in asked] == [None] * 2
    assert batches(engine, "sum") == [2]
    assert third.ticket is not None
    engine.loop.call_soon_threadsafe(third.ticket.cancel)
    assert third.wait().error is not None


@pytest.mark.rule("1.15")
@pytest.mark.parametrize(
    ("strategy", "queued"), [("direct { }", 0), ("oldest { max_candidate_sequences: 2 }", 2)], ids=["alone", "oldest"]
)
def test_where_the_backlog_is_not_asked_for(strategy: str, queued: int, tmp_path: Path, make_engine: Any) -> None:
    add(tmp_path, "sum", SEQUENCE.replace("STRATEGY", strategy))
    engine = make_engine(tmp_path, hold_until_queued=queued, hold_until_backlog=1)
    assert [each.wait().error for each in Asker(engine).send([step(1), step(2)])] == [None] * 2


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 0)),
        ({"TRITONSERVER_DELAY_SCHEDULER": "8"}, (8, 0)),
        ({"TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "3"}, (0, 3)),
        ({"TRITONSERVER_DELAY_SCHEDULER": " 12x", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "many"}, (12, 0)),
    ],
)
def test_the_environment_says_it(environment: dict[str, str], expected: tuple[int, int]) -> None:
    assert scheduling_hooks(environment) == expected


@pytest.mark.rule("1.15")
def test_an_engine_in_the_kernel_reads_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path, "copy", IDENTITY + "dynamic_batching { }\n")
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", "3")
    with Engine(tmp_path) as server:
        for each in Asker(server.engine).send(question(number) for number in range(3)):
            assert each.wait().error is None
        assert batches(server.engine, "copy") == [3]
