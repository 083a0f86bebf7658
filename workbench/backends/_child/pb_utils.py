"""Makes the module ``triton_python_backend_utils``: one for each model, bound to how that model reaches its server."""

from __future__ import annotations

import json
import struct
import sys
import types
from typing import Any

import numpy as np

from workbench.backends._child import dtypes, enums, loading, metrics, replies, requests, tensors
from workbench.backends._child.enums import LogLevel, MemoryType
from workbench.backends._child.model_config import ModelConfig

NAME = "triton_python_backend_utils"

TRITON_STRING_TO_NUMPY = {
    "TYPE_BOOL": bool,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}

_NUMBER_TO_NUMPY: dict[int, Any] = {
    dtypes.TRITON_NUMBER[name.replace("TYPE_", "").replace("STRING", "BYTES")]: dtype
    for name, dtype in {**TRITON_STRING_TO_NUMPY, "TYPE_BOOL": np.bool_}.items()
}


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of a configuration's data type (``TYPE_FP32``)."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type of Triton's number for a data type, None where there is none."""
    return _NUMBER_TO_NUMPY.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """Triton's number for a numpy type, None where there is none."""
    if data_type is np.bytes_:
        return dtypes.TRITON_NUMBER["BYTES"]
    for number, known in _NUMBER_TO_NUMPY.items():
        if data_type == known:
            return number
    return None


def serialize_byte_tensor(input_tensor: Any) -> Any:
    """The byte form of a BYTES tensor; None for other types, ``()`` for an empty one."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.type not in (np.object_, np.bytes_):
        return None
    return dtypes.serialize(input_tensor)


def deserialize_bytes_tensor(encoded_tensor: Any) -> Any:
    """A flat object array of ``bytes`` from the byte form of a BYTES tensor."""
    return dtypes.deserialize(encoded_tensor, 0, len(encoded_tensor))


def get_input_tensor_by_name(inference_request: Any, name: str) -> Any:
    """The input tensor of a request, None where it has no such input."""
    for tensor in inference_request._inputs:
        if tensor._name == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: Any, name: str) -> Any:
    """The output tensor of a response, None where it has no such output."""
    for tensor in inference_response._tensors:
        if tensor._name == name:
            return tensor
    return None


def get_input_config_by_name(model_config: Any, name: str) -> Any:
    """An input's entry in the configuration, None where it has none."""
    return _by_name(model_config.get("input", ()), name)


def get_output_config_by_name(model_config: Any, name: str) -> Any:
    """An output's entry in the configuration, None where it has none."""
    return _by_name(model_config.get("output", ()), name)


