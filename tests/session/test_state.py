"""The state that panels show: snapshots, who is told when, commands, sweeps, and its end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workbench as wb
from workbench.clock import monotonic_ns, sleep
from workbench.errors import Cancelled, NotReady
from workbench.session.kernel import Engine
from workbench.session.remote import WorkbenchServer
from workbench.session.server import Server
from workbench.session.state import SessionState

ROW = [[1.0, 2.0, 3.0, 4.0]]
DELAY = "dynamic_batching.max_queue_delay_microseconds"


class Calls:
    """Counts calls and lets a test wait for them."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self.times.append(monotonic_ns())
            self._changed.notify_all()

    def wait(self, count: int, timeout_s: float = 10.0) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: len(self.times) >= count, timeout_s)


def session_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("workbench-session")}


def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    end = monotonic_ns() + int(timeout_s * 1e9)
    while not condition():
        if monotonic_ns() > end:
            return False
        sleep(0.01)
    return True


@pytest.fixture
def state(kernel: Engine) -> Iterator[SessionState]:
    made = SessionState(kernel, interval_s=0.2)
    yield made
    made.close()


def test_there_is_one_state_a_server(server: Server) -> None:
    with threading.Lock():
        found = {id(server.session) for _ in range(3)}
    assert len(found) == 1


def test_a_snapshot_shows_models_traffic_batches_devices_and_events(anywhere: Server) -> None:
    state = SessionState(anywhere)
    state.poll()
    for _ in range(5):
        anywhere.infer("double", {"x": ROW * 2})
    snapshot = state.snapshot()
    assert snapshot.error == ""
    assert snapshot.age_s < 5
    assert snapshot.models["double"].ready
    window = snapshot.windows["double"]
    assert (window.requests, window.failed, window.mean_batch) == (5, 0, 2.0)
    assert window.throughput == pytest.approx(2 * window.requests_s)
    assert snapshot.histograms["double"].total >= 5
    assert snapshot.history["double"]["requests_s"].tolist() == [window.requests_s]
    assert -5 < snapshot.history["double"]["t_s"][0] <= 0
    assert snapshot.server["name"] == anywhere.name
    if anywhere.kind == "remote":
        assert set(snapshot.histograms["double"].counts) == {"unknown"}
        assert snapshot.devices is None
    else:
        assert "unknown" not in snapshot.histograms["double"].counts
        assert window.p50_ms > 0
        assert window.max_in_flight == 1
        assert snapshot.devices["cpu"]["memory_used_bytes"] > 0
        assert len(snapshot.device_history["cpu_percent"]) == 2
        assert any(event.model == "double" for event in snapshot.events)
    state.close()


