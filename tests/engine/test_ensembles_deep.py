"""Ensembles nested deeper than Python's stack is: they load, answer, fail and cancel as shallow ones do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asker, wait_until
from ensembles import add_ensemble, add_gate, step
from gate_backend import Gate

from workbench.engine.linting import lint
from workbench.errors import Cancelled, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, Tensor

DEPTH = 300


def request(do: str = "") -> InferenceRequest:
    parameters = {"do": do} if do else {}
    return InferenceRequest("e0", [Tensor.from_numpy("X", np.ones((1, 4), np.float32))], parameters=parameters)


def add_chain(root: Path, depth: int, innermost: str, last: str = "") -> None:
    """``e0`` is made of ``e1``, which is made of ``e2``, ..."""
    for number in range(depth - 1):
        add_ensemble(root, f"e{number}", [step(f"e{number + 1}", "X", "Y", names=("X", "Y"))])
    add_ensemble(root, f"e{depth - 1}", [last or step(innermost, "X", "Y")])


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("deep")
    add_gate(root)
    add_chain(root, DEPTH, "gate")
    return root


def test_a_deep_nest_answers_fails_and_is_cancelled(deep: Path, make_engine: Any, gate: Gate) -> None:
    gate.open.set()
    engine = make_engine(deep)
    assert engine.snapshot().unreadable == {}
    assert engine.infer(request(), 20).as_numpy("Y").shape == (1, 4)
    with pytest.raises(WorkbenchError) as caught:
        engine.infer(request("error"), 20)
    assert caught.value.message.startswith("in ensemble 'e0', in ensemble 'e1', ")
    assert caught.value.message.count("in ensemble ") == DEPTH
    gate.open.clear()
    running = gate.started.acquire
    while running(blocking=False):
        """The starts of before."""
    (asked,) = Asker(engine).send([request()])
    assert running(timeout=20)
    (late,) = Asker(engine).send([request()])
    engine.loop.call_soon_threadsafe(lambda: (asked.ticket.cancel(), late.ticket.cancel()))
    gate.open.set()
    late.wait(20)
    asked.wait(20)
    assert isinstance(late.error, Cancelled)
    assert [len(each.responses) for each in (asked, late)] == [1, 1]
    engine.unload("e0")  # it ends when no request holds a version
    wait_until(lambda: engine.snapshot().version("e0").state == "UNAVAILABLE")


def test_the_linter_reads_a_deep_nest(deep: Path) -> None:
    findings = [each for file in lint(deep) for each in file.findings if each.rule.startswith("ensemble")]
    assert findings == []


@pytest.mark.rule("5.1")
def test_a_circle_of_any_length_is_refused(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    gate.open.set()
    add_gate(tmp_path)
    add_chain(tmp_path, 30, "gate", last=step("e0", "X", "Y", names=("X", "Y")))
    engine = make_engine(tmp_path)
    text = "circular dependency between ensembles: e"
    reasons = engine.snapshot().unreadable
    assert len(reasons) == 30
    assert any(reason.startswith(text) for reason in reasons.values())
    assert any(
        each.message.startswith(text) for file in lint(tmp_path) for each in file.findings if each.severity == "error"
    )
