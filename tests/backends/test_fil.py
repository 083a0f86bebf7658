"""The FIL backend: forests of three libraries answer as those libraries do, with Triton's parameters and shapes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.backends.conformance import BackendConformance, Kit, ModelCase
from workbench.engine import EngineOptions, InferenceEngine
from workbench.errors import LoadFailed
from workbench.protocol.tensors import InferenceRequest, RequestedOutput, Tensor

xgboost: Any = pytest.importorskip("xgboost", reason="xgboost is not installed")
lightgbm: Any = pytest.importorskip("lightgbm", reason="lightgbm is not installed")
treelite: Any = pytest.importorskip("treelite", reason="treelite is not installed")
sklearn_data: Any = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")

Serve = Callable[..., InferenceEngine]


def config(features: int, values: int = 1, **parameters: Any) -> str:
    """A configuration; a classifier needs a threshold, as in Triton."""
    given = {"output_class": "false", **parameters}
    if given["output_class"] == "true":
        given.setdefault("threshold", "0.5")
    lines = [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in given.items()]
    return "\n".join(
        [
            'backend: "fil"\nmax_batch_size: 4096',
            f'input {{ name: "input__0" data_type: TYPE_FP32 dims: {features} }}',
            f'output {{ name: "output__0" data_type: TYPE_FP32 dims: {values} }}',
            "instance_group { kind: KIND_CPU }\ndynamic_batching { }",
            *lines,
        ]
    )


def put(repository: Path, name: str, text: str, file: str, content: bytes | Path) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / file).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    (repository / name / "config.pbtxt").write_text(text)


def ask(engine: InferenceEngine, model: str, rows: Any) -> Any:
    request = InferenceRequest(model, [Tensor.from_numpy("input__0", np.asarray(rows, np.float32))])
    return engine.infer(request, 20).as_numpy("output__0")


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any]:
    x, y = sklearn_data.load_digits(return_X_y=True)
    return x.astype(np.float32) + np.float32(0.1), y


@pytest.fixture(scope="module")
def cancer() -> tuple[Any, Any]:
    x, y = sklearn_data.load_breast_cancer(return_X_y=True)
    return x.astype(np.float32), y


@pytest.fixture(scope="module")
def trained(digits: Any, cancer: Any) -> dict[str, Any]:
    """Small models of each library."""
    from sklearn.ensemble import RandomForestClassifier

    x, y = digits
    bx, by = cancer
    quiet = {"verbose": -1, "num_threads": 1, "num_leaves": 7, "min_data_in_leaf": 5}
    return {
        "xgb10": xgboost.train(
            {"objective": "multi:softmax", "num_class": 10, "max_depth": 3, "nthread": 1}, xgboost.DMatrix(x, y), 4
        ),
        "xgb2": xgboost.train({"objective": "binary:logistic", "max_depth": 3}, xgboost.DMatrix(bx, by), 8),
        "lgbm10": lightgbm.train({"objective": "multiclass", "num_class": 10, **quiet}, lightgbm.Dataset(x, y), 4),
        "lgbm1": lightgbm.train({"objective": "regression", **quiet}, lightgbm.Dataset(bx, bx[:, 3]), 8),
        "forest": RandomForestClassifier(n_estimators=12, max_depth=8, random_state=0, n_jobs=1).fit(x, y),
    }


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, trained: dict[str, Any]) -> Iterator[InferenceEngine]:
    """All models, served."""
    root = tmp_path_factory.mktemp("fil")
    xgb10, xgb2, lgbm10, lgbm1, forest = (trained[name] for name in ("xgb10", "xgb2", "lgbm10", "lgbm1", "forest"))
    proba: dict[str, Any] = {"output_class": "true", "predict_proba": "true"}
    for kind in ("json", "ubj"):
        raw = bytes(xgb10.save_raw(kind))
        put(root, f"xgb10_{kind}", config(64, 10, model_type=f"xgboost_{kind}", **proba), f"xgboost.{kind}", raw)
    raw, raw2 = bytes(xgb10.save_raw("ubj")), bytes(xgb2.save_raw("json"))
    native = {"WORKBENCH_FIL_ENGINE": "native"}
    put(root, "xgb10_native", config(64, 10, model_type="xgboost_ubj", **proba, **native), "xgboost.ubj", raw)
    put(root, "xgb10_class", config(64, model_type="xgboost_ubj", output_class="true"), "xgboost.ubj", raw)
    put(root, "xgb2_score", config(30, model_type="xgboost_json"), "xgboost.json", raw2)
    put(root, "xgb2_both", config(30, 2, model_type="xgboost_json", **proba), "xgboost.json", raw2)
    put(
        root, "xgb2_class", config(30, model_type="xgboost_json", output_class="true", threshold=0.9),
        "xgboost.json", raw2,
    )  # fmt: skip
    text = lgbm10.model_to_string().encode()
    put(root, "lgbm10", config(64, 10, model_type="lightgbm", **proba), "model.txt", text)
    fast = {"use_experimental_optimizations": "true", "cpu_nthread": "1"}
    put(root, "lgbm10_fast", config(64, 10, model_type="lightgbm", **proba, **fast), "model.txt", text)
    put(root, "lgbm1", config(30, model_type="lightgbm"), "model.txt", lgbm1.model_to_string().encode())
    checkpoint = root / "checkpoint.tl"
    treelite.sklearn.import_model(forest).serialize(checkpoint)
    kind = {"model_type": "treelite_checkpoint"}
    put(root, "forest", config(64, 10, **kind, **proba), "checkpoint.tl", checkpoint)
    put(
        root, "forest_class", config(64, **kind, is_classifier="true", output_class="true"), "checkpoint.tl", checkpoint
    )
    unsafe = {"model_type": "sklearn_pickle", "WORKBENCH_UNSAFE_PICKLE": "true"}
    put(root, "forest_pickle", config(64, 10, **unsafe, **proba), "model.pkl", pickle.dumps(forest))
    running = InferenceEngine(EngineOptions((root,), load_models=("*",)))
    running.start()
    yield running
    running.stop(5)


def test_answers_are_those_of_the_libraries(engine: InferenceEngine, trained: dict[str, Any], digits: Any) -> None:
    x, _ = digits
    softmax = trained["xgb10"].copy()
    softmax.set_param({"objective": "multi:softprob"})
    wanted = {
        "xgb10_json": softmax.inplace_predict(x),
        "lgbm10": trained["lgbm10"].predict(x.astype(np.float64)),
        "forest": trained["forest"].predict_proba(x),
    }
    wanted |= dict.fromkeys(("xgb10_ubj", "xgb10_native"), wanted["xgb10_json"])
    wanted |= {"lgbm10_fast": wanted["lgbm10"], "forest_pickle": wanted["forest"]}
    for name, expected in wanted.items():
        answer = ask(engine, name, x)
        assert (answer.shape, answer.dtype) == (expected.shape, np.float32)
        np.testing.assert_allclose(answer, expected, rtol=2e-6, atol=2e-7, err_msg=name)


def test_shapes_and_kinds_of_answers_are_tritons(
    engine: InferenceEngine, trained: dict[str, Any], digits: Any, cancer: Any
) -> None:
    """Dimensions of 1 are left out; a class is a number, the threshold itself is not above it."""
    x, bx = digits[0][:50], cancer[0]
    classes = ask(engine, "xgb10_class", x)
    assert classes.shape == (50,)
    np.testing.assert_array_equal(classes, trained["xgb10"].inplace_predict(x))
    np.testing.assert_array_equal(ask(engine, "forest_class", x), trained["forest"].predict(x))
    p = trained["xgb2"].inplace_predict(bx)
    np.testing.assert_allclose(ask(engine, "xgb2_score", bx), p, rtol=1e-6)
    both = ask(engine, "xgb2_both", bx)
    assert both.shape == (len(bx), 2)
    np.testing.assert_allclose(both, np.stack([1 - p, p], 1), rtol=1e-5, atol=1e-7)
    assert (p > 0.5).sum() > (p > 0.9).sum() > 0
    np.testing.assert_array_equal(ask(engine, "xgb2_class", bx), p > np.float32(0.9))
    value = ask(engine, "lgbm1", bx)
    assert value.shape == (len(bx),)
    np.testing.assert_allclose(value, trained["lgbm1"].predict(bx), rtol=1e-6)


def test_a_row_of_a_batch_is_that_row_alone(engine: InferenceEngine, digits: Any) -> None:
    x = digits[0][:9]
    for name in ("xgb10_ubj", "xgb10_native", "lgbm10", "lgbm10_fast", "forest"):
        together = ask(engine, name, x)
        alone = np.concatenate([ask(engine, name, row[None]) for row in x])
        np.testing.assert_array_equal(together, alone, err_msg=name)


def test_missing_values_go_where_the_library_sends_them(
    engine: InferenceEngine, trained: dict[str, Any], cancer: Any
) -> None:
    x = cancer[0].copy()
    x[::3, ::4] = np.nan
    x[5] = np.nan
    np.testing.assert_allclose(ask(engine, "xgb2_score", x), trained["xgb2"].inplace_predict(x), rtol=1e-6)
    np.testing.assert_allclose(ask(engine, "lgbm1", x), trained["lgbm1"].predict(x), rtol=1e-6)


@pytest.fixture
def load(tmp_path: Path, make_engine: Serve) -> Callable[..., InferenceEngine]:
    """Writes one model, loads it."""

    def start(text: str, file: str, content: bytes | Path, **options: Any) -> InferenceEngine:
        put(tmp_path, "model", text, file, content)
        running = make_engine(tmp_path, **options)
        running.load("model")
        return running

    return start


def refused(load: Callable[..., InferenceEngine], *given: Any) -> LoadFailed:
    with pytest.raises(LoadFailed) as caught:
        load(*given)
    return caught.value


def test_categories(load: Callable[..., InferenceEngine]) -> None:
    """Codes of categories are compared as sets; unknown ones go with those that are not in the set."""
    random = np.random.default_rng(0)
    x = np.column_stack([random.integers(0, 6, 600), random.normal(size=(600, 2))]).astype(np.float32)
    y = (x[:, 0] % 2 + x[:, 1]) > 0.5
    params = {"objective": "binary:logistic", "max_depth": 3, "max_cat_to_onehot": 2}
    table = xgboost.DMatrix(x, y, feature_types=["c", "q", "q"], enable_categorical=True)
    booster = xgboost.train(params, table, 6)
    assert booster.trees_to_dataframe()["Category"].notna().any()
    engine = load(config(3, model_type="xgboost_json"), "xgboost.json", bytes(booster.save_raw("json")))
    x[::5, 0] = 9
    x[1::7, 0] = np.nan
    np.testing.assert_allclose(ask(engine, "model", x), booster.inplace_predict(x, validate_features=False), rtol=1e-6)


def test_one_against_all_is_answered_by_softmax_as_in_triton(load: Callable[..., InferenceEngine], digits: Any) -> None:
    """LightGBM's own answer is a sigmoid for each class; the log says that the backend makes a softmax of it."""
    x, y = digits
    params = {"objective": "multiclassova", "num_class": 10, "verbose": -1, "num_leaves": 4, "num_threads": 1}
    booster = lightgbm.train(params, lightgbm.Dataset(x, y), 2)
    text = config(64, 10, model_type="lightgbm", output_class="true", predict_proba="true")
    engine = load(text, "model.txt", booster.model_to_string().encode())
    raw = np.exp(booster.predict(x[:20], raw_score=True))
    np.testing.assert_allclose(ask(engine, "model", x[:20]), raw / raw.sum(axis=1, keepdims=True), rtol=1e-5)
    assert any("answers softmax where the model has multiclass_ova" in event.text for event in engine.events.after())


