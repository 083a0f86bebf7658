"""What ensembles and their steps count (server#5296, #2429, #6341, #7692, #5374), and scalars (server#7355)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_models as models
from asking import Asker, wait_until
from ensembles import add_ensemble, ensemble_config, step

from workbench.clock import monotonic_ns
from workbench.engine import InferenceEngine
from workbench.protocol.tensors import InferenceRequest, Tensor

NAMES = ("INPUT0", "OUTPUT0")
BRANCHES = [f"branch{n}" for n in range(5)]
DURATIONS = ("success", "queue", "compute_input", "compute_infer", "compute_output")


def test_f22_server_5296_parallel_branches_count_alike_everywhere(root: Path, make_engine: Any, over_http: Any) -> None:
    """Five steps side by side, 100 requests: some stayed at 0 in the execution counts and durations."""
    for name in BRANCHES:
        models.add(root, name, models.identity(ms=1, batching=""))
    steps = [step(name, "X", f"Y{n}", names=NAMES) for n, name in enumerate(BRANCHES)]
    add_ensemble(root, "fan", steps, outputs=[f"Y{n}" for n in range(5)])
    engine = make_engine(root)
    client, metrics = over_http(engine)
    x = np.zeros((1, 4), np.float32)
    with ThreadPoolExecutor(10) as pool:
        assert all(each["Y4"].shape == (1, 4) for each in pool.map(lambda _: client.infer("fan", {"X": x}), range(100)))
    for name in (*BRANCHES, "fan"):
        wait_until(lambda name=name: models.stats(engine, name)["execution_count"] == 100)  # type: ignore[misc]
        counted = models.stats(engine, name)
        assert counted["inference_stats"]["success"]["count"] == counted["inference_count"] == 100
        for part in ("success", "compute_infer"):
            assert counted["inference_stats"][part]["ns"] > 0
        labels = {"model": name, "version": "1"}
        for series, value in (
            ("nv_inference_request_success", 100),
            ("nv_inference_exec_count", 100),
            ("nv_inference_count", 100),
        ):
            wait_until(lambda s=series, v=value, names=labels: models.metric(metrics, s, **names) == v)  # type: ignore[misc]
        infer_us = counted["inference_stats"]["compute_infer"]["ns"] // 1000
        assert abs(models.metric(metrics, "nv_inference_compute_infer_duration_us", **labels) - infer_us) <= 1
        over_the_wire = client.statistics(name)["model_stats"][0]
        shown = engine.snapshot().version(name).statistics
        assert over_the_wire == shown == counted
    whole = models.stats(engine, "fan")["inference_stats"]["compute_infer"]["ns"]
    assert whole == sum(models.stats(engine, name)["inference_stats"]["compute_infer"]["ns"] for name in BRANCHES)


def bounded(engine: InferenceEngine, begun: int) -> None:
    """No sum of durations may be above requests x wall time; the queue of an ensemble is near 0."""
    wall = monotonic_ns() - begun
    for counted in engine.statistics()["model_stats"]:
        requests = counted["inference_stats"]["success"]["count"] + counted["inference_stats"]["fail"]["count"]
        steps = 5 if counted["name"] == "chain" else 1
        for part in (*DURATIONS, "fail"):
            ns = counted["inference_stats"][part]["ns"]
            assert 0 <= ns <= steps * requests * wall, (counted["name"], part)
        for row in counted["batch_stats"]:
            for part in DURATIONS[2:]:
                assert 0 <= row[part]["ns"] <= steps * row[part]["count"] * wall


@pytest.mark.parametrize("kind", ["answers", "failures", "cancelled", "timeouts"])
def test_f23_server_2429_no_duration_is_absurd(root: Path, make_engine: Any, kind: str) -> None:
    """Two steps at concurrency 50: durations ran below zero; whatever becomes of the requests, none may."""
    policy = "default_queue_policy { default_timeout_microseconds: 20000 }" if kind == "timeouts" else ""
    models.add(root, "first", models.identity(size=4))
    models.add(root, "second", models.identity(ms=5, size=4, batching=f"dynamic_batching {{ {policy} }}"))
    add_ensemble(root, "chain", [step("first", "X", "t", names=NAMES), step("second", "t", "Y", names=NAMES)], size=4)
    begun = monotonic_ns()
    engine = make_engine(root)
    asker = Asker(engine)
    rows = 9 if kind == "failures" else 1
    asked = asker.send([models.ask("chain", name="X", rows=rows if n % 2 else 1) for n in range(50)])
    if kind == "cancelled":
        tickets = [each.ticket for each in asked[::2] if each.ticket is not None]
        engine.loop.call_soon_threadsafe(lambda: [ticket.cancel() for ticket in tickets])
    for each in asked:
        assert each.ended.wait(10)
    wait_until(lambda: models.nothing_left(engine))
    bounded(engine, begun)
    chain, second = (models.stats(engine, name)["inference_stats"] for name in ("chain", "second"))
    assert chain["success"]["count"] == sum(each.error is None for each in asked)
    if kind == "answers":
        assert chain["queue"]["ns"] < second["queue"]["ns"], "the steps' queue times are the ensemble's breakdown"
        assert second["queue"]["ns"] > 0
        columns = engine.records.read().requests
        parents = set(columns["seq"][columns["model"] == "chain"].tolist())
        assert set(columns["parent_seq"][columns["model"] == "second"].tolist()) == parents
        queued = (columns["compute_start"] - columns["queue_start"])[columns["model"] == "second"].sum()
        assert queued == second["queue"]["ns"], "records and statistics disagree"


def test_f63_server_6341_the_figures_fit_together(root: Path, make_engine: Any, over_http: Any) -> None:
    """100 requests of 4 rows at concurrency 10, one instance of 5 ms: what people compute from the counters holds."""
    models.add(root, "m", models.identity(ms=5, size=8))
    engine = make_engine(root)
    client, metrics = over_http(engine)
    labels = {"model": "m", "version": "1"}
    x = np.zeros((4, 4), np.float32)
    assert models.metric(metrics, "nv_inference_pending_request_count", **labels) == 0, "the gauge is missing"
    begun = monotonic_ns()
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda _: client.infer("m", {"INPUT0": x}), range(100)))
    wall_us = (monotonic_ns() - begun) / 1000
    wait_until(lambda: models.metric(metrics, "nv_inference_request_success", **labels) == 100)
    assert models.metric(metrics, "nv_inference_count", **labels) == 400
    assert 50 <= models.metric(metrics, "nv_inference_exec_count", **labels) <= 100
    assert models.metric(metrics, "nv_inference_pending_request_count", **labels) == 0
    whole = models.metric(metrics, "nv_inference_request_duration_us", **labels)
    parts = sum(
        models.metric(metrics, f"nv_inference_{part}_duration_us", **labels)
        for part in ("queue", "compute_input", "compute_infer", "compute_output")
    )
    assert parts <= 1.05 * whole
    assert whole <= 10 * wall_us, "more than concurrency x wall time"
    assert whole > wall_us, "durations are sums over requests, which overlap"
    records = engine.records.read().requests
    latency = (records["end"] - records["arrival"]).sum() / 1000
    assert abs(whole - latency) <= 0.01 * latency, "request_duration / request_success is the mean latency"


SHAPES = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
            outputs = [pb_utils.Tensor("seen", np.full((len(text), 1), len(text.shape), np.int32)),
                       pb_utils.Tensor("back", text)]
            answers.append(pb_utils.InferenceResponse(outputs))
        return answers
"""


