"""A worker: serves the repository on its machine, measures the items that it is given, one at a time."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench import __version__
from workbench.distributed.serving import InputFile, Serving, check_version
from workbench.errors import InvalidRequest
from workbench.profiling.device import device_kind, device_token
from workbench.profiling.executing import Bench, Deliver, Item, LocalExecutor, Outcome, Work
from workbench.profiling.target import Configurable


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What decides how a process and its children run: the version of this package, and what cluster software sets.

    Ray starts workers at nice 15 and with OMP_NUM_THREADS=1: a server that inherits that is not the one that a local
    sweep measures. None stands for a variable that is not set.
    """

    version: str
    niceness: int
    variables: Mapping[str, str | None]

    @classmethod
    def here(cls) -> Surroundings:
        """Those of this process."""
        return cls(__version__, _niceness(), {name: os.environ.get(name) for name in VARIABLES})

    def check(self) -> None:
        """Makes sure that this process has the version of the package that the sweep was planned with.

        Raises:
            Unsupported: it has another one.
        """
        check_version(self.version)

    def take(self) -> str:
        """Has the calling thread, and the processes that it starts, run like that; says what could not be done."""
        for name, value in self.variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        with contextlib.suppress(OSError, AttributeError):
            if _niceness() > self.niceness:
                os.setpriority(os.PRIO_PROCESS, 0, self.niceness)
        left = _niceness()
        return f"it runs at nice {left}: RAY_worker_niceness=0 ray start ..." if left > self.niceness else ""


VARIABLES = ("OMP_NUM_THREADS",)


def _niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0


class WorkerExecutor(LocalExecutor):
    """Measures at the server that this worker has started for it, and says so in each point's environment.

    Args:
        target: the server.
        serving: what it serves.
    """

    def __init__(self, target: Configurable, serving: Serving) -> None:
        super().__init__(target)
        self._serving = serving

    def run(self, items: Sequence[Item], known: Collection[str], deliver: Deliver) -> str:
        """Measures the items in their order; see ``Executor``."""
        return super().run(items, known, lambda outcome: deliver(_served(outcome, self._serving)))


def _served(outcome: Outcome, serving: Serving, node: str = "") -> Outcome:
    """The outcome with a word on what was served, by whom."""
    point = outcome.point
    if point is None or point.error:
        return outcome
    served = {"by": "its worker", "content": dict(serving.contents), **({"node": node} if node else {})}
    return replace(outcome, point=replace(point, environment={**point.environment, "served": served}))


class Worker:
    """What runs on a node. ``stop`` may be called while ``measure`` runs; all else one after the other.

    Args:
        serving: what to serve, and how.
        work: what all items share.
        file: the file of inputs that ``work`` names, if it names one.
        planned: how processes run where the sweep was planned.
        node: a name for this node in the points' environment; not the machine's.
    """

    def __init__(
        self, serving: Serving, work: Work, file: InputFile | None, planned: Surroundings, node: str = ""
    ) -> None:
        self._serving = serving
        self._work = work
        self._file = file
        self._planned = planned
        self._node = node
        self._stop = threading.Event()
        self._opened = contextlib.ExitStack()
        self._bench: Bench | None = None

    def open(self) -> dict[str, Any]:
        """Serves; gives ``kind`` and ``token`` of the device (``profiling.device``), and a ``note`` on this process.

        Raises:
            WorkbenchError: another version of this package is here; the repository is not, holds something else, or
                cannot be served.
        """
        self._planned.check()
        self._serving.check()
        note = self._planned.take()
        with contextlib.ExitStack() as opening:
            work = self._work
            if self._file is not None:
                work = replace(work, inputs=self._file.put(opening.enter_context(tempfile.TemporaryDirectory())))
            target = opening.enter_context(self._serving.open(self._serving))
            holder = LocalExecutor(target)
            holder.open(work, self._stop)
            self._bench = Bench(target, work, (), self._stop)
            opening.callback(self._bench.close)
            self._opened = opening.pop_all()
        return {"kind": device_kind(), "token": device_token(), "note": note}

    def measure(self, item: Item, known: Collection[str] = ()) -> tuple[Outcome | None, str]:
        """Measures an item, unless its key is among the known ones.

        The text says why nothing more can be measured here; it is empty while all is well.
        """
        if self._bench is None:
            raise InvalidRequest("this worker serves nothing yet", hint="open comes first")
        self._planned.take()
        self._bench.known = known
        outcome = self._bench.measure(item)
        # Nobody starts this worker's server again: an item that outlived it is measured elsewhere.
        return outcome and _served(outcome, self._serving, self._node), self._bench.broken or self._bench.gone

    def stop(self) -> None:
        """Ends what is being measured at once."""
        self._stop.set()

    def close(self) -> None:
        """Ends the server: its configuration goes with it."""
        self._bench = None
        self._opened.close()
