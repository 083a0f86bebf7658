"""What is packaged loads, answers as the thing itself, is clean, and brings its warm-up and example inputs."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import packaged_helpers as helpers
import pytest
from onnx import helper
from onnx_models import add_model, graph

import workbench as wb
from workbench.cli import main
from workbench.config import ConfigDocument
from workbench.errors import AlreadyExists, InvalidRequest, NotFound, WorkbenchError
from workbench.package import Packaged
from workbench.session.server import Server

ROWS = np.random.default_rng(3).random((5, 4)).astype(np.float32)


@pytest.fixture
def to(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def check(packaged: Packaged, feed: dict[str, Any], expected: dict[str, Any], server: Server) -> None:
    """Clean, READY, warmed up, and the same answers one by one, together, and from the written examples."""
    (file,) = [each for each in wb.lint(packaged.directory) if each.path.name == "config.pbtxt"]
    assert [finding.message for finding in file.findings] == []
    assert server.models()[packaged.name].ready, server.models()
    (entry,) = server.statistics(packaged.name)["model_stats"]
    assert int(entry["execution_count"]) == 1  # the warm-up
    answer = server.infer(packaged.name, feed)
    assert set(answer) == set(expected)
    for name, array in expected.items():
        assert_alike(answer[name], array)
    if packaged.max_batch_size:
        first = server.infer(packaged.name, {name: np.asarray(array)[:1] for name, array in feed.items()})
        for name, array in expected.items():
            assert_alike(first[name], array[:1])
    point = server.profile(packaged.name, concurrency=4, duration_s=0.3, warmup_s=0.1)
    assert point.failed == 0
    assert point.throughput > 0


def assert_alike(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    if got.dtype == np.object_:
        assert [item.decode() for item in got.flat] == [str(item) for item in expected.flat]
    else:
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_numbers_of_numpy_keep_their_type(to: Path) -> None:
    packaged = wb.package(helpers.in_halves, "in_halves", example_inputs={"x": ROWS}, to=to)
    with wb.Engine(to) as server:
        answer = server.infer(packaged.name, {"x": ROWS})
        assert answer["scaled"].dtype == np.float32  # of an array of no axes, float64 would be made of the half
        assert answer["kind"][0, 0] == b"float16"
        np.testing.assert_allclose(answer["scaled"], ROWS * 1.5)


def test_a_function_with_all_that_it_uses(to: Path) -> None:
    packaged = wb.package(helpers.score, "score", example_inputs={"x": ROWS}, to=to)
    assert packaged.max_batch_size == 32
    assert "outputs  scores FP32 [3], total FP64 [1]" in repr(packaged)
    config = ConfigDocument.parse((to / "score" / "config.pbtxt").read_bytes()).message
    assert [(each.name, list(each.dims)) for each in config.output] == [("scores", [3]), ("total", [1])]
    assert config.HasField("dynamic_batching")
    assert config.instance_group[0].count == 1
    examples = json.loads((to / "score" / "example_inputs.json").read_text())["data"]
    assert [each["x"]["content"] for each in examples] == ROWS.tolist()
    expected = helpers.score(ROWS)
    with wb.Engine(to) as server:
        check(packaged, {"x": ROWS}, expected | {"total": expected["total"][:, None]}, server)


def test_an_output_of_which_only_onnx_runtime_knows_the_shape(to: Path) -> None:
    negative = helper.make_node("Neg", ["x"], ["y"])
    (to.parent / "net.onnx").write_bytes(graph([negative], [("x", "FP32", ["b", 4])], [("y", "FP32", None)]))
    packaged = wb.package(to.parent / "net.onnx", "net", example_inputs=ROWS, to=to)
    with wb.Engine(to) as server:
        check(packaged, {"x": ROWS}, {"y": -ROWS}, server)


def test_strings_tuples_and_names(to: Path) -> None:
    feed = {"text": np.array([["hello", "ü"], ["", "b"]]), "times": np.array([[1, 2], [3, 1]])}
    packaged = wb.package(helpers.shout, "shout", example_inputs=feed, to=to, outputs=["said", "length"])
    said, length = helpers.shout(**feed)
    importlib.import_module("numpy.char")  # as anything in a kernel may have done: numpy 1 has no such module
    again = wb.package(helpers.shout, "again", example_inputs=feed, to=to, outputs=["said", "length"])
    assert "import numpy.char" not in (again.directory / "1" / "model.py").read_text()
    with wb.serve(to) as server:
        check(packaged, feed, {"said": said, "length": length}, server)
    assert "text BYTES [2], times INT64 [2]" in repr(packaged)


def test_a_function_whose_rows_depend_on_each_other_takes_no_batch(to: Path) -> None:
    packaged = wb.package(helpers.centred, "centred", example_inputs=ROWS, to=to)
    assert packaged.max_batch_size == 0
    assert "a row is answered differently alone and together with others" in repr(packaged)
    with wb.Engine(to) as server:
        check(packaged, {"x": ROWS}, {"output": helpers.centred(ROWS)}, server)


def test_sizes_that_differ_are_variable(to: Path) -> None:
    feeds = [{"x": ROWS[:, :3]}, {"x": ROWS}]
    packaged = wb.package(helpers.made(0.5), "shifted", example_inputs=feeds, to=to)
    assert packaged.signature.inputs[0].dims == (-1,)
    with wb.Engine(to) as server:
        check(packaged, {"x": ROWS}, {"output": ROWS + 0.5}, server)
        assert server.infer("shifted", {"x": ROWS[:, :2]})["output"].shape == (5, 2)


def test_an_error_is_the_requests_own(to: Path) -> None:
    def roots(x: np.ndarray) -> np.ndarray:
        if (x < 0).any():
            raise ValueError(f"no root of {x.min()}")
        return np.sqrt(x)

    wb.package(roots, "roots", example_inputs=ROWS, to=to)
    with wb.Engine(to) as server:
        server.configure("roots", "dynamic_batching.max_queue_delay_microseconds=200000")
        from concurrent.futures import ThreadPoolExecutor

        def ask(sign: int) -> Any:
            try:
                return server.infer("roots", {"x": sign * ROWS})["output"]
            except WorkbenchError as error:
                return error.message

        with ThreadPoolExecutor(3) as pool:
            good, bad, other = pool.map(ask, (1, -1, 1))
        assert_alike(good, np.sqrt(ROWS))
        assert_alike(other, np.sqrt(ROWS))
        assert "no root of" in bad
        with pytest.raises(ValueError, match="no root of"):
            server.replay()


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (helpers.logs, "'logs' uses 'LOG', a _io.TextIOWrapper: it cannot be written into model.py"),
        (helpers.counts, "'counts' sets the global 'SCALE'"),
        (helpers.uses_a_class, "'uses_a_class' uses 'Holder', the class 'Holder'"),
        (helpers.nameless, "a lambda has no name"),
        (helpers.later, "'later' is a generator or a coroutine"),
        (helpers.any_number, "takes any number of arguments"),
        (helpers.random, "packaged, it answers differently"),
        (object(), "a builtins.object cannot be packaged"),
        (dict, "dict is a class: it has no weights"),
    ],
)
def test_what_cannot_be_packaged_is_said(function: Any, text: str, to: Path) -> None:
    with pytest.raises(InvalidRequest, match=text) as caught:
        wb.package(function, "refused", example_inputs={"x": ROWS}, to=to, max_batch_size=8)
    assert caught.value.hint or caught.value.where
    assert list(to.iterdir()) == []  # nothing half-made


def test_an_earlier_model_is_only_replaced_when_asked(to: Path) -> None:
    wb.package(helpers.made(1.0), "shifted", example_inputs=ROWS, to=to)
    with pytest.raises(AlreadyExists, match="there is a model 'shifted' already"):
        wb.package(helpers.made(2.0), "shifted", example_inputs=ROWS, to=to)
    with wb.Engine(to) as server:
        assert_alike(server.infer("shifted", {"x": ROWS})["output"], ROWS + 1)
        wb.package(helpers.made(2.0), "shifted", example_inputs=ROWS, to=to, overwrite=True)
        server.load("shifted")
        assert_alike(server.infer("shifted", {"x": ROWS})["output"], ROWS + 2)
    with pytest.raises(NotFound):
        wb.package(helpers.made(2.0), "x", example_inputs=ROWS, to=to / "none")
    with pytest.raises(InvalidRequest, match="example_inputs are needed"):
        wb.package(helpers.made(2.0), "x", to=to)


@pytest.mark.parametrize("none", [[], {}, ()], ids=repr)
@pytest.mark.parametrize("estimator", [False, True], ids=["function", "estimator"])
def test_no_examples_are_refused_in_words(to: Path, estimator: bool, none: Any) -> None:
    thing = classifier() if estimator else helpers.made(2.0)
    with pytest.raises(InvalidRequest, match="example_inputs are needed to package"):
        wb.package(thing, "x", example_inputs=none, to=to)
    with pytest.raises(InvalidRequest, match="has no rows"):
        wb.package(thing, "x", example_inputs=ROWS[:0], to=to)
    assert list(to.iterdir()) == []


@pytest.mark.parametrize("name", ["model.joblib", "model.pkl", "model.ubj", "model.onnx", "model.pt2"])
def test_a_file_that_cannot_be_read_is_told_with_what_to_do(
    to: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = tmp_path / name
    if name.endswith((".joblib", ".pkl")):
        import joblib

        joblib.dump(classifier(), path)
        path.write_bytes(path.read_bytes()[:2000])
    else:
        path.write_bytes(b"{L" * 300)
    assert main(["package", str(path), "--to", str(to)]) == 1
    said = capsys.readouterr().err
    assert f"workbench package: {name} " in said
    assert "what to do: " in said
    assert list(to.iterdir()) == []


@pytest.mark.parametrize("kind", ["estimator", "function", "onnx"])
def test_an_example_on_which_a_thing_fails_is_named_with_its_shapes(to: Path, tmp_path: Path, kind: str) -> None:
    def product(x: np.ndarray) -> np.ndarray:
        return x @ np.ones((4, 2), np.float32)

    thing: Any = classifier() if kind == "estimator" else product
    if kind == "onnx":
        nodes = [helper.make_node("Relu", ["x"], ["y"])]
        thing = tmp_path / "m.onnx"
        thing.write_bytes(graph(nodes, [("x", "FP32", ("batch", 4))], [("y", "FP32", ("batch", 4))]))
    good, bad = {"x": ROWS}, {"x": ROWS[:, :3]}
    given: Any = [{"input": each["x"]} for each in (good, bad)] if kind == "estimator" else [good, bad]
    with pytest.raises(InvalidRequest, match="fails on example 1: ") as raised:
        wb.package(thing, "m", example_inputs=given, to=to)
    assert "FP32 [5, 3]" in (raised.value.where or "")
    assert raised.value.hint
    assert list(to.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "outputs", "do"),
    [
        (0, [], "give an array of shape [1]"),
        (1, ["a", "b"], "name as many outputs as it gives"),
        (3, ["a", "b"], "name as many outputs as it gives"),
    ],
)
def test_what_is_not_the_examples_fault_says_what_to_do_about_the_answer(
    to: Path, number: int, outputs: list[str], do: str
) -> None:
    def given(x: np.ndarray) -> Any:
        return {0: x.mean(), 1: x, 3: (x, x, x)}[number]

    with pytest.raises(InvalidRequest) as raised:
        wb.package(given, "m", example_inputs={"x": ROWS}, to=to, outputs=outputs)
    assert do in (raised.value.hint or "")


def test_a_pickle_whose_classes_are_not_here_is_not_told_as_a_reader_that_is_missing(to: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.pkl"
    path.write_bytes(b"\x80\x04cmysteps\nScaler\n)R.")
    with pytest.raises(InvalidRequest, match=r"own\.pkl cannot be read: No module named 'mysteps'") as raised:
        wb.package(path, "own", example_inputs=ROWS, to=to)
    assert "importable" in (raised.value.hint or "")


def classifier() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    rng = np.random.default_rng(0)
    x = rng.random((80, 4))
    return RandomForestClassifier(5, random_state=0).fit(x, np.where(x[:, 0] > 0.5, "high", "low"))


def test_a_classifier(to: Path) -> None:
    model, x = classifier(), ROWS.astype(np.float64)
    packaged = wb.package(model, "forest", example_inputs=x, to=to)
    assert any(need.startswith("scikit-learn==") for need in packaged.needs)
    with wb.Engine(to) as server:
        expected = {"label": model.predict(x)[:, None], "probabilities": model.predict_proba(x)}
        check(packaged, {"input": x}, expected, server)


def test_a_pipeline_fitted_on_a_table(to: Path) -> None:
    import pandas as pd
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    table = pd.DataFrame(ROWS.astype(np.float64), columns=["a", "b", "c", "d"])
    model = make_pipeline(StandardScaler(), Ridge()).fit(table, table["a"] * 2 + table["b"])
    packaged = wb.package(model, "ridge", example_inputs=table, to=to, outputs=["prediction"])
    with wb.Engine(to) as server:
        check(packaged, {"input": table.to_numpy()}, {"prediction": model.predict(table)[:, None]}, server)


@pytest.mark.parametrize("kind", ["classifier", "booster"])
def test_xgboost(kind: str, to: Path) -> None:
    import xgboost

    rng = np.random.default_rng(1)
    x, y = rng.random((60, 4)).astype(np.float32), rng.integers(0, 3, 60)
    model = xgboost.XGBClassifier(n_estimators=4, max_depth=2, n_jobs=1).fit(x, y)
    expected: dict[str, Any] = {"label": model.predict(ROWS)[:, None], "probabilities": model.predict_proba(ROWS)}
    if kind == "booster":
        model = model.get_booster()
        expected = {"prediction": model.predict(xgboost.DMatrix(ROWS))}
    packaged = wb.package(model, "trees", example_inputs=ROWS, to=to)
    assert (to / "trees" / "1" / "model.ubj").is_file()
    with wb.Engine(to) as server:
        check(packaged, {"input": ROWS}, expected, server)


def test_an_onnx_file(to: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    add_model(elsewhere, "double")
    packaged = wb.package(elsewhere / "double" / "1" / "model.onnx", "twice", to=to)
    assert (packaged.backend, packaged.max_batch_size) == ("onnxruntime", 32)
    with wb.Engine(to) as server:
        check(packaged, {"x": ROWS}, {"y": 2 * ROWS}, server)


def test_weights_beside_an_onnx_file_come_along(to: Path, tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.full((4, 300), 0.5, np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 300])], [weights],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "big.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="big.bin", size_threshold=16)
    packaged = wb.package(path, "big", example_inputs=ROWS, to=to)
    assert (to / "big" / "1" / "big.bin").is_file()
    with wb.Engine(to) as server:
        check(packaged, {"x": ROWS}, {"y": np.repeat(ROWS.sum(axis=1, keepdims=True) / 2, 300, axis=1)}, server)
    (tmp_path / "big.bin").unlink()
    with pytest.raises(WorkbenchError, match=r"big\.bin"):
        wb.package(path, "gone", example_inputs=ROWS, to=to)


def test_an_onnx_file_of_variable_size_needs_an_example(to: Path, tmp_path: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"nothing of the kind")
    with pytest.raises(InvalidRequest, match=r"no\.onnx is no ONNX file"):
        wb.package(tmp_path / "no.onnx", "no", to=to)
    (tmp_path / "no.txt").write_text("x")
    with pytest.raises(InvalidRequest, match="which kind of model is that"):
        wb.package(tmp_path / "no.txt", "no", to=to)


def test_packaging_on_the_command_line(to: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "elsewhere").mkdir()
    add_model(tmp_path / "elsewhere", "double")
    file = str(tmp_path / "elsewhere" / "double" / "1" / "model.onnx")
    assert main(["package", file, "--to", str(to), "--name", "twice", "--max-batch-size", "16", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["directory"] == str(to / "twice")
    assert said["inputs"] == [{"name": "x", "datatype": "FP32", "dims": [4], "optional": False}]
    np.savez(tmp_path / "examples.npz", x=ROWS)
    source = f"{Path(helpers.__file__)}:score"
    assert main(["package", source, "--to", str(to), "--example-inputs", str(tmp_path / "examples.npz")]) == 0
    assert "packaged as" in capsys.readouterr().out
    assert main(["package", source, "--to", str(to)]) == 1
    assert "there is a model 'score' already" in capsys.readouterr().err
    (tmp_path / "examples.json").write_text(json.dumps({"data": [{"x": [1.0, 2.0, 3.0, 4.0]}]}))
    arguments = ["package", file, "--to", str(to), "--example-inputs", str(tmp_path / "examples.json")]
    assert main([*arguments, "--name", "from_json"]) == 0
    with wb.Engine(to) as server:
        assert sorted(row.name for row in server.models() if row.ready) == ["from_json", "score", "twice"]


def test_packaging_a_function_imports_no_framework(to: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "import numpy as np, workbench as wb, packaged_helpers as h\n"
        "wb.package(h.score, 'score', example_inputs={'x': np.ones((2, 4), np.float32)}, to=sys.argv[1])\n"
        "assert not {'torch', 'sklearn', 'xgboost', 'joblib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(to), str(Path(__file__).parent)], check=True, timeout=60)
