"""Which execution providers of ONNX Runtime run an instance: Triton's rules, parameters and texts.

Source: onnxruntime_backend's ``ModelState::LoadModel``. On a GPU: the accelerators of the configuration in their order
(``tensorrt``, ``cuda``), CUDA always, the CPU for what they do not take. On a CPU: ``openvino`` where it is asked for.
The Python binding falls back to the CPU without a word where a provider cannot be used; ``check_taken`` finds out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import onnxruntime as ort

from workbench.backends.base import InstanceSpec
from workbench.backends.parameters import int_parameter, text_parameter
from workbench.errors import InternalError, InvalidRequest

CUDA, TENSORRT, OPENVINO, CPU = (
    "CUDAExecutionProvider", "TensorrtExecutionProvider", "OpenVINOExecutionProvider", "CPUExecutionProvider",
)  # fmt: skip
Provider = tuple[str, dict[str, str]]

RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"
"""The session's setting by which ONNX Runtime remembers which provider took which node (where it knows it)."""

_INTEGERS = (
    "trt_max_partition_iterations", "trt_min_subgraph_size", "trt_dla_core", "trt_builder_optimization_level",
    "trt_auxiliary_streams", "trt_ep_context_embed_mode",
)  # fmt: skip
_BOOLEANS = (
    "trt_dla_enable", "trt_engine_cache_enable", "trt_dump_subgraphs", "trt_force_sequential_engine_build",
    "trt_context_memory_sharing_enable", "trt_layer_norm_fp32_fallback", "trt_timing_cache_enable",
    "trt_force_timing_cache", "trt_detailed_build_log", "trt_build_heuristics_enable", "trt_sparsity_enable",
    "trt_cuda_graph_enable", "trt_dump_ep_context_model",
)  # fmt: skip
_TEXTS = (
    "trt_engine_cache_path", "trt_engine_cache_prefix", "trt_timing_cache_path", "trt_tactic_sources",
    "trt_extra_plugin_lib_paths", "trt_profile_min_shapes", "trt_profile_max_shapes", "trt_profile_opt_shapes",
    "trt_ep_context_file_path",
)  # fmt: skip
_RENAMED = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_PRECISIONS = {"FP32": "", "FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}
_CUDNN_SEARCH = ("EXHAUSTIVE", "HEURISTIC", "DEFAULT")
_ARENA = ("kNextPowerOfTwo", "kSameAsRequested")


def providers(config: Any, spec: InstanceSpec) -> list[Provider]:
    """The providers of an instance with their options, the preferred one first.

    Raises:
        InvalidRequest: an accelerator or a parameter is unknown (Triton's texts), or this onnxruntime does not have it.
    """
    gpu = spec.kind == "KIND_GPU"
    found: list[Provider] = []
    cuda: dict[str, str] = {}
    accelerators = config.optimization.execution_accelerators
    for each in accelerators.gpu_execution_accelerator if gpu else ():
        if each.name == "tensorrt":
            _require(TENSORRT, spec, "tensorrt", "install onnxruntime-gpu and TensorRT")
            found.append((TENSORRT, _tensorrt(each.parameters) | {"device_id": str(spec.device_id)}))
        elif each.name == "cuda":
            cuda |= _cuda_accelerator(each.parameters)
        else:
            raise _unknown(each.name)
    if gpu:
        if CUDA not in ort.get_available_providers():
            raise InvalidRequest(
                f"instance {spec.name} has kind KIND_GPU but this onnxruntime has no CUDA provider",
                hint="install onnxruntime-gpu instead of onnxruntime, or set kind: KIND_CPU",
            )
        found.append((CUDA, cuda | _cuda_parameters(config) | {"device_id": str(spec.device_id)}))
    for each in accelerators.cpu_execution_accelerator:
        if each.name != "openvino":
            raise _unknown(each.name)
        _require(OPENVINO, spec, "openvino", 'set backend: "openvino", which reads ONNX files too')
        found.append((OPENVINO, {"device_type": "CPU"}))
    return [*found, (CPU, {})]


def check_taken(session: Any, wanted: list[Provider], spec: InstanceSpec) -> str:
    """What runs an instance, in words: the providers and how many of the graph's nodes each took.

    Raises:
        InternalError: the session does without one that was asked for.
    """
    there = session.get_providers()
    missing = [name for name, _ in wanted if name not in there]
    if missing:
        what = f"GPU {spec.device_id}" if spec.kind == "KIND_GPU" else "the accelerator"
        raise InternalError(
            f"instance {spec.name}: onnxruntime could not use {what}: it left out {', '.join(missing)} and fell back "
            f"to {', '.join(there)}",
            hint="its log says which library it did not find; they must fit the version of CUDA that it was built for",
        )
    nodes = _assigned(session)
    if not nodes:
        return ", ".join(name.removesuffix("ExecutionProvider") for name, _ in wanted)
    return ", ".join(f"{name.removesuffix('ExecutionProvider')} ({count} nodes)" for name, count in nodes.items())


def on_cpu_instead(session: Any) -> tuple[int, int]:
    """How many nodes run on the CPU though another provider was asked for, of how many; 0, 0 where that is unknown."""
    nodes = _assigned(session)
    return (nodes.get(CPU, 0), sum(nodes.values())) if len(session.get_providers()) > 1 else (0, 0)


def _assigned(session: Any) -> Mapping[str, int]:
    look = getattr(session, "get_provider_graph_assignment_info", None)
    if look is None:
        return {}
    try:
        counts = Counter[str]()
        for part in look():
            counts[part.ep_name] += len(part.get_nodes())
        return counts
    except Exception:  # the session was not told to remember
        return {}


def _require(provider: str, spec: InstanceSpec, name: str, hint: str) -> None:
    if provider not in ort.get_available_providers():
        error = _unknown(name)
        error.hint = f"this onnxruntime has no {provider} (it has {', '.join(ort.get_available_providers())}): {hint}"
        raise error


def _unknown(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"unknown Execution Accelerator '{name}' is requested",
        hint="on a GPU there are tensorrt and cuda, on a CPU openvino",
    )


def _tensorrt(parameters: Mapping[str, str]) -> dict[str, str]:
    options = {}
    for key in sorted(parameters):
        value = parameters[key]
        if key == "precision_mode":
            if value not in _PRECISIONS:
                raise InvalidRequest(f"unsupported precision mode '{value}' is requested")
            if _PRECISIONS[value]:
                options[_PRECISIONS[value]] = "1"
        elif key in _RENAMED or key in _INTEGERS or key in _BOOLEANS or key in _TEXTS:
            if key in _INTEGERS or key == "max_workspace_size_bytes":
                _integer(value)
            elif key in _BOOLEANS or key == "int8_use_native_calibration_table":
                value = _boolean(value)
            options[_RENAMED.get(key, key)] = value
        else:
            raise InvalidRequest(f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator")
    return options


def _cuda_accelerator(parameters: Mapping[str, str]) -> dict[str, str]:
    options = {}
    for key in sorted(parameters):
        plain = key not in ("do_copy_in_default_stream", "use_ep_level_unified_stream")
        options[key] = parameters[key] if plain else _boolean(parameters[key])
    return options


def _cuda_parameters(config: Any) -> dict[str, str]:
    """The deprecated way, through ``parameters``; where it says nothing, Triton's defaults."""
    options = {
        "cudnn_conv_algo_search": _choice(config, "cudnn_conv_algo_search", _CUDNN_SEARCH),
        "arena_extend_strategy": _choice(config, "arena_extend_strategy", _ARENA),
        "do_copy_in_default_stream": text_parameter(config, "do_copy_in_default_stream") or "1",
    }
    limit = text_parameter(config, "gpu_mem_limit")
    return options | ({"gpu_mem_limit": limit} if limit else {})


def _choice(config: Any, key: str, choices: tuple[str, ...]) -> str:
    number = int_parameter(config, key) or 0
    if not 0 <= number < len(choices):
        raise InvalidRequest(f"unsupported {key} value '{number}' is requested")
    return choices[number]


def _integer(text: str) -> None:
    try:
        int(text)
    except ValueError:
        raise InvalidRequest(f"failed to convert '{text}' to integral number") from None


def _boolean(text: str) -> str:
    """ONNX Runtime takes 1 and 0, Triton true and false too."""
    if text.lower() not in ("true", "1", "false", "0"):
        raise InvalidRequest(f"failed to convert '{text}' to boolean value")
    return "1" if text.lower() in ("true", "1") else "0"
