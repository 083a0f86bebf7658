"""A live edit and a reload under 200 Poisson requests a second on a Python model in a process of its own."""

from __future__ import annotations

import os
import random
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Children, wait_until

from workbench.config import Edit
from workbench.engine import InferenceEngine
from workbench.errors import WorkbenchError
from workbench.protocol.tensors import InferenceRequest, Tensor

CONFIG = """
backend: "python"
max_batch_size: 64
input { name: "TEXT" data_type: TYPE_STRING dims: 1 }
output { name: "LENGTH" data_type: TYPE_INT64 dims: 1 }
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { }
"""

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            lengths = np.array([[len(text)] for text in texts.reshape(-1)], dtype=np.int64)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("LENGTH", lengths)]))
        return responses
"""

TEXTS = ("", "word", "é" * 40, "a longer text " * 30)


@dataclass
class Load:
    """Poisson arrivals on the engine's loop, seeded; counts what was sent and what came back."""

    engine: InferenceEngine
    rate: float = 200.0
    seed: int = 0
    sent: int = 0
    answered: int = 0
    wrong: int = 0
    failed: list[WorkbenchError] = field(default_factory=list)
    running: bool = True

    def start(self) -> None:
        chance = random.Random(self.seed)
        timers = self.engine._core.timers  # arrivals need microseconds, which the loop's own timers do not have
        due = self.engine._clock()

        def arrive() -> None:
            nonlocal due
            if not self.running:
                return
            text = TEXTS[self.sent % len(TEXTS)].encode()
            self.sent += 1
            data = np.array([[text]], dtype=object)
            request = InferenceRequest("texts", [Tensor("TEXT", "BYTES", (1, 1), data)])
            try:
                self.engine.submit(request, lambda response: self.collect(response, len(text)))
            except WorkbenchError as error:
                self.failed.append(error)
            due += int(chance.expovariate(self.rate) * 1e9)
            timers.call_at(due, arrive)

        self.engine.loop.call_soon_threadsafe(arrive)

    def collect(self, response: Any, length: int) -> None:
        if response.error is not None:
            self.failed.append(response.error)
            return
        self.answered += 1
        self.wrong += int(response.as_numpy("LENGTH")[0, 0]) != length

    def stop(self) -> None:
        self.engine._core.inbox.call(lambda: setattr(self, "running", False))
        wait_until(lambda: self.answered + len(self.failed) == self.sent)


def mean_batch(engine: InferenceEngine, load: Load, requests: int) -> float:
    """From statistics deltas over the next ``requests`` answers."""
    before, answered = engine.statistics("texts")["model_stats"][0], load.answered
    wait_until(lambda: load.answered >= answered + requests)
    after = engine.statistics("texts")["model_stats"][0]
    executions = after["execution_count"] - before["execution_count"]
    return float((after["inference_count"] - before["inference_count"]) / executions)


@pytest.fixture
def engine(tmp_path: Path, make_engine: Any) -> InferenceEngine:
    directory = tmp_path / "texts"
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(CONFIG)
    (directory / "1" / "model.py").write_text(MODEL)
    return make_engine(tmp_path)


def test_delay_edit_and_reload_under_load(engine: InferenceEngine, tmp_path: Path) -> None:
    load = Load(engine)
    load.start()
    # a window in which other work on the machine held the model up does not count
    wait_until(lambda: mean_batch(engine, load, 80) < 1.3)
    result = engine.configure("texts", [Edit("dynamic_batching.max_queue_delay_microseconds", "set", 20_000)])
    assert result.change_class == "live"
    assert result.took_ms < 100
    assert engine.model_config("texts").dynamic_batching.max_queue_delay_microseconds == 20_000
    edited = engine.snapshot().time_ns
    while mean_batch(engine, load, 30) <= 3:
        assert engine.snapshot().time_ns - edited < 1e9, "the mean batch has not risen above 3 within a second"
    model = tmp_path / "texts" / "1" / "model.py"
    model.write_text(MODEL + "\n# new weights\n")
    before = load.answered
    engine.load("texts")
    assert engine.statistics("texts")["model_stats"][0]["inference_count"] < load.answered - 50, "it was not reloaded"
    wait_until(lambda: load.answered > before + 30)
    load.stop()
    assert load.failed == [], [event.text for event in engine.events.after()]
    assert load.wrong == 0
    rows = engine.records.read().requests
    assert (rows["status"] == "ok").sum() == load.sent == load.answered
    assert engine.model_config("texts").dynamic_batching.max_queue_delay_microseconds == 20_000, "unsaved edits stay"


def test_the_same_check_sees_a_killed_process(children: Children, engine: InferenceEngine, tmp_path: Path) -> None:
    """What proves that the test above can fail: a process killed under the same load costs the batch that it runs."""
    busy = MODEL.replace("        responses = []", "        time.sleep(0.02)\n        responses = []")
    (tmp_path / "texts" / "1" / "model.py").write_text("import time\n" + busy)
    engine.load("texts")
    load = Load(engine)
    load.start()
    wait_until(lambda: load.answered > 50)
    tries = threading.Event()
    for _ in range(20):
        for child in children():
            os.kill(child.pid, signal.SIGKILL)
        tries.wait(0.2)
        if load.failed:
            break
    wait_until(lambda: engine.is_model_ready("texts"))
    load.stop()
    assert load.failed
    assert engine.snapshot().version("texts").failures["BACKEND"] == len(load.failed)
