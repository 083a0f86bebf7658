"""Sequence batching in the engine (section 3): slots, control inputs, implicit states, idle sequences, texts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asker, wait_until
from gate_backend import Gate
from onnx import helper
from onnx_models import add_model, graph

from workbench.config import Edit
from workbench.engine import InferenceEngine
from workbench.errors import Code, InstanceDied, LoadFailed, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, Tensor

F = np.float32
CONTROLS = """
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } }
"""
STATE = """
  state { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_FP32 dims: 1 %s }
"""
ONNX = """backend: "onnxruntime"
max_batch_size: %d
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
instance_group { count: %d kind: KIND_CPU }
sequence_batching {
  %s
}
"""
GATE = """backend: "gate"
max_batch_size: %d
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
instance_group { count: %d kind: KIND_CPU }
sequence_batching { %s }
"""


def accumulate() -> bytes:
    """y = state + x + 100 * START; the state is then state + x. Rows that are not READY give -1 and keep the state."""
    one = helper.make_tensor("hundred", 1, [1], [100.0])
    minus = helper.make_tensor("minus", 1, [1], [-1.0])
    zero = helper.make_tensor("zero", 1, [1], [0.0])
    nodes = [
        helper.make_node("Add", ["SUM_IN", "x"], ["SUM_OUT"]),
        helper.make_node("Mul", ["START", "hundred"], ["started"]),
        helper.make_node("Add", ["SUM_OUT", "started"], ["told"]),
        helper.make_node("Greater", ["READY", "zero"], ["is_ready"]),
        helper.make_node("Where", ["is_ready", "told", "minus"], ["y"]),
    ]
    row = ("b", 1)
    inputs = [(name, "FP32", row) for name in ("x", "START", "READY", "SUM_IN")]
    return graph(nodes, inputs, [("y", "FP32", row), ("SUM_OUT", "FP32", row)], [one, minus, zero])


def add_accumulator(
    root: Path, *, size: int = 4, count: int = 1, strategy: str = "direct { }", initial: str = "", more: str = ""
) -> None:
    text = ONNX % (size, count, strategy + CONTROLS + STATE % initial + more)
    add_model(root, "sum", config=text, model=accumulate())


def ask(
    value: float, name: int | str, *, start: bool = False, end: bool = False, model: str = "sum", **fields: Any
) -> InferenceRequest:
    tensor = Tensor.from_numpy("x", np.full((1, 1), value, F))
    return InferenceRequest(model, [tensor], sequence_id=name, sequence_start=start, sequence_end=end, **fields)


def value(engine: InferenceEngine, request: InferenceRequest) -> float:
    response = engine.infer(request, 10)
    assert [each.name for each in response.outputs] == ["y"], "a state is among the outputs"
    return float(response.as_numpy("y")[0, 0])


def refused(engine: InferenceEngine, request: InferenceRequest) -> WorkbenchError:
    with pytest.raises(WorkbenchError) as caught:
        engine.infer(request, 10)
    return caught.value


# ---- ONNX models with controls and states


@pytest.mark.rule("3.10a", "3.10b", "3.10e")
@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 8 }"])
def test_states_follow_their_sequences(tmp_path: Path, make_engine: Any, strategy: str) -> None:
    add_accumulator(tmp_path, strategy=strategy, count=2)
    engine = make_engine(tmp_path)
    names: list[int | str] = [7, 8, 9, 2**63 + 1]
    for number, name in enumerate(names):
        assert value(engine, ask(number, name, start=True)) == 100 + number
    for round in (1, 2):
        for number, name in reversed(list(enumerate(names))):
            assert value(engine, ask(1, name)) == number + round
    assert value(engine, ask(5, 7, end=True)) == 7
    assert value(engine, ask(3, 7, start=True, end=True)) == 103, "the state of the sequence before was left"
    assert value(engine, ask(3, 8, start=True)) == 103, "START left the state of the sequence that it ended"
    assert engine.snapshot().version("sum").batching == "sequence"


@pytest.mark.rule("3.5b")
def test_direct_keeps_rows_and_fills_free_ones_with_null_requests(tmp_path: Path, make_engine: Any) -> None:
    add_accumulator(tmp_path)
    engine = make_engine(tmp_path)
    for name in (1, 2, 3):
        value(engine, ask(0, name, start=True))
    assert value(engine, ask(4, 3)) == 4
    sizes = {row["batch_size"]: row["compute_infer"]["count"] for row in stats(engine, "sum")["batch_stats"]}
    assert sizes == {1: 1, 2: 1, 3: 2}, "rows below the last one were not filled"
    assert stats(engine, "sum")["inference_count"] == 4
    rows = engine.records.read().batches
    assert list(rows["requests"]) == [1, 1, 1, 1]
    assert set(rows["reason"]) == {"sequence"}


def stats(engine: InferenceEngine, name: str) -> dict[str, Any]:
    found: dict[str, Any] = engine.statistics(name)["model_stats"][0]
    return found


def test_requests_of_several_sequences_share_a_batch(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    (tmp_path / "gate" / "1").mkdir(parents=True)
    (tmp_path / "gate" / "config.pbtxt").write_text(GATE % (4, 1, "oldest { }"))
    engine = make_engine(tmp_path)
    asker = Asker(engine)
    first = asker.send([ask(0, 9, start=True, model="gate", id="first")])
    assert gate.started.acquire(timeout=10)
    rest = asker.send([ask(n, n, start=True, model="gate", id=f"s{n}") for n in (1, 2, 3)])
    rest += asker.send([ask(n, n, model="gate", id=f"t{n}") for n in (1, 2, 3)])
    gate.open.set()
    for each in first + rest:
        assert each.wait().error is None
    assert gate.batches == [["first"], ["s1", "s2", "s3"], ["t1", "t2", "t3"]]


@pytest.mark.rule("3.10c", "3.10f")
def test_an_initial_state_comes_from_its_file(tmp_path: Path, make_engine: Any) -> None:
    initial = 'initial_state { name: "init" data_type: TYPE_FP32 dims: 1 data_file: "start" }'
    add_accumulator(tmp_path, initial=initial)
    folder = tmp_path / "sum" / "initial_state"
    folder.mkdir()
    (folder / "start").write_bytes(np.array([1000], F).tobytes())
    engine = make_engine(tmp_path)
    assert value(engine, ask(1, 1, start=True)) == 1101
    assert value(engine, ask(1, 1)) == 1002
    (folder / "start").write_bytes(b"ab")
    with pytest.raises(LoadFailed, match=r"expects 4 bytes, but the data provided from startonly has 2 bytes\."):
        engine.load("sum")
    (folder / "start").unlink()
    with pytest.raises(LoadFailed, match="failed to open text file for read"):
        engine.load("sum")
    assert value(engine, ask(1, 1)) == 1003, "the version that served was touched"


def test_a_control_that_the_file_lacks_is_refused(tmp_path: Path, make_engine: Any) -> None:
    corrid = 'control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }'
    add_accumulator(tmp_path, more=corrid)
    engine = make_engine(tmp_path, load_models=())
    with pytest.raises(LoadFailed, match="configuration expects 5 inputs, model provides 4"):
        engine.load("sum")


# ---- texts (3.1-3.3)


def test_completing_takes_every_input_of_the_file_also_controls_and_states(tmp_path: Path, make_engine: Any) -> None:
    """As Triton's ONNX Runtime backend: whoever has controls writes the inputs."""
    batching = f'backend: "onnxruntime" max_batch_size: 4 sequence_batching {{ {CONTROLS} {STATE % ""} }}'
    add_model(tmp_path, "bare", config=batching, model=accumulate())
    given = 'input { name: "x" data_type: TYPE_FP32 dims: 1 }'
    add_model(tmp_path, "given", config=batching + given, model=accumulate())
    engine = make_engine(tmp_path, load_models=())
    with pytest.raises(LoadFailed, match="configuration expects 7 inputs, model provides 4"):
        engine.load("bare")
    engine.load("given")
    assert output_names(engine, "given") == ["y", "SUM_OUT"]


