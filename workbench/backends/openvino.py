"""OpenVINO: one compiled model a version, one infer request an instance, as in Triton's backend.

It reads IR (model.xml, the default), ONNX, TFLite, PaddlePaddle and SavedModels (``default_model_filename``), and
releases the GIL while it runs, so instances are threads. Defaults are Triton's, and some of them surprise:

* On a CPU that has it, OpenVINO computes in bfloat16. Triton's backend has no parameter against that; here
  ``INFERENCE_PRECISION_HINT`` is one. The log and the model's ``details`` say which precision is in effect.
* With ``max_batch_size`` the model's batch is fixed to that many rows. A batch with fewer is refused unless
  ``ENABLE_BATCH_PADDING`` fills it up with zeros, which costs as much as a full one. Here
  ``WORKBENCH_DYNAMIC_BATCH`` leaves the batch open, to see what a backend that did so would gain.
* The CPU plugin keeps 32 bits of INT64, UINT64 and UINT32: greater values are not what they were.
* Instances share the streams of one compiled model (``NUM_STREAMS``, 1 by default): more instances than streams wait
  for each other inside OpenVINO.

Source: openvino_backend's ``openvino.cc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from workbench.backends.base import Execution, InstanceSpec, LoadedModel, ModelContext, ModelDescription, TensorSpec
from workbench.backends.batches import TensorInstance
from workbench.backends.model_files import model_file
from workbench.backends.openvino_config import DYNAMIC_BATCH, PRECISION, Settings, own_thread_count, read_settings
from workbench.backends.openvino_model import (
    check_all_given,
    compile_model,
    complete,
    describe_compiled,
    fit,
    give_tensor,
    openvino_errors,
    read_model,
    run_request,
    tensor_specs,
)
from workbench.config import DEFAULT_MAX_BATCH_SIZE
from workbench.errors import InternalError, InvalidRequest


class OpenVinoBackend:
    """Triton's ``openvino``."""

    name = "openvino"
    uses_gpus = False
    """Instances are on the CPU, as in Triton; another device is the parameter TARGET_DEVICE."""

    def describe(self, context: ModelContext) -> ModelDescription:
        """Inputs and outputs of the model file; it batches by its layouts (9.5)."""
        config = type(context.config)()
        config.CopyFrom(context.config)
        model = _read(context, ov.Core())
        complete(config, model, DEFAULT_MAX_BATCH_SIZE, lambda level, text: None)
        return ModelDescription(
            tensor_specs(model.inputs, "input"), tensor_specs(model.outputs, "output"), config.max_batch_size > 0
        )

    def auto_complete(self, context: ModelContext) -> Any:
        """The configuration, completed from the file."""
        config = type(context.config)()
        config.CopyFrom(context.config)
        default = int(context.backend_config.get("default-max-batch-size", DEFAULT_MAX_BATCH_SIZE))
        complete(config, _read(context, ov.Core()), default, lambda level, text: _log(context, level, text))
        return config

    def open(self, context: ModelContext) -> LoadedModel:
        """Reads the model, shapes it to the configuration and compiles it."""
        return _OpenVinoModel(context)


def _read(context: ModelContext, core: ov.Core) -> ov.Model:
    return read_model(core, model_file(context, "model.xml"))


def _log(context: ModelContext, level: Any, text: str, instance: str = "") -> None:
    context.host.log(level, text, model=context.name, instance=instance)


