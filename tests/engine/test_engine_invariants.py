"""Random requests under random edits, reloads and unloads: each request is answered exactly once, nothing is left."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from asking import Asked, Asker, wait_until
from gate_backend import CONFIG as GATE_CONFIG
from gate_backend import Gate
from histories import HISTORIES
from onnx_models import CONFIG, add_model, request, scale

from workbench.config import Edit
from workbench.engine import InferenceEngine
from workbench.errors import WorkbenchError

DOS = ("", "", "", "", "error", "raise", "nothing")
STARTS = ("Request for unknown model", "[request id:", "unexpected")


def random_request(chance: random.Random, index: int) -> Any:
    model = chance.choice(("gate", "double"))
    made = request(model, rows=chance.choice((1, 1, 1, 2, 3, 9)), id=str(index), priority=chance.randrange(4))
    made.timeout = chance.choice((0, 0, 500, 5000))
    if model == "gate":
        made.parameters = {"do": chance.choice(DOS)}
    return made


def random_edits(chance: random.Random) -> list[Edit]:
    return chance.choice(
        [
            [Edit("dynamic_batching.max_queue_delay_microseconds", "set", chance.choice((0, 100, 3000)))],
            [Edit("max_batch_size", "set", chance.choice((1, 3, 8, 16)))],
            [Edit("instance_group[0].count", "set", chance.choice((1, 2, 4)))],
            [
                Edit("dynamic_batching.priority_levels", "set", 3),
                Edit("dynamic_batching.default_priority_level", "set", 2),
            ],
            [Edit("dynamic_batching.default_queue_policy.max_queue_size", "set", chance.choice((0, 5)))],
            [
                Edit("dynamic_batching.default_queue_policy.default_timeout_microseconds", "set", 2000),
                Edit("dynamic_batching.default_queue_policy.allow_timeout_override", "set", True),
            ],
            [Edit("dynamic_batching", "remove")],
            [Edit("dynamic_batching.preserve_ordering", "set", True)],
            [Edit('parameters["anything"].string_value', "set", str(chance.random()))],
        ]
    )


def disturb(engine: InferenceEngine, repository: Path, chance: random.Random) -> None:
    """One thing that an operator might do; refusals are part of life."""
    model = chance.choice(("gate", "double"))
    try:
        match chance.randrange(6):
            case 0:
                (repository / model / "1" / "model.onnx").write_bytes(scale(2.0) + b"")
                (repository / model / "1" / f"note{chance.random()}").write_text("changed")
                engine.load(model)
            case 1:
                engine.unload(model)
                engine.load(model)
            case 2:
                engine.revert(model)
            case _:
                engine.configure(model, random_edits(chance))
    except WorkbenchError:
        pass


def history(engine: InferenceEngine, repository: Path, gate: Gate, *, seed: int, steps: int) -> list[Asked]:
    chance = random.Random(seed)
    asker = Asker(engine)
    asked: list[Asked] = []
    gate.open.set()
    for _ in range(steps):
        burst = [random_request(chance, len(asked) + index) for index in range(chance.randrange(1, 25))]
        sent = asker.send(burst)
        asked += sent
        if chance.random() < 0.3:
            victim = chance.choice(sent)
            if victim.ticket is not None:
                engine.loop.call_soon_threadsafe(victim.ticket.cancel)
        if chance.random() < 0.5:
            disturb(engine, repository, chance)
    return asked


def check(engine: InferenceEngine, asked: list[Asked], gate: Gate) -> None:
    for each in asked:
        assert each.ended.wait(20), "a request was never answered"
    for each in asked:
        finals = sum(response.final for response in each.responses)
        assert finals == (0 if each.refused is not None else 1)
        if each.refused is None:
            assert len(each.responses) == 1
            assert each.responses[0].error is not None or each.responses[0].outputs
    accepted = [each for each in asked if each.refused is None]
    rows = engine.records.read().requests
    assert sorted(rows["seq"]) == sorted(each.ticket.id for each in accepted)  # type: ignore[union-attr]
    ok = sum(each.error is None for each in accepted)
    assert (rows["status"] == "ok").sum() == ok
    snapshot = engine.snapshot()
    assert all(each.pending == each.running == 0 for each in snapshot.versions if each.state == "READY")
    engine.stop()
    assert gate.live == 0


@pytest.mark.parametrize("seed", range(4))
def test_each_request_is_answered_exactly_once(gate: Gate, tmp_path: Path, make_engine: Any, seed: int) -> None:
    add_model(tmp_path, "gate", config=GATE_CONFIG)
    add_model(tmp_path, "double", config=CONFIG)
    engine = make_engine(tmp_path)
    check(engine, history(engine, tmp_path, gate, seed=seed, steps=25), gate)


@pytest.mark.full
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 100 + HISTORIES // 50))
def test_long_histories(gate: Gate, tmp_path: Path, make_engine: Any, seed: int) -> None:
    add_model(tmp_path, "gate", config=GATE_CONFIG)
    add_model(tmp_path, "double", config=CONFIG)
    engine = make_engine(tmp_path, record_capacity=1 << 18)
    check(engine, history(engine, tmp_path, gate, seed=seed, steps=150), gate)
    wait_until(lambda: not engine.is_live())
