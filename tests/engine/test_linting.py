"""The linter of files on disk: what it reads, what it writes, what it says of what it cannot read."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from engine_fixtures import EngineFactory
from onnx import TensorProto, helper
from onnx_models import graph

from workbench.engine.linting import lint
from workbench.errors import ConfigError, WorkbenchError

MISTAKE = 'name: "m"\nbackend: "python"\nmax_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 16 ] }\n'


def model(root: Path, name: str, text: str = 'backend: "python"\n') -> Path:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(text)
    return root / name / "config.pbtxt"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    written = model(tmp_path, "good")
    (tmp_path / "folder" / "config.pbtxt").mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "config.pbtxt")
    (tmp_path / "dangling").mkdir()
    (tmp_path / "dangling" / "config.pbtxt").symlink_to("nowhere")
    found = {report.path: [finding.rule for finding in report.findings] for report in lint(tmp_path)}
    without = {tmp_path / name: ["no-backend"] for name in ("dangling", "folder", "pipe")}
    assert found == {written: ["model-file"], **without, tmp_path / "folder" / "config.pbtxt": ["version-directory"]}


def test_a_fix_is_written_through_a_link(tmp_path: Path) -> None:
    real = tmp_path / "shared.pbtxt"
    real.write_text(MISTAKE)
    link = model(tmp_path / "models", "m")
    link.unlink()
    link.symlink_to(real)
    assert not lint(tmp_path / "models").ok
    report = lint(tmp_path / "models", fix=True)
    assert report.files[0].fixed
    assert link.is_symlink()
    assert real.read_text() == link.read_text() != MISTAKE


def test_a_file_that_cannot_be_written_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = model(tmp_path, "m", MISTAKE)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(ConfigError, match=r"cannot write .*Read-only file system") as caught:
        lint(file, fix=True)
    assert caught.value.where == str(file)
    assert file.read_text() == MISTAKE


TYPED = 'input { name: "x" data_type: TYPE_FP32 dims: 4 }\noutput { name: "y" data_type: TYPE_FP32 dims: DIMS }\n'


@pytest.mark.parametrize(
    "dims", [("b", "n"), ("c", "n"), ("b", None), None, ("b", 3), (5, "n"), ("b", "n", 1)], ids=str
)
@pytest.mark.parametrize("configured", ["[ 3 ]", "[ 4 ]", "[ -1 ]", "[ 3, 1 ]"])
def test_what_onnx_runtime_infers_is_no_fault(
    tmp_path: Path, make_engine: EngineFactory, dims: Any, configured: str
) -> None:
    """An exporter may leave the shape of an output open: the rule has nothing against a model that loads."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], [0.0] * 12)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(graph(nodes, [("x", "FP32", ("b", 4))], [("y", "FP32", dims)], [weights]))
    text = 'backend: "onnxruntime"\nmax_batch_size: 8\n' + TYPED.replace("DIMS", configured)
    (folder.parent / "config.pbtxt").write_text(text)
    found = [each.message for file in lint(tmp_path) for each in file.findings if each.rule == "model-fit"]
    engine = make_engine(tmp_path, control_mode="explicit")
    if dims == ("b", 3) and configured != "[ 3 ]":  # what the file does say is held against the configuration
        with pytest.raises(WorkbenchError, match="the model expects 2 dimensions") as refused:
            engine.load("m")
        assert [text in refused.value.message for text in found] == [True]
        return
    with contextlib.suppress(WorkbenchError):
        engine.load("m")
        assert found == []


def test_outputs_of_no_shape_do_not_make_a_model_one_that_cannot_batch(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(graph(nodes, [("x", "FP32", ("b", 4))], [("y", "FP32", None)]))
    (folder.parent / "config.pbtxt").write_text('backend: "onnxruntime"\nmax_batch_size: 8\n')
    assert [each.rule for file in lint(tmp_path) for each in file.findings if each.severity == "error"] == []
