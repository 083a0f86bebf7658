"""A step that refuses a request ends the ensemble's request, and nothing is left of it (core#470, server#8631)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_models as models
from asking import Asker, wait_until
from ensembles import add_ensemble, ensemble_config, step
from gate_backend import Gate

from workbench.errors import WorkbenchError

FULL = "default_queue_policy { max_queue_size: 1 }"
LATE = "default_queue_policy { default_timeout_microseconds: 50000 }"
STRICT = "priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 1 value { max_queue_size: 1 } }"
TEXTS = {
    FULL: "in ensemble 'chain', [request id: q] Exceeds maximum queue size",
    STRICT: "in ensemble 'chain', [request id: q] Exceeds maximum queue size",
    LATE: "in ensemble 'chain', Request timeout expired",
}


def test_f06_core_470_ten_at_once_all_end(root: Path, make_engine: Any, over_http: Any) -> None:
    """Step 2 takes one waiting request; ten concurrent ones over HTTP: each is answered, the queue is never hung on."""
    models.add(root, "fast", models.identity(size=1))
    models.add(root, "slow", models.identity(size=1, ms=200, batching=f"dynamic_batching {{ {FULL} }}"))
    names = ("INPUT0", "OUTPUT0")
    add_ensemble(root, "chain", [step("fast", "X", "t", names=names), step("slow", "t", "Y", names=names)], size=1)
    engine = make_engine(root)
    client, _ = over_http(engine)

    def infer() -> WorkbenchError | None:
        try:
            client.infer("chain", {"X": np.zeros((1, 4), np.float32)}, timeout_s=15)
        except WorkbenchError as error:
            return error
        return None

    with ThreadPoolExecutor(10) as pool:
        errors = list(pool.map(lambda _: infer(), range(10)))
    refused = [error for error in errors if error is not None]
    assert 1 <= len(refused) <= 8, "at least two are served: one that runs and one that waits"
    for error in refused:
        assert error.code.http_status == 503
        assert error.message == "in ensemble 'chain', [request id: <id_unknown>] Exceeds maximum queue size"
    assert any("step 1 ('slow')" in event.text for event in engine.events.after()), "no event names the step"
    wait_until(lambda: models.nothing_left(engine))
    assert client.infer("chain", {"X": np.zeros((1, 4), np.float32)}) is not None


@pytest.mark.rule("5.6a", "5.6b", "5.6c", "5.8a")
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("policy", [FULL, STRICT, LATE])
def test_f06_core_470_every_queue_error_in_every_step(
    root: Path, make_engine: Any, gate: Gate, policy: str, place: int
) -> None:
    """A full queue, a full level and a timeout, in the first, a middle and the last step."""
    models.add(root, "gate", models.gate(size=1, batching=f"dynamic_batching {{ {policy} }}"))
    models.add(root, "fast", models.identity(size=1))
    tensors = ["X", "a", "b", "Y"]
    steps = [
        step("gate", tensors[n], tensors[n + 1])
        if n == place
        else step("fast", tensors[n], tensors[n + 1], names=("INPUT0", "OUTPUT0"))
        for n in range(3)
    ]
    add_ensemble(root, "chain", steps, size=1)
    engine = make_engine(root)
    asker = Asker(engine)
    first = asker.send([models.ask("chain", name="X", id="q")])
    assert gate.started.acquire(timeout=10)
    rest = [each for _ in range(9) for each in asker.send([models.ask("chain", name="X", id="q")])]
    failing = 9 if policy == LATE else 8
    wait_until(lambda: sum(each.ended.is_set() for each in rest) == failing)
    for each in rest:
        error = each.error
        if error is not None:
            assert (error.message, error.code.http_status) == (TEXTS[policy], 503)
            assert f"step {place} ('gate')" in error.where
    gate.open.set()
    for each in first + rest:
        each.wait()
    assert [each.error is None for each in first + rest].count(True) == 10 - failing
    wait_until(lambda: models.nothing_left(engine))
    assert engine.snapshot().version("chain").failures["OTHER"] == failing
    assert models.stats(engine, "chain")["inference_stats"]["success"]["count"] == 10 - failing
    assert engine.infer(models.ask("chain", name="X"), 10).error is None


@pytest.mark.parametrize("full_branch", [0, 1])
def test_f06_core_470_a_full_branch_waits_for_the_other_and_then_answers(
    root: Path, make_engine: Any, gate: Gate, full_branch: int
) -> None:
    """Two steps side by side, one refuses: one error, after the other branch has ended, nothing started behind it."""
    models.add(root, "gate", models.gate(size=1, batching=f"dynamic_batching {{ {FULL} }}"))
    models.add(root, "fast", models.identity(size=1))
    models.add(root, "join", models.identity(size=1))
    branches = [step("gate", "X", "a"), step("fast", "X", "b", names=("INPUT0", "OUTPUT0"))]
    if full_branch:
        branches.reverse()
    last = step("join", "a", "Y", names=("INPUT0", "OUTPUT0"))
    directory = root / "fork"
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(ensemble_config([*branches, last], size=1, outputs=("Y", "b")))
    engine = make_engine(root)
    asker = Asker(engine)
    first = asker.send([models.ask("fork", name="X")])
    assert gate.started.acquire(timeout=10)
    rest = asker.send([models.ask("fork", name="X") for _ in range(5)])
    wait_until(lambda: sum(each.ended.is_set() for each in rest) == 4)
    assert all(len(each.responses) == 1 for each in rest if each.ended.is_set())
    gate.open.set()
    for each in first + rest:
        each.wait()
    assert models.stats(engine, "join")["inference_count"] == 2
    wait_until(lambda: models.nothing_left(engine))


def test_f06_core_470_a_step_below_an_ensemble_in_an_ensemble(root: Path, make_engine: Any, gate: Gate) -> None:
    """The error goes up through both, with both names."""
    models.add(root, "gate", models.gate(size=1, batching=f"dynamic_batching {{ {FULL} }}"))
    add_ensemble(root, "chain", [step("gate", "X", "Y")], size=1)
    add_ensemble(root, "outer", [step("chain", "X", "Y", names=("X", "Y"))], size=1)
    engine = make_engine(root)
    asker = Asker(engine)
    first = asker.send([models.ask("outer", name="X", id="q")])
    assert gate.started.acquire(timeout=10)
    rest = asker.send([models.ask("outer", name="X", id="q") for _ in range(4)])
    wait_until(lambda: sum(each.ended.is_set() for each in rest) == 3)
    assert {each.error.message for each in rest if each.error} == {f"in ensemble 'outer', {TEXTS[FULL]}"}
    gate.open.set()
    for each in first + rest:
        each.wait()
    wait_until(lambda: models.nothing_left(engine))
