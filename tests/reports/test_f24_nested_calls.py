"""Models that call other models (BLS): with the rate limiter's resources (server#8358), and when the server stops
(server#6287, #6286, #6230, #8253)."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_models as models
from asking import Asked, Asker, wait_until
from ensembles import add_ensemble, step
from gate_backend import Gate

import workbench as wb
from workbench.engine import InferenceEngine
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.server.arguments import parse

CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        open("STARTED", "w").close()
        while not os.path.exists("GO"):
            time.sleep(0.002)
        answers = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            nested = pb_utils.InferenceRequest(model_name="CALLEE", requested_output_names=["RESULT"],
                                               inputs=[pb_utils.Tensor("GIVEN", given)])
            answer = nested.exec()
            if answer.has_error():
                raise pb_utils.TritonModelException(answer.error().message())
            out = pb_utils.get_output_tensor_by_name(answer, "RESULT").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return answers
"""
R = 'rate_limiter { priority: %d resources { name: "R" count: %d global: true } }'
EXECUTIONS = pytest.mark.parametrize("execution", ["process", "thread"])


class Signals:
    """Two files: the caller has started, the caller may go on."""

    def __init__(self, folder: Path, name: str = "B") -> None:
        self.started = folder / f"{name}.started"
        self.go = folder / f"{name}.go"

    def source(self, callee: str, given: str, result: str) -> str:
        text = CALLER.replace("STARTED", str(self.started)).replace("GO", str(self.go))
        return text.replace("CALLEE", callee).replace("GIVEN", given).replace("RESULT", result)


@pytest.fixture
def signals(tmp_path: Path) -> Signals:
    return Signals(tmp_path)


def add_caller(
    root: Path, signals: Signals, callee: str, *, name: str = "B", names: tuple[str, str] = ("x", "y"), group: str = ""
) -> None:
    config = models.python(size=1).replace("kind: KIND_CPU", f"kind: KIND_CPU {group}")
    models.add(root, name, config, signals.source(callee, *names))


def add_gate(root: Path, name: str, group: str = "") -> None:
    models.add(root, name, models.gate(size=1, group=group))


def start(make_engine: Any, root: Path, execution: str, **options: Any) -> InferenceEngine:
    engine: InferenceEngine = make_engine(root, python_execution=execution, rate_limit="execution_count", **options)
    return engine


def call_b(engine: InferenceEngine, signals: Signals) -> Asked:
    (asked,) = Asker(engine).send([models.ask("B", name="IN", value=7.0)])
    wait_until(signals.started.exists)
    return asked


@EXECUTIONS
@pytest.mark.parametrize("needs", ["", 'rate_limiter { resources { name: "S" count: 1 global: true } }'])
def test_f24_server_8358_a_callee_that_does_not_need_the_resource_runs(
    root: Path, make_engine: Any, gate: Gate, signals: Signals, execution: str, needs: str
) -> None:
    """B holds R and calls A while C waits for R at the front of the line: A never started."""
    gate.open.set()
    add_caller(root, signals, "A", group=R % (2, 1))
    add_gate(root, "A", needs)
    add_gate(root, "C", R % (1, 1))
    engine = start(make_engine, root, execution)
    asked = call_b(engine, signals)
    waiting = Asker(engine).send([models.ask("C", name="x", id="c") for _ in range(5)])
    wait_until(lambda: engine.snapshot().version("C").pending == 5)
    signals.go.touch()
    assert asked.wait().as_numpy("OUT").tolist() == [[7.0] * 4]
    for each in waiting:
        assert each.wait().error is None
    assert gate.batches[0] != ["c"], "C ran while B held what it needs"
    wait_until(lambda: models.nothing_left(engine))


@models.THREAD_OR_FULL
@pytest.mark.parametrize("through_ensemble", [False, True])
def test_f24_server_8358_what_is_kept_for_others_is_given_to_the_callee(
    root: Path, make_engine: Any, gate: Gate, signals: Signals, execution: str, through_ensemble: bool
) -> None:
    """A needs one R of two; C, first in line, waits for both. B gives its one back only when A has run."""
    gate.open.set()
    names = ("X", "Y") if through_ensemble else ("x", "y")
    add_caller(root, signals, "E" if through_ensemble else "A", names=names, group=R % (1, 1))
    add_gate(root, "A", R % (1, 1))
    add_ensemble(root, "E", [step("A", "X", "Y")], size=1)
    add_gate(root, "C", R % (1, 2))
    engine = start(make_engine, root, execution, rate_limit_resources=("R:2",))
    asked = call_b(engine, signals)
    (waiting,) = Asker(engine).send([models.ask("C", name="x", id="c")])
    wait_until(lambda: engine.snapshot().version("C").pending == 1)
    signals.go.touch()
    assert asked.wait().error is None
    assert waiting.wait().error is None
    assert gate.batches[-1] == ["c"]
    wait_until(lambda: models.nothing_left(engine))


