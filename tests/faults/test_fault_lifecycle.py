"""Faults in a load, a warm-up, a reload, an unload, a stop; in streams, sequences and cancelled requests."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from asking import Children, wait_until
from fault_ledger import Holdings, Load, back_to, collected, error_of, ready, request
from fault_models import DIES, NUMBERS, add_counter, add_echo, add_stream, add_victim, parameter

from workbench.engine import InferenceEngine
from workbench.errors import InstanceDied, LoadFailed

CRASH, HANGS, STOPS = NUMBERS["exit"], NUMBERS["hangs"], NUMBERS["stops"]
LIMIT = "WORKBENCH_INITIALIZE_TIMEOUT_S"


def warm_up(number: int) -> str:
    """A warm-up with one request of this input."""
    return (
        'model_warmup { name: "first" batch_size: 1 inputs { key: "IN" value '
        f'{{ data_type: TYPE_FP32 dims: [ 1 ] input_data_file: "{number}" }} }} }}\n'
    )


def add_warmed(root: Path, number: int) -> None:
    import numpy as np

    directory = add_victim(root, instances=2, config=warm_up(number))
    (directory / "warmup").mkdir(exist_ok=True)
    (directory / "warmup" / str(number)).write_bytes(np.array([number], np.float32).tobytes())


def failing_loads(engine: InferenceEngine, count: int) -> list[str]:
    texts = []
    for _ in range(count):
        with pytest.raises(LoadFailed) as caught:
            engine.load("victim")
        texts.append(caught.value.message)
    return texts


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("exit", "failed to run warmup sample 'first': Stub process 'victim_0_"),
        pytest.param(
            "hangs",
            "message: execute took more than 1 s (WORKBENCH_EXECUTE_TIMEOUT_S): its process is ended",
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_fault_in_the_warm_up_fails_the_load(make_engine: Any, tmp_path: Path, fault: str, text: str) -> None:
    add_echo(tmp_path, "other")
    engine = make_engine(tmp_path, exit_on_error=False)
    add_warmed(tmp_path, NUMBERS[fault])
    with Load(engine, ["other"]).running() as load:
        failing_loads(engine, 1)
        before = Holdings.now()
        for found in failing_loads(engine, 2):
            assert text in found
        back_to(before)
    assert not load.failed


@pytest.mark.parametrize(
    ("mark", "limit_s", "text"),
    [
        ("die_in_initialize", 0, "Stub process 'victim_0_"),
        pytest.param(
            "hang_in_initialize",
            5,
            f"initialize took more than 5 s ({LIMIT}): its process is ended",
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_fault_in_initialize_fails_the_load(
    make_engine: Any, tmp_path: Path, mark: str, limit_s: float, text: str
) -> None:
    add_echo(tmp_path, "other")
    engine = make_engine(tmp_path, exit_on_error=False)
    add_victim(tmp_path, instances=2, config=parameter(LIMIT, limit_s))
    before = Holdings.now()
    for index in range(3):
        (tmp_path / "victim" / mark).touch()
        (found,) = failing_loads(engine, 1)
        assert text in found
        if not index:
            before = Holdings.now()
    back_to(before)
    assert error_of(engine, "other", 1) is None
    assert engine.is_model_ready("other")


@pytest.mark.full
def test_crashes_while_the_model_is_reloaded(make_engine: Any, tmp_path: Path, children: Children) -> None:
    add_echo(tmp_path, "other")
    add_victim(tmp_path)
    engine = make_engine(tmp_path)
    at_first = len(children())
    errors: list[Any] = []

    def round_trip() -> None:
        def crash() -> None:
            errors.append(error_of(engine, "victim", CRASH))

        crashing = [threading.Thread(target=crash) for _ in range(3)]
        for thread in crashing:
            thread.start()
        (tmp_path / "victim" / "1" / "model.py").touch()
        (tmp_path / "victim" / "die_in_finalize").touch()
        engine.load("victim")
        for thread in crashing:
            thread.join(60)
        assert error_of(engine, "victim", 1) is None

    with Load(engine, ["other", "other"]).running() as load:
        for _ in range(2):
            round_trip()
        wait_until(ready(engine, "victim"), 30)
        wait_until(lambda: len(children()) == at_first, 30)  # the old version's processes are gone
        before = Holdings.now()
        for _ in range(3):
            round_trip()
        wait_until(ready(engine, "victim"), 30)
        back_to(before)
    assert not load.failed
    assert len(errors) == 15
    assert all(isinstance(error, InstanceDied) for error in errors)


def test_a_crash_in_finalize_is_told_and_unloads_all_the_same(
    make_engine: Any, tmp_path: Path, children: Children
) -> None:
    add_victim(tmp_path, instances=1)
    engine = make_engine(tmp_path)
    (tmp_path / "victim" / "die_in_finalize").touch()
    engine.unload("victim")
    wait_until(lambda: not children(), 20)
    told = "finalize of 'victim_0_0': the process was killed by SIGSEGV"
    wait_until(lambda: told in [event.text for event in engine.events.after()], 20)
    wait_until(lambda: engine.repository_index()[0].get("reason") == "unloaded", 20)


@pytest.mark.parametrize(
    "pause", [pytest.param(0, marks=pytest.mark.full), 0.1, pytest.param(0.3, marks=pytest.mark.full)]
)
def test_unloaded_while_it_is_started_again(
    make_engine: Any, tmp_path: Path, children: Children, keepers: Any, pause: float
) -> None:
    add_victim(tmp_path, instances=2)
    engine = make_engine(tmp_path)
    assert error_of(engine, "victim", CRASH) is not None
    threading.Event().wait(pause)
    engine.unload("victim")
    wait_until(lambda: not children(), 20)
    wait_until(lambda: engine.repository_index()[0].get("reason") == "unloaded", 20)
    wait_until(lambda: not keepers(), 20)


@pytest.mark.parametrize(
    "fault",
    [
        "hangs",
        pytest.param("stops", marks=pytest.mark.full),
        pytest.param("hangs with the GIL", marks=pytest.mark.full),
    ],
)
def test_a_stop_ends_what_hangs_without_a_limit(
    make_engine: Any, tmp_path: Path, children: Children, fault: str
) -> None:
    add_victim(tmp_path, instances=1, limit_s=0)
    engine = make_engine(tmp_path)
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(error_of(engine, "victim", NUMBERS[fault])))
    asking.start()
    wait_until(lambda: engine.snapshot().version("victim").running == 1, 10)
    started = time.monotonic()
    engine.stop(0.5)
    assert time.monotonic() - started < 15  # not the 30 s that a finalize may take: it is not called
    asking.join(10)
    assert found[0].message == "Exit timeout expired. Exiting immediately."
    assert children() == []


def test_a_stop_ends_a_load_that_hangs(make_engine: Any, tmp_path: Path, children: Children) -> None:
    engine = make_engine(tmp_path)
    add_victim(tmp_path, instances=1)
    (tmp_path / "victim" / "hang_in_initialize").touch()
    raised: list[BaseException] = []

    def load() -> None:
        try:
            engine.load("victim")
        except BaseException as error:
            raised.append(error)

    loading = threading.Thread(target=load)
    loading.start()
    wait_until(lambda: not (tmp_path / "victim" / "hang_in_initialize").exists(), 20)
    started = time.monotonic()
    engine.stop(0.5)
    assert time.monotonic() - started < 15
    loading.join(10)
    assert not loading.is_alive()
    assert raised
    assert children() == []


def test_streams_end_with_an_error(make_engine: Any, tmp_path: Path) -> None:
    add_stream(tmp_path, limit_s=1.0)
    engine = make_engine(tmp_path)
    died = collected(engine, request("stream", 1))
    assert [each.outputs[0].data[0] for each in died[:-1]] == [0, 1, 2]
    assert isinstance(died[-1].error, InstanceDied)
    assert died[-1].error.message == "Stub process 'stream_0' is not healthy."
    wait_until(ready(engine, "stream"), 30)
    silent = collected(engine, request("stream", 2))
    assert [each.outputs[0].data[0] for each in silent[:-1]] == [0, 1, 2]
    assert silent[-1].error is not None
    assert "execute took more than 1 s" in silent[-1].error.message
    whole = collected(engine, request("stream", 0))
    assert len([each for each in whole if each.outputs]) == 5


@pytest.mark.full
def test_a_slow_client_is_no_reason_to_end_a_stream(make_engine: Any, tmp_path: Path) -> None:
    add_stream(tmp_path, limit_s=0.4)
    engine = make_engine(tmp_path)
    stream = engine.infer_stream(request("stream", 3), 30)  # more responses than may be under way
    taken = 0
    for response in stream:
        taken += bool(response.outputs)
        if taken in (1, 40):
            threading.Event().wait(1.2)
    assert taken == 100


def test_sequences_of_the_dead_instance_end_and_others_go_on(make_engine: Any, tmp_path: Path) -> None:
    add_counter(tmp_path, "counter", instances=2)
    engine = make_engine(tmp_path)

    def step(sequence: int, value: float = 1, *, start: bool = False) -> Any:
        return engine.infer(request("counter", value, sequence_id=sequence, sequence_start=start), 30)

    assert [step(id, start=True).outputs[0].data[0] for id in (1, 2)] == [1, 1]
    with pytest.raises(InstanceDied):
        step(1, DIES)
    assert step(2).outputs[0].data[0] == 2
    assert step(2).outputs[0].data[0] == 3
    error = error_of(engine, "counter", 1, sequence_id=1)
    assert error is not None
    assert "must specify the START flag on the first request of the sequence" in error.message
    assert step(1, start=True).outputs[0].data[0] == 1


@pytest.mark.full
def test_a_cancelled_request_that_hangs_is_ended_by_the_limit(make_engine: Any, tmp_path: Path) -> None:
    add_victim(tmp_path, instances=1)
    engine = make_engine(tmp_path)
    ended: list[Any] = []
    cancel = engine.post(request("victim", HANGS), ended.append)
    wait_until(lambda: engine.snapshot().version("victim").running == 1, 10)
    cancel()
    assert error_of(engine, "victim", 1) is None, "it waits for the process that is started then"
    assert len(ended) == 1
    assert ended[0].error is not None


@pytest.mark.full
def test_a_process_killed_from_outside_while_it_idles(make_engine: Any, tmp_path: Path, children: Children) -> None:
    add_victim(tmp_path, instances=2)
    engine = make_engine(tmp_path)
    before = Holdings.now()
    for child in children():
        child.kill()
        wait_until(lambda: not engine.is_model_ready("victim"), 10)
        assert error_of(engine, "victim", 1) is None
        wait_until(ready(engine, "victim"), 30)
    back_to(before)
