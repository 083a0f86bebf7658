"""A SavedModel by OpenVINO, which reads it without TensorFlow: 0.2 GB in place of 1.3 GB.

It computes in float32, as TensorFlow does; answers differ by rounding (1e-6 on Basic Pitch). What it cannot do is said
at load: GraphDefs, strings, other tags and signatures than the default ones, initialization operations, GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import openvino as ov
from numpy.typing import NDArray

from workbench.backends.base import TensorSpec
from workbench.backends.openvino_config import PRECISION
from workbench.backends.openvino_model import (
    check_all_given,
    compile_model,
    describe_compiled,
    give_tensor,
    openvino_errors,
    read_model,
    run_request,
    tensor_specs,
)
from workbench.backends.tensorflow_config import INSTALL, Settings
from workbench.backends.tensorflow_signature import Signature
from workbench.errors import InvalidRequest


class OpenVinoSavedModel:
    """A SavedModel, compiled by OpenVINO.

    Raises:
        WorkbenchError: it is broken, or asks for what only TensorFlow does.
    """

    def __init__(self, name: str, path: Path, settings: Settings) -> None:
        lacking = {
            "a GraphDef": settings.graphdef,
            f"TF_GRAPH_TAG {settings.tag}": settings.tag != "serve",
            f"TF_SIGNATURE_DEF {settings.signature}": settings.signature not in ("", "serving_default"),
            "TF_INIT_OPS_FILE": bool(settings.init_ops_file),
        }
        for what, asked in lacking.items():
            if asked:
                raise InvalidRequest(f"model '{name}' takes TensorFlow: OpenVINO does not do {what}", hint=INSTALL)
        self._name = name
        core = ov.Core()
        model = read_model(core, path)
        inputs, outputs = tensor_specs(model.inputs, "input"), tensor_specs(model.outputs, "output")
        for spec in (*inputs, *outputs):
            if not spec.datatype:
                raise InvalidRequest(
                    f"model '{name}' takes TensorFlow: OpenVINO does not do the data type of '{spec.name}'",
                    hint=INSTALL,
                )
        properties: dict[str, Any] = {PRECISION: "f32"}
        if settings.intra_threads:
            properties["INFERENCE_NUM_THREADS"] = settings.intra_threads
        self._compiled: ov.CompiledModel | None = compile_model(core, model, "CPU", properties)
        self.signature = Signature(_by_name(inputs), _by_name(outputs))
        self.details = describe_compiled(self._compiled, "CPU")

    def run_operations(self, names: Sequence[str]) -> None:
        """There are none."""

    def runner(self, outputs: Sequence[str]) -> Callable[[Mapping[str, NDArray[Any]]], list[NDArray[Any]]]:
        """A function from inputs to these outputs, for one thread at a time."""
        assert self._compiled is not None
        with openvino_errors("creating infer request object"):
            request = self._compiled.create_infer_request()

        def run(feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
            check_all_given(self._name, self.signature.inputs, feeds)
            held = [give_tensor(request, name, array) for name, array in feeds.items()]
            run_request(request)
            held.clear()
            return [request.get_tensor(name).data.copy() for name in outputs]

        return run

    def close(self) -> None:
        """Drops the compiled model; called once its runners are not used any more."""
        self._compiled = None


def _by_name(specs: Sequence[TensorSpec]) -> dict[str, TensorSpec]:
    return {spec.name: spec for spec in sorted(specs, key=lambda spec: spec.name)}
