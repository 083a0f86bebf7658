"""What Triton adds to a configuration before it uses it.

Source: core ``model_config_utils.cc`` (AutoCompleteBackendFields, NormalizeModelConfig, NormalizeInstanceGroup),
checked against the answers of ``GET /v2/models/M/config`` of tritonserver 2.51.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.config.schema import Message, pb
from workbench.errors import ConfigError

SEQUENCE_IDLE_DEFAULT_MICROSECONDS = 1_000_000
"""``max_sequence_idle_microseconds`` where a configuration gives none."""

DEFAULT_MAX_BATCH_SIZE = 4
"""What auto-completion gives to a model that can batch (backend-config ``default-max-batch-size``)."""

_FILES: tuple[tuple[str, str, str], ...] = (
    ("model.savedmodel", "tensorflow", "tensorflow_savedmodel"),
    ("model.graphdef", "tensorflow", "tensorflow_graphdef"),
    ("model.plan", "tensorrt", "tensorrt_plan"),
    ("model.onnx", "onnxruntime", "onnxruntime_onnx"),
    ("model.xml", "openvino", ""),
    ("model.pt", "pytorch", "pytorch_libtorch"),
    ("model.pt2", "pytorch", "torch_aoti"),
    ("model.py", "python", ""),
)
_BACKEND_OF_PLATFORM = {platform: backend for _, backend, platform in _FILES if platform}
_FILE_OF_PLATFORM = {platform: name for name, _, platform in _FILES if platform}
_PLATFORM_OF_BACKEND = {"onnxruntime": "onnxruntime_onnx", "tensorrt": "tensorrt_plan", "pytorch": "pytorch_libtorch"}
_FILE_OF_BACKEND = {
    "onnxruntime": "model.onnx",
    "tensorrt": "model.plan",
    "pytorch": "model.pt",
    "openvino": "model.xml",
    "python": "model.py",
}

PLATFORMS = tuple(_BACKEND_OF_PLATFORM)
"""Every platform but ``ensemble``."""

BACKENDS = (
    *dict.fromkeys(row[1] for row in _FILES),
    *("dali", "fil", "vllm", "tensorrtllm", "armnn_tflite"),
    *("identity", "repeat", "square", "sequence", "dyna_sequence", "iterative_sequence"),
)
"""The backends that Triton's releases and its tests bring (server ``build.py``)."""


def backend_of_platform(platform: str) -> str:
    """The backend that a platform names; "" for one that Triton does not know."""
    return _BACKEND_OF_PLATFORM.get(platform, "")


def complete_backend(message: Message, directory_name: str, files: Sequence[str] = ()) -> Message:
    """A copy with name, backend, platform and default_model_filename filled in as Triton's core does.

    Args:
        message: the configuration as written (empty where there is no config.pbtxt).
        directory_name: the model directory's name; it is the model's name where the configuration gives none, and its
            ending names the backend where nothing else does (``x.<backend>``).
        files: names in the *first* version directory (files and directories).

    Raises:
        ConfigError: the backend cannot be told.
    """
    out = pb().ModelConfig()
    out.CopyFrom(message)
    if not out.name:
        out.name = directory_name
    if out.platform == "ensemble":
        return out
    if not out.backend:
        out.backend = backend_of_platform(out.platform)
    if not out.backend and not out.platform:
        _from_files(out, directory_name, files)
    if not out.platform and out.backend == "tensorflow":
        out.platform = next((row[2] for row in _FILES[:2] if row[0] in files), "")
    elif not out.platform:
        out.platform = _PLATFORM_OF_BACKEND.get(out.backend, "")
        if out.backend == "pytorch" and "model.pt2" in files and "model.pt" not in files:
            out.platform = "torch_aoti"
    if not out.default_model_filename:
        by_platform = _FILE_OF_PLATFORM.get(out.platform, "")
        out.default_model_filename = by_platform or _FILE_OF_BACKEND.get(out.backend, "")
    return out


def _from_files(out: Message, directory_name: str, files: Sequence[str]) -> None:
    present = set(files)
    for name, backend, platform in _FILES:
        if name in present:
            out.backend, out.platform = backend, platform
            return
    stem, dot, ending = directory_name.rpartition(".")
    if dot and stem and ending:
        out.backend = ending
        if not out.default_model_filename:
            out.default_model_filename = f"model.{ending}"
        return
    raise ConfigError(
        f"Invalid model name: Could not determine backend for model '{out.name}' with no backend in model "
        "configuration. Expected model name of the form 'model.<backend_name>'.",
        hint='name the backend (backend: "python"), or give the model file its usual name (model.onnx, model.py, ...)',
    )


def normalize(message: Message, *, model_name: str = "", gpus: Sequence[int] = ()) -> Message:
    """A copy with Triton's defaults written out; normalising twice is the same as once.

    Filled in: version policy (latest 1), ``preferred_batch_size`` (max_batch_size), sequence idle time, pinned memory,
    and the instance groups: one where none is given, their names (``<model>`` alone, else ``<model>_<i>``), kind
    (KIND_AUTO becomes KIND_GPU or KIND_CPU), count (1; 2 on the CPU with onnxruntime or tensorflow) and GPUs.

    Args:
        message: the configuration (see ``complete_backend`` for what file names tell).
        model_name: the name where the configuration has none.
        gpus: ids of the GPUs that may be used here; KIND_AUTO and KIND_GPU depend on them.
    """
    out = pb().ModelConfig()
    out.CopyFrom(message)
    if not out.name and model_name:
        out.name = model_name
    if not out.HasField("version_policy") or out.version_policy.WhichOneof("policy_choice") is None:
        out.version_policy.latest.num_versions = 1
    if out.HasField("dynamic_batching"):
        _prefer_largest(out.dynamic_batching, out.max_batch_size)
    if out.HasField("sequence_batching"):
        sequence = out.sequence_batching
        if sequence.max_sequence_idle_microseconds == 0:
            sequence.max_sequence_idle_microseconds = SEQUENCE_IDLE_DEFAULT_MICROSECONDS
        if sequence.HasField("oldest"):
            _prefer_largest(sequence.oldest, out.max_batch_size)
    if out.HasField("ensemble_scheduling") or out.platform == "ensemble":
        return out
    for name in ("input_pinned_memory", "output_pinned_memory"):
        if not out.optimization.HasField(name):
            getattr(out.optimization, name).enable = True
    _normalize_groups(out, gpus)
    return out


def _prefer_largest(batching: Any, max_batch_size: int) -> None:
    if not batching.preferred_batch_size and max_batch_size > 0:
        batching.preferred_batch_size.append(max_batch_size)


def default_count(backend: str, kind: int) -> int:
    """The instances of a group whose count is below 1; ``kind`` is its own, not KIND_AUTO."""
    return 2 if kind == pb().ModelInstanceGroup.KIND_CPU and backend in ("onnxruntime", "tensorflow") else 1


def _normalize_groups(out: Message, gpus: Sequence[int]) -> None:
    kinds = pb().ModelInstanceGroup
    if not out.instance_group:
        out.instance_group.add(name=out.name)
    for index, group in enumerate(out.instance_group):
        if not group.name:
            group.name = f"{out.name}_{index}"
        if group.kind == kinds.KIND_AUTO:
            usable = bool(gpus) and all(each in gpus for each in group.gpus)
            group.kind = kinds.KIND_GPU if usable else kinds.KIND_CPU
        if group.count < 1:
            group.count = default_count(out.backend, group.kind)
        if group.kind == kinds.KIND_GPU and not group.gpus:
            group.gpus.extend(gpus)
