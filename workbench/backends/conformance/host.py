"""An engine's side of the seam, as small as it can be: an event loop on a thread, models opened by hand."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from workbench.backends.base import (
    SERVER,
    Backend,
    Execution,
    Instance,
    InstanceSpec,
    LoadedModel,
    LogLevel,
    ModelContext,
    Origin,
)
from workbench.backends.conformance.kit import Arrays, ModelCase
from workbench.backends.custom_metrics import CustomMetrics
from workbench.backends.search import find_backend
from workbench.clock import monotonic_ns
from workbench.config import ConfigDocument, to_json
from workbench.config.normalization import complete_backend, normalize
from workbench.errors import BackendError, InternalError, NotFound, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, RequestedOutput, Tensor

PATIENCE_S = 120.0
"""How long an answer may take before a check fails."""


class ConformanceHost:
    """A ``BackendHost`` without other models."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self.clock = monotonic_ns
        self.metrics = CustomMetrics()
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self.loop.run_forever, name="conformance-loop", daemon=True)
        self._thread.start()

    def infer(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> Callable[[], None]:
        """There is nothing to ask."""
        raise NotFound(f"Request for unknown model: '{request.model_name}' is not found")

    def log(
        self, level: LogLevel, message: str, *, model: str = "", instance: str = "", origin: Origin = SERVER
    ) -> None:
        """Keeps the line for the report of a failure."""
        self.lines.append(f"{level}: {message}")

    def instance_state(self, instance: str, healthy: bool, why: str, *, gone: bool = False) -> None:
        """Keeps that, too."""
        self.lines.append(f"instance {instance}: {'back' if healthy else why}")

    def is_decoupled(self, name: str, version: int) -> bool:
        """No other model serves."""
        return False

    async def load_model(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """There is no repository."""
        raise InternalError(f"failed to load '{name}', failed to poll from model repository")

    async def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Nothing to do."""

    async def is_model_ready(self, name: str, version: int) -> bool:
        """No other model serves."""
        return False

    def close(self) -> None:
        """Ends the loop."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()


class Opened:
    """A model directory that is open, with some instances. A context manager; ``close`` twice is allowed."""

    def __init__(self, host: ConformanceHost, directory: Path, instances: int = 1) -> None:
        self.host = host
        document = ConfigDocument.parse((directory / "config.pbtxt").read_bytes())
        version_dir = directory / "1"
        files = sorted(path.name for path in version_dir.iterdir())
        config = normalize(complete_backend(document.message, directory.name, files))
        self.context = ModelContext(
            directory.name, 1, config, json.dumps(to_json(config)), directory, version_dir, host
        )
        no_directory = directory.parent / "no-backend-directory"
        self.backend: Backend = find_backend(config.backend, config.runtime, config.name, directory, 1, no_directory)
        self.loaded: LoadedModel = self.backend.open(self.context)
        self.instances: list[Instance] = []
        try:
            for index in range(instances):
                self.instances.append(
                    self.loaded.create_instance(InstanceSpec(f"{directory.name}_{index}", "KIND_CPU", 0, index))
                )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes instances and model."""
        for instance in self.instances:
            instance.close()
        self.loaded.close()

    def batch(
        self, batch: Sequence[Arrays], *, instance: int = 0, wanted: Sequence[str] = ()
    ) -> list[dict[str, Tensor]]:
        """The answers to the requests of one batch, outputs by name.

        Raises:
            WorkbenchError: what the batch or one of its requests failed with.
            AssertionError: the backend broke the rules of ``Execution``.
        """
        requests = [
            InferenceRequest(
                self.context.name,
                [Tensor.from_numpy(name, np.asarray(array)) for name, array in arrays.items()],
                id=str(index),
                outputs=[RequestedOutput(name) for name in wanted],
            )
            for index, arrays in enumerate(batch)
        ]
        ended = threading.Event()
        answers: dict[int, InferenceResponse] = {}
        errors: list[WorkbenchError] = []
        twice: list[int] = []

        def respond(index: int, response: InferenceResponse) -> None:
            if index in answers:
                twice.append(index)
            answers[index] = response

        def finish(error: WorkbenchError | None) -> None:
            assert not ended.is_set(), "finish was called twice"
            if error is not None:
                errors.append(error)
            ended.set()

        rows = [max(1, tensor.shape[0]) if tensor.shape else 1 for tensor in (each.inputs[0] for each in requests)]
        execution = Execution(requests, respond, finish, lambda index: False, 1, rows=rows, seqs=range(len(rows)))
        execution.compute_start = self.host.clock()
        self._run(self.instances[instance], execution)
        assert ended.wait(PATIENCE_S), f"the batch did not end; log: {self.host.lines}"
        assert not twice, f"requests {twice} were answered twice"
        failed = [*errors, *(answer.error for answer in answers.values() if answer.error is not None)]
        if failed:
            raise failed[0]
        assert sorted(answers) == list(range(len(batch))), f"answered were {sorted(answers)} of {len(batch)}"
        assert all(answer.final for answer in answers.values()), "a last response is not final"
        assert execution.compute_start <= execution.input_end <= execution.output_start, "stamps are not in order"
        assert [answers[index].id for index in range(len(batch))] == [each.id for each in requests]
        return [{tensor.name: tensor for tensor in answers[index].outputs} for index in range(len(batch))]

    def _run(self, instance: Instance, execution: Execution) -> None:
        if instance.kind == "loop":
            self.host.loop.call_soon_threadsafe(instance.start, execution)
            return
        error: WorkbenchError | None = None
        try:
            instance.execute(execution)
        except WorkbenchError as raised:
            error = raised
        except Exception as raised:  # as an engine does: it fails the batch
            error = BackendError(f"{type(raised).__name__}: {raised}")
        execution.finish(error)


def written(case: ModelCase, folder: Path, name: str) -> Path:
    """The model directory of a case, written anew."""
    directory = folder / name
    (directory / "1").mkdir(parents=True)
    case.write(directory)
    return directory
