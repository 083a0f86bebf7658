"""TensorFlow: SavedModels and GraphDefs in sessions, as in Triton's backend, which ended with release 25.02.

Sessions release the GIL, so instances are threads; a session is shared by ``MAX_SESSION_SHARE_COUNT`` of them (1 by
default). Where TensorFlow is not installed, OpenVINO runs SavedModels; the log and the model's ``details`` say so. The
parameter ``WORKBENCH_ENGINE`` (``tensorflow`` or ``openvino``; not read by Triton) chooses between the two.

Source: tensorflow_backend's ``tensorflow.cc``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from workbench.backends.base import InstanceSpec, LoadedModel, ModelContext, ModelDescription
from workbench.backends.batches import TensorInstance, configured_specs
from workbench.backends.model_files import model_file
from workbench.backends.tensorflow_config import ENGINE, INSTALL, Settings, init_ops, read_settings
from workbench.backends.tensorflow_signature import Signature, check_signature, complete_from_signature
from workbench.config import DEFAULT_MAX_BATCH_SIZE
from workbench.errors import InternalError, InvalidRequest, NotReady, WorkbenchError

_CPU = -1


class OpenGraph(Protocol):
    """A model that an engine has opened: TensorFlow's session, or OpenVINO's compiled model."""

    signature: Signature
    details: dict[str, str]

    def run_operations(self, names: Sequence[str]) -> None:
        """Runs operations of the graph once."""

    def runner(self, outputs: Sequence[str]) -> Callable[[Mapping[str, NDArray[Any]]], list[NDArray[Any]]]:
        """A function from inputs to outputs, for one instance."""

    def close(self) -> None:
        """Frees it."""


class TensorFlowBackend:
    """Triton's ``tensorflow``."""

    name = "tensorflow"

    @property
    def uses_gpus(self) -> bool:
        """Whether the TensorFlow that is installed may use GPUs: ``tensorflow-cpu`` does not. Imports nothing."""
        try:
            metadata.version("tensorflow")
        except metadata.PackageNotFoundError:
            return False
        return True

    def describe(self, context: ModelContext) -> ModelDescription | None:
        """Inputs and outputs of a SavedModel's signature; None for a GraphDef, which has names only."""
        settings = read_settings(context)
        if settings.graphdef:
            return None
        graph = _open(context, settings, _CPU)
        graph.close()
        inputs, outputs = tuple(graph.signature.inputs.values()), tuple(graph.signature.outputs.values())
        batching = all(not spec.dims or spec.dims[0] == -1 for spec in (*inputs, *outputs))
        return ModelDescription(inputs, outputs, batching)

    def auto_complete(self, context: ModelContext) -> Any | None:
        """The configuration completed from a SavedModel's signature; a GraphDef tells nothing."""
        config = type(context.config)()
        config.CopyFrom(context.config)
        settings = read_settings(context)
        if settings.graphdef:
            return config
        try:
            graph = _open(context, settings, _CPU)
        except NotReady:
            return config  # as in Triton, opening the model says it
        except InternalError as error:
            raise InternalError(
                f"unable to auto-complete model configuration for '{context.name}', failed to load model: "
                f"{error.message}",
                hint=error.hint,
            ) from error
        graph.close()
        default = int(context.backend_config.get("default-max-batch-size", DEFAULT_MAX_BATCH_SIZE))
        complete_from_signature(config, graph.signature, default, lambda text: _log(context, "warning", text))
        return config

    def open(self, context: ModelContext) -> LoadedModel:
        """Checks the parameters and the file; instances open sessions."""
        return _TensorFlowModel(context)


def _log(context: ModelContext, level: Any, text: str) -> None:
    context.host.log(level, text, model=context.name)


def _path(context: ModelContext, settings: Settings) -> Path:
    return model_file(context, "model.graphdef" if settings.graphdef else "model.savedmodel")


def _installed(name: str) -> bool:
    return find_spec(name) is not None