@pytest.mark.parametrize("reshape", ["reshape { }", "reshape: { shape: [ ] }", "reshape < shape: [] >"])
@pytest.mark.parametrize("rows", [1, 3])
def test_f18_server_7355_an_empty_reshape_works_through_an_ensemble(
    root: Path, make_engine: Any, reshape: str, rows: int
) -> None:
    """dims 1 with an empty reshape: clients and ensembles see [b, 1], the model sees and gives [b]."""
    config = f"""backend: "python"
max_batch_size: 8
input {{ name: "text" data_type: TYPE_STRING dims: 1 {reshape} }}
output [ {{ name: "seen" data_type: TYPE_INT32 dims: 1 }},
         {{ name: "back" data_type: TYPE_STRING dims: 1 {reshape} }} ]
"""
    models.add(root, "scalar", config, SHAPES)
    steps = (
        'step { model_name: "scalar" model_version: -1 input_map { key: "text" value: "TEXT" } '
        'output_map { key: "seen" value: "SEEN" } output_map { key: "back" value: "t" } }\n'
        'step { model_name: "scalar" model_version: -1 input_map { key: "text" value: "t" } '
        'output_map { key: "back" value: "BACK" } }\n'
    )
    text = ensemble_config([steps], outputs=("SEEN", "BACK"))
    text = text.replace('"X" data_type: TYPE_FP32 dims: 4', '"TEXT" data_type: TYPE_STRING dims: 1')
    text = text.replace('"SEEN" data_type: TYPE_FP32 dims: 4', '"SEEN" data_type: TYPE_INT32 dims: 1')
    text = text.replace('"BACK" data_type: TYPE_FP32 dims: 4', '"BACK" data_type: TYPE_STRING dims: 1')
    models.add(root, "chain", text)
    engine = make_engine(root, python_execution="thread")
    given = np.array([[f"word {n}".encode()] for n in range(rows)], dtype=np.object_)
    for model, name, seen, back in (("scalar", "text", "seen", "back"), ("chain", "TEXT", "SEEN", "BACK")):
        request = InferenceRequest(model, [Tensor.from_numpy(name, given)])
        response = engine.infer(request, 10)
        assert response.as_numpy(seen).tolist() == [[1]] * rows, "the model does not see [b]"
        assert response.as_numpy(back).tolist() == given.tolist()
        (tensor,) = [each for each in response.outputs if each.name == back]
        assert tensor.shape == (rows, 1)
