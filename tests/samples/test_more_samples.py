"""The samples that are built on request, served as they stand: one model in several forms gives the same answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.backends.fit import config_datatype
from workbench.clock import monotonic_ns
from workbench.config import Edit
from workbench.engine import EngineOptions, InferenceEngine
from workbench.engine.linting import lint
from workbench.errors import WorkbenchError
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.repository.example_inputs import load_example_inputs
from workbench.samples import SampleError, build, model_names, more_names
from workbench.samples.more import CHORD_MIDI, MORE

PLAIN = {
    "serving_default_input_2:0": "input_2",
    "StatefulPartitionedCall:0": "contour",
    "StatefulPartitionedCall:1": "note",
    "StatefulPartitionedCall:2": "onset",
}
"""The tensors' names in the ONNX and TFLite forms -> those of the SavedModel's signature."""

LOWEST_MIDI = 21


def needs(name: str) -> Any:
    """What a sample's test is skipped by."""
    module = {"openvino": "openvino", "tensorflow": "tensorflow"}.get(MORE[name].extra, "numpy")
    return pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed")


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The forms of Basic Pitch."""
    return built(tmp_path_factory.mktemp("more"), [name for name in more_names() if name.startswith("basic_pitch")])


def built(target: Path, names: list[str]) -> Path:
    try:
        build(target, models=names)
    except SampleError as error:
        if "cannot download" not in error.message:
            raise
        pytest.skip(f"the weights of the sample models cannot be downloaded here: {error.message}")
    return target


@pytest.fixture(scope="module")
def engine(more: Path) -> Iterator[InferenceEngine]:
    engine = InferenceEngine(EngineOptions((more,), load_models=()), clock=monotonic_ns)
    engine.start()
    yield engine
    engine.stop()


def ask(engine: InferenceEngine, name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    request = InferenceRequest(name, [Tensor.from_numpy(key, array) for key, array in inputs.items()])
    answer = engine.infer(request, timeout_s=60)
    assert answer.error is None, answer.error
    return {PLAIN.get(tensor.name, tensor.name): tensor.data for tensor in answer.outputs}


def examples(folder: Path, engine: InferenceEngine, **options: Any) -> list[Mapping[str, Any]]:
    config = engine.model_config(folder.name)
    specs = [(item.name, config_datatype(item), list(item.dims)) for item in config.input]
    return list(load_example_inputs(folder, specs, **options))


def notes_heard(answer: Mapping[str, Any]) -> set[int]:
    """The MIDI numbers of the notes that sound for at least half a second."""
    long = (answer["note"][0] > 0.4).sum(axis=0) > 43
    return {int(index) + LOWEST_MIDI for index in np.flatnonzero(long)}


def test_they_are_not_part_of_the_sample_repository() -> None:
    assert not set(model_names()) & set(more_names())


def test_nothing_to_say_of_their_configurations(more: Path) -> None:
    """But that Triton 25.03 has no TensorFlow any more."""
    found = [finding for file in lint(more, triton_release="25.03") for finding in file.findings]
    assert [(finding.rule, finding.severity) for finding in found] == [("release", "error")]
    assert "25.02 was the last release with it" in found[0].message


@pytest.mark.parametrize(
    "name", [pytest.param("basic_pitch_onnx"), pytest.param("basic_pitch_tflite", marks=needs("basic_pitch_tflite"))]
)
def test_basic_pitch_hears_the_chord(engine: InferenceEngine, more: Path, name: str) -> None:
    engine.load(name)
    (chord,) = examples(more / name, engine, batch_size=1)
    assert notes_heard(ask(engine, name, chord)) == set(CHORD_MIDI)
    assert warnings_of(engine, name) == []


def warnings_of(engine: InferenceEngine, name: str) -> list[str]:
    """What the log has against a model."""
    events = [event for event in engine.events.after() if event.model == name]
    return [event.text for event in events if event.level in ("warning", "error")]


def test_a_savedmodel_where_tensorflow_is_not_installed(
    engine: InferenceEngine, more: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO runs it, and says so; so does the parameter, where both are installed."""
    pytest.importorskip("openvino", reason="openvino is not installed")
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    engine.load("basic_pitch_tf")
    engine.load("basic_pitch_onnx")
    (chord,) = examples(more / "basic_pitch_tf", engine, batch_size=1)
    answer = ask(engine, "basic_pitch_tf", chord)
    same_answers(answer, ask(engine, "basic_pitch_onnx", {"serving_default_input_2:0": chord["input_2"]}))
    assert notes_heard(answer) == set(CHORD_MIDI)
    details = engine.snapshot().version("basic_pitch_tf").details
    assert details["engine"].startswith("OpenVINO")
    assert details["precision"] == "f32"
    said = [event.text for event in engine.events.after() if event.model == "basic_pitch_tf"]
    assert [text for text in said if "TensorFlow is not installed: OpenVINO runs model 'basic_pitch_tf'" in text]
    monkeypatch.undo()
    engine.configure("basic_pitch_tf", [Edit('parameters["WORKBENCH_ENGINE"].string_value', "set", "openvino")])
    assert engine.snapshot().version("basic_pitch_tf").details["engine"].startswith("OpenVINO")
    for parameter, value in (
        ("TF_SIGNATURE_DEF", "other"),
        ("TF_GRAPH_TAG", "train"),
        ("TF_INIT_OPS_FILE", "ops.json"),
    ):
        with pytest.raises(WorkbenchError, match="takes TensorFlow: OpenVINO does not do") as refused:
            engine.configure("basic_pitch_tf", [Edit(f'parameters["{parameter}"].string_value', "set", value)])
        assert "serving-workbench[tensorflow]" in refused.value.hint
    same_answers(ask(engine, "basic_pitch_tf", chord), answer)


