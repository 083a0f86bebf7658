"""``Tensor``, ``TritonError`` and ``InferenceResponse`` of ``triton_python_backend_utils``.

Texts are those of Triton's python_backend, recorded from release 24.10 (Triton 2.51).
"""

from __future__ import annotations

import enum
import json
from typing import Any

import numpy as np

from workbench.backends._child.dtypes import TRITON_NUMBER, v2_name
from workbench.backends._child.wire import unpack

MODULE = "c_python_backend_utils"
"""Where Triton's classes say that they come from: it stands in the texts that name their types."""


class TritonModelException(Exception):
    """What the functions of this module raise, and what a model may raise."""


class ErrorCode(enum.IntEnum):
    """The codes that a ``TritonError`` may carry (TRITONSERVER_Error_Code)."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


def incompatible(function: str, signature: str, args: Any, kwargs: Any) -> TypeError:
    """The error of a call with arguments of the wrong type, in the words of Triton's C++ module."""
    shown = ", ".join(repr(value) for value in args)
    if kwargs:
        named = ", ".join(f"{key}={value!r}" for key, value in kwargs.items())
        shown = f"{shown}; kwargs: {named}" if args else f"kwargs: {named}"
    return TypeError(
        f"{function}(): incompatible {'constructor' if function == '__init__' else 'function'} arguments. "
        f"The following argument types are supported:\n    1. {signature}\n\nInvoked with: {shown}"
    )


def check_parameters(parameters: Any) -> str:
    """The JSON text of a dict of parameters, "" for none.

    Raises:
        TritonModelException: a key or a value of the wrong type.
    """
    if parameters is None:
        return ""
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect parameters to be of type dict, found type {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, float, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return json.dumps(parameters) if parameters else ""


class TritonError:
    """An error to answer a request with. Not an exception: a model raises ``TritonModelException``."""

    __module__ = MODULE
    __slots__ = ("_code", "_message")

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message: Any, code: Any = ErrorCode.INTERNAL) -> None:
        if not isinstance(message, str) or not isinstance(code, ErrorCode):
            raise incompatible(
                "__init__",
                "c_python_backend_utils.TritonError(message: str, code: c_python_backend_utils.TritonError.__ErrorCode"
                " = <__ErrorCode.INTERNAL: 1>)",
                (message, code),
                {},
            )
        self._message = message
        self._code = code

    def code(self) -> ErrorCode:
        """The code."""
        return self._code

    def message(self) -> str:
        """The text that the client gets."""
        return self._message

    def __repr__(self) -> str:
        return f"<TritonError {self._code.name}: {self._message}>"


class Tensor:
    """A named tensor: ``Tensor(name, numpy_array)``.

    Strings are object arrays of ``bytes`` (or ``str``, sent as UTF-8); the array is not copied.
    """

    __module__ = MODULE
    __slots__ = ("__weakref__", "_array", "_datatype", "_name", "_shape", "_source")
    _name: str
    _datatype: str
    _shape: Any
    _array: Any
    _source: Any

    def __init__(self, name: Any = None, array: Any = None, /, **kwargs: Any) -> None:
        if kwargs or not isinstance(name, str) or not isinstance(array, np.ndarray):
            signature = "c_python_backend_utils.Tensor(arg0: str, arg1: numpy.ndarray)"
            raise incompatible("__init__", signature, () if kwargs else (name, array), kwargs)
        datatype = v2_name(array.dtype)
        if datatype is None:
            raise TritonModelException("NumPy dtype is not supported.")
        self._name = name
        self._datatype = datatype
        self._shape = array.shape
        self._array = array
        self._source = None

    @classmethod
    def wrap(cls, name: str, datatype: str, shape: Any, array: Any, source: Any = None) -> Tensor:
        """A tensor around an array, or around (buffer, offset, bytes), which becomes one when first asked for."""
        tensor = object.__new__(cls)
        tensor._name = name
        tensor._datatype = datatype
        tensor._shape = shape
        tensor._array = array
        tensor._source = source
        return tensor

    def name(self) -> str:
        """The tensor's name."""
        return self._name

    def shape(self) -> list[int]:
        """The shape, the batch dimension included."""
        return list(self._shape)

    def triton_dtype(self) -> int:
        """The data type as Triton's number (``triton_to_numpy_type`` reads it)."""
        return TRITON_NUMBER[self._datatype]

    def is_cpu(self) -> bool:
        """Always true here: tensors of a Python model lie in host memory."""
        return True

    def as_numpy(self) -> Any:
        """The array. It may be written to; BYTES are an object array of ``bytes``."""
        array = self._array
        if array is None:
            buffer, offset, size = self._source
            array = unpack(self._datatype, self._shape, buffer, offset, size)
            self._array = array
            self._source = None
        elif self._source is not None:  # thread mode: an array that belongs to the request
            if not array.flags.writeable:
                array = self._array = array.copy()
            self._source = None
        return array

    def __repr__(self) -> str:
        return f"<Tensor {self._name} {self._datatype} {list(self._shape)}>"


_RESPONSE = (
    "c_python_backend_utils.InferenceResponse(output_tensors: List[c_python_backend_utils.Tensor] = [], "
    "error: c_python_backend_utils.TritonError = None, parameters: object = None)"
)


class InferenceResponse:
    """An answer: output tensors, or an error (which wins). ``parameters`` go to the client with it."""

    __module__ = MODULE
    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(self, output_tensors: Any = (), error: TritonError | None = None, parameters: Any = None) -> None:
        if not isinstance(output_tensors, (list, tuple)):
            raise incompatible("__init__", _RESPONSE, (), {"output_tensors": output_tensors})
        tensors = list(output_tensors)
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise incompatible("__init__", _RESPONSE, (), {"output_tensors": output_tensors})
        if error is not None and not isinstance(error, TritonError):
            raise incompatible("__init__", _RESPONSE, (output_tensors,), {"error": error})
        self._tensors = tensors
        self._error = error
        self._parameters = "" if parameters is None else check_parameters(parameters)

    def output_tensors(self) -> list[Tensor]:
        """The output tensors."""
        return self._tensors

    def has_error(self) -> bool:
        """Whether this is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error, or None."""
        return self._error

    def parameters(self) -> str:
        """The parameters as JSON, "{}" for none."""
        return self._parameters or "{}"
