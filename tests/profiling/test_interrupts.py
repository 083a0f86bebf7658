"""Ctrl-C, and a notebook's interrupt: what was measured until then is kept, and nothing is left changed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_target import INPUTS, ScriptedServer, ScriptedTarget

from workbench.profiling import Load, Measurer, ServerTarget, measure, sweep
from workbench.profiling.interrupting import do_all, interrupt_stops
from workbench.records.runs import Run, RunStore

LONG = Load.closed(2, duration_s=60, warmup_s=0.0, drain_s=2.0)


def interrupting(times: int) -> Callable[[Any], None]:
    """Hears of a measurement and interrupts it, so often at once, when fifty requests have been answered."""
    left = [True]

    def heard(event: Any) -> None:
        if event["event"] == "progress" and event["answered"] > 50 and left:
            left.clear()
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)

    return heard


def test_an_interrupted_profile_gives_what_it_has() -> None:
    begin = time.monotonic()
    with ScriptedServer(lambda n: 0.002) as server:
        point = measure(ServerTarget(server.url), "m", LONG, inputs=INPUTS, on_event=interrupting(1))
    assert time.monotonic() - begin < 30
    assert point.n >= 50
    assert point.p50_ms >= 2
    assert not point.valid
    assert point.reasons[0] == "the measurement was stopped before its end"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_raises() -> None:
    with (
        ScriptedServer(lambda n: 0.002) as server,
        Measurer(ServerTarget(server.url), "m", inputs=INPUTS, on_event=interrupting(2)) as measurer,
    ):
        with pytest.raises(KeyboardInterrupt):
            measurer.measure(LONG)
        assert not measurer._generators.pids  # no load goes on unseen
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupted_sweep_keeps_the_point_that_was_under_way() -> None:
    """Each finished point, and the one that was measured just then, as not valid; the configuration is put back."""
    with ScriptedServer(lambda n: 0.002) as server:
        target = ScriptedTarget(server)
        short = Load.closed(2, duration_s=0.2, max_duration_s=0.2, warmup_s=0.0, min_requests=0)
        timer: list[threading.Timer] = []

        def heard(progress: Any) -> None:
            if progress.done == 1:  # in the middle of the second point, which lasts a minute
                timer.append(threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)))
                timer[0].start()

        result = sweep(target, "m", {"max_batch_size": [4]}, [short, LONG, short], inputs=INPUTS, on_progress=heard)
        assert server.config["max_batch_size"] == 8
    assert result.stopped
    assert result.restored
    assert len(result) == 2
    assert result[0].n > 10
    assert result[1].n > 10
    assert "stopped before its end" in result[1].reasons[0]


def test_an_interrupt_while_a_point_is_stored_loses_it_neither_here_nor_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Run.add_point

    def interrupted(run: Run, *given: Any, **more: Any) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return real(run, *given, **more)

    monkeypatch.setattr(Run, "add_point", interrupted)
    short = Load.closed(2, duration_s=0.1, max_duration_s=0.1, warmup_s=0.0, min_requests=0)
    with ScriptedServer(lambda n: 0.002) as server:
        store = RunStore(tmp_path)
        result = sweep(ScriptedTarget(server), "m", {}, [short, short], inputs=INPUTS, store=store)
    assert result.stopped
    assert len(result) == 1
    with store.open(result.run_id) as run:
        assert [row["throughput"] for row in run.points()] == [result[0].throughput]


def test_somebody_elses_handler_is_left_alone() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        stop = threading.Event()
        with interrupt_stops(stop):
            os.kill(os.getpid(), signal.SIGINT)
        assert heard == [signal.SIGINT]
        assert not stop.is_set()
    finally:
        signal.signal(signal.SIGINT, before)


def test_on_another_thread_nothing_is_handled() -> None:
    handlers: list[Any] = []

    def work() -> None:
        with interrupt_stops(threading.Event()):
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


def test_putting_back_is_not_kept_from_by_interrupts() -> None:
    done: list[int] = []
    failed: list[tuple[int, str]] = []

    def first() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        done.append(1)

    def second() -> None:
        raise ValueError("no")

    do_all([first, second, lambda: done.append(3)], lambda index, error: failed.append((index, str(error))))
    assert done == [1, 3]
    assert failed == [(1, "no")]


def test_no_moment_of_putting_back_is_one_in_which_an_interrupt_gets_through() -> None:
    """One comes while the thread is started, while it is waited for, or as the wait ends."""
    done: list[int] = []
    failed: list[Exception] = []
    for turn in range(300):
        actions = [lambda turn=turn: done.append(turn), lambda: os.kill(os.getpid(), signal.SIGINT)]
        try:
            do_all(actions, lambda index, error: failed.append(error))
        except KeyboardInterrupt:
            pytest.fail(f"it got through at turn {turn}")
    assert not failed
    assert done == list(range(300))


def test_what_is_put_back_is_put_back_without_a_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    done: list[int] = []
    do_all([lambda: done.append(1), lambda: done.append(2)], lambda index, error: done.append(-1))
    assert done == [1, 2]
