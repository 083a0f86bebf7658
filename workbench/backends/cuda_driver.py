"""The CUDA driver's own library (``libcuda``), which every machine with an NVIDIA GPU has: no toolkit, no package."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from workbench.errors import InternalError

LIBRARY = "libcuda.so.1"


class CudaLibrary:
    """Calls of the driver, and a device's primary context. Safe to use from any thread.

    Args:
        library: the name of the driver's library, or what answers like it.

    Raises:
        OSError: there is no such library.
        InternalError: the driver has no device.
    """

    def __init__(self, library: Any = LIBRARY) -> None:
        self._cuda: Any = ctypes.CDLL(library) if isinstance(library, str) else library
        self.call("cuInit", 0)
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        if not count.value:
            raise InternalError("the CUDA driver finds no device")
        self.devices: int = count.value
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._lock = threading.Lock()

    @contextmanager
    def current(self, device: int) -> Iterator[None]:
        """The device's primary context, the one that the CUDA runtime of the frameworks uses, on this thread.

        It is kept until this object is gone: when nobody holds it, the driver ends it with all memory in it.

        Raises:
            InternalError: there is no such device.
        """
        self.call("cuCtxPushCurrent_v2", self._context(device))
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _context(self, device: int) -> ctypes.c_void_p:
        with self._lock:
            if device not in self._contexts:
                number, context = ctypes.c_int(), ctypes.c_void_p()
                self.call("cuDeviceGet", ctypes.byref(number), device)
                self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
                self._contexts[device] = context
                weakref.finalize(self, self._cuda.cuDevicePrimaryCtxRelease_v2, number).atexit = False
            return self._contexts[device]

    def call(self, function: str, *args: Any) -> None:
        """Calls a function of the driver.

        Raises:
            InternalError: with the driver's text.
        """
        code = getattr(self._cuda, function)(*args)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(text))
            said = text.value.decode("utf-8", "replace") if text.value else f"error {code}"
            raise InternalError(f"{function}: {said}")
