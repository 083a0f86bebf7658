"""Triton's DALI backend: serialized pipelines (model.dali), or Python files that define one (dali.py).

A batch's samples go in by ``fn.external_source`` and may differ in shape from request to request. DALI releases the GIL
(measured: another thread stalls no longer than the switch interval), so instances are threads; each has a pipeline of
its own, built with a queue of one batch (a longer one asks for batches that nobody has sent). A batch that fails leaves
its pipeline unusable: the next one gets a new pipeline, as in Triton. On a machine without a GPU pipelines run on the
CPU, where all their operators can.

Sources of behaviour and texts: dali_backend's ``DaliModel``, ``DaliModelInstance``, ``DaliExecutor``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workbench.backends.base import Execution, InstanceSpec, LoadedModel, ModelContext
from workbench.backends.dali_config import DaliSettings, check, complete, is_batched, read_settings
from workbench.backends.dali_file import CPU_ONLY, DATATYPES, DaliFile, read_dali
from workbench.backends.examples_base import response_to
from workbench.errors import BackendError, Code, InternalError, InvalidRequest, UnknownError
from workbench.protocol.tensors import InferenceRequest, Tensor

AUTOSERIALIZE_LIMIT_S = 120.0
_FALLBACK = "dali.py"


class DaliBackend:
    """Triton's ``dali``."""

    name = "dali"

    def __init__(self) -> None:
        import nvidia.dali  # the backend is not there without it

        self._dali: Any = nvidia.dali
        self._read: tuple[Any, DaliFile] | None = None

    def describe(self, context: ModelContext) -> None:
        """None: see ``auto_complete``."""
        return

    def auto_complete(self, context: ModelContext) -> Any:
        """The configuration with what the pipeline declares.

        Raises:
            UnknownError: there is no pipeline that can be read.
            InvalidRequest: the configuration contradicts it.
        """
        settings = read_settings(context.config, context.backend_config)
        batched = is_batched(context.config, context.model_dir)
        return complete(context.config, self._file(context), settings, batched=batched)

    def open(self, context: ModelContext) -> LoadedModel:
        """Compares the configuration with the pipeline; instances build pipelines of their own.

        Raises:
            UnknownError: there is no pipeline that can be read.
            InvalidRequest: the configuration does not fit it.
        """
        settings = read_settings(context.config, context.backend_config)
        file = self._file(context)
        check(context.config, file, settings)
        for path in settings.plugins:
            try:
                self._dali.plugin_manager.load_library(path)
            except Exception as error:
                context.host.log("error", f"Failed to load plugin libs: {error}", model=context.name)
        return _DaliModel(context, self._dali, file, settings)

    def _file(self, context: ModelContext) -> DaliFile:
        """The version's pipeline; a Python file that has not changed is not run again."""
        places = _places(context)
        stamp = [(str(path), path.stat().st_mtime_ns) for path in places if path.is_file()]
        if self._read is None or self._read[0] != stamp:
            self._read = stamp, _load(places)
        return self._read[1]


def _places(context: ModelContext) -> tuple[Path, Path]:
    name = context.config.default_model_filename or "model.dali"
    return context.version_dir / name, context.version_dir / _FALLBACK


def _load(places: tuple[Path, Path]) -> DaliFile:
    """A serialized pipeline in the first place, or a Python file in either.

    Raises:
        UnknownError: neither is there, or can be read (Triton's text).
    """
    first, fallback = places
    reasons = []
    if first.is_file():
        try:
            return read_dali(first.read_bytes())
        except InvalidRequest as error:
            reasons.append(f"{first.name}: {error.message}")
    for path in dict.fromkeys(place for place in places if place.suffix == ".py" and place.is_file()):
        try:
            return read_dali(autoserialized(path))
        except InvalidRequest as error:
            reasons.append(f"{path.name}: {error.message}")
    raise UnknownError(
        f"DALI Backend error: Failed to load model file. The program looked in the following locations: {first}, "
        f"{fallback}. Please make sure that the model exists in any of the locations and is properly serialized or can "
        "be properly serialized.",
        hint="; ".join(reasons)
        or "serialize a pipeline into model.dali (pipe().serialize(filename=...)), or write it under @autoserialize "
        "into dali.py",
    )


