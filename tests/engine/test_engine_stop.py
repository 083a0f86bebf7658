"""The end of an engine: new requests refused, running ones finished, nothing left behind."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from asking import Asker, wait_until
from gate_backend import CONFIG as GATE_CONFIG
from gate_backend import Gate
from onnx_models import add_model, request

from workbench.engine import EngineOptions, InferenceEngine
from workbench.errors import NotReady, WorkbenchError


@pytest.mark.rule("1.16a")
def test_running_requests_finish_and_new_ones_are_refused(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    add_model(tmp_path, "gate", config=GATE_CONFIG.replace("max_batch_size: 8", "max_batch_size: 1"))
    engine = make_engine(tmp_path)
    asker = Asker(engine)
    accepted = asker.send([request("gate") for _ in range(5)])
    assert gate.started.acquire(timeout=10)
    stopper = threading.Thread(target=engine.stop)
    stopper.start()
    wait_until(lambda: engine.snapshot().stopping)
    (late,) = asker.send([request("gate", id="late")])
    assert late.refused is not None
    assert late.refused.message == (
        "[request id: late] Server is stopping, scheduler for model has stopped accepting new inference requests"
    )
    assert late.refused.code.http_status == 503
    assert not engine.is_ready()
    gate.open.set()
    stopper.join(10)
    assert not stopper.is_alive()
    assert [each.wait().error for each in accepted] == [None] * 5
    assert gate.live == 0
    assert not engine.is_live()


@pytest.mark.rule("1.16b")
def test_a_live_sequence_goes_on_until_the_engine_has_ended(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    batching = "sequence_batching { oldest { max_candidate_sequences: 4 } }"
    add_model(tmp_path, "gate", config=GATE_CONFIG.replace("dynamic_batching { }", batching))
    engine = make_engine(tmp_path)
    asker = Asker(engine)
    (first,) = asker.send([request("gate", sequence_id=1, sequence_start=True)])
    assert gate.started.acquire(timeout=10)
    stopper = threading.Thread(target=engine.stop)
    stopper.start()
    wait_until(lambda: engine.snapshot().stopping)
    second, start, nameless = asker.send(
        [
            request("gate", sequence_id=1, sequence_end=True),
            request("gate", id="late", sequence_id=2, sequence_start=True),
            request("gate", id="nameless"),
        ]
    )
    for late in (start, nameless):
        assert late.refused is not None
        assert late.refused.message == (
            "Server is stopping, scheduler for model has stopped accepting new inference requests"
        )
        assert late.refused.code.http_status == 503
    gate.open.set()
    stopper.join(10)
    assert [each.wait().error for each in (first, second)] == [None, None]


def test_two_threads_may_stop_it_at_once(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    add_model(tmp_path, "gate", config=GATE_CONFIG)
    engine = make_engine(tmp_path)
    (asked,) = Asker(engine).send([request("gate")])
    assert gate.started.acquire(timeout=10)
    stoppers = [threading.Thread(target=engine.stop) for _ in range(2)]
    for each in stoppers:
        each.start()
    wait_until(lambda: engine.snapshot().stopping)
    gate.open.set()
    for each in stoppers:
        each.join(10)
    assert not [each for each in stoppers if each.is_alive()]
    assert asked.wait().error is None
    assert not engine.is_live()


def test_options_that_no_engine_can_be_made_of_are_an_error_and_no_hang(repository: Path, own_threads: Any) -> None:
    engine = InferenceEngine(EngineOptions((repository,), load_threads="many"))  # type: ignore[arg-type]
    interval = sys.getswitchinterval()
    with pytest.raises(TypeError):
        engine.start()
    engine.stop()
    assert sys.getswitchinterval() == interval
    assert not own_threads()


def test_what_hangs_is_answered_when_the_time_is_up(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    add_model(tmp_path, "gate", config=GATE_CONFIG)
    engine = make_engine(tmp_path)
    asked = Asker(engine).send([request("gate") for _ in range(12)])
    assert gate.started.acquire(timeout=10)
    engine.stop(0.1)
    for each in asked:
        error = each.wait(1).error
        assert error is not None
        assert error.message == "Exit timeout expired. Exiting immediately."
        assert len(each.responses) == 1


def test_calls_after_the_end(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    engine.infer(request())
    engine.stop()
    engine.stop()
    for call in (
        lambda: engine.infer(request()),
        lambda: engine.load("double"),
        lambda: list(engine.infer_stream(request())),
    ):
        with pytest.raises(NotReady):
            call()
    assert not engine.is_live()
    assert not engine.is_ready()
    assert not engine.is_model_ready("double")
    assert len(engine.records.read().requests["seq"]) == 1
    assert engine.snapshot().stopping


def test_before_the_start(repository: Path) -> None:
    engine = InferenceEngine(EngineOptions((repository,)))
    with pytest.raises(NotReady):
        engine.infer(request())
    with pytest.raises(NotReady):
        engine.statistics()
    engine.stop()


def test_a_missing_repository_is_said(tmp_path: Path, make_engine: Any, own_threads: Any) -> None:
    with pytest.raises(WorkbenchError, match="failed to stat file"):
        make_engine(tmp_path / "nowhere")
    assert not own_threads()


def test_blocking_calls_on_the_loop_are_refused_not_hung(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    caught: list[BaseException] = []
    done = threading.Event()

    def wrong() -> None:
        try:
            engine.infer(request())
        except WorkbenchError as error:
            caught.append(error)
        done.set()

    engine.loop.call_soon_threadsafe(wrong)
    assert done.wait(5)
    assert "blocks" in str(caught[0])


def open_files() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def test_nothing_is_left(repository: Path) -> None:
    """Threads and file descriptors after ten lives are those of before."""

    def life() -> None:
        engine = InferenceEngine(EngineOptions((repository,)))
        engine.start()
        for each in Asker(engine).send([request() for _ in range(10)]):
            each.wait()
        engine.load("double", config='{"backend": "onnxruntime", "max_batch_size": 2}')
        engine.unload("double")
        engine.stop()

    life()
    gc.collect()
    threads, handles = threading.active_count(), open_files()
    for _ in range(10):
        life()
    gc.collect()
    assert threading.active_count() == threads
    assert open_files() <= handles


def test_stalls_of_the_loop_are_seen(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    before = engine.snapshot().stall_count
    engine.loop.call_soon_threadsafe(lambda: threading.Event().wait(0.12))
    wait_until(lambda: engine.snapshot().stall_count > before)
    assert max(stall for _, stall in engine.snapshot().stalls) >= 80


def test_a_program_that_forgets_to_stop_ends_cleanly(repository: Path) -> None:
    source = f"""
from pathlib import Path
from workbench.engine import EngineOptions, InferenceEngine

engine = InferenceEngine(EngineOptions((Path({str(repository)!r}),)))
engine.start()
print(engine.is_ready())
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
