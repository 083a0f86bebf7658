"""What is said of a model whose process failed, when it is started again, and when that ends."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asker, wait_until
from fault_ledger import Holdings, back_to, error_of, ready, request
from fault_models import NUMBERS, add_caller, add_echo, add_victim, parameter, put

import workbench as wb
from workbench.config import Edit
from workbench.engine import InferenceEngine
from workbench.errors import InstanceDied, LoadFailed
from workbench.panels.overview import events_html, row_html
from workbench.session.state import SessionState

CRASH = NUMBERS["exit"]


def mark(root: Path, name: str, model: str = "victim") -> None:
    (root / model / name).touch()


def row_of(engine: InferenceEngine, model: str) -> dict[str, str]:
    return next(row for row in engine.repository_index() if row["name"] == model)


def instance_events(engine: InferenceEngine, model: str = "victim") -> list[Any]:
    return [event for event in engine.events.after() if event.kind == "instance" and event.model == model]


def serves(engine: InferenceEngine, model: str = "victim") -> bool:
    return engine.infer(request(model, 5), 30).outputs[0].data.tolist() == [5]


def test_readiness_index_snapshot_and_events_say_so(make_engine: Any, tmp_path: Path) -> None:
    add_victim(tmp_path, instances=1, config=parameter("WORKBENCH_INITIALIZE_TIMEOUT_S", 60))
    add_echo(tmp_path, "other")
    engine = make_engine(tmp_path)
    mark(tmp_path, "hang_in_initialize")  # so that it is down for as long as this looks
    error = error_of(engine, "victim", CRASH)
    assert isinstance(error, InstanceDied)
    assert error.message == "Stub process 'victim_0_0' is not healthy."
    assert error.hint == "it exited with code 3"
    assert not engine.is_model_ready("victim")
    assert engine.is_model_ready("other")
    row = row_of(engine, "victim")
    assert row["state"] == "READY"  # as Triton 2.51 has it: the state says that it is loaded
    why = "Stub process 'victim_0_0' is not healthy. It exited with code 3. It is started again."
    assert row["reason"] == f"1 of 1 instances not healthy: {why}"
    (instance,) = engine.snapshot().version("victim").instances
    assert (instance.healthy, instance.why) == (False, why)
    (event,) = instance_events(engine)
    assert (event.level, event.text, event.data["healthy"]) == ("error", why, False)
    assert serves(engine, "other")


def test_a_model_that_is_back_says_so(make_engine: Any, tmp_path: Path) -> None:
    add_victim(tmp_path, instances=1)
    engine = make_engine(tmp_path)
    assert error_of(engine, "victim", CRASH) is not None
    wait_until(ready(engine, "victim"), 30)
    assert row_of(engine, "victim") == {"name": "victim", "version": "1", "state": "READY"}
    (instance,) = engine.snapshot().version("victim").instances
    assert (instance.healthy, instance.why) == (True, "restarted")
    assert [event.data["healthy"] for event in instance_events(engine)] == [False, True]
    assert serves(engine)


def test_the_overview_shows_what_is_wrong_with_an_instance(tmp_path: Path) -> None:
    add_victim(tmp_path, config=parameter("WORKBENCH_RESTARTS", 0))
    with wb.Engine(tmp_path, python_execution="process") as server:
        with pytest.raises(wb.WorkbenchError, match="is not healthy"):
            server.infer("victim", {"IN": np.array([CRASH], np.float32)})
        state = SessionState(server)
        try:
            state.poll()
            snapshot = state.snapshot()
        finally:
            state.close()
        (row,) = snapshot.models
        shown = row_html(row, snapshot)
        assert "1/2" in shown
        assert "1 of 2 instances not healthy" in shown
        assert "loading model &#x27;victim&#x27; anew" in shown
        assert "1/2 healthy" in repr(server.models)
        assert "is not healthy" in events_html(snapshot)


def test_another_instance_takes_the_work_at_once(make_engine: Any, tmp_path: Path) -> None:
    add_victim(tmp_path, instances=2)
    engine = make_engine(tmp_path)
    mark(tmp_path, "hang_in_initialize")
    crash, *others = Asker(engine).send([request("victim", CRASH), *(request("victim", 5) for _ in range(40))])
    assert isinstance(crash.wait(30).error, InstanceDied)
    for other in others:  # which were in the queue: none of them waits for the instance that is down
        assert other.wait(30).error is None
    assert serves(engine)
    assert not engine.is_model_ready("victim"), "all instances must be well, as in Triton"
    assert row_of(engine, "victim")["reason"].startswith("1 of 2 instances not healthy: Stub process 'victim_0_0'")


def test_what_comes_while_the_only_instance_is_down_waits(make_engine: Any, tmp_path: Path) -> None:
    add_victim(tmp_path, instances=1)
    engine = make_engine(tmp_path)
    assert error_of(engine, "victim", CRASH) is not None
    assert not engine.is_model_ready("victim")
    assert serves(engine)


def test_a_crash_loop_is_given_up_and_a_load_starts_anew(make_engine: Any, tmp_path: Path) -> None:
    add_victim(tmp_path, instances=1, config=parameter("WORKBENCH_RESTARTS", 2))
    engine = make_engine(tmp_path)
    for _ in range(3):
        assert isinstance(error_of(engine, "victim", CRASH), InstanceDied)
    text = (
        "Stub process 'victim_0_0' is not healthy. It exited with code 3. It died 3 times in a row and is not started "
        "again: loading model 'victim' anew does that."
    )
    assert [event.text for event in instance_events(engine) if not event.data["healthy"]] == [
        "Stub process 'victim_0_0' is not healthy. It exited with code 3. It is started again.",
        "Stub process 'victim_0_0' is not healthy. It exited with code 3. It is started again in 0.25 s.",
        text,
    ]
    assert not engine.is_model_ready("victim")
    assert row_of(engine, "victim")["reason"] == f"1 of 1 instances not healthy: {text}"
    refused = error_of(engine, "victim", 5)  # at once: it does not wait for what does not come
    assert isinstance(refused, InstanceDied)
    assert text in refused.message
    engine.load("victim")  # though nothing has changed; in Triton that would do nothing
    assert engine.is_model_ready("victim")
    assert serves(engine)
    before = Holdings.now()
    for _ in range(3):
        assert isinstance(error_of(engine, "victim", CRASH), InstanceDied)
    engine.load("victim")
    assert serves(engine)
    back_to(before)


def test_new_instance_groups_replace_what_was_given_up(make_engine: Any, tmp_path: Path) -> None:
    add_victim(tmp_path, instances=2, config=parameter("WORKBENCH_RESTARTS", 0))
    engine = make_engine(tmp_path)
    assert error_of(engine, "victim", CRASH) is not None
    assert not engine.is_model_ready("victim")
    engine.configure("victim", [Edit("instance_group[0].count", "set", 3)])
    assert engine.is_model_ready("victim")
    assert len(engine.snapshot().version("victim").instances) == 3


@pytest.mark.full
def test_a_model_that_works_in_between_is_never_given_up(make_engine: Any, tmp_path: Path) -> None:
    add_victim(tmp_path, instances=1, config=parameter("WORKBENCH_RESTARTS", 1))
    engine = make_engine(tmp_path)
    for _ in range(4):
        assert error_of(engine, "victim", CRASH) is not None
        assert serves(engine)


def test_it_dies_in_initialize_when_it_is_started_again(make_engine: Any, tmp_path: Path) -> None:
    add_victim(tmp_path, instances=1)
    engine = make_engine(tmp_path)
    mark(tmp_path, "die_in_initialize")
    assert error_of(engine, "victim", CRASH) is not None
    assert serves(engine)
    why = [event.text for event in instance_events(engine) if not event.data["healthy"]]
    assert len(why) == 2
    assert "It exited with code 9. It is started again in 0.25 s." in why[1]


@pytest.mark.full
def test_initialize_raises_when_it_is_started_again(make_engine: Any, tmp_path: Path) -> None:
    add_victim(tmp_path, instances=1)
    engine = make_engine(tmp_path)
    mark(tmp_path, "fail_in_initialize")
    assert error_of(engine, "victim", CRASH) is not None
    assert serves(engine)
    why = [event.text for event in instance_events(engine) if not event.data["healthy"]]
    assert "Initialize failed: ValueError: not now" in why[1]


@pytest.mark.full
def test_initialize_hangs_when_it_is_started_again(make_engine: Any, tmp_path: Path) -> None:
    add_victim(tmp_path, instances=1, config=parameter("WORKBENCH_INITIALIZE_TIMEOUT_S", 3))
    engine = make_engine(tmp_path)
    mark(tmp_path, "hang_in_initialize")
    assert error_of(engine, "victim", CRASH) is not None
    assert serves(engine)
    why = [event.text for event in instance_events(engine) if not event.data["healthy"]]
    assert "Initialize took more than 3 s (WORKBENCH_INITIALIZE_TIMEOUT_S): its process is ended." in why[1]


@pytest.mark.parametrize(("fault", "how"), [("segfault", "Segmentation fault"), ("hangs", "Aborted")])
def test_the_log_says_where_it_crashed_and_where_it_hung(
    make_engine: Any, tmp_path: Path, fault: str, how: str
) -> None:
    add_victim(tmp_path, instances=1)
    engine = make_engine(tmp_path)

    def lines() -> list[str]:
        return [event.text for event in engine.events.after() if event.kind == "log"]

    def places() -> list[str]:
        return [text for text in lines() if "model.py" in text and " in one" in text]

    assert error_of(engine, "victim", NUMBERS[fault]) is not None
    assert serves(engine)
    wait_until(lambda: len(places()) > 0, 20)
    (place,) = places()
    assert place.lstrip().startswith('File "')
    assert f"Fatal Python error: {how}" in lines()


DEEP = """
import threading, time


