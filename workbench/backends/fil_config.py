"""What a configuration says to Triton's FIL backend: its names, defaults and texts.

Source: fil_backend's ``RapidsSharedState`` (26.06; what 25.09 removed is read where it still means something) and
rapids-triton's ``SharedModelState``, which reads the parameters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.backends.base import ModelContext
from workbench.backends.fit import config_datatype
from workbench.backends.parameters import text_parameter
from workbench.errors import InternalError, InvalidRequest, NotReady, Unsupported

INPUT, OUTPUT = "input__0", "output__0"
"""The names that the backend reads and writes, whatever the configuration calls its tensors."""

PICKLE = "sklearn_pickle"
"""A ``model_type`` of this workbench: real Triton reads no pickles."""

FILES = {
    "xgboost": "xgboost.model",
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
    PICKLE: "model.pkl",
}
"""``model_type`` -> the file's name where ``default_model_filename`` gives none."""

ENGINE_PARAMETER = "WORKBENCH_FIL_ENGINE"
PICKLE_PARAMETER = "WORKBENCH_UNSAFE_PICKLE"
PICKLE_SETTING = "unsafe-pickle"
"""``--backend-config=fil,unsafe-pickle=true`` is for all models, the parameter for one."""

_SUCCESSORS = {"algo": "layout", "threads_per_tree": "chunk_size", "output_class": "is_classifier"}
_REMOVED = ("storage_type", "blocks_per_sm")


@dataclass(frozen=True, slots=True)
class FilSettings:
    """The parameters of a model.

    ``engine`` is ``treelite``, ``native``, or ``native_or_treelite`` (native where that is possible). ``layout`` and
    ``chunk_size`` are for a GPU; ``transfer_threshold`` is read and not heeded: an instance is on one device here.
    """

    model_type: str
    classifier: bool
    predict_proba: bool
    threshold: float
    allow_unknown_field: bool
    nthread: int
    engine: str
    layout: str
    chunk_size: int
    transfer_threshold: int
    unsafe_pickle: bool


def read_settings(config: Any, backend_config: Mapping[str, str]) -> FilSettings:
    """The settings of a model, Triton's defaults where it says nothing.

    Raises:
        InvalidRequest: a parameter is missing or no number (Triton's texts).
        InternalError: one is neither true nor false (Triton's text).
        Unsupported: the model type is not known (Triton's text).
    """
    model_type = _word(config, "model_type", "xgboost")
    if model_type not in FILES:
        raise Unsupported(
            f"{model_type} not recognized as a valid serialization format.", hint=f"one of: {', '.join(FILES)}"
        )
    old = _word(config, "output_class", "")
    classifier = old == "true" if old in ("true", "false") else _required_flag(config)
    threshold = 0.5
    if classifier:
        threshold = _number(config, "threshold", None, "threshold of a binary classifier, 0.5 for the usual one")
    engine = _word(config, ENGINE_PARAMETER, "")
    if not engine:
        engine = "native_or_treelite" if _flag(config, "use_experimental_optimizations") else "treelite"
    elif engine not in ("treelite", "native"):
        raise InvalidRequest(f"parameter {ENGINE_PARAMETER} is '{engine}', expected 'treelite' or 'native'")
    return FilSettings(
        model_type=model_type,
        classifier=classifier,
        predict_proba=_flag(config, "predict_proba"),
        threshold=threshold,
        allow_unknown_field=_flag(config, "xgboost_allow_unknown_field"),
        nthread=int(_number(config, "cpu_nthread", -1)),
        engine=engine,
        layout=_word(config, "layout", "depth_first"),
        chunk_size=max(1, int(_number(config, "chunk_size", 1))),
        transfer_threshold=int(_number(config, "transfer_threshold", 0)),
        unsafe_pickle=_flag(config, PICKLE_PARAMETER) or backend_config.get(PICKLE_SETTING, "") == "true",
    )


def removed_parameters(config: Any) -> Iterator[str]:
    """What Triton's log warns of: parameters that its newer releases do not heed."""
    for old, new in _SUCCESSORS.items():
        if _word(config, old, ""):
            yield f"The `{old}` parameter has been removed in 25.09 release. Use `{new}` instead."
    for old in _REMOVED:
        if _word(config, old, ""):
            yield f"The `{old}` parameter has been removed in 25.09 release."


def model_path(context: ModelContext, settings: FilSettings) -> Path:
    """The model's file.

    Raises:
        NotReady: there is none.
    """
    path: Path = context.version_dir / context.config.default_model_filename
    if path.is_dir():
        path = path / FILES[settings.model_type]
    if not path.is_file():
        raise NotReady(
            f"Could not open model file {path}",
            where=context.name,
            hint=f"for model_type {settings.model_type} the file is {FILES[settings.model_type]}; another name goes "
            "into default_model_filename",
        )
    return path


