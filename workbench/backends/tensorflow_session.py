"""A model in a TensorFlow session. TensorFlow is imported here, and only when a model needs it.

Models are loaded by the session loader of TensorFlow 1: ``tf.saved_model.load`` of 2.x fails on SavedModels of old
Keras versions, and Triton's backend loads them so, too. Source: tensorflow_backend's ``tensorflow_backend_tf.cc``.
"""

from __future__ import annotations

import inspect
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.backends.base import TensorSpec
from workbench.backends.tensorflow_config import Settings
from workbench.backends.tensorflow_signature import Signature
from workbench.errors import BackendError, InternalError, InvalidRequest

DEFAULT_SIGNATURE = "serving_default"
_NOT_TO_SERVE = ("__saved_model_init_op", "__saved_model_train_op")

_OWN_LINES = re.compile(
    rb"^(?:[IW]\d{4} |WARNING: All log messages before absl::InitializeLog|To enable the following )"
)
"""What TensorFlow prints while it is imported, whatever its log level is set to."""

_IMPORTING = threading.Lock()


@cache
def import_tensorflow() -> Any:
    """``tensorflow.compat.v1``, imported so that the process is as before: its environment, loggers and standard error.

    GPUs are neither looked for nor reserved: sessions do that, each for itself.

    Raises:
        ImportError: TensorFlow is not installed.
    """
    import logging

    with _IMPORTING, _quiet_stderr():
        before = dict(os.environ)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # its C++ half warns of each request that fails
        logger = logging.getLogger("tensorflow")
        handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
        try:
            import tensorflow.compat.v1 as tf
        finally:
            for name in os.environ.keys() - before.keys():
                del os.environ[name]
        if not handlers:
            logger.handlers[:] = []  # it prints by itself otherwise, beside the process's own handlers
        logger.setLevel(level)
        logger.propagate = propagate
    return tf


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Leaves TensorFlow's own lines out of file descriptor 2; all others go through, also those of other threads.

    A process that is started meanwhile inherits the pipe, so the thread goes on reading until all have closed it.
    """
    try:
        original = os.dup(2)
    except OSError:  # a process without standard error
        yield
        return
    reader, writer = os.pipe()

    def pass_on() -> None:
        with os.fdopen(reader, "rb") as lines, os.fdopen(original, "wb", buffering=0) as out:
            for line in lines:
                if not _OWN_LINES.match(line):
                    out.write(line)

    os.dup2(writer, 2)
    os.close(writer)
    thread = threading.Thread(target=pass_on, name="workbench-tensorflow-stderr", daemon=True)
    thread.start()
    restored = os.dup(original)
    try:
        yield
    finally:
        os.dup2(restored, 2)
        os.close(restored)


_PYTHON_TRACE = re.compile(r"^Graph execution error:.*\nNode: '[^']*'\n|\n\nOriginal stack trace.*$", re.DOTALL)
"""What the Python binding puts around a status: where in some Python file a node was made."""


@contextmanager
def _tensorflow_errors(kind: type[InternalError] | type[BackendError] = InternalError) -> Iterator[None]:
    """What TensorFlow raises, with the text of its status as Triton gives it."""
    try:
        yield
    except (InternalError, InvalidRequest):
        raise
    except Exception as error:
        text = str(getattr(error, "message", "") or error)
        raise kind(_PYTHON_TRACE.sub("", text).strip()) from error


class TensorFlowModel:
    """A graph in a session of its own, ready to run.

    ``device_id`` is a GPU's number, -1 for the CPU, None for where the graph says (KIND_MODEL).

    Raises:
        WorkbenchError: the file is broken, lacks the tag or the signature; there is no such GPU.
    """

    def __init__(
        self, name: str, path: Path, settings: Settings, device_id: int | None, warn: Callable[[str], None]
    ) -> None:
        self._tf = tf = import_tensorflow()
        self.details = {
            "engine": f"TensorFlow {tf.__version__}",
            "device": "CPU" if device_id == -1 else "as the graph says" if device_id is None else f"GPU {device_id}",
            "threads": f"{settings.intra_threads or 'all cores'} in an operation, "
            f"{settings.inter_threads or 'as many'} operations at once",
        }
        self._graph = tf.Graph()
        self._session = tf.Session(graph=self._graph, config=self._config(settings, device_id))
        try:
            with _tensorflow_errors():
                if device_id is not None and device_id >= 0:
                    self._check_gpu(device_id)
                place = None if device_id is None else "/CPU:0" if device_id < 0 else f"/GPU:{device_id}"
                with self._graph.as_default(), tf.device(place):
                    load = self._load_graphdef if settings.graphdef else self._load_saved_model
                    self.signature, self._inputs, self._outputs = load(name, path, settings, warn)
        except BaseException:
            self.close()
            raise

    def _config(self, settings: Settings, device_id: int | None) -> Any:
        tf = self._tf
        config = tf.ConfigProto(
            intra_op_parallelism_threads=settings.intra_threads,
            inter_op_parallelism_threads=settings.inter_threads,
            use_per_session_threads=settings.own_threads,
            allow_soft_placement=settings.soft_placement,
        )
        config.gpu_options.allow_growth = settings.gpu_memory_fraction == 0
        config.gpu_options.per_process_gpu_memory_fraction = settings.gpu_memory_fraction
        if device_id == -1:
            config.device_count["GPU"] = 0
        levels = tf.OptimizerOptions
        config.graph_options.optimizer_options.global_jit_level = {
            -1: levels.OFF, 0: levels.DEFAULT, 1: levels.ON_1, 2: levels.ON_2,
        }[settings.jit]  # fmt: skip
        return config

    def _check_gpu(self, device_id: int) -> None:
        gpus = [each.name for each in self._session.list_devices() if each.device_type == "GPU"]
        if not any(name.endswith(f":{device_id}") for name in gpus):
            raise InvalidRequest(
                f"TensorFlow has no GPU {device_id}",
                hint=f"its GPUs here: {', '.join(gpus) or 'none'}; set kind: KIND_CPU, or install tensorflow[and-cuda]",
            )

    def _load_saved_model(self, name: str, path: Path, settings: Settings, warn: Callable[[str], None]) -> Any:
        # the loader is marked as deprecated, which it would say at each load
        loader = inspect.unwrap(self._tf.saved_model.loader.load)
        try:
            loaded = loader(self._session, [settings.tag], str(path))
        except RuntimeError as error:
            if "could not be found in SavedModel" not in str(error):
                raise
            raise InternalError(f"unable to load model '{name}', expected '{settings.tag}' tag") from error
        found = dict(loaded.signature_def)
        wanted = choose_signature(name, settings, sorted(found), warn)
        sides: list[tuple[dict[str, TensorSpec], dict[str, str]]] = []
        for kind, tensors in (("input", found[wanted].inputs), ("output", found[wanted].outputs)):
            specs, names = {}, {}
            for key in sorted(tensors):
                specs[key] = self._spec(name, kind, key, tensors[key])
                names[key] = tensors[key].name
            sides.append((specs, names))
        (inputs, own_inputs), (outputs, own_outputs) = sides
        return Signature(inputs, outputs), own_inputs, own_outputs

    def _spec(self, name: str, kind: str, key: str, info: Any) -> TensorSpec:
        wire = _WIRE.get(self._tf.as_dtype(info.dtype).name)
        if wire is None:
            raise InternalError(
                f"unable to process {kind} '{key}' for '{name}', unsupported datatype "
                f"'{self._tf.as_dtype(info.dtype).name}'"
            )
        return TensorSpec(key, wire, tuple(int(dim.size) for dim in info.tensor_shape.dim))

    def _load_graphdef(self, name: str, path: Path, _settings: Settings, _warn: Callable[[str], None]) -> Any:
        graph_def = self._tf.GraphDef()
        try:
            graph_def.ParseFromString(path.read_bytes())
        except Exception as error:
            raise InternalError(f"Can't parse {path} as binary proto") from error
        if not graph_def.node:
            raise InternalError(f"model {name} has an empty network")
        self._tf.import_graph_def(graph_def, name="")
        inputs = {node.name: TensorSpec(node.name, "", ()) for node in graph_def.node if node.op == "Placeholder"}
        outputs = {node.name: TensorSpec(node.name, "", ()) for node in graph_def.node if node.op != "Placeholder"}
        names = {key: f"{key}:0" for key in (*inputs, *outputs)}
        return Signature(inputs, outputs, exact=False), names, names

    def run_operations(self, names: Sequence[str]) -> None:
        """Runs operations of the graph once, one after the other.

        Raises:
            InternalError: there is none of a name, or it fails.
        """
        for name in names:
            with _tensorflow_errors():
                self._session.run(self._graph.get_operation_by_name(name))

    def runner(self, outputs: Sequence[str]) -> Callable[[Mapping[str, NDArray[Any]]], list[NDArray[Any]]]:
        """A function from inputs to these outputs, by the names of the signature. Several may run at once."""
        fetches = [self._outputs[name] for name in outputs]
        callables: dict[tuple[str, ...], Any] = {}

        def run(feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
            names = tuple(feeds)
            with _tensorflow_errors(BackendError):
                call = callables.get(names)
                if call is None:
                    call = self._session.make_callable(fetches, feed_list=[self._inputs[name] for name in names])
                    callables[names] = call
                return [np.asarray(each) for each in call(*feeds.values())]

        return run

    def close(self) -> None:
        """Ends the session and frees the graph; no runner is used any more."""
        self._session.close()
        # A graph and its operations refer to each other. To leave them to the garbage collector would cost tens of MB a
        # load, and a run of that holds up all threads for half a second once TensorFlow is imported.
        getattr(self._graph, "Dismantle", lambda: None)()


def choose_signature(name: str, settings: Settings, found: Sequence[str], warn: Callable[[str], None]) -> str:
    """The signature to serve: the one asked for, ``serving_default``, or else the first that is for serving.

    Raises:
        InternalError: there is none (Triton's text).
    """
    wanted = settings.signature or DEFAULT_SIGNATURE
    others = [each for each in found if each not in _NOT_TO_SERVE]
    if wanted in found:
        return wanted
    if settings.signature or not others:
        hint = f"signatures of the model: {', '.join(others) or 'none'}"
        raise InternalError(f"unable to load model '{name}', expected '{wanted}' signature", hint=hint)
    warn(f"unable to find serving signature '{wanted}' of model '{name}', using signature '{others[0]}'")
    return others[0]


_WIRE = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "string": "BYTES",
}
"""TensorFlow's types that Triton's backend knows -> names on the wire."""
