"""One stream of a GPU with the memory and the graphs that belong to it, by the driver's library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workbench.backends.cuda_driver import CudaLibrary

_NON_BLOCKING = 1
_CAPTURE_RELAXED = 2
_LEAST_BYTES = 256

Priority = Literal["default", "max", "min"]


class CudaStream:
    """A stream, its device buffers and its page-locked host buffers. The device's context must be current.

    Not thread-safe: one batch at a time.
    """

    def __init__(self, driver: CudaLibrary, priority: Priority = "default") -> None:
        self._driver = driver
        self._stream = ctypes.c_void_p()
        if priority == "default":
            driver.call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)
        else:
            low, high = ctypes.c_int(), ctypes.c_int()
            driver.call("cuCtxGetStreamPriorityRange", ctypes.byref(low), ctypes.byref(high))
            level = high.value if priority == "max" else low.value
            driver.call("cuStreamCreateWithPriority", ctypes.byref(self._stream), _NON_BLOCKING, level)
        self._device: dict[str, tuple[int, int]] = {}
        self._pinned: dict[str, tuple[ctypes.c_void_p, int]] = {}
        self._graphs: list[ctypes.c_void_p] = []

    @property
    def handle(self) -> int:
        """The stream's handle, as TensorRT takes it."""
        return self._stream.value or 0

    def buffer(self, name: str, size: int) -> tuple[int, bool]:
        """The address of a device buffer of at least so many bytes, and whether it is a new one."""
        held = self._device.get(name)
        if held is not None and held[1] >= size:
            return held[0], False
        if held is not None:
            self.wait()
            del self._device[name]
            self._driver.call("cuMemFree_v2", ctypes.c_uint64(held[0]))
        capacity = max(_LEAST_BYTES, 1 << (size - 1).bit_length() if size > 1 else 1)
        address = ctypes.c_uint64()
        self._driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(capacity))
        self._device[name] = (address.value, capacity)
        return address.value, True

    def pinned(self, name: str, size: int) -> NDArray[np.uint8]:
        """Page-locked host memory of so many bytes: copies to and from it do not wait for the driver's own staging."""
        held = self._pinned.get(name)
        if held is None or held[1] < size:
            if held is not None:
                self.wait()
                del self._pinned[name]
                self._driver.call("cuMemFreeHost", held[0])
            pointer = ctypes.c_void_p()
            capacity = max(_LEAST_BYTES, 1 << (size - 1).bit_length() if size > 1 else 1)
            self._driver.call("cuMemHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(capacity), 0)
            held = self._pinned[name] = (pointer, capacity)
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(held[0].value or 0))

    def send(self, address: int, array: NDArray[Any]) -> None:
        """Copies a contiguous array to the device; it must stay until ``wait``."""
        if array.nbytes:
            place = ctypes.c_void_p(array.ctypes.data)
            self._driver.call(
                "cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), place, ctypes.c_size_t(array.nbytes), self._stream
            )

    def fetch(self, array: NDArray[Any], address: int) -> None:
        """Copies from the device into a contiguous array, which is filled after ``wait``."""
        if array.nbytes:
            place = ctypes.c_void_p(array.ctypes.data)
            self._driver.call(
                "cuMemcpyDtoHAsync_v2", place, ctypes.c_uint64(address), ctypes.c_size_t(array.nbytes), self._stream
            )

    def wait(self) -> None:
        """Blocks until the device has done all that was asked for."""
        self._driver.call("cuStreamSynchronize", self._stream)

    def capture(self, work: Callable[[], None]) -> ctypes.c_void_p:
        """A graph of what ``work`` asks the device to do; nothing is done yet."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self._driver.call("cuStreamBeginCapture_v2", self._stream, _CAPTURE_RELAXED)
        try:
            work()
        finally:
            self._driver.call("cuStreamEndCapture", self._stream, ctypes.byref(graph))
        try:
            self._driver.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
        finally:
            self._driver.call("cuGraphDestroy", graph)
        self._graphs.append(executable)
        return executable

    def launch(self, graph: ctypes.c_void_p) -> None:
        """Asks the device to do what was captured."""
        self._driver.call("cuGraphLaunch", graph, self._stream)

    def drop_graphs(self) -> None:
        """Frees the graphs."""
        while self._graphs:
            self._driver.call("cuGraphExecDestroy", self._graphs.pop())

    def close(self) -> None:
        """Frees everything, after all that is being done."""
        self.wait()
        self.drop_graphs()
        while self._device:
            self._driver.call("cuMemFree_v2", ctypes.c_uint64(self._device.popitem()[1][0]))
        while self._pinned:
            self._driver.call("cuMemFreeHost", self._pinned.popitem()[1][0])
        self._driver.call("cuStreamDestroy_v2", self._stream)
