"""``wb.build``: other forms of a model, their configuration, what they answer, and what cannot be built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building_models import CONFIG, add_scorer, scorer_graph
from onnx import TensorProto, helper

import workbench as wb
from workbench.cli import main
from workbench.config import ConfigDocument
from workbench.errors import AlreadyExists, Cancelled, InvalidRequest, NotFound, Unsupported
from workbench.package.building.drift import measure
from workbench.package.building.options import ShapeSet, parse_pools, parse_shapes


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    add_scorer(folder)
    return folder


def config_of(directory: Path) -> Any:
    return ConfigDocument.parse((directory / "config.pbtxt").read_bytes()).message


def served(repository: Path, model: str, array: Any) -> Any:
    with wb.Engine(repository, models=[model]) as engine:
        (answer,) = engine.infer(model, {"x": array}).values()
        return answer


def test_half_precision_onnx_is_served_and_answers_nearly_alike(repository: Path) -> None:
    built = wb.build("scorer", to="onnx", options=wb.BuildOptions(fp16=True), repository=repository)
    assert (built.name, built.directory) == ("scorer_onnx_fp16", repository / "scorer_onnx_fp16")
    (drift,) = built.drift
    assert 0 < drift.max_abs < 0.02
    assert drift.max_rel < 0.005
    message = config_of(built.directory)
    assert (message.backend, message.default_model_filename, message.max_batch_size) == ("onnxruntime", "", 8)
    assert not message.HasField("version_policy")
    assert message.parameters["intra_op_thread_count"].string_value == "1", "the backend is the same: so are its own"
    text = (built.directory / "config.pbtxt").read_text()
    assert "# not a probability" in text
    assert "# Built from model 'scorer'" in text
    assert (built.directory / "warmup" / "x").is_file()
    about = json.loads((built.directory / "1" / "build.json").read_text())
    assert about["source"]["files"]["scorer.onnx"]
    assert about["command"] == "workbench build scorer --to onnx --fp16"
    assert about["drift"][0]["max_abs"] == drift.max_abs
    rows = np.ones((1, 2, 4), np.float32)
    assert served(repository, "scorer_onnx_fp16", rows) == pytest.approx(served(repository, "scorer", rows), abs=0.02)


def test_int8_is_calibrated_on_the_examples_or_on_what_is_given(repository: Path) -> None:
    plain = wb.build("scorer", to="onnx", options=wb.BuildOptions(int8=True), repository=repository, name="a")
    huge = [{"x": np.full((1, 2, 4), 1000.0, np.float32)}]
    wrong = wb.build(
        "scorer", to="onnx", options=wb.BuildOptions(int8=True), repository=repository, name="b", calibration=huge
    )
    assert 0 < plain.drift[0].max_rel < 0.1
    assert wrong.drift[0].max_rel > 2 * plain.drift[0].max_rel, "ranges of other data fit the examples badly"
    assert "differ much" in repr(wrong)
    assert b"QuantizeLinear" in (plain.directory / "1" / "model.onnx").read_bytes()


def test_what_rests_on_random_inputs_is_said(repository: Path, tmp_path: Path) -> None:
    model = add_scorer(tmp_path / "bare", CONFIG.replace("dims: [ -1,", "dims: [ 5,"))
    (model / "example_inputs.json").unlink()
    real = {"x": np.ones((1, 5, 4), np.float32)}

    def notes(name: str, **given: Any) -> str:
        options = wb.BuildOptions(**given.pop("options", {"int8": True}))
        return " ".join(wb.build(model, to="onnx", options=options, name=name, **given).notes)

    assert "int8 is calibrated and the drift is measured on random inputs" in notes("a")
    assert "int8 is calibrated on random inputs" in notes("b", verify=False)
    assert notes("c", calibration=[real]).startswith("the drift is measured on random inputs")
    assert notes("d", options={"fp16": True}).startswith("the drift is measured on random inputs")
    assert "random" not in notes("e", example_inputs=real)
    assert "random" not in " ".join(
        wb.build("scorer", to="onnx", options=wb.BuildOptions(int8=True), repository=repository, name="f").notes
    )


def test_openvino_keeps_f32_and_the_threads(repository: Path) -> None:
    pytest.importorskip("openvino", reason="openvino is not installed")
    built = wb.build("scorer", to="openvino", repository=repository)
    assert built.drift[0].max_rel < 1e-5
    message = config_of(built.directory)
    parameters = {key: message.parameters[key].string_value for key in message.parameters}
    assert parameters["INFERENCE_PRECISION_HINT"] == "f32"
    assert parameters["INFERENCE_NUM_THREADS"] == "1", "as many as the source has"
    assert not [key for key in parameters if key.startswith(("intra_op", "session."))]
    assert not message.optimization.HasField("execution_accelerators")
    text = (built.directory / "config.pbtxt").read_text()
    assert "One core for each instance" not in text, "the comment belonged to a parameter that is gone"
    rows = np.ones((3, 2, 4), np.float32)
    assert served(repository, "scorer_openvino", rows) == pytest.approx(served(repository, "scorer", rows), abs=1e-5)
    coarse = wb.build("scorer", to="openvino", options=wb.BuildOptions(bf16=True), repository=repository, name="c")
    assert config_of(coarse.directory).parameters["HINT_BF16"].string_value == "YES"


def test_a_file_without_a_repository_gets_a_whole_configuration(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(scorer_graph())
    (tmp_path / "models").mkdir()
    examples = {"x": np.ones((2, 5, 4), np.float32)}
    with pytest.raises(InvalidRequest, match="inputs of variable size: x"):
        wb.build(tmp_path / "net.onnx", to="onnx", options=wb.BuildOptions(fp16=True), into=tmp_path / "models")
    built = wb.build(
        tmp_path / "net.onnx", to="onnx", options=wb.BuildOptions(fp16=True), into=tmp_path / "models",
        example_inputs=examples,
    )  # fmt: skip
    message = config_of(built.directory)
    assert (message.max_batch_size, list(message.input[0].dims), message.model_warmup[0].name) == (
        32, [-1, 4], "first_example",
    )  # fmt: skip
    assert served(tmp_path / "models", "net_onnx_fp16", np.ones((1, 5, 4), np.float32)).shape == (1, 5, 3)


def test_a_configuration_that_says_little_is_completed(tmp_path: Path) -> None:
    directory = add_scorer(tmp_path / "models", 'name: "scorer"\ndefault_model_filename: "scorer.onnx"\n')
    (directory / "3" / "scorer.onnx").rename(directory / "3" / "model.onnx")
    (directory / "config.pbtxt").write_text("")
    built = wb.build("scorer", to="onnx", options=wb.BuildOptions(fp16=True), repository=tmp_path / "models")
    message = config_of(built.directory)
    assert (message.max_batch_size, list(message.input[0].dims), message.output[0].name) == (4, [-1, 4], "y")


def test_what_cannot_be_built_says_what_can(repository: Path, tmp_path: Path) -> None:
    add_scorer(tmp_path / "python", CONFIG.replace('platform: "onnxruntime_onnx"', 'backend: "python"'))
    options = wb.BuildOptions
    for model, to, given, error, text in (
        ("scorer", "torchscript", options(), Unsupported, "no tool turns a graph back into a module"),
        ("scorer", "aoti", options(), Unsupported, "compiles a torch module"),
        ("scorer", "onnx", options(), InvalidRequest, "is ONNX already"),
        ("nothing", "onnx", options(fp16=True), NotFound, "no model 'nothing' in "),
        ("scorer", "wasm", options(), InvalidRequest, "nothing can be built 'wasm'"),
        ("scorer", "onnx", options(fp16=True, int8=True), InvalidRequest, "one of --fp16, --bf16 and --int8"),
        ("scorer", "onnx", options(fp16=True, use_cuda_graph=True), InvalidRequest, "--useCudaGraph is TensorRT's"),
        ("scorer", "torchscript", options(fp16=True), InvalidRequest, "keeps the module's own precision"),
        ("scorer", "tensorrt", options(mem_pool_size={"work": 1}), InvalidRequest, "no memory pool 'work'"),
        (tmp_path / "python" / "scorer", "onnx", options(fp16=True), Unsupported, "nothing can be built from it"),
        (repository / "scorer" / "config.pbtxt", "onnx", options(fp16=True), InvalidRequest, "known are .onnx"),
        (7, "onnx", options(fp16=True), InvalidRequest, "nothing can be built from a builtins.int"),
    ):
        with pytest.raises(error, match=text) as raised:
            wb.build(model, to=to, options=given, repository=repository)  # type: ignore[arg-type]
        assert raised.value.hint
    assert sorted(path.name for path in repository.iterdir()) == ["scorer"], "nothing is left behind"


def test_a_model_is_replaced_only_when_that_is_said_and_a_build_can_be_stopped(repository: Path) -> None:
    def build(**given: Any) -> wb.Built:
        return wb.build("scorer", to="onnx", options=wb.BuildOptions(fp16=True), repository=repository, **given)

    build()
    with pytest.raises(AlreadyExists, match="there is a model 'scorer_onnx_fp16' already"):
        build()
    told: list[str] = []
    with pytest.raises(Cancelled, match="stopped"):
        build(overwrite=True, progress=lambda what, done, total: told.append(what) or False)
    assert told == ["running the source on the examples"]
    assert (repository / "scorer_onnx_fp16" / "1" / "model.onnx").is_file()
    with pytest.raises(InvalidRequest, match="is the source itself"):
        build(name="scorer", overwrite=True)
    unverified = build(overwrite=True, verify=False)
    assert (unverified.drift, unverified.unverified) == ([], "verify=False")


def test_an_interrupt_leaves_the_model_that_was_there_and_nothing_else(repository: Path) -> None:
    half = wb.BuildOptions(fp16=True)
    built = wb.build("scorer", to="onnx", options=half, repository=repository)
    before = (built.directory / "1" / "build.json").read_bytes()

    def interrupted(what: str, done: int, total: int) -> None:
        if what == "running the result on the examples":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wb.build("scorer", to="onnx", options=half, repository=repository, overwrite=True, progress=interrupted)
    assert sorted(path.name for path in repository.iterdir()) == ["scorer", "scorer_onnx_fp16"]
    assert (built.directory / "1" / "build.json").read_bytes() == before


@pytest.mark.parametrize(
    ("given", "text", "where"),
    [
        ({"z": np.ones((1, 2, 4), np.float32)}, "there is no input 'z'", "the calibration inputs, example 0"),
        (
            {"x": np.ones((2, 4), np.float32)},
            r"3 dimensions, the batch first; given is the shape \[2, 4\]",
            "example 0",
        ),
        ({"x": np.ones((1, 2, 4), bool)}, "is FP32; given are numbers of bool", "example 0"),
        ({"x": np.ones((1, 2, 5), np.float32)}, "cannot be made into onnx: .*dimension", ""),
    ],
)
def test_calibration_inputs_that_do_not_fit_are_named(repository: Path, given: Any, text: str, where: str) -> None:
    with pytest.raises(InvalidRequest, match=text) as raised:
        wb.build("scorer", to="onnx", options=wb.BuildOptions(int8=True), repository=repository, calibration=given)
    assert where in raised.value.where
    assert sorted(path.name for path in repository.iterdir()) == ["scorer"]


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_source_whose_weights_lie_beside_it(repository: Path, precision: str) -> None:
    path = repository / "scorer" / "3" / "scorer.onnx"
    model = onnx.load(str(path))
    onnx.save_model(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    built = wb.build("scorer", to="onnx", options=wb.BuildOptions(**{precision: True}), repository=repository)
    assert built.drift[0].max_rel < 0.1
    assert served(repository, built.name, np.ones((1, 2, 4), np.float32)).shape == (1, 2, 3)


def test_whole_numbers_will_do_as_examples(repository: Path) -> None:
    ones = [{"x": np.ones((1, 2, 4), np.int64)}]
    built = wb.build(
        "scorer", to="onnx", options=wb.BuildOptions(int8=True), repository=repository, calibration=ones,
        example_inputs=ones,
    )  # fmt: skip
    assert built.drift


def test_without_examples_it_is_said_where_they_may_come_from(repository: Path) -> None:
    (repository / "scorer" / "example_inputs.json").unlink()
    with pytest.raises(InvalidRequest, match="no shape is known") as raised:
        wb.build("scorer", to="onnx", options=wb.BuildOptions(int8=True), repository=repository)
    assert "--example-inputs FILE" in raised.value.hint


WIDE = [{"x": np.ones((1, 2, 4), np.float32)}, {"x": np.ones((1, 2, 7), np.float32)}]


@pytest.mark.parametrize(("to", "half"), [("onnx", True), ("openvino", False)])
def test_an_example_on_which_the_source_itself_fails_is_named_before_anything_is_made(
    repository: Path, to: Any, half: bool
) -> None:
    told: list[str] = []
    with pytest.raises(InvalidRequest, match="model 'scorer' itself fails on example 1: ") as raised:
        wb.build(
            "scorer", to=to, options=wb.BuildOptions(fp16=half), repository=repository, example_inputs=WIDE,
            progress=lambda what, done, total: told.append(what),
        )  # fmt: skip
    assert raised.value.where == "x FP32 [1, 2, 7]"
    assert sorted(path.name for path in repository.iterdir()) == ["scorer"]
    assert told == ["running the source on the examples"]


def test_the_source_is_run_once_and_only_where_the_result_is_held_against_it(repository: Path) -> None:
    def told_of(**given: Any) -> list[str]:
        told: list[str] = []
        wb.build(
            "scorer", to="onnx", repository=repository, overwrite=True,
            progress=lambda what, done, total: told.append(what), **given,
        )  # fmt: skip
        return told

    half = wb.BuildOptions(fp16=True)
    ran = ["running the source on the examples", "converting to fp16", "running the result on the examples"]
    assert told_of(options=half) == ran
    assert told_of(options=half, example_inputs=WIDE, verify=False) == ["converting to fp16"]
    # nothing runs bf16 here
    assert told_of(options=wb.BuildOptions(bf16=True), example_inputs=WIDE) == ["converting to bf16"]


def test_of_another_form_it_is_said_to_build_from_what_that_was_made_of(repository: Path) -> None:
    pytest.importorskip("openvino", reason="openvino is not installed")
    wb.build("scorer", to="openvino", repository=repository)
    with pytest.raises(Unsupported, match="is of backend 'openvino'") as raised:
        wb.build("scorer_openvino", to="onnx", repository=repository)
    assert "build from what it was made of (1/build.json" in raised.value.hint


@pytest.mark.parametrize("kind", [TensorProto.DOUBLE, TensorProto.STRING], ids=["FP64", "BYTES"])
def test_a_type_that_openvino_does_not_serve_is_refused_before_it_is_built(tmp_path: Path, kind: int) -> None:
    pytest.importorskip("openvino", reason="openvino is not installed")
    ends = [helper.make_tensor_value_info(name, kind, ["b", 2]) for name in "xy"]
    made = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", ends[:1], ends[1:])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "same.onnx").write_bytes(model.SerializeToString())
    given = np.array([["a", "b"]], object) if kind == TensorProto.STRING else np.ones((1, 2))
    with pytest.raises(InvalidRequest, match=r"'x' is \w+, which Triton's OpenVINO backend does not take") as raised:
        wb.build(tmp_path / "same.onnx", to="openvino", into=tmp_path, example_inputs={"x": given})
    assert "--to onnx" in raised.value.hint


def test_shapes_and_sizes_are_read_as_trtexec_writes_them() -> None:
    assert parse_shapes("x:1x3x224,'a:b,c':2,s:") == {"x": (1, 3, 224), "a:b,c": (2,), "s": ()}
    for text in ("x", "x:1xq", ":1x2", "x:-1x3"):
        with pytest.raises(InvalidRequest, match="which is no shape"):
            parse_shapes(text)
    assert parse_pools("workspace:1024,tacticSharedMem:0.5K,dlaSRAM:2G") == {
        "workspace": 1 << 30, "tacticSharedMem": 512, "dlaSRAM": 2 << 30,
    }  # fmt: skip
    with pytest.raises(InvalidRequest, match="which is no size"):
        parse_pools("workspace:much")
    shapes = ShapeSet(least={"x": (1, 2)}, most={"x": (4, 2)})
    assert shapes.of("x") == ((1, 2), (4, 2), (4, 2))
    assert shapes.of("y") is None


def test_drift_knows_nan_infinity_strings_and_top_1() -> None:
    one = {"a": np.array([[1.0, 2.0], [4.0, 3.0]]), "n": np.array([np.nan, np.inf]), "t": np.array([b"a"], object)}
    other = {"a": np.array([[1.0, 2.5], [2.0, 3.0]]), "n": np.array([np.nan, np.inf]), "t": np.array([b"a"], object)}
    numbers, missing, text = measure([one], [other])
    assert (numbers.max_abs, numbers.top_1) == (2.0, 0.5)
    assert numbers.max_rel == pytest.approx(np.sqrt(4.25 / 30))
    assert (missing.max_abs, text.equal) == (0.0, 1.0)
    broken = dict(other, n=np.array([np.nan, 1.0]), t=np.array([b"b"], object))
    _, missing, text = measure([one], [broken])
    assert (missing.max_abs, text.equal) == (np.inf, 0.0)
    json.dumps([missing.to_json(), text.to_json()], allow_nan=False)  # as strict readers take it
    with pytest.raises(InvalidRequest, match="built, it answers 'a' with"):
        measure([one], [dict(other, a=np.zeros(3))])


def test_an_embeddings_drift_is_told_by_cosine_and_neighbours_not_by_its_largest_element() -> None:
    rows = np.random.default_rng(1).normal(size=(4, 3, 96))
    vectors = (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)
    (drift,) = measure([{"v": each} for each in vectors], [{"v": each + np.float32(1e-4)} for each in vectors])
    assert "embedding: vectors of unit length" in drift.text
    assert "cosine to the reference's at least 1.00000" in drift.text
    assert "order of neighbours" in drift.text
    assert "top-1" not in drift.text


def test_the_verb_builds_tells_how_far_it_is_and_refuses_a_calibration_cache(
    repository: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    where = ["--model-repository", str(repository)]
    assert main(["build", "scorer", "--to", "onnx", "--fp16", *where]) == 0
    shown = capsys.readouterr()
    assert "built" in shown.out
    assert "drift      y (scores: none is negative): max |Δ| " in shown.out
    assert "build: converting to fp16" in shown.err
    assert main(["build", "scorer", "--to", "onnx", "--fp16", "--json", "--force", *where]) == 0
    assert json.loads(capsys.readouterr().out)["drift"][0]["output"] == "y"
    cache = tmp_path / "cache"
    cache.write_text("TRT-100500-EntropyCalibration2\nx: 3c010a14\n")
    assert main(["build", "scorer", "--to", "onnx", "--int8", "--calib", str(cache), *where]) == 1
    assert "is a calibration cache of trtexec" in capsys.readouterr().err
    data = tmp_path / "data.npz"
    np.savez(data, x=np.ones((1, 2, 4), np.float32))
    assert main(["build", "scorer", "--to", "onnx", "--int8", "--calib", str(data), "--name", "q", *where]) == 0
    assert main(["build", "scorer", "--to", "onnx", "--fp16", "--calib", str(data), *where]) == 1