def using_decoupled_model_transaction_policy(model_config: Any) -> bool:
    """Whether the configuration says decoupled."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def _by_name(entries: Any, name: str) -> Any:
    for entry in entries:
        if entry["name"] == name:
            return entry
    return None


def _logger(runtime: requests.Runtime) -> type:
    kind = f"{enums.MODULE}.Logger.LogLevel"

    def log(*args: Any, **kwargs: Any) -> None:
        """Writes a line to the server's log, at the level INFO where none is named."""
        signature = f"(message: str, level: {kind} = <LogLevel.INFO: 0>) -> None"
        given = tensors.arguments("log", signature, {"message": ..., "level": LogLevel.INFO}, args, kwargs)
        if not isinstance(given["message"], str) or not isinstance(given["level"], LogLevel):
            raise tensors.incompatible("log", signature, args, kwargs)
        runtime.lines.log(given["level"].name.lower(), given["message"], sys._getframe(1))

    def at(name: str, level: LogLevel) -> Any:
        def function(*args: Any, **kwargs: Any) -> None:
            signature = "(message: str) -> None"
            given = tensors.arguments(name, signature, {"message": ...}, args, kwargs)
            if not isinstance(given["message"], str):
                raise tensors.incompatible(name, signature, args, kwargs)
            runtime.lines.log(level.name.lower(), given["message"], sys._getframe(1))

        function.__name__ = name
        function.__doc__ = f"Writes a line to the server's log at the level {level.name}."
        return staticmethod(function)

    def refuse(cls: Any, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{enums.MODULE}.Logger: No constructor defined!")

    names = {
        "LogLevel": LogLevel,
        **{level.name: level for level in LogLevel},
        "log": staticmethod(log),
        "log_info": at("log_info", LogLevel.INFO),
        "log_warn": at("log_warn", LogLevel.WARNING),
        "log_error": at("log_error", LogLevel.ERROR),
        "log_verbose": at("log_verbose", LogLevel.VERBOSE),
        "__new__": refuse,
        "__doc__": "Writes to the server's log.",
        "__module__": enums.MODULE,
    }
    return type("Logger", (), names)


def importable(module: types.ModuleType) -> dict[str, types.ModuleType]:
    """The module under its name, and under that of Triton's C++ module, which some models import their types from."""
    inner = types.ModuleType(enums.MODULE, "The C++ part of Triton's module.")
    for name in _INNER:
        setattr(inner, name, getattr(module, name))
    for kind in (
        enums.MemoryType,
        enums.MetricKind,
        metrics.Metric,
        replies.InferenceResponseSender,
        requests.InferenceTrace,
        requests.ResponseIterator,
    ):
        setattr(inner, kind.__name__, kind)
    return {NAME: module, enums.MODULE: inner}


_INNER = (
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "MetricFamily",
    "PreferredMemory",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "is_model_ready",
    "load_model",
    "unload_model",
)


def build(runtime: requests.Runtime, model_dir: str) -> types.ModuleType:
    """The module for one model. Its ``InferenceRequest`` runs nested requests through ``runtime``; see ``identify``."""
    module = types.ModuleType(NAME, "What a Python model talks to Triton with.")
    bound = type("InferenceRequest", (requests.InferenceRequest,), {"_runtime": runtime, "__module__": enums.MODULE})
    names: dict[str, Any] = {
        "InferenceRequest": bound,
        "InferenceResponse": tensors.InferenceResponse,
        "Logger": _logger(runtime),
        "MetricFamily": metrics.bind(runtime),
        "ModelConfig": ModelConfig,
        "PreferredMemory": requests.PreferredMemory,
        "Tensor": tensors.Tensor,
        "TritonError": tensors.TritonError,
        "TritonModelException": tensors.TritonModelException,
        "TRITONSERVER_MEMORY_CPU": MemoryType.TRITONSERVER_MEMORY_CPU,
        "TRITONSERVER_MEMORY_GPU": MemoryType.TRITONSERVER_MEMORY_GPU,
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START": requests.FLAG_SEQUENCE_START,
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END": requests.FLAG_SEQUENCE_END,
        "TRITONSERVER_REQUEST_RELEASE_ALL": requests.RELEASE_ALL,
        "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE": requests.RELEASE_RESCHEDULE,
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL": replies.FINAL,
        "TRITON_STRING_TO_NUMPY": TRITON_STRING_TO_NUMPY,
        "json": json,
        "np": np,
        "struct": struct,
        "get_model_dir": lambda: model_dir,
        **loading.bind(runtime),
    }
    for function in (
        triton_string_to_numpy,
        triton_to_numpy_type,
        numpy_to_triton_type,
        serialize_byte_tensor,
        deserialize_bytes_tensor,
        get_input_tensor_by_name,
        get_output_tensor_by_name,
        get_input_config_by_name,
        get_output_config_by_name,
        using_decoupled_model_transaction_policy,
    ):
        names[function.__name__] = function
    module.__dict__.update(names)
    return module


def identify(module: Any, name: str, version: int, outputs: tuple[str, ...]) -> Any:
    """Tells a module's ``InferenceRequest`` which model receives such requests, and gives that class."""
    bound = module.InferenceRequest
    bound._model_name, bound._model_version, bound._outputs = name, version, outputs
    return bound


def allow_nested(module: Any, allowed: bool) -> None:
    """Whether the model may make nested requests: between ``initialize`` and ``finalize``, as in Triton."""
    module.InferenceRequest._may_ask = allowed
