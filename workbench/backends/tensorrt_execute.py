"""One instance's way through an engine: buffers, profiles, shapes, CUDA graphs. One stream, one context a profile.

Source of the texts: tensorrt_backend's ``ValidateDimension``. Tried against a stand-in of the driver and of TensorRT's
classes; not run on a GPU yet.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.backends.base import TensorSpec
from workbench.backends.cuda_driver import CudaLibrary
from workbench.backends.cuda_stream import CudaStream, Priority
from workbench.backends.tensorrt_engine import EngineDescription, Profile, Shape, spelled
from workbench.backends.tensorrt_library import Library
from workbench.errors import BackendError, InternalError, InvalidRequest
from workbench.protocol.datatypes import BY_WIRE

Feed = Mapping[str, NDArray[Any]]

MOST_GRAPHS = 32
"""Shapes of which a graph is kept where the configuration names none."""


@dataclass(frozen=True, slots=True)
class ExecuteOptions:
    """What a configuration says of execution.

    ``profiles``: the optimization profiles that an instance uses. ``graph_shapes``: input -> shape for each graph that
    is to be captured; empty: of every shape that comes twice. ``allocation``: ``STATIC`` or ``ON_PROFILE_CHANGE``.
    """

    profiles: Sequence[int] = (0,)
    pinned_inputs: bool = True
    pinned_outputs: bool = True
    graphs: bool = False
    graph_shapes: Sequence[Mapping[str, Shape]] = ()
    priority: Priority = "default"
    allocation: str = "STATIC"


@dataclass(slots=True)
class _Context:
    """An execution context of one profile; ``seen`` counts the shapes that came, ``graphs`` are captured ones."""

    index: int
    ranges: Profile
    context: Any
    seen: dict[tuple[Any, ...], int] = field(default_factory=dict)
    graphs: dict[tuple[Any, ...], ctypes.c_void_p] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch whose inputs are on their way to the device; ``held`` must live until the stream has done it."""

    context: Any
    key: tuple[Any, ...]
    held: tuple[Any, ...]


