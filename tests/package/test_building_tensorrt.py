"""Engines by TensorRT-RTX, whose builder needs no GPU: parse, profile, build; the engine itself is not run here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building_models import CONFIG, add_scorer

import workbench as wb
from workbench.backends.tensorrt_build import EngineWish, build_engine, describe_onnx
from workbench.backends.tensorrt_engine import ShapeRange
from workbench.backends.tensorrt_library import find_library
from workbench.backends.tensorrt_plan import read_plan_head
from workbench.cli import main
from workbench.config import ConfigDocument
from workbench.errors import Cancelled, InvalidRequest
from workbench.package.building.options import ShapeSet

pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "models"
    add_scorer(folder)
    return folder


def test_an_engine_with_shapes_from_the_examples(repository: Path) -> None:
    told: list[tuple[str, int, int]] = []
    built = wb.build(
        "scorer", to="tensorrt", repository=repository, options=wb.BuildOptions(use_cuda_graph=True),
        progress=lambda *step: told.append(step),
    )  # fmt: skip
    library = find_library("tensorrt_rtx")
    head = read_plan_head(built.directory / "1" / "model.plan")
    assert (head.library, head.version) == ("tensorrt_rtx", library.version)
    about = json.loads((built.directory / "1" / "build.json").read_text())
    assert about["engine"]["profiles"] == [{"x": [[1, 2, 4], [8, 5, 4], [8, 5, 4]]}]
    assert about["engine"]["outputs"] == [{"name": "y", "datatype": "FP32", "dims": [-1, -1, 3]}]
    assert "--minShapes=x:1x2x4 --optShapes=x:8x5x4 --maxShapes=x:8x5x4" in built.trtexec
    assert built.trtexec.startswith("trtexec --onnx=scorer.onnx --saveEngine=model.plan --useCudaGraph")
    message = ConfigDocument.parse((built.directory / "config.pbtxt").read_bytes()).message
    assert (message.backend, message.platform) == ("tensorrt", "")
    assert message.instance_group[0].kind == message.instance_group[0].KIND_GPU
    assert message.instance_group[0].count == 2
    assert message.optimization.cuda.graphs
    assert list(message.parameters) == []
    assert any(what == "Building engine" and done == total > 0 for what, done, total in told)
    shown = repr(built)
    assert "NVIDIA's Triton cannot load it" in shown
    if not built.drift:
        assert "run on an NVIDIA GPU" in built.unverified


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_an_engine_in_another_precision_is_verified_as_far_as_a_cpu_can(repository: Path, precision: str) -> None:
    options = wb.BuildOptions(**{precision: True})
    built = wb.build("scorer", to="tensorrt", repository=repository, name=precision, options=options)
    assert f"--{precision}" in built.trtexec
    if built.verified.startswith("the engine"):
        return
    if precision == "bf16":
        assert "no bf16 kernels on a CPU" in built.unverified
    else:
        assert f"the {precision} graph that the engine was built from" in built.verified
        assert 0 < built.drift[0].max_rel < 0.1


def test_a_source_that_fails_on_its_examples_is_refused_before_the_engine_is_built(repository: Path) -> None:
    told: list[str] = []
    shapes = {"x": (1, 2, 4)}
    options = wb.BuildOptions(fp16=True, profiles=(ShapeSet(shapes, shapes, shapes),))
    with pytest.raises(InvalidRequest, match="model 'scorer' itself fails on example 0: "):
        wb.build(
            "scorer", to="tensorrt", repository=repository, options=options, name="refused",
            example_inputs={"x": np.ones((1, 2, 7), np.float32)}, progress=lambda what, *how: told.append(what),
        )  # fmt: skip
    assert "running the source on the examples" in told
    assert "Building engine" not in told


def test_profiles_by_option_limit_the_batch(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = ["--minShapes=x:1x1x4", "--optShapes=x:1x8x4", "--maxShapes=x:1x64x4"]
    many = ["--profile", "1", "--minShapes=x:1x1x4", "--maxShapes=x:6x2x4"]
    arguments = [
        "build", "scorer", "--to", "tensorrt", "--model-repository", str(repository), "--name", "two", "--json",
        "--memPoolSize=workspace:64", "--builderOptimizationLevel=1", "--timingCacheFile", str(repository / "cache"),
    ]  # fmt: skip
    assert main([*arguments, *shapes, *many]) == 0
    built = json.loads(capsys.readouterr().out)
    about = json.loads((repository / "two" / "1" / "build.json").read_text())
    assert about["engine"]["profiles"] == [
        {"x": [[1, 1, 4], [1, 8, 4], [1, 64, 4]]},
        {"x": [[1, 1, 4], [6, 2, 4], [6, 2, 4]]},
    ]
    assert "--profile=1" in built["trtexec"]
    assert "--memPoolSize=workspace:64 " in built["trtexec"]
    message = ConfigDocument.parse((repository / "two" / "config.pbtxt").read_bytes()).message
    assert message.max_batch_size == 6
    assert list(message.dynamic_batching.preferred_batch_size) == [2]
    assert any("max_batch_size is 6" in note for note in built["notes"])
    assert any("timing cache is neither read nor written" in note for note in built["notes"])


def test_shapes_that_do_not_fit_are_named(repository: Path) -> None:
    for shapes, text in (
        (ShapeSet(best={"z": (1, 2, 4)}), "the model has no input 'z'"),
        (ShapeSet(best={"x": (1, 2, 5)}), "x:1x2x5 does not fit its dimensions"),
        (ShapeSet(best={"x": (1, 2)}), "x:1x2 does not fit its dimensions"),
        (ShapeSet(least={"x": (2, 2, 4)}, best={"x": (1, 2, 4)}), "1x2x4 is not within 2x2x4"),
    ):
        options = wb.BuildOptions(profiles=(shapes,))
        with pytest.raises(InvalidRequest, match=text):
            wb.build("scorer", to="tensorrt", repository=repository, name="misfit", options=options)


def test_a_parser_error_names_the_node(tmp_path: Path) -> None:
    add_scorer(tmp_path / "models", CONFIG, "Mystery")
    with pytest.raises(InvalidRequest, match=r"parser refuses scorer\.onnx: node 2 'last' \(Mystery\)") as raised:
        wb.build("scorer", to="tensorrt", repository=tmp_path / "models")
    assert "onnxruntime" in raised.value.hint
    (tmp_path / "models" / "scorer" / "3" / "scorer.onnx").write_bytes(b"no model at all")
    with pytest.raises(InvalidRequest, match=r"parser refuses scorer\.onnx"):
        wb.build("scorer", to="tensorrt", repository=tmp_path / "models")


def test_the_builder_is_stopped_and_an_error_of_the_caller_comes_out(repository: Path) -> None:
    library = find_library("tensorrt_rtx")
    onnx = repository / "scorer" / "3" / "scorer.onnx"
    (spec,) = describe_onnx(library, onnx).inputs
    assert (spec.name, spec.datatype, spec.dims) == ("x", "FP32", (-1, -1, 4))
    shapes = (1, 2, 4)
    wish = EngineWish([{"x": ShapeRange(shapes, shapes, shapes)}])
    with pytest.raises(Cancelled, match="was stopped"):
        build_engine(library, onnx, wish, lambda *step: False)

    def fail(*step: Any) -> bool:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        build_engine(library, onnx, wish, fail)
    with pytest.raises(InvalidRequest, match="no shapes for 'x'"):
        build_engine(library, onnx, EngineWish([{}]))
    assert np.frombuffer(build_engine(library, onnx, wish).plan[:4], np.uint8).tobytes() == b"vtrt"


@pytest.mark.full
@pytest.mark.timeout(300)
def test_minilm_as_an_engine_and_as_openvino(sample_repository: Path, tmp_path: Path) -> None:
    """Real weights: half precision keeps the answers, and so does OpenVINO in f32."""
    pytest.importorskip("openvino", reason="openvino is not installed")
    engine = wb.build(
        "minilm", to="tensorrt", repository=sample_repository, into=tmp_path, options=wb.BuildOptions(fp16=True)
    )
    assert engine.size_bytes < 60e6
    assert not engine.drift or engine.drift[0].max_rel < 0.005
    converted = wb.build("minilm", to="openvino", repository=sample_repository, into=tmp_path)
    assert converted.drift[0].max_rel < 1e-5
    assert main(["lint", str(tmp_path)]) == 0
    tokens = {name: np.ones((2, 16), np.int64) for name in ("input_ids", "attention_mask")}
    with wb.Engine([sample_repository, tmp_path], models=["minilm", converted.name]) as both:
        (one,), (other,) = (both.infer(name, tokens).values() for name in ("minilm", converted.name))
        assert np.abs(one - other).max() < 1e-5
