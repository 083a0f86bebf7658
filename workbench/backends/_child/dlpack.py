"""DLPack for ``Tensor``: capsules out and in, without a copy and without a framework.

Reference: dlpack.h (DLManagedTensor) and the Python array API's ``__dlpack__``. Texts: python_backend (pb_tensor.cc).
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from workbench.backends._child.dtypes import NUMPY

CPU, CUDA, CUDA_HOST = 1, 2, 3
"""DLDeviceType; host memory that CUDA has pinned is host memory too."""

_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_CODES = {
    "BOOL": (_BOOL, 8),
    **{f"UINT{bits}": (_UINT, bits) for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": (_INT, bits) for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": (_FLOAT, bits) for bits in (16, 32, 64)},
    "BF16": (_BFLOAT, 16),
}
_NAMES = {code: name for name, code in _CODES.items()}
_FRESH, _USED = b"dltensor", b"used_dltensor"


class DLPackError(Exception):
    """A tensor that cannot be passed on, with Triton's text."""


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


_api = ctypes.PyDLL(None)  # not ctypes.pythonapi: whoever else declares types there would change these
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, _Destructor)
_pointer = _api.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)
_valid = _api.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)
_rename = _api.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)

_lent: dict[int, Any] = {}
"""What capsules refer to, by the address of their structure, until whoever took them is done."""


def _give_back(address: int) -> None:
    _lent.pop(address, None)


def _collect(capsule: int) -> None:
    """A capsule that nobody has taken is gone."""
    if _valid(capsule, _FRESH):
        _lent.pop(_pointer(capsule, _FRESH), None)


_done, _collected = _Deleter(_give_back), _Destructor(_collect)


def export(array: Any, datatype: str) -> Any:
    """A capsule ``dltensor`` over a C-contiguous array of a v2 data type; the array lives as long as it is used.

    Raises:
        DLPackError: DLPack has no such data type (BYTES).
    """
    if datatype not in _CODES:
        raise DLPackError("DLPack does not have support for string tensors.")
    array = np.ascontiguousarray(array) if array.ndim else array
    shape = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
    code, bits = _CODES[datatype]
    tensor = _Tensor(array.ctypes.data, CPU, 0, array.ndim, code, bits, 1, shape, None, 0)
    managed = _Managed(tensor, None, _done)
    address = ctypes.addressof(managed)
    _lent[address] = (managed, shape, array)
    return _new(address, _FRESH, _collected)


def is_capsule(thing: Any) -> bool:
    """Whether this is a capsule of DLPack that nobody has taken."""
    return type(thing).__name__ == "PyCapsule" and bool(_valid(id(thing), _FRESH))


class _Owner:
    """Memory that somebody else has given, as bytes; given back when no array looks at it any more."""

    def __init__(self, managed: Any, address: int, size: int) -> None:
        self._managed = managed
        self.__array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        if self._managed.deleter:
            self._managed.deleter(ctypes.addressof(self._managed))


def take(thing: Any) -> tuple[str, Any]:
    """The v2 data type and the array (over the same memory) of a capsule or of an object with ``__dlpack__``.

    Raises:
        DLPackError: it is neither, lies on a device, is not in C order, or has a type that Triton has not.
    """
    if not is_capsule(thing):
        if type(thing).__name__ == "PyCapsule":
            raise DLPackError("The DLPack capsule has been used already.")
        if not (hasattr(thing, "__dlpack__") and hasattr(thing, "__dlpack_device__")):
            raise DLPackError(
                "Provided tensor is not supported. Tensor must be a DLPack capsule "
                "        or have `__dlpack__` and `__dlpack_device__` attributes"
            )
        _check_device(int(thing.__dlpack_device__()[0]))
        thing = thing.__dlpack__()
        if not is_capsule(thing):
            raise DLPackError("`__dlpack__` gave no DLPack capsule.")
    managed = _Managed.from_address(_pointer(id(thing), _FRESH))
    tensor = managed.tensor
    shape = tuple(tensor.shape[index] for index in range(tensor.ndim))
    _check_device(tensor.device_type)
    _check_order(tensor, shape)
    name = _NAMES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if name is None:
        raise DLPackError(
            f"DLPack type code {tensor.code} of {tensor.bits} bits and {tensor.lanes} lanes is not supported."
        )
    _rename(id(thing), _USED)
    size = tensor.bits // 8
    for length in shape:
        size *= length
    owner = _Owner(managed, (tensor.data or 0) + tensor.byte_offset, size)
    if not size:
        return name, np.empty(shape, NUMPY[name])
    return name, np.asarray(owner).view(NUMPY[name]).reshape(shape)


def _check_device(kind: int) -> None:
    if kind == CUDA:
        raise DLPackError(
            "DLPack capsule passed pointer to memory allocated on GPU device,           when GPU is not available"
        )
    if kind not in (CPU, CUDA_HOST):
        raise DLPackError(f"DLDevice type {kind} is not support by Python backend.")


def _check_order(tensor: Any, shape: tuple[int, ...]) -> None:
    """Refuses what does not lie in C order; a dimension of 1 may have any stride."""
    if not tensor.strides:
        return
    expected = 1
    for index in reversed(range(len(shape))):
        if shape[index] != 1 and tensor.strides[index] != expected:
            raise DLPackError(
                "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are "
                "supported."
            )
        expected *= shape[index]
