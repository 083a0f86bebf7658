"""TensorRT: one engine a device, one execution context and stream an instance. Needs an NVIDIA GPU.

The plan says which runtime it is for: ``tensorrt`` (10 or later) or ``tensorrt_rtx``. Buffers, streams and graphs go
through the driver's own library. Not run on a GPU yet: what needs none is tested, execution against a stand-in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from workbench.backends.base import InstanceSpec, LoadedModel, ModelContext, ModelDescription
from workbench.backends.batches import TensorInstance
from workbench.backends.cuda_driver import CudaLibrary
from workbench.backends.model_files import model_file
from workbench.backends.tensorrt_config import check_engine, execute_options, model_description
from workbench.backends.tensorrt_engine import EngineDescription, of_engine
from workbench.backends.tensorrt_execute import EngineExecutor, ExecuteOptions, Prepared
from workbench.backends.tensorrt_library import Library, Messages, find_library, make_logger
from workbench.backends.tensorrt_plan import PlanHead, read_plan_head, why_not
from workbench.errors import InternalError, InvalidRequest, NotReady, Unsupported

DEFAULT_FILE = "model.plan"
_Feed = dict[str, NDArray[Any]]


def open_driver() -> CudaLibrary:
    """The CUDA driver of this machine.

    Raises:
        Unsupported: there is none, or it has no device; the text says what an engine needs.
    """
    try:
        return CudaLibrary()
    except OSError as error:
        raise Unsupported(
            f"TensorRT engines run on an NVIDIA GPU, and there is no NVIDIA driver here ({error})",
            hint="workbench doctor shows the devices; on a CPU serve the ONNX file, or build --to openvino",
        ) from error
    except InternalError as error:
        raise Unsupported(
            f"TensorRT engines run on an NVIDIA GPU: {error.message}", hint="nvidia-smi shows what the driver finds"
        ) from error


def library_for(head: PlanHead, name: str) -> Library:
    """The runtime that a plan is for.

    Raises:
        Unsupported: it is not installed; the text says what is, and how to get the right one.
    """
    try:
        return find_library(head.library)
    except Unsupported as error:
        version = f" {head.version}" if head.version else ""
        kind = "TensorRT-RTX" if head.library == "tensorrt_rtx" else "TensorRT"
        raise Unsupported(
            f"unable to load plan file of '{name}': it is one of {kind}{version}, and {error.message}", hint=error.hint
        ) from error


class Engine:
    """A plan that was deserialised on one device, with all that must live as long as it.

    Raises:
        InternalError: the runtime refuses the plan: versions, GPU and its own words are in the text.
    """

    def __init__(
        self,
        library: Library,
        driver: CudaLibrary,
        path: Path,
        head: PlanHead,
        device: int,
        *,
        trust_code: bool = False,
    ) -> None:
        self.library, self.driver, self.device = library, driver, device
        messages = Messages()
        self._logger = make_logger(library, messages)
        if not 0 <= device < driver.devices:
            raise InternalError(f"there is no GPU {device}: the driver finds {driver.devices}")
        with driver.current(device):
            self._runtime = library.module.Runtime(self._logger)
            if trust_code:
                self._runtime.engine_host_code_allowed = True
            self.engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self.engine is None:
            said = messages.errors()
            reason = why_not(head, library.name, library.version) or (said[0] if said else "the runtime says nothing")
            others = [text for text in said if text != reason]
            raise InternalError(
                f"unable to load plan file {path.name} on GPU {device} by {library.title}: {reason}",
                where=str(path),
                hint="an engine is for the GPU and the TensorRT that built it: build it again here (workbench build "
                "MODEL --to tensorrt), or with --versionCompatible and --hardwareCompatibilityLevel"
                + "".join(f"; {text}" for text in others[:3]),
            )
        self.description: EngineDescription = of_engine(library, self.engine)


def engine_runner(library: Library, path: Path) -> Callable[[_Feed], _Feed]:
    """What answers requests by a plan file, on the first GPU.

    Raises:
        WorkbenchError: there is no GPU here, or the engine is for another.
    """
    loaded = Engine(library, open_driver(), path, read_plan_head(path), 0)
    profiles = tuple(range(max(1, len(loaded.description.profiles))))
    executor = EngineExecutor(
        library, loaded.driver, 0, loaded.engine, loaded.description, ExecuteOptions(profiles), path.stem
    )
    return lambda feed: executor.take(executor.run(executor.prepare(feed)))


class TensorRTBackend:
    """Triton's ``tensorrt``."""

    name = "tensorrt"

    def describe(self, context: ModelContext) -> ModelDescription:
        """Inputs and outputs of the engine.

        Raises:
            WorkbenchError: the file is no plan, its runtime or a GPU is missing, or it is for another GPU or version.
        """
        return model_description(_Plan(context).engine(0).description)

    def auto_complete(self, context: ModelContext) -> None:
        """Engines are completed from ``describe``."""
        return

    def open(self, context: ModelContext) -> LoadedModel:
        """Deserialises the engine once a device, when an instance needs it there.

        Raises:
            WorkbenchError: the file is no plan, or its runtime or a driver is missing.
        """
        return _TensorRTModel(context)


