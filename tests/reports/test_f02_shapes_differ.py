"""Requests that are not batched: their shapes differ (server#6937, #270), or they never wait together (server#4129)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_models as models
from asking import Asker, wait_until

import workbench as wb
from workbench.errors import InvalidRequest
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.session.state import SessionState

DELAY = "dynamic_batching { max_queue_delay_microseconds: 500000 }"
SHORT_DELAY = "dynamic_batching { max_queue_delay_microseconds: 100000 }"
LENGTHS = """
class TritonPythonModel:
    def execute(self, requests):
        rows = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        self.last = [array.shape[1] for array in rows]
        texts = [np.full((1, 1), len(self.last), np.float32) for _ in rows]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]) for text in texts]
"""


def lengths_config(ragged: bool) -> str:
    text = models.python(size=16, batching=DELAY, dims="-1")
    return text.replace('name: "IN" ', 'name: "IN" allow_ragged_batch: true ') if ragged else text


@pytest.mark.rule("1.4d", "1.11a")
@pytest.mark.parametrize("execution", ["thread", "process"])
def test_f02_server_6937_other_shapes_run_alone_and_that_is_counted(
    root: Path, make_engine: Any, execution: str
) -> None:
    """dims [-1], lengths 3, 4, 3 arrive together within the delay: each runs alone, and nothing said why."""
    models.add(root, "lengths", lengths_config(ragged=False), LENGTHS)
    engine = make_engine(root, python_execution=execution)
    asked = Asker(engine).send([models.ask("lengths", name="IN", width=width) for width in (3, 4, 3)])
    for each in asked:
        assert each.wait().as_numpy("OUT").tolist() == [[1.0]], "shares its batch with another shape"
    assert [each.order for each in asked] == [0, 1, 2], "the order is not kept"
    batches = engine.records.read().batches
    assert list(batches["rows"]) == [1, 1, 1]
    assert list(batches["reason"])[:2] == ["shapes", "shapes"]
    assert engine.snapshot().version("lengths").batch_reasons["shapes"] == 2, "2 requests could not join"


@pytest.mark.rule("1.11b")
def test_f02_server_6937_a_ragged_input_lifts_it(root: Path, make_engine: Any) -> None:
    """With allow_ragged_batch the three run together."""
    models.add(root, "lengths", lengths_config(ragged=True), LENGTHS)
    engine = make_engine(root, python_execution="thread")
    asked = Asker(engine).send([models.ask("lengths", name="IN", width=width) for width in (3, 4, 3)])
    for each in asked:
        assert each.wait().as_numpy("OUT").tolist() == [[3.0]]
    assert models.sizes(engine, "lengths") == [3]
    assert "shapes" not in engine.snapshot().version("lengths").batch_reasons


@pytest.mark.parametrize(
    ("widths", "expected"),
    [
        ([3, 3, 4, 4, 3, 3], [2, 2, 2]),
        ([5, 5, 5, 5], [4]),
        ([1, 2, 1, 2], [1, 1, 1, 1]),
        ([7, 7, 7, 2], [3, 1]),
    ],
)
def test_f02_server_270_runs_of_equal_shapes_share_a_batch(
    root: Path, make_engine: Any, widths: list[int], expected: list[int]
) -> None:
    """Any mixture: neighbours of one shape are together, nothing is skipped to make a batch larger."""
    models.add(root, "echo", models.identity(size=16, dims="-1", batching=SHORT_DELAY))
    engine = make_engine(root)
    asked = Asker(engine).send([models.ask("echo", width=width) for width in widths])
    for each, width in zip(asked, widths, strict=True):
        assert each.wait().as_numpy("OUTPUT0").shape == (1, width)
    assert models.sizes(engine, "echo") == expected
    assert engine.snapshot().version("echo").batch_reasons.get("shapes", 0) == len(expected) - 1


@pytest.mark.rule("1.11f")
def test_f02_server_6937_another_set_of_optional_inputs_cannot_join_either(root: Path, make_engine: Any) -> None:
    """Of two optional inputs, requests with the one do not share a batch with those of the other."""
    pair = "".join(
        f'{kind} {{ name: "{kind.upper()}{n}" data_type: TYPE_FP32 dims: 4 {more} }}\n'
        for n in (0, 1)
        for kind, more in (("input", "optional: true"), ("output", ""))
    )
    config = f'backend: "identity"\nmax_batch_size: 8\n{pair}instance_group {{ kind: KIND_CPU }}\n{SHORT_DELAY}'
    models.add(root, "either", config)
    engine = make_engine(root)
    names = ["INPUT0", "INPUT0", "INPUT1"]
    for each in Asker(engine).send([models.ask("either", name=name) for name in names]):
        assert each.wait().error is None
    assert models.sizes(engine, "either") == [2, 1]
    assert engine.snapshot().version("either").batch_reasons["inputs"] == 1


@pytest.mark.parametrize("together", [1, 3])
def test_f11_server_4129_the_greatest_number_in_flight_is_known(root: Path, together: int) -> None:
    """Two blocking calls, one after the other, cannot be batched; the figure that says so is 1."""
    models.add(root, "slow", models.identity(ms=30))
    with wb.Engine(root) as server:
        state = SessionState(server, interval_s=0.05)
        wait_until(lambda: "slow" in state.snapshot().windows)
        asker = Asker(server.engine)
        for _ in range(2):
            for each in asker.send([models.ask("slow")] * together):
                each.wait()
        wait_until(lambda: sum(models.sizes(server.engine, "slow")) == state_total(state))
        seen = state.snapshot().history["slow"]["max_in_flight"]
        state.close()
        assert seen.max() == together
        assert models.sizes(server.engine, "slow") == [together] * 2


def state_total(state: SessionState) -> int:
    """Rows in the batches of the last minute that panels show."""
    histogram = state.snapshot().histograms.get("slow")
    return sum(rows * n for by_rows in histogram.counts.values() for rows, n in by_rows.items()) if histogram else 0


def test_f16_server_4903_a_missing_batch_axis_is_said_with_the_full_shape(root: Path) -> None:
    """TEXT with dims [-1] and max_batch_size 8 gets shape [2]: the wire's text is Triton's, the exception helps."""
    config = """backend: "identity"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_STRING dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_STRING dims: -1 }
