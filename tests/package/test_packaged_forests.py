"""Forests packaged for Triton's FIL backend: files and estimators of three libraries, served as they are written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench as wb
from workbench.cli import main
from workbench.engine import EngineOptions, InferenceEngine
from workbench.errors import InvalidRequest
from workbench.package import Packaged
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.repository.example_inputs import load_example_inputs

xgboost: Any = pytest.importorskip("xgboost", reason="xgboost is not installed")
lightgbm: Any = pytest.importorskip("lightgbm", reason="lightgbm is not installed")
pytest.importorskip("treelite", reason="treelite is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(300, 5)).astype(np.float32)
THREE = np.array(["low", "mid", "top"])[np.digitize(X[:, 0] + X[:, 1], [-0.5, 0.5])]
TWO = X[:, 0] > X[:, 2]


@pytest.fixture
def to(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def served(to: Path, packaged: Packaged, rows: Any) -> Any:
    assert not [finding for file in wb.lint(packaged.directory) for finding in file.findings]
    engine = InferenceEngine(EngineOptions((to,), load_models=("*",)))
    engine.start()
    try:
        inputs = [("input__0", "FP32", [rows.shape[1]])]
        assert next(iter(load_example_inputs(packaged.directory, inputs, batch_size=2)))["input__0"].shape[0] == 2
        request = InferenceRequest(packaged.name, [Tensor.from_numpy("input__0", rows)])
        return engine.infer(request, 20).as_numpy("output__0")
    finally:
        engine.stop(5)


def random_forest() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(n_estimators=8, random_state=0).fit(X, THREE)


def test_an_estimator_answers_its_probabilities(to: Path) -> None:
    forest = random_forest()
    packaged = wb.package(forest, "forest", example_inputs=X[:4], to=to, backend="fil")
    assert (packaged.backend, packaged.max_batch_size, packaged.needs) == ("fil", 1024, ())
    assert (packaged.directory / "1" / "checkpoint.tl").is_file()
    np.testing.assert_allclose(served(to, packaged, X), forest.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize(
    "fitted",
    [
        lambda: xgboost.XGBClassifier(n_estimators=4, max_depth=3).fit(X, TWO),
        lambda: lightgbm.LGBMClassifier(n_estimators=4, verbose=-1).fit(X, TWO),
    ],
)
def test_a_binary_one_answers_both(to: Path, fitted: Callable[[], Any]) -> None:
    model = fitted()
    packaged = wb.package(model, "binary", example_inputs={"x": X[:4]}, to=to, backend="fil")
    np.testing.assert_allclose(served(to, packaged, X), model.predict_proba(X), atol=1e-6)


def test_a_label_is_the_number_of_its_class(to: Path) -> None:
    forest = random_forest()
    packaged = wb.package(forest, "label", example_inputs=X[:4], to=to, backend="fil", outputs=["label"])
    numbers = served(to, packaged, X)
    np.testing.assert_array_equal(forest.classes_[numbers.astype(int)], forest.predict(X))


@pytest.mark.parametrize("file", ["reg.json", "reg.ubj", "reg.txt"])
def test_a_file_on_the_command_line(to: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str) -> None:
    """What a file is, its bytes say; without examples some are drawn."""
    path, y = tmp_path / file, X[:, 0] * 2 + X[:, 1]
    if file.endswith(".txt"):
        model = lightgbm.train({"verbose": -1, "objective": "regression"}, lightgbm.Dataset(X, y), 4)
        model.save_model(path)
        expected = model.predict(X)
    else:
        model = xgboost.train({"max_depth": 3}, xgboost.DMatrix(X, y), 4)
        model.save_model(path)
        expected = model.inplace_predict(X)
    assert main(["package", str(path), "--to", str(to), "--backend", "fil", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["backend"], about["outputs"][0]["dims"]) == ("fil", [1])
    engine = InferenceEngine(EngineOptions((to,), load_models=("*",)))
    engine.start()
    try:
        answer = engine.infer(InferenceRequest("reg", [Tensor.from_numpy("input__0", X)]), 20)
        np.testing.assert_allclose(answer.as_numpy("output__0"), expected, rtol=1e-5, atol=1e-6)
    finally:
        engine.stop(5)


def test_an_estimator_in_a_file_of_joblib(to: Path, tmp_path: Path) -> None:
    import joblib

    forest = random_forest()
    joblib.dump(forest, tmp_path / "forest.joblib")
    np.save(tmp_path / "rows.npy", X[:4])
    given = ["--to", str(to), "--example-inputs", str(tmp_path / "rows.npy"), "--name"]
    assert main(["package", str(tmp_path / "forest.joblib"), "--backend", "fil", *given, "forest"]) == 0
    (packaged,) = to.iterdir()
    assert 'backend: "fil"' in (packaged / "config.pbtxt").read_text()
    engine = InferenceEngine(EngineOptions((to,), load_models=("*",)))
    engine.start()
    try:
        answer = engine.infer(InferenceRequest("forest", [Tensor.from_numpy("input__0", X)]), 20)
        np.testing.assert_allclose(answer.as_numpy("output__0"), forest.predict_proba(X), rtol=1e-5, atol=1e-6)
    finally:
        engine.stop(5)


def test_a_file_of_lightgbm_that_is_cut_off_is_refused(to: Path, tmp_path: Path) -> None:
    """treelite takes the trees that are there, and so does Triton: the answers would be others."""
    path = tmp_path / "cut.txt"
    lightgbm.train({"verbose": -1}, lightgbm.Dataset(X, X[:, 0] * 2), 6).save_model(path)
    whole = path.read_text()
    path.write_text(whole[: whole.index("Tree=3")])
    with pytest.raises(InvalidRequest, match="cut off"):
        wb.package(path, "cut", to=to)
    assert not list(to.iterdir())
    for name, text in {"whole": whole, "of_an_older_release": whole.replace("end of trees\n", "")}.items():
        path.write_text(text)
        assert wb.package(path, name, to=to).backend == "fil"


@pytest.mark.parametrize(
    ("thing", "given", "text"),
    [
        (lambda: object(), {}, "is no forest of a library that is known"),
        (random_forest, {"example_inputs": X[:, :3]}, "takes rows of 5 numbers, an example is float32 [300, 3]"),
        (random_forest, {"outputs": ["label", "probabilities"]}, "has one output, here probabilities or label"),
        (random_forest, {"max_batch_size": 0}, "takes rows: it batches"),
        (random_forest, {"backend": "tensorrt"}, "backend is 'tensorrt'"),
    ],
)
def test_what_cannot_be_packaged_so(to: Path, thing: Callable[[], Any], given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text.replace("[", r"\[").replace("]", r"\]")):
        wb.package(thing(), "model", to=to, **{"example_inputs": X[:3], "backend": "fil", **given})
    assert not list(to.iterdir())
