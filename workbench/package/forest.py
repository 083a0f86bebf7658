"""A forest for the backend ``fil``: a model file as it is, or an estimator's trees written into one."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.backends.fil_config import FILES, INPUT, OUTPUT, PICKLE, FilSettings
from workbench.backends.fil_forest import Forest, Task, kind_of, load_forest
from workbench.backends.fil_process.fil_scores import answer
from workbench.errors import InvalidRequest, Unsupported
from workbench.package.made import Made, Wish
from workbench.package.tensors import Feed, Signature, Tensor, alike, as_feeds
from workbench.repository.example_inputs import load_example_inputs

SUFFIXES = (".json", ".txt", ".tl")
"""Files that only this backend takes; a ``.ubj`` or an estimator goes here where ``backend="fil"`` is asked for."""

MAX_BATCH_SIZE = 1024
"""``max_batch_size`` unless it is given: a row costs little, Triton's documentation asks for large batches."""

DRAWN = 4
WAYS = ("probabilities", "label", "prediction")

_BEHIND_ALL_TREES = (b"\nend of trees", b"\nfeature importances:", b"\nfeature_importances:")
"""What LightGBM writes after the trees; older releases not the first."""


def from_forest(thing: Any, wish: Wish) -> Made:
    """The model file with what it says of itself, as Triton's FIL backend serves it: ``input__0``, ``output__0``.

    A classifier answers probabilities, or with ``outputs=("label",)`` the class's number; the others a prediction.

    Args:
        thing: a path, or an estimator or booster.
        wish: ``outputs`` is one of ``WAYS``; examples are needed where the answers are to be compared, else drawn.

    Raises:
        InvalidRequest: it is no forest, or what Triton's backend answers is not what the estimator does.
        UnknownError: the file is broken.
        Unsupported: treelite is not installed.
    """
    try:
        importlib.import_module("treelite")
    except ImportError as error:
        raise Unsupported("treelite is not installed", hint="pip install 'serving-workbench[trees]'") from error
    if wish.batching is False:
        raise InvalidRequest("the FIL backend takes rows: it batches", hint="leave max_batch_size out")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(thing).expanduser() if isinstance(thing, str | Path) else _written(thing, Path(scratch))
        kind = kind_of(path)
        if kind in (None, PICKLE):
            raise InvalidRequest(
                f"{path.name} is no forest's file",
                where=str(path),
                hint="known are XGBoost's .json and .ubj, LightGBM's .txt, treelite's checkpoint, and estimators in "
                ".joblib or .pkl",
            )
        assert kind is not None
        if kind == "lightgbm" and not any(mark in path.read_bytes() for mark in _BEHIND_ALL_TREES):
            raise InvalidRequest(  # treelite takes the trees that are there
                f"{path.name} is cut off: what stands behind all trees is missing",
                where=str(path),
                hint="save it again, by save_model",
            )
        known = load_forest(path, _settings(kind), _quiet)
        features = known.features
        way, values = _way(wish.outputs, known.task, known.classes)
        settings = _settings(kind, classifier=way != "prediction", predict_proba=way == "probabilities")
        forest = load_forest(path, settings, _quiet)
        feeds = _feeds(wish, features, path.name)
        found = Signature((Tensor(INPUT, "FP32", (features,)),), (Tensor(OUTPUT, "FP32", (values,)),), True)
        answers = [{OUTPUT: _answer(forest, feed[INPUT], settings, values)} for feed in feeds]
        if path.parent == Path(scratch):
            _compare(thing, feeds, answers, way)
        return Made(
            "fil",
            found,
            feeds,
            answers,
            {FILES[kind]: path.read_bytes()},
            _comment(thing, path),
            parameters=_parameters(settings),
            usual_batch_size=MAX_BATCH_SIZE,
        )


def is_forest_file(path: Path) -> bool:
    """Whether a file is a forest by its name and its first bytes."""
    return path.suffix in SUFFIXES and kind_of(path) not in (None, PICKLE)


def _quiet(text: str) -> None:
    """What the log of a server would say."""


def _settings(kind: str, *, classifier: bool = False, predict_proba: bool = False) -> FilSettings:
    return FilSettings(
        model_type=kind,
        classifier=classifier,
        predict_proba=predict_proba,
        threshold=0.5,
        allow_unknown_field=False,
        nthread=1,
        engine="treelite",
        layout="depth_first",
        chunk_size=1,
        transfer_threshold=0,
        unsafe_pickle=False,
    )


def _parameters(settings: FilSettings) -> dict[str, str]:
    """``output_class`` is read by every release; since 25.09 ``is_classifier`` is its name."""
    given = {"model_type": settings.model_type, "output_class": str(settings.classifier).lower()}
    if settings.classifier:
        given |= {"predict_proba": str(settings.predict_proba).lower(), "threshold": str(settings.threshold)}
    return given


