"""Nested requests (BLS) that wait in a queue when their caller gives them up, dies, or asked for too short a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asker, wait_until
from gate_backend import Gate

from workbench.engine import InferenceEngine
from workbench.errors import InstanceDied
from workbench.protocol.tensors import InferenceRequest, Tensor

GATE = """backend: "gate"
max_batch_size: 1
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
instance_group { kind: KIND_CPU }
dynamic_batching { default_queue_policy { default_timeout_microseconds: 60000000 allow_timeout_override: true } }
"""
CALLER = """backend: "python"
max_batch_size: 1
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_STRING dims: 1 }
instance_group { kind: KIND_CPU }
"""
SOURCE = """
import os, time
import numpy as np
import triton_python_backend_utils as pb_utils

def call(name, **fields):
    tensor = pb_utils.Tensor("x", np.zeros((1, 4), np.float32))
    request = pb_utils.InferenceRequest(request_id=name, model_name="gate", requested_output_names=["y"],
                                        inputs=[tensor], **fields)
    return request.exec(decoupled=True)

def wait():
    while not os.path.exists("GO"):
        time.sleep(0.002)

class TritonPythonModel:
    def execute(self, requests):
        text = ""
        ACT
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[text]], dtype=np.object_))])]
"""
ACTS = {
    "cancels": 'it = call("victim"); wait(); it.cancel(); text = str(len(list(it)))',
    "drops": 'it = call("victim"); wait(); del it; text = "0"',
    "raises": 'it = call("victim"); wait(); raise ValueError("no more")',
    "dies": 'it = call("victim"); wait(); os._exit(3)',
    "asks for too short a time": 'text = next(call("victim", timeout=50000)).error().message()',
}


def start(make_engine: Any, root: Path, act: str, execution: str) -> InferenceEngine:
    for name, config in (("gate", GATE), ("caller", CALLER)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
    source = SOURCE.replace("ACT", act).replace("GO", str(root / "go"))
    (root / "caller" / "1" / "model.py").write_text(source)
    engine: InferenceEngine = make_engine(root, python_execution=execution)
    return engine


def ask(model: str, name: str, id: str = "") -> InferenceRequest:
    return InferenceRequest(model, [Tensor.from_numpy(name, np.zeros((1, 4), np.float32))], id=id)


CASES = [
    (act, execution) for act in ACTS for execution in ("process", "thread") if (act, execution) != ("dies", "thread")
]


@pytest.mark.parametrize(("act", "execution"), CASES)
def test_a_nested_request_that_is_given_up_leaves_the_queue(
    tmp_path: Path, make_engine: Any, gate: Gate, act: str, execution: str
) -> None:
    engine = start(make_engine, tmp_path, ACTS[act], execution)
    asker = Asker(engine)
    (first,) = asker.send([ask("gate", "x", "first")])
    assert gate.started.acquire(timeout=10)
    (outer,) = asker.send([ask("caller", "IN")])
    wait_until(lambda: engine.snapshot().version("gate").pending == 1)
    (tmp_path / "go").touch()
    wait_until(lambda: engine.snapshot().version("gate").pending == 0)
    response = outer.wait()
    if act == "dies":
        assert isinstance(response.error, InstanceDied)
    elif act == "raises":
        assert response.error is not None
        assert "no more" in response.error.message
    else:
        assert response.as_numpy("OUT")[0, 0] == (b"Request timeout expired" if "short" in act else b"0")
    gate.open.set()
    assert first.wait().error is None
    wait_until(lambda: all(each.pending == 0 and each.running == 0 for each in engine.snapshot().versions))
    assert gate.batches == [["first"]], "it was executed"
    reason = "REJECTED" if "short" in act else "CANCELED"
    assert engine.snapshot().version("gate").failures[reason] == 1


@pytest.mark.parametrize("execution", ["process", "thread"])
def test_nested_requests_are_under_way_before_their_answers_are_asked_for(
    tmp_path: Path, make_engine: Any, gate: Gate, execution: str
) -> None:
    """Several calls with ``exec(decoupled=True)`` run side by side, as a model with several iterators expects."""
    act = 'its = [call(str(n)) for n in range(3)]; text = " ".join(str(len(list(it))) for it in its)'
    engine = start(make_engine, tmp_path, act, execution)
    (outer,) = Asker(engine).send([ask("caller", "IN")])
    assert gate.started.acquire(timeout=10)
    wait_until(lambda: engine.snapshot().version("gate").pending == 2)
    gate.open.set()
    assert outer.wait().as_numpy("OUT")[0, 0] == b"1 1 1"