def test_two_polls_at_once_count_nothing_twice(kernel: Engine, state: SessionState) -> None:
    state.poll()
    before = state.snapshot().histograms["double"].total
    for _ in range(20):
        kernel.infer("double", {"x": ROW})
    threads = [threading.Thread(target=state.poll) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state.snapshot().histograms["double"].total == before + 20


def test_subscribers_hear_of_polls_but_not_more_than_ten_times_a_second(state: SessionState) -> None:
    assert session_threads() == set()
    calls = Calls()
    unsubscribe = state.subscribe(calls)
    assert calls.wait(2)
    for _ in range(50):
        state.touch()
        sleep(0.01)
    gaps = [after - before for before, after in zip(calls.times, calls.times[1:], strict=False)]
    assert min(gaps) >= 95e6
    assert len(calls.times) >= 5  # a touch is heard before the interval is over
    unsubscribe()
    heard = len(calls.times)
    assert until(lambda: session_threads() == set())
    assert len(calls.times) == heard


def test_no_call_comes_after_unsubscribing_not_even_one_under_way(state: SessionState) -> None:
    inside, leave = threading.Event(), threading.Event()
    ended: list[int] = []

    def slow() -> None:
        inside.set()
        leave.wait(10)
        ended.append(1)

    unsubscribe = state.subscribe(slow)
    assert inside.wait(10)
    threading.Timer(0.2, leave.set).start()
    unsubscribe()
    assert ended == [1]  # it was waited for


def test_a_subscriber_may_unsubscribe_itself(state: SessionState) -> None:
    calls = Calls()
    leave: list[Callable[[], None]] = []

    def once() -> None:
        calls()
        leave[0]()

    with_lock = threading.Lock()
    with with_lock:
        leave.append(state.subscribe(lambda: with_lock.acquire(timeout=5) and (with_lock.release(), once())[1]))
    assert calls.wait(1)
    assert until(lambda: session_threads() == set())
    assert len(calls.times) == 1


def test_a_subscriber_that_raises_is_dropped_and_the_others_go_on(state: SessionState) -> None:
    calls = Calls()

    def broken() -> None:
        raise ValueError("no such widget")

    state.subscribe(broken)
    unsubscribe = state.subscribe(calls)
    assert calls.wait(3)
    unsubscribe()


def test_a_state_without_a_server_grows_old_and_says_why(repository: Path) -> None:
    server = wb.serve(repository)
    state = server.session
    assert state.snapshot().error == ""
    os.kill(server.pid, signal.SIGKILL)
    assert until(lambda: bool(state.snapshot().error))
    first = state.snapshot()
    assert "ConnectionFailed" in first.error
    assert first.models.names == ["broken", "double", "spare"]  # what was known stays
    assert state.snapshot().age_s > first.age_s > 0
    server.close()


def test_commands_run_one_after_the_other_and_hand_over_result_or_error(kernel: Engine, state: SessionState) -> None:
    order: list[str] = []

    def slow() -> None:
        sleep(0.05)
        order.append("slow")

    state.submit("slow", slow)
    command = state.submit("apply", lambda: kernel.configure("double", f"{DELAY}=42"))
    broken = state.submit("break", lambda: kernel.configure("double", "max_batch_size=-1"))
    last = state.submit("last", lambda: order.append("last"))
    assert command.wait(10).change_class == "live"
    with pytest.raises(Exception, match="non-negative"):
        broken.wait(10)
    last.wait(10)
    assert order == ["slow", "last"]
    assert (command.state, broken.state, broken.done) == ("done", "failed", True)
    assert [each.name for each in state.snapshot().commands] == ["slow", "apply", "break", "last"]
    kernel.revert("double")


def test_closing_waits_for_what_runs_and_cancels_what_waits(kernel: Engine) -> None:
    state = SessionState(kernel, interval_s=0.2)
    running, leave = threading.Event(), threading.Event()
    calls = Calls()
    state.subscribe(calls)

    def slow() -> str:
        running.set()
        leave.wait(10)
        return "whole"

    first, second = state.submit("first", slow), state.submit("second", lambda: "never")
    assert running.wait(10)
    with pytest.raises(TimeoutError, match="first has not ended"):
        first.wait(0.01)
    threading.Timer(0.2, leave.set).start()
    state.close()
    heard = len(calls.times)
    assert first.wait(0) == "whole"
    with pytest.raises(Cancelled):
        second.wait(5)
    with pytest.raises(NotReady):
        state.submit("third", lambda: None)
    assert session_threads() == set()
    assert not [thread for thread in threading.enumerate() if thread.name == "workbench-commands"]
    state.subscribe(calls)
    assert len(calls.times) == heard
    assert state.snapshot().error == ""


def test_a_sweep_in_the_background_is_in_the_state_and_disturbs_it_little(process: WorkbenchServer) -> None:
    process.revert("double")
    state = process.session
    calls = Calls()
    unsubscribe = state.subscribe(calls)
    assert calls.wait(2)
    job = state.start_sweep(
        "double", {DELAY: [0, 300]}, concurrency=[1, 2], duration_s=0.7, warmup_s=0.1, min_requests=10, store=None
    )
    assert state.measuring
    assert job in state.sweeps
    began = len(calls.times)
    result = job.wait(60)
    assert result is not None
    heard = len(calls.times) - began
    # Before the first point and after each of the four; nothing in between.
    assert 1 <= heard <= 5 + 1
    assert [point.error for point in result.points] == [""] * 4
    assert result.restored
    assert not process.config("double").dirty
    assert until(lambda: not state.measuring)
    assert calls.wait(began + heard + 2)  # the usual pace again
    unsubscribe()


def test_within_a_measured_window_subscribers_hear_once_however_often_they_ask(state: SessionState) -> None:
    calls = Calls()
    unsubscribe = state.subscribe(calls)
    assert calls.wait(1)
    with state.measuring_window():
        sleep(0.5)  # the call at the window's beginning
        before = len(calls.times)
        for _ in range(10):
            state.touch()
            sleep(0.1)
        assert len(calls.times) == before + 1
        state.point_ended()
        assert calls.wait(before + 2)
        sleep(0.5)
        assert len(calls.times) == before + 2
    assert calls.wait(before + 5)
    unsubscribe()


def test_closing_stops_a_sweep_and_restores_the_configuration(repository: Path) -> None:
    engine = wb.Engine(repository)
    job = engine.session.start_sweep("double", {DELAY: [100, 200]}, concurrency=1, duration_s=30, store=None)
    assert until(lambda: engine.config("double").dirty)
    engine.session.close()
    assert job.done
    assert job.result is not None
    assert job.result.stopped
    assert not engine.config("double").dirty
    engine.close()