@pytest.fixture(scope="module")
def small(cancer: Any) -> bytes:
    return bytes(xgboost.train({"max_depth": 2}, xgboost.DMatrix(*cancer), 1).save_raw("json"))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (config(30, model_type="onnx"), "onnx not recognized as a valid serialization format.", "treelite_checkpoint"),
        (
            config(30, model_type="xgboost_json", output_class="true").replace('"threshold"', '"limit"'),
            "Required parameter threshold not found in config", "0.5",
        ),
        (
            config(30, model_type="xgboost_json").replace('"output_class"', '"class"'),
            "Required parameter is_classifier not found in config", "output_class",
        ),
        (
            config(30, model_type="xgboost_json", predict_proba="yes"),
            "Expected 'true' or 'false' for parameter 'predict_proba', got: 'yes'", "",
        ),
        (
            config(31, model_type="xgboost_json"),
            "unable to load model 'model', configuration expects 31 features in 'input__0', model provides 30", "30",
        ),
        (
            config(30, 3, model_type="xgboost_json"),
            "configuration expects 3 values a row in 'output__0', model provides 1 (scores)", "dims: [ 1 ]",
        ),
        (config(30, model_type="xgboost_ubj"), "Could not open model file", "xgboost.ubj"),
        (
            config(30, model_type="xgboost_json").replace("FP32 dims: 30", "FP64 dims: 30"),
            "'input__0' has incorrect type TYPE_FP64, TYPE_FP32 is required", "FP32",
        ),
        (config(30, model_type="xgboost_json").replace("input__0", "x"), "one input, 'input__0'", ""),
        (config(30, model_type="xgboost_json").replace("output__0", "y"), "the output 'output__0'", ""),
        (
            config(30, model_type="lightgbm") + '\ndefault_model_filename: "xgboost.json"',
            "Ill-formed LightGBM model file", "the file looks like xgboost_json",
        ),
        (
            config(30) + '\ndefault_model_filename: "xgboost.json"',
            "", "the file looks like xgboost_json: set the parameter model_type",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    load: Callable[..., InferenceEngine], small: bytes, text: str, message: str, hint: str
) -> None:
    error = refused(load, text, "xgboost.json", small)
    assert message in str(error)
    assert hint in str(error)


