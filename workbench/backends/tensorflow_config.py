"""What a configuration says to TensorFlow: the parameters of Triton's backend with its defaults and texts.

Source: tensorflow_backend's ``ModelState``, ``BackendConfiguration`` and README (its last release is 25.02). No
framework is needed here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.backends.base import ModelContext
from workbench.backends.fit import config_datatype
from workbench.backends.parameters import bool_parameter, int_parameter, text_parameter
from workbench.errors import InternalError, InvalidRequest

GRAPHDEF, SAVEDMODEL = "tensorflow_graphdef", "tensorflow_savedmodel"
ENGINE = "WORKBENCH_ENGINE"
INSTALL = "pip install 'serving-workbench[tensorflow]'"

DATATYPES = frozenset(
    (
        *("TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_INT8", "TYPE_INT16"),
        *("TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32", "TYPE_FP64", "TYPE_STRING"),
    )
)
"""The data types of a configuration that Triton's backend knows."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one model.

    ``intra_threads`` and ``inter_threads`` are 0 where TensorFlow chooses. ``sessions_for`` is how many instances share
    a session. ``jit`` is XLA's level: -1 off, 0 TensorFlow's default, 1 and 2 on. ``engine`` (not Triton's) says what
    runs the model: ``tensorflow``, ``openvino``, or "" for the first of them that is installed.
    """

    graphdef: bool
    intra_threads: int = 0
    inter_threads: int = 0
    own_threads: bool = False
    tag: str = "serve"
    signature: str = ""
    init_ops_file: str = ""
    sessions_for: int = 1
    jit: int = 0
    soft_placement: bool = True
    gpu_memory_fraction: float = 0.0
    engine: str = ""


def read_settings(context: ModelContext) -> Settings:
    """The settings that a configuration and ``--backend-config=tensorflow,...`` make.

    Raises:
        InvalidRequest: platform or a value that Triton's backend does not take (its texts).
    """
    config, name = context.config, context.name
    if config.platform not in (GRAPHDEF, SAVEDMODEL):
        raise InvalidRequest(
            f"platform {config.platform} not supported for TensorFlow model '{name}'",
            hint=f'write platform: "{SAVEDMODEL}" or "{GRAPHDEF}"',
        )
    shared = int_parameter(config, "MAX_SESSION_SHARE_COUNT")
    if shared is not None and shared <= 0:
        raise InvalidRequest(
            f"parameter 'MAX_SESSION_SHARE_COUNT' must be positive number for TensorFlow model '{name}'"
        )
    intra = int_parameter(config, "TF_NUM_INTRA_THREADS") or 0
    if intra < 0:
        raise InvalidRequest(
            f"parameter 'TF_NUM_INTRA_THREADS' must be non-negative number for TensorFlow model '{name}'"
        )
    engine = (text_parameter(config, ENGINE) or "").lower()
    if engine not in ("", "tensorflow", "openvino"):
        raise InvalidRequest(f"parameter '{ENGINE}' must be tensorflow or openvino, got '{engine}'")
    _refuse_accelerators(config)
    _check_datatypes(config)
    graph = config.optimization.graph
    return Settings(
        graphdef=config.platform == GRAPHDEF,
        intra_threads=intra,
        inter_threads=int_parameter(config, "TF_NUM_INTER_THREADS") or 0,
        own_threads=bool_parameter(config, "TF_USE_PER_SESSION_THREADS") or False,
        tag=text_parameter(config, "TF_GRAPH_TAG") or "serve",
        signature=text_parameter(config, "TF_SIGNATURE_DEF") or "",
        init_ops_file=text_parameter(config, "TF_INIT_OPS_FILE") or "",
        sessions_for=shared or 1,
        jit=max(-1, min(2, graph.level)) if config.optimization.HasField("graph") else 0,
        soft_placement=_backend_bool(context.backend_config, "allow-soft-placement", True),
        gpu_memory_fraction=_backend_float(context.backend_config, "gpu-memory-fraction"),
        engine=engine,
    )


def init_ops(context: ModelContext, settings: Settings) -> list[str]:
    """The operations that ``TF_INIT_OPS_FILE`` names, run once in each new session.

    The file lies in the version directory, or else in the model directory.

    Raises:
        InternalError: it cannot be read.
    """
    if not settings.init_ops_file:
        return []
    path = context.version_dir / settings.init_ops_file
    if not path.exists():
        path = context.model_dir / settings.init_ops_file
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["init_ops"]
    except OSError as error:
        text = f"failed to open text file for read {path}: {error.strerror}"
        raise InternalError(text, where="TF_INIT_OPS_FILE") from error
    except (ValueError, KeyError, TypeError) as error:
        raise _bad_ops(path) from error
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise _bad_ops(path)
    return found


def _bad_ops(path: Path) -> InternalError:
    return InternalError(
        f"unable to read the initialization operations of {path}", hint='write {"init_ops": ["name", ...]}'
    )


def _refuse_accelerators(config: Any) -> None:
    found = config.optimization.execution_accelerators
    if found.cpu_execution_accelerator:
        raise InvalidRequest("CPU Execution Accelerator is not supported in TensorFlow backend")
    for each in found.gpu_execution_accelerator:
        if each.name not in ("tensorrt", "gpu_io", "auto_mixed_precision"):
            raise InvalidRequest(f"unknown Execution Accelerator '{each.name}' is requested")


def _check_datatypes(config: Any) -> None:
    for item in (*config.input, *config.output):
        kind = config_datatype(item)
        # one without a type is completed, where the model says it
        if kind not in DATATYPES and kind != "TYPE_INVALID":
            raise InvalidRequest(f"unsupported datatype '{kind}' for tensor '{item.name}' for model '{config.name}'")


def _backend_bool(settings: Mapping[str, str], key: str, default: bool) -> bool:
    text = settings.get(key, "").lower()
    if text not in ("", "true", "1", "false", "0"):
        raise InvalidRequest(f"failed to convert '{settings[key]}' to boolean value", where=f"--backend-config {key}")
    return default if not text else text in ("true", "1")


def _backend_float(settings: Mapping[str, str], key: str) -> float:
    try:
        return float(settings.get(key) or 0)
    except ValueError:
        text = f"failed to convert '{settings[key]}' to floating-point number"
        raise InvalidRequest(text, where=f"--backend-config {key}") from None
