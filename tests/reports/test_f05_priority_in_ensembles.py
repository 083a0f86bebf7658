"""Priorities reach the steps of an ensemble and count there (server#6055, #7116, tensorrtllm_backend#422)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import report_models as models
from asking import Asker, wait_until
from ensembles import add_ensemble, step
from gate_backend import Gate

import workbench as wb
from workbench.engine import InferenceEngine

LEVELS = "dynamic_batching { priority_levels: 2 default_priority_level: 2 }"
ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in inputs]
"""
PYTHON_STEP = step("first", "X", "t", names=("IN", "OUT"))


def rows_of(engine: InferenceEngine, model: str) -> list[dict[str, Any]]:
    """The request records of a model."""
    columns = engine.records.read().requests
    return [
        {name: columns[name][index] for name in columns} for index, each in enumerate(columns["model"]) if each == model
    ]


def chain(root: Path, execution_of_second: str = LEVELS) -> None:
    models.add(root, "first", models.python(), ECHO)
    models.add(root, "second", models.gate(size=1, batching=execution_of_second))
    add_ensemble(root, "chain", [PYTHON_STEP, step("second", "t", "Y")], size=1)


@pytest.mark.rule("2.1d", "5.4c")
@pytest.mark.parametrize("execution", ["thread", "process"])
def test_f05_server_6055_priority_1_overtakes_at_the_second_step(
    root: Path, make_engine: Any, gate: Gate, execution: str
) -> None:
    """A Python step without levels stands in front of the step that has them: the priority seemed lost behind it."""
    chain(root)
    engine = make_engine(root, python_execution=execution)
    asker = Asker(engine)
    slow = asker.send([models.ask("chain", name="X", priority=2) for _ in range(6)])
    wait_until(lambda: engine.snapshot().version("second").pending == 5)
    (urgent,) = asker.send([models.ask("chain", name="X", priority=1)])
    wait_until(lambda: engine.snapshot().version("second").pending == 6)
    gate.open.set()
    for each in [*slow, urgent]:
        assert each.wait().error is None
    assert urgent.order == 1, "it is the second to end, behind the one that ran already"
    for name in ("chain", "first", "second"):
        assert sorted(row["priority"] for row in rows_of(engine, name)) == [1, 2, 2, 2, 2, 2, 2], name
    parents = {row["seq"]: row["priority"] for row in rows_of(engine, "chain")}
    assert all(row["priority"] == parents[row["parent_seq"]] for row in rows_of(engine, "second"))


@pytest.mark.rule("2.1d")
@pytest.mark.parametrize("priority", [0, 1, 2, 7])
def test_f05_server_7116_any_priority_goes_through_and_is_read_by_each_step(
    root: Path, make_engine: Any, gate: Gate, priority: int
) -> None:
    """0 and what is beyond the levels are the default level's at the step; the records show what was asked."""
    chain(root)
    gate.open.set()
    engine = make_engine(root, python_execution="thread")
    engine.infer(models.ask("chain", name="X", priority=priority), 10)
    for name in ("chain", "first", "second"):
        assert [row["priority"] for row in rows_of(engine, name)] == [priority]


def test_f05_server_6055_a_step_without_levels_keeps_the_order_of_arrival(
    root: Path, make_engine: Any, gate: Gate
) -> None:
    """Only steps that declare levels reorder."""
    chain(root, "dynamic_batching { }")
    engine = make_engine(root, python_execution="thread")
    asker = Asker(engine)
    slow = asker.send([models.ask("chain", name="X", priority=2) for _ in range(3)])
    wait_until(lambda: engine.snapshot().version("second").pending == 2)
    (urgent,) = asker.send([models.ask("chain", name="X", priority=1)])
    wait_until(lambda: engine.snapshot().version("second").pending == 3)
    gate.open.set()
    for each in [*slow, urgent]:
        assert each.wait().error is None
    assert urgent.order == 3


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ({"first": "", "second": LEVELS}, ["first"]),
        ({"first": LEVELS, "second": LEVELS}, []),
        ({"first": "", "second": ""}, []),
    ],
)
def test_f05_server_6055_lint_names_the_steps_that_read_no_priority(
    root: Path, levels: dict[str, str], expected: list[str]
) -> None:
    """A note where some steps have levels and others have not; nothing where priorities are not used at all."""
    for name, batching in levels.items():
        models.add(root, name, models.identity(size=1, batching=batching))
    steps = [
        step(name, *tensors, names=("INPUT0", "OUTPUT0")) for name, tensors in zip(levels, ("Xt", "tY"), strict=True)
    ]
    add_ensemble(root, "chain", steps, size=1)
    said = [finding.message for report in wb.lint(root).files for finding in report.findings]
    texts = [f"priority sent to ensemble 'chain', but step '{name}' declares no priority_levels" for name in expected]
    assert [text for text in said if "priority_levels" in text] == texts


@pytest.mark.rule("5.4d")
@pytest.mark.parametrize("inner", [False, True])
def test_f05_tensorrtllm_backend_422_the_timeout_goes_through_too(
    root: Path, make_engine: Any, gate: Gate, inner: bool
) -> None:
    """The request's own timeout counts at the step whose policy allows it, also below an ensemble in an ensemble."""
    policy = "default_queue_policy { default_timeout_microseconds: 60000000 allow_timeout_override: true }"
    chain(root, f"dynamic_batching {{ {policy} }}")
    add_ensemble(root, "outer", [step("chain", "X", "Y", names=("X", "Y"))], size=1)
    engine = make_engine(root, python_execution="thread")
    asker = Asker(engine)
    name = "outer" if inner else "chain"
    (running,) = asker.send([models.ask(name, name="X")])
    assert gate.started.acquire(timeout=10)
    (late,) = asker.send([models.ask(name, name="X", timeout=50_000)])
    error = late.wait(5).error
    assert error is not None
    assert error.message == ("in ensemble 'outer', " if inner else "") + "in ensemble 'chain', Request timeout expired"
    assert error.code.http_status == 503
    gate.open.set()
    assert running.wait().error is None
