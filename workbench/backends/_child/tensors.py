"""``Tensor``, ``TritonError`` and ``InferenceResponse`` of ``triton_python_backend_utils``.

Texts are those of Triton's python_backend, recorded from release 24.10 (Triton 2.51).
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from workbench.backends._child import dlpack
from workbench.backends._child.dtypes import TRITON_NUMBER, v2_name
from workbench.backends._child.enums import MODULE, ErrorCode
from workbench.backends._child.wire import unpack


class TritonModelException(Exception):
    """What the functions of this module raise, and what a model may raise."""

    __module__ = MODULE


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


def arguments(function: str, signature: str, names: dict[str, Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by name, with their defaults (``...`` for none).

    Raises:
        TypeError: too many, unknown or missing ones, in the words of Triton's C++ module.
    """
    given = {**dict(zip(names, args)), **kwargs}  # noqa: B905 - Python 3.9
    out = {**names, **given}
    if len(given) != len(args) + len(kwargs) or len(out) > len(names) or ... in out.values():
        raise incompatible(function, signature, args, kwargs)
    return out


def check_parameters(parameters: Any) -> str:
    """The JSON text of a dict of parameters, "" for none.

    Raises:
        TritonModelException: a key or a value of the wrong type.
    """
    if parameters is None:
        return ""
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect N8pybind114dictE, got {type(parameters)}")  # Triton's C++ name of dict
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        signature = (
            "c_python_backend_utils.TritonError(message: str, code: c_python_backend_utils.TritonError.__ErrorCode"
            " = <__ErrorCode.INTERNAL: 1>)"
        )
        names = {"message": ..., "code": ErrorCode.INTERNAL}
        message, code = arguments("__init__", signature, names, args, kwargs).values()
        if not isinstance(message, str) or not isinstance(code, ErrorCode):
            raise incompatible("__init__", signature, args, kwargs)
        self._message: str = message
        self._code: ErrorCode = code

    def code(self) -> ErrorCode:
        """The code."""
        return self._code

    def message(self) -> str:
        """The text that the client gets."""
        return self._message

    def __repr__(self) -> str:
        return f"<TritonError {self._code.name}: {self._message}>"


setattr(TritonError, "__ErrorCode", ErrorCode)  # a plain assignment in the class would mangle the name

_NAMELESS = "Tensor name cannot be an empty string."


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

    def __init__(self, name: Any = ..., array: Any = ..., /, **kwargs: Any) -> None:
        if kwargs or not isinstance(name, str) or not isinstance(array, np.ndarray):
            signature = "c_python_backend_utils.Tensor(arg0: str, arg1: numpy.ndarray)"
            raise incompatible("__init__", signature, [each for each in (name, array) if each is not ...], kwargs)
        if not name:
            raise TritonModelException(_NAMELESS)
        datatype = v2_name(array.dtype)
        if datatype is None:
            raise TritonModelException("NumPy dtype is not supported.")
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        self._name = name
        self._datatype = datatype
        self._shape = array.shape
        self._array = array
        self._source = None

    @classmethod
    def _wrap(cls, name: str, datatype: str, shape: Any, array: Any, source: Any = None) -> Tensor:
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
            array = self._array = array.copy()  # whoever has sent it, other steps and the record of it have it too
            self._source = None
        return array

    def to_dlpack(self) -> Any:
        """A DLPack capsule over the tensor's memory, for a framework's ``from_dlpack``.

        Raises:
            TritonModelException: DLPack has no strings.
        """
        try:
            return dlpack.export(self.as_numpy(), self._datatype)
        except dlpack.DLPackError as error:
            raise TritonModelException(str(error)) from None

    def __dlpack__(self, stream: Any = None) -> Any:
        """``to_dlpack``, as the array API calls it; host memory knows no stream."""
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's number of the device, and which one: host memory."""
        return dlpack.CPU, 0

    @staticmethod
    def from_dlpack(*args: Any) -> Tensor:
        """``Tensor.from_dlpack(name, thing)``: a tensor over the memory of a DLPack capsule, or of any framework's.

        Raises:
            TritonModelException: it lies on a device, not in C order, or its type is none of Triton's.
        """
        if len(args) != 2 or not isinstance(args[0], str):
            signature = "(self: str, arg0: object) -> c_python_backend_utils.Tensor"
            raise incompatible("from_dlpack", signature, args, {})
        if not args[0]:
            raise TritonModelException(_NAMELESS)
        try:
            datatype, array = dlpack.take(args[1])
        except dlpack.DLPackError as error:
            raise TritonModelException(str(error)) from None
        return Tensor._wrap(args[0], datatype, array.shape, array)

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