@pytest.mark.full
def test_one_savedmodel_by_tensorflow(engine: InferenceEngine, more: Path) -> None:
    """The same answers as the ONNX form, alone and in a batch."""
    if find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed")
    engine.load("basic_pitch_tf")
    engine.load("basic_pitch_onnx")
    assert engine.snapshot().version("basic_pitch_tf").details["engine"].startswith("TensorFlow")
    for inputs in examples(more / "basic_pitch_tf", engine, batch_size=3, count=2):
        answer = ask(engine, "basic_pitch_tf", inputs)
        same_answers(answer, ask(engine, "basic_pitch_onnx", {"serving_default_input_2:0": inputs["input_2"]}))
    assert notes_heard(answer) == set(CHORD_MIDI)


def same_answers(answer: Mapping[str, Any], wanted: Mapping[str, Any], most: float = 5e-6) -> None:
    assert answer.keys() == wanted.keys()
    for name, array in wanted.items():
        assert answer[name].shape == array.shape
        assert np.abs(answer[name] - array).max() < most, name


@pytest.mark.full
def test_minilm_by_openvino(tmp_path: Path) -> None:
    """In float32 the answers of ONNX Runtime, in bfloat16 some thousandths off; a row alone is filled up to eight."""
    pytest.importorskip("openvino", reason="openvino is not installed")
    engine = InferenceEngine(EngineOptions((built(tmp_path, ["minilm", "minilm_ov", "minilm_ov_bf16"]),)))
    engine.start()
    try:
        snapshot = engine.snapshot()
        assert snapshot.version("minilm_ov").details["precision"] == "f32"
        in_bf16 = snapshot.version("minilm_ov_bf16").details["precision"] == "bf16"
        assert [warnings_of(engine, name) for name in ("minilm_ov", "minilm_ov_bf16")] == [[], []]
        for rows in (1, 8):
            for inputs in examples(tmp_path / "minilm", engine, batch_size=rows, count=3):
                wanted = ask(engine, "minilm", inputs)
                same_answers(ask(engine, "minilm_ov", inputs), wanted, 2e-6)
                rough = ask(engine, "minilm_ov_bf16", inputs)
                same_answers(rough, wanted, 2e-2)
                if in_bf16:
                    assert np.abs(rough["sentence_embedding"] - wanted["sentence_embedding"]).max() > 1e-5
    finally:
        engine.stop()
