"""Samples for one backend each, built only when they are named: ``workbench models build --model minilm_ov``.

What they need is an extra of its own (``Recipe.extra``), and a repository in which all of them lay would load every
framework. Configurations and example inputs are in the folder ``more`` beside this file.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np

from workbench.samples.images import IMAGE_PREPROC
from workbench.samples.reading import READING
from workbench.samples.recipes import (
    APACHE,
    MINILM_NOTICE,
    MINILM_WHEEL,
    Files,
    Recipe,
    member,
    minilm_onnx,
    missing,
)
from workbench.samples.search_system import SEARCH_SYSTEM
from workbench.samples.torch_forms import TORCH_FORMS
from workbench.samples.trees import FORESTS
from workbench.samples.wheels import Wheel

SOURCES = Path(__file__).with_name("more")
"""Where their configurations are."""

BASIC_PITCH_WHEEL = Wheel(
    package="basic-pitch",
    version="0.4.0",
    sha256="738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0",
    size=758_279,
    licence="Apache-2.0",
)

_PITCH_FOLDER = "basic_pitch/saved_models/icassp_2022/nmp"
_CHORD = "example_inputs/chord.npy"
_SAVED_MODEL = ("saved_model.pb", "variables/variables.data-00000-of-00001", "variables/variables.index")

CHORD_MIDI = (57, 61, 64)
"""The notes of the example of the ``basic_pitch`` models as MIDI numbers: A3, C#4, E4."""

_WINDOW, _RATE_HZ = 43_844, 22_050


def _chord() -> bytes:
    """A chord of plucked tones, fp32 [43844, 1] at 22,050 Hz: what the models hear by default, as a .npy file."""
    time_s = np.arange(_WINDOW) / _RATE_HZ
    tone = np.zeros(_WINDOW)
    for note in CHORD_MIDI:
        pitch_hz = 440.0 * 2.0 ** ((note - 69) / 12)
        for harmonic in (1, 2, 3, 4):
            tone += np.sin(2 * np.pi * pitch_hz * harmonic * time_s) * np.exp(-2.0 * time_s) / harmonic**2
    file = io.BytesIO()
    np.save(file, (0.5 * tone / np.abs(tone).max()).astype(np.float32)[:, np.newaxis])
    return file.getvalue()


def _make_pitch_tf(wheel: Path | None, _folder: Path) -> Files:
    built = {f"1/model.savedmodel/{name}": member(wheel, f"{_PITCH_FOLDER}/{name}") for name in _SAVED_MODEL}
    return {**built, _CHORD: _chord()}


def _make_pitch_onnx(wheel: Path | None, _folder: Path) -> Files:
    return {"1/model.onnx": member(wheel, f"{_PITCH_FOLDER}.onnx"), _CHORD: _chord()}


def _make_pitch_tflite(wheel: Path | None, _folder: Path) -> Files:
    return {"1/model.tflite": member(wheel, f"{_PITCH_FOLDER}.tflite"), _CHORD: _chord()}


def _make_minilm_ov(wheel: Path | None, folder: Path) -> Files:
    try:
        import openvino
    except ImportError as error:
        raise missing("openvino", folder.name, extra="openvino") from error
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.xml"
        model = openvino.Core().read_model(minilm_onnx(wheel, folder.name))
        openvino.save_model(model, path, compress_to_fp16=False)
        return {"1/model.xml": path.read_bytes(), "1/model.bin": path.with_suffix(".bin").read_bytes()}


_PITCH_NOTICE = (
    "Basic Pitch, model icassp_2022, Copyright 2022 Spotify AB; the files are unchanged. The chord in example_inputs\n"
    f"is a sum of sines, made by this project.\n{APACHE}"
)
_OV_NOTICE = f"{MINILM_NOTICE} OpenVINO's converter made its IR, in float32, from that graph.\n{APACHE}"

MORE: dict[str, Recipe] = {
    recipe.model: recipe
    for recipe in (
        Recipe(
            model="basic_pitch_tf",
            summary="notes from two seconds of sound, as a SavedModel",
            version=1,
            files=(*(f"1/model.savedmodel/{name}" for name in _SAVED_MODEL), _CHORD),
            make=_make_pitch_tf,
            notice=_PITCH_NOTICE,
            wheel=BASIC_PITCH_WHEEL,
            extra="tensorflow",
        ),
        Recipe(
            model="basic_pitch_onnx",
            summary="notes from two seconds of sound, as ONNX",
            version=1,
            files=("1/model.onnx", _CHORD),
            make=_make_pitch_onnx,
            notice=_PITCH_NOTICE,
            wheel=BASIC_PITCH_WHEEL,
        ),
        Recipe(
            model="basic_pitch_tflite",
            summary="notes from two seconds of sound, as TFLite",
            version=1,
            files=("1/model.tflite", _CHORD),
            make=_make_pitch_tflite,
            notice=_PITCH_NOTICE,
            wheel=BASIC_PITCH_WHEEL,
            extra="openvino",
        ),
        Recipe(
            model="minilm_ov",
            summary="sentence embedding all-MiniLM-L6-v2, OpenVINO in float32",
            version=1,
            files=("1/model.xml", "1/model.bin"),
            make=_make_minilm_ov,
            notice=_OV_NOTICE,
            wheel=MINILM_WHEEL,
            extra="openvino",
        ),
        Recipe(
            model="minilm_ov_bf16",
            summary="sentence embedding all-MiniLM-L6-v2, OpenVINO in bfloat16",
            version=1,
            files=("1/model.xml", "1/model.bin"),
            make=_make_minilm_ov,
            notice=_OV_NOTICE,
            wheel=MINILM_WHEEL,
            extra="openvino",
        ),
        *FORESTS,
        IMAGE_PREPROC,
        *READING,
        *TORCH_FORMS,
        *SEARCH_SYSTEM,
    )
}
"""The samples that are built on request, by name."""
