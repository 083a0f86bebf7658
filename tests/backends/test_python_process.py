"""A model's process: its death, its output, its end, and that nothing is left behind (F25)."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from asking import Children, wait_until

sys.path.insert(0, str(Path(__file__).parent))
from dataclasses import replace

from python_host import Batch, Host, Model, answer, body, descriptors, open_model, request

from workbench.backends._child import wire
from workbench.backends.base import Execution
from workbench.backends.python import PythonModel
from workbench.backends.python_flights import Flights
from workbench.backends.python_launch import Keeper
from workbench.errors import BackendError, InstanceDied
from workbench.protocol.tensors import InferenceResponse

X = np.array([[1, 2]], np.float32)
DIE = {
    "os._exit": "os._exit(3)",
    "segfault": "import ctypes\n    ctypes.string_at(0)",
    "kill -9": "os.kill(os.getpid(), 9)",
}


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


@pytest.fixture
def open_in(host: Host, tmp_path: Path) -> Callable[..., Model]:
    return lambda source, config="", name="m": open_model(host, tmp_path, name, source, config)


def mortal(die: str) -> str:
    return body(f"if x[0, 0] < 0:\n    {die}\nif x[0, 0] > 5:\n    time.sleep(float(x[0, 0]) / 100)\n" + answer())


def pid_of(model: Model) -> int:
    return int(model.instance.pid)


@pytest.mark.parametrize("how", DIE)
def test_a_dead_process_fails_its_batch_and_comes_back(host: Host, open_in: Callable[..., Model], how: str) -> None:
    model = open_in(mortal(DIE[how]))
    model.run(X).one()
    first = pid_of(model)
    started = time.monotonic()
    batch = model.run(X, -X)
    for index in (0, 1):
        with pytest.raises(InstanceDied) as caught:
            batch.one(index)
        assert caught.value.message == "Stub process 'm_0' is not healthy."
    assert time.monotonic() - started < 15  # it does not wait for anything
    assert batch.finishes == 1
    host.wait(lambda: len(host.states) == 2)
    (name, healthy, why, gone), back = host.states
    assert (name, healthy, gone) == ("m_0", False, False)
    assert "is not healthy" in why
    assert back[:2] == ("m_0", True)
    assert pid_of(model) != first
    assert model.run(X).one().as_numpy("OUT").tolist() == X.tolist()
    host.wait(
        lambda: any("of 'm_0' exited with code 3" in m or "of 'm_0' was killed by SIG" in m for _, m, _ in host.logs)
    )


def test_what_comes_while_the_process_restarts_waits_for_it(host: Host, open_in: Callable[..., Model]) -> None:
    model = open_in(mortal(DIE["os._exit"]))
    dead = model.run(-X)
    later: list[Batch] = []
    assert dead.finished.wait(5)
    later += [model.run(X + i) for i in range(5)]
    for i, batch in enumerate(later):
        assert batch.one().as_numpy("OUT").tolist() == (X + i).tolist()


def test_another_model_is_not_disturbed(host: Host, open_in: Callable[..., Model]) -> None:
    dying, other = open_in(mortal(DIE["kill -9"]), name="dying"), open_in(body(answer("x * 2")), name="other")
    batches = []
    for i in range(60):
        batches.append(other.run(X + i))
        if i == 20:
            dead = dying.run(-X)
    assert [b.one().as_numpy("OUT").tolist() for b in batches] == [((X + i) * 2).tolist() for i in range(60)]
    with pytest.raises(InstanceDied):
        dead.one()


def test_requests_that_kill_it_do_not_end_a_model_that_serves_others(host: Host, open_in: Callable[..., Model]) -> None:
    model = open_in(mortal(DIE["os._exit"]))
    model.instance._options = replace(model.instance._options, restarts=2, backoff_s=0.01)
    for i in range(6):
        with pytest.raises(InstanceDied):
            model.run(-X).one()
        assert model.run(X + i).one().as_numpy("OUT").tolist() == (X + i).tolist()
    assert not any(state[3] for state in host.states)


def test_a_process_that_keeps_dying_is_given_up(host: Host, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    source = f"""
class TritonPythonModel:
    def initialize(self, args):
        if os.path.exists({str(mark)!r}):
            os._exit(9)
        open({str(mark)!r}, "w").close()
    def execute(self, requests):
        os._exit(9)