@dataclass(frozen=True, slots=True)
class FilShapes:
    """``features`` a row of the input; ``values`` a row of the output, ``tail`` the dimensions after its rows.

    A dimension of 1 is left out of the answer, as Triton's backend does: ``dims: [ 1 ]`` is answered as [rows].
    """

    features: int
    values: int
    tail: tuple[int, ...]


def read_shapes(config: Any) -> FilShapes:
    """What the configuration says of the two tensors.

    Raises:
        InvalidRequest: they are not those of the FIL backend. (Real Triton finds out at the first request, or answers
            what was in memory.)
        Unsupported: Shapley values are asked for.
    """
    model = config.name
    if [item.name for item in config.input] != [INPUT]:
        names = ", ".join(f"'{item.name}'" for item in config.input) or "none"
        raise InvalidRequest(f"model '{model}': the FIL backend has one input, '{INPUT}'; the configuration: {names}")
    names_out = [item.name for item in config.output]
    if "treeshap_output" in names_out:
        raise Unsupported(
            f"model '{model}': 'treeshap_output' (Shapley values) is not offered here",
            hint="leave the output out; real Triton computes it",
        )
    if names_out != [OUTPUT]:
        names = ", ".join(f"'{name}'" for name in names_out) or "none"
        raise InvalidRequest(f"model '{model}': the FIL backend has the output '{OUTPUT}'; the configuration: {names}")
    for item in (config.input[0], config.output[0]):
        if config_datatype(item) != "TYPE_FP32":
            raise InvalidRequest(
                f"model '{model}': '{item.name}' has incorrect type {config_datatype(item)}, TYPE_FP32 is required",
                hint="the FIL backend takes and gives FP32 whatever the model was trained on",
            )
    given = _dims(config.input[0])
    row = given if config.max_batch_size > 0 else given[1:]
    if not row or min(row) < 1:
        raise InvalidRequest(
            f"model '{model}': '{INPUT}' has dims {list(given)}, expected the number of features",
            hint="dims: [ features ], or dims: [ -1, features ] with max_batch_size: 0",
        )
    answered = _dims(config.output[0])
    tail = answered[1:] if answered and answered[0] == -1 else answered
    if any(dim < 1 for dim in tail):
        raise InvalidRequest(
            f"model '{model}': Backends with variable-shape outputs must request desired output shape",
            hint=f"'{OUTPUT}' has dims {list(answered)}: give the number of values a row",
        )
    return FilShapes(math.prod(row), math.prod(tail), tuple(dim for dim in tail if dim != 1))


def check_shapes(config: Any, settings: FilSettings, shapes: FilShapes, features: int, classes: int) -> None:
    """Compares the configuration with the model: ``features`` and ``classes`` are the file's, 1 for all but several.

    Raises:
        InvalidRequest: they do not fit.
    """
    if shapes.features != features:
        raise InvalidRequest(
            f"unable to load model '{config.name}', configuration expects {shapes.features} features in '{INPUT}', "
            f"model provides {features}",
            hint=f"dims: [ {features} ]",
        )
    wanted: tuple[int, ...]
    if settings.predict_proba:
        wanted = (classes,) if classes > 1 else (2, 1)
    elif settings.classifier:
        wanted = (1,)
    else:
        wanted = (classes,)
    if shapes.values not in wanted:
        kind = "probabilities" if settings.predict_proba else "a class" if settings.classifier else "scores"
        raise InvalidRequest(
            f"unable to load model '{config.name}', configuration expects {shapes.values} values a row in '{OUTPUT}', "
            f"model provides {' or '.join(map(str, wanted))} ({kind})",
            hint=f"dims: [ {wanted[0]} ]; predict_proba and is_classifier (before 25.09: output_class) choose what is "
            "answered",
        )


def _dims(item: Any) -> tuple[int, ...]:
    return tuple(item.reshape.shape if item.HasField("reshape") else item.dims)


def _word(config: Any, key: str, default: str) -> str:
    """As a C++ stream reads a string: its first word."""
    words = (text_parameter(config, key) or "").split()
    return words[0] if words else default


def _flag(config: Any, key: str) -> bool:
    text = text_parameter(config, key)
    if text not in (None, "true", "false"):
        raise InternalError(f"Expected 'true' or 'false' for parameter '{key}', got: '{text}'")
    return text == "true"


def _required_flag(config: Any) -> bool:
    if "is_classifier" not in config.parameters:
        raise InvalidRequest(
            "Required parameter is_classifier not found in config",
            hint='is_classifier (before 25.09: output_class): "true" answers a class, "false" a score',
        )
    return _flag(config, "is_classifier")


def _number(config: Any, key: str, default: float | None, hint: str = "") -> float:
    text = text_parameter(config, key)
    if text is None:
        if default is None:
            raise InvalidRequest(f"Required parameter {key} not found in config", hint=hint)
        return default
    found = re.match(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text)
    if found is None:
        if default is None:
            raise InvalidRequest(f"Bad input for parameter {key}", hint=hint)
        return default
    return float(found[0])
