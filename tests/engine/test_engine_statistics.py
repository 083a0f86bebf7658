"""Statistics against the formulas of section 11, computed from the records of the same requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asker
from gate_backend import CONFIG as GATE_CONFIG
from gate_backend import Gate
from onnx_models import add_model, request

from workbench.errors import InvalidRequest


@pytest.mark.rule("11.1a", "11.1b", "11.1c", "11.1d", "11.2a", "11.4", "11.5a")
def test_statistics_follow_from_the_records(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    for _ in range(5):
        for each in Asker(engine).send([request(rows=1 + index % 3) for index in range(11)]):
            each.wait()
    stats = engine.statistics("double")["model_stats"][0]
    columns = engine.records.read()
    rows, batches = columns.requests, columns.batches
    assert len(rows["seq"]) == 55
    assert len(set(rows["seq"])) == 55
    for early, late in (
        ("arrival", "queue_start"),
        ("queue_start", "compute_start"),
        ("compute_start", "compute_input_end"),
        ("compute_input_end", "compute_output_start"),
        ("compute_output_start", "compute_end"),
        ("compute_end", "end"),
    ):
        assert (rows[early] <= rows[late]).all(), (early, late)
    expected = {
        "success": (rows["end"] - rows["arrival"]).sum(),
        "queue": (rows["compute_start"] - rows["queue_start"]).sum(),
        "compute_input": (rows["compute_input_end"] - rows["compute_start"]).sum(),
        "compute_infer": (rows["compute_output_start"] - rows["compute_input_end"]).sum(),
        "compute_output": (rows["compute_end"] - rows["compute_output_start"]).sum(),
    }
    for name, total in expected.items():
        assert stats["inference_stats"][name] == {"count": 55, "ns": int(total)}, name
    assert stats["inference_stats"]["fail"] == {"count": 0, "ns": 0}
    assert stats["inference_count"] == rows["rows"].sum()
    assert stats["execution_count"] == len(batches["batch_seq"])
    # batch_stats: once per execution, not once per request
    assert sum(row["batch_size"] * row["compute_infer"]["count"] for row in stats["batch_stats"]) == rows["rows"].sum()
    first = {seq: index for index, seq in reversed(list(enumerate(rows["batch_seq"])))}
    infer = sum(int(rows["compute_output_start"][index] - rows["compute_input_end"][index]) for index in first.values())
    assert sum(row["compute_infer"]["ns"] for row in stats["batch_stats"]) == infer
    assert set(rows["batch_seq"]) == set(batches["batch_seq"])
    for seq, size, requests in zip(batches["batch_seq"], batches["rows"], batches["requests"], strict=True):
        mine = rows["batch_seq"] == seq
        assert rows["rows"][mine].sum() == size
        assert mine.sum() == requests
    assert stats["last_inference"] > 1_600_000_000_000


@pytest.mark.rule("1.9d", "2.5a", "2.5b", "2.6c", "2.6d", "11.3a", "11.3b", "11.3c")
def test_failures_by_reason_and_what_is_not_counted(gate: Gate, tmp_path: Path, make_engine: Any) -> None:
    config = GATE_CONFIG.replace("max_batch_size: 8", "max_batch_size: 1").replace(
        "dynamic_batching { }",
        "dynamic_batching { default_queue_policy { max_queue_size: 2 default_timeout_microseconds: 30000 } }",
    )
    add_model(tmp_path, "gate", config=config)
    engine = make_engine(tmp_path)
    asker = Asker(engine)
    (running,) = asker.send([request("gate", parameters={"do": "raise"})])
    assert gate.started.acquire(timeout=10)
    waiting = asker.send([request("gate", id="1"), request("gate", id="2"), request("gate", id="3")])
    full = waiting[2].refused
    assert full is not None
    assert full.message == "[request id: 3] Exceeds maximum queue size"
    assert full.code.http_status == 503
    assert engine.snapshot().version("gate").pending == 2
    for each in waiting[:2]:
        error = each.wait(2).error
        assert error is not None
        assert (error.message, error.code.http_status) == ("Request timeout expired", 503)
    assert engine.snapshot().version("gate").pending == 0
    gate.open.set()
    assert running.wait().error is not None
    assert engine.snapshot().version("gate").failures == {"REJECTED": 2, "CANCELED": 0, "BACKEND": 1, "OTHER": 0}
    stats = engine.statistics("gate")["model_stats"][0]
    assert stats["inference_stats"]["fail"]["count"] == 3
    assert stats["inference_stats"]["fail"]["ns"] >= 2 * 30_000_000
    assert (stats["inference_count"], stats["execution_count"], stats["batch_stats"]) == (0, 0, [])
    rows = engine.records.read().requests
    assert sorted(rows["status"]) == ["BACKEND", "REJECTED", "REJECTED"]
    late = rows["end"][rows["status"] == "REJECTED"] - rows["arrival"][rows["status"] == "REJECTED"]
    assert (late >= 30_000_000).all()
    assert np.median(late) < 60_000_000, "a timeout is answered when it expires, although all instances are busy"


@pytest.mark.rule("11.8b")
def test_unknown_models_and_versions(repository: Path, make_engine: Any) -> None:
    engine = make_engine(repository)
    with pytest.raises(InvalidRequest, match=r"^requested model 'nope' is not available$"):
        engine.statistics("nope")
    with pytest.raises(InvalidRequest, match=r"^requested model version is not available for model 'double'$"):
        engine.statistics("double", 4)
    assert [row["name"] for row in engine.statistics()["model_stats"]] == ["double"]


def test_nested_requests_carry_their_parent(gate: Gate, repository: Path, make_engine: Any) -> None:
    """BLS through the host: a request of a model, on the loop, recorded with the record of the one that made it."""
    add_model(repository, "gate", config=GATE_CONFIG)
    engine = make_engine(repository)
    import threading

    answers: list[Any] = []
    done = threading.Event()

    def ask(model: str) -> None:
        child = request(model, parent_seq=41)
        gate.host.infer(child, lambda response: (answers.append(response), done.set()))

    for model, failed in (("double", False), ("nope", True)):
        done.clear()
        engine.loop.call_soon_threadsafe(ask, model)
        assert done.wait(10)
        assert (answers[-1].error is not None) is failed
    rows = engine.records.read().requests
    assert list(rows["parent_seq"]) == [41]