def output_names(engine: InferenceEngine, model: str) -> list[str]:
    return [each.name for each in engine.infer(ask(1, 1, start=True, model=model), 10).outputs]


@pytest.mark.rule("3.1", "3.2a", "3.2b")
def test_what_is_refused(tmp_path: Path, make_engine: Any) -> None:
    add_accumulator(tmp_path)
    engine = make_engine(tmp_path)
    wide = ask(0, 1, start=True)
    wide.inputs = [Tensor.from_numpy("x", np.zeros((2, 1), F))]
    for request, text in (
        (
            wide,
            "inference request to model 'sum' must specify batch-size 1 due to requirements of sequence batcher",
        ),
        (ask(0, 0), "inference request to model 'sum' must specify a non-zero or non-empty correlation ID"),
        (ask(0, ""), "inference request to model 'sum' must specify a non-zero or non-empty correlation ID"),
        (
            ask(0, 5),
            "inference request for sequence 5 to model 'sum' must specify the START flag on the first request of the "
            "sequence",
        ),
    ):
        error = refused(engine, request)
        assert (error.message, error.code) == (text, Code.INVALID_ARG)
    assert stats(engine, "sum")["inference_stats"]["fail"]["count"] == 0


# ---- idle, backlog, cancelling


@pytest.mark.rule("3.7a")
def test_an_idle_sequence_frees_its_slot_for_the_backlog(tmp_path: Path, make_engine: Any) -> None:
    add_accumulator(tmp_path, size=1, more="max_sequence_idle_microseconds: 100000")
    engine = make_engine(tmp_path)
    value(engine, ask(1, 1, start=True))
    assert value(engine, ask(2, 2, start=True)) == 102, "the backlog did not get the idle sequence's slot"
    assert "must specify the START flag" in refused(engine, ask(1, 1)).message