def test_a_legacy_binary_says_what_to_do(load: Callable[..., InferenceEngine]) -> None:
    """XGBoost's old format is Triton's default; a broken one is treelite's to complain of, the way out is ours."""
    error = refused(load, config(30), "xgboost.model", b"binf" + bytes(40))
    assert "save it as .ubj (model_type xgboost_ubj)" in str(error)


def test_a_checkpoint_that_is_cut_short_does_not_take_the_server_with_it(
    tmp_path: Path, load: Callable[..., InferenceEngine], trained: dict[str, Any]
) -> None:
    whole = tmp_path / "whole.tl"
    treelite.sklearn.import_model(trained["forest"]).serialize(whole)
    text = config(64, 10, model_type="treelite_checkpoint", output_class="true", predict_proba="true")
    content = whole.read_bytes()
    error = refused(load, text, "checkpoint.tl", content[: len(content) // 2])
    assert "treelite cannot read checkpoint.tl" in str(error)
    assert "write it anew" in str(error)


def test_pickles_are_read_where_that_is_allowed_and_elsewhere(
    tmp_path: Path, load: Callable[..., InferenceEngine], trained: dict[str, Any]
) -> None:
    """Code in a pickle does not run until it is allowed, and then not in the server."""
    witness = tmp_path / "witness"
    error = refused(load, config(64, 10, model_type="sklearn_pickle"), "model.pkl", pickle.dumps(Harmful(str(witness))))
    assert "unsafe" in str(error)
    assert "treelite.sklearn.import_model" in str(error)
    assert not witness.exists()


class Harmful:
    """Writes a file when it is read from a pickle."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return exec, (f"import os; open({self.path!r}, 'w').write(str(os.getpid()))",)


def test_an_allowed_pickle_that_is_no_forest(tmp_path: Path, load: Callable[..., InferenceEngine]) -> None:
    """By the server's flag; what it does happens in another process, and the error says what it raised."""
    import os

    witness = tmp_path / "witness"
    with pytest.raises(LoadFailed, match="the pickle could not be read"):
        load(
            config(64, 10, model_type="sklearn_pickle"), "model.pkl", pickle.dumps(Harmful(str(witness))),
            backend_config={"fil": {"unsafe-pickle": "true"}},
        )  # fmt: skip
    assert int(witness.read_text()) != os.getpid()


def test_a_gpu_without_nvforest_is_refused_in_words(
    load: Callable[..., InferenceEngine], small: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    from workbench.backends.base import ModelContext
    from workbench.backends.fil import FilBackend
    from workbench.clock import monotonic_ns
    from workbench.config import ConfigDocument
    from workbench.errors import InvalidRequest

    engine = load(config(30, model_type="xgboost_json"), "xgboost.json", small)
    assert FilBackend().uses_gpus is False
    directory = engine.options.repositories[0] / "model"
    text = config(30, model_type="xgboost_json").replace("KIND_CPU", "KIND_GPU gpus: 0")
    host: Any = SimpleNamespace(clock=monotonic_ns, log=lambda *args, **fields: None)
    context = ModelContext(
        "model", 1, ConfigDocument.parse(text.encode()).message, "{}", directory, directory / "1", host
    )
    with pytest.raises(InvalidRequest, match="nvforest, which runs trees there, is not installed") as caught:
        FilBackend().open(context)
    assert "EXECUTION_ENV_PATH" in str(caught.value)


@pytest.mark.parametrize("counts", [[0], [2, 0, 1]])
def test_on_a_gpu_a_request_without_rows_is_answered_too(counts: list[int]) -> None:
    """The model of nvforest's process, on a stand-in of nvforest's forest."""
    from types import SimpleNamespace

    from workbench.backends.fil_process.fil_scores import answer
    from workbench.backends.fil_process.model import TritonPythonModel

    model: Any = TritonPythonModel()
    model.classes, model.answer = 3, answer
    model.rule = {"values": 3, "tail": (3,), "classifier": True, "predict_proba": True, "threshold": 0.5}
    model.forest = SimpleNamespace(predict_proba=lambda table: np.repeat(table[:, :1], 3, axis=1))
    model.utils = SimpleNamespace(
        get_input_tensor_by_name=lambda request, name: SimpleNamespace(as_numpy=lambda: request),
        Tensor=lambda name, array: array,
        InferenceResponse=lambda tensors: tensors[0],
    )
    requests = [np.ones((count, 5), np.float32) for count in counts]
    assert [each.shape for each in model.execute(requests)] == [(count, 3) for count in counts]


def test_removed_parameters_are_warned_of(load: Callable[..., InferenceEngine], small: bytes) -> None:
    parameters = {"algo": "ALGO_AUTO", "storage_type": "AUTO", "blocks_per_sm": "0", "transfer_threshold": "2"}
    engine = load(config(30, model_type="xgboost_json", **parameters), "xgboost.json", small)
    assert ask(engine, "model", np.zeros((2, 30))).shape == (2,)
    texts = [event.text for event in engine.events.after() if event.level == "warning"]
    assert any(
        "The `algo` parameter has been removed in 25.09 release. Use `layout` instead." in text for text in texts
    )


def test_only_what_is_asked_for_is_answered(engine: InferenceEngine, digits: Any) -> None:
    tensor = Tensor.from_numpy("input__0", digits[0][:2])
    request = InferenceRequest("forest", [tensor], outputs=[RequestedOutput("output__0")])
    assert [each.name for each in engine.infer(request, 10).outputs] == ["output__0"]


def test_a_configuration_from_the_field(load: Callable[..., InferenceEngine], shared: Path) -> None:
    """Koina's ms2pip, as it stands."""
    random = np.random.default_rng(1)
    x, y = random.normal(size=(200, 139)).astype(np.float32), random.normal(size=200)
    booster = xgboost.train({"max_depth": 3}, xgboost.DMatrix(x, y), 3)
    text = (shared / "cases" / "configs" / "02_koina_ms2pip_fil.pbtxt").read_text()
    engine = load(text, "xgboost.json", bytes(booster.save_raw("json")))
    np.testing.assert_allclose(ask(engine, "model", x), booster.inplace_predict(x), rtol=1e-5)


class TestFil(BackendConformance):
    @pytest.fixture(autouse=True)
    def _model(self, trained: dict[str, Any]) -> None:
        self.booster = trained["xgb2"]

    def kit(self) -> Kit:
        booster, text = self.booster, config(30, model_type="xgboost_ubj")

        def write(directory: Path) -> None:
            (directory / "config.pbtxt").write_text(text)
            (directory / "1" / "xgboost.ubj").write_bytes(bytes(booster.save_raw("ubj")))

        def inputs(rng: np.random.Generator, rows: int) -> dict[str, Any]:
            return {"input__0": (rng.exponential(size=(rows, 30)) * 20).astype(np.float32)}

        def expected(given: Any) -> dict[str, Any]:
            return {"output__0": booster.inplace_predict(given["input__0"])}

        model = ModelCase(write, inputs, expected, tolerance=1e-6)
        return Kit(
            "fil",
            model=model,
            datatypes={"FP32": model},
            dynamic="a forest has a fixed number of features",
            scalar="a forest takes rows",
            zero_rows=model,
            failing="a forest answers any numbers, NaN among them",
            framework=("treelite", "xgboost", "lightgbm", "sklearn"),
        )
