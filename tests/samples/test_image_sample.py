"""The sample ``image_preproc``: photographs through DALI are what another library makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from workbench.engine import EngineOptions, InferenceEngine
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.repository.example_inputs import load_example_inputs
from workbench.samples import build
from workbench.samples.images import PICTURES

pytest.importorskip("nvidia.dali", reason="nvidia-dali is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

pytestmark = pytest.mark.full

MEAN, DEVIATION = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]


def test_photographs_as_pillow_has_them(tmp_path: Path) -> None:
    """Decoded, resized, normalised: a third of a level of 256 off on average, a few where JPEG decoders differ."""
    build(tmp_path, models=["image_preproc"])
    folder = tmp_path / "image_preproc"
    engine = InferenceEngine(EngineOptions((tmp_path,), load_models=("*",)))
    engine.start()
    try:
        stream = load_example_inputs(folder, [("IMAGE", "UINT8", [-1])], batch_size=1)
        for name, example in zip(PICTURES, stream, strict=False):
            file = (folder / "example_inputs" / name).read_bytes()
            assert example["IMAGE"].tobytes() == file
            answer = engine.infer(InferenceRequest("image_preproc", [Tensor.from_numpy("IMAGE", example["IMAGE"])]), 20)
            pixels = answer.as_numpy("PIXELS")
            assert pixels.shape == (1, 3, 224, 224)
            with Image.open(folder / "example_inputs" / name) as picture:
                resized = np.asarray(picture.convert("RGB").resize((224, 224), Image.Resampling.BILINEAR), np.float32)
            levels = pixels[0].transpose(1, 2, 0) * DEVIATION + MEAN
            difference = np.abs(levels - resized)
            assert difference.mean() < 1 / 3
            assert np.quantile(difference, 0.999) < 4
            assert difference.max() < 10
    finally:
        engine.stop(5)
