"""A small engine's side of the seam: a real event loop in a thread, models opened by hand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from tritonclient.grpc import model_config_pb2

from workbench.backends.base import SERVER, Execution, InstanceSpec, ModelContext, Origin
from workbench.backends.custom_metrics import CustomMetrics
from workbench.backends.python import PythonBackend, PythonModel
from workbench.clock import monotonic_ns
from workbench.config import to_json
from workbench.errors import InternalError, InvalidRequest, NotFound, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor

HEADER = "import triton_python_backend_utils as pb_utils\nimport numpy as np\nimport os, sys, time, json, threading\n"


@dataclass
class Batch:
    """One executed batch: responses by request, the error of ``finish``."""

    execution: Execution
    responses: dict[int, list[InferenceResponse]] = field(default_factory=dict)
    error: WorkbenchError | None = None
    finished: threading.Event = field(default_factory=threading.Event)
    final: dict[int, threading.Event] = field(default_factory=dict)
    finishes: int = 0

    def one(self, index: int = 0) -> InferenceResponse:
        """The answer of a request to a model that answers once; raises the error."""
        assert self.finished.wait(60), "the batch never finished"
        got = self.responses.get(index, [])
        if not got:
            raise self.error or InternalError("unanswered")
        assert len(got) == 1
        if got[0].error is not None:
            raise got[0].error
        return got[0]

    def all(self, index: int = 0) -> list[InferenceResponse]:
        """The responses of a request to a decoupled model, up to the final one."""
        assert self.final[index].wait(60), "no final response"
        return self.responses[index]


class Host:
    """A ``BackendHost`` that runs nested requests on the models opened here."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.clock = monotonic_ns
        self.logs: list[tuple[str, str, str]] = []
        self.origins: list[Origin] = []  # beside the lines
        self.states: list[tuple[str, bool, str, bool]] = []
        self.changed = threading.Condition()
        self.models: dict[str, Model] = {}
        self.cancelled: list[str] = []
        self.metrics = CustomMetrics()
        self.loads: list[tuple[str, str | None, dict[str, bytes]]] = []
        self.unloads: list[tuple[str, bool]] = []
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def infer(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> Callable[[], None]:
        model = self.models.get(request.model_name)
        if model is None:
            raise NotFound(f"Request for unknown model: '{request.model_name}' is not found")
        for tensor in request.inputs:
            if tensor.name not in model.inputs:
                raise InvalidRequest(f"unexpected inference input '{tensor.name}' for model '{request.model_name}'")
        model.begin([request], lambda index, response: on_response(response))
        return lambda: self.cancelled.append(request.model_name)

    def log(self, level: str, message: str, *, model: str = "", instance: str = "", origin: Origin = SERVER) -> None:
        with self.changed:
            self.logs.append((level, message, instance))
            self.origins.append(origin)
            self.changed.notify_all()

    def instance_state(self, instance: str, healthy: bool, why: str, *, gone: bool = False) -> None:
        with self.changed:
            self.states.append((instance, healthy, why, gone))
            self.changed.notify_all()

    def is_decoupled(self, name: str, version: int) -> bool:
        model = self.models.get(name)
        return model is not None and bool(model.context.config.model_transaction_policy.decoupled)

    async def load_model(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        if name not in self.models:
            raise InternalError(f"failed to load '{name}', failed to poll from model repository")
        self.loads.append((name, config, dict(files)))

    async def unload_model(self, name: str, unload_dependents: bool) -> None:
        self.unloads.append((name, unload_dependents))

    async def is_model_ready(self, name: str, version: int) -> bool:
        return name in self.models and version in (-1, 1)

    def wait(self, condition: Callable[[], Any], seconds: float = 20) -> None:
        """Until a log line or a state makes it true."""
        with self.changed:
            assert self.changed.wait_for(condition, seconds), (self.logs, self.states)

    def close(self) -> None:
        for model in list(self.models.values()):
            model.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class Model:
    """A model with one instance."""

    def __init__(self, host: Host, context: ModelContext) -> None:
        self.host = host
        self.context = context
        self.inputs = {tensor.name for tensor in context.config.input}
        self.loaded = PythonBackend().open(context)
        assert isinstance(self.loaded, PythonModel)
        try:
            self.instance: Any = self.loaded.create_instance(InstanceSpec(f"{context.name}_0", "KIND_CPU", 0, 0))
        except BaseException:
            self.loaded.close()
            raise
        self._closed = False

    def begin(
        self,
        requests: Sequence[InferenceRequest],
        on_response: Callable[[int, InferenceResponse], None] | None = None,
        is_cancelled: Callable[[int], bool] = lambda index: False,
    ) -> Batch:
        """Starts a batch, from any thread."""
        batch: Batch

        def respond(index: int, response: InferenceResponse) -> None:
            batch.responses.setdefault(index, []).append(response)
            if on_response is not None:
                self.host.loop.call_soon_threadsafe(on_response, index, response)
            if response.final:
                batch.final[index].set()

        def finish(error: WorkbenchError | None) -> None:
            batch.finishes += 1
            batch.error = error
            if on_response is not None:
                for index in range(len(requests)):
                    if not batch.responses.get(index) and error is not None:
                        answer = InferenceResponse("", 0, error=error)
                        self.host.loop.call_soon_threadsafe(on_response, index, answer)
            batch.finished.set()

        execution = Execution(list(requests), respond, finish, is_cancelled, 1, seqs=list(range(len(requests))))
        batch = Batch(execution, final={index: threading.Event() for index in range(len(requests))})
        execution.compute_start = monotonic_ns()
        if self.instance.kind == "loop":
            self.host.loop.call_soon_threadsafe(self.instance.start, execution)
        else:
            threading.Thread(target=self._execute, args=(execution,), daemon=True).start()
        return batch

    def _execute(self, execution: Execution) -> None:
        error: WorkbenchError | None = None
        try:
            self.instance.execute(execution)
        except WorkbenchError as raised:
            error = raised
        execution.finish(error)

    def run(self, *arrays: Any, name: str = "IN", **fields: Any) -> Batch:
        """A batch of one request for each array."""
        return self.begin([request(self.context.name, {name: array}, **fields) for array in arrays])

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.host.models.pop(self.context.name, None)
            self.instance.close()
            self.loaded.close()


def request(model: str, inputs: dict[str, Any], **fields: Any) -> InferenceRequest:
    """A request from arrays."""
    return InferenceRequest(model, [Tensor.from_numpy(name, np.asarray(a)) for name, a in inputs.items()], **fields)


def context(host: Host, root: Path, name: str, source: str | None, config: str = "", mode: str = "process") -> Any:
    """Writes a model directory and gives its context. ``source`` gets the usual imports in front."""
    from google.protobuf import text_format

    version = root / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    if source is not None:
        (version / "model.py").write_text(HEADER + source)
    message = text_format.Parse(
        f'name: "{name}" backend: "python" max_batch_size: 64 input {{ name: "IN" data_type: TYPE_FP32 dims: [-1] }} '
        f'output {{ name: "OUT" data_type: TYPE_FP32 dims: [-1] }} {config}',
        model_config_pb2.ModelConfig(),
    )
    text = to_json(message)
    return ModelContext(
        name,
        1,
        message,
        json.dumps(text),
        version.parent,
        version,
        host,
        {},
        python_execution=mode,  # type: ignore[arg-type]
    )


def open_model(host: Host, root: Path, name: str, source: str, config: str = "", mode: str = "process") -> Model:
    """Writes and opens a model, and offers it to nested requests."""
    model = Model(host, context(host, root, name, source, config, mode))
    host.models[name] = model
    return model


def body(code: str) -> str:
    """A model whose ``execute`` runs ``code`` for each request ``r`` with its input ``x``, and returns ``out``."""
    lines = "\n".join("            " + line for line in code.splitlines())
    return (
        "class TritonPythonModel:\n    def execute(self, requests):\n        out = []\n        for r in requests:\n"
        "            x = pb_utils.get_input_tensor_by_name(r, 'IN').as_numpy()\n"
        f"{lines}\n        return out\n"
    )


def answer(expression: str = "x") -> str:
    """Code for ``body`` that answers with an array."""
    return f"out.append(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', {expression})]))"


def descriptors() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


__all__ = ["Batch", "Host", "Model", "answer", "body", "context", "descriptors", "open_model", "request"]
