"""What is sent: rows of tables, arrays, directories, perf_analyzer's files; what is said where they do not fit."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from workbench.errors import WorkbenchError
from workbench.profiling import Load, ServerTarget
from workbench.profiling.plan import VARIANTS
from workbench.profiling.requests import Prepared, identity, prepare
from workbench.profiling.trace import Trace
from workbench.protocol.tensors import InferenceRequest, Tensor

ONE = {"max_batch_size": 8, "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [3]}]}
TWO = {
    "max_batch_size": 8,
    "input": [
        {"name": "IDS", "data_type": "TYPE_INT64", "dims": [-1]},
        {"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]},
        {"name": "EXTRA", "data_type": "TYPE_UINT8", "dims": [2], "optional": True},
    ],
}


def sent(inputs: Any, config: dict[str, Any] = ONE, **options: Any) -> Prepared:
    load = Load.closed(1, **options)
    return prepare(ServerTarget("http://127.0.0.1:1"), "m", {"name": "m", **config}, load, inputs)


def rows(prepared: Prepared, name: str = "X") -> list[Any]:
    """The rows that are sent, each once."""
    found = {}
    for request in prepared.requests:
        for tensor in request.inputs:
            if tensor.name == name:
                for row in tensor.data:
                    found[repr(row.tolist())] = row.tolist()
    return sorted(found.values())


THREE = np.arange(9, dtype=np.float32).reshape(3, 3)


def forms(folder: Path) -> dict[str, Any]:
    """The same three rows in every form."""
    frame = pd.DataFrame(THREE, columns=["X_0", "X_1", "X_2"])
    np.save(folder / "x.npy", THREE)
    np.savez(folder / "x.npz", X=THREE.astype(np.float64))
    frame.to_csv(folder / "x.csv", index=False)
    frame.rename(columns=lambda name: f"f{name}").to_csv(folder / "features.csv", index=False)
    (folder / "x.json").write_text(json.dumps({"data": [{"X": row} for row in THREE.tolist()]}))
    (folder / "streams.json").write_text(
        json.dumps({"data": [[{"X": row} for row in part] for part in (THREE[:2].tolist(), THREE[2:].tolist())]})
    )
    for index, row in enumerate(THREE):
        (folder / "raw" / str(index)).mkdir(parents=True)
        (folder / "raw" / str(index) / "X").write_bytes(row.tobytes())
    tensors = [Tensor.from_numpy("X", row[np.newaxis]) for row in THREE]
    requests = [(index, InferenceRequest("m", [tensor])) for index, tensor in enumerate(tensors)]
    Trace.of(requests).save(folder / "captured.npz")
    files = {path.name: path for path in folder.iterdir()}
    return {
        **files,
        "frame": frame,
        "cells": pd.DataFrame({"X": list(THREE)}),
        "arrays": [{"X": row[np.newaxis]} for row in THREE],
        "lists": [{"X": [row.tolist()]} for row in THREE],
        "trace": Trace.load(folder / "captured.npz"),
    }


def test_the_same_rows_come_from_every_form(tmp_path: Path) -> None:
    given = forms(tmp_path)
    assert len(given) == 13
    for name, inputs in given.items():
        made = sent(str(inputs) if isinstance(inputs, Path) else inputs)
        assert rows(made) == THREE.tolist(), name
        assert {tensor.datatype for request in made.requests for tensor in request.inputs} == {"FP32"}, name
        assert made.rows == 1, name
        assert not made.notes, name


def test_rows_are_put_into_batches_and_every_row_is_sent(tmp_path: Path) -> None:
    many = np.arange(300, dtype=np.float32).reshape(100, 3)
    made = sent(pd.DataFrame({"X": list(many)}), batch_size=8)
    assert {request.inputs[0].shape for request in made.requests} == {(8, 3)}
    assert rows(made) == many.tolist()
    assert (made.rows, made.source) == (8, "a DataFrame")
    alone = sent(pd.DataFrame({"X": list(many)}), {**ONE, "max_batch_size": 0})
    assert {request.inputs[0].shape for request in alone.requests} == {(3,)}


def test_texts_and_shapes_of_their_own_and_optional_inputs(tmp_path: Path) -> None:
    frame = pd.DataFrame({"IDS": [[1, 2], [3, 4, 5]], "TEXT": ["naïve", ""]})
    made = sent(frame, TWO)
    assert rows(made, "IDS") == [[1, 2], [3, 4, 5]]
    assert rows(made, "TEXT") == [[b""], ["naïve".encode()]]
    assert {tensor.datatype for request in made.requests for tensor in request.inputs} == {"INT64", "BYTES"}
    (tmp_path / "IDS").write_bytes(np.arange(4, dtype=np.int64).tobytes())
    (tmp_path / "TEXT").write_text("of a file")
    np.save(tmp_path / "EXTRA.npy", np.array([7, 8]))
    made = sent(tmp_path, TWO)
    assert rows(made, "IDS") == [[0, 1, 2, 3]]
    assert rows(made, "TEXT") == [[b"of a file"]]
    assert rows(made, "EXTRA") == [[7, 8]]


def test_zero_and_random_are_asked_for_by_name() -> None:
    assert rows(sent("zero")) == [[0, 0, 0]]
    assert len(rows(sent("random"))) > 3
    assert any("random numbers of small range" in note for note in sent(None).notes)  # it is said where nobody asked


@pytest.mark.parametrize(
    ("inputs", "config", "parts"),
    [
        ({"Y": [[1, 2, 3]]}, ONE, ("no input 'Y'", "request 0", "its inputs are: X")),
        ([{"X": [[1, 2, 3]]}, {"X": [[1, 2]]}], ONE, ("'X' has shape [1, 2]", "[-1, 3]", "request 1")),
        ({"X": [1, 2, 3]}, ONE, ("'X' has shape [3]", "give the batch dimension too")),
        ({"X": [["a", "b", "c"]]}, ONE, ("input 'X' is to be of FP32", "texts")),
        ({"IDS": [[1.5]], "TEXT": [["a"]]}, TWO, ("input 'IDS' is to be of INT64", "whole numbers")),
        ({"IDS": [[1]]}, TWO, ("input 'TEXT' is missing",)),
        ({"IDS": [[1]], "TEXT": [["a"]], "EXTRA": [[1, 300]]}, TWO, ("'EXTRA' is to be of UINT8", "from 0 to 255")),
        ([], ONE, ("no inputs were given",)),
        (5, ONE, ("inputs must be arrays by name", "got 5")),
        ([1, 2], ONE, ("inputs must be arrays by name",)),
        ({"X": np.ones((1, 3), np.complex64)}, ONE, ("'X' is to be of FP32", "not of complex64")),
        ({"X": np.ones((1, 3), "datetime64[s]")}, ONE, ("'X' is to be of FP32", "not of datetime64")),
        (pd.DataFrame({"X_0": [1.0], "X_2": [2.0]}), ONE, ("columns of input 'X' have gaps",)),
        (pd.DataFrame({"X": [[1, 2, 3], [1, 2]]}), ONE, ("'X' has shape [2]", "dims are [3]", "row 1")),
        (pd.DataFrame({"IDS": [1, 2], "TEXT": ["a", None]}), TWO, ("column 'TEXT'", "is empty", "row 1")),
        (pd.DataFrame({"IDS": [1], "TEXT": ["a"], "note": [3]}), TWO, ("no input for the column note",)),
        (pd.DataFrame({"IDS": [1, np.nan], "TEXT": ["a", "b"]}), TWO, ("'IDS' of input 'IDS'", "is empty", "row 1")),
        (pd.DataFrame({"IDS": [1, 2], "TEXT": ["a", np.nan]}), TWO, ("'TEXT' of input 'TEXT'", "is empty", "row 1")),
        (
            pd.DataFrame({"X_0": [1.0, 2.0], "X_1": ["1", np.nan], "X_2": [1, 2]}),
            ONE,
            ("'X_1' of input 'X'", "is empty", "row 1", "a column of floats"),
        ),
        (pd.DataFrame([[1, 2, 3, 4]], columns=["X_0", "X_1", "X_1", "X_2"]), ONE, ("two columns 'X_1'",)),
        ({"X": np.array([[1, 2, None]], object)}, ONE, ("'X' has no value at [0, 2]: None", "request 0", "NaN")),
        ({"X": [[1, 2, 3e300]]}, ONE, ("'X' has 3e+300 at [0, 2]", "too large for FP32", "request 0", "inf")),
        ({"X": [[1, "1e400", 3]]}, ONE, ("'X' has 1e400 at [0, 1]", "too large for FP32", "request 0")),
        ({"X": [[1, 10**400, 3]]}, ONE, ("'X' has a number that is too large for FP32", "request 0")),
        (pd.DataFrame({"X_0": [], "X_1": [], "X_2": []}), ONE, ("no rows",)),
        ("none.csv", ONE, ("no such file of inputs",)),
        ("none.json", ONE, ("no such file of inputs",)),
    ],
)
def test_what_does_not_fit_is_refused_with_input_row_and_shape(
    inputs: Any, config: dict[str, Any], parts: tuple[str, ...]
) -> None:
    with pytest.raises(WorkbenchError) as caught:
        sent(inputs, config)
    said = f"{caught.value.message} {caught.value.where} {caught.value.hint}"
    assert all(part in said for part in parts), said


def test_files_that_cannot_be_read_are_told_with_their_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "uneven.npz", IDS=np.zeros((2, 4), np.int64), TEXT=np.array([["a"], ["b"], ["c"]]))
    np.save(tmp_path / "one.npy", np.zeros((2, 3)))
    (tmp_path / "broken.npz").write_bytes(b"PK no zip")
    (tmp_path / "broken.npy").write_bytes(b"no array")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "X").write_bytes(b"123")
    np.save(tmp_path / "none.npy", np.zeros((0, 3), np.float32))
    np.savez(tmp_path / "none.npz", X=np.zeros((0, 3), np.float32))
    whole = io.BytesIO()
    np.save(whole, np.zeros((2, 3), np.float32))
    (tmp_path / "cut.npy").write_bytes(whole.getvalue()[:-4])
    lies = whole.getvalue().replace(b"(2, 3)", b"(2, 333333333333)").replace(b" " * 12, b"", 1)  # as long a header
    (tmp_path / "lies.npy").write_bytes(lies)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "X.npy").write_bytes(b"no array")
    (tmp_path / "deep.json").write_text("[" * 200_000)
    for name, config, text in (
        ("uneven.npz", TWO, "different numbers of rows: {'IDS': 2, 'TEXT': 3}"),
        ("one.npy", TWO, "one array is not enough: the model has the inputs IDS, TEXT"),
        ("broken.npz", ONE, ""),
        ("broken.npy", ONE, "cannot be read"),
        ("none.npy", ONE, "no rows of inputs"),
        ("none.npz", ONE, "no rows of inputs"),
        ("cut.npy", ONE, "cannot be read"),
        ("lies.npy", ONE, "cannot be read"),
        ("folder", ONE, "cannot be read"),
        ("deep.json", ONE, "nested too deep"),
        ("raw", ONE, "input 'X': 3 bytes are no whole number of FP32 elements"),
    ):
        with pytest.raises(WorkbenchError) as caught:
            sent(tmp_path / name, config)
        assert text in caught.value.message
        assert str(tmp_path) in caught.value.where


@pytest.mark.parametrize(
    ("text", "said", "where"),
    [
        ("X_0,X_1,X_2\n1,2,3,4,5\n", "line 2 has 5 fields, the head has 3", ""),
        ("X_0,X_1,X_2\n1,2,3\n\n1,2\n", "line 4 has 2 fields, the head has 3", ""),
        ('X_0,X_1,X_2\n"1\n",2,3\n1,2,3,\n', "line 4 has 4 fields, the head has 3", ""),
        ("X_0,X_1,X_2\n1,2,3\n1,,3\n", "column 'X_1' is empty", ", line 3"),
        ("X_0,X_1,X_2\n1,2,3\n  \n1,2,NA\n", "column 'X_2' (NA) is empty", ", line 4"),
        ("X_0,X_1,X_2\n1,1e400,inf\n", "column 'X_1' (1e400) is too large", ", line 2"),
        ("X_0,X_1,X_2\n1,2,3\n1,1e300,3\n", "input 'X' has 1e+300 at [1], which is too large for FP32", ", row 1"),
    ],
)
def test_a_csv_whose_cells_would_be_other_values_is_refused(tmp_path: Path, text: str, said: str, where: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(WorkbenchError) as caught:
        sent(tmp_path / "x.csv")
    assert said in caught.value.message
    assert caught.value.where == f"{tmp_path / 'x.csv'}{where}"
    assert caught.value.hint


@pytest.mark.parametrize("kind", ["TYPE_FP32", "TYPE_FP16", "TYPE_FP64", "TYPE_BF16"])
def test_nan_and_infinity_are_sent_where_they_are_meant(tmp_path: Path, kind: str) -> None:
    config = {"max_batch_size": 8, "input": [{"name": "X", "data_type": kind, "dims": [3]}]}
    (tmp_path / "x.csv").write_text("X_0,X_1,X_2\n1,nan,-inf\n")
    meant = [1.0, float("nan"), float("-inf")]
    for given in (tmp_path / "x.csv", {"X": [meant]}, {"X": [["1", "nan", "-inf"]]}, pd.DataFrame({"X": [meant]})):
        (row,) = {tuple(tensor.data.astype(np.float64)[0]) for tensor in sent(given, config).requests[0].inputs}
        np.testing.assert_array_equal(row, meant)


@pytest.mark.parametrize("kind", ["float64", "float32", "Float64", "Float32"])
def test_missing_values_in_columns_of_floats_are_nan(tmp_path: Path, kind: str) -> None:
    """A forest goes its own way at a missing value."""
    frame = pd.DataFrame({"X_0": [1.0, 2.0], "X_1": [None, 3.0], "X_2": [5, 6]}).astype({"X_0": kind, "X_1": kind})
    made = sent(frame)
    found = {request.inputs[0].data.tobytes() for request in made.requests}
    assert found == {np.array([[1, np.nan, 5]], np.float32).tobytes(), np.array([[2, 3, 6]], np.float32).tobytes()}


def test_missing_values_of_a_parquet_file_are_those_of_its_table(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame = pd.DataFrame({"X_0": [1.0], "X_1": [np.nan], "X_2": [2.0]})
    frame.to_parquet(tmp_path / "x.parquet")
    (row,) = {tensor.data.tobytes() for tensor in sent(tmp_path / "x.parquet").requests[0].inputs}
    assert row == np.array([[1, np.nan, 2]], np.float32).tobytes()


def test_tables_that_differ_a_little_are_other_inputs() -> None:
    def told(cells: list[Any]) -> str:
        return str(identity(pd.DataFrame({"X": cells})))

    assert told([1e-12]) != told([2e-12])
    assert told([np.nan]) != told([np.inf])
    assert told([np.array([1.0, 1e-15])]) != told([np.array([1.0, 2e-15])])
    assert told(["a", "b"]) == told(["a", "b"]) != told(["ab", ""])
    assert told([[1, 2]]) == told([[1, 2]])


def test_a_long_text_of_a_csv_is_sent(tmp_path: Path) -> None:
    config = {"max_batch_size": 8, "input": [{"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]}]}
    (tmp_path / "x.csv").write_text(f'TEXT\n"{"a,b" * 100_000}"\n')
    assert rows(sent(tmp_path / "x.csv", config), "TEXT") == [[b"a,b" * 100_000]]


def test_inputs_by_class() -> None:
    load = Load.classes({"a": Load.closed(1), "b": Load.closed(1, batch_size=2)})
    given = {"a": {"X": [[1, 2, 3]]}, "b": pd.DataFrame({"X": [[4, 5, 6]]})}
    made = prepare(ServerTarget("http://127.0.0.1:1"), "m", {"name": "m", **ONE}, load, given)
    assert [kind.name for kind in made.plan.classes] == ["a", "b"]
    first, second = made.plan.classes
    assert made.requests[first.first].inputs[0].data.tolist() == [[1, 2, 3]]
    assert made.requests[second.first].inputs[0].data.tolist() == [[4, 5, 6], [4, 5, 6]]


def test_streams_of_a_file_are_the_sequences(tmp_path: Path) -> None:
    forms(tmp_path)
    made = sent(tmp_path / "streams.json", {**ONE, "sequence_batching": {}})
    (kind,) = made.plan.classes
    values = [[made.requests[step].inputs[0].data.tolist() for step in steps] for steps in kind.streams]
    assert values == [[[row] for row in THREE[:2].tolist()], [[THREE[2].tolist()]]]
    flags = [(request.sequence_start, request.sequence_end) for request in made.requests[:VARIANTS]]
    assert flags == [(False, False), (True, False), (False, True), (True, True)]
    with pytest.raises(WorkbenchError, match="takes no batches"):
        sent(tmp_path / "x.json", {**ONE, "sequence_batching": {}}, batch_size=2)


def test_parquet_is_read_where_pyarrow_is(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pd.DataFrame({"IDS": [[1, 2], [3]], "TEXT": ["a", "b"]}).to_parquet(tmp_path / "x.parquet")
    assert rows(sent(tmp_path / "x.parquet", TWO), "IDS") == [[1, 2], [3]]
