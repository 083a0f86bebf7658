"""What people's test repositories rely on in Triton's example backends, beyond the plain case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asker, wait_until

from workbench.clock import monotonic_ns
from workbench.config import Edit
from workbench.engine import InferenceEngine
from workbench.errors import InvalidRequest, LoadFailed
from workbench.protocol.tensors import InferenceRequest, RequestedOutput, Tensor

Serve = Callable[..., InferenceEngine]

IDENTITY = """backend: "identity"
max_batch_size: 4
input [
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1, 2 ] },
  { name: "INPUT1" data_type: TYPE_INT32 dims: [ -1, 3 ] optional: true },
  { name: "INPUT2" data_type: TYPE_STRING dims: [ 1 ] optional: true }
]
output [
  { name: "OUTPUT2" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ -1, 3 ] },
  { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1, 2 ] }
]
instance_group { kind: KIND_CPU count: 3 }
"""
SQUARE = """backend: "square"
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
model_transaction_policy { decoupled: true }
instance_group { kind: KIND_CPU }
"""


def parameter(name: str, value: object) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'


@pytest.fixture
def serve(tmp_path: Path, make_engine: Serve) -> Serve:
    """Starts an engine over one model ``model``."""

    def start(config: str, *, load: bool = True) -> InferenceEngine:
        (tmp_path / "model" / "1").mkdir(parents=True)
        (tmp_path / "model" / "config.pbtxt").write_text(config)
        return make_engine(tmp_path, load_models=("*",) if load else ())

    return start


def ask(arrays: dict[str, Any], **fields: Any) -> InferenceRequest:
    return InferenceRequest("model", [Tensor.from_numpy(name, array) for name, array in arrays.items()], **fields)


def test_outputs_of_inputs_that_are_left_out_are_zeros(serve: Serve) -> None:
    engine = serve(IDENTITY)
    given = np.ones((2, 5, 2), np.float32)
    response = engine.infer(ask({"INPUT0": given}), 10)
    assert [tensor.name for tensor in response.outputs] == ["OUTPUT2", "OUTPUT1", "OUTPUT0"], "as configured"
    assert response.as_numpy("OUTPUT1").tolist() == np.zeros((2, 1, 3), int).tolist()
    assert response.as_numpy("OUTPUT2").tolist() == [[b""], [b""]]
    np.testing.assert_array_equal(response.as_numpy("OUTPUT0"), given)


def test_outputs_come_in_the_order_in_which_they_are_asked_for(serve: Serve) -> None:
    engine = serve(IDENTITY)
    wanted = [RequestedOutput("OUTPUT1"), RequestedOutput("OUTPUT0")]
    arrays = {"INPUT0": np.ones((1, 1, 2), np.float32), "INPUT1": np.full((1, 2, 3), 7, np.int32)}
    response = engine.infer(ask(arrays, outputs=wanted), 10)
    assert [tensor.name for tensor in response.outputs] == ["OUTPUT1", "OUTPUT0"]
    assert response.as_numpy("OUTPUT1").tolist() == [[[7] * 3] * 2]


def test_the_creation_delay_is_the_models_not_each_instances(serve: Serve) -> None:
    engine = serve(IDENTITY + parameter("creation_delay_sec", 1), load=False)
    before = monotonic_ns()
    engine.load("model")
    assert monotonic_ns() - before >= 1e9
    before = monotonic_ns()
    assert engine.configure("model", [Edit("instance_group[0].count", "set", 4)]).change_class == "instances"
    assert monotonic_ns() - before < 1e9, "instances are added without it"


def test_the_delay_of_an_instance_is_a_multiple_of_its_number(serve: Serve) -> None:
    delays = parameter("execute_delay_ms", 60) + parameter("instance_wise_delay_multiplier", 3)
    engine = serve(IDENTITY + delays)
    asked = Asker(engine).send(ask({"INPUT0": np.ones((1, 1, 2), np.float32)}) for _ in range(3))
    for each in asked:
        assert each.wait().error is None
    batches = engine.records.read().batches
    took = dict(zip(batches["instance"], np.asarray(batches["done"]) - np.asarray(batches["acquired"]), strict=True))
    for name, least_ms in (("model_0_0", 60), ("model_0_1", 180), ("model_0_2", 360)):
        assert took[name] >= least_ms * 1e6


def test_square_tells_where_its_request_was_cancelled(serve: Serve) -> None:
    delays = parameter("CUSTOM_INFER_DELAY_NS", 20_000_000) + parameter("CUSTOM_CANCEL_DELAY_NS", 50_000_000)
    engine = serve(SQUARE + delays)
    (asked,) = Asker(engine).send([ask({"IN": np.array([1000], np.int32)})])
    wait_until(lambda: bool(asked.responses))
    assert asked.ticket is not None
    engine.loop.call_soon_threadsafe(asked.ticket.cancel)
    asked.wait()

    def cancelled() -> list[dict[str, int]]:
        stats = engine.statistics("model")["model_stats"][0]["response_stats"]
        return [row["cancel"] for row in stats.values() if row["cancel"]["count"]]

    wait_until(lambda: bool(cancelled()))
    (row,) = cancelled()
    assert row["count"] == 1
    assert row["ns"] >= 50_000_000
    assert len(asked.responses) < 1000


DYNA = """backend: "dyna_sequence"
max_batch_size: 4
input { name: "INPUT" data_type: TYPE_INT32 dims: 1 }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }
instance_group { kind: KIND_CPU }
sequence_batching {
  oldest { max_candidate_sequences: 4 }
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }
}
"""


def test_dyna_sequence_wants_ids_that_are_numbers(serve: Serve) -> None:
    engine = serve(DYNA)
    given = {"INPUT": np.array([[1]], np.int32)}
    with pytest.raises(InvalidRequest) as caught:
        engine.infer(ask(given, sequence_id="abc", sequence_start=True), 10)
    assert caught.value.message == "dyna sequence backend expects correlation ID to be decodable into an integer"
    answer = engine.infer(ask(given, sequence_id="12abc", sequence_start=True, sequence_end=True), 10)
    assert answer.as_numpy("OUTPUT").tolist() == [[13]]


def test_a_sequence_model_without_input_has_tritons_text(serve: Serve) -> None:
    engine = serve(DYNA.replace('input { name: "INPUT" data_type: TYPE_INT32 dims: 1 }\n', ""), load=False)
    with pytest.raises(LoadFailed, match="model must have input 'INPUT' with vector shape, any length"):
        engine.load("model")