class _Plan:
    """A plan file whose runtime and driver are there."""

    def __init__(self, context: ModelContext) -> None:
        self._context = context
        self.path = model_file(context, DEFAULT_FILE)
        if self.path.is_dir():
            raise NotReady(f"unable to find '{self.path}' for model instance '{context.name}': it is a directory")
        self.head = read_plan_head(self.path)
        self.library = library_for(self.head, context.name)
        self.driver = open_driver()

    def engine(self, device: int) -> Engine:
        trusted = self._context.backend_config.get("version-compatible", "").lower() == "true"
        return Engine(self.library, self.driver, self.path, self.head, device, trust_code=trusted)


class _TensorRTModel:
    reads_max_batch_size = True

    def __init__(self, context: ModelContext) -> None:
        self._context = context
        self._plan = _Plan(context)
        self._engines: dict[int, Engine] = {}
        self.details = {"engine": self._plan.library.title}
        self._lock = threading.Lock()

    def create_instance(self, spec: InstanceSpec) -> _TensorRTInstance:
        if spec.kind != "KIND_GPU":
            raise InvalidRequest(
                f"unable to load model '{self._context.name}', TensorRT engines run on a GPU: instance {spec.name} has "
                f"kind {spec.kind}",
                hint="set kind: KIND_GPU in instance_group",
            )
        with self._lock:
            engine = self._engines.get(spec.device_id)
            if engine is None:
                engine = self._engines[spec.device_id] = self._plan.engine(spec.device_id)
        check_engine(self._context.config, engine.description)
        options = execute_options(self._context.config, spec, engine.description)
        executor = EngineExecutor(
            engine.library, engine.driver, engine.device, engine.engine, engine.description, options, self._context.name
        )
        return _TensorRTInstance(self._context, engine.description, executor)

    def close(self) -> None:
        self._engines.clear()


class _TensorRTInstance(TensorInstance):
    def __init__(self, context: ModelContext, engine: EngineDescription, executor: EngineExecutor) -> None:
        super().__init__(context, engine.inputs, engine.outputs)
        self._executor = executor

    def prepare(self, feeds: _Feed) -> Prepared:
        """Sends the inputs to the GPU."""
        return self._executor.prepare(feeds)

    def run(self, prepared: Prepared) -> Any:
        """Executes, and waits for the GPU."""
        return self._executor.run(prepared)

    def take(self, raw: Any) -> Sequence[NDArray[Any]]:
        """Fetches the outputs."""
        arrays = self._executor.take(raw)
        return [arrays[spec.name] for spec in self._form.outputs]

    def free(self) -> None:
        """Frees contexts, buffers and the stream."""
        self._executor.close()
