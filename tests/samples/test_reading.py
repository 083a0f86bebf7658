"""The samples that read a picture, served as they stand: DALI, PP-OCR's detector, boxes, crops, letters."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from workbench.clock import monotonic_ns
from workbench.engine import EngineOptions, InferenceEngine
from workbench.engine.linting import lint
from workbench.errors import WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor
from workbench.repository.example_inputs import load_example_inputs
from workbench.samples import SampleError, build
from workbench.samples.reading import READING, SIGN_TEXTS

pytest.importorskip("nvidia.dali", reason="nvidia-dali is not installed")

pytestmark = pytest.mark.full

MODELS = [recipe.model for recipe in READING]
TEXT = "Dynamic batching 1234"


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("reading")
    try:
        build(target, models=MODELS)
    except SampleError as error:
        if "cannot download" not in error.message:
            raise
        pytest.skip(f"the weights of the sample models cannot be downloaded here: {error.message}")
    return target


@pytest.fixture(scope="module")
def engine(reading: Path) -> Iterator[InferenceEngine]:
    engine = InferenceEngine(EngineOptions((reading,), load_models=("*",)), clock=monotonic_ns)
    engine.start()
    yield engine
    engine.stop(5)


def drawn(
    *texts: tuple[str, tuple[int, int], int], size: tuple[int, int] = (640, 240), turned: float = 0
) -> Image.Image:
    picture = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(picture)
    for text, place, height in texts:
        pen.text(place, text, "black", font=ImageFont.load_default(height))
    return picture.rotate(turned, expand=True, fillcolor="white", resample=Image.Resampling.BICUBIC)


def encoded(picture: Image.Image, form: str = "PNG") -> np.ndarray:
    file = io.BytesIO()
    picture.save(file, form)
    return np.frombuffer(file.getvalue(), np.uint8)


def ask(engine: InferenceEngine, model: str, image: np.ndarray) -> InferenceResponse:
    return engine.infer(InferenceRequest(model, [Tensor.from_numpy("IMAGE", image)]), timeout_s=60)


def read(engine: InferenceEngine, image: np.ndarray) -> list[str]:
    answer = ask(engine, "read_text", image)
    texts = [text.decode() for text in answer.as_numpy("TEXTS")]
    assert answer.as_numpy("SCORES").shape == (len(texts),)
    assert answer.as_numpy("BOXES").shape == (len(texts), 4, 2)
    return texts


def test_nothing_to_say_of_their_configurations(reading: Path) -> None:
    assert [finding for file in lint(reading) for finding in file.findings] == []


def test_a_text_drawn_now_is_read_right(engine: InferenceEngine) -> None:
    """As PNG and as JPEG, with the box where it was drawn."""
    picture = drawn((TEXT, (60, 80), 48))
    for form in ("PNG", "JPEG"):
        assert read(engine, encoded(picture, form)) == [TEXT]
    answer = ask(engine, "read_text", encoded(picture))
    assert answer.as_numpy("SCORES")[0] > 0.9
    left, top, right, bottom = ImageDraw.Draw(picture).textbbox((60, 80), TEXT, font=ImageFont.load_default(48))
    np.testing.assert_allclose(
        answer.as_numpy("BOXES")[0], [(left, top), (right, top), (right, bottom), (left, bottom)], atol=20
    )


def test_the_sign_that_is_their_example(engine: InferenceEngine, reading: Path) -> None:
    (example,) = load_example_inputs(reading / "read_text", [("IMAGE", "UINT8", [-1])], batch_size=0)
    assert read(engine, example["IMAGE"]) == list(SIGN_TEXTS)


@pytest.mark.parametrize("turned", [8, -15, 90])
def test_text_that_is_turned(engine: InferenceEngine, turned: float) -> None:
    """Boxes turn with it; what stands from the bottom to the top would be read upside down and is not looked at."""
    picture = drawn((TEXT, (60, 80), 48), turned=-turned if turned == 90 else turned)
    assert read(engine, encoded(picture)) == [TEXT]


def test_a_large_picture_keeps_its_letters(engine: InferenceEngine) -> None:
    """The detector sees 960 pixels, the recogniser what the picture has."""
    picture = drawn(("seen from far away", (200, 300), 60), ("HUGE", (300, 700), 500), size=(2600, 1400))
    answer = ask(engine, "detect_pipeline", encoded(picture)[np.newaxis])
    assert answer.as_numpy("COUNT").tolist() == [[2]]
    assert read(engine, encoded(picture)) == ["seen from far away", "HUGE"]


def test_lines_are_read_in_order_and_go_to_the_recogniser_together(engine: InferenceEngine) -> None:
    words = [["alpha", "bravo", "delta"], ["hotel", "india", "romeo"], ["tango", "zebra", "ocean"]]
    places = [(word, (40 + 210 * x, 40 + 90 * y), 36) for y, row in enumerate(words) for x, word in enumerate(row)]
    before = engine.statistics("text_recognizer")["model_stats"][0]
    assert read(engine, encoded(drawn(*places, size=(660, 320)))) == [word for row in words for word in row]
    after = engine.statistics("text_recognizer")["model_stats"][0]
    rows, calls = (int(after[f"{what}_count"]) - int(before[f"{what}_count"]) for what in ("inference", "execution"))
    assert rows == 9
    assert calls <= 5


def test_no_text_is_no_error(engine: InferenceEngine) -> None:
    assert read(engine, encoded(drawn(size=(100, 70)))) == []
    answer = ask(engine, "detect_pipeline", encoded(drawn(size=(20, 2000)))[np.newaxis])
    assert answer.as_numpy("COUNT").tolist() == [[0]]
    assert answer.as_numpy("BOXES").shape == (1, 0, 4, 2)


def test_what_is_no_image_says_so_and_fails_nobody_else(engine: InferenceEngine) -> None:
    for model, image in (("read_text", np.zeros(64, np.uint8)), ("detect_pipeline", np.zeros((1, 64), np.uint8))):
        with pytest.raises(WorkbenchError, match=r"in ensemble 'detect_pipeline'[^$]*decoders\.image"):
            ask(engine, model, image)
    assert read(engine, encoded(drawn((TEXT, (60, 80), 48)))) == [TEXT]


def test_rows_with_fewer_boxes_are_filled_up(engine: InferenceEngine) -> None:
    """The postprocessing of a batch, given its probabilities."""
    probability = np.zeros((2, 1, 64, 96), np.float32)
    probability[0, 0, 10:20, 10:50] = probability[0, 0, 40:50, 20:80] = 0.9
    probability[1, 0, 30:40, 5:60] = 0.8
    scale = np.array([[1, 1], [2, 3]], np.float32)
    tensors = [Tensor.from_numpy("PROBABILITY", probability), Tensor.from_numpy("SCALE", scale)]
    answer = engine.infer(InferenceRequest("detect_postproc", tensors), timeout_s=20)
    assert answer.as_numpy("COUNT").tolist() == [[2], [1]]
    boxes, scores = answer.as_numpy("BOXES"), answer.as_numpy("SCORES")
    np.testing.assert_allclose(scores, [[0.88, 0.88], [0.8, 0]], atol=0.1)
    assert not boxes[1, 1].any()
    # 10 x 40 pixels and one more by the dilation, grown by 1.6 times area / circumference on each side.
    grown = 1.6 * 11 * 41 / (2 * (11 + 41))
    np.testing.assert_allclose(boxes[0, 0, 0], [10 - grown, 10 - grown], atol=0.01)
    np.testing.assert_allclose(boxes[0, 0, 2], [51 + grown, 21 + grown], atol=0.01)
    assert boxes[1, 0, 2, 0] == pytest.approx(3 * (61 + 1.6 * 11 * 56 / (2 * (11 + 56))), abs=0.01)


def test_where_dali_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("nvidia", "nvidia.dali"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SampleError, match=r"the package 'nvidia-dali-cuda120'.* is not installed") as refused:
        build(tmp_path, models=["detect_preproc"])
    assert refused.value.hint == "pip install 'serving-workbench[dali]'"
