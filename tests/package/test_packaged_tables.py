"""Tables with columns of several types, several labels, optional inputs: packaged, served, the same answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import packaged_helpers as helpers
import pandas as pd
import pytest
from packaged_tables import BOUGHT, TABLE, by_column, pipeline

import workbench as wb
from workbench.cli import main
from workbench.errors import InvalidRequest


@pytest.fixture
def to(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def test_a_table_of_several_types_is_an_input_for_each_column(to: Path) -> None:
    model = pipeline()
    packaged = wb.package(model, "buys", example_inputs=TABLE, to=to)
    assert [(spec.name, spec.datatype, spec.dims) for spec in packaged.signature.inputs] == [
        ("age", "INT64", ()), ("income", "FP64", ()), ("city", "BYTES", ()), ("member", "BOOL", ()),
    ]  # fmt: skip
    assert packaged.max_batch_size == 32
    written = json.loads((packaged.directory / "example_inputs.json").read_text())["data"]
    assert [row["city"]["content"] for row in written] == [[name] for name in TABLE["city"]]
    with wb.Engine(to) as server:
        (entry,) = server.statistics("buys")["model_stats"]
        assert int(entry["execution_count"]) == 1, "the warm-up"
        for rows in (TABLE, TABLE[2:3]):
            answer = server.infer("buys", by_column(rows))
            assert [each.decode() for each in answer["label"].ravel()] == model.predict(rows).tolist()
            np.testing.assert_allclose(answer["probabilities"], model.predict_proba(rows))
        point = server.profile("buys", concurrency=4, duration_s=0.3, warmup_s=0.1)
        assert (point.failed, point.throughput > 0) == (0, True)


@pytest.mark.full
def test_or_for_each_data_type(to: Path) -> None:
    model = pipeline()
    packaged = wb.package(model, "buys", example_inputs=TABLE, to=to, inputs="dtypes")
    assert [(spec.name, spec.dims) for spec in packaged.signature.inputs] == [
        ("int64", (1,)), ("float64", (1,)), ("text", (1,)), ("bool", (1,)),
    ]  # fmt: skip
    numbers = TABLE.assign(older=TABLE["age"] + 1).drop(columns=["city", "member"])
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(3, random_state=0).fit(numbers, BOUGHT)
    packaged = wb.package(forest, "numbers", example_inputs=numbers, to=to, inputs="dtypes")
    assert [(spec.name, spec.dims) for spec in packaged.signature.inputs] == [("int64", (2,)), ("float64", (1,))]
    with wb.Engine(to, models=["numbers"]) as server:
        feed = {"int64": numbers[["age", "older"]].to_numpy(), "float64": numbers[["income"]].to_numpy()}
        np.testing.assert_allclose(server.infer("numbers", feed)["probabilities"], forest.predict_proba(numbers))


@pytest.mark.parametrize(
    ("table", "options", "text"),
    [
        (TABLE, {"inputs": "one"}, r"an input has one data type, the table's columns have several \(age: int64, inc"),
        (TABLE.assign(city=None), {}, "column 'city' has missing values"),
        (TABLE.assign(when=pd.Timestamp("2025-01-01")), {}, "column 'when' holds times"),
        (TABLE.assign(city=[[1]] * 6), {}, "column 'city' is neither of numbers nor of texts"),
        (np.ones((2, 4)), {"inputs": "columns"}, "the examples are no table"),
        (TABLE, {"inputs": "rows"}, "inputs is 'rows'"),
        ([TABLE, TABLE[["age"]]], {}, "the same columns"),
        ({"age": np.ones(1), "income": np.ones(1)}, {}, "an estimator has one input"),
    ],
)
def test_what_no_input_can_say_is_told(table: Any, options: dict[str, Any], text: str, to: Path) -> None:
    with pytest.raises(InvalidRequest, match=text) as caught:
        wb.package(pipeline(), "buys", example_inputs=table, to=to, **options)
    assert caught.value.hint or caught.value.where
    assert list(to.iterdir()) == []


@pytest.mark.full
def test_texts_alone(to: Path) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts = np.array(["good film", "bad film", "good play", "bad play", "so good", "so bad"])
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, [1, 0, 1, 0, 1, 0])
    packaged = wb.package(model, "moods", example_inputs=texts, to=to)
    assert [(spec.name, spec.datatype, spec.dims) for spec in packaged.signature.inputs] == [("input", "BYTES", ())]
    with wb.Engine(to) as server:
        answer = server.infer("moods", {"input": texts[:, None]})
        assert answer["label"].ravel().tolist() == model.predict(texts).tolist()


def test_several_labels(to: Path) -> None:
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    x = np.random.default_rng(0).random((30, 3))
    labels = np.stack([x[:, 0] > 0.5, x[:, 1] * 3 // 1], axis=1).astype(np.int64)
    forest = RandomForestClassifier(4, random_state=0).fit(x, labels)
    packaged = wb.package(forest, "both", example_inputs=x[:4], to=to)
    assert [(spec.name, spec.dims) for spec in packaged.signature.outputs] == [
        ("label", (2,)), ("probabilities_0", (2,)), ("probabilities_1", (3,)),
    ]  # fmt: skip
    wb.package(RandomForestRegressor(4, random_state=0).fit(x, x[:, :2]), "sizes", example_inputs=x[:4], to=to)
    with wb.Engine(to) as server:
        answer = server.infer("both", {"input": x})
        assert answer["label"].tolist() == forest.predict(x).tolist()
        for index, expected in enumerate(forest.predict_proba(x)):
            np.testing.assert_allclose(answer[f"probabilities_{index}"], expected)
        assert server.infer("sizes", {"input": x})["prediction"].shape == (30, 2)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["classifier", "booster"])
def test_categories_of_xgboost(kind: str, to: Path) -> None:
    import xgboost

    table = TABLE.assign(city=pd.Categorical(TABLE["city"]), member=TABLE["member"].astype(np.int64))
    model = xgboost.XGBClassifier(n_estimators=4, max_depth=2, n_jobs=1, enable_categorical=True)
    model.fit(table, (BOUGHT == "yes").astype(int))
    expected, output = model.predict_proba(table), "probabilities"
    thing = model
    if kind == "booster":
        thing = model.get_booster()
        expected, output = thing.predict(xgboost.DMatrix(table, enable_categorical=True)), "prediction"
    wb.package(thing, "trees", example_inputs=table, to=to)
    with wb.Engine(to) as server:
        feed = by_column(table.assign(city=table["city"].astype(object)))
        got = server.infer("trees", feed)[output]
        np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["classifier", "booster"])
def test_lightgbm(kind: str, to: Path) -> None:
    import lightgbm

    x = np.random.default_rng(1).random((30, 4))
    model = lightgbm.LGBMClassifier(n_estimators=4, min_child_samples=2, n_jobs=1).fit(x, x[:, 0] > 0.5)
    thing, output = (model, "probabilities") if kind == "classifier" else (model.booster_, "prediction")
    expected = model.predict_proba(x) if kind == "classifier" else model.booster_.predict(x)
    wb.package(thing, "trees", example_inputs=x, to=to)
    with wb.Engine(to) as server:
        np.testing.assert_allclose(server.infer("trees", {"input": x})[output].reshape(expected.shape), expected)


def test_optional_inputs_of_a_function(to: Path) -> None:
    examples = [{"x": np.ones((2, 3), np.float32)}, {"x": np.ones((1, 3), np.float32), "weight": np.full((1, 1), 3.0)}]
    packaged = wb.package(helpers.weighed, "weighed", example_inputs=examples, to=to)
    assert [(spec.name, spec.optional) for spec in packaged.signature.inputs] == [("x", False), ("weight", True)]
    assert "optional: true" in (packaged.directory / "config.pbtxt").read_text()
    with wb.Engine(to) as server:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        assert server.infer("weighed", {"x": x})["output"].tolist() == x.tolist()
        assert server.infer("weighed", {"x": x, "weight": [[2], [3]]})["output"].tolist() == (x * [[2], [3]]).tolist()
        point = server.profile("weighed", concurrency=8, duration_s=0.3, warmup_s=0.1)
        assert point.failed == 0, "requests with and without it, batched"
    with pytest.raises(InvalidRequest, match="not all have x") as caught:
        wb.package(helpers.weighed, "other", example_inputs=[examples[0], {"weight": np.ones((1, 1))}], to=to)
    assert "with a default" in caught.value.hint


def test_hints_say_the_data_type_of_an_example(to: Path) -> None:
    packaged = wb.package(helpers.hinted, "hinted", example_inputs={"x": [[1, 2], [3, 4]], "n": [[5], [6]]}, to=to)
    assert [spec.datatype for spec in packaged.signature.inputs] == ["FP32", "INT64"]
    assert packaged.signature.outputs[0].datatype == "FP32"


def test_a_csv_on_the_command_line(to: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import joblib

    joblib.dump(pipeline(), tmp_path / "buys.joblib")
    TABLE.assign(city=TABLE["city"].replace("", "Basel")).to_csv(tmp_path / "people.csv", index=False)
    command = [
        "package",
        str(tmp_path / "buys.joblib"),
        "--to",
        str(to),
        "--example-inputs",
        str(tmp_path / "people.csv"),
    ]
    assert main([*command, "--inputs", "columns"]) == 0
    assert "age INT64 [1], income FP64 [1], city BYTES [1], member BOOL [1]" in capsys.readouterr().out
