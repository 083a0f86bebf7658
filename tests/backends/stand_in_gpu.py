"""Stand-ins of the CUDA driver and of TensorRT's classes, as far as the backend uses them: there is no GPU here.

Device memory is host memory. What a stream is asked to do waits until somebody synchronizes, so that a copy which is
read too early, or from memory that was used again, gives wrong numbers. What a real GPU does with it is not tried.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from workbench.backends.tensorrt_library import Library


def value(number: Any) -> Any:
    return getattr(number, "value", number)


class Driver:
    """``libcuda``: every function gives 0, or an error's number. The counts are what is still held."""

    def __init__(self, devices: int = 1) -> None:
        self.devices = devices
        self.memory: dict[int, Any] = {}
        self.pinned: dict[int, Any] = {}
        self.streams: dict[int, list[Callable[[], None]]] = {}
        self.capturing: list[Callable[[], None]] | None = None
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.priorities: list[int] = []
        self.launched = self.contexts = self.current = 0
        self._next = 1

    def enqueue(self, stream: Any, work: Callable[[], None]) -> None:
        (self.streams[value(stream)] if self.capturing is None else self.capturing).append(work)

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _set(self, reference: Any, number: int) -> int:
        reference._obj.value = number
        return 0

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        return self._set(count, self.devices)

    def cuDeviceGet(self, device: Any, number: int) -> int:
        return self._set(device, number) if number < self.devices else 101

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        self.contexts += 1
        return self._set(context, 7)

    def cuDevicePrimaryCtxRelease_v2(self, device: Any) -> int:
        self.contexts -= 1
        if not self.contexts:  # the driver ends it, with all that is in it
            self.memory.clear()
            self.pinned.clear()
            self.streams.clear()
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.current += 1
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        self.current -= 1
        return 0

    def cuCtxGetStreamPriorityRange(self, low: Any, high: Any) -> int:
        self._set(low, 0)
        return self._set(high, -5)

    def cuStreamCreate(self, stream: Any, flags: int) -> int:
        return self.cuStreamCreateWithPriority(stream, flags, 0)

    def cuStreamCreateWithPriority(self, stream: Any, flags: int, priority: int) -> int:
        if not self.current:
            return 201
        number = self._number()
        self.streams[number] = []
        self.priorities.append(priority)
        return self._set(stream, number)

    def cuStreamDestroy_v2(self, stream: Any) -> int:
        del self.streams[value(stream)]
        return 0

    def cuStreamSynchronize(self, stream: Any) -> int:
        if not self.current or self.capturing is not None:
            return 201
        work = self.streams[value(stream)]
        while work:
            work.pop(0)()
        return 0

    def cuMemAlloc_v2(self, address: Any, size: Any) -> int:
        if value(size) > 1 << 30:
            return 2
        block = ctypes.create_string_buffer(b"\xee" * value(size), value(size))
        self.memory[ctypes.addressof(block)] = block
        return self._set(address, ctypes.addressof(block)) if self.current else 201

    def cuMemFree_v2(self, address: Any) -> int:
        del self.memory[value(address)]
        return 0

    def cuMemHostAlloc(self, address: Any, size: Any, flags: int) -> int:
        block = ctypes.create_string_buffer(value(size))
        self.pinned[ctypes.addressof(block)] = block
        return self._set(address, ctypes.addressof(block))

    def cuMemFreeHost(self, address: Any) -> int:
        del self.pinned[value(address)]
        return 0

    def cuMemcpyHtoDAsync_v2(self, target: Any, source: Any, size: Any, stream: Any) -> int:
        self.enqueue(stream, lambda: ctypes.memmove(value(target), value(source), value(size)) and None)
        return 0

    def cuMemcpyDtoHAsync_v2(self, target: Any, source: Any, size: Any, stream: Any) -> int:
        return self.cuMemcpyHtoDAsync_v2(target, source, size, stream)

    def cuStreamBeginCapture_v2(self, stream: Any, mode: int) -> int:
        self.capturing = []
        return 0

    def cuStreamEndCapture(self, stream: Any, graph: Any) -> int:
        number = self._number()
        self.graphs[number], self.capturing = self.capturing or [], None
        return self._set(graph, number)

    def cuGraphInstantiateWithFlags(self, executable: Any, graph: Any, flags: Any) -> int:
        number = self._number()
        self.graphs[number] = self.graphs[value(graph)]
        return self._set(executable, number)

    def cuGraphDestroy(self, graph: Any) -> int:
        del self.graphs[value(graph)]
        return 0

    def cuGraphExecDestroy(self, graph: Any) -> int:
        return self.cuGraphDestroy(graph)

    def cuGraphLaunch(self, graph: Any, stream: Any) -> int:
        self.launched += 1
        for work in self.graphs[value(graph)]:
            self.enqueue(stream, work)
        return 0

    def cuGetErrorString(self, code: int, text: Any) -> int:
        texts = {2: b"out of memory", 101: b"invalid device ordinal"}
        text._obj.value = texts.get(code, b"invalid device context")
        return 0


