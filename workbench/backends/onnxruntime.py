"""ONNX Runtime: one session an instance, as in Triton; requests concatenated along the batch dimension.

Sessions release the GIL, so instances are threads. Defaults (threads, optimisation) are those of Triton's backend. The
parameter ``WORKBENCH_SHARE_SESSION``, which real Triton does not read, lets a device's instances share one session: its
weights are there once, and with ``intra_op_thread_count`` 1 it is the quickest form on a CPU.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from workbench.backends.base import InstanceSpec, LoadedModel, ModelContext, ModelDescription, TensorSpec
from workbench.backends.batches import RequestFault, TensorInstance
from workbench.backends.fit import check_fit
from workbench.backends.model_files import model_file
from workbench.backends.onnx_file import OnnxGraph
from workbench.backends.onnxruntime_config import own_thread_count, run_options, session_options, tensor_specs
from workbench.backends.onnxruntime_providers import (
    CPU,
    CUDA,
    RECORD_ASSIGNMENT,
    Provider,
    check_taken,
    on_cpu_instead,
    providers,
)
from workbench.backends.parameters import bool_parameter
from workbench.errors import BackendError, InternalError, Unsupported
from workbench.protocol.datatypes import BFLOAT16

_LONG_BYTES = 64 << 20
"""So much memory strings of unlike length may take as bytes of one length, whatever they hold."""
_STATUS = re.compile(r"^\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)$", re.DOTALL)
_ONNX_BFLOAT16 = 16
SHARE_PARAMETER = "WORKBENCH_SHARE_SESSION"
GLOBAL_THREADS = "enable-global-threadpool"


def _error_text(error: Exception) -> str:
    match = _STATUS.match(str(error))
    return f"onnx runtime error {match[1]}: {match[2]}" if match else f"onnx runtime error 1: {error}"


def model_path(context: ModelContext) -> Path:
    """The model file of a version: ``default_model_filename`` or model.onnx, or model.onnx in a directory of that name.

    Raises:
        NotReady: there is no such file (Triton's text).
    """
    return model_file(context, "model.onnx", inside="model.onnx")


def open_session(context: ModelContext, wanted: Sequence[Provider] = ((CPU, {}),)) -> ort.InferenceSession:
    """A session over the model file of a version, by the providers that are wanted.

    Raises:
        WorkbenchError: the file is missing or broken, a parameter is wrong.
    """
    path = model_path(context)
    options = session_options(context.config)
    for name in context.config.model_operations.op_library_filename:
        try:
            options.register_custom_ops_library(name)
        except Exception as error:
            raise InternalError(_error_text(error), where=name) from error
    try:
        if len(wanted) > 1:
            options.add_session_config_entry(RECORD_ASSIGNMENT, "1")
        return ort.InferenceSession(str(path), options, providers=list(wanted))
    except Exception as error:
        raise InternalError(_error_text(error), where=str(path)) from error


def run_once(model: bytes | Path, feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """What a graph (its bytes, or its file) makes of these inputs, all outputs in their order.

    On one thread, so that it is always the same.

    Raises:
        InternalError: ONNX Runtime refuses the graph or the inputs.
    """
    session = _plain_session(model)
    try:
        return list(session.run(None, feeds))
    except Exception as error:
        raise InternalError(_error_text(error)) from error


def with_inferred_outputs(graph: OnnxGraph, path: Path) -> OnnxGraph:
    """A graph whose outputs have the shapes that ONNX Runtime infers where the file has none.

    Raises:
        InternalError: ONNX Runtime refuses the file.
    """
    if not graph.shapeless:
        return graph
    found = {spec.name: spec for spec in tensor_specs(_plain_session(path).get_outputs())}
    outputs = tuple(found[spec.name] if spec.name in graph.shapeless else spec for spec in graph.outputs)
    unknown = frozenset(name for name in graph.shapeless if not found[name].dims)
    return replace(graph, outputs=outputs, shapeless=unknown)


def _plain_session(model: bytes | Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    given = model if isinstance(model, bytes) else str(model)
    try:
        return ort.InferenceSession(given, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        hint = f"ONNX Runtime {ort.__version__} does not take the file: it may be damaged, or of a later opset"
        raise InternalError(_error_text(error), hint=hint) from error


class OnnxRuntimeBackend:
    """Triton's ``onnxruntime``."""

    name = "onnxruntime"

    @property
    def uses_gpus(self) -> bool:
        """Whether this build of ONNX Runtime can use GPUs."""
        return CUDA in ort.get_available_providers()

    def describe(self, context: ModelContext) -> ModelDescription:
        """Inputs and outputs of the model file; batching is possible when every first dimension is variable (9.4)."""
        session = open_session(context)
        inputs, outputs = tensor_specs(session.get_inputs()), tensor_specs(session.get_outputs())
        batching = all(spec.dims and spec.dims[0] == -1 for spec in (*inputs, *outputs))
        return ModelDescription(inputs, outputs, batching)

    def auto_complete(self, context: ModelContext) -> None:
        """ONNX files are completed by the engine, from ``describe``."""
        return

    def open(self, context: ModelContext) -> LoadedModel:
        """Checks the configuration against the file; instances open sessions of their own."""
        return _OnnxModel(context)


class _OnnxModel:
    reads_max_batch_size = False
    any_thread = True

    def __init__(self, context: ModelContext) -> None:
        self._context = context
        self._shares = bool(bool_parameter(context.config, SHARE_PARAMETER))
        self._shared: dict[tuple[str, int], ort.InferenceSession] = {}
        self._lock = threading.Lock()
        self.details = {"engine": f"onnxruntime {ort.__version__}"}
        model_path(context)
        session_options(context.config)
        if context.backend_config.get(GLOBAL_THREADS, "").lower() in ("1", "true"):
            text = (
                f"--backend-config=onnxruntime,{GLOBAL_THREADS} is not offered here and ignored: each session has its "
                "own threads, as many as the parameter intra_op_thread_count says"
            )
            context.host.log("warning", text, model=context.name)

    def create_instance(self, spec: InstanceSpec) -> _OnnxInstance:
        session = self._session(spec)
        accelerators = self._context.config.optimization.execution_accelerators.gpu_execution_accelerator
        if accelerators and spec.kind != "KIND_GPU":
            names = ", ".join(each.name for each in accelerators)
            self._warn(f"{spec.label} is on a CPU: gpu_execution_accelerator ({names}) does nothing there", spec)
        if "cpu-cores" in spec.host_policy.settings and not own_thread_count(self._context.config):
            self._warn(
                f"host policy '{spec.host_policy.name}' pins {spec.label}, but not the threads of onnxruntime: as in "
                "real Triton it puts them on cores of its own choice unless the parameter intra_op_thread_count says "
                "how many there are",
                spec,
            )
        inputs = tensor_specs(session.get_inputs())
        overridable = tensor_specs(session.get_overridable_initializers())
        outputs = tensor_specs(session.get_outputs())
        check_fit(self._context.config, inputs, overridable, outputs)
        return _OnnxInstance(self._context, session, (*inputs, *overridable), outputs)

    def close(self) -> None:
        self._shared.clear()

    def _session(self, spec: InstanceSpec) -> ort.InferenceSession:
        """A session of the instance's own, as in Triton; that of the device where instances share one."""
        key = spec.kind, spec.device_id
        with self._lock:
            if key in self._shared:
                return self._shared[key]
            wanted = providers(self._context.config, spec)
            session = open_session(self._context, wanted)
            self.details["device"] = check_taken(session, wanted, spec)
            stray, nodes = on_cpu_instead(session)
            if stray:
                first = wanted[0][0]
                self._warn(f"{stray} of {nodes} nodes of '{self._context.name}' run on the CPU, not by {first}", spec)
            if self._shares:
                self._shared[key] = session
            return session

    def _warn(self, text: str, spec: InstanceSpec) -> None:
        self._context.host.log("warning", text, model=self._context.name, instance=spec.label)


class _OnnxInstance(TensorInstance):
    def __init__(
        self,
        context: ModelContext,
        session: ort.InferenceSession,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
    ) -> None:
        super().__init__(context, inputs, outputs)
        self._session: ort.InferenceSession | None = session
        self._outputs = self._form.outputs
        self._names = [spec.name for spec in self._outputs]
        self._options = run_options(context.config)
        self._texts = frozenset(spec.name for spec in inputs if spec.datatype == "BYTES")
        self._any_text = any(spec.datatype == "BYTES" for spec in self._outputs)
        self._bf16 = any(spec.datatype == "BF16" for spec in (*inputs, *self._outputs))
        if self._bf16 and self._texts:
            raise Unsupported(
                f"model '{context.name}' has tensors of BF16 and takes strings: ONNX Runtime's Python binding "
                "cannot run the two together",
                hint="take or give FP32 in the place of BF16, by a Cast in the graph; real Triton runs it as it is",
            )

    def prepare(self, feeds: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Strings in a form that the Python binding takes."""
        for name in self._texts & feeds.keys():
            feeds[name] = _to_strings(name, feeds[name])
        return feeds

    def run(self, prepared: dict[str, NDArray[Any]]) -> Sequence[Any]:
        """One call of the session."""
        session = self._session
        assert session is not None
        try:
            return (
                self._run_bf16(session, prepared) if self._bf16 else session.run(self._names, prepared, self._options)
            )
        except UnicodeDecodeError as error:
            raise RequestFault(
                f"an output holds a string that is not UTF-8, which ONNX Runtime's Python binding cannot give: {error}",
                hint="real Triton hands its bytes on; here it takes a model that gives UTF-8, or numbers",
            ) from error
        except Exception as error:
            raise BackendError(_error_text(error)) from error

    def take(self, raw: Sequence[Any]) -> Sequence[NDArray[Any]]:
        """Strings become bytes."""
        if not self._any_text:
            return raw
        return [
            _to_bytes(array) if spec.datatype == "BYTES" else array
            for spec, array in zip(self._outputs, raw, strict=True)
        ]

    def free(self) -> None:
        """Drops the session."""
        self._session = None

    def _run_bf16(self, session: ort.InferenceSession, feeds: dict[str, NDArray[Any]]) -> list[Any]:
        """numpy has no bfloat16 that ONNX Runtime knows, so values go in and out as their 16 bits."""
        values = {}
        for name, array in feeds.items():
            if array.dtype == BFLOAT16:
                bits = np.ascontiguousarray(array).view(np.uint16)
                values[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _ONNX_BFLOAT16)
            else:
                values[name] = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
        results = session.run_with_ort_values(self._names, values, self._options)
        return [
            _from_bf16(value) if spec.datatype == "BF16" else value.numpy()
            for value, spec in zip(results, self._outputs, strict=True)
        ]


def _to_strings(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """ONNX strings from BYTES: as text, or as bytes of one length where one is not UTF-8.

    Raises:
        RequestFault: that is not UTF-8, and one holds a zero, at which bytes of one length end; or bytes of one length
            would take far more memory than there is in the strings.
    """
    out = np.empty(array.shape, dtype=np.object_)
    flat = out.reshape(-1)
    try:
        for index, item in enumerate(array.flat):
            flat[index] = item.decode() if isinstance(item, bytes) else str(item)
        return out
    except UnicodeDecodeError as error:
        items = [item if isinstance(item, bytes) else str(item).encode() for item in array.flat]
        if any(b"\0" in item for item in items):
            raise RequestFault(
                f"input '{name}' holds a string that is not UTF-8, and a zero byte: {error}",
                hint="ONNX Runtime's Python binding takes the one or the other; real Triton ends it at the zero",
            ) from error
        width = max(map(len, items)) + 1  # the binding reads each up to a zero, past its end where there is none
        if width * len(items) > max(_LONG_BYTES, 16 * sum(map(len, items))):
            raise RequestFault(
                f"input '{name}' holds a string that is not UTF-8, and strings so unlike in length that as bytes of "
                f"one length, {width - 1}, the {len(items)} of them take {width * len(items) >> 20} MiB: {error}",
                hint="ONNX Runtime's Python binding takes bytes of one length only: send the long ones by themselves",
            ) from error
        return np.array(items, f"S{width}").reshape(array.shape)


def _to_bytes(array: NDArray[Any]) -> NDArray[Any]:
    out = np.empty(array.shape, dtype=np.object_)
    flat = out.reshape(-1)
    for index, item in enumerate(array.flat):
        flat[index] = item.encode() if isinstance(item, str) else bytes(item)
    return out


def _from_bf16(value: Any) -> NDArray[Any]:
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return np.empty(shape, BFLOAT16)
    bits = np.ctypeslib.as_array((ctypes.c_uint16 * count).from_address(value.data_ptr()))
    values: NDArray[Any] = bits.copy().view(BFLOAT16).reshape(shape)
    return values
