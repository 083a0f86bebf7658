"""What a configuration says to ONNX Runtime, and whether it fits the model file: Triton's names, defaults and texts.

Source: onnxruntime_backend's ``ModelState``, ``ValidateInputs``, ``ValidateOutputs`` and ``CompareDimsSupported``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnxruntime as ort

from workbench.backends.base import TensorSpec
from workbench.errors import InternalError, InvalidRequest
from workbench.protocol import datatypes

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

_TRUE, _FALSE = ("true", "1"), ("false", "0")


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


def _parameter(config: Any, key: str) -> str | None:
    return config.parameters[key].string_value if key in config.parameters else None


def _int_parameter(config: Any, key: str) -> int:
    text = _parameter(config, key)
    if text is None:
        return 0
    try:
        return int(text)
    except ValueError:
        raise InvalidRequest(f"failed to convert '{text}' to integral number") from None


def _bool_parameter(config: Any, key: str) -> bool | None:
    text = _parameter(config, key)
    if text is None:
        return None
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise InvalidRequest(f"failed to convert '{text}' to boolean value")


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
    mode = _int_parameter(config, "execution_mode")
    if mode not in (0, 1):
        raise InvalidRequest(
            f"Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got {mode} ."
        )
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if mode else ort.ExecutionMode.ORT_SEQUENTIAL
    if (threads := _int_parameter(config, "intra_op_thread_count")) > 0:
        options.intra_op_num_threads = threads
    if (threads := _int_parameter(config, "inter_op_thread_count")) > 0:
        options.inter_op_num_threads = threads
    if (arena := _bool_parameter(config, "enable_mem_arena")) is not None:
        options.enable_cpu_mem_arena = arena
    if (pattern := _bool_parameter(config, "enable_mem_pattern")) is not None:
        options.enable_mem_pattern = pattern
    for key in sorted(config.parameters):
        if key.startswith("session."):
            options.add_session_config_entry(key, config.parameters[key].string_value)
    _refuse_accelerators(config)
    return options


def _refuse_accelerators(config: Any) -> None:
    for accelerator in config.optimization.execution_accelerators.cpu_execution_accelerator:
        raise InvalidRequest(f"unknown Execution Accelerator '{accelerator.name}' is requested")


def check_fit(
    config: Any, inputs: Sequence[TensorSpec], overridable: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> None:
    """Compares the configuration with the model file.

    ``overridable`` are initializers that may be given as inputs.

    Raises:
        InvalidRequest: they do not fit (texts of 10.43 and of ``CompareDimsSupported``).
    """
    sequence = config.sequence_batching
    made = [item.name for item in sequence.control_input] + [item.input_name for item in sequence.state]
    expected = len(config.input) + len(made) + len(config.batch_input)
    names = {spec.name for spec in overridable}
    required = sum(item.name not in names for item in config.input) + expected - len(config.input)
    if len(inputs) != required:
        raise InvalidRequest(
            f"unable to load model '{config.name}', configuration expects {required} inputs, "
            f"model provides {len(inputs)}"
        )
    by_name = {spec.name: spec for spec in (*overridable, *inputs)}
    for item in sequence.control_input:
        if item.name not in by_name:
            raise InvalidRequest(
                f"configuration specified sequence control '{item.name}', but model does not provide that input"
            )
    for state in sequence.state:
        _find(state.input_name, by_name, "input")
    for item in config.input:
        if item.optional and config.max_batch_size != 0:
            raise InvalidRequest(
                f"unable to load model '{config.name}', optional input '{item.name}' is not supported for models that "
                "support batching"
            )
        spec = _find(item.name, by_name, "input")
        _check_datatype(config, item, spec, "input")
        if item.allow_ragged_batch:
            _check_ragged(config, item, spec)
        else:
            _check_dims(config, item, spec, exact=False)
    by_name = {spec.name: spec for spec in outputs}
    for state in sequence.state:
        _find(state.output_name, by_name, "output")
    scattered = {name for item in config.batch_output for name in item.target_name}
    for item in config.output:
        spec = _find(item.name, by_name, "output")
        _check_datatype(config, item, spec, "output")
        if item.name not in scattered:  # Triton compares no shapes there: the batch's output may be flat
            _check_dims(config, item, spec, exact=True)


def _find(name: str, by_name: Mapping[str, TensorSpec], kind: str) -> TensorSpec:
    spec = by_name.get(name)
    if spec is None:
        raise InvalidRequest(f"unexpected inference {kind} '{name}', allowed {kind}s are: {', '.join(sorted(by_name))}")
    return spec


def config_datatype(item: Any) -> str:
    """The ``TYPE_...`` name of a configured tensor."""
    field = item.DESCRIPTOR.fields_by_name["data_type"]
    return str(field.enum_type.values_by_number[item.data_type].name)


def _check_datatype(config: Any, item: Any, spec: TensorSpec, kind: str) -> None:
    wanted = config_datatype(item)
    row = datatypes.BY_CONFIG.get(wanted)
    if row is None:
        raise InternalError(f"unsupported datatype {wanted} for {kind} '{item.name}' for model '{config.name}'")
    if row.wire != spec.datatype:
        raise InvalidRequest(
            f"unable to load model '{config.name}', configuration expects datatype {wanted} for {kind} '{item.name}', "
            f"model provides TYPE_{spec.datatype or 'INVALID'}"
        )


def _check_ragged(config: Any, item: Any, spec: TensorSpec) -> None:
    if item.optional:
        raise InvalidRequest(
            f"unable to load model '{config.name}', configuration expects model provides input with shape [-1] for "
            f"ragged input '{item.name}', which is not supported for optional input"
        )
    if spec.dims != (-1,):
        raise InvalidRequest(
            f"unable to load model '{config.name}', configuration expects model provides input with shape [-1]  for "
            f"ragged input '{item.name}', model provides {_shape(spec.dims)}"
        )


def _check_dims(config: Any, item: Any, spec: TensorSpec, *, exact: bool) -> None:
    dims = tuple(item.reshape.shape) if item.HasField("reshape") else tuple(item.dims)
    if not spec.dims:
        if any(dim != 1 for dim in dims):
            raise InvalidRequest(
                f"unable to load model '{config.name}', scalar tensor '{item.name}', should only provide 1 in the "
                "model configuration when the model doesn't support batching. Model configuration provided: "
                f"{_shape(dims)}."
            )
        return
    head = f"model '{config.name}', tensor '{item.name}': "
    batching = config.max_batch_size > 0
    if batching and spec.dims[0] != -1:
        raise InvalidRequest(
            f"{head}for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {_shape(spec.dims)}"
        )
    full = (-1, *dims) if batching else dims
    fits = len(full) == len(spec.dims) and all(
        model == mine for model, mine in zip(spec.dims, full, strict=True) if exact or model != -1
    )
    if fits:
        return
    text = (
        f"{head}the model expects {len(spec.dims)} dimensions (shape {_shape(spec.dims)}) but the model configuration "
    )
    if batching:
        text += (
            f"specifies {len(full)} dimensions (an initial batch dimension because max_batch_size > 0 followed by the "
            f"explicit tensor shape, making complete shape {_shape(full)})"
        )
    else:
        text += f"specifies {len(full)} dimensions (shape {_shape(full)})"
    raise InvalidRequest(text)


def _shape(dims: Sequence[int]) -> str:
    return "[" + ",".join(map(str, dims)) + "]"