class _OpenVinoModel:
    any_thread = True

    def __init__(self, context: ModelContext) -> None:
        self._context = context
        config, settings = context.config, read_settings(context.config)
        self.reads_max_batch_size = not settings.dynamic_batch
        core = ov.Core()
        if settings.extension:
            with openvino_errors(" loading custom CPU extensions", where=settings.extension):
                core.add_extension(settings.extension)
        model = fit(config, _read(context, core), settings)
        if settings.properties:
            with openvino_errors("configuring openvino core"):
                core.set_property(settings.device, dict(settings.properties))
        auto_batching = config.max_batch_size > 0 and not settings.skip_dynamic_batchsize
        self._compiled: ov.CompiledModel | None = compile_model(
            core, model, settings.device, {"ALLOW_AUTO_BATCHING": auto_batching}
        )
        self._settings = settings
        self._inputs = tensor_specs(model.inputs, "input")
        self._outputs = tensor_specs(model.outputs, "output")
        self.details = describe_compiled(self._compiled, settings.device)
        self._tell(core)

    def create_instance(self, spec: InstanceSpec) -> _OpenVinoInstance:
        context = self._context
        if spec.kind != "KIND_CPU":
            raise InvalidRequest(
                f"unable to load model '{context.name}', Triton OpenVINO backend supports only Kind CPU and AUTO",
                hint="the device is a parameter: TARGET_DEVICE",
            )
        if "cpu-cores" in spec.host_policy.settings and not own_thread_count(context.config):
            text = (
                f"host policy '{spec.host_policy.name}' pins {spec.label}, but not the threads of OpenVINO: as in real "
                "Triton it puts them on cores of its own choice; INFERENCE_NUM_THREADS says how many there are"
            )
            _log(context, "warning", text, spec.label)
        if self._compiled is None:
            raise InternalError(f"model '{context.name}' is closed")
        with openvino_errors("creating infer request object"):
            request = self._compiled.create_infer_request()
        return _OpenVinoInstance(context, self._settings, request, self._inputs, self._outputs)

    def close(self) -> None:
        self._compiled = None

    def _tell(self, core: ov.Core) -> None:
        context, settings = self._context, self._settings
        _log(context, "info", f"model '{context.name}' on " + ", ".join(f"{k} {v}" for k, v in self.details.items()))
        precision = self.details.get("precision", "")
        if precision not in ("", "f32") and PRECISION not in settings.properties:
            _log(
                context,
                "warning",
                f"model '{context.name}' computes in {precision}, OpenVINO's default on this device, in real Triton, "
                f"too: expect differences of about 1e-2. The parameter {PRECISION}: f32 is read here, not by Triton",
            )
        most = context.config.max_batch_size
        if most > 1 and settings.dynamic_batch:
            _log(
                context,
                "warning",
                f"{DYNAMIC_BATCH}: model '{context.name}' takes batches of any size here. Not like Triton, whose "
                f"backend runs {most} rows in each batch",
            )
        elif most > 1 and settings.padding:
            text = f"each batch of model '{context.name}' is filled up to {most} rows, as in real Triton"
            _log(context, "info", text)
        elif most > 1:
            _log(
                context,
                "warning",
                f"model '{context.name}' takes batches of exactly {most} rows, as in real Triton: "
                f"set the parameter ENABLE_BATCH_PADDING to YES, or max_batch_size to 1",
            )


class _OpenVinoInstance(TensorInstance):
    def __init__(
        self,
        context: ModelContext,
        settings: Settings,
        request: ov.InferRequest,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
    ) -> None:
        super().__init__(context, inputs, outputs)
        self._name, self._inputs = context.name, [spec.name for spec in inputs]
        self._request: ov.InferRequest | None = request
        self._rows = 0 if settings.dynamic_batch else context.config.max_batch_size
        self._padding = settings.padding
        self._names = [spec.name for spec in self._form.outputs]
        self._given = 0
        self._held: list[NDArray[Any]] = []

    def execute(self, execution: Execution) -> None:
        """Runs a batch."""
        if self._rows and not self._padding:
            # Triton's backend looks after each request, so that no batch of several ever passes
            given = execution.requests[0].inputs[0].shape[0]
            if given != self._rows:
                raise InternalError(
                    f"expected requests with batch size '{self._rows}', got '{given}'... this error can be avoided by "
                    "setting 'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a performance cost."
                )
        super().execute(execution)

    def prepare(self, feeds: dict[str, NDArray[Any]]) -> ov.InferRequest:
        """Hands the inputs over: without a copy where they may be written to and no row is added."""
        request = self._request
        assert request is not None
        self._held = []
        check_all_given(self._name, self._inputs, feeds)
        for name, array in feeds.items():
            if self._rows:
                self._given = len(array)
                if self._given < self._rows:
                    padded = np.zeros((self._rows, *array.shape[1:]), array.dtype)
                    padded[: self._given] = array
                    array = padded
            self._held.append(give_tensor(request, name, array))
        return request

    def run(self, prepared: ov.InferRequest) -> ov.InferRequest:
        """One inference."""
        run_request(prepared)
        return prepared

    def take(self, raw: ov.InferRequest) -> Sequence[NDArray[Any]]:
        """Copies of the outputs, whose memory belongs to the request, without the rows that were added."""
        results = []
        for name in self._names:
            array = raw.get_tensor(name).data
            if self._rows:
                if array.shape[0] != self._rows:
                    raise InternalError(
                        f"expected the batch size of openvino model output to be {self._rows}, got {array.shape[0]}"
                    )
                array = array[: self._given]
            results.append(array.copy())
        self._held = []
        return results

    def free(self) -> None:
        """Drops the infer request."""
        self._request = None
