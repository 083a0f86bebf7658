"""Responses of a stream: when the first came, how far apart the others, how many and how fast."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_target import INPUTS, ScriptedServer, ScriptedTarget

import workbench as wb
from workbench.errors import InvalidRequest
from workbench.profiling import Load, Measurer, Point, ServerTarget, SweepOptions, measure, sweep
from workbench.profiling.intervals import nearest_rank
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor
from workbench.records import RecordColumns
from workbench.records.runs import RunStore


def short(**changes: Any) -> dict[str, Any]:
    options = {"duration_s": 0.8, "warmup_s": 0.05, "min_requests": 0, "drain_s": 2.0, **changes}
    return {"max_duration_s": options["duration_s"], **options}


def decoupled(server: ScriptedServer) -> ScriptedServer:
    server.config["model_transaction_policy"] = {"decoupled": True}
    return server


def test_known_gaps_come_back_as_their_percentiles() -> None:
    # Of ten requests nine wait 20 ms for the first response, one 60 ms. Of five gaps four are of 10 ms, one of 50 ms.
    gaps = (0.010, 0.010, 0.010, 0.050, 0.010)
    for _ in range(5):  # a busy machine makes a point not valid, and that is said; then it is measured again
        with decoupled(ScriptedServer()) as control:  # what the way there and back adds on this machine, now
            control.stream = lambda n: (0.0, 0.001, 0.001)
            way = measure(ServerTarget(control.url), "m", Load.closed(8, **short()), inputs=INPUTS)
        with decoupled(ScriptedServer()) as server:
            server.stream = lambda n: (0.060 if n % 10 == 9 else 0.020, *gaps)
            point = measure(ServerTarget(server.url), "m", Load.closed(8, **short()), inputs=INPUTS)
            waited = np.array(server.gaps_ms)
        if point.verdict == "valid":
            break
    assert point.load.streaming  # a decoupled model gives its responses in no other way
    assert point.failed == 0
    assert point.first_response_n == point.n > 20
    assert point.between_responses_n == 5 * point.n
    assert point.responses_per_request == 6
    added = max(2.0, 3 * way.first_response_p99_ms)
    first, between = np.sort(waited[:, 0]), np.sort(waited[:, 1:].reshape(-1))
    for found, kept, asked_ms in (
        (point.first_response_p50_ms, nearest_rank(first, 0.5), 20),
        (point.first_response_p99_ms, first[-1], 60),
        (point.between_responses_p50_ms, nearest_rank(between, 0.5), 10),
        (point.between_responses_p90_ms, nearest_rank(between, 0.9), 50),
        (point.between_responses_p99_ms, nearest_rank(between, 0.99), 50),
    ):
        assert asked_ms - 1 <= found <= kept + added, (kept, added)
    assert point.first_response_p50_low <= point.first_response_p50_ms <= point.first_response_p50_high
    assert point.p50_ms == pytest.approx(np.median(waited.sum(axis=1)), rel=0.1)  # it lasts until its last response
    assert point.responses_per_s == pytest.approx(6 * point.throughput, rel=0.2)
    shown = repr(point)
    assert f"{point.responses_per_s:.1f}/s, 6.0 a request" in shown
    assert f"first ms    p50 {point.first_response_p50_ms:.2f}" in shown
    assert f"n {point.between_responses_n}" in shown


def test_an_open_loop_counts_from_when_a_request_was_due() -> None:
    with decoupled(ScriptedServer()) as server:
        server.stream = lambda n: (0.030, 0.010)
        load = Load.open(100, "constant", **short())
        with Measurer(ServerTarget(server.url), "m", inputs=INPUTS) as measurer:
            measured = measurer.run(load)
    point, samples = measured.point, measured.samples
    assert point.first_response_n == pytest.approx(80, abs=2)
    # Of every request of the window both responses, also those that came behind its end.
    assert point.between_responses_n == point.first_response_n
    assert len(samples.response_of) == 2 * len(samples.sent)
    due = (samples.scheduled >= samples.window[0]) & (samples.scheduled < samples.window[1])
    first = np.array([samples.response_at[samples.response_of == number].min() for number in np.flatnonzero(due)])
    assert point.first_response_p99_ms == pytest.approx(np.sort(first - samples.scheduled[due])[-1] / 1e6, rel=0.2)
    assert point.first_response_p50_ms == pytest.approx(np.median(first - samples.scheduled[due]) / 1e6, rel=0.05)


def test_a_model_of_one_response_streams_where_it_is_asked_for() -> None:
    with ScriptedServer() as server:
        server.stream = lambda n: (0.005,)
        point = measure(ServerTarget(server.url), "m", Load.closed(2, **short(streaming=True)), inputs=INPUTS)
        assert {tuple(json.loads(body)) for body in server.bodies} == {("X",)}
    assert point.responses_per_request == 1
    assert point.between_responses_n == 0
    assert math.isnan(point.between_responses_p50_ms)
    assert point.first_response_p50_ms <= point.p50_ms


def test_errors_of_a_stream_are_failures_and_no_responses() -> None:
    scripts: list[list[float | str]] = [["out of words"], [0.002, 0.002, "lost the thread"], [0.002, 0.002]]
    with decoupled(ScriptedServer()) as server:
        server.stream = lambda n: scripts[n % 3]
        point = measure(ServerTarget(server.url), "m", Load.closed(3, **short()), inputs=INPUTS)
    assert set(point.errors) == {"out of words", "lost the thread"}
    assert point.failed > 4
    assert point.responses_per_request == 2  # of the answered ones; a response before an error is not an answer
    assert point.first_response_n == point.n


def test_a_broken_stream_fails_no_request_that_comes_after_it_on_its_connection() -> None:
    with ScriptedServer() as server:
        server.stream = lambda n: (0.0, "lost the thread")
        classes = {"streams": Load.closed(1, streaming=True), "plain": Load.open(300, "constant")}
        load = Load.classes(classes, **short(duration_s=0.4))
        point = measure(ServerTarget(server.url), "m", load, inputs=INPUTS)
    assert point.classes["streams"].failed > 10
    assert point.classes["plain"].n > 10
    assert point.classes["plain"].failed == 0


def test_a_stream_without_responses_is_an_answer() -> None:
    with decoupled(ScriptedServer()) as server:
        point = measure(ServerTarget(server.url), "m", Load.closed(2, **short(duration_s=0.2)), inputs=INPUTS)
    assert point.n > 10
    assert (point.first_response_n, point.responses_per_request, point.responses_per_s) == (0, 0, 0)


def test_figures_are_in_the_table_the_run_and_the_csv_and_of_streams_only(tmp_path: Path) -> None:
    with decoupled(ScriptedServer()) as server:
        server.stream = lambda n: (0.005, 0.005)
        load = Load.closed(2, **short(duration_s=0.3))
        result = sweep(ScriptedTarget(server), "m", {"max_batch_size": [4]}, [load], inputs=INPUTS,
                       store=RunStore(tmp_path), options=SweepOptions(keep_samples=True))  # fmt: skip
    (point,) = result
    row = result.to_frame().iloc[0]
    assert row.first_response_p50_ms == point.first_response_p50_ms > 4
    assert row.responses_per_s == point.responses_per_s
    with RunStore(tmp_path).open(result.run_id) as run:
        again = Point.from_json(next(iter(run.points())))
        assert "between_responses_p99_ms" in run.frame().to_csv()
        stamps = run.samples(run.points()[0]["id"])
        assert len(stamps["response_at"]) == len(stamps["response_of"]) == 2 * len(stamps["sent"])
    assert again.to_json() == point.to_json()
    with ScriptedServer(lambda n: 0.002) as server:
        plain = measure(ServerTarget(server.url), "m", Load.closed(2, **short(duration_s=0.2)), inputs=INPUTS)
    assert not [name for name in plain.row() if "response" in name]
    assert "responses" not in repr(plain)


class Kernel:
    """A target in this process that sends the responses of a request at known gaps from a thread."""

    url = ""
    protocol = "in-kernel"

    def __init__(self, gaps: tuple[float, ...]) -> None:
        self.gaps = gaps

    def statistics(self, model: str) -> Mapping[str, Any]:
        return {"model_stats": []}

    def model_config(self, model: str) -> Mapping[str, Any]:
        inputs = [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}]
        return {"name": "m", "max_batch_size": 0, "input": inputs, "model_transaction_policy": {"decoupled": True}}

    def records(self, after: int) -> RecordColumns | None:
        return None

    def epoch(self, model: str) -> int | None:
        return None

    def submit(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> object:
        def run() -> None:
            for gap in self.gaps:
                threading.Event().wait(gap)
                on_response(InferenceResponse("m", 1, outputs=[Tensor.from_numpy("Y", np.zeros(1))], final=False))
            on_response(InferenceResponse("m", 1, final=True))  # says only that there are no more

        threading.Thread(target=run, daemon=True).start()
        return None


def test_in_the_kernel_the_empty_final_response_is_none() -> None:
    target: Any = Kernel((0.02, 0.01, 0.01))
    point = measure(target, "m", Load.closed(2, **short()), inputs={"X": np.zeros(4, np.float32)})
    assert point.n > 2
    assert point.responses_per_request == 3
    assert point.between_responses_n == 2 * point.n
    assert 19 <= point.first_response_p50_ms <= point.p50_ms - 19  # two more come behind it
    assert 9 <= point.between_responses_p50_ms < 250


class Described(ServerTarget):
    """A target that tells the inputs of its model."""

    def model_metadata(self, model: str) -> Mapping[str, Any]:
        return {"inputs": [{"name": "X", "datatype": "FP32", "shape": [-1, -1]}]}


def test_inputs_that_generate_cannot_carry_are_refused_in_words() -> None:
    with decoupled(ScriptedServer()) as server:
        target, load = Described(server.url), Load.closed(1, **short(duration_s=0.1))
        assert measure(target, "m", load, inputs={"X": np.zeros((1, 4), np.float32)}).n > 0
        with pytest.raises(InvalidRequest, match=r"cannot carry input 'X' of shape \[2, 4\]") as caught:
            measure(target, "m", load, inputs={"X": np.zeros((2, 4), np.float32)})
        assert "batch_size 1" in caught.value.hint
        for said, options in (("priority", {"priority": 1}), ("timeout", {"timeout_s": 1.0})):
            with pytest.raises(InvalidRequest, match=f"carries no {said}") as caught:
                measure(target, "m", Load.closed(1, **short(duration_s=0.1), **options), inputs=INPUTS)
            assert "gRPC" in caught.value.hint


COUNTER = """\
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(4):
                time.sleep(0.02 if number == 0 else 0.01)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([number], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNTER_CONFIG = """\
name: "counter" backend: "python" max_batch_size: 0
model_transaction_policy { decoupled: true }
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
"""


@pytest.mark.parametrize("where", ["Engine", "serve"])
def test_a_decoupled_python_model_is_measured_in_the_kernel_and_over_http(tmp_path: Path, where: str) -> None:
    (tmp_path / "counter" / "1").mkdir(parents=True)
    (tmp_path / "counter" / "config.pbtxt").write_text(COUNTER_CONFIG)
    (tmp_path / "counter" / "1" / "model.py").write_text(COUNTER)
    with getattr(wb, where)(tmp_path) as server:
        point = server.profile("counter", concurrency=2, **short())
    assert point.protocol == ("in-kernel" if where == "Engine" else "http")
    assert point.failed == 0
    assert point.n > 4
    assert point.responses_per_request == 4
    assert not any("counted" in reason or "lost" in reason for reason in point.reasons)  # the books agree
    assert point.first_response_p50_ms > 19
    assert point.between_responses_p50_ms > 9
    assert point.p50_ms > 49
