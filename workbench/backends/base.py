"""The seam between the engine and a framework.

A backend opens a model version (on a loader thread; it may block), the model makes instances, an instance executes
batches. An instance is one of two kinds:

* ``thread``: ``execute`` blocks; the engine calls it on the instance's own thread. For frameworks that release the GIL.
* ``loop``: ``start`` returns at once and is called on the engine's loop; the instance calls ``Execution.finish`` there
  when its child process has answered. For everything that holds the GIL.

The engine owns scheduling, statistics, records and life cycle; a backend only turns requests into responses and stamps
where input preparation ends and output handling starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from workbench.backends.custom_metrics import CustomMetrics
from workbench.backends.host_policy import HostPolicy
from workbench.clock import Clock
from workbench.errors import WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse

LogLevel = Literal["verbose", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor as the model file describes it: ``dims`` with -1 for variable, the batch dimension included.

    ``datatype`` is the v2 name (``FP32``), empty when the file does not say.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What a framework's file says of itself, for auto-completion. ``batching``: every first dimension is variable."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    batching: bool = False


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One instance: ``kind`` is KIND_CPU, KIND_GPU or KIND_MODEL; ``index`` counts those of a model version.

    ``name`` is Triton's ``<group>_<n>``: a group on several GPUs has each name once a GPU. ``label`` is one instance's
    alone, and what records and events call it. ``device_id`` is the number in ``instance_group.gpus``, 0 without one;
    ``visible_devices`` is CUDA_VISIBLE_DEVICES for a process of its own (a MIG slice's uuid), which then finds its
    device under ``local_device_id``. A ``passive`` instance is made, and executes nothing.
    """

    name: str
    kind: str
    device_id: int
    index: int
    host_policy: HostPolicy = field(default_factory=HostPolicy)
    visible_devices: str = ""
    passive: bool = False
    on_several: bool = False

    @property
    def label(self) -> str:
        """The name, with the device where the group is on several."""
        return f"{self.name} (gpu {self.device_id})" if self.on_several else self.name

    @property
    def local_device_id(self) -> int:
        """The device's number in a process of the instance's own."""
        return 0 if self.visible_devices else self.device_id


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a log line comes from.

    ``source`` is ``logger`` (``pb_utils.Logger``), ``stdout`` or ``stderr`` (printed by a model), ``error`` (raised by
    one, with the Python ``traceback``), or ``server``. ``file`` and ``line`` are the place in the code, where it is
    known; ``execution`` is the batch that was executed.
    """

    source: Literal["server", "logger", "stdout", "stderr", "error"] = "server"
    file: str = ""
    line: int = 0
    traceback: str = ""
    execution: Execution | None = None


SERVER = Origin()


class BackendHost(Protocol):
    """What a backend may ask of the engine."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    metrics: CustomMetrics

    def infer(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> Callable[[], None]:
        """A nested request (BLS). To be called on the loop; gives a function that cancels it."""

    def log(
        self, level: LogLevel, message: str, *, model: str = "", instance: str = "", origin: Origin = SERVER
    ) -> None:
        """A line for the server's log and event stream, where the log settings allow its level. Thread-safe."""

    def instance_state(self, instance: str, healthy: bool, why: str, *, gone: bool = False) -> None:
        """An instance's process died (``healthy`` False) or is back; ``instance`` is its label. Thread-safe.

        Requests wait for an instance that will be back; when all instances of a model are ``gone`` for good, they fail.
        """

    def is_decoupled(self, name: str, version: int) -> bool:
        """Whether a model is decoupled; False for one that does not serve. On the loop."""

    async def load_model(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Loads or reloads a model for another one; on the loop. ``config`` is JSON, ``files`` maps paths to contents.

        Raises:
            WorkbenchError: with Triton's texts.
        """

    async def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Starts unloading a model for another one; on the loop.

        Raises:
            WorkbenchError: with Triton's texts.
        """

    async def is_model_ready(self, name: str, version: int) -> bool:
        """Whether a model version is ready, -1 for the latest; on the loop."""


@dataclass(slots=True)
class ModelContext:
    """What a backend gets to open one model version.

    ``config`` is the normalised ``ModelConfig`` message, ``config_json`` the same as Triton's JSON (what a Python
    model finds in ``args["model_config"]``), ``backend_config`` the ``--backend-config`` settings of this backend.
    """

    name: str
    version: int
    config: Any
    config_json: str
    model_dir: Path
    version_dir: Path
    host: BackendHost
    backend_config: Mapping[str, str] = field(default_factory=dict)
    python_execution: Literal["process", "thread"] = "process"


@dataclass(frozen=True, slots=True)
class ResponseReport:
    """The times of one response, for ``response_stats``: ``number`` counts the responses of a request from 0.

    Stamps are nanoseconds of the host's clock; ``output_start`` is 0 for a response that was left out. With
    ``cancelled`` the request was given up at this response.
    """

    number: int
    start: int
    output_start: int
    end: int
    failed: bool = False
    cancelled: bool = False


def _nowhere(report: ResponseReport) -> None:
    """Nobody counts responses."""


def _nobody_waits() -> None:
    """Nothing is to be done when the framework begins."""


@dataclass(slots=True)
class Execution:
    """One batch on its way through an instance.

    ``respond(i, response)`` answers request ``i``; a response with ``final=False`` is sent on at once, final ones may
    be delivered together when the batch ends. Stamps are nanoseconds of the host's clock: ``compute_start`` is set by
    the engine when the instance begins, ``input_end`` (inputs are ready for the framework) and ``output_start`` (the
    framework is done) by the backend, ``compute_end`` by ``finish``. ``finish`` is called exactly once, by the engine
    for thread instances and by the instance for loop instances; a request left unanswered then gets ``error`` (or an
    internal error), so that nothing is lost. A decoupled model may go on responding after ``finish``; the request ends
    with its final response.

    ``rows`` and ``seqs`` run beside ``requests``: how many rows each has (max(1, batch dimension)), the ``seq`` of
    its record, which a nested request (BLS) names as ``parent_seq``. ``sequence`` is the batch's number, ``batch_seq``.
    ``rescheduled`` are the requests that a model with ``iterative_sequence`` gives back, to be executed again (Triton's
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE); to be set before ``finish``.

    ``respond`` holds a thread that sends to a request of which ``RESPONSE_WINDOW`` responses are not taken yet (an
    ensemble's next step is at its limit, say). A loop instance may set ``taken``: it is called on the loop as (index,
    False) for each response, but for the final one, that has been taken, and as (index, True) when the request is over.
    A backend whose responses are counted one by one gives the times of each to ``report``, from any thread. A thread
    instance that has ``tells_ready = True`` calls ``ready`` when all that is left is one call of its framework, which
    lets other threads have the interpreter: the batch before may be answered only then.
    """

    requests: Sequence[InferenceRequest]
    respond: Callable[[int, InferenceResponse], None]
    finish: Callable[[WorkbenchError | None], None]
    is_cancelled: Callable[[int], bool]
    sequence: int = 0
    compute_start: int = 0
    input_end: int = 0
    output_start: int = 0
    compute_end: int = 0
    rows: Sequence[int] = ()
    seqs: Sequence[int] = ()
    rescheduled: set[int] | None = None
    taken: Callable[[int, bool], None] | None = None
    report: Callable[[ResponseReport], None] = _nowhere
    ready: Callable[[], None] = _nobody_waits


@dataclass(slots=True)
class Traffic:
    """Bytes moved inside the server for one model version since it was loaded; written on the loop's thread.

    ``to_processes`` and ``from_processes``: what was written for the model's processes and what they wrote, tensors
    with their descriptions, through the socket or in shared memory, nested requests (BLS) and log lines included. A
    model on threads has none. ``handed_on``: tensors that an ensemble gave to its steps and in its answers; ``copied``
    is how much of that is other memory than the tensor that came (looked at each time, not assumed).

    Not counted: what a framework does with its inputs and outputs (to form a batch of several requests copies their
    rows), and what a front end reads and writes (the server counts that).
    """

    to_processes: int = 0
    from_processes: int = 0
    handed_on: int = 0
    copied: int = 0

    def hand_on(self, given: NDArray[Any], taken: NDArray[Any]) -> None:
        """A tensor's array came as ``given`` and was handed on as ``taken``; of BYTES the elements' bytes count."""
        size = sum(map(len, given.flat)) if given.dtype == np.object_ else given.nbytes
        self.handed_on += size
        if taken is not given and not np.may_share_memory(given, taken):
            self.copied += size


class Readiness(Protocol):
    """An instance's own word on whether it is ready."""

    async def why_not(self) -> str:
        """Why it is not ready, "" where it is. On the loop; must end by itself, whatever the model does."""


class ThreadInstance(Protocol):
    """An instance that executes on a thread of its own.

    An instance of either kind may have ``readiness``, a ``Readiness`` or None: where it is None or missing, an instance
    that lives is ready.
    """

    kind: Literal["thread"]

    def execute(self, execution: Execution) -> None:
        """Runs a batch; responses through ``execution.respond``. What it raises fails every unanswered request."""

    def close(self) -> None:
        """Frees what it holds; called once, after the last batch."""


class LoopInstance(Protocol):
    """An instance whose work happens in another process."""

    kind: Literal["loop"]

    def start(self, execution: Execution) -> None:
        """Sends a batch on its way and returns at once."""

    def close(self) -> None:
        """Ends the child: asks it to finalize, waits a little, then kills. Blocks: not to be called on the loop."""


Instance = ThreadInstance | LoopInstance


class LoadedModel(Protocol):
    """An opened model version.

    One that has ``checks_batch_size = False`` takes warm-up of more requests than max_batch_size; the others refuse it,
    as Triton's do. One that has ``any_thread = True`` has thread instances that execute on whatever thread asks, one
    batch at a time: they keep nothing that is bound to a thread. One that has ``counts_failed_batches = True`` has
    batches counted although all their requests failed (as Triton's Python backend does). One that has processes, or
    hands tensors on, counts the bytes in ``traffic``, a ``Traffic``. One that knows what it runs on says so in
    ``details``, short texts by what they are about (``engine``, ``device``, ``precision``), for people to see.
    """

    reads_max_batch_size: bool
    """False lets the engine change max_batch_size in place."""

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Makes an instance, ready to execute. Blocks; called on a loader thread.

        Raises:
            WorkbenchError: with Triton's text, for example what a model's ``initialize`` raised.
        """

    def close(self) -> None:
        """Frees what the instances shared; called once, after the last instance is closed."""


class Backend(Protocol):
    """A framework."""

    name: str

    def describe(self, context: ModelContext) -> ModelDescription | None:
        """What the model file says of inputs and outputs; None when it says nothing. Blocks.

        Raises:
            WorkbenchError: the file is missing or broken.
        """

    def auto_complete(self, context: ModelContext) -> Any | None:
        """A completed ``ModelConfig`` where the backend has its own rules (Python: auto_complete_config), else None."""

    def open(self, context: ModelContext) -> LoadedModel:
        """Opens a model version. Blocks; called on a loader thread.

        Raises:
            WorkbenchError: the file is missing or broken, the configuration does not fit it.
        """