class Enum(SimpleNamespace):
    def __init__(self, name: str) -> None:
        super().__init__(name=name)


INPUT, OUTPUT = Enum("INPUT"), Enum("OUTPUT")
PROFILES = [{"x": ((1, 1), (1, 4), (4, 8))}, {"x": ((1, 8), (8, 16), (8, 32))}]


class Engine:
    """``ICudaEngine``: y is 2 * x plus 1000 for each profile after the first; ``big`` are the values above 10."""

    tensors: ClassVar[dict[str, Any]] = {
        "x": ("FLOAT", (-1, -1), INPUT),
        "y": ("HALF", (-1, -1), OUTPUT),
        "big": ("FLOAT", (-1,), OUTPUT),
    }

    def __init__(self, driver: Driver, outputs: tuple[str, ...] = ("y",)) -> None:
        self.driver = driver
        self.names = ["x", *outputs]
        self.num_io_tensors = len(self.names)
        self.num_optimization_profiles = len(PROFILES)
        self.executed = 0

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_dtype(self, name: str) -> Enum:
        return Enum(self.tensors[name][0])

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name][1]

    def get_tensor_mode(self, name: str) -> Enum:
        return self.tensors[name][2]

    def is_shape_inference_io(self, name: str) -> bool:
        return False

    def get_tensor_profile_shape(self, name: str, profile: int) -> Any:
        return list(map(list, PROFILES[profile][name]))

    def create_execution_context(self, strategy: str) -> Context:
        assert strategy in ("static", "on change")
        return Context(self)


class Context:
    """``IExecutionContext``."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.profile = engine, 0
        self.shape: tuple[int, ...] = ()
        self.addresses: dict[str, int] = {}
        self.allocators: dict[str, Any] = {}

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        self.profile = index
        return stream in self.engine.driver.streams

    def set_input_shape(self, name: str, shape: Any) -> bool:
        low, _, high = PROFILES[self.profile][name]
        self.shape = tuple(shape)
        return all(least <= size <= most for least, size, most in zip(low, self.shape, high, strict=True))

    def set_tensor_address(self, name: str, address: int) -> None:
        self.addresses[name] = address

    def set_output_allocator(self, name: str, allocator: Any) -> None:
        self.allocators[name] = allocator

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.shape if name in ("x", "y") else (-1,)

    def execute_async_v3(self, stream: int) -> bool:
        self.engine.executed += 1
        shape, addresses, add = self.shape, dict(self.addresses), 1000 * self.profile
        count = int(np.prod(shape))

        def compute() -> None:
            x = np.ctypeslib.as_array((ctypes.c_float * count).from_address(addresses["x"])).reshape(shape)
            if "y" in addresses:
                y = (2 * x + add).astype(np.float16)
                ctypes.memmove(addresses["y"], y.ctypes.data, y.nbytes)
            for name, allocator in self.allocators.items():
                big = x[x > 10]
                address = allocator.reallocate_output_async(name, 0, big.nbytes, 256, stream)
                ctypes.memmove(address, big.ctypes.data, big.nbytes)
                allocator.notify_shape(name, big.shape)

        self.engine.driver.enqueue(stream, compute)
        return True


class Plain:
    """A base class of TensorRT's."""

    def __init__(self, *_: Any) -> None:
        pass


class Runtime(Plain):
    """``IRuntime``, which logs through the logger that it was made with."""

    engines: ClassVar[list[Any]] = []
    said: ClassVar[list[tuple[str, str]]] = []
    asked: ClassVar[list[Runtime]] = []

    def __init__(self, logger: Any) -> None:
        self.logger, self.engine_host_code_allowed = logger, False
        Runtime.asked.append(self)

    def deserialize_cuda_engine(self, plan: bytes) -> Any:
        assert plan[:4] == b"ftrt"
        for severity, text in Runtime.said:
            self.logger.log(Enum(severity), text)
        return Runtime.engines[0] if Runtime.engines else None


def library(version: str = "10.13.3.9") -> Library:
    """TensorRT as the backend imports it."""
    module = SimpleNamespace(
        __name__="tensorrt", __version__=version, Runtime=Runtime, ILogger=Plain, IOutputAllocator=Plain,
        TensorIOMode=SimpleNamespace(INPUT=INPUT, OUTPUT=OUTPUT), BuilderFlag=SimpleNamespace(FP16=0),
        ExecutionContextAllocationStrategy=SimpleNamespace(STATIC="static", ON_PROFILE_CHANGE="on change"),
    )  # fmt: skip
    return Library(module, "tensorrt", version)
