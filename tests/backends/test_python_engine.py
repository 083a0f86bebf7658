"""Python models under the engine: death and return as clients see them, nested requests, reloads, a real tokenizer."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from asking import Children, wait_until

sys.path.insert(0, str(Path(__file__).parent))
from python_host import HEADER, answer, body, request

from workbench.engine import EngineOptions, InferenceEngine
from workbench.errors import BackendError, InstanceDied, WorkbenchError

ROOT = Path(__file__).parents[2]
X = np.array([[1, 2]], np.float32)
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""


def add(root: Path, name: str, source: str, config: str = "") -> None:
    version = root / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version.parent / "config.pbtxt").write_text(CONFIG + config)
    (version / "model.py").write_text(HEADER + source)


@pytest.fixture
def start(children: Children, tmp_path: Path) -> Iterator[Callable[..., InferenceEngine]]:
    engines: list[InferenceEngine] = []

    def start(**options: object) -> InferenceEngine:
        engine = InferenceEngine(EngineOptions((tmp_path,), **options))  # type: ignore[arg-type]
        engines.append(engine)
        engine.start()
        return engine

    yield start
    for engine in engines:
        engine.stop(10)
    assert children() == []


def test_reloads_leave_no_threads_of_a_model_behind(start: Callable[..., InferenceEngine], tmp_path: Path) -> None:
    metrics = """
family = pb_utils.MetricFamily(name="seen", description="d", kind=pb_utils.MetricFamily.COUNTER)
family.Metric(labels={}).increment(1)
"""
    add(tmp_path, "busy", body(metrics + answer("x")))

    def own() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name == "workbench-metrics"]

    engine = start(python_execution="thread")
    for _ in range(3):
        engine.infer(request("busy", {"IN": X}), 10)
        assert own(), "a model with metrics has a thread for them"
        engine.unload("busy")
        engine.load("busy")
    engine.unload("busy")
    wait_until(lambda: not own())


@pytest.mark.parametrize("execution", ["process", "thread"])
def test_a_model_is_served(start: Callable[..., InferenceEngine], tmp_path: Path, execution: str) -> None:
    add(tmp_path, "double", body(answer("x * 2")), "dynamic_batching { }")
    nested = """
q = pb_utils.InferenceRequest(model_name="double", requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", x)])
"""
    add(tmp_path, "outer", body(nested + answer("q.exec().output_tensors()[0].as_numpy() + 1")))
    add(tmp_path, "lost", body(nested.replace("double", "nope") + "out.append(q.exec())"))
    add(tmp_path, "wrong", body(nested.replace('"IN", x', '"XX", x') + "out.append(q.exec())"))
    engine = start(python_execution=execution)
    for name, text in (
        (
            "lost",
            "Model nope - Error when running inference: Failed for execute the inference request. Model 'nope' is ",
        ),
        ("wrong", "Model double - Error when running inference: "),
    ):
        with pytest.raises(BackendError) as caught:
            engine.infer(request(name, {"IN": X}), 10)
        assert caught.value.message.startswith(text)
    for _ in range(3):
        assert engine.infer(request("double", {"IN": X}), 10).as_numpy("OUT").tolist() == [[2, 4]]
        assert engine.infer(request("outer", {"IN": X}), 10).as_numpy("OUT").tolist() == [[3, 5]]
    (stats,) = engine.statistics("double")["model_stats"]
    assert int(stats["inference_stats"]["success"]["count"]) == 6
    assert int(stats["inference_stats"]["compute_infer"]["ns"]) > 0


@pytest.mark.parametrize("execution", ["process", "thread"])
def test_a_decoupled_model_streams(start: Callable[..., InferenceEngine], tmp_path: Path, execution: str) -> None:
    code = """
def later(s, n):
    for i in range(n):
        s.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array([[i]], np.float32))]))
    s.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
