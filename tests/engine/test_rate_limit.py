"""The rate limiter in the engine (section 4): resources and priorities across models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asker, wait_until
from gate_backend import Gate
from onnx_models import CONFIG, add_model

from workbench.config import Edit
from workbench.engine import InferenceEngine
from workbench.errors import InvalidRequest, LoadFailed
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.server.arguments import parse, without_effect

GATE = """backend: "gate"
max_batch_size: 1
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
instance_group { count: %d kind: KIND_CPU rate_limiter { %s } }
"""
NEEDS_R = 'resources { name: "R" count: %d global: true }'


def add_gate(root: Path, name: str, limiter: str, count: int = 1) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(GATE % (count, limiter))


def ask(model: str, number: int = 0) -> InferenceRequest:
    tensor = Tensor.from_numpy("x", np.zeros((1, 4), np.float32))
    return InferenceRequest(model, [tensor], id=f"{model}{number}")


def limited(make_engine: Any, root: Path, *limits: str, **options: Any) -> InferenceEngine:
    engine: InferenceEngine = make_engine(root, rate_limit="execution_count", rate_limit_resources=limits, **options)
    return engine


@pytest.mark.rule("4.1b")
def test_models_that_share_a_resource_do_not_run_together(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    add_gate(tmp_path, "a", NEEDS_R % 1)
    add_gate(tmp_path, "b", NEEDS_R % 1)
    add_gate(tmp_path, "free", "")
    engine = limited(make_engine, tmp_path)
    asker = Asker(engine)
    first = asker.send([ask("a"), ask("b")])
    assert gate.started.acquire(timeout=10)
    last = asker.send([ask("free")])
    wait_until(lambda: len(gate.batches) == 2)
    assert gate.batches == [["a0"], ["free0"]], "a model that needs nothing waited, or a resource was given twice"
    assert engine.snapshot().version("b").pending == 1
    gate.open.set()
    for each in first + last:
        assert each.wait().error is None
    assert gate.batches[-1] == ["b0"]


@pytest.mark.rule("4.1a")
def test_without_the_flag_resources_are_ignored(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    add_gate(tmp_path, "a", NEEDS_R % 1)
    add_gate(tmp_path, "b", NEEDS_R % 1)
    asked = Asker(make_engine(tmp_path)).send([ask("a"), ask("b")])
    wait_until(lambda: len(gate.batches) == 2)
    gate.open.set()
    for each in asked:
        assert each.wait().error is None


@pytest.mark.rule("4.2b")
def test_a_priority_of_two_gets_half_the_turns(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    add_gate(tmp_path, "a", NEEDS_R % 1 + " priority: 1")
    add_gate(tmp_path, "b", NEEDS_R % 1 + " priority: 2")
    engine = limited(make_engine, tmp_path)
    asked = Asker(engine).send([ask(model, number) for number in range(60) for model in "ab"])
    gate.open.set()
    for each in asked:
        assert each.wait().error is None
    turns = [batch[0][0] for batch in gate.batches][:60]
    assert 37 <= turns.count("a") <= 43


@pytest.mark.rule("4.4b")
def test_a_limit_that_is_too_small_fails_the_load(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    add_gate(tmp_path, "a", NEEDS_R % 3)
    engine = limited(make_engine, tmp_path, "R:2", load_models=())
    with pytest.raises(LoadFailed) as caught:
        engine.load("a")
    assert (
        'Resource count for "R" is limited to 2 which will prevent scheduling of one or more model instances, the '
        "minimum required count is 3" in caught.value.message
    )
    wait_until(lambda: gate.live == 0)


def test_an_update_that_needs_too_much_is_refused_and_changes_nothing(
    tmp_path: Path, make_engine: Any, gate: Gate
) -> None:
    gate.open.set()
    add_gate(tmp_path, "a", NEEDS_R % 1)
    add_gate(tmp_path, "b", NEEDS_R % 2)
    engine = limited(make_engine, tmp_path, "R:2")
    needed = Edit("instance_group[0].rate_limiter.resources[0].count", "set", 3)
    for edits in ([needed], [needed, Edit("instance_group[0].count", "set", 2)]):
        with pytest.raises(LoadFailed) as caught:
            engine.configure("a", edits)
        assert caught.value.message == (
            "load failed for model 'a': version 1 is at READY state: Invalid argument: Resource count for \"R\" is "
            "limited to 2 which will prevent scheduling of one or more model instances, the minimum required count is "
            "3;\n"
        )
    for model in "ab":
        assert engine.infer(ask(model), 10).error is None
    engine.configure("a", [Edit("instance_group[0].rate_limiter.resources[0].count", "set", 2)])
    assert engine.infer(ask("a"), 10).error is None
    assert gate.live == 2


def test_instances_come_and_go_with_their_needs(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    gate.open.set()
    add_gate(tmp_path, "a", NEEDS_R % 1)
    add_gate(tmp_path, "b", NEEDS_R % 1)
    engine = limited(make_engine, tmp_path, "R:2")
    asker = Asker(engine)
    for edit in (
        Edit("instance_group[0].count", "set", 3),
        Edit("instance_group[0].rate_limiter.resources[0].count", "set", 2),
        Edit("instance_group[0].count", "set", 1),
    ):
        asked = asker.send([ask(model, number) for number in range(20) for model in "ab"])
        engine.configure("a", [edit])
        for each in asked:
            assert each.wait().error is None
    engine.unload("a")
    assert engine.infer(ask("b"), 10).error is None
    wait_until(lambda: gate.live == 1)


def test_batching_with_a_delay_gives_the_turn_back(repository: Path, make_engine: Any) -> None:
    delayed = CONFIG.replace("max_queue_delay_microseconds: 0", "max_queue_delay_microseconds: 20000")
    add_model(repository, "double", config=delayed.replace("count: 1", f"count: 1 rate_limiter {{ {NEEDS_R % 1} }}"))
    engine = limited(make_engine, repository)
    asked = Asker(engine).send([ask("double", number) for number in range(3)])
    for each in asked:
        assert each.wait().error is None
    assert list(engine.records.read().batches["rows"]) == [3]


def test_the_flags_are_tritonservers(tmp_path: Path) -> None:
    repository = ["--model-repository", str(tmp_path)]
    args = parse(
        [*repository, "--rate-limit=execution_count", "--rate-limit-resource=R:2", "--rate-limit-resource=Q:1:0"]
    )
    assert (args.rate_limit, args.rate_limit_resource) == ("execution_count", ["R:2", "Q:1:0"])
    assert without_effect(args) == []
    with pytest.raises(InvalidRequest, match="--rate-limit-resource option format is"):
        parse([*repository, "--rate-limit-resource=R"])
