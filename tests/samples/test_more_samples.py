"""The samples that are built on request, served as they stand: one model in several forms gives the same answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.backends.fit import config_datatype
from workbench.clock import monotonic_ns
from workbench.engine import EngineOptions, InferenceEngine
from workbench.engine.linting import lint
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