class EngineExecutor:
    """Runs batches through an engine on one device. Not thread-safe, and bound to no thread.

    Raises:
        InternalError: the device refuses, or a profile is not the engine's.
    """

    def __init__(
        self, library: Library, driver: CudaLibrary, device: int, engine: Any, description: EngineDescription,
        options: ExecuteOptions, name: str,
    ) -> None:  # fmt: skip
        self._library, self._driver, self._device = library, driver, device
        self._description, self._options, self._name = description, options, name
        count = max(1, len(description.profiles))
        known = ", ".join(f'"{index}"' for index in range(count))
        for index in options.profiles:
            if not 0 <= index < count:
                raise InvalidRequest(
                    f"unable to load model '{name}', the engine has no optimization profile {index}",
                    hint=f"instance_group {{ profile: [ {known} ] }}",
                )
        with driver.current(device):
            self._stream = CudaStream(driver, options.priority)
            self._contexts = [self._make(engine, index) for index in options.profiles]

    def _make(self, engine: Any, index: int) -> _Context:
        module = self._library.module
        if self._library.rtx and self._options.graphs:
            config = engine.create_runtime_config()
            config.cuda_graph_strategy = module.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE  # its runtime captures by itself
            context = engine.create_execution_context(config)
        else:
            strategy = getattr(module.ExecutionContextAllocationStrategy, self._options.allocation)
            context = engine.create_execution_context(strategy)
        if context is None:
            raise InternalError(f"unable to create TensorRT context for model '{self._name}'")
        if index and not context.set_optimization_profile_async(index, self._stream.handle):
            raise InternalError(f"unable to set optimization profile {index} for model '{self._name}'")
        self._stream.wait()
        profiles = self._description.profiles
        return _Context(index, profiles[index] if profiles else {}, context)

    def prepare(self, feeds: Feed) -> Prepared:
        """Sets shapes and sends the inputs on their way.

        Raises:
            InvalidRequest: a shape lies in no profile of this instance (Triton's text).
        """
        with self._driver.current(self._device):
            chosen = self._choose(feeds)
            held: list[Any] = []
            moved = False
            for spec in self._description.inputs:
                dtype = BY_WIRE[spec.datatype].numpy
                array = np.asarray(
                    feeds[spec.name], dtype=dtype, order="C"
                )  # ascontiguousarray makes a scalar a vector
                held.append(array)
                if spec.name in self._description.shape_tensors:
                    chosen.context.set_tensor_address(spec.name, array.ctypes.data)
                    continue
                address, is_new = self._stream.buffer(spec.name, array.nbytes)
                moved |= is_new
                if not chosen.context.set_input_shape(spec.name, array.shape):
                    raise InvalidRequest(f"TensorRT refuses the shape {spelled(array.shape)} of input '{spec.name}'")
                chosen.context.set_tensor_address(spec.name, address)
                if self._options.pinned_inputs and array.nbytes:
                    staged = self._stream.pinned(spec.name, array.nbytes)
                    staged[:] = array.reshape(-1).view(np.uint8)
                    array = staged
                self._stream.send(address, array)
            if moved:
                self._forget_graphs()
            key = tuple((spec.name, feeds[spec.name].shape) for spec in self._description.inputs)
            return Prepared(chosen, key, tuple(held))

    def run(self, prepared: Prepared) -> dict[str, tuple[Shape, int]]:
        """Computes, and waits for it; gives where each output is: shape and device address.

        Raises:
            BackendError: TensorRT says that it failed.
        """
        with self._driver.current(self._device):
            chosen: _Context = prepared.context
            context = chosen.context
            places: dict[str, tuple[Shape, int]] = {}
            allocators = {}
            for spec in self._description.outputs:
                shape = tuple(context.get_tensor_shape(spec.name))
                if -1 in shape:  # known when it is computed
                    allocators[spec.name] = _allocator(self._library.module, self._stream, spec.name)
                    context.set_output_allocator(spec.name, allocators[spec.name])
                    continue
                address, is_new = self._stream.buffer(f"{spec.name} (output)", _bytes(spec, shape))
                if is_new:
                    self._forget_graphs()
                context.set_tensor_address(spec.name, address)
                places[spec.name] = (shape, address)
            self._execute(chosen, prepared.key, capturable=not allocators)
            self._stream.wait()
            for name, allocator in allocators.items():
                places[name] = (allocator.shape, allocator.address)
            return places

    def take(self, places: Mapping[str, tuple[Shape, int]]) -> dict[str, NDArray[Any]]:
        """The outputs as arrays of their own."""
        with self._driver.current(self._device):
            arrays: dict[str, NDArray[Any]] = {}
            staged: dict[str, NDArray[np.uint8]] = {}
            for spec in self._description.outputs:
                shape, address = places[spec.name]
                array = np.empty(shape, BY_WIRE[spec.datatype].numpy)
                if self._options.pinned_outputs and array.nbytes:
                    staged[spec.name] = self._stream.pinned(f"{spec.name} (output)", array.nbytes)
                    self._stream.fetch(staged[spec.name], address)
                else:
                    self._stream.fetch(array, address)
                arrays[spec.name] = array
            self._stream.wait()
            for name, content in staged.items():
                arrays[name].reshape(-1).view(np.uint8)[:] = content
            return arrays

    def close(self) -> None:
        """Frees contexts, graphs, buffers and the stream."""
        with self._driver.current(self._device):
            self._contexts.clear()
            self._stream.close()

    def _choose(self, feeds: Feed) -> _Context:
        """The context whose profile holds the shapes, of several the one built for shapes nearest to these."""
        best: tuple[int, int] | None = None
        for position, each in enumerate(self._contexts):
            if all(shapes.holds(feeds[name].shape) for name, shapes in each.ranges.items()):
                apart = sum(
                    abs(size - usual)
                    for name, shapes in each.ranges.items()
                    for size, usual in zip(feeds[name].shape, shapes.best, strict=True)
                )
                best = min(best or (apart, position), (apart, position))
        if best is None:
            raise InvalidRequest(self._outside(feeds, self._contexts[0]))
        return self._contexts[best[1]]

    def _outside(self, feeds: Feed, context: _Context) -> str:
        for name, shapes in context.ranges.items():
            shape = feeds[name].shape
            head = f"request specifies invalid shape for input '{name}' for {self._name}. Error details: "
            if len(shape) != len(shapes.least):
                return f"{head}model expected {len(shapes.least)} dimensions but received {len(shape)} dimensions"
            for axis, (low, size, high) in enumerate(zip(shapes.least, shape, shapes.most, strict=True)):
                if not low <= size <= high:
                    return (
                        f"{head}model expected the shape of dimension {axis} to be between {low} and {high} but "
                        f"received {size}"
                    )
        return f"no optimization profile of model '{self._name}' holds these shapes together"

    def _execute(self, chosen: _Context, key: tuple[Any, ...], *, capturable: bool) -> None:
        if not (self._options.graphs and capturable) or self._library.rtx:
            self._enqueue(chosen)
            return
        graph = chosen.graphs.get(key)
        if graph is None:
            count = chosen.seen[key] = chosen.seen.get(key, 0) + 1
            self._enqueue(chosen)
            # A first run settles what TensorRT sets up lazily; that must not be captured.
            if count > 1 and self._wants_graph(chosen, key):
                self._stream.wait()
                chosen.graphs[key] = self._stream.capture(lambda: self._enqueue(chosen))
            return
        self._stream.launch(graph)

    def _wants_graph(self, chosen: _Context, key: tuple[Any, ...]) -> bool:
        wanted = self._options.graph_shapes
        if not wanted:
            return len(chosen.graphs) < MOST_GRAPHS
        return any(all(shapes.get(name, shape) == shape for name, shape in key) for shapes in wanted)

    def _enqueue(self, chosen: _Context) -> None:
        if not chosen.context.execute_async_v3(self._stream.handle):
            raise BackendError(f"unable to enqueue for inference {self._name}")

    def _forget_graphs(self) -> None:
        """Graphs hold the addresses of buffers: a buffer that grew ends them."""
        for each in self._contexts:
            each.graphs.clear()
        self._stream.wait()
        self._stream.drop_graphs()


def _bytes(spec: TensorSpec, shape: Shape) -> int:
    return int(np.prod(shape, dtype=np.int64)) * BY_WIRE[spec.datatype].numpy.itemsize


def _allocator(module: Any, stream: CudaStream, name: str) -> Any:
    """An ``IOutputAllocator`` for an output whose shape depends on the values."""
    base: Any = module.IOutputAllocator

    class Allocator(base):  # type: ignore[misc]
        def __init__(self) -> None:
            base.__init__(self)
            self.shape: Shape = ()
            self.address = 0

        def reallocate_output_async(self, tensor_name: str, memory: int, size: int, alignment: int, cuda: int) -> int:
            self.address, _ = stream.buffer(f"{name} (output)", max(1, size))
            return self.address

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self.shape = tuple(shape)

    return Allocator()