def autoserialized(path: Path) -> bytes:
    """The serialized pipeline of a Python file, which a process of its own runs.

    Raises:
        InvalidRequest: what that process failed with.
    """
    script = Path(__file__).parent / "dali_autoserialize.py"
    with tempfile.TemporaryDirectory(prefix="workbench-dali-") as scratch:
        target = Path(scratch) / "model.dali"
        try:
            done = subprocess.run(
                [sys.executable, "-P", str(script), str(path), str(target)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=AUTOSERIALIZE_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise InvalidRequest(f"it took more than {AUTOSERIALIZE_LIMIT_S:g} s") from error
        if done.returncode or not target.is_file():
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            text = lines[-1] if lines else f"exit code {done.returncode}"
            if "CUDA" in text:
                text += " (without a GPU: @pipeline_def(device_id=None), operators with device='cpu')"
            raise InvalidRequest(text)
        return target.read_bytes()


class _DaliModel:
    reads_max_batch_size = True
    any_thread = True

    def __init__(self, context: ModelContext, dali: Any, file: DaliFile, settings: DaliSettings) -> None:
        self._context, self._dali, self._file, self._settings = context, dali, file, settings

    def create_instance(self, spec: InstanceSpec) -> _DaliInstance:
        device = spec.device_id if spec.kind == "KIND_GPU" else CPU_ONLY
        return _DaliInstance(self._context, self._dali, self._file, self._settings, device)

    def close(self) -> None:
        if self._settings.release:
            self._dali.backend.ReleaseUnusedMemory()


class _DaliInstance:
    kind: Literal["thread"] = "thread"

    def __init__(self, context: ModelContext, dali: Any, file: DaliFile, settings: DaliSettings, device: int) -> None:
        config = context.config
        self._clock = context.host.clock
        self._dali = dali
        self._serialized = file.on(device)
        self._batching = config.max_batch_size > 0
        self._arguments: dict[str, Any] = {"prefetch_queue_depth": 1}
        if self._batching:
            self._arguments["batch_size"] = config.max_batch_size
        if settings.num_threads is not None:
            self._arguments["num_threads"] = settings.num_threads
        self._inputs = [tensor.name for tensor in file.inputs]
        self._outputs = [item.name for item in config.output]
        self._split = [tensor.name in settings.split or name in settings.split
                       for tensor, name in zip(file.outputs, self._outputs, strict=True)]  # fmt: skip
        self._closed = False
        try:
            self._pipeline: Any = self._built()
        except RuntimeError as error:
            text = str(error)
            wants_gpu = "CUDA" in text or "GPU" in text
            raise UnknownError(
                f"DALI Backend error: {text}",
                where=context.name,
                hint="the pipeline has operators for a GPU (device='gpu' or 'mixed'): on a CPU all are to have "
                "device='cpu', and pipeline_def device_id=None" if wants_gpu else "",
            ) from error  # fmt: skip

    def _built(self) -> Any:
        return self._dali.Pipeline.deserialize(self._serialized, **self._arguments)

    def execute(self, execution: Execution) -> None:
        """Runs a batch; where the model does not batch, each request by itself."""
        if self._closed:
            raise InternalError("the instance is closed")
        requests = execution.requests
        self._check_outputs(requests)
        if self._batching:
            self._run(execution, range(len(requests)))
            return
        for index in range(len(requests)):
            self._run(execution, [index])

    def close(self) -> None:
        """Lets the pipeline go."""
        self._closed = True
        self._pipeline = None

    def _check_outputs(self, requests: Sequence[InferenceRequest]) -> None:
        """As in Triton, a request takes all outputs."""
        counts = [len(request.outputs) or len(self._outputs) for request in requests]
        if len(set(counts)) > 1:
            raise _error("DALI Backend error: All of the requests must expect the same number of outputs.")
        if counts[0] != len(self._outputs):
            raise _error(
                f"DALI Backend error: Number of outputs expected by the requests ({counts[0]}) does not match the "
                f"number of outputs from DALI pipeline ({len(self._outputs)}).",
                hint=f"ask for all of {', '.join(self._outputs)}, or for none by name",
            )

    def _run(self, execution: Execution, chosen: Sequence[int]) -> None:
        requests = [execution.requests[index] for index in chosen]
        samples: dict[str, list[NDArray[Any]]] = {name: [] for name in self._inputs}
        for request in requests:
            for tensor in request.inputs:
                samples[tensor.name].extend(tensor.data)
        if samples and not any(samples.values()):  # DALI would throw the pipeline away over it
            raise _error("DALI Backend error: a batch without a row", hint="DALI runs no empty batch: leave it out")
        execution.input_end = self._clock()
        try:
            if self._pipeline is None:
                self._pipeline = self._built()
            for name, rows in samples.items():
                self._pipeline.feed_input(name, rows)
            found = self._pipeline.run()
            execution.output_start = self._clock()
            answers = [self._dealt_out(index, part, requests) for index, part in enumerate(found)]
        except Exception as error:
            self._pipeline = None  # no longer valid: the next batch builds a new one
            if isinstance(error, BackendError):
                raise
            raise _error(f"Runtime error: {error}") from error
        for place, (index, request) in enumerate(zip(chosen, requests, strict=True)):
            outputs = [
                Tensor(name, datatype, arrays[place].shape, arrays[place])
                for name, (datatype, arrays) in zip(self._outputs, answers, strict=True)
            ]
            execution.respond(index, response_to(request, outputs))

    def _dealt_out(
        self, number: int, found: Any, requests: Sequence[InferenceRequest]
    ) -> tuple[str, list[NDArray[Any]]]:
        """An output's data type, and its part for each request, in memory of its own."""
        on_cpu = found.as_cpu() if hasattr(found, "as_cpu") else found
        datatype = DATATYPES[int(on_cpu.dtype)]
        counts = [request.inputs[0].shape[0] if request.inputs else 1 for request in requests]
        if len(on_cpu) != sum(counts):
            raise _error(
                f"DALI Backend error: Cannot split a shape list with {len(on_cpu)} samples to list shapes of total "
                f"{sum(counts)} samples."
            )
        ends = list(accumulate(counts))
        if on_cpu.is_dense_tensor() and not self._split[number]:
            whole = np.array(on_cpu.as_array())
            return datatype, [whole[end - count : end] for end, count in zip(ends, counts, strict=True)]
        join = np.concatenate if self._split[number] else np.stack
        parts = []
        for end, count in zip(ends, counts, strict=True):
            samples = [np.array(on_cpu.at(index)) for index in range(end - count, end)]
            try:
                parts.append(join(samples))
            except ValueError as error:
                raise _error(
                    f"output '{self._outputs[number]}': the samples of one request have the shapes "
                    f"{', '.join(str(list(sample.shape)) for sample in samples)}, an answer has one",
                    hint="resize or pad them in the pipeline, or send them as requests of their own",
                ) from error
        return datatype, parts


def _error(text: str, hint: str = "") -> BackendError:
    return BackendError(text, hint=hint, code=Code.UNKNOWN)
