"""Whole numbers and the requests of a sequence through ``infer``, in every place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import workbench as wb
from workbench.errors import InvalidRequest
from workbench.session.server import Server

SUM = """backend: "sequence"
max_batch_size: 2
input { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] }
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
}
"""


@pytest.fixture(scope="module", params=["process", "kernel", "remote"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One sequence model, in each of the places."""
    models = tmp_path_factory.mktemp("sequences") / "models"
    (models / "sum" / "1").mkdir(parents=True)
    (models / "sum" / "config.pbtxt").write_text(SUM)
    if request.param == "kernel":
        with wb.Engine(models) as engine:
            yield engine
        return
    with wb.serve(models) as server:
        if request.param == "process":
            yield server
            return
        with wb.connect(server.url) as remote:
            yield remote


def test_the_requests_of_a_sequence_add_up(place: Server) -> None:
    for sequence in (7, "seven"):
        sums = [
            int(
                place.infer(
                    "sum",
                    {"INPUT": [[value]]},
                    sequence_id=sequence,
                    sequence_start=value == 1,
                    sequence_end=value == 4,
                )["OUTPUT"][0, 0]
            )
            for value in (1, 2, 3, 4)
        ]
        assert sums == [1, 3, 6, 10]
    with pytest.raises(InvalidRequest, match="must specify the START flag on the first request of the sequence"):
        place.infer("sum", {"INPUT": [[1]]}, sequence_id=7)


@pytest.mark.parametrize("name", ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout"])
def test_a_field_among_the_parameters_is_told_where_it_belongs(place: Server, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{name}' is a field of the request") as caught:
        place.infer("sum", {"INPUT": [[1]]}, sequence_id=8, sequence_start=True, parameters={name: 1})
    assert caught.value.hint == f"write infer(..., {name}=...)"


@pytest.mark.parametrize("value", [4.5, -0.25])
def test_a_fraction_is_not_cut_to_a_whole_number(place: Server, value: float) -> None:
    with pytest.raises(InvalidRequest, match="'INPUT' cannot be made INT32: not whole numbers"):
        place.infer("sum", {"INPUT": [[value]]}, sequence_id=9, sequence_start=True)
    whole = place.infer("sum", {"INPUT": [[4.0]]}, sequence_id=9, sequence_start=True, sequence_end=True)
    assert whole["OUTPUT"].tolist() == [[4]]