def _open(context: ModelContext, settings: Settings, device_id: int | None) -> OpenGraph:
    """Opens the model by the engine that is asked for, or else by TensorFlow, or else by OpenVINO.

    Raises:
        WorkbenchError: neither is installed; the file is broken; it takes what the engine does not do.
    """
    path = _path(context, settings)
    engine = settings.engine or ("tensorflow" if _installed("tensorflow") else "openvino")
    if not _installed(engine):
        what = f"{ENGINE} is {engine}, which" if settings.engine else "TensorFlow"
        raise InvalidRequest(
            f"unable to load model '{context.name}': {what} is not installed",
            hint=f"{INSTALL} (1.3 GB), or 'serving-workbench[openvino]' (0.2 GB), which runs most SavedModels",
        )
    if engine == "tensorflow":
        from workbench.backends.tensorflow_session import TensorFlowModel

        return TensorFlowModel(context.name, path, settings, device_id, lambda text: _log(context, "warning", text))
    if device_id is not None and device_id >= 0:
        raise InvalidRequest(
            f"unable to load model '{context.name}' on GPU {device_id}: OpenVINO runs it on the CPU",
            hint="set kind: KIND_CPU, or pip install 'tensorflow[and-cuda]'",
        )
    from workbench.backends.tensorflow_light import OpenVinoSavedModel

    return OpenVinoSavedModel(context.name, path, settings)


def _by_openvino(graph: OpenGraph) -> bool:
    return graph.details["engine"].startswith("OpenVINO")


class _TensorFlowModel:
    reads_max_batch_size = True  # not here, but its completion: a scheduler is added where more than one row is allowed
    any_thread = True

    def __init__(self, context: ModelContext) -> None:
        self._context = context
        self._settings = read_settings(context)
        self._operations = init_ops(context, self._settings)
        _path(context, self._settings)
        self._lock = threading.Lock()
        self._shared: dict[int | None, tuple[OpenGraph, int]] = {}
        self._graphs: list[OpenGraph] = []
        self.details: dict[str, str] = {}

    def create_instance(self, spec: InstanceSpec) -> _TensorFlowInstance:
        device_id = {"KIND_CPU": _CPU, "KIND_MODEL": None}.get(spec.kind, spec.device_id)
        with self._lock:
            graph = self._graph(device_id)
        return _TensorFlowInstance(self._context, graph)

    def close(self) -> None:
        with self._lock:
            graphs, self._graphs = self._graphs, []
            self._shared.clear()
        for graph in graphs:
            graph.close()

    def _graph(self, device_id: int | None) -> OpenGraph:
        graph, users = self._shared.get(device_id, (None, 0))
        if graph is None or users >= self._settings.sessions_for:
            graph, users = self._new_graph(device_id), 0
        self._shared[device_id] = graph, users + 1
        return graph

    def _new_graph(self, device_id: int | None) -> OpenGraph:
        context = self._context
        graph = _open(context, self._settings, device_id)
        try:
            check_signature(context.config, graph.signature)
            graph.run_operations(self._operations)
        except WorkbenchError as error:
            graph.close()
            if _by_openvino(graph):
                hint = f"this is how OpenVINO reads the SavedModel; TensorFlow goes by its signature: {INSTALL}"
                raise type(error)(error.message, hint=hint) from error
            raise
        self._graphs.append(graph)
        if not self.details:
            self.details = graph.details
            self._tell(graph)
        return graph

    def _tell(self, graph: OpenGraph) -> None:
        context = self._context
        _log(context, "info", f"model '{context.name}' on " + ", ".join(f"{k} {v}" for k, v in self.details.items()))
        if context.config.optimization.execution_accelerators.gpu_execution_accelerator:
            _log(
                context,
                "warning",
                "GPU Execution Accelerator is not offered here and ignored; Triton ignores it on CPU",
            )
        if _by_openvino(graph) and not self._settings.engine:
            text = (
                f"TensorFlow is not installed: OpenVINO runs model '{context.name}'. Answers are TensorFlow's but for "
                "rounding; times and memory are not"
            )
            _log(context, "warning", text)


class _TensorFlowInstance(TensorInstance):
    def __init__(self, context: ModelContext, graph: OpenGraph) -> None:
        super().__init__(context, *configured_specs(context.config))
        self._run: Callable[[Mapping[str, NDArray[Any]]], list[NDArray[Any]]] | None = graph.runner(
            [spec.name for spec in self._form.outputs]
        )

    def run(self, prepared: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """One call of the session."""
        run = self._run
        assert run is not None
        return run(prepared)

    def free(self) -> None:
        """Drops the callables; the session is the model's."""
        self._run = None
