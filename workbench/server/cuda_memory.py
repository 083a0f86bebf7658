"""GPU memory of other processes, by the driver's own library: what a client shares as a CUDA region lies there.

Only the driver is asked (``libcuda``), which every machine with an NVIDIA GPU has: no toolkit and no package is needed.
Inputs are copied to the host when a request is read, outputs to the GPU when it is answered.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from workbench.backends.cuda_driver import LIBRARY, CudaLibrary
from workbench.errors import InternalError

HANDLE_BYTES = 64
"""The size of a ``cudaIpcMemHandle_t``."""

_LIBRARY = LIBRARY
_LAZY_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * HANDLE_BYTES)]


class CudaDriver(CudaLibrary):
    """The few calls of the driver that shared regions need. Safe to use from any thread.

    Args:
        library: the driver's library, or one that answers like it.

    Raises:
        OSError: there is no such library.
        InternalError: the driver has no device.
    """

    def __init__(self, library: str = _LIBRARY) -> None:
        super().__init__(library)

    def open(self, device: int, handle: bytes) -> int:
        """The address under which this process has the memory of another.

        Raises:
            InternalError: there is no such device, or the handle is not one of its memory.
        """
        if len(handle) != HANDLE_BYTES:
            raise InternalError(f"a CUDA IPC handle has {HANDLE_BYTES} bytes, this one has {len(handle)}")
        address = ctypes.c_uint64()
        given = _Handle.from_buffer_copy(handle)
        self._on(device, "cuIpcOpenMemHandle_v2", ctypes.byref(address), given, ctypes.c_uint(_LAZY_PEER_ACCESS))
        return address.value

    def close(self, device: int, address: int) -> None:
        """Lets go of what ``open`` gave."""
        self._on(device, "cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def size(self, device: int, address: int) -> int:
        """The bytes of the allocation that begins at, or holds, an address, from there on."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._on(device, "cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
        return base.value + size.value - address

    def read(self, device: int, address: int, target: memoryview) -> None:
        """Copies from the GPU."""
        place = (ctypes.c_char * target.nbytes).from_buffer(target)
        self._on(device, "cuMemcpyDtoH_v2", place, ctypes.c_uint64(address), ctypes.c_size_t(target.nbytes))

    def write(self, device: int, address: int, data: memoryview) -> None:
        """Copies to the GPU."""
        content = ctypes.c_char_p(data.tobytes())  # read-only memory has no address for ctypes
        self._on(device, "cuMemcpyHtoD_v2", ctypes.c_uint64(address), content, ctypes.c_size_t(data.nbytes))

    def _on(self, device: int, function: str, *args: Any) -> None:
        with self.current(device):
            self.call(function, *args)


def find_driver() -> CudaDriver | None:
    """The driver of this machine; None where there is none, or no device."""
    try:
        return CudaDriver()
    except (OSError, InternalError):
        return None


FindDriver = Callable[[], CudaDriver | None]
"""Looks for the driver: when a region is registered, not before (it takes a moment, and memory on the GPU)."""
