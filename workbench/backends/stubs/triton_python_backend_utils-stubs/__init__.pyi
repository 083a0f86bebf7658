"""What a Triton Python model (model.py) talks to its server with; for editors and type checkers.

The module itself exists only inside a model: here and in Triton the server makes it when it loads the model.
"""

import json as json
import struct as struct
from asyncio import Future
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Literal, TypedDict, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

class _MemoryType(Enum):
    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1

class _MetricKind(Enum):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

class _ErrorCode(Enum):
    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

class _TensorConfig(TypedDict, total=False):
    name: str
    data_type: str
    dims: list[int]
    optional: bool

TRITONSERVER_MEMORY_CPU: Final = _MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU: Final = _MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: Final = 2
TRITONSERVER_REQUEST_RELEASE_ALL: Final = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: Final = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL: Final = 1
TRITON_STRING_TO_NUMPY: dict[str, Any]

class TritonModelException(Exception):
    """What the functions of this module raise, and what a model may raise."""

class TritonError:
    """An error to answer a request with. Not an exception: a model raises ``TritonModelException``."""

    UNKNOWN: Final = _ErrorCode.UNKNOWN
    INTERNAL: Final = _ErrorCode.INTERNAL
    NOT_FOUND: Final = _ErrorCode.NOT_FOUND
    INVALID_ARG: Final = _ErrorCode.INVALID_ARG
    UNAVAILABLE: Final = _ErrorCode.UNAVAILABLE
    UNSUPPORTED: Final = _ErrorCode.UNSUPPORTED
    ALREADY_EXISTS: Final = _ErrorCode.ALREADY_EXISTS
    CANCELLED: Final = _ErrorCode.CANCELLED

    def __init__(self, message: str, code: _ErrorCode = ...) -> None: ...
    def code(self) -> _ErrorCode:
        """The code."""

    def message(self) -> str:
        """The text that the client gets."""

class Tensor:
    """A named tensor. Strings are object arrays of ``bytes`` (or ``str``, sent as UTF-8)."""

    def __init__(self, name: str, array: NDArray[Any], /) -> None: ...
    def name(self) -> str:
        """The tensor's name."""

    def shape(self) -> list[int]:
        """The shape, the batch dimension included."""

    def triton_dtype(self) -> int:
        """The data type as Triton's number (``triton_to_numpy_type`` reads it). Triton 2.51 raises a TypeError."""

    def is_cpu(self) -> bool:
        """Whether the tensor lies in host memory."""

    def as_numpy(self) -> NDArray[Any]:
        """The array. BYTES are an object array of ``bytes``."""

    def to_dlpack(self) -> Any:
        """A DLPack capsule over the tensor's memory, for a framework's ``from_dlpack``."""

    @staticmethod
    def from_dlpack(name: str, tensor: Any, /) -> Tensor:
        """A tensor over the memory of a DLPack capsule, or of any framework's tensor."""

    def __dlpack__(self, stream: Any = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class InferenceResponse:
    """An answer: output tensors, or an error (which wins). ``parameters`` (Triton 25.01 and later) go with it."""

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = ...,
        error: TritonError | None = None,
        parameters: Mapping[str, str | int | bool] | None = None,
    ) -> None: ...
    def output_tensors(self) -> list[Tensor]:
        """The output tensors."""

    def has_error(self) -> bool:
        """Whether this is an error."""

    def error(self) -> TritonError | None:
        """The error, or None."""

    def parameters(self) -> str:
        """The parameters as JSON, "{}" for none."""

class PreferredMemory:
    """Where a nested request would like its outputs."""

    def __init__(self, preferred_memory_type: _MemoryType, preferred_device_id: int = 0) -> None: ...

class _InferenceTrace:
    def get_context(self) -> str | None:
        """The propagated context of an OpenTelemetry trace as JSON, None where there is none."""

