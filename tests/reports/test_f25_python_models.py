"""F25, F26: a model.py whose process dies, and one that answers in the way of another mode, over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench as wb
from workbench.engine import InferenceEngine
from workbench.session.server import Server

Served = Callable[[InferenceEngine], tuple[Server, str]]
CONFIG = """backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
"""
MODEL = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

ANSWER = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float32))])

class TritonPythonModel:
    def execute(self, requests):
        sender = requests[0].get_response_sender() if SENDS else None
        BODY
"""
X = {"IN": np.zeros(1, np.float32)}


def put(root: Path, name: str, body: str, *, sends: bool = False) -> None:
    version = root / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    (version / "model.py").write_text(MODEL.replace("BODY", body).replace("SENDS", str(sends)))


def until(condition: Callable[[], bool]) -> None:
    for _ in range(1500):
        if condition():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it never came")


def test_f25_server_8604_a_dead_process_is_told_is_not_ready_and_comes_back(
    root: Path, make_engine: Any, over_http: Served
) -> None:
    put(root, "dies", "if requests[0].inputs()[0].as_numpy()[0] == 13: os._exit(0)\n        return [ANSWER]")
    put(root, "lives", "return [ANSWER]")
    engine = make_engine(root)
    server, _ = over_http(engine)
    readiness: list[bool] = []
    # on the loop, at the moment in which the death is told: before the process is back
    unsubscribe = engine.events.subscribe(
        lambda event: readiness.append(engine.is_model_ready("dies")) if event.kind == "instance" else None
    )
    with pytest.raises(wb.WorkbenchError, match=r"Stub process 'dies_0' is not healthy\."):
        server.infer("dies", {"IN": np.full(1, 13, np.float32)})
    assert server.infer("lives", X)["OUT"].tolist() == [1], "another model does not notice"
    until(lambda: server.is_model_ready("dies"))
    assert server.infer("dies", X)["OUT"].tolist() == [1]
    unsubscribe()
    assert readiness == [False, True]
    told = [(event.level, event.data["healthy"]) for event in engine.events.after() if event.kind == "instance"]
    assert told == [("error", False), ("info", True)]


@pytest.mark.parametrize(
    ("body", "sends", "parts"),
    [
        ("return None", False, ("found type '<class 'NoneType'>'", "returned None", "model 'm'", "instance 'm_0'")),
        (
            "return [ANSWER, ANSWER]",
            False,
            ("InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2", "model 'm_0'"),
        ),
        (
            "sender.send(ANSWER); sender.send(ANSWER)",
            True,
            ("Non-decoupled model cannot send more than one response", "model 'm'", "instance 'm_0'"),
        ),
    ],
)
def test_f26_server_6966_each_way_to_answer_wrong_has_its_own_text(
    root: Path, make_engine: Any, over_http: Served, body: str, sends: bool, parts: tuple[str, ...]
) -> None:
    put(root, "m", body, sends=sends)
    server, _ = over_http(make_engine(root))
    with pytest.raises(wb.WorkbenchError) as caught:
        server.infer("m", X)
    text = str(caught.value)
    for part in parts:
        assert part in text
    if "InferenceResponse(s)" not in text:
        assert "`model_transaction_policy { decoupled: true }`" in text


def test_f26_server_6966_a_model_that_catches_the_refusal_has_answered_once(
    root: Path, make_engine: Any, over_http: Served
) -> None:
    body = "try:\n            [sender.send(ANSWER) for _ in range(2)]\n        except Exception:\n            pass"
    put(root, "m", body, sends=True)
    server, _ = over_http(make_engine(root))
    assert server.infer("m", X)["OUT"].tolist() == [1]
