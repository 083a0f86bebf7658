"""Ensembles and sequences under random requests, errors, cancellations and reloads: everything is answered, once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asked, Asker, wait_until
from ensembles import add_ensemble, add_gate, step
from gate_backend import Gate

from workbench.config import Edit
from workbench.engine import InferenceEngine
from workbench.errors import WorkbenchError
from workbench.protocol.tensors import InferenceRequest, RequestedOutput, Tensor

# a decoupled model may go on after its batch: that it says nothing is no end there
DOS = ["", "", "", "error", "raise", "nothing", "stream:0", "stream:3"]
DECOUPLED_DOS = [do for do in DOS if do != "nothing"]
SEQUENCES = """backend: "gate"
max_batch_size: 2
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
instance_group { count: 2 kind: KIND_CPU }
sequence_batching { %s max_sequence_idle_microseconds: 20000 }
"""


def tensor(name: str) -> Tensor:
    return Tensor.from_numpy(name, np.ones((1, 4), np.float32))


def cancel_some(engine: InferenceEngine, chance: random.Random, asked: list[Asked]) -> None:
    for each in asked:
        if each.ticket is not None and chance.random() < 0.2:
            engine.loop.call_soon_threadsafe(each.ticket.cancel)


def check(asked: list[Asked]) -> None:
    for each in asked:
        assert each.ended.wait(8), "a request was not answered"
        assert sum(response.final for response in each.responses) == (each.refused is None), "answered twice"


@pytest.mark.parametrize("seed", range(6))
def test_ensembles(tmp_path: Path, make_engine: Any, gate: Gate, seed: int) -> None:
    chance = random.Random(seed)
    gate.open.set()
    limited = "dynamic_batching { default_queue_policy { max_queue_size: 3 default_timeout_microseconds: 2000 } }"
    for name in ("a", "b", "many", "many2"):
        directory = add_gate(tmp_path, name, decoupled=name.startswith("many"))
        text = (directory / "config.pbtxt").read_text()
        if chance.random() < 0.5:
            text = text.replace("dynamic_batching { }", limited)
        (directory / "config.pbtxt").write_text(text)
    limit = f"max_inflight_requests: {chance.choice([1, 2, 5])}\n" if chance.random() < 0.7 else ""
    add_ensemble(
        tmp_path,
        "fork",
        [step("a", "X", "t"), step("b", "t", "Y"), step("a", "t", "Z")],
        outputs=("Y", "Z"),
        extra=limit,
    )
    add_ensemble(tmp_path, "flow", [step("many", "X", "t"), step("many2", "t", "u"), step("a", "u", "Y")], extra=limit)
    add_ensemble(tmp_path, "above", [step("flow", "X", "t", names=("X", "Y")), step("b", "t", "Y")], extra=limit)
    engine = make_engine(tmp_path)
    asker = Asker(engine)
    everything: list[Asked] = []
    for _ in range(8):
        requests = [
            InferenceRequest(
                name,
                [tensor("X")],
                [RequestedOutput("Z")] if name == "fork" and chance.random() < 0.3 else (),
                parameters={"do": chance.choice(DOS if name == "fork" else DECOUPLED_DOS)},
            )
            for name in chance.choices(("fork", "flow", "above"), k=25)
        ]
        asked = asker.send(requests)
        everything += asked
        cancel_some(engine, chance, asked)
        if chance.random() < 0.5:
            engine.configure(chance.choice("ab"), [Edit('parameters["k"].string_value', "set", str(chance.random()))])
    check(everything)
    for name in ("fork", "flow", "above"):
        assert engine.snapshot().version(name).running == 0
    for name in ("a", "b", "many", "many2"):
        engine.unload(name)
    wait_until(lambda: gate.live == 0)


@pytest.mark.parametrize("seed", range(6))
def test_sequences(tmp_path: Path, make_engine: Any, gate: Gate, seed: int) -> None:
    chance = random.Random(seed)
    gate.open.set()
    strategy = ["direct { }", "oldest { }", "direct { } iterative_sequence: true"][seed % 3]
    (tmp_path / "gate" / "1").mkdir(parents=True)
    (tmp_path / "gate" / "config.pbtxt").write_text(SEQUENCES % strategy)
    limits: dict[str, Any] = {"rate_limit": "execution_count"} if seed >= 3 else {}
    engine = make_engine(tmp_path, **limits)
    asker = Asker(engine)
    everything: list[Asked] = []
    for turn in range(8):
        asked = asker.send(
            InferenceRequest(
                "gate",
                [tensor("x")],
                parameters={"do": chance.choice([*DOS[:6], "again:1", "again:2"])},
                timeout=chance.choice([0, 0, 3000]),
                sequence_id=chance.randint(0, 6),
                sequence_start=chance.random() < 0.4,
                sequence_end=chance.random() < 0.3,
            )
            for _ in range(30)
        )
        everything += asked
        cancel_some(engine, chance, asked)
        if turn % 3 == 2:
            engine.configure("gate", [Edit("instance_group[0].count", "set", chance.randint(1, 3))])
    check(everything)
    assert all(isinstance(each.error, WorkbenchError | None) for each in everything)
    assert engine.snapshot().version("gate").running == 0
    engine.unload("gate")
    wait_until(lambda: gate.live == 0)