@models.THREAD_OR_FULL
def test_f24_server_8358_whoever_waits_for_whom_is_told(
    root: Path, make_engine: Any, gate: Gate, signals: Signals, execution: str
) -> None:
    """A is busy for long: the watchdog's event names all who wait, once."""
    add_caller(root, signals, "A", group=R % (2, 1))
    add_gate(root, "A")
    add_gate(root, "C", R % (1, 1))
    engine = start(make_engine, root, execution, nested_wait_report_s=0.1)
    busy = Asker(engine).send([models.ask("A", name="x")])
    assert gate.started.acquire(timeout=10)
    asked = call_b(engine, signals)
    waiting = Asker(engine).send([models.ask("C", name="x")])
    wait_until(lambda: engine.snapshot().version("C").pending == 1)
    assert not told(engine), "nobody waits for a nested call yet"
    signals.go.touch()
    wait_until(lambda: bool(told(engine)))
    threading.Event().wait(0.25)  # two more looks of the watchdog
    (event,) = told(engine)
    assert (event.text, event.level, event.model) == ("B waits for A; C waits for R held by B", "warning", "B")
    gate.open.set()
    for each in [asked, *busy, *waiting]:
        assert each.wait().error is None
    wait_until(lambda: models.nothing_left(engine))


def told(engine: InferenceEngine) -> list[Any]:
    return [event for event in engine.events.after() if event.kind == "waits"]


@models.THREAD_OR_FULL
def test_f24_server_8358_a_circle_is_an_error_that_names_it_and_stop_ends_it(
    root: Path, make_engine: Any, gate: Gate, signals: Signals, execution: str
) -> None:
    """A needs the one R that B holds while it waits for A: no order of the line can end that."""
    gate.open.set()
    add_caller(root, signals, "A", group=R % (1, 1))
    add_gate(root, "A", R % (1, 1))
    engine = start(make_engine, root, execution, nested_wait_report_s=0.1)
    asked = call_b(engine, signals)
    signals.go.touch()
    wait_until(lambda: bool(told(engine)))
    (event,) = told(engine)
    text = "B waits for A; A waits for R held by B; they wait for each other: A -> B -> A"
    assert (event.text, event.level) == (text, "error")
    engine.stop(0.2)
    assert asked.wait().error is not None


def test_f24_a_model_that_calls_the_ensemble_that_it_is_in_waits_for_itself(
    root: Path, make_engine: Any, signals: Signals
) -> None:
    """B has one instance, and that waits for an ensemble with B in it: the circle goes through the ensembles' steps."""
    add_caller(root, signals, "outer", names=("X", "Y"))
    add_ensemble(root, "outer", [step("inner", "X", "Y", names=("X", "Y"))], size=1)
    add_ensemble(root, "inner", [step("B", "X", "Y", names=("IN", "OUT"))], size=1)
    engine = make_engine(root, python_execution="thread", nested_wait_report_s=0.05)
    asked = call_b(engine, signals)
    signals.go.touch()
    wait_until(lambda: bool(told(engine)))
    event = told(engine)[-1]
    text = "B waits for outer; outer waits for B; they wait for each other: B -> outer -> B"
    assert (event.text, event.level) == (text, "error")
    engine.stop(0.2)
    assert asked.wait().error is not None


def test_f24_server_8358_without_the_limiter_a_wait_is_told_too(
    root: Path, make_engine: Any, gate: Gate, signals: Signals
) -> None:
    """A model that calls itself and has one instance waits for itself for ever; a nested call that runs is no wait."""
    add_caller(root, signals, "A")
    add_gate(root, "A")
    engine = make_engine(root, python_execution="thread", nested_wait_report_s=0.05)
    asked = call_b(engine, signals)
    signals.go.touch()
    assert gate.started.acquire(timeout=10)
    threading.Event().wait(0.2)  # it runs, longer than the watchdog waits
    assert not told(engine)
    gate.open.set()
    assert asked.wait().error is None
    gate.open.clear()
    Asker(engine).send([models.ask("A", name="x")])
    assert gate.started.acquire(timeout=10)
    (again,) = Asker(engine).send([models.ask("B", name="IN")])
    wait_until(lambda: [event.text for event in told(engine)] == ["B waits for A"])
    gate.open.set()
    assert again.wait().error is None


