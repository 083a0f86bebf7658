"""What a client of the real Triton sees of a dead process, and what is different here on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import wait_until
from fault_models import NUMBERS, add_caller, add_echo, add_victim
from real_triton import real_triton

import workbench as wb
from workbench.session.server import Server

FAULTS = ("segfault", "abort", "exit", "killed")


def text_of(server: Server, model: str, value: float) -> str:
    try:
        server.infer(model, {"IN": np.array([value], np.float32)})
    except wb.WorkbenchError as error:
        return error.message
    return ""


def anew(server: Server) -> None:
    """The only way back in Triton: a load of what has not changed does nothing."""
    server.unload("victim")
    wait_until(lambda: not server.is_model_ready("victim"), 30)
    server.load("victim")


def play(server: Server, again: Any) -> list[Any]:
    """What each fault is answered with, by the model itself and through a caller; and what others see."""
    seen: list[Any] = []
    for fault in FAULTS:
        seen += [fault, text_of(server, "victim", NUMBERS[fault])]
        seen.append(text_of(server, "other", 1))
        again()
        seen += [server.is_model_ready("victim"), text_of(server, "victim", 1)]
    seen += [text_of(server, "caller", NUMBERS["exit"]), text_of(server, "other", 1)]
    again()
    seen.append(text_of(server, "caller", 1))
    return seen


@pytest.mark.full
@pytest.mark.oracle
def test_a_dead_process_is_told_as_by_triton(oracle: Path, tmp_path: Path) -> None:
    root = tmp_path / "models"
    add_victim(root, instances=1, limit_s=0)
    add_echo(root, "other")
    add_caller(root, "caller", "victim")
    load = [f"--load-model={name}" for name in ("victim", "other", "caller")]
    options = ["--model-control-mode=explicit", *load]
    with real_triton(oracle, root, tmp_path / "log", options) as addresses, wb.connect(addresses.http) as server:
        assert text_of(server, "victim", NUMBERS["exit"]) == text_of(server, "victim", 1), "none is started again"
        assert server.is_model_ready("victim"), "and says that all is well"
        anew(server)
        theirs = play(server, lambda: anew(server))
    with wb.Engine(root, python_execution="process") as server:
        ours = play(server, lambda: wait_until(lambda: server.is_model_ready("victim"), 30))
    assert ours == theirs
    assert theirs[1] == "Stub process 'victim_0_0' is not healthy."
