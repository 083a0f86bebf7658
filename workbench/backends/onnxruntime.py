"""ONNX Runtime: one session an instance, as in Triton; requests concatenated along the batch dimension.

Sessions release the GIL, so instances are threads. Defaults (threads, optimisation) are those of Triton's backend.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from workbench.backends.base import (
    Execution,
    InstanceSpec,
    LoadedModel,
    ModelContext,
    ModelDescription,
    TensorSpec,
)
from workbench.backends.onnx_fit import check_fit
from workbench.backends.onnxruntime_config import own_thread_count, session_options, tensor_specs
from workbench.backends.ragged import batch_inputs, batch_outputs, scatter
from workbench.errors import BackendError, InternalError, InvalidRequest, NotReady
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor

_STATUS = re.compile(r"^\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)$", re.DOTALL)
_ONNX_BFLOAT16 = 16


def _error_text(error: Exception) -> str:
    match = _STATUS.match(str(error))
    return f"onnx runtime error {match[1]}: {match[2]}" if match else f"onnx runtime error 1: {error}"


def model_path(context: ModelContext) -> Path:
    """The model file of a version: ``default_model_filename`` or model.onnx, or model.onnx in a directory of that name.

    Raises:
        NotReady: there is no such file (Triton's text).
    """
    path = context.version_dir / (context.config.default_model_filename or "model.onnx")
    if path.is_dir():
        path = path / "model.onnx"
    if not path.is_file():
        raise NotReady(f"unable to find '{path}' for model instance '{context.name}'", where=str(context.version_dir))
    return path


def open_session(context: ModelContext, providers: Sequence[Any] = ("CPUExecutionProvider",)) -> ort.InferenceSession:
    """A session over the model file of a version.

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
        return ort.InferenceSession(str(path), options, providers=list(providers))
    except Exception as error:
        raise InternalError(_error_text(error), where=str(path)) from error


def run_once(model: bytes | Path, feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """What a graph (its bytes, or its file) makes of these inputs, all outputs in their order.

    On one thread, so that it is always the same.

    Raises:
        InternalError: ONNX Runtime refuses the graph or the inputs.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(
            model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"]
        )
        return list(session.run(None, feeds))
    except Exception as error:
        raise InternalError(_error_text(error)) from error


def _providers(spec: InstanceSpec) -> list[Any]:
    if spec.kind == "KIND_GPU":
        if "CUDAExecutionProvider" not in ort.get_available_providers():
            raise InvalidRequest(
                f"instance {spec.name} has kind KIND_GPU but this onnxruntime has no CUDA provider",
                hint="install onnxruntime-gpu instead of onnxruntime, or set kind: KIND_CPU",
            )
        return [("CUDAExecutionProvider", {"device_id": spec.device_id}), "CPUExecutionProvider"]
    return ["CPUExecutionProvider"]


class OnnxRuntimeBackend:
    """Triton's ``onnxruntime``."""

    name = "onnxruntime"

    @property
    def uses_gpus(self) -> bool:
        """Whether this build of ONNX Runtime can use GPUs."""
        return "CUDAExecutionProvider" in ort.get_available_providers()

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
        model_path(context)
        session_options(context.config)

    def create_instance(self, spec: InstanceSpec) -> _OnnxInstance:
        session = open_session(self._context, _providers(spec))
        if "cpu-cores" in spec.host_policy.settings and not own_thread_count(self._context.config):
            self._context.host.log(
                "warning",
                f"host policy '{spec.host_policy.name}' pins {spec.label}, but not the threads of onnxruntime: as in "
                "real Triton it puts them on cores of its own choice unless the parameter intra_op_thread_count says "
                "how many there are",
                model=self._context.name,
                instance=spec.label,
            )
        if spec.kind == "KIND_GPU" and "CUDAExecutionProvider" not in session.get_providers():
            raise InternalError(f"instance {spec.name}: onnxruntime could not use GPU {spec.device_id}")
        inputs = tensor_specs(session.get_inputs())
        overridable = tensor_specs(session.get_overridable_initializers())
        outputs = tensor_specs(session.get_outputs())
        check_fit(self._context.config, inputs, overridable, outputs)
        return _OnnxInstance(self._context, session, (*inputs, *overridable), outputs)

    def close(self) -> None:
        pass


class _OnnxInstance:
    kind: Literal["thread"] = "thread"

    def __init__(
        self,
        context: ModelContext,
        session: ort.InferenceSession,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
    ) -> None:
        config = self._config = context.config
        self._scattered = batch_outputs(config)
        self._clock = context.host.clock
        self._session: ort.InferenceSession | None = session
        self._batching = config.max_batch_size > 0
        self._inputs = {spec.name: spec for spec in inputs}
        names = [item.name for item in config.output]
        states = [state.output_name for state in config.sequence_batching.state]
        self._states = frozenset(states)
        names += [name for name in states if name not in names]
        by_name = {spec.name: spec for spec in outputs}
        self._outputs = [by_name[name] for name in names]
        self._names = names
        self._scalar_shapes = {
            item.name: tuple(item.reshape.shape if item.HasField("reshape") else item.dims)
            for item in config.output
            if not by_name[item.name].dims
        }
        self._bf16 = any(spec.datatype == "BF16" for spec in (*self._inputs.values(), *self._outputs))

    def execute(self, execution: Execution) -> None:
        """Runs the batch as one call of the session."""
        session = self._session
        if session is None:
            raise InternalError("the instance is closed")
        requests = execution.requests
        feeds = self._feeds(requests)
        execution.input_end = self._clock()
        try:
            results = self._run_bf16(session, feeds) if self._bf16 else session.run(self._names, feeds)
        except Exception as error:
            raise BackendError(_error_text(error)) from error
        execution.output_start = self._clock()
        self._respond(execution, results)

    def close(self) -> None:
        """Drops the session."""
        self._session = None

    def _feeds(self, requests: Sequence[InferenceRequest]) -> dict[str, NDArray[Any]]:
        first = requests[0]
        feeds: dict[str, NDArray[Any]] = {}
        if len(requests) == 1:
            for tensor in first.inputs:
                feeds[tensor.name] = tensor.data
        else:
            parts = {tensor.name: [tensor.data] for tensor in first.inputs}
            for request in requests[1:]:
                for tensor in request.inputs:
                    parts[tensor.name].append(tensor.data)
            for name, arrays in parts.items():
                ragged = len(self._inputs[name].dims) != arrays[0].ndim
                feeds[name] = np.concatenate([array.ravel() for array in arrays] if ragged else arrays)
        for name, array in feeds.items():
            spec = self._inputs[name]
            if spec.datatype == "BYTES":
                feeds[name] = _to_text(name, array)
            elif len(spec.dims) != array.ndim:
                feeds[name] = array.reshape(()) if not spec.dims else array.reshape(-1)
        if self._config.batch_input:
            feeds |= batch_inputs(self._config, requests)
        return feeds

    def _run_bf16(self, session: ort.InferenceSession, feeds: dict[str, NDArray[Any]]) -> list[Any]:
        """numpy has no bfloat16 that ONNX Runtime knows, so values go in and out as their 16 bits."""
        values = {}
        for name, array in feeds.items():
            if array.dtype == ml_dtypes.bfloat16:
                bits = np.ascontiguousarray(array).view(np.uint16)
                values[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _ONNX_BFLOAT16)
            else:
                values[name] = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
        results = session.run_with_ort_values(self._names, values)
        return [
            _from_bf16(value) if spec.datatype == "BF16" else value.numpy()
            for value, spec in zip(results, self._outputs, strict=True)
        ]

    def _respond(self, execution: Execution, results: Sequence[Any]) -> None:
        requests = execution.requests
        parts = [
            (spec, self._dealt_out(spec, array, execution)) for spec, array in zip(self._outputs, results, strict=True)
        ]
        for index, request in enumerate(requests):
            execution.respond(index, self._response(request, [(spec, arrays[index]) for spec, arrays in parts]))

    def _dealt_out(self, spec: TensorSpec, array: NDArray[Any], execution: Execution) -> Sequence[NDArray[Any]]:
        """An output's part for each request."""
        requests, rows = execution.requests, execution.rows
        if spec.datatype == "BYTES":
            array = _to_bytes(array)
        if spec.name in self._scattered:
            return scatter(spec.name, array, *self._scattered[spec.name], requests)
        if not array.ndim:
            array = array.reshape(self._scalar_shapes.get(spec.name, ()))
        if len(requests) == 1:
            return [array]
        total = sum(rows)
        if array.shape[0] != total:
            raise BackendError(
                f"output tensor '{spec.name}' has {array.shape[0]} rows for a batch of {total}",
                hint="the model does not keep the batch dimension; set max_batch_size: 0",
            )
        ends = accumulate(rows)
        return [array[end - count : end] for end, count in zip(ends, rows, strict=True)]

    def _response(
        self, request: InferenceRequest, arrays: Sequence[tuple[TensorSpec, NDArray[Any]]]
    ) -> InferenceResponse:
        wanted = {output.name for output in request.outputs}
        outputs = [
            Tensor(spec.name, spec.datatype, array.shape, array)
            for spec, array in arrays
            if not wanted or spec.name in wanted or spec.name in self._states
        ]
        return InferenceResponse(request.model_name, request.model_version, request.id, outputs)


def _to_text(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """ONNX strings from BYTES: the Python binding takes text only."""
    out = np.empty(array.shape, dtype=np.object_)
    flat = out.reshape(-1)
    try:
        for index, item in enumerate(array.flat):
            flat[index] = item.decode() if isinstance(item, bytes) else str(item)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"input '{name}' holds a string that is not UTF-8: {error}") from error
    return out


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
        return np.empty(shape, ml_dtypes.bfloat16)
    bits = np.ctypeslib.as_array((ctypes.c_uint16 * count).from_address(value.data_ptr()))
    values: NDArray[Any] = bits.copy().view(ml_dtypes.bfloat16).reshape(shape)
    return values
