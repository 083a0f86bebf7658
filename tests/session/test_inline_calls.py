"""``Engine.infer`` on the calling thread: what a person sees of it, and Ctrl-C in the middle of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from workbench.engine import inline
from workbench.session.kernel import Engine

X = np.ones((1, 4), np.float32)

INTERRUPTED = """
import os, signal, sys, threading
import numpy as np
import workbench as wb

X = np.ones((1, 4), np.float32)
with wb.Engine(sys.argv[1], models=["double"]) as server:
    for _ in range(3):
        server.infer("double", {"x": X})
    left = threading.Semaphore(0)
    over = threading.Event()

    def interrupt():
        pause = threading.Event()
        for index in range(60):
            left.acquire()
            pause.wait(0.0005 + index * 7e-6)  # at other places each time
            while interrupts <= index:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(200):  # one that comes in a finalizer is lost: Python reports it and goes on
                    if interrupts > index:
                        break
                    pause.wait(0.01)
        over.set()

    interrupts = answered = 0
    threading.Thread(target=interrupt, daemon=True).start()
    while interrupts < 60:
        try:
            left.release()
            while True:
                server.infer("double", {"x": X})
                answered += 1
        except KeyboardInterrupt:
            interrupts += 1
    over.wait(10)
    after = server.infer("double", {"x": X})["y"]
    state = server.engine.snapshot().version("double")
    reasons = set(server.record_columns().batches["reason"])
    print(answered > 60, after.tolist(), state.running, state.pending, state.instances[0].busy, "inline" in reasons)
"""


def reasons(server: Engine) -> set[str]:
    return set(server.record_columns().batches["reason"])


def test_a_small_model_answers_on_the_calling_thread(kernel: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "LIMIT_NS", 60_000_000_000)  # on a machine under load it is small all the same
    for _ in range(3):
        assert kernel.infer("double", {"x": X})["y"].tolist() == [[2, 2, 2, 2]]
    rows, batches = kernel.record_columns().to_frames()
    last = rows.merge(batches, on="batch_seq").iloc[-1]
    assert (last["reason"], last["client"], last["status"]) == ("inline", "python", "ok")


def test_it_can_be_switched_off(repository: Path) -> None:
    with wb.Engine(repository, models=["double"], inline=False) as server:
        for _ in range(3):
            server.infer("double", {"x": X})
        assert reasons(server) == {"no_delay"}


def test_what_is_measured_goes_through_the_scheduler(repository: Path) -> None:
    with wb.Engine(repository, models=["double"]) as server:
        server.profile("double", concurrency=2, duration_s=0.2, warmup_s=0.1)
        assert "inline" not in reasons(server)


def test_a_stop_button_ends_no_instance(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(repository)], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.stdout.strip() == "True [[2.0, 2.0, 2.0, 2.0]] 0 0 False True", done.stdout + done.stderr[-3000:]