def test_f24_server_8358_how_long_is_an_option_of_the_server(root: Path) -> None:
    """From the command line, as with every other option of a server; a server's events show the report."""
    base = ["--model-repository", str(root)]
    assert parse(base).nested_wait_report_secs == 10.0
    assert parse([*base, "--nested-wait-report-secs=0.5"]).nested_wait_report_secs == 0.5
    with pytest.raises(InvalidRequest, match="--nested-wait-report-secs"):
        parse([*base, "--nested-wait-report-secs=soon"])


# ---- the server stops


@pytest.mark.parametrize(("execution", "order"), [("process", "DAB"), ("thread", "BAD")])
def test_f28_server_6287_running_calls_finish_before_anything_is_unloaded(
    root: Path, make_engine: Any, gate: Gate, tmp_path: Path, execution: str, order: str
) -> None:
    """B sleeps, then calls A, which calls D; the server is stopped meanwhile: A was unloaded under B's feet."""
    gate.open.set()
    outer, inner = Signals(tmp_path, "B"), Signals(tmp_path, "A")
    inner.go.touch()
    add_caller(root, outer, "A", names=("IN", "OUT"))
    add_caller(root, inner, "D", name="A")
    add_gate(root, "D")
    engine = make_engine(root, python_execution=execution, load_models=())
    for name in order:
        engine.load(name)
    asked = call_b(engine, outer)
    stopper = threading.Thread(target=engine.stop)
    stopper.start()
    wait_until(lambda: engine.snapshot().stopping)
    (late,) = Asker(engine).send([models.ask("D", name="x", id="late")])
    assert late.refused is not None
    assert late.refused.code.http_status == 503
    assert not states(engine, "UNLOADING"), "unloaded while a model runs that may call it"
    outer.go.touch()
    stopper.join(20)
    assert not stopper.is_alive()
    assert asked.wait().as_numpy("OUT").tolist() == [[7.0] * 4]
    assert states(engine, "READY") == list(order)
    assert states(engine, "UNLOADING") == list(reversed(order))


def states(engine: InferenceEngine, state: str) -> list[str]:
    return [each.model for each in engine.events.after() if each.kind == "state" and each.data["state"] == state]


@models.THREAD_OR_FULL
def test_f28_server_6230_what_does_not_end_is_cut_at_the_limit(
    root: Path, make_engine: Any, gate: Gate, signals: Signals, execution: str
) -> None:
    """A nested call that never ends: stop returns at its limit, and whoever waits is answered."""
    add_caller(root, signals, "A")
    add_gate(root, "A")
    signals.go.touch()
    engine = make_engine(root, python_execution=execution)
    asked = call_b(engine, signals)
    assert gate.started.acquire(timeout=10)
    threading.Timer(1.0, gate.open.set).start()
    engine.stop(0.2)
    error = asked.wait().error
    assert error is not None
    assert error.message == "Exit timeout expired. Exiting immediately."


def test_f28_server_8253_a_server_that_gets_sigterm_answers_what_it_has_begun(root: Path, signals: Signals) -> None:
    """The same over HTTP in a server's own process: the request gets 200, a new one is refused, the process ends."""
    add_caller(root, signals, "A", names=("INPUT0", "OUTPUT0"))
    models.add(root, "A", models.identity(size=1))
    x = np.full((1, 4), 7.0, np.float32)
    with wb.serve(root) as server, ThreadPoolExecutor(1) as pool:
        other = wb.connect(server.url)
        assert other.infer("A", {"INPUT0": x}) is not None
        asked = pool.submit(server.infer, "B", {"IN": x})
        wait_until(signals.started.exists)
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: refused(other, x))
        assert not asked.done()
        signals.go.touch()
        assert asked.result(20)["OUT"].tolist() == x.tolist()
        other.close()


def refused(server: Any, x: Any) -> bool:
    try:
        server.infer("A", {"INPUT0": x}, timeout_s=5)
    except WorkbenchError:
        return True
    return False