instance_group { kind: KIND_CPU }
"""
    models.add(root, "texts", config)
    given = np.array([b"a", b"b"], dtype=np.object_)
    with wb.Engine(root) as server:
        with pytest.raises(InvalidRequest) as caught:
            server.infer("texts", {"INPUT0": given})
        assert caught.value.message.startswith(
            "[request id: <id_unknown>] unexpected shape for input 'INPUT0' for model 'texts'. Expected [-1,-1], got "
            "[2]. NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
        )
        assert caught.value.code.http_status == 400
        assert "the full shape is [-1, -1], the batch dimension (1 to 8 rows) included" in caught.value.hint
        assert "send array[None], of shape [1, 2]" in caught.value.hint
        assert server.infer("texts", {"INPUT0": given[None]})["OUTPUT0"].tolist() == [[b"a", b"b"]]


@pytest.mark.parametrize(
    ("shape", "dims", "offer"),
    [
        ((4,), "4", "array[None], of shape [1, 4]"),
        ((8,), "4", "array.reshape([2, 4])"),
        ((2, 3), "2, 3", "array[None], of shape [1, 2, 3]"),
        ((3,), "4", "the full shape is [-1, 4]"),
    ],
)
def test_f16_server_4903_what_is_offered_fits_the_array(root: Path, shape: Any, dims: str, offer: str) -> None:
    """Other ranks and sizes: what is offered works, and nothing is offered where nothing fits."""
    models.add(root, "echo", models.identity(dims=f"[ {dims} ]"))
    array = np.zeros(shape, np.float32)
    with wb.Engine(root) as server:
        with pytest.raises(InvalidRequest) as caught:
            server.infer("echo", {"INPUT0": array})
        assert offer in caught.value.hint
        if "array" in offer:
            mended = array[None] if "[None]" in offer else array.reshape([2, 4])
            server.infer("echo", {"INPUT0": mended})
        else:
            assert "send array" not in caught.value.hint
            assert "reshape" not in caught.value.hint


@pytest.mark.rule("1.11c", "1.11e")
def test_f02_server_6937_an_input_in_a_fixed_shape_is_never_a_reason(root: Path, make_engine: Any) -> None:
    """Where all dims are fixed nothing is compared: requests of any rows share a batch."""
    models.add(root, "echo", models.identity(size=16, batching=SHORT_DELAY))
    engine = make_engine(root)
    tensors = [Tensor.from_numpy("INPUT0", np.zeros((rows, 4), np.float32)) for rows in (1, 2, 3)]
    for each in Asker(engine).send([InferenceRequest("echo", [tensor]) for tensor in tensors]):
        assert each.wait().error is None
    assert models.sizes(engine, "echo") == [6]