@pytest.mark.rule("3.8b", "3.8c")
def test_a_sequence_times_out_in_the_backlog(tmp_path: Path, make_engine: Any) -> None:
    add_accumulator(tmp_path, size=1, more="max_sequence_idle_microseconds: 5000000")
    engine = make_engine(tmp_path)
    value(engine, ask(1, 1, start=True))
    error = refused(engine, ask(2, 2, start=True, timeout=20000))
    assert (error.message, error.code) == ("timeout of the corresponding sequence has been expired", Code.UNAVAILABLE)
    assert engine.snapshot().version("sum").failures["REJECTED"] == 1


def test_cancelling_answers_and_ends_the_sequence(tmp_path: Path, make_engine: Any) -> None:
    add_accumulator(tmp_path, size=1, more="max_sequence_idle_microseconds: 5000000")
    engine = make_engine(tmp_path)
    value(engine, ask(1, 1, start=True))
    waiting = Asker(engine).send([ask(2, 2, start=True), ask(2, 2)])
    wait_until(lambda: engine.snapshot().version("sum").pending == 2)
    assert waiting[0].ticket is not None
    engine.loop.call_soon_threadsafe(waiting[0].ticket.cancel)
    for each in waiting:
        assert each.wait().error is not None
        assert each.wait().error.code is Code.CANCELLED  # type: ignore[union-attr]
    assert value(engine, ask(1, 1)) == 2


# ---- instances