class _InferenceResponseSender:
    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Sends a response, the last one with ``flags=TRITONSERVER_RESPONSE_COMPLETE_FINAL``."""

    def is_cancelled(self) -> bool:
        """Whether the client has gone away."""

class _ResponseIterator(Iterator[InferenceResponse]):
    def __next__(self) -> InferenceResponse: ...
    def cancel(self) -> None:
        """Stops the request; no further responses come. (Triton 25.04 and later.)"""

class InferenceRequest:
    """A request: one that the model got, or one that it makes for another model (BLS)."""

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = ...,
        requested_output_names: Sequence[str] = ...,
        model_name: str = ...,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = ...,
        trace: _InferenceTrace = ...,
        parameters: Mapping[str, str | int | bool] | None = None,
    ) -> None: ...
    def request_id(self) -> str:
        """The client's id."""

    def correlation_id(self) -> int | str:
        """The sequence's id; 0 for none."""

    def inputs(self) -> list[Tensor]:
        """The input tensors."""

    def requested_output_names(self) -> set[str]:
        """The outputs that the client asks for; all of the configuration's where it names none."""

    def flags(self) -> int:
        """TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END."""

    def set_flags(self, flags: int, /) -> None:
        """Sets the flags of a request to be sent."""

    def set_release_flags(self, flags: int, /) -> None:
        """What becomes of the request after ``execute``: TRITONSERVER_REQUEST_RELEASE_ALL, or _RESCHEDULE."""

    def timeout(self) -> int:
        """The request's timeout in microseconds, 0 for none."""

    def parameters(self) -> str:
        """The request's parameters as JSON."""

    def trace(self) -> _InferenceTrace:
        """The trace that the request belongs to."""

    def is_cancelled(self) -> bool:
        """Whether the client has gone away."""

    def get_response_sender(self) -> _InferenceResponseSender:
        """The sender for this request's responses."""

    @overload
    def exec(self, decoupled: Literal[False] = False) -> InferenceResponse: ...
    @overload
    def exec(self, decoupled: Literal[True]) -> _ResponseIterator: ...
    @overload
    def async_exec(self, decoupled: Literal[False] = False) -> Future[InferenceResponse]: ...
    @overload
    def async_exec(self, decoupled: Literal[True]) -> Future[_ResponseIterator]: ...

class Logger:
    """Writes to the server's log."""

    class LogLevel(Enum):
        """The levels of ``log``."""

        INFO = 0
        WARNING = 1
        ERROR = 2
        VERBOSE = 3

    INFO: Final = LogLevel.INFO
    WARNING: Final = LogLevel.WARNING
    ERROR: Final = LogLevel.ERROR
    VERBOSE: Final = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: LogLevel = ...) -> None:
        """Writes a line, at the level INFO where none is named."""

    @staticmethod
    def log_info(message: str) -> None:
        """Writes a line at the level INFO."""

    @staticmethod
    def log_warn(message: str) -> None:
        """Writes a line at the level WARNING."""

    @staticmethod
    def log_error(message: str) -> None:
        """Writes a line at the level ERROR."""

    @staticmethod
    def log_verbose(message: str) -> None:
        """Writes a line at the level VERBOSE."""

class _Metric:
    def increment(self, value: float, /) -> None:
        """Adds to a counter (nothing negative) or a gauge."""

    def set(self, value: float, /) -> None:
        """Sets a gauge."""

    def observe(self, value: float, /) -> None:
        """Adds an observation to a histogram."""

    def value(self) -> float:
        """What a counter or gauge stands at."""

class MetricFamily:
    """Metrics of one name on the server's ``/metrics``. They go when it goes."""

    COUNTER: Final = _MetricKind.COUNTER
    GAUGE: Final = _MetricKind.GAUGE
    HISTOGRAM: Final = _MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: _MetricKind) -> None: ...
    def Metric(self, labels: dict[str, str] | None = None, buckets: list[float] | None = None) -> _Metric:
        """A metric of this family; ``buckets`` are a histogram's upper bounds, rising."""

class ModelConfig:
    """A model configuration under completion: what ``auto_complete_config`` gets and gives back."""

    def __init__(self, model_config: str) -> None: ...
    def as_dict(self) -> dict[str, Any]:
        """The configuration as Triton's JSON."""

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Sets ``max_batch_size``; ValueError where the file asks for more."""

    def set_dynamic_batching(self) -> None:
        """Turns dynamic batching on, unless the file has settings for it."""

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, bool]) -> None:
        """Sets ``decoupled``."""

    def add_input(self, input: _TensorConfig) -> None:
        """Adds an input, or checks it against the file's."""

    def add_output(self, output: _TensorConfig) -> None:
        """Adds an output, or checks it against the file's."""

def get_model_dir() -> str:
    """The directory of the model's version."""

def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
    """Loads or reloads a model; ``config`` is JSON, ``files`` maps ``file:1/model.py`` to the file's bytes."""

def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Starts to unload a model; an unknown one is no error."""

def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a model is ready; the version is a str, "" for any. One that has an ``is_ready`` is asked."""

def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The input tensor of a request, None where it has no such input."""

def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The output tensor of a response, None where it has no such output."""

def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """An input's entry in the configuration, None where it has none."""

def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """An output's entry in the configuration, None where it has none."""

def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Whether the configuration says decoupled."""

def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of a configuration's data type (``TYPE_FP32``)."""

def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type of Triton's number for a data type, None where there is none."""

def numpy_to_triton_type(data_type: DTypeLike) -> int | None:
    """Triton's number for a numpy type, None where there is none."""

def serialize_byte_tensor(input_tensor: NDArray[np.object_]) -> bytes | tuple[()] | None:
    """The byte form of a BYTES tensor; None for other types, ``()`` for an empty one."""

def deserialize_bytes_tensor(encoded_tensor: bytes) -> NDArray[np.object_]:
    """A flat object array of ``bytes`` from the byte form of a BYTES tensor."""
