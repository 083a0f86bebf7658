"""What a server holds, and the load under which faults are injected."""

from __future__ import annotations

import gc
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from workbench.engine import InferenceEngine
from workbench.errors import WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor

FAULTS = int(os.environ.get("WORKBENCH_FAULTS", "3"))
"""How often the long proof injects each fault: a fifteenth of its full size, which ``make soak`` asks for."""


def request(model: str, *values: float, **fields: object) -> InferenceRequest:
    """A request for one of the models here."""
    return InferenceRequest(model, [Tensor.from_numpy("IN", np.array(values, np.float32))], **fields)  # type: ignore[arg-type]


def error_of(engine: InferenceEngine, model: str, *values: float, **fields: object) -> WorkbenchError | None:
    """What a request fails of; None where it does not."""
    try:
        engine.infer(request(model, *values, **fields), 60)
    except WorkbenchError as error:
        return error
    return None


POOLS = ("workbench-loader", "workbench-closer")
"""Threads of pools of a fixed size, which are made when they are first needed."""


@dataclass(frozen=True)
class Holdings:
    """What this process holds: open files, those of shared memory, mappings of it, children, threads, /dev/shm."""

    descriptors: int
    memories: int
    mappings: int
    children: int
    zombies: int
    threads: int
    shared: frozenset[str]

    @classmethod
    def now(cls) -> Holdings:
        me = psutil.Process()
        links = []
        for entry in Path("/proc/self/fd").iterdir():
            try:
                links.append(str(entry.readlink()))
            except OSError:
                continue  # the one that lists the others
        statuses = Counter(_status(child) for child in me.children(recursive=True))
        return cls(
            len(links),
            sum("memfd:workbench" in link for link in links),
            Path("/proc/self/maps").read_text().count("memfd:workbench"),
            sum(statuses.values()) - statuses[psutil.STATUS_ZOMBIE],
            statuses[psutil.STATUS_ZOMBIE],
            me.num_threads() - sum(thread.name.startswith(POOLS) for thread in threading.enumerate()),
            frozenset(path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("triton_")),
        )


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return "gone"


def resident() -> int:
    """Resident memory in bytes."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def back_to(before: Holdings, timeout_s: float = 20.0) -> None:
    """Waits until this process holds no more than it did; slabs that a pool keeps may be fewer."""

    def less() -> bool:
        gc.collect()
        now = Holdings.now()
        return (
            now.descriptors <= before.descriptors
            and now.memories <= before.memories
            and now.mappings <= before.mappings
            and now.threads <= before.threads
            and (now.children, now.zombies) == (before.children, before.zombies)
            and not now.shared - before.shared
        )

    end = time.monotonic() + timeout_s
    while not less():
        assert time.monotonic() < end, f"held before: {before}\nheld now:    {Holdings.now()}"
        threading.Event().wait(0.05)


class Load:
    """Clients that send one request after the other to models, until they are told to stop."""

    def __init__(self, engine: InferenceEngine, models: list[str]) -> None:
        self._engine = engine
        self._stop = threading.Event()
        self.sent: Counter[str] = Counter()
        self.failed: list[tuple[str, str]] = []
        self.times: list[tuple[float, float]] = []
        self._threads = [threading.Thread(target=self._run, args=(model,)) for model in models]

    def _run(self, model: str) -> None:
        while not self._stop.is_set():
            self.sent[model] += 1
            values = [float(self.sent[model] % 90)] * 16
            started = time.perf_counter()
            try:
                answer = self._engine.infer(request(model, *values), 60)
                if answer.outputs[0].data.tolist() != values:
                    self.failed.append((model, "a wrong answer"))
            except WorkbenchError as error:
                self.failed.append((model, f"{error.message} ({error.hint})"))
            except BaseException as error:
                self.failed.append((model, repr(error)))
            ended = time.perf_counter()
            self.times.append((started, ended - started))
            self._stop.wait(0.002)

    def median_ms(self, since: float = 0.0, until: float = float("inf")) -> float:
        """The median time of the requests that were sent in between."""
        found = [took for at, took in self.times if since <= at < until]
        return statistics.median(found) * 1e3 if found else float("nan")

    @contextmanager
    def running(self) -> Iterator[Load]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads), "a client hangs"


def collected(engine: InferenceEngine, sent: InferenceRequest, timeout_s: float = 30.0) -> list[InferenceResponse]:
    """All responses of a request, to the final one."""
    responses: list[InferenceResponse] = []
    ended = threading.Event()

    def take(response: InferenceResponse) -> None:
        responses.append(response)
        if response.final:
            ended.set()

    engine.post(sent, take)
    assert ended.wait(timeout_s), f"no final response after {len(responses)}"
    return responses


def ready(engine: InferenceEngine, model: str) -> Callable[[], bool]:
    """Whether a model is ready, for ``wait_until``."""
    return lambda: engine.is_model_ready(model)
