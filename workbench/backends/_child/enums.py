"""The enumerations of ``triton_python_backend_utils``: numbers with names, shown as Triton's C++ module shows them."""

from __future__ import annotations

import enum

MODULE = "c_python_backend_utils"
"""Where Triton's classes say that they come from: it stands in the texts that name their types."""


class TritonEnum(enum.IntEnum):
    """Numbers whose ``str`` is ``Class.NAME`` in every Python."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class ErrorCode(TritonEnum):
    """The codes that a ``TritonError`` may carry (TRITONSERVER_Error_Code)."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class MemoryType(TritonEnum):
    """Where a tensor should lie (python_backend's own numbers, not TRITONSERVER_MemoryType)."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class LogLevel(TritonEnum):
    """The levels of ``Logger.log``."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


class MetricKind(TritonEnum):
    """The kinds of a ``MetricFamily``."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


for _kind in (ErrorCode, MemoryType, LogLevel, MetricKind):
    _kind.__module__ = MODULE
ErrorCode.__name__, ErrorCode.__qualname__ = "__ErrorCode", "TritonError.__ErrorCode"
LogLevel.__qualname__ = "Logger.LogLevel"