"""
    model = open_model(host, tmp_path, "m", source)
    model.instance._options = replace(model.instance._options, restarts=2, backoff_s=0.01)
    with pytest.raises(InstanceDied):
        model.run(X).one()
    waiting = model.run(X)
    host.wait(lambda: any(state[3] for state in host.states))
    assert [state[3] for state in host.states] == [False, False, True]
    for batch in (waiting, model.run(X)):
        with pytest.raises(InstanceDied):
            batch.one()


def test_a_process_that_dies_while_it_loads_fails_the_load(host: Host, open_in: Callable[..., Model]) -> None:
    with pytest.raises(InstanceDied, match="Stub process 'm_0' is not healthy"):
        open_in("os._exit(1)\n")


def test_death_inside_a_nested_request_cancels_it(host: Host, open_in: Callable[..., Model]) -> None:
    open_in(body("time.sleep(0.5)\n" + answer()), name="slow")
    code = """
threading.Timer(0.15, os._exit, (4,)).start()
pb_utils.InferenceRequest(model_name="slow", requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", x)]).exec()
"""
    model = open_in(body(code))
    with pytest.raises(InstanceDied):
        model.run(X).one()
    host.wait(lambda: len(host.states) == 2)
    assert host.cancelled == ["slow"]


def test_decoupled_requests_end_with_an_error_when_the_process_dies(host: Host, open_in: Callable[..., Model]) -> None:
    code = """
s = r.get_response_sender()
s.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', x)]))
self.kept = s
threading.Timer(0.2, os._exit, (4,)).start()
"""
    source = body(code).replace("return out", "return None")
    model = open_in(source, "model_transaction_policy { decoupled: true }")
    responses = model.run(X).all()
    assert [r.final for r in responses] == [False, True]
    assert isinstance(responses[-1].error, InstanceDied)


@pytest.mark.parametrize("end", ["s.send(flags=1)", "raise ValueError('enough')"], ids=["final", "raises"])
def test_threads_that_send_while_a_request_ends_harm_nothing(
    host: Host, open_in: Callable[..., Model], end: str
) -> None:
    code = f"""
s = r.get_response_sender()
if x[0, 0] < 0:
    s.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', x * 0 + sum(t.is_alive() for t in self.made))]), 1)
    continue
def many():
    try:
        while True:
            s.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', x)]))
    except pb_utils.TritonModelException:
        pass
self.made = getattr(self, 'made', []) + [threading.Thread(target=many, daemon=True) for _ in range(4)]
for each in self.made[-4:]:
    each.start()
time.sleep(0.005)
{end}
"""
    model = open_in(body(code).replace("return out", "return None"), "model_transaction_policy { decoupled: true }")
    first = pid_of(model)
    for _ in range(20):
        batch = model.run(X)
        batch.finished.wait(20)
        if "raise" in end:
            assert "ValueError: enough" in str(batch.error)
        else:
            assert batch.error is None
            batch.all()
    deadline = time.monotonic() + 20
    while model.run(-X).all()[-1].outputs[0].data[0, 0]:  # threads that still send, or wait for room
        assert time.monotonic() < deadline
    assert pid_of(model) == first
    assert host.states == []


def test_a_response_of_a_batch_that_is_over_is_dropped(host: Host, open_in: Callable[..., Model]) -> None:
    model = open_in(body(answer()), "model_transaction_policy { decoupled: true }")
    got: list[InferenceResponse] = []
    ends: list[object] = []
    flights = Flights(model.context, "m_0", lambda *_: None)
    flights.start(
        Execution([request("m", {"IN": X})], lambda _, answered: got.append(answered), ends.append, lambda _: False)
    )
    late = (1, False, 0, 0, "", ((0, False, -1, "", "", None),), (), ())
    assert not flights.responses(late, b"")
    assert len(got) == 1
    assert flights.responses((1, True, 0, 0, "it broke", (), (), ()), b"")
    assert not flights.responses(late, b"")
    assert len(got) == len(ends) == 1
    with pytest.raises(wire.ProtocolError, match="a batch 2 that was not sent"):
        flights.responses((2, *late[1:]), b"")


def test_output_is_forwarded_line_by_line(host: Host, open_in: Callable[..., Model]) -> None:
    model = open_in(body("print('héllo', x[0, 0])\nprint('oops', file=sys.stderr)\n" + answer()))
    model.run(X).one()
    host.wait(lambda: {("info", "héllo 1.0", "m_0"), ("warning", "oops", "m_0")} <= set(host.logs))


def test_a_flood_of_output_is_bounded_and_stops_nothing(host: Host, open_in: Callable[..., Model]) -> None:
    code = "line = 'z' * 999\nfor i in range(60_000): print(line)\nprint('y' * 5_000_000)\n"
    model = open_in(body(code + answer()))
    before = psutil.Process().memory_info().rss
    assert model.run(X).one().as_numpy("OUT").tolist() == X.tolist()
    assert psutil.Process().memory_info().rss - before < 30e6
    model.close()
    lines = [message for _, message, _ in host.logs]
    assert 1 < sum(message.startswith("zzz") for message in lines) < 5000
    assert any("lines of output were dropped" in message for message in lines)
    assert max(map(len, lines)) <= 8192 + 64  # how much is left out is said behind it


def test_nothing_is_left_behind(children: Children, host: Host, open_in: Callable[..., Model]) -> None:
    big = np.ones((1, 500_000), np.float32)

    def round_trip() -> None:
        model = open_in(mortal(DIE["kill -9"]))
        for _ in range(3):
            model.run(big).one()
        with pytest.raises(InstanceDied):
            model.run(-X).one()
        model.run(big).one()
        model.close()
        with pytest.raises(BackendError):
            open_in("raise ValueError\n")

    round_trip()
    gc.collect()
    shared = set(Path("/dev/shm").iterdir())
    before, threads = descriptors(), threading.active_count()
    for _ in range(3):
        round_trip()
    gc.collect()  # this test's own batches and answers refer to each other
    assert descriptors() == before
    assert threading.active_count() == threads
    assert children() == []
    new = set(Path("/dev/shm").iterdir()) - shared
    assert not [path for path in new if not path.name.startswith("triton_")]  # another server on this machine


def test_close_ends_a_model_that_does_not_finish(host: Host, open_in: Callable[..., Model]) -> None:
    model = open_in(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        + body(answer())
        + "    def finalize(self):\n        time.sleep(60)\n"
    )
    model.instance._options = replace(model.instance._options, finalize_s=0.2, terminate_s=0.3)
    process = psutil.Process(pid_of(model))
    started = time.monotonic()
    model.close()
    assert time.monotonic() - started < 30  # finalize would take 60
    assert not process.is_running()
    assert any("the process was killed" in message for _, message, _ in host.logs)


@pytest.mark.parametrize("pause", [0, 0.03, 0.06, 0.1, 0.3])
def test_close_during_a_restart_leaves_nothing(
    children: Children, host: Host, open_in: Callable[..., Model], pause: float
) -> None:
    model = open_in("time.sleep(0.2)\n" + mortal(DIE["kill -9"]))
    with pytest.raises(InstanceDied):
        model.run(-X).one()
    time.sleep(pause)  # from before the start of the new process to after its initialize
    started = time.monotonic()
    model.close()
    assert time.monotonic() - started < 20
    assert children() == []


def test_a_ctrl_c_in_the_notebook_does_not_reach_the_model(host: Host, open_in: Callable[..., Model]) -> None:
    model = open_in(body(answer()))
    assert os.getsid(pid_of(model)) != os.getsid(0)
    os.kill(pid_of(model), signal.SIGINT)
    assert model.run(X).one().as_numpy("OUT").tolist() == X.tolist()


def test_the_process_holds_no_descriptor_of_the_server(
    host: Host, open_in: Callable[..., Model], tmp_path: Path
) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        model = open_in(body(answer()))
        assert str(tmp_path / "secret") not in [f.path for f in psutil.Process(pid_of(model)).open_files()]


PARENT = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from python_host import *
import numpy as np
host = Host()
model = open_model(host, Path({root!r}), "m", body({code!r} + answer()))
print(model.instance.pid, flush=True)
if {busy}:
    model.run(np.ones((1, 1), np.float32))
sys.stdin.read()
"""


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_the_process_goes_when_its_server_is_killed(tmp_path: Path, busy: bool) -> None:
    code = "import re\nre.match(r'(a+)+b', 'a' * 60)\n" if busy else ""  # holds the GIL for ever
    script = PARENT.format(tests=str(Path(__file__).parent), root=str(tmp_path), code=code, busy=busy)
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        if busy:
            while child.cpu_times().user < 0.5:
                time.sleep(0.01)
        parent.kill()
        gone, _ = psutil.wait_procs([child], timeout=5)
        assert gone, "the model's process outlived its server"


def test_what_the_model_started_neither_hides_its_death_nor_outlives_it(
    host: Host, open_in: Callable[..., Model], tmp_path: Path
) -> None:
    mark = tmp_path / "helper"
    code = f"""
if x[0, 0] < 0:
    helper = os.fork()
    if not helper:
        time.sleep(60)
        os._exit(0)
    open({str(mark)!r}, "w").write(str(helper))
    os._exit(5)
"""
    model = open_in(body(code + answer()))
    started = time.monotonic()
    with pytest.raises(InstanceDied):
        model.run(-X).one()
    assert time.monotonic() - started < 30  # the helper would stay for 60
    assert model.run(X).one().as_numpy("OUT").tolist() == X.tolist()
    helper = int(mark.read_text())
    if psutil.pid_exists(helper):
        psutil.wait_procs([psutil.Process(helper)], timeout=5)
    assert not psutil.pid_exists(helper) or psutil.Process(helper).status() == psutil.STATUS_ZOMBIE


def test_more_than_the_socket_takes_waits_in_order(host: Host, open_in: Callable[..., Model]) -> None:
    model = open_in(body("time.sleep(0.002)\n" + answer("x + 1")))
    sizes = [10_000, 5, 60_000, 11_000, 200_000] * 12
    batches = [model.run(np.full((1, size), i, np.float32)) for i, size in enumerate(sizes)]
    for i, (batch, size) in enumerate(zip(batches, sizes, strict=True)):
        got = batch.one().as_numpy("OUT")
        assert got.shape == (1, size)
        assert (got == i + 1).all()


def test_memory_of_large_batches_is_used_again_at_once(host: Host, open_in: Callable[..., Model]) -> None:
    """Also where the model answers with its input as it is: no collector has to come first."""
    model = open_in(body(answer("x")))
    array = np.ones((1, 300_000), np.float32)
    for _ in range(40):
        assert model.run(array).one().as_numpy("OUT").shape == array.shape
        gc.collect()  # of this process, which keeps its own batches
    maps = Path(f"/proc/{pid_of(model)}/maps").read_text().count("memfd:workbench")
    assert maps <= 6, "one or two each way, and one on its way"


def test_large_and_small_batches_share_a_bounded_pool(host: Host, open_in: Callable[..., Model]) -> None:
    model = open_in(body(answer("x")))
    rng = np.random.default_rng(7)
    kept = []
    for size in [int(n) for n in 10 ** rng.uniform(3, 6.3, 60)]:
        array = np.full((1, size), size, np.float32)
        kept.append((model.run(array).one().as_numpy("OUT"), size))
        if len(kept) > 12:
            kept.pop(0)
        assert all((a == s).all() for a, s in kept)
    maps = Path(f"/proc/{pid_of(model)}/maps").read_text().count("memfd:workbench")
    assert maps <= 32  # 8 answers pinned, 4 spare in each direction, those on the way
    assert len(kept) == 12
    kept.clear()


def test_the_engine_may_choose_another_interpreter(host: Host, tmp_path: Path) -> None:
    env = tmp_path / "env" / "bin"
    env.mkdir(parents=True)
    (env / "python").write_text(f'#!/bin/sh\nMARK=there exec {sys.executable} "$@"\n')
    (env / "python").chmod(0o755)
    path = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{tmp_path}/env" }} }}'
    model = open_model(host, tmp_path, "m", body(answer("x * float(os.environ['MARK'] == 'there')")), path)
    assert isinstance(model.loaded, PythonModel)
    assert model.run(X).one().as_numpy("OUT").tolist() == X.tolist()


def test_an_environment_that_is_not_there_is_said(host: Host, tmp_path: Path) -> None:
    path = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/nope" } }'
    with pytest.raises(BackendError, match=r"EXECUTION_ENV_PATH '.*' not found, looked in '.*/m/nope'"):
        open_model(host, tmp_path, "m", body(answer()), path)


def test_a_keeper_that_ends_before_it_is_woken_to_end(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was awake when it was closed, saw that, and closed its end of the pipe before the other wrote to it."""
    write, alive = os.write, threading.active_count()

    def late(descriptor: int, data: bytes) -> int:
        wait_until(lambda: threading.active_count() == alive)
        return write(descriptor, data)

    before = descriptors()
    keeper = Keeper(host, "m")  # type: ignore[arg-type]
    awake, closing = threading.Event(), threading.Event()
    keeper.run(lambda: (awake.set(), closing.wait(10)))  # type: ignore[arg-type, return-value]
    assert awake.wait(10)
    threading.Timer(0.05, closing.set).start()
    monkeypatch.setattr(os, "write", late)
    keeper.close()
    assert not keeper.run(lambda: None)
    assert (descriptors(), threading.active_count()) == (before, alive)
