"""Models that handle signals, and that leave their streams in a state of their own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from python_host import Host, Model, answer, body, open_model

X = np.array([[1, 2]], np.float32)

ALARM = """
import signal
def rings(*_): raise {ERROR}
signal.signal(signal.SIGALRM, rings)
signal.setitimer(signal.ITIMER_REAL, {AFTER})
"""
NESTED = """
pb_utils.InferenceRequest(model_name='slow', requested_output_names=['OUT'], inputs=[pb_utils.Tensor('IN', x)]).exec()
"""
ERRORS = ["TimeoutError('over')", "ValueError('over')", "KeyboardInterrupt('over')"]


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


def answers(model: Model) -> bool:
    return bool(model.run(X).one().as_numpy("OUT").tolist() == X.tolist())


@pytest.mark.parametrize("error", ERRORS)
def test_an_alarm_ends_the_wait_for_a_nested_request(host: Host, tmp_path: Path, error: str) -> None:
    open_model(host, tmp_path, "slow", body("time.sleep(float(x[0][0]))\n" + answer()), "")
    alarm = ALARM.format(ERROR=error, AFTER=0.1)
    code = f"if x[0][0] == 1:\n{indented(alarm + NESTED)}\n{answer()}"
    model = open_model(host, tmp_path, "caller", body(code), "")
    with pytest.raises(Exception, match="over"):
        model.run(X).one()
    model.run(np.zeros((1, 2), np.float32)).one()
    with pytest.raises(Exception, match="over"):
        model.run(X).one()
    assert not host.states, "its process has lived on"


@pytest.mark.parametrize("error", ERRORS)
def test_an_alarm_between_two_batches_is_told_and_harms_nothing(host: Host, tmp_path: Path, error: str) -> None:
    model = open_model(host, tmp_path, "m", body(ALARM.format(ERROR=error, AFTER=0.05) + answer()), "")
    for _ in range(2):
        assert answers(model)
        host.wait(
            lambda: any("raised between two batches of 'm_0'" in text and "over" in text for _, text, _ in host.logs)
        )
        host.logs.clear()
    assert not host.states, "its process has lived on"


@pytest.mark.parametrize("stream", ["None", "object()"])
def test_a_model_that_has_put_something_else_there_ends_well(host: Host, tmp_path: Path, stream: str) -> None:
    model = open_model(host, tmp_path, "m", body(f"sys.stdout = sys.stderr = {stream}\n" + answer()), "")
    assert answers(model)
    model.close()
    assert [text for level, text, _ in host.logs if level == "error"] == []


def indented(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


@pytest.mark.parametrize("then", ["pass", "raise ValueError('in the child')", "nested.exec()"])
def test_a_forked_process_that_comes_back_takes_nothing_from_the_model(host: Host, tmp_path: Path, then: str) -> None:
    code = (
        "nested = pb_utils.InferenceRequest(model_name='m', requested_output_names=['OUT'],\n"
        "                                   inputs=[pb_utils.Tensor('IN', x)])\n"
        "child = os.fork() if x[0][0] == 1 else None\n"
        f"if child == 0:\n    {then}\n"
        "if child: os.waitpid(child, 0)\n" + answer("np.array([[os.getpid()]], np.float32)")
    )
    model = open_model(host, tmp_path, "m", body(code), "")
    for _ in range(3):
        assert model.run(X).one().as_numpy("OUT").tolist() == [[model.instance.pid]]
        assert model.run(X * 0).one().as_numpy("OUT").tolist() == [[model.instance.pid]]
    assert not host.states, "its process has lived on"
    host.wait(
        lambda: any("A process that the model has forked cannot reach the server" in text for _, text, _ in host.logs)
    )