@pytest.mark.rule("3.13a")
def test_an_instance_goes_when_its_sequences_have_ended(tmp_path: Path, make_engine: Any) -> None:
    add_accumulator(tmp_path, size=1, count=2, more="max_sequence_idle_microseconds: 5000000")
    engine = make_engine(tmp_path)
    for name in (1, 2):
        value(engine, ask(name, name, start=True))
    engine.configure("sum", [Edit("instance_group[0].count", "set", 1)])
    assert [value(engine, ask(1, name)) for name in (1, 2)] == [2, 3], "a sequence was lost with its instance"
    assert value(engine, ask(0, 1, end=True)) == 2
    assert value(engine, ask(0, 2, end=True)) == 3
    assert value(engine, ask(5, 3, start=True)) == 105
    assert len(engine.snapshot().version("sum").instances) == 1


def test_a_process_that_dies_takes_its_sequences_with_it(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    (tmp_path / "gate" / "1").mkdir(parents=True)
    loop = 'parameters { key: "loop" value { string_value: "1" } }'
    (tmp_path / "gate" / "config.pbtxt").write_text(GATE % (1, 1, "direct { }") + loop)
    engine = make_engine(tmp_path)
    asked = Asker(engine).send([ask(1, 1, start=True, model="gate"), ask(1, 1, model="gate")])
    assert gate.started.acquire(timeout=10)
    (instance,) = gate.instances.values()
    instance.die()
    for each in asked:
        assert isinstance(each.wait().error, InstanceDied)
    instance.revive()
    gate.open.set()
    assert "must specify the START flag" in refused(engine, ask(1, 1, model="gate")).message
    assert engine.infer(ask(1, 1, start=True, model="gate"), 10).error is None


# ---- Python models and iterative sequences

PYTHON = """import json

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            names = ("START", "END", "READY", "ID")
            told = [pb.get_input_tensor_by_name(request, name).as_numpy().ravel()[0] for name in names]
            text = json.dumps([request.correlation_id(), request.flags(), *(each.item() for each in told)])
            answers.append(pb.InferenceResponse([pb.Tensor("y", np.array([[text]], dtype=np.object_))]))
        return answers
"""


@pytest.mark.rule("3.9a", "3.9b", "3.9d", "3.9e")
def test_python_models_get_correlation_id_flags_and_controls(tmp_path: Path, make_engine: Any) -> None:
    kinds = {"START": "int32_false_true: [ 0, 1 ]", "END": "fp32_false_true: [ 0, 1 ]"}
    kinds |= {"READY": "bool_false_true: [ false, true ]", "CORRID": "data_type: TYPE_UINT64"}
    controls = "".join(
        f'control_input {{ name: "{"ID" if kind == "CORRID" else kind}" '
        f"control {{ kind: CONTROL_SEQUENCE_{kind} {value} }} }}\n"
        for kind, value in kinds.items()
    )
    config = (GATE % (2, 1, "direct { }" + controls)).replace('"gate"', '"python"')
    config = config.replace('"y" data_type: TYPE_FP32', '"y" data_type: TYPE_STRING')
    (tmp_path / "told" / "1").mkdir(parents=True)
    (tmp_path / "told" / "config.pbtxt").write_text(config)
    (tmp_path / "told" / "1" / "model.py").write_text(PYTHON)
    engine = make_engine(tmp_path)
    said = [
        engine.infer(ask(0, 77, model="told", start=start, end=end), 10).as_numpy("y")[0, 0].decode()
        for start, end in ((True, False), (False, False), (False, True), (True, True))
    ]
    assert said == [
        "[77, 1, 1, 0.0, true, 77]",
        "[77, 0, 0, 0.0, true, 77]",
        "[77, 2, 0, 1.0, true, 77]",
        "[77, 3, 1, 1.0, true, 77]",
    ]


@pytest.mark.rule("3.11a")
def test_an_iterative_sequence_is_executed_until_it_is_not_given_back(
    tmp_path: Path, make_engine: Any, gate: Gate
) -> None:
    gate.open.set()
    (tmp_path / "gate" / "1").mkdir(parents=True)
    (tmp_path / "gate" / "config.pbtxt").write_text(GATE % (4, 1, "iterative_sequence: true"))
    engine = make_engine(tmp_path)
    asked = Asker(engine).send([ask(n, 0, model="gate", parameters={"do": f"again:{n}"}) for n in range(4)])
    for each in asked:
        assert each.wait().error is None
    assert sorted(gate.given_back.values()) == [1, 2, 3, 4], "times that each was executed"
    assert engine.snapshot().version("gate").running == 0


@pytest.mark.rule("3.11c")
def test_giving_a_request_back_without_iterative_sequence_is_an_error(
    tmp_path: Path, make_engine: Any, gate: Gate
) -> None:
    gate.open.set()
    (tmp_path / "gate" / "1").mkdir(parents=True)
    (tmp_path / "gate" / "config.pbtxt").write_text(GATE % (4, 1, "direct { }"))
    engine = make_engine(tmp_path)
    error = refused(engine, ask(1, 1, start=True, model="gate", parameters={"do": "again:1"}))
    assert error.message.startswith("Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE")


# ---- preserve_ordering


@pytest.mark.rule("3.6c")
def test_oldest_with_preserve_ordering_answers_in_the_order_in_which_requests_left(
    tmp_path: Path, make_engine: Any, gate: Gate
) -> None:
    (tmp_path / "gate" / "1").mkdir(parents=True)
    loop = 'parameters { key: "loop" value { string_value: "1" } }'
    (tmp_path / "gate" / "config.pbtxt").write_text(GATE % (1, 2, "oldest { preserve_ordering: true }") + loop)
    engine = make_engine(tmp_path)
    first, second = Asker(engine).send([ask(0, name, start=True, model="gate", id=str(name)) for name in (1, 2)])
    for _ in range(2):
        assert gate.started.acquire(timeout=10)
    by_request = {instance.running.requests[0].id: instance for instance in gate.instances.values()}
    ended = threading.Event()
    engine.loop.call_soon_threadsafe(lambda: (by_request["2"].end(), ended.set()))
    assert ended.wait(10)
    assert not second.ended.is_set(), "the later request was answered first"
    engine.loop.call_soon_threadsafe(by_request["1"].end)
    assert second.wait().error is None
    assert (first.order, second.order) == (0, 1)


@pytest.mark.rule("3.6c")
def test_preserve_ordering_does_not_wait_for_a_sequence_in_the_backlog(tmp_path: Path, make_engine: Any) -> None:
    """It would wait for ever: the backlog waits for the sequence whose answer is kept back."""
    add_accumulator(
        tmp_path, size=1, strategy="oldest { preserve_ordering: true }", more="max_sequence_idle_microseconds: 60000000"
    )
    engine = make_engine(tmp_path)
    value(engine, ask(1, 1, start=True))
    (waiting,) = Asker(engine).send([ask(2, 2, start=True)])
    assert value(engine, ask(1, 1)) == 2
    assert not waiting.ended.is_set()
    assert value(engine, ask(1, 1, end=True)) == 3
    assert waiting.wait().as_numpy("y")[0, 0] == 102


def test_a_batch_that_cannot_be_made_fails_and_the_model_goes_on(tmp_path: Path, make_engine: Any, gate: Gate) -> None:
    gate.open.set()
    control = 'control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }'
    add_model(tmp_path, "gate", config=GATE % (4, 1, "direct { } " + control), model=b"")
    engine = make_engine(tmp_path)
    for _ in range(3):
        error = refused(engine, ask(1, "\ud800", start=True, end=True, model="gate"))
        assert error.code is Code.INTERNAL
        assert "surrogates not allowed" in error.message
        assert value(engine, ask(2, "fine", start=True, end=True, model="gate")) == 2
    counted = stats(engine, "gate")["inference_stats"]
    assert (counted["success"]["count"], counted["fail"]["count"]) == (3, 3)
