"""A backend for tests of the engine: its models answer when the test lets them, and misbehave when a request asks.

It stands behind the same seam as every backend. ``y`` is ``x``; the request parameter ``do`` asks for more: ``raise``,
``refuse`` (raises an error of the engine's), ``unready`` (raises before its inputs are ready, on a thread),
``interrupt`` (what Ctrl-C raises), ``error`` (an error for this request alone), ``nothing`` (no answer), ``stream:N``
(N responses before the final one), ``cancel`` (waits for the cancellation, then answers CANCELLED), ``again:N`` (gives
the request back N times).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from workbench.backends.base import Execution, InstanceSpec, ModelContext, ModelDescription
from workbench.errors import BackendError, Cancelled, InstanceDied, InvalidRequest
from workbench.protocol.tensors import InferenceRequest, InferenceResponse

CONFIG = """\
name: "gate"
backend: "gate"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
dynamic_batching { }
"""


@dataclass
class Gate:
    """What a test holds: ``open`` lets batches end; ``batches`` are the sizes seen; ``live`` counts open instances.

    While ``unready``, no batch on a thread says that its inputs are ready.
    """

    open: threading.Event = field(default_factory=threading.Event)
    unready: bool = False
    started: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    batches: list[list[str]] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    live: int = 0
    made: int = 0
    fail_instance: str = ""
    instances: dict[str, Any] = field(default_factory=dict)
    host: Any = None
    given_back: dict[int, int] = field(default_factory=dict)


class GateBackend:
    """Made with the gate that its models share."""

    name = "gate"
    gate = Gate()

    def describe(self, context: ModelContext) -> ModelDescription | None:
        return None

    def auto_complete(self, context: ModelContext) -> Any | None:
        return None

    def open(self, context: ModelContext) -> GateModel:
        return GateModel(context, self.gate)


class GateModel:
    reads_max_batch_size = False

    def __init__(self, context: ModelContext, gate: Gate) -> None:
        self.context = context
        self.gate = gate
        gate.host = context.host
        self.loop_kind = "loop" in context.config.parameters
        self.any_thread = "any_thread" in context.config.parameters

    def create_instance(self, spec: InstanceSpec) -> Any:
        if self.gate.fail_instance:
            raise InvalidRequest(self.gate.fail_instance)
        self.gate.live += 1
        self.gate.made += 1
        made = LoopGate(self, spec) if self.loop_kind else ThreadGate(self, spec)
        self.gate.instances[spec.name] = made
        return made

    def close(self) -> None:
        pass


def answer(gate: Gate, execution: Execution, index: int, request: InferenceRequest) -> None:
    """Answers one request as its ``do`` parameter asks."""
    do = str(request.parameters.get("do", ""))
    response = InferenceResponse(request.model_name, 1, request.id)
    if do == "nothing":
        return
    if do.startswith("again:"):
        key = execution.seqs[index]
        gate.given_back[key] = gate.given_back.get(key, 0) + 1
        if gate.given_back[key] <= int(do.removeprefix("again:")):
            execution.rescheduled = (execution.rescheduled or set()) | {index}
            return
    if do == "raise":
        raise ValueError("the model raised")
    if do == "refuse":
        raise BackendError("the model refused")
    if do == "interrupt":
        raise KeyboardInterrupt
    if do == "error":
        response.error = BackendError("this one is refused")
    elif do == "cancel":
        waited = threading.Event()
        for _ in range(500):
            if execution.is_cancelled(index):
                break
            waited.wait(0.01)
        response.error = Cancelled("")
    elif do.startswith("stream:"):
        for _ in range(int(do.removeprefix("stream:"))):
            execution.respond(index, InferenceResponse(request.model_name, 1, outputs=outputs(request), final=False))
    else:
        response.outputs = outputs(request)
    execution.respond(index, response)


def outputs(request: InferenceRequest) -> list[Any]:
    from workbench.protocol.tensors import Tensor

    tensor = request.inputs[0]
    return [Tensor("y", tensor.datatype, tensor.shape, tensor.data)]


class ThreadGate:
    kind: Literal["thread"] = "thread"
    tells_ready = True

    def __init__(self, model: GateModel, spec: InstanceSpec) -> None:
        self.gate = model.gate
        self.clock: Callable[[], int] = model.context.host.clock

    def execute(self, execution: Execution) -> None:
        self.gate.threads.append(threading.get_ident())
        self.gate.batches.append([request.id for request in execution.requests])
        self.gate.started.release()
        execution.input_end = self.clock()
        if any(request.parameters.get("do") == "unready" for request in execution.requests):
            raise ValueError("the inputs are wrong")
        if not self.gate.unready:
            execution.ready()
        assert self.gate.open.wait(20), "the test never opened the gate"
        execution.output_start = self.clock()
        for index, request in enumerate(execution.requests):
            answer(self.gate, execution, index, request)

    def close(self) -> None:
        self.gate.live -= 1


class LoopGate:
    """Answers on the loop; ``die`` ends it as the death of a process would, ``revive`` brings it back."""

    kind: Literal["loop"] = "loop"

    def __init__(self, model: GateModel, spec: InstanceSpec) -> None:
        self.gate = model.gate
        self.spec = spec
        self.host = model.context.host
        self.running: Execution | None = None

    def start(self, execution: Execution) -> None:
        self.gate.batches.append([request.id for request in execution.requests])
        self.running = execution
        self.gate.started.release()
        if self.gate.open.is_set():
            self.host.loop.call_soon(self.end)

    def end(self) -> None:
        execution, self.running = self.running, None
        if execution is None:
            return
        for index, request in enumerate(execution.requests):
            answer(self.gate, execution, index, request)
        execution.finish(None)

    def die(self, *, gone: bool = False) -> None:
        self.host.instance_state(self.spec.name, False, "exit code -9", gone=gone)

        def fail() -> None:
            if self.running is not None:
                execution, self.running = self.running, None
                execution.finish(InstanceDied("the process ended"))

        self.host.loop.call_soon_threadsafe(fail)

    def revive(self) -> None:
        self.host.instance_state(self.spec.name, True, "started again")

    def close(self) -> None:
        self.gate.live -= 1