def _way(outputs: Sequence[str], task: Task, classes: int) -> tuple[str, int]:
    """What is answered, and how many values a row."""
    classifies = task == "classification"
    usual = "probabilities" if classifies else "prediction"
    way = outputs[0] if outputs else usual
    if len(outputs) > 1 or way not in WAYS or (not classifies and way != "prediction"):
        known = "probabilities or label" if classifies else "prediction"
        raise InvalidRequest(
            f"the FIL backend has one output, here {known}; asked for are {', '.join(outputs)}",
            hint="without backend='fil' an estimator becomes a Python model, which answers several",
        )
    if way == "label":
        return way, 1
    return way, max(2, classes) if way == "probabilities" else classes


def _feeds(wish: Wish, features: int, what: str) -> list[Feed]:
    if wish.examples is None:
        with tempfile.TemporaryDirectory() as empty:
            drawn = load_example_inputs(Path(empty), [(INPUT, "FP32", (features,))], batch_size=DRAWN)
            return [dict(each) for each in drawn][:1]
    examples = wish.examples if isinstance(wish.examples, list) else [wish.examples]
    if examples and all(hasattr(each, "to_numpy") for each in examples):
        examples = [{INPUT: each.to_numpy()} for each in examples]
    feeds = as_feeds(examples if isinstance(wish.examples, list) else examples[0], [INPUT], what=what)
    made = []
    for feed in feeds:
        if len(feed) != 1:
            raise InvalidRequest(f"the FIL backend has one input, a table; the examples have {', '.join(feed)}")
        (array,) = feed.values()
        if array.ndim != 2 or array.shape[1] != features or array.dtype.kind not in "biuf":
            raise InvalidRequest(
                f"{what} takes rows of {features} numbers, an example is {array.dtype} {list(array.shape)}",
                hint="the FIL backend takes one table of FP32; other columns go into a Python model (no backend='fil')",
            )
        made.append({INPUT: array.astype(np.float32)})
    return made


def _answer(forest: Forest, rows: NDArray[Any], settings: FilSettings, values: int) -> NDArray[Any]:
    return answer(
        forest.scores(forest.widen(rows)),
        values=values,
        tail=(values,),
        classifier=settings.classifier,
        predict_proba=settings.predict_proba,
        threshold=settings.threshold,
    )


def _written(thing: Any, folder: Path) -> Path:
    """An estimator's trees in a file of their library."""
    family = type(thing).__module__.partition(".")[0]
    if family == "xgboost":
        path = folder / FILES["xgboost_ubj"]
        getattr(thing, "get_booster", lambda: thing)().save_model(path)
    elif family == "lightgbm":
        path = folder / FILES["lightgbm"]
        getattr(thing, "booster_", thing).save_model(str(path))
    elif family == "sklearn":
        import treelite

        path = folder / FILES["treelite_checkpoint"]
        try:
            treelite.sklearn.import_model(thing).serialize(path)
        except (NotImplementedError, ValueError, treelite.TreeliteError) as error:
            raise InvalidRequest(
                f"treelite takes no {type(thing).__name__}: {error}",
                hint="without backend='fil' it becomes a Python model",
            ) from error
    else:
        raise InvalidRequest(
            f"a {type(thing).__module__}.{type(thing).__qualname__} is no forest of a library that is known",
            hint="backend='fil' is for forests of XGBoost, LightGBM and scikit-learn, and for their files",
        )
    return path


def _compare(thing: Any, feeds: Sequence[Feed], answers: Sequence[Feed], way: str) -> None:
    """The estimator's own answers to the same values, where it has them in this form.

    Raises:
        InvalidRequest: Triton's backend would answer something else.
    """
    method = "predict_proba" if way == "probabilities" else "predict"
    if not hasattr(thing, "get_params") or not hasattr(thing, method):
        return  # a booster: its file is the same trees, and ``predict`` has another form
    for feed, given in zip(feeds, answers, strict=True):
        expected = np.asarray(getattr(thing, method)(feed[INPUT]))
        if way == "label":
            expected = np.searchsorted(thing.classes_, expected)  # the backend answers the class's number
        got = given[OUTPUT]
        if expected.size != got.size or not alike(got, expected.astype(np.float32).reshape(got.shape)):
            raise InvalidRequest(
                f"the FIL backend answers differently: {expected!r:.200} becomes {got!r:.200}",
                hint="without backend='fil' it becomes a Python model, which asks the estimator itself",
            )


def _comment(thing: Any, path: Path) -> str:
    if isinstance(thing, str | Path):
        return f"The forest in {path.name}."
    return f"A {type(thing).__name__} of {type(thing).__module__.partition('.')[0]}."
