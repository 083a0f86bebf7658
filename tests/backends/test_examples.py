"""Triton's example backends by their names and parameters, served by the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asker

from workbench.engine import InferenceEngine
from workbench.errors import LoadFailed, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor

Serve = Callable[..., InferenceEngine]
VECTOR = """input { name: "INPUT" data_type: TYPE_INT32 dims: 2 }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: 2 }
"""


def control(name: str, value: str = "int32_false_true: [ 0, 1 ]") -> str:
    return f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{name} {value} }} }}\n'


def parameter(name: str, value: object) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'


@pytest.fixture
def serve(tmp_path: Path, make_engine: Serve) -> Serve:
    """Writes models (name -> configuration) and starts an engine over them."""

    def start(*, load: bool = True, **models: str) -> InferenceEngine:
        for name, config in models.items():
            (tmp_path / name / "1").mkdir(parents=True)
            (tmp_path / name / "config.pbtxt").write_text(config)
        return make_engine(tmp_path, load_models=("*",) if load else ())

    return start


def ask(model: str, arrays: dict[str, Any], **fields: Any) -> InferenceRequest:
    return InferenceRequest(
        model, [Tensor.from_numpy(name, np.asarray(array)) for name, array in arrays.items()], **fields
    )


def stream(engine: InferenceEngine, request: InferenceRequest) -> list[InferenceResponse]:
    return list(engine.infer_stream(request))


def refused(serve: Serve, config: str) -> str:
    engine = serve(load=False, model=config)
    with pytest.raises(LoadFailed) as caught:
        engine.load("model")
    return caught.value.message


IDENTITY = """backend: "identity"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: -1 }, { name: "INPUT1" data_type: TYPE_STRING dims: 1 } ]
output [ { name: "OUTPUT1" data_type: TYPE_STRING dims: 1 }, { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 } ]
instance_group { kind: KIND_CPU }
dynamic_batching { }
"""


def test_identity_gives_back_what_it_gets_after_its_delay(serve: Serve) -> None:
    engine = serve(model=IDENTITY + parameter("execute_delay_ms", 30))
    given = {"INPUT0": np.ones((2, 3), np.float32), "INPUT1": np.array([[b"a"], [b"b"]], dtype=np.object_)}
    response = engine.infer(ask("model", given), 10)
    np.testing.assert_array_equal(response.as_numpy("OUTPUT0"), given["INPUT0"])
    assert response.as_numpy("OUTPUT1").tolist() == [[b"a"], [b"b"]]
    infer = engine.statistics("model")["model_stats"][0]["inference_stats"]["compute_infer"]
    assert infer["ns"] >= 30_000_000


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('"OUTPUT0"', '"OUTPUT2"', "expected input and output indices to match"),
        ('"INPUT0"', '"X"', "expected input name to follow INPUT<index> pattern, got 'X'"),
        (
            'OUTPUT0" data_type: TYPE_FP32',
            'OUTPUT0" data_type: TYPE_INT8',
            "datatype to match, got TYPE_FP32 and TYPE_INT8",
        ),
    ],
)
def test_identity_refuses_what_is_no_pair(serve: Serve, old: str, new: str, text: str) -> None:
    assert text in refused(serve, IDENTITY.replace(old, new))


REPEAT = """backend: "repeat"
input [ { name: "IN" data_type: TYPE_INT32 dims: -1 }, { name: "DELAY" data_type: TYPE_UINT32 dims: -1 },
        { name: "WAIT" data_type: TYPE_UINT32 dims: 1 } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: 1 }, { name: "IDX" data_type: TYPE_UINT32 dims: 1 } ]
