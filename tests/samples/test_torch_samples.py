"""MiniLM in PyTorch's forms gives what its ONNX form gives; Silero VAD keeps each stream's state apart."""

from __future__ import annotations

import io
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.backends.fit import config_datatype
from workbench.engine import EngineOptions, InferenceEngine
from workbench.engine.linting import lint
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.repository.example_inputs import load_example_inputs
from workbench.samples import SampleError, build, default_cache_dir
from workbench.samples.torch_forms import SILERO_WHEEL
from workbench.samples.wheels import fetch, read_member

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

FORMS = ["minilm_ts", "minilm_pt2", "minilm_aoti"]


def served(root: Path, names: list[str]) -> Iterator[InferenceEngine]:
    try:
        build(root, models=names)
    except SampleError as error:
        if "cannot download" not in error.message:
            raise
        pytest.skip(f"the weights of the sample models cannot be downloaded here: {error.message}")
    engine = InferenceEngine(EngineOptions((root,), load_models=("*",)))
    engine.start()
    yield engine
    engine.stop(5)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C compiler")
def test_minilm_is_the_same_in_all_forms(tmp_path: Path) -> None:
    for engine in served(tmp_path, ["minilm", *FORMS]):
        assert not [finding for file in lint(tmp_path, triton_release="26.04") for finding in file.findings]
        warned = [event.text for event in engine.events.after() if event.level == "warning"]
        assert [text for text in warned if "minilm_aoti" not in text] == []
        for name in FORMS:
            config = engine.model_config(name)
            specs = [(item.name, config_datatype(item), list(item.dims)) for item in config.input]
            for rows in (1, 5):
                for example in list(load_example_inputs(tmp_path / name, specs, batch_size=rows))[-3:]:
                    inputs = [Tensor.from_numpy(key, array) for key, array in example.items()]
                    reference, got = (
                        engine.infer(InferenceRequest(each, inputs), 60).as_numpy("sentence_embedding")
                        for each in ("minilm", name)
                    )
                    np.testing.assert_allclose(got, reference, atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def silero(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceEngine]:
    yield from served(tmp_path_factory.mktemp("silero"), ["silero_vad"])


def test_silero_is_the_original_on_each_of_several_streams(silero: InferenceEngine) -> None:
    """Three streams take turns; each hears what the stateful original says to it alone, bit by bit."""
    archive = read_member(fetch(SILERO_WHEEL, default_cache_dir()), "silero_vad/data/silero_vad.jit")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        original = torch.jit.load(io.BytesIO(archive))
    rng = np.random.default_rng(3)
    time_s = np.arange(12 * 512) / 16_000
    hum = 0.4 * np.sin(2 * np.pi * (150 + 80 * np.sin(2 * np.pi * 4 * time_s)) * time_s)
    streams = [hum, rng.standard_normal(time_s.size) * 0.1, hum * (time_s > 0.2)]
    windows = [stream.astype(np.float32).reshape(-1, 1, 512) for stream in streams]
    heard: list[list[float]] = [[], [], []]
    for index in range(12):
        for number, stream in enumerate(windows):
            request = InferenceRequest(
                "silero_vad", [Tensor.from_numpy("AUDIO__0", stream[index])], sequence_id=number + 1,
                sequence_start=index == 0, sequence_end=index == 11,
            )  # fmt: skip
            answer = silero.infer(request, 30)
            assert [tensor.name for tensor in answer.outputs] == ["SPEECH__0"]
            heard[number].append(float(answer.as_numpy("SPEECH__0")[0, 0]))
    for stream, got in zip(windows, heard, strict=True):
        original.reset_states()
        with torch.no_grad():
            alone = [float(original(torch.from_numpy(window), 16_000)[0, 0]) for window in stream]
        np.testing.assert_allclose(got, alone, atol=1e-6)
