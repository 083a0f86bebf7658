"""Loading a forest, and its scores: by treelite, as Triton's FIL backend does on a CPU, or by the library it is from.

Rounding: requests bring FP32. Thresholds of XGBoost are FP32 as well; those of LightGBM and scikit-learn are FP64, and
there the input is widened, which loses nothing: the scores are those that the library gives for the same FP32 values.
(scikit-learn rounds its input to FP32 itself; a LightGBM that is given FP64 in Python may take another branch where
rounding crosses a threshold.) Scores are rounded to FP32 in the answer only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from workbench.backends.fil_config import ENGINE_PARAMETER, PICKLE, PICKLE_PARAMETER, PICKLE_SETTING, FilSettings
from workbench.errors import InvalidRequest, UnknownError, WorkbenchError

LIMIT_S = 60.0
"""How long a process may take that reads a file for the server."""
_NATIVE = {"xgboost_json": "xgboost", "xgboost_ubj": "xgboost", "lightgbm": "lightgbm"}
_HEAD = 16
_CLASSIFIERS = (0, 2)
"""treelite's ``TaskType``: kBinaryClf, kMultiClf."""


Task = Literal["classification", "other"]


class Forest(Protocol):
    """A loaded model: ``classes`` is 1 for all but multi-class ones. Thread-safe."""

    features: int
    classes: int
    task: Task
    engine: str

    def widen(self, rows: NDArray[np.float32]) -> NDArray[Any]:
        """The rows in the precision of the model's thresholds, contiguous."""

    def scores(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Scores [rows, classes] of what ``widen`` gave."""


def load_forest(path: Path, settings: FilSettings, log: Callable[[str], None]) -> Forest:
    """Reads a model's file.

    ``log`` is told where another engine than the wanted one was taken.

    Raises:
        UnknownError: the file is broken or of another format (treelite's text, as in Triton).
        InvalidRequest: it is a pickle and those are not allowed; the library it needs is not installed.
    """
    if settings.engine != "treelite":
        family = _NATIVE.get(settings.model_type)
        try:
            if family is None:
                raise InvalidRequest(
                    f"no native engine for model_type {settings.model_type}", hint=f"{ENGINE_PARAMETER}: treelite"
                )
            return (_XGBoost if family == "xgboost" else _LightGBM)(path, settings)
        except WorkbenchError as error:
            if settings.engine == "native":
                raise
            log(f"use_experimental_optimizations: {error.message}; falling back to GTIL")
    return _Treelite(path, settings, log)


class _Treelite:
    engine = "treelite"

    def __init__(self, path: Path, settings: FilSettings, log: Callable[[str], None]) -> None:
        import treelite
        from treelite import gtil

        self._model: Any = _read_treelite(treelite, path, settings)
        self._predict: Any = gtil.predict
        self._nthread = settings.nthread
        header = self._model.get_header_accessor()
        if header.get_field("num_target")[0] != 1:
            raise UnknownError(
                "Multi-target model not supported", where=str(path), hint="a model for each target, or a Python model"
            )
        self.features = int(self._model.num_feature)
        self.classes = int(header.get_field("num_class")[0])
        self.task: Task = "classification" if header.get_field("task_type")[0] in _CLASSIFIERS else "other"
        self._dtype = np.dtype(self._model.input_type)
        one_tree_one_class = header.get_field("leaf_vector_shape")[1] == 1
        if settings.predict_proba and self.classes > 1 and one_tree_one_class:
            known = header.get_field("postprocessor")
            if known != "softmax":
                log(f"predict_proba: the FIL backend answers softmax where the model has {known}")
                header.set_field("postprocessor", "softmax")

    def widen(self, rows: NDArray[np.float32]) -> NDArray[Any]:
        return np.ascontiguousarray(rows, self._dtype)

    def scores(self, rows: NDArray[Any]) -> NDArray[Any]:
        found: NDArray[Any] = self._predict(self._model, rows, nthread=self._nthread)
        return found.reshape(len(rows), self.classes)


class _XGBoost:
    engine = "xgboost"

    def __init__(self, path: Path, settings: FilSettings) -> None:
        xgboost = _library("xgboost")
        try:
            self._booster: Any = xgboost.Booster({"nthread": settings.nthread}, model_file=_by_suffix(path, settings))
        except (xgboost.core.XGBoostError, ValueError) as error:
            raise UnknownError(f"xgboost cannot read the model: {_first_line(error)}", where=str(path)) from error
        about = json.loads(self._booster.save_config())["learner"]
        if int(about["learner_model_param"].get("num_target", "1")) > 1:
            raise UnknownError("Multi-target model not supported", where=str(path))
        if about["gradient_booster"].get("name") == "gblinear":
            raise InvalidRequest("the model is linear, the FIL backend is for trees", where=str(path))
        if about["objective"]["name"] == "multi:softmax":
            self._booster.set_param({"objective": "multi:softprob"})
        objective = about["objective"]["name"]
        self.task: Task = "classification" if objective.startswith(("binary:", "multi:")) else "other"
        self.features = int(self._booster.num_features())
        self.classes = max(1, int(about["learner_model_param"]["num_class"]))

    def widen(self, rows: NDArray[np.float32]) -> NDArray[Any]:
        return np.ascontiguousarray(rows)

    def scores(self, rows: NDArray[Any]) -> NDArray[Any]:
        found: NDArray[Any] = self._booster.inplace_predict(rows, validate_features=False)
        return found.reshape(len(rows), self.classes)


class _LightGBM:
    engine = "lightgbm"

    def __init__(self, path: Path, settings: FilSettings) -> None:
        lightgbm = _library("lightgbm")
        try:
            self._booster: Any = lightgbm.Booster(model_file=str(path))
        except lightgbm.basic.LightGBMError as error:
            raise UnknownError(f"lightgbm cannot read the model: {_first_line(error)}", where=str(path)) from error
        if settings.predict_proba and "objective=multiclassova" in path.read_text(errors="replace")[:4096]:
            raise InvalidRequest("lightgbm answers no softmax for multiclassova, as the FIL backend does")
        self._nthread = settings.nthread
        kind = str(self._booster.dump_model(num_iteration=1)["objective"])
        self.task: Task = "classification" if kind.startswith(("binary", "multiclass")) else "other"
        self.features = int(self._booster.num_feature())
        self.classes = int(self._booster.num_model_per_iteration())

    def widen(self, rows: NDArray[np.float32]) -> NDArray[Any]:
        return np.ascontiguousarray(rows)  # it compares in FP64 whatever it is given

    def scores(self, rows: NDArray[Any]) -> NDArray[Any]:
        if not len(rows):
            return np.empty((0, self.classes))
        found: NDArray[Any] = self._booster.predict(rows, num_threads=self._nthread, validate_features=False)
        return found.reshape(len(rows), self.classes)


def _library(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InvalidRequest(
            f"{name} is not installed", hint="pip install 'serving-workbench[trees]', or WORKBENCH_FIL_ENGINE: treelite"
        ) from error


def _by_suffix(path: Path, settings: FilSettings) -> bytearray | str:
    """What a Booster is made of: it goes by the suffix of a file's name, else takes the bytes of either format."""
    suffix = "." + settings.model_type.rpartition("_")[2]
    return str(path) if path.suffix == suffix else bytearray(path.read_bytes())


def _read_treelite(treelite: Any, path: Path, settings: FilSettings) -> Any:
    frontend, kind = treelite.frontend, settings.model_type
    try:
        if kind == "xgboost":
            return frontend.load_xgboost_model_legacy_binary(path)
        if kind in ("xgboost_json", "xgboost_ubj"):
            choice = "json" if kind == "xgboost_json" else "ubjson"
            unknown = settings.allow_unknown_field
            return frontend.load_xgboost_model(path, format_choice=choice, allow_unknown_field=unknown)
        if kind == "lightgbm":
            return frontend.load_lightgbm_model(path)
        if kind == PICKLE:
            return _unpickled(treelite, path, settings)
        return _checkpoint(treelite, path)
    except treelite.TreeliteError as error:
        raise UnknownError(str(error), where=str(path), hint=_what_to_do(path, kind, str(error))) from error
    except UnicodeDecodeError as error:  # the text of treelite's error quotes the file
        raise UnknownError(
            f"treelite cannot read {path.name}", where=str(path), hint=_what_to_do(path, kind, "")
        ) from error


def _checkpoint(treelite: Any, path: Path) -> Any:
    if kind_of(path) == "treelite_checkpoint":  # what is none has an error of its own
        why = _run("try_checkpoint.py", path)
        if why and "version" not in why:
            raise UnknownError(
                f"treelite cannot read {path.name}: {why}",
                where=str(path),
                hint="it is damaged, or cut short: write it anew",
            )
    return treelite.Model.deserialize(path)


def _run(script: str, *arguments: Path) -> str:
    """Runs a script of ``fil_process``; why it failed, "" where it did not."""
    command = [sys.executable, "-P", str(Path(__file__).parent / "fil_process" / script), *map(str, arguments)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {LIMIT_S:g} s"
    if not done.returncode:
        return ""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines and done.returncode > 0 else f"exit code {done.returncode}"


def _what_to_do(path: Path, kind: str, text: str) -> str:
    found = kind_of(path)
    if found is not None and found != kind:
        return f"the file looks like {found}: set the parameter model_type to it"
    if kind == "xgboost":
        return (
            "XGBoost's binary format is gone since 3.1: load the model with the XGBoost that saved it, and save it as "
            ".ubj (model_type xgboost_ubj) or .json"
        )
    if "not recognized" in text:
        return 'parameter xgboost_allow_unknown_field: "true" skips what the reader does not know'
    if "categorical encoder" in text:
        return (
            "XGBoost put the table's categories into the file: train on their codes "
            "(DMatrix(codes, feature_types=['c', ...], enable_categorical=True))"
        )
    if "different major Treelite version" in text:
        return "write the checkpoint with treelite 3.9 or 4: the compatibility table is in the FIL backend's docs"
    return "a file that is damaged or cut off is to be saved or copied again; if it is whole, treelite does not take it"


def kind_of(path: Path) -> str | None:
    """The ``model_type`` that a file's first bytes speak for; None where they say nothing."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(b"tree\n"):
        return "lightgbm"
    if head.startswith(b"\x80") or (head.startswith(b"x") and path.suffix == ".joblib"):
        return PICKLE
    if head.startswith(b"{"):
        return "xgboost_ubj" if head[1:2] in (b"L", b"l", b"i", b"U", b"I") else "xgboost_json"
    if head.startswith((b"binf", b"bs64")):
        return "xgboost"
    if len(head) >= 12 and int.from_bytes(head[:4], "little") in (3, 4) and int.from_bytes(head[4:8], "little") < 100:
        return "treelite_checkpoint"
    return None


def _unpickled(treelite: Any, path: Path, settings: FilSettings) -> Any:
    """The trees in a pickle, which is read by a process of its own that ends then.

    So no code of the pickle runs in the server, and what serves are the same trees, on threads: scikit-learn's own
    ``predict_proba`` holds the GIL now and then, and takes milliseconds for a single row.
    """
    if not settings.unsafe_pickle:
        raise InvalidRequest(
            f"'{path.name}' is a pickle, and reading one runs whatever code is in it: unsafe",
            where=str(path),
            hint=f'where you trust the file: parameter {PICKLE_PARAMETER}: "true", or '
            f"--backend-config=fil,{PICKLE_SETTING}=true. Real Triton reads none: treelite.sklearn.import_model("
            'estimator).serialize("checkpoint.tl") makes a treelite_checkpoint of it',
        )
    with tempfile.TemporaryDirectory(prefix="workbench-fil-") as scratch:
        target = Path(scratch) / "checkpoint.tl"
        why = _run("unpickle.py", path, target)
        if why or not target.is_file():
            raise UnknownError(
                f"the pickle could not be read: {why}",
                where=str(path),
                hint="trees of scikit-learn, XGBoost and LightGBM go; other estimators: workbench package (a model.py)",
            )
        return treelite.Model.deserialize(target)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
