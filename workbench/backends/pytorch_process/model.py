"""The PyTorch models that hold the GIL, as one Python-based backend: each runs in the process of a Python model.

Files: a ``.pt2`` that ``torch.export.save`` wrote, a ``.pt2`` of AOTInductor (compiled code: no compiler is needed to
load it), a ``model.py`` with a subclass of ``torch.nn.Module`` (its weights in the ``.pt`` beside it), and TorchScript
where ``runtime: "model.py"`` asks for a process. Behaviour, parameters and their defaults: pytorch_backend,
``model.py`` and ``pt2``. It runs with whatever interpreter EXECUTION_ENV_PATH names: numpy and torch are all it needs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack
import triton_python_backend_utils as pb_utils
from torch.utils import _pytree as pytree

from workbench.backends._child import fitting, torch_names
from workbench.backends._child.torch_package import CompiledInput, compiled_inputs, size_problem

_PYTHON_RUNTIME = "model.py"
_NAMES = {
    torch.bool: "BOOL", torch.uint8: "UINT8", torch.int8: "INT8", torch.int16: "INT16", torch.int32: "INT32",
    torch.int64: "INT64", torch.float16: "FP16", torch.float32: "FP32", torch.float64: "FP64",
    torch.bfloat16: "BF16", torch.uint16: "UINT16", torch.uint32: "UINT32", torch.uint64: "UINT64",
}  # fmt: skip
Flat = Callable[[list[Any]], list[Any]]
"""A model as a function from its input leaves to its output leaves."""


class TritonPythonModel:
    """One instance of one model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the model onto its device."""
        self._name = args["model_name"]
        self._config = json.loads(args["model_config"])
        self._batching = int(self._config.get("max_batch_size", 0)) > 0
        sequence = self._config.get("sequence_batching") or {}
        if sequence.get("control_input") or sequence.get("state"):
            raise pb_utils.TritonModelException(
                f"'{self._name}': sequence controls and states are for TorchScript on threads (a model.pt without "
                "runtime); real Triton has none of them for this form either"
            )
        self._set_threads()
        self._device = self._find_device(args["model_instance_kind"], args["model_instance_device_id"])
        path = self._find_file(Path(args["model_repository"], args["model_version"]))
        self._inputs = [entry["name"] for entry in self._config["input"]]
        self._compiled_inputs = _taken(path)
        self._run, leaves, outputs, own = self._load(path)
        self._outputs = [entry["name"] for entry in self._config["output"]]
        self._types = {entry["name"]: entry["data_type"].removeprefix("TYPE_") for entry in self._config["output"]}
        self._order = self._match(self._inputs, leaves, own, "input")
        if self._compiled_inputs is not None:
            self._check_fit(self._compiled_inputs)
        self._takes = self._match(self._outputs, outputs, [torch_names.own_name(each) for each in outputs], "output")

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Runs a batch as one call."""
        responses: list[Any] = [None] * len(requests)
        parts: dict[int, list[Any]] = {}
        for index, request in enumerate(requests):
            try:
                parts[index] = self._tensors(request)
            except _Refused as error:  # its own fault: the others are run
                responses[index] = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), _INVALID))
        good = list(parts)
        groups = ([good] if good else []) if self._batching else [[index] for index in good]
        with torch.inference_mode():
            for group in groups:
                joined = [_joined([parts[index][place] for index in group]) for place in range(len(self._inputs))]
                flat: list[Any] = [None] * len(joined)
                for place, value in zip(self._order or range(len(joined)), joined, strict=True):
                    flat[place] = value
                values = self._pick(self._run(flat))
                counts = [len(parts[index][0]) for index in group] if self._batching else []
                dealt = [self._dealt(name, value, counts) for name, value in zip(self._outputs, values, strict=True)]
                for place, index in enumerate(group):
                    responses[index] = pb_utils.InferenceResponse([made[place] for made in dealt])
        return responses

    # ---- loading

    def _load(self, path: Path) -> tuple[Flat, list[str], list[str], list[str]]:
        """The model, the paths of its inputs and outputs (none where only their order is known), own input names."""
        if path.suffix == ".py":
            return self._load_class(path), [], [], []
        kind = _archive_kind(path)
        if kind == "aoti":
            loader = torch._inductor.aoti_load_package(str(path)).loader
            in_spec, out_spec = loader.get_call_spec()
            leaves = torch_names.paths(in_spec)
            return loader.run, leaves, torch_names.paths(out_spec, "RESULT"), [torch_names.own_name(e) for e in leaves]
        if kind == "export":
            return self._load_program(path)
        module = torch.jit.load(str(path), map_location=self._device).eval()
        return lambda flat: _leaves(module(*flat)), [], [], []

    def _load_program(self, path: Path) -> tuple[Flat, list[str], list[str], list[str]]:
        program = torch.export.load(path)
        if self._device.type != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, self._device)
        module = program.module()
        in_spec, out_spec = program.call_spec.in_spec, program.call_spec.out_spec
        leaves = torch_names.paths(pytree.treespec_dumps(in_spec))
        own = [torch_names.own_name(each) for each in leaves]
        names = list(program.module_call_graph[0].signature.forward_arg_names or ())
        for index, name in enumerate(names):
            if index < len(leaves) and leaves[index] == f"ARGS[{index}]":
                own[index] = name

        def run(flat: list[Any]) -> list[Any]:
            args, kwargs = pytree.tree_unflatten(flat, in_spec)
            return _leaves(module(*args, **kwargs))

        return run, leaves, torch_names.paths(pytree.treespec_dumps(out_spec), "RESULT"), own

    def _load_class(self, path: Path) -> Flat:
        spec = importlib.util.spec_from_file_location(f"workbench_torch_model_{self._name}", path)
        assert spec is not None and spec.loader is not None  # noqa: PT018
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, torch.nn.Module)]
        own = [kind for kind in kinds if kind.__module__ == module.__name__]
        if not kinds:
            raise pb_utils.TritonModelException("Cannot find a subclass of torch.nn.Module")
        if len(own) > 1:  # real Triton takes the first by name without a word
            listed = ", ".join(sorted(kind.__name__ for kind in own))
            pb_utils.Logger.log_warn(f"{path.name} has several modules ({listed}): the first is served")
        chosen = min(own or kinds, key=lambda kind: kind.__name__)
        model = chosen()
        weights = path.with_suffix(".pt")
        if weights.exists():
            model.load_state_dict(torch.load(weights, map_location=self._device, weights_only=True))
        else:
            pb_utils.Logger.log_info(f"Model parameter file not found for '{self._name}'")
        model = model.to(self._device).eval()
        compiled = self._compiled(model)
        return lambda flat: _leaves(compiled(*flat), self._outputs)

    def _compiled(self, model: Any) -> Any:
        options = json.loads(self._parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS") or "{}")
        if "model" in options:
            raise pb_utils.TritonModelException("'model' is not an optional parameter for 'torch.compile'")
        if not options.get("disable") and not any(map(shutil.which, (os.environ.get("CXX") or "g++", "clang++"))):
            pb_utils.Logger.log_warn(
                f"'{self._name}' runs without torch.compile, which real Triton uses: there is no C++ compiler here; "
                'TORCH_COMPILE_OPTIONAL_PARAMETERS: {"disable": true} asks for this'
            )
            return model
        if not options.get("disable"):
            pb_utils.Logger.log_info(
                f"torch.compile compiles '{self._name}' at its first call, which takes a while: a model_warmup has "
                "that done before it is ready"
            )
        return torch.compile(model, **options)

    def _find_file(self, folder: Path) -> Path:
        given = self._config.get("default_model_filename") or ""
        names = [given]
        if self._config.get("runtime") == _PYTHON_RUNTIME:  # the core fills in model.pt, which may hold the weights
            names = [*([given] if given != "model.pt" else []), "model.py", "model.pt"]
        for name in names:
            if name and (folder / name).exists():
                return folder / name
        raise pb_utils.TritonModelException(f"No model found in {folder}/{names}")

    def _find_device(self, kind: str, number: str) -> torch.device:
        if kind != "GPU":
            return torch.device("cpu")
        if not torch.cuda.is_available():
            raise pb_utils.TritonModelException(
                f"'{self._name}' has an instance of KIND_GPU, but torch {torch.__version__} sees no GPU: "
                "set kind: KIND_CPU, or install a build of torch with CUDA"
            )
        return torch.device(f"cuda:{number}")

    def _set_threads(self) -> None:
        """Thread counts: real Triton's ``model.py`` takes one thread unless told otherwise, its C++ backend all."""
        python = self._config.get("runtime") == _PYTHON_RUNTIME
        for keys, setter in (
            (("NUM_THREADS", "INTRA_OP_THREAD_COUNT"), torch.set_num_threads),
            (("NUM_INTEROP_THREADS", "INTER_OP_THREAD_COUNT"), torch.set_num_interop_threads),
        ):
            text = next(filter(None, map(self._parameter, keys)), "1" if python else "")
            if text:
                try:
                    setter(int(text))
                except ValueError:
                    raise pb_utils.TritonModelException(f"failed to convert '{text}' to integral number") from None
                except RuntimeError:  # on a thread of the server's process, where torch has worked already
                    pb_utils.Logger.log_warn(f"'{self._name}': {keys[1]} is set once in a process, it stays as it is")

    def _match(self, names: list[str], leaves: list[str], own: list[str], what: str) -> list[int]:
        if not leaves:
            return []
        if what == "input" and len(names) != len(leaves):
            raise pb_utils.TritonModelException(
                f"unable to load model '{self._name}', configuration expects {len(names)} inputs, "
                f"model provides {len(leaves)}"
            )
        try:
            found, told = torch_names.indices(names, leaves, own, what)
        except torch_names.NamesError as error:
            raise pb_utils.TritonModelException(f"unable to load model '{self._name}': {error}") from None
        if not told and len(names) > 1:
            pb_utils.Logger.log_warn(f"the names of the {what}s of '{self._name}' say nothing: taken in their order")
        return found

    def _parameter(self, key: str) -> str:
        return str(self._config.get("parameters", {}).get(key, {}).get("string_value", ""))

    def _check_fit(self, inputs: Sequence[CompiledInput]) -> None:
        """Whether the configuration is that of the package, whose code looks at nothing."""
        by_place = dict(zip(self._order or range(len(self._inputs)), self._config["input"], strict=True))
        for place, given in enumerate(inputs):
            entry = by_place[place]
            name, reshape = entry["name"], entry.get("reshape")
            dims = [int(dim) for dim in (entry["dims"] if reshape is None else reshape.get("shape", ()))]
            problem = fitting.datatype_problem(self._name, "input", name, entry["data_type"], given.datatype)
            if not problem and not self._may_fit(dims, given):
                problem = fitting.dims_problem(self._name, name, dims, given.dims, batching=self._batching, exact=False)
            most = given.sizes[0].most if given.sizes else 1
            if not problem and self._batching and most is not None and int(self._config["max_batch_size"]) > most:
                problem = (
                    f"unable to load model '{self._name}', max_batch_size is {self._config['max_batch_size']}, and the "
                    f"package was compiled for {most} rows at most"
                )
            if problem:
                raise pb_utils.TritonModelException(problem)

    def _may_fit(self, dims: Sequence[int], given: CompiledInput) -> bool:
        """Whether some request holds both the configured dims and the package's sizes: the configuration may leave a
        size open that the package has fixed, also that of the batch. Each request is looked at before it runs."""
        wanted = [int(self._config["max_batch_size"]), *dims] if self._batching else list(dims)
        open_batch = self._batching and given.dims[:1] == (-1,)
        pairs = list(zip(wanted, given.dims, strict=False))[1 if open_batch else 0 :]
        return len(wanted) == len(given.dims) > 0 and all(-1 in pair or pair[0] == pair[1] for pair in pairs)

    # ---- executing

    def _tensors(self, request: Any) -> list[Any]:
        """The inputs of a request, in the configuration's order."""
        tensors = [self._tensor(request, name) for name in self._inputs]
        if self._compiled_inputs is not None:
            order = self._order or range(len(tensors))
            shapes: list[Sequence[int]] = [()] * len(tensors)
            names = [""] * len(tensors)
            for place, tensor, name in zip(order, tensors, self._inputs, strict=True):
                shapes[place], names[place] = tuple(tensor.shape), name
            problem = size_problem(self._compiled_inputs, shapes, names)
            if problem:
                raise _Refused(problem)
        return tensors

    def _tensor(self, request: Any, name: str) -> Any:
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        if tensor is None:
            raise pb_utils.TritonModelException(f"input '{name}' is missing")
        array = tensor.as_numpy() if tensor.triton_dtype() == _BYTES else None
        if array is not None:  # torch has no tensor of strings: a list of them
            try:
                return [item.decode() for item in array.flat]
            except UnicodeDecodeError as error:
                raise _Refused(f"input '{name}' holds a string that is not UTF-8: {error}") from None
        return torch.utils.dlpack.from_dlpack(tensor.to_dlpack()).to(self._device)

    def _pick(self, values: list[Any]) -> list[Any]:
        if self._takes:
            return [values[index] for index in self._takes]
        if len(values) < len(self._outputs):
            name = self._outputs[len(values)]
            raise pb_utils.TritonModelException(
                f"The output {name} in the model configuration refers to an output index which doesn't exist. This "
                f"model has {len(values)} outputs"
            )
        return values[: len(self._outputs)]

    def _dealt(self, name: str, value: Any, counts: list[int]) -> list[Any]:
        """An output's part for each request; the whole where there is one request and no batching."""
        if isinstance(value, list):
            value = np.array([item.encode() for item in value], dtype=np.object_)
            given = "BYTES"
        elif isinstance(value, torch.Tensor):
            given = _NAMES.get(value.dtype, str(value.dtype))
        else:
            raise pb_utils.TritonModelException(f"output '{name}' must be of type Tensor or List[str].")
        wanted = self._types[name].replace("STRING", "BYTES")
        if given != wanted:
            raise pb_utils.TritonModelException(
                f"configuration expects datatype TYPE_{wanted} for output '{name}', model provides TYPE_{given}"
            )
        if not counts:
            return [_made(name, value)]
        rows = len(value) if value.ndim else 0
        if rows != sum(counts):
            raise pb_utils.TritonModelException(
                f"failed to split the output tensor '{name}' in responses: expected batch size of atleast "
                f"{sum(counts)} in model output, got {rows}"
            )
        ends = np.cumsum(counts)
        return [_made(name, value[end - count : end]) for end, count in zip(ends, counts, strict=True)]


class _Refused(ValueError):
    """A request that cannot be run, and why."""


_INVALID = pb_utils.TritonError.INVALID_ARG
_BYTES = 13
"""Triton's number for strings (``TRITONSERVER_TYPE_BYTES``)."""


def _joined(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], list):
        return [item for part in parts for item in part]
    return torch.cat(parts)


def _made(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return pb_utils.Tensor(name, value)
    return pb_utils.Tensor.from_dlpack(name, value.detach().cpu().contiguous().clone())


def _leaves(value: Any, names: Sequence[str] = ()) -> list[Any]:
    """The tensors that a model gave, one after the other; those of a dictionary by ``names`` where it has them all."""
    if isinstance(value, dict) and names and all(name in value for name in names):
        return [value[name] for name in names]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, tuple) or (isinstance(value, list) and not all(isinstance(item, str) for item in value)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _taken(path: Path) -> tuple[CompiledInput, ...] | None:
    """What a package of compiled code takes; None for another file, which looks for itself."""
    return compiled_inputs(path) if path.suffix != ".py" and _archive_kind(path) == "aoti" else None


def _archive_kind(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any("/data/aotinductor/" in name for name in names):
        return "aoti"
    return "export" if any(name.endswith("/archive_format") for name in names) else "script"