threading.Thread(target=later, args=(r.get_response_sender(), int(x[0, 0]))).start()
"""
    source = body(code).replace("return out", "return None")
    add(tmp_path, "many", source, "model_transaction_policy { decoupled: true }")
    engine = start(python_execution=execution)
    for count in (0, 1, 7):
        responses = list(engine.infer_stream(request("many", {"IN": np.array([[count]], np.float32)})))
        values = [response.as_numpy("OUT").item() for response in responses if response.outputs]
        assert values == list(range(count))
        assert [response.final for response in responses][-1:] == [True]


def test_a_dead_process_is_seen_and_comes_back(start: Callable[..., InferenceEngine], tmp_path: Path) -> None:
    add(tmp_path, "m", "time.sleep(0.3)\n" + body("if x[0, 0] < 0: os._exit(0)\n" + answer()))
    add(tmp_path, "other", body(answer()))
    engine = start()
    started = time.monotonic()
    with pytest.raises(InstanceDied) as caught:
        engine.infer(request("m", {"IN": -X}), 10)
    assert time.monotonic() - started < 2
    assert caught.value.code.http_status == 500
    assert caught.value.message.startswith("Stub process 'm")
    assert caught.value.message.endswith("' is not healthy.")
    assert not engine.is_model_ready("m")
    assert engine.is_model_ready("other")
    # a request that is queued meanwhile is answered by the process that is started again
    assert engine.infer(request("m", {"IN": X}), 20).as_numpy("OUT").tolist() == X.tolist()
    assert engine.is_model_ready("m")
    assert engine.infer(request("other", {"IN": X}), 10).as_numpy("OUT").tolist() == X.tolist()


def test_kill_minus_nine_under_load_loses_nothing_else(
    children: Children, start: Callable[..., InferenceEngine], tmp_path: Path
) -> None:
    source = "PID = os.getpid()\n" + body("time.sleep(0.001)\n" + answer("x * 0 + PID"))
    add(tmp_path, "m", source, "dynamic_batching { } instance_group { count: 2 kind: KIND_CPU }")
    engine = start()
    results: list[WorkbenchError | None] = []
    stop = threading.Event()

    def client() -> None:
        while not stop.is_set():
            try:
                engine.infer(request("m", {"IN": X.astype(np.float32)}), 20)
                results.append(None)
            except WorkbenchError as error:
                results.append(error)

    clients = [threading.Thread(target=client) for _ in range(4)]
    for thread in clients:
        thread.start()
    for _ in range(3):
        alive = children()
        assert alive
        os.kill(alive[0].pid, signal.SIGKILL)
        time.sleep(0.5)
    stop.set()
    for thread in clients:
        thread.join(20)
        assert not thread.is_alive()
    errors = [error for error in results if error is not None]
    assert len(results) > 100
    assert len(errors) <= 3 * 8
    assert all(isinstance(error, InstanceDied) for error in errors)
    (stats,) = engine.statistics("m")["model_stats"]
    counts = stats["inference_stats"]
    assert int(counts["success"]["count"]) == len(results) - len(errors)
    assert int(counts["fail"]["count"]) == len(errors)


def test_a_broken_model_is_said_and_a_failed_reload_keeps_the_old_one(
    start: Callable[..., InferenceEngine], tmp_path: Path
) -> None:
    add(tmp_path, "bad", "raise RuntimeError('at import')\n")
    add(tmp_path, "good", body(answer()))
    engine = start()
    index = {row["name"]: row for row in engine.repository_index()}
    assert index["bad"]["state"] == "UNAVAILABLE"
    assert "RuntimeError: at import" in index["bad"]["reason"]
    assert index["good"]["state"] == "READY"
    add(
        tmp_path, "good", "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('new')\n"
    )
    with pytest.raises(WorkbenchError, match="ValueError: new"):
        engine.load("good")
    assert engine.infer(request("good", {"IN": X}), 10).as_numpy("OUT").tolist() == X.tolist()
    add(tmp_path, "good", body("raise KeyError('x')"))
    engine.load("good")
    with pytest.raises(BackendError, match="message: KeyError: 'x'"):
        engine.infer(request("good", {"IN": X}), 10)


def test_auto_complete_config_completes_a_model_without_a_file(
    start: Callable[..., InferenceEngine], tmp_path: Path
) -> None:
    version = tmp_path / "auto" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text('backend: "python"')
    complete = """
    @staticmethod
    def auto_complete_config(c):
        c.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})
        c.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]})
        c.set_max_batch_size(3)
        c.set_dynamic_batching()
        return c
"""
    (version / "model.py").write_text(HEADER + body(answer("x + 1")) + complete)
    engine = start()
    config = engine.model_config("auto")
    assert config.max_batch_size == 3
    assert config.HasField("dynamic_batching")
    assert engine.infer(request("auto", {"IN": X}), 10).as_numpy("OUT").tolist() == [[2, 3]]


def test_the_sample_tokenizer_answers_alike_in_both_modes(repository: Path) -> None:
    texts = np.array([["hello world"], [""], ["naïve café 東京 🚀"], ["x " * 300]], object)
    answers = []
    for execution in ("process", "thread"):
        options = EngineOptions((repository,), load_models=("tokenizer",), python_execution=execution)  # type: ignore[arg-type]
        engine = InferenceEngine(options)
        engine.start()
        try:
            response = engine.infer(request("tokenizer", {"TEXT": texts}), 30)
            answers.append({name: response.as_numpy(name) for name in ("input_ids", "attention_mask")})
        finally:
            engine.stop(10)
    first, second = answers
    assert first["input_ids"].shape[0] == 4
    assert first["attention_mask"].sum(axis=1).tolist()[1] == 2
    for name, array in first.items():
        assert array.dtype == np.int64
        assert np.array_equal(array, second[name])