model_transaction_policy { decoupled: true }
"""


def repeat(values: list[int], delays: list[int], wait: int = 0) -> InferenceRequest:
    return ask(
        "model",
        {"IN": np.array(values, np.int32), "DELAY": np.array(delays, np.uint32), "WAIT": np.array([wait], np.uint32)},
    )


def test_repeat_sends_a_response_for_each_element(serve: Serve) -> None:
    engine = serve(model=REPEAT)
    got = stream(engine, repeat([7, 8, 9], [1, 1, 1], 1))
    assert [(int(each.as_numpy("OUT")[0]), int(each.as_numpy("IDX")[0])) for each in got[:-1]] == [
        (7, 0),
        (8, 1),
        (9, 2),
    ]
    assert (got[-1].final, got[-1].outputs) == (True, [])
    assert [each.final for each in stream(engine, repeat([], []))] == [True]
    with pytest.raises(WorkbenchError, match=r"expected IN and DELAY shape to match, got \[2\] and \[1\]"):
        stream(engine, repeat([1, 2], [1]))


def test_repeat_refuses_batching(serve: Serve) -> None:
    text = refused(serve, REPEAT + "max_batch_size: 2")
    assert "repeat backend only supports models with max_batch_size == 0" in text


SQUARE = """backend: "square"
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
model_transaction_policy { decoupled: true }
"""


def test_square_sends_n_times_n(serve: Serve) -> None:
    engine = serve(model=SQUARE)
    got = stream(engine, ask("model", {"IN": np.array([4], np.int32)}))
    assert [int(each.as_numpy("OUT")[0]) for each in got[:-1]] == [4] * 4
    assert [each.final for each in stream(engine, ask("model", {"IN": np.array([0], np.int32)}))] == [True]


def test_square_fails_and_leaves_out_as_its_parameters_say(serve: Serve) -> None:
    engine = serve(model=SQUARE + parameter("CUSTOM_FAIL_COUNT", 1) + parameter("CUSTOM_EMPTY_COUNT", 2))
    responses = engine.infer_stream(ask("model", {"IN": np.array([5], np.int32)}))
    assert [int(next(responses).as_numpy("OUT")[0]) for _ in range(2)] == [5, 5]
    with pytest.raises(WorkbenchError, match="simulated failure"):
        next(responses)


@pytest.mark.rule("11.7")
def test_square_reports_its_responses_one_by_one(serve: Serve) -> None:
    delays = parameter("CUSTOM_INFER_DELAY_NS", 4_000_000) + parameter("CUSTOM_OUTPUT_DELAY_NS", 2_000_000)
    engine = serve(model=SQUARE + delays + parameter("CUSTOM_FAIL_COUNT", 1) + parameter("CUSTOM_EMPTY_COUNT", 1))
    request = ask("model", {"IN": np.array([3], np.int32)})
    for each in Asker(engine).send([request] * 2):
        assert each.wait().final
    rows = engine.statistics("model")["model_stats"][0]["response_stats"]
    counts = {
        number: {kind: pair["count"] for kind, pair in row.items() if pair["count"]} for number, row in rows.items()
    }
    made = {"compute_infer": 2, "compute_output": 2}
    assert counts == {
        "0": {**made, "success": 2},
        "1": {**made, "fail": 2},
        "2": {"compute_infer": 2, "empty_response": 2},
    }
    for row in rows.values():
        assert row["compute_infer"]["ns"] >= 8_000_000
        assert row["compute_output"]["ns"] >= 2_000_000 * row["compute_output"]["count"]
        whole = row["compute_infer"]["ns"] + row["compute_output"]["ns"]
        assert sum(row[kind]["ns"] for kind in ("success", "fail", "empty_response")) == whole
        assert row["cancel"] == {"count": 0, "ns": 0}


def numbers(engine: InferenceEngine, value: int, name: int | str, **flags: bool) -> list[int]:
    fields = {f"sequence_{key}": flag for key, flag in flags.items()}
    request = ask("model", {"INPUT": np.full((1, 2), value, np.int32)}, sequence_id=name, **fields)
    found: list[int] = engine.infer(request, 10).as_numpy("OUTPUT").ravel().tolist()
    return found


def test_sequence_adds_up_by_row(serve: Serve) -> None:
    controls = control("START") + control("READY")
    config = 'backend: "sequence"\nmax_batch_size: 4\n' + VECTOR + f"sequence_batching {{ direct {{ }} {controls} }}"
    engine = serve(model=config + "\ninstance_group { kind: KIND_CPU }")
    assert numbers(engine, 1, 5, start=True) == [2, 2]
    assert numbers(engine, 10, 6, start=True) == [20, 20]
    assert numbers(engine, 2, 5) == [6, 6]
    assert numbers(engine, 1, 6, end=True) == [22, 22]
    assert numbers(engine, 3, 6, start=True) == [6, 6]


@pytest.mark.parametrize(("datatype", "name"), [("TYPE_UINT64", 1000), ("TYPE_STRING", "1000")])
def test_dyna_sequence_adds_up_by_correlation_id(serve: Serve, datatype: str, name: int | str) -> None:
    controls = "".join(control(each) for each in ("START", "END", "READY")) + control(
        "CORRID", f"data_type: {datatype}"
    )
    config = 'backend: "dyna_sequence"\nmax_batch_size: 4\n' + VECTOR
    config += f"sequence_batching {{ oldest {{ max_candidate_sequences: 4 }} {controls} }}"
    engine = serve(model=config + "\ninstance_group { kind: KIND_CPU }")
    assert numbers(engine, 1, name, start=True) == [2, 2]
    assert numbers(engine, 1, name) == [4, 4]
    assert numbers(engine, 1, name, end=True) == [1006, 1006]


def test_iterative_sequence_counts_down(serve: Serve) -> None:
    config = """backend: "iterative_sequence"
max_batch_size: 4
input { name: "INPUT" data_type: TYPE_INT32 dims: 1 }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }
sequence_batching { iterative_sequence: true }
model_transaction_policy { decoupled: true }
instance_group { kind: KIND_CPU }
"""
    engine = serve(model=config + parameter("execute_delay_ms", 1))
    for _ in range(2):
        got = stream(engine, ask("model", {"INPUT": np.array([[4]], np.int32)}))
        assert [int(each.as_numpy("OUTPUT")[0, 0]) for each in got] == [3, 2, 1, 0]
    assert engine.snapshot().version("model").running == 0


def test_iterative_sequence_needs_its_flag(serve: Serve) -> None:
    config = """backend: "iterative_sequence"
input { name: "INPUT" data_type: TYPE_INT32 dims: 1 }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }
model_transaction_policy { decoupled: true }
instance_group { kind: KIND_CPU }
"""
    engine = serve(model=config + parameter("execute_delay_ms", 1))
    with pytest.raises(WorkbenchError, match="Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE"):
        stream(engine, ask("model", {"INPUT": np.array([4], np.int32)}))
