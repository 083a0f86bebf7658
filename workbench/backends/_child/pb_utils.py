"""Makes the module ``triton_python_backend_utils``: one for each model, bound to how that model reaches its server."""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from workbench.backends._child import dtypes, requests, tensors
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
    for name, dtype in TRITON_STRING_TO_NUMPY.items()
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
        return 13
    try:
        name = dtypes.V2.get(np.dtype(data_type))
    except TypeError:
        return None
    return None if name is None else dtypes.TRITON_NUMBER[name]


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


class LogLevel:
    """The levels of ``Logger.log``."""

    INFO, WARNING, ERROR, VERBOSE = "info", "warning", "error", "verbose"


def _logger(runtime: requests.Runtime) -> type:
    levels = (LogLevel.INFO, LogLevel.WARNING, LogLevel.ERROR, LogLevel.VERBOSE)

    def log(message: Any, level: Any = LogLevel.INFO) -> None:
        if not isinstance(message, str) or level not in levels:
            signature = "(message: str, level: c_python_backend_utils.Logger.LogLevel = <LogLevel.INFO: 0>) -> None"
            raise tensors.incompatible("log", signature, (message, level), {})
        runtime.log(level, message)

    names = {
        "LogLevel": LogLevel,
        "INFO": LogLevel.INFO,
        "WARNING": LogLevel.WARNING,
        "ERROR": LogLevel.ERROR,
        "VERBOSE": LogLevel.VERBOSE,
        "log": staticmethod(log),
        "log_info": staticmethod(lambda message: log(message, LogLevel.INFO)),
        "log_warn": staticmethod(lambda message: log(message, LogLevel.WARNING)),
        "log_error": staticmethod(lambda message: log(message, LogLevel.ERROR)),
        "log_verbose": staticmethod(lambda message: log(message, LogLevel.VERBOSE)),
        "__doc__": "Writes to the server's log.",
    }
    return type("Logger", (), names)


def build(runtime: requests.Runtime, model_dir: str) -> types.ModuleType:
    """The module for one model. Its ``InferenceRequest`` runs nested requests through ``runtime``; see ``identify``."""
    module = types.ModuleType(NAME, "What a Python model talks to Triton with.")
    bound = type("InferenceRequest", (requests.InferenceRequest,), {"_runtime": runtime, "__module__": tensors.MODULE})
    names: dict[str, Any] = {
        "InferenceRequest": bound,
        "InferenceResponse": tensors.InferenceResponse,
        "InferenceResponseSender": requests.InferenceResponseSender,
        "Logger": _logger(runtime),
        "ModelConfig": ModelConfig,
        "PreferredMemory": requests.PreferredMemory,
        "Tensor": tensors.Tensor,
        "TritonError": tensors.TritonError,
        "TritonModelException": tensors.TritonModelException,
        "TRITONSERVER_MEMORY_CPU": requests.MemoryType.TRITONSERVER_MEMORY_CPU,
        "TRITONSERVER_MEMORY_GPU": requests.MemoryType.TRITONSERVER_MEMORY_GPU,
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START": requests.FLAG_SEQUENCE_START,
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END": requests.FLAG_SEQUENCE_END,
        "TRITONSERVER_REQUEST_RELEASE_ALL": requests.RELEASE_ALL,
        "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE": requests.RELEASE_RESCHEDULE,
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL": requests.FINAL,
        "TRITON_STRING_TO_NUMPY": TRITON_STRING_TO_NUMPY,
        "np": np,
        "get_model_dir": lambda: model_dir,
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
