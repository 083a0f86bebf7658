"""TorchScript: a module an instance as in Triton, on threads, because it releases the GIL.

Parameters, defaults and texts: pytorch_backend (``pt/model_state.cc``, ``pt/model_instance_state.cc``). What Triton
does not do: two calls before an instance is ready, because the profiling executor compiles in the first two (parameter
``WORKBENCH_WARMUP_CALLS``, 2 where it is not given; a model with ``model_warmup`` is left to that).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.backends.base import InstanceSpec, ModelContext, TensorSpec
from workbench.backends.batches import RequestFault, TensorInstance, configured_specs
from workbench.backends.parameters import bool_parameter, int_parameter
from workbench.backends.pytorch_names import Places, find_places
from workbench.backends.pytorch_threads import THREADS
from workbench.errors import BackendError, InternalError, InvalidRequest, Unsupported
from workbench.protocol import datatypes

warnings.filterwarnings("ignore", r"`?torch\.jit\.", DeprecationWarning)  # said once below, in words that help

WARMUP_PARAMETER = "WORKBENCH_WARMUP_CALLS"
_WARMUP_SIZE = 16
"""What a variable dimension is in the calls before an instance is ready."""
_OUTPUTS = "Tensor, List[str] or Tuple containing one of these two types"
_TYPES = {
    torch.bool: "BOOL", torch.uint8: "UINT8", torch.int8: "INT8", torch.int16: "INT16", torch.int32: "INT32",
    torch.int64: "INT64", torch.float16: "FP16", torch.float32: "FP32", torch.float64: "FP64",
}  # fmt: skip
_told = threading.Event()


class Settings:
    """A model's parameters, read once.

    Raises:
        InvalidRequest: one cannot be read (Triton's text).
    """

    def __init__(self, config: Any) -> None:
        self.optimized = not bool_parameter(config, "DISABLE_OPTIMIZED_EXECUTION")
        self.inference_mode = bool_parameter(config, "INFERENCE_MODE") is not False
        self.cache_cleaning = bool(bool_parameter(config, "ENABLE_CACHE_CLEANING"))
        self.weight_sharing = bool(bool_parameter(config, "ENABLE_WEIGHT_SHARING"))
        self.cudnn = not bool_parameter(config, "DISABLE_CUDNN")
        self.profiling = bool_parameter(config, "ENABLE_JIT_PROFILING")
        self.executor = bool_parameter(config, "ENABLE_JIT_EXECUTOR")
        self.fuser = bool_parameter(config, "ENABLE_TENSOR_FUSER")
        self.nvfuser = bool_parameter(config, "ENABLE_NVFUSER")
        self.intra_op = max(0, int_parameter(config, "INTRA_OP_THREAD_COUNT") or 0)
        self.inter_op = max(0, int_parameter(config, "INTER_OP_THREAD_COUNT") or 0)
        calls = int_parameter(config, WARMUP_PARAMETER)
        self.warmup_calls = calls if calls is not None else 0 if config.model_warmup else 2

    def apply(self) -> None:
        """Puts them in force before a call, as Triton does: torch has them for the process, not for a model."""
        THREADS.apply()
        if torch._C._get_graph_executor_optimize() != self.optimized:
            torch._C._set_graph_executor_optimize(self.optimized)
        if self.profiling is not None:
            torch._C._jit_set_profiling_mode(self.profiling)
        if self.executor is not None:
            torch._C._jit_set_profiling_executor(self.executor)
        if self.fuser is not None:
            torch._C._jit_set_texpr_fuser_enabled(self.fuser)


class ScriptModel:
    """A model version."""

    reads_max_batch_size = False
    any_thread = True

    def __init__(self, context: ModelContext, path: Path) -> None:
        self._context = context
        self._path = path
        self._settings = settings = Settings(context.config)
        self._shared: dict[str, Any] = {}
        self._lock = threading.Lock()
        self.details = {"engine": f"torch {torch.__version__}", "form": "TorchScript"}
        if not _told.is_set():
            _told.set()
            self._log(
                "info",
                "TorchScript is deprecated by PyTorch and still loaded by real Triton; for new models: ONNX "
                "(torch.onnx.export), or torch.export with AOTInductor (.pt2, Triton 26.03 and later)",
            )
        if settings.nvfuser:
            self._log("warning", "ENABLE_NVFUSER does nothing: this torch has no nvFuser any more")
        if settings.intra_op and (text := THREADS.add(self, context.name, settings.intra_op)):
            self._log("warning", text)
        if settings.inter_op and (text := THREADS.set_inter_op(context.name, settings.inter_op)):
            self._log("warning", text)

    def create_instance(self, spec: InstanceSpec) -> ScriptInstance:
        """Loads the module for an instance, or shares it (ENABLE_WEIGHT_SHARING), and calls it until it is quick.

        Raises:
            WorkbenchError: the file is broken, the configuration does not fit ``forward``, there is no such GPU.
        """
        device = _device(spec)
        module = self._module(device, spec.label)
        places = find_places(self._context.config, _arguments(module), lambda text: self._log("warning", text))
        instance = ScriptInstance(self._context, spec, module, device, self._settings, places)
        try:
            instance.warm_up(self._settings.warmup_calls)
        except Exception as error:  # zeros are not for every model, and warming up is no must
            text = f"no calls before {spec.label} is ready: {_first_line(error)}; describe some in model_warmup"
            self._log("verbose", text)
        return instance

    def close(self) -> None:
        """Drops what the instances shared."""
        self._shared.clear()
        THREADS.remove(self)

    def _module(self, device: str, instance: str) -> Any:
        with self._lock:
            if device in self._shared:
                self._log("info", f"Reusing TorchScript model for instance '{instance}'")
                return self._shared[device]
            try:
                with torch.inference_mode(self._settings.inference_mode):
                    module = torch.jit.load(str(self._path), map_location=device or None)
            except Exception as error:
                raise InternalError(
                    f"failed to load model '{self._context.name}': {error}", where=str(self._path)
                ) from error
            if self._settings.weight_sharing:
                self._shared[device] = module
            return module

    def _log(self, level: Any, text: str) -> None:
        self._context.host.log(level, text, model=self._context.name)


class ScriptInstance(TensorInstance):
    """One instance: a module on its device."""

    def __init__(
        self,
        context: ModelContext,
        spec: InstanceSpec,
        module: Any,
        device: str,
        settings: Settings,
        places: Places,
    ) -> None:
        inputs, outputs = configured_specs(context.config)
        super().__init__(context, inputs, outputs)
        self._module: Any = module
        self._device = device
        self._settings = settings
        self._places = places
        self._specs = inputs
        self._config = context.config
        self._copies = _writes_inputs(module)
        self._keeps = _gives_what_it_writes(module)
        self._storages = frozenset(
            each.untyped_storage().data_ptr() for each in (*module.parameters(), *module.buffers()) if each.numel()
        )
        gpu = device.startswith("cuda")
        self._stream: Any = torch.cuda.Stream(device) if gpu else None

    def prepare(self, feeds: dict[str, NDArray[Any]]) -> Any:
        """The arguments of ``forward``: tensors over the requests' own memory, lists of strings.

        Raises:
            BackendError: one is missing, of an input that the configuration has for optional.
        """
        values = {name: self._tensor(array) for name, array in feeds.items()}
        if self._places.dictionary:
            return [values]
        missing = [name for name in self._places.inputs if name not in values]
        if missing:
            raise BackendError(
                f"input '{missing[0]}' is missing: the arguments of forward are all needed",
                hint=f"send it, and leave out optional: true of '{missing[0]}' in config.pbtxt",
            )
        arguments: list[Any] = [None] * len(values)
        for name, value in values.items():
            arguments[self._places.inputs[name]] = value
        return arguments

    def run(self, prepared: list[Any]) -> list[Any]:
        """Calls ``forward``; its results one after the other."""
        self._settings.apply()
        try:
            with torch.inference_mode() if self._settings.inference_mode else torch.no_grad():
                return _flat(self._module(*prepared) if self._stream is None else self._run_on_gpu(prepared))
        except Exception as error:
            raise BackendError(f"PyTorch execute failure: {error}") from error

    def _run_on_gpu(self, prepared: list[Any]) -> Any:
        with torch.cuda.stream(self._stream), torch.backends.cudnn.flags(enabled=self._settings.cudnn):
            results = self._module(*prepared)
            self._stream.synchronize()
            if self._settings.cache_cleaning:
                torch.cuda.empty_cache()
            return results

    def take(self, raw: list[Any]) -> Sequence[NDArray[Any]]:
        """The configured outputs as arrays.

        Raises:
            InvalidRequest: a result is missing, a scalar, or of another type than configured (Triton's texts).
        """
        arrays = []
        for spec in self._form.outputs:
            index = self._places.outputs[spec.name]
            if index >= len(raw):
                raise InvalidRequest(
                    f"The output {spec.name} in the model configuration refers to an output index which doesn't exist. "
                    f"This model has {len(raw)} outputs"
                )
            arrays.append(self._array(spec, raw[index]))
        return arrays

    def warm_up(self, calls: int) -> None:
        """Calls ``forward`` with zeros: one row, and 16 for each variable dimension.

        Raises:
            WorkbenchError: the model does not take zeros of that shape.
        """
        feeds = {spec.name: _zeros(spec, self._config.max_batch_size > 0) for spec in self._specs}
        if self._config.batch_input:
            return  # they are made from requests
        for _ in range(calls):
            self.run(self.prepare(dict(feeds)))

    def free(self) -> None:
        """Drops the module."""
        self._module = None

    def _tensor(self, array: NDArray[Any]) -> Any:
        if array.dtype == np.object_:
            try:
                return [item.decode() if isinstance(item, bytes) else str(item) for item in array.flat]
            except UnicodeDecodeError as error:
                raise RequestFault(
                    f"an input holds a string that is not UTF-8: {error}",
                    hint="a str of TorchScript is text: send UTF-8, or the bytes as a tensor of UINT8",
                ) from error
        array = np.ascontiguousarray(array)
        tensor = torch.from_numpy(array if array.flags.writeable else np.asarray(_Lent(array)))
        if self._stream is not None:
            with torch.cuda.stream(self._stream):
                return tensor.to(self._device, non_blocking=True)
        return tensor.clone() if self._copies else tensor

    def _array(self, spec: TensorSpec, value: Any) -> NDArray[Any]:
        name = spec.name
        if isinstance(value, list):
            given = "BYTES"
        elif isinstance(value, torch.Tensor):
            given = _TYPES.get(value.dtype, "INVALID")
        else:
            raise InvalidRequest(f"output '{name}' must be of type Tensor or List[str].")
        if given != spec.datatype:
            raise InvalidRequest(
                f"configuration expects datatype TYPE_{spec.datatype} for output '{name}', model provides TYPE_{given}"
            )
        if given == "BYTES":
            strings = np.empty(len(value), dtype=np.object_)
            strings[:] = [item.encode() for item in value]
            return strings
        if not value.ndim:
            raise InvalidRequest(f"output '{name}' is a scalar which is not supported.")
        if self._keeps or value.untyped_storage().data_ptr() in self._storages:
            value = value.clone()  # the module's own memory: its next call may change it
        array: NDArray[Any] = value.detach().cpu().contiguous().numpy()
        return array


class _Lent:
    """A read-only array's memory without the mark: torch warns of it, and a module that writes is found out before."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array  # keeps it alive
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def _device(spec: InstanceSpec) -> str:
    """What to load onto; "" for KIND_MODEL: where the file says."""
    if spec.kind == "KIND_MODEL":
        return ""
    if spec.kind != "KIND_GPU":
        return "cpu"
    if not torch.cuda.is_available():
        raise InvalidRequest(
            f"instance {spec.name} has kind KIND_GPU but torch {torch.__version__} sees no GPU",
            hint="set kind: KIND_CPU, or install a build of torch with CUDA",
        )
    if spec.visible_devices:
        raise Unsupported(f"instance {spec.label} is on a MIG slice, which takes a process of its own")
    return f"cuda:{spec.device_id}"


def _arguments(module: Any) -> list[tuple[str, str]]:
    try:
        found = module.forward.schema.arguments
    except (AttributeError, RuntimeError) as error:
        raise InternalError(f"the TorchScript file has no method forward: {error}") from error
    arguments = [(argument.name, str(argument.type.kind())) for argument in found]
    return arguments[1:] if arguments and arguments[0][1] == "ClassType" else arguments


def _writes_inputs(module: Any) -> bool:
    """Whether ``forward`` may write into its arguments, which are the requests' own memory."""
    graph = module.inlined_graph
    aliases = graph.alias_db()
    return any(aliases.has_writers(value) for value in list(graph.inputs())[1:])


def _gives_what_it_writes(module: Any) -> bool:
    """Whether a result may be memory that ``forward`` keeps in the module and writes into (a running total, say)."""
    graph = module.inlined_graph
    aliases = graph.alias_db()
    kept = [value for node in graph.findAllNodes("prim::GetAttr", True) for value in node.outputs()]
    written = [value for value in kept if aliases.has_writers(value)]
    return any(aliases.may_contain_alias(result, value) for result in graph.outputs() for value in written)


def _flat(results: Any) -> list[Any]:
    """The results of ``forward`` one after the other.

    Raises:
        TypeError: they are something else than tensors and lists of strings (Triton's texts).
    """
    if isinstance(results, torch.Tensor):
        return [results]
    if isinstance(results, tuple):
        for index, value in enumerate(results):
            if isinstance(value, list):
                _check_list(value, f"output at index {index}")
            elif not isinstance(value, torch.Tensor):
                raise TypeError(f"output at index {index} must be of type Tensor or List[str]")
        return list(results)
    if isinstance(results, list):
        _check_list(results, "output")
        return [results]
    raise TypeError(f"output must be of type {_OUTPUTS}. It should not be a List / Dictionary of Tensors or a Scalar")


def _check_list(value: list[Any], what: str) -> None:
    stray = next((item for item in value if not isinstance(item, str)), "")
    if stray != "":
        raise TypeError(f"{what} must be of type Tensor or List[str], received List[{type(stray).__name__}]")


def _zeros(spec: TensorSpec, batching: bool) -> NDArray[Any]:
    dims = [_WARMUP_SIZE if dim == -1 else dim for dim in spec.dims]
    if batching and dims:
        dims[0] = 1
    dtype = datatypes.BY_WIRE[spec.datatype].numpy
    return np.full(dims, b"", np.object_) if dtype == np.object_ else np.zeros(dims, dtype)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{lines[0]} ... {lines[-1]}" if len(lines) > 1 else "".join(lines) or type(error).__name__
