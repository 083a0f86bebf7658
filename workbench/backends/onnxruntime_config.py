"""What a configuration says to ONNX Runtime: Triton's names, defaults and texts.

Source: onnxruntime_backend's ``ModelState``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnxruntime as ort

from workbench.backends.base import TensorSpec
from workbench.backends.parameters import bool_parameter, int_parameter, text_parameter
from workbench.errors import InvalidRequest

_ORT_TYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
    "tensor(bfloat16)": "BF16",
}


def tensor_specs(nodes: Sequence[Any]) -> tuple[TensorSpec, ...]:
    """Inputs or outputs of a session as the engine describes tensors.

    Raises:
        InvalidRequest: one of them is no tensor (a sequence or a map).
    """
    specs = []
    for node in nodes:
        if not node.type.startswith("tensor("):
            kind = {"seq": "ONNX_TYPE_SEQUENCE", "map": "ONNX_TYPE_MAP", "opt": "ONNX_TYPE_UNKNOWN"}.get(node.type[:3])
            raise InvalidRequest(
                f"Unsupported ONNX Type '{kind or 'ONNX_TYPE_UNKNOWN'}' for I/O '{node.name}', "
                "expected 'ONNX_TYPE_TENSOR'."
            )
        dims = tuple(dim if isinstance(dim, int) else -1 for dim in node.shape)
        specs.append(TensorSpec(node.name, _ORT_TYPES.get(node.type, ""), dims))
    return tuple(specs)


def own_thread_count(config: Any) -> int:
    """``intra_op_thread_count``; 0 leaves the number of threads, and their cores, to ONNX Runtime."""
    return int_parameter(config, "intra_op_thread_count") or 0


def session_options(config: Any) -> ort.SessionOptions:
    """Session options with Triton's defaults (all optimisations, sequential, ONNX Runtime's own thread counts).

    ``parameters`` read: ``execution_mode``, ``intra_op_thread_count``, ``inter_op_thread_count``, ``enable_mem_arena``,
    ``enable_mem_pattern``, and every ``session.*`` entry.

    Raises:
        InvalidRequest: a parameter cannot be read.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3
    levels = {
        -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    }
    options.graph_optimization_level = levels.get(
        config.optimization.graph.level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    )
    mode = int_parameter(config, "execution_mode") or 0
    if mode not in (0, 1):
        raise InvalidRequest(
            f"Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got {mode} ."
        )
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if mode else ort.ExecutionMode.ORT_SEQUENTIAL
    if (threads := own_thread_count(config)) > 0:
        options.intra_op_num_threads = threads
    if (threads := int_parameter(config, "inter_op_thread_count") or 0) > 0:
        options.inter_op_num_threads = threads
    if (arena := bool_parameter(config, "enable_mem_arena")) is not None:
        options.enable_cpu_mem_arena = arena
    if (pattern := bool_parameter(config, "enable_mem_pattern")) is not None:
        options.enable_mem_pattern = pattern
    for key in sorted(config.parameters):
        if key.startswith("session."):
            options.add_session_config_entry(key, config.parameters[key].string_value)
    return options


def run_options(config: Any) -> ort.RunOptions | None:
    """What a configuration says of each run: ``memory.enable_memory_arena_shrinkage`` (``cpu:0``, say); else None."""
    value = text_parameter(config, "memory.enable_memory_arena_shrinkage")
    if not value:
        return None
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", value)
    return options
