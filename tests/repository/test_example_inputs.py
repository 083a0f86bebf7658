"""Reading and drawing example inputs."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.errors import ConfigError
from workbench.protocol.datatypes import DATATYPES
from workbench.repository.example_inputs import inputs_of, load_example_inputs, load_streams


def _write(folder: Path, content: Any) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "example_inputs.json").write_text(text, encoding="utf-8")
    return folder


def _same(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> bool:
    return len(left) == len(right) and all(
        a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and a[k].tolist() == b[k].tolist() for k in a)
        for a, b in zip(left, right, strict=True)
    )


# Literal data


def test_perf_analyzers_forms_are_read(tmp_path: Path) -> None:
    raw = np.arange(6, dtype="<f4").tobytes()
    strings = b"".join(struct.pack("<I", len(s)) + s for s in (b"", "日本".encode()))
    _write(
        tmp_path,
        {
            "data": [
                {
                    "FLAT": [0, 1, 2, 3, 4, 5],
                    "NESTED": {"content": [[0, 1, 2], [3, 4, 5]]},
                    "B64": {"b64": base64.b64encode(raw).decode(), "shape": [2, 3]},
                    "TEXT": {"content": ["", "日本"], "shape": [2]},
                    "TEXT64": {"b64": base64.b64encode(strings).decode(), "shape": [2]},
                    "SCALAR": [7],
                    "FREE": {"content": [1, 0, 1], "shape": [3]},
                    "model": "ignored",
                }
            ],
            "validation_data": [{"OUT": [1]}],
        },
    )
    inputs = [
        ("FLAT", "FP32", [2, 3]),
        ("NESTED", "TYPE_FP32", [2, 3]),
        ("B64", "FP32", [2, -1]),
        ("TEXT", "BYTES", [2]),
        ("TEXT64", "TYPE_STRING", [2]),
        ("SCALAR", "INT64", []),
        ("FREE", "BOOL", [-1]),
    ]
    (row,) = load_example_inputs(tmp_path, inputs, batch_size=0)
    expected = np.arange(6, dtype=np.float32).reshape(2, 3)
    for name in ("FLAT", "NESTED", "B64"):
        assert row[name].dtype == np.float32
        np.testing.assert_array_equal(row[name], expected)
    assert row["TEXT"].tolist() == row["TEXT64"].tolist() == [b"", "日本".encode()]
    assert row["SCALAR"].shape == ()
    assert row["SCALAR"] == 7
    assert row["FREE"].tolist() == [True, False, True]

    (one,) = load_example_inputs(tmp_path, inputs, batch_size=1)
    assert {name: array.shape for name, array in one.items()} == {name: (1, *row[name].shape) for name in row}


def test_a_seed_orders_the_examples_each_once_a_round(tmp_path: Path) -> None:
    _write(tmp_path, {"data": [{"A": [i]} for i in range(10)]})
    inputs = [("A", "INT32", [1])]

    def values(seed: int, count: int) -> list[int]:
        return [int(r["A"][0, 0]) for r in load_example_inputs(tmp_path, inputs, seed=seed, count=count)]

    assert values(1, 30) == values(1, 30)
    assert values(1, 30)[:7] == values(1, 7)
    assert values(1, 10) != values(2, 10)
    for start in (0, 10, 20):
        assert sorted(values(1, 30)[start : start + 10]) == list(range(10))


def test_rows_of_a_batch_are_different_examples_of_one_shape(tmp_path: Path) -> None:
    rows = [{"A": {"content": [i] * n, "shape": [n]}} for i, n in enumerate((2, 3, 2, 3, 2, 4))]
    _write(tmp_path, {"data": rows})
    batches = load_example_inputs(tmp_path, [("A", "INT32", [-1])], count=12, batch_size=3)
    seen = set()
    for batch in batches:
        assert batch["A"].shape[0] == 3
        ids = batch["A"][:, 0].tolist()
        seen |= set(ids)
        width = batch["A"].shape[1]
        assert set(ids) == {2: {0, 2, 4}, 3: {1, 3}, 4: {5}}[width]
    assert seen == set(range(6))


def test_streams_keep_their_order(tmp_path: Path) -> None:
    _write(tmp_path, {"data": [[{"A": [1]}, {"A": [2]}], [{"A": [3]}], []]})
    inputs = [("A", "INT32", [1])]
    assert [[int(step["A"][0]) for step in stream] for stream in load_streams(tmp_path, inputs)] == [[1, 2], [3], []]
    assert sorted(int(r["A"][0]) for r in load_example_inputs(tmp_path, inputs, count=3, batch_size=0)) == [1, 2, 3]


def test_files_beside_the_json(tmp_path: Path) -> None:
    folder = tmp_path / "example_inputs"
    folder.mkdir()
    np.save(folder / "a.npy", np.array([[1, 2]], dtype=np.int16))
    (folder / "raw.bin").write_bytes(np.array([3, 4], dtype="<i2").tobytes())
    (folder / "cat.jpg").write_bytes(b"\xff\xd8\x00picture")
    (tmp_path / "secret").write_bytes(b"12")
    entry = {"N": {"file": "a.npy"}, "R": {"file": "raw.bin", "shape": [1, 2]}, "IMAGE": {"file": "cat.jpg"}}
    inputs = [("N", "INT16", [1, -1]), ("R", "INT16", [1, -1]), ("IMAGE", "BYTES", [1])]
    _write(tmp_path, {"data": [entry]})
    (row,) = load_example_inputs(tmp_path, inputs, batch_size=0)
    assert row["N"].tolist() == [[1, 2]]
    assert row["R"].tolist() == [[3, 4]]
    assert row["IMAGE"].tolist() == [b"\xff\xd8\x00picture"]
    for name, text in (("../secret", "lies outside"), ("absent.bin", "cannot read the file")):
        _write(tmp_path, {"data": [{**entry, "R": {"file": name}}]})
        with pytest.raises(ConfigError, match=text):
            load_example_inputs(tmp_path, inputs)


def test_shared_arrays_cannot_be_written_to(tmp_path: Path) -> None:
    _write(tmp_path, {"data": [{"A": [1]}]})
    for source in ("data", "ranges"):
        (row,) = load_example_inputs(tmp_path, [("A", "INT32", [1])], source=source)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="read-only"):
            row["A"][0] = 5


# Ranges


def test_numbers_are_drawn_within_their_range_to_both_ends(tmp_path: Path) -> None:
    _write(
        tmp_path, {"ranges": {"I": {"min": -2, "max": 2}, "U": {"values": [3, 250]}, "F": {"min": -1.0, "max": 1.0}}}
    )
    (row,) = load_example_inputs(
        tmp_path, [("I", "INT64", [500]), ("U", "UINT8", [50]), ("F", "FP32", [4096])], seed=5, batch_size=2
    )
    assert set(row["I"].ravel().tolist()) == {-2, -1, 0, 1, 2}
    assert row["I"].dtype == np.int64
    assert set(row["U"].ravel().tolist()) == {3, 250}
    assert row["U"].dtype == np.uint8
    assert row["F"].dtype == np.float32
    assert -1 <= row["F"].min() < -0.99
    assert 0.99 < row["F"].max() <= 1


def test_tensors_of_a_request_draw_their_shapes_together(tmp_path: Path) -> None:
    shapes = [[16], [32], [64]]
    _write(
        tmp_path, {"ranges": {"ids": {"min": 5, "max": 9, "shapes": shapes}, "mask": {"values": [1], "shapes": shapes}}}
    )
    inputs = [("ids", "INT64", [-1]), ("mask", "INT64", [-1])]
    seen = set()
    for request in load_example_inputs(tmp_path, inputs, count=40, batch_size=4):
        assert request["ids"].shape == request["mask"].shape
        assert request["mask"].all()
        seen.add(request["ids"].shape)
    assert seen == {(4, 16), (4, 32), (4, 64)}


def test_text_is_made_of_the_vocabulary(tmp_path: Path) -> None:
    _write(tmp_path, {"ranges": {"T": {"vocabulary": ["naïve", "日本"], "words": [0, 3]}}})
    (request,) = load_example_inputs(tmp_path, [("T", "BYTES", [1])], batch_size=200)
    texts = [item.decode() for item in request["T"].ravel()]
    assert {len(text.split()) for text in texts} == {0, 1, 2, 3}
    assert {word for text in texts for word in text.split()} == {"naïve", "日本"}


def test_draws_depend_on_the_seed_and_not_on_the_count(tmp_path: Path) -> None:
    inputs = [("F", "FP16", [3]), ("T", "BYTES", [2])]
    assert _same(
        load_example_inputs(tmp_path, inputs, seed=4, count=9)[:3],
        load_example_inputs(tmp_path, inputs, seed=4, count=3),
    )
    assert not _same(load_example_inputs(tmp_path, inputs, seed=4), load_example_inputs(tmp_path, inputs, seed=5))


def test_data_comes_before_ranges_unless_asked_otherwise(tmp_path: Path) -> None:
    _write(tmp_path, {"data": [{"A": [100]}], "ranges": {"A": {"min": 1, "max": 2}}})
    inputs = [("A", "INT32", [1])]
    assert load_example_inputs(tmp_path, inputs)[0]["A"].tolist() == [[100]]
    assert load_example_inputs(tmp_path, inputs, source="ranges")[0]["A"].item() in (1, 2)
    _write(tmp_path, {"data": [], "ranges": {"A": {"min": 1, "max": 2}}})
    assert load_example_inputs(tmp_path, inputs)[0]["A"].item() in (1, 2)
    with pytest.raises(ConfigError, match="no literal examples"):
        load_example_inputs(tmp_path, inputs, source="data")


@pytest.mark.parametrize("row", DATATYPES, ids=lambda row: row.wire)
def test_without_a_file_every_type_is_drawn_and_integers_are_in_any_vocabulary(tmp_path: Path, row: Any) -> None:
    (request,) = load_example_inputs(tmp_path, [("A", row.config, [64])], batch_size=2)
    array = request["A"]
    assert array.shape == (2, 64)
    assert array.dtype == row.numpy
    if row.wire == "BYTES":
        assert all(isinstance(item, bytes) and item for item in array.ravel())
    elif row.numpy.kind in "iub":
        assert set(array.ravel().tolist()) == {0, 1}
    else:
        values = array.astype(np.float64)
        assert 0 <= values.min() < 0.1
        assert 0.9 < values.max() <= 1


def test_nothing_asked_and_nothing_inside_are_no_errors(tmp_path: Path) -> None:
    assert load_example_inputs(tmp_path, [("A", "FP32", [2])], count=0) == []
    (empty,) = load_example_inputs(tmp_path, [("A", "FP32", [0]), ("T", "BYTES", [0, 3])], batch_size=0)
    assert empty["A"].shape == (0,)
    assert empty["T"].shape == (0, 3)
    assert load_example_inputs(tmp_path, []) == [{}]
    _write(tmp_path, {"data": [{"A": {"content": [], "shape": [0]}}]})
    (row,) = load_example_inputs(tmp_path, [("A", "INT8", [-1])], batch_size=2)
    assert row["A"].shape == (2, 0)


def test_optional_inputs_are_sent_only_where_the_file_has_them(tmp_path: Path) -> None:
    inputs = [("A", "INT32", [1]), ("B", "INT32", [-1])]
    assert set(load_example_inputs(tmp_path, inputs, optional={"B"})[0]) == {"A"}
    _write(tmp_path, {"data": [{"A": [1]}, {"A": [2], "B": [3]}]})
    sent = {tuple(sorted(r)) for r in load_example_inputs(tmp_path, inputs, count=2, batch_size=2, optional=["B"])}
    assert sent == {("A",), ("A", "B")}


def test_inputs_are_read_off_a_configuration_as_servers_give_it() -> None:
    config = {
        "max_batch_size": 4,
        "input": [
            {"name": "A", "data_type": "TYPE_FP32", "dims": ["3", "-1"], "optional": False},
            {"name": "B", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
        ],
    }
    assert inputs_of(config) == ([("A", "TYPE_FP32", [3, -1]), ("B", "TYPE_STRING", [1])], {"B"})
    assert inputs_of({"name": "none"}) == ([], frozenset())


def test_bf16_and_halves_are_read(tmp_path: Path) -> None:
    _write(tmp_path, {"data": [{"A": [0.5, -2], "B": [1, 2.5]}]})
    (row,) = load_example_inputs(tmp_path, [("A", "BF16", [2]), ("B", "FP16", [2])], batch_size=0)
    assert row["A"].dtype == ml_dtypes.bfloat16
    assert row["A"].astype(np.float32).tolist() == [0.5, -2]
    assert row["B"].dtype == np.float16


# Files that are wrong


@pytest.mark.parametrize(
    ("content", "message", "place"),
    [
        ("{\n  nonsense", "not JSON", "line 2, column 3"),
        ([1], "expected an object", ""),
        ({}, "expected an object", ""),
        ({"data": [], "rangs": {}}, "rangs", ""),
        ({"data": {"A": [1, 2]}}, "not a list", "data"),
        ({"data": [{"A": [1, 2]}, [{"A": [1, 2]}]]}, "mixes entries", "data"),
        ({"data": [3]}, "different kinds", "data"),
        ({"data": [[3]]}, "not an object", "data[0][0]"),
        ({"data": [{"A": [1, 2]}, {"X": [1]}]}, "no input 'X'", "data[1]"),
        ({"data": [{}]}, "input 'A' is missing", "data[0]"),
        ({"data": [{"A": 3}]}, "no tensor", "data[0].A"),
        ({"data": [{"A": {"contents": [1, 2]}}]}, "no tensor", "data[0].A"),
        ({"data": [{"A": {"content": 1}}]}, "not a tensor of type INT8", "data[0].A"),
        ({"data": [{"A": [1, 2.5]}]}, "whole number", "data[0].A"),
        ({"data": [{"A": [1, 300]}]}, "-128 to 127", "data[0].A"),
        ({"data": [{"A": [1, "2"]}]}, "not a tensor", "data[0].A"),
        ({"data": [{"A": [[1], [2, 3]]}]}, "not a tensor", "data[0].A"),
        ({"data": [{"A": [1, 2, 3]}]}, "3 elements do not fill shape [2]", "data[0].A"),
        ({"data": [{"A": {"content": [1, 2], "shape": [1, 2]}}]}, "does not fit the model's dims [2]", "data[0].A"),
        ({"data": [{"A": {"content": [1, 2], "shape": ["2"]}}]}, "not a list of sizes", "data[0].A"),
        ({"data": [{"A": {"b64": "AQ=="}}]}, "1 elements do not fill", "data[0].A"),
        ({"data": [{"A": {"b64": "?"}}]}, "not a tensor", "data[0].A"),
        ({"ranges": []}, "not an object", "ranges"),
        ({"ranges": {"X": {}}}, "no input 'X'", "ranges.X"),
        ({"ranges": {"A": {"minimum": 1}}}, "no range", "ranges.A"),
        ({"ranges": {"A": {"min": 5}}}, "min 5 is above max 1", "ranges.A"),
        ({"ranges": {"A": {"min": 0, "max": 128}}}, "128 is no INT8", "ranges.A.max"),
        ({"ranges": {"A": {"min": "0"}}}, "not a number", "ranges.A.min"),
        ('{"ranges": {"A": {"max": NaN}}}', "not finite", "ranges.A.max"),
        ({"ranges": {"A": {"vocabulary": ["a"]}}}, "no vocabulary", "ranges.A"),
        ({"ranges": {"A": {"values": []}}}, "not a list of numbers", "ranges.A.values"),
        ({"ranges": {"A": {"shape": [3]}}}, "does not fit input 'A'", "ranges.A"),
        ({"ranges": {"B": {"shape": [1 << 40]}}}, "more than 2 GiB", "ranges.B"),
        ({"ranges": {"A": {"shape": [2], "shapes": [[2]]}}}, "both", "ranges.A"),
    ],
)
def test_a_wrong_file_is_named_with_place_and_remedy(tmp_path: Path, content: Any, message: str, place: str) -> None:
    _write(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        load_example_inputs(tmp_path, [("A", "INT8", [2]), ("B", "INT8", [-1])], optional=["B"])
    assert message in caught.value.message
    assert "example_inputs.json" in caught.value.where
    assert place in caught.value.where
    assert caught.value.hint


@pytest.mark.parametrize(
    ("datatype", "written", "said"),
    [
        ("FP32", "1e400", "1e400"),
        ("FP32", "-1E+400", "-1E+400"),
        ("FP32", "1e39", "1e+39"),
        ("FP64", "1e400", "1e400"),
        ("FP16", "70000", "70000"),
        ("BF16", "3.4e38", "3.4e+38"),
        ("BOOL", "1e400", "1e400"),
        ("FP64", "1" + "0" * 400, "1" + "0" * 36 + "..."),
        ("FP64", "1" + "0" * 5000, "1" + "0" * 36 + "..."),
    ],
    ids=["FP32", "below", "narrow", "FP64", "FP16", "BF16", "BOOL", "whole", "endless"],
)
def test_a_number_that_its_type_cannot_hold_is_named(tmp_path: Path, datatype: str, written: str, said: str) -> None:
    folder = _write(tmp_path, f'{{"data": [{{"A": [1, 2]}}, {{"A": [1, {written}]}}]}}')
    with pytest.raises(ConfigError) as caught:
        load_example_inputs(folder, [("A", datatype, [2])])
    assert caught.value.message == f"input 'A' has {said} at [1], which is too large for {datatype}"
    assert "data[1].A" in caught.value.where
    assert "Infinity" in caught.value.hint


def test_a_nested_number_that_is_too_large_is_named_by_its_place(tmp_path: Path) -> None:
    folder = _write(tmp_path, '{"data": [{"A": {"content": [[1, 2], [Infinity, 1e400]]}}]}')
    with pytest.raises(ConfigError, match=r"has 1e400 at \[1, 1\], which is too large for FP32"):
        load_example_inputs(folder, [("A", "FP32", [2, 2])])


def test_infinity_that_is_meant_and_whole_numbers_of_many_digits_are_taken(tmp_path: Path) -> None:
    _write(tmp_path, '{"data": [{"A": [Infinity, -Infinity, NaN, 1180591620717411303424, 1e308]}]}')
    (row,) = load_example_inputs(tmp_path, [("A", "FP64", [5])], batch_size=0)
    assert row["A"].tolist()[:2] == [np.inf, -np.inf]
    assert np.isnan(row["A"][2])
    assert row["A"].tolist()[3:] == [2.0**70, 1e308]


@pytest.mark.parametrize(
    "written", ["9223372036854775808", "9223372036854775808.0", "1e400", "1" + "0" * 5000], ids=len
)
def test_a_whole_number_above_the_greatest_is_refused(tmp_path: Path, written: str) -> None:
    folder = _write(tmp_path, f'{{"data": [{{"A": [1, {written}]}}]}}')
    with pytest.raises(ConfigError, match="whole number from -9223372036854775808 to 9223372036854775807"):
        load_example_inputs(folder, [("A", "INT64", [2])])


@pytest.mark.parametrize("key", ["max", "values"])
@pytest.mark.parametrize("written", ["1e400", "1e39", "1" + "0" * 400, "1" + "0" * 5000], ids=len)
def test_a_range_that_its_type_cannot_hold_is_named(tmp_path: Path, key: str, written: str) -> None:
    value = f"[1, {written}]" if key == "values" else written
    folder = _write(tmp_path, f'{{"ranges": {{"A": {{"{key}": {value}}}}}}}')
    with pytest.raises(ConfigError, match="too large for FP32") as caught:
        load_example_inputs(folder, [("A", "FP32", [2])])
    assert f"ranges.A.{key}" in caught.value.where


@pytest.mark.parametrize(("datatype", "most"), [("FP32", 3.4e38), ("FP64", 1.7e308)])
def test_a_range_may_span_the_whole_of_its_type(tmp_path: Path, datatype: str, most: float) -> None:
    _write(tmp_path, {"ranges": {"A": {"min": -most, "max": most}}})
    (row,) = load_example_inputs(tmp_path, [("A", datatype, [1000])], batch_size=0)
    assert np.isfinite(row["A"]).all()
    assert row["A"].min() < -most / 2
    assert row["A"].max() > most / 2


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"min": 1}, "strings have no min and max"),
        ({"vocabulary": []}, "list of strings"),
        ({"words": [3, 1]}, '"words" is [3, 1]'),
    ],
)
def test_a_wrong_range_of_strings(tmp_path: Path, entry: Any, message: str) -> None:
    _write(tmp_path, {"ranges": {"T": entry}})
    with pytest.raises(ConfigError) as caught:
        load_example_inputs(tmp_path, [("T", "BYTES", [1])])
    assert message in caught.value.message


def test_a_shape_that_nobody_gave_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no shape is known") as caught:
        load_example_inputs(tmp_path, [("IMAGE", "FP32", [3, -1, -1])])
    assert '"shape"' in caught.value.hint
    _write(tmp_path, {"data": [{"IMAGE": [1, 2, 3]}]})
    with pytest.raises(ConfigError, match="the shape is not known"):
        load_example_inputs(tmp_path, [("IMAGE", "FP32", [3, -1, -1])])


def test_an_unknown_data_type_and_a_file_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown data type 'FLOAT'"):
        load_example_inputs(tmp_path, [("A", "FLOAT", [1])])
    (tmp_path / "example_inputs.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot read the example inputs"):
        load_example_inputs(tmp_path, [("A", "FP32", [1])])


_LEAVES = st.none() | st.booleans() | st.integers(-300, 300) | st.floats() | st.text(max_size=3)
_KEYS = st.sampled_from(
    ["A", "T", "content", "shape", "b64", "file", "min", "max", "values", "vocabulary", "words", "shapes"]
)
_JSON = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3), max_leaves=8
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.lists(st.fixed_dictionaries({"A": _JSON, "T": _JSON}), max_size=2) | _JSON,
    ranges=st.dictionaries(st.sampled_from(["A", "T"]), _JSON, max_size=2) | _JSON,
)
def test_no_file_gives_anything_but_inputs_that_fit_or_a_config_error(tmp_path: Path, data: Any, ranges: Any) -> None:
    _write(tmp_path, {"data": data, "ranges": ranges})
    for source in ("auto", "ranges"):
        try:
            requests = load_example_inputs(
                tmp_path, [("A", "INT8", [2]), ("T", "BYTES", [-1])], count=2, batch_size=2, source=source
            )
        except ConfigError as error:
            told = bool(error.where and error.hint)
            assert told, str(error)  # noqa: PT017 - most files are wrong, some are right
        else:
            for request in requests:
                assert request["A"].shape == (2, 2)
                assert request["A"].dtype == np.int8
                assert all(type(item) is bytes for item in request["T"].ravel())