def deep(depth):
    deep(depth - 1) if depth else time.sleep(60)


class TritonPythonModel:
    def execute(self, requests):
        threading.Thread(target=deep, args=(80,), daemon=True).start()
        deep(80)
"""


def test_a_process_that_is_ended_prints_where_it_hung_to_the_last_line(make_engine: Any, tmp_path: Path) -> None:
    # though the server has done with it: the main thread's frames come last
    put(tmp_path, "victim", DEEP, parameter("WORKBENCH_EXECUTE_TIMEOUT_S", 0.3))
    engine = make_engine(tmp_path)
    assert error_of(engine, "victim", 5) is not None
    wait_until(lambda: any("in execute" in event.text for event in engine.events.after()), 20)
    assert sum("in deep" in event.text for event in engine.events.after()) == 162


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("WORKBENCH_EXECUTE_TIMEOUT_S", "soon", "a number of seconds, 0 for no limit"),
        ("WORKBENCH_EXECUTE_TIMEOUT_S", "-1", "a number of seconds, 0 for no limit"),
        ("WORKBENCH_EXECUTE_TIMEOUT_S", "nan", "a number of seconds, 0 for no limit"),
        ("WORKBENCH_INITIALIZE_TIMEOUT_S", "inf", "a number of seconds, 0 for no limit"),
        ("WORKBENCH_RESTARTS", "1.5", "a whole number, 0 for no restarts"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(
    make_engine: Any, tmp_path: Path, key: str, value: str, expected: str
) -> None:
    add_victim(tmp_path, limit_s=0, config=parameter(key, value))
    engine = make_engine(tmp_path, exit_on_error=False)
    with pytest.raises(LoadFailed) as caught:
        engine.load("victim")
    assert f"parameter {key} of model 'victim' is '{value}', expected {expected}" in caught.value.message


@pytest.mark.full
def test_the_backend_setting_is_for_all_models_and_a_parameter_goes_before_it(make_engine: Any, tmp_path: Path) -> None:
    add_victim(tmp_path, "all", instances=1, limit_s=0)
    add_victim(tmp_path, "own", instances=1, config=parameter("WORKBENCH_EXECUTE_TIMEOUT_S", 0), limit_s=0)
    engine = make_engine(tmp_path, backend_config={"python": {"execute-timeout-seconds": "0.5"}})
    error = error_of(engine, "all", NUMBERS["hangs"])
    assert error is not None
    assert "execute took more than 0.5 s" in error.message
    ended = threading.Event()
    cancel = engine.post(request("own", NUMBERS["hangs"]), lambda response: ended.set())
    assert not ended.wait(1.5)
    cancel()


def test_a_thread_cannot_be_ended_and_the_log_says_so(make_engine: Any, tmp_path: Path) -> None:
    add_victim(tmp_path, config=parameter("WORKBENCH_EXECUTION", "thread"))
    engine = make_engine(tmp_path)
    expected = "WORKBENCH_EXECUTE_TIMEOUT_S of model 'victim': nothing ends a thread, so this is not heeded"
    assert expected in [event.text for event in engine.events.after()]
    assert serves(engine)
    add_victim(tmp_path, "bad", config=parameter("WORKBENCH_EXECUTION", "thread"), limit_s=-3)
    with pytest.raises(LoadFailed, match="WORKBENCH_EXECUTE_TIMEOUT_S"):
        engine.load("bad")


def test_a_callee_that_dies_is_an_error_for_its_caller(make_engine: Any, tmp_path: Path) -> None:
    add_victim(tmp_path, instances=1)
    add_caller(tmp_path, "caller", "victim")
    engine = make_engine(tmp_path)
    error = error_of(engine, "caller", CRASH)
    assert error is not None
    assert error.message == "Stub process 'victim_0_0' is not healthy."  # as the caller passes it on in Triton 2.51
    assert serves(engine, "caller"), "which waits for the callee's new process"
    assert [event.model for event in engine.events.after() if event.kind == "instance"] == ["victim", "victim"]
