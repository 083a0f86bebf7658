"""What is measured: any server that gives statistics and its configuration, wherever it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from workbench.client import ControlClient, HttpClient, TritonClient, connect
from workbench.errors import ConnectionFailed, NotFound, WorkbenchError
from workbench.profiling.hold import Hold
from workbench.profiling.interrupting import do_all
from workbench.protocol.tensors import InferenceRequest, InferenceResponse
from workbench.records import RecordColumns

TargetProtocol = Literal["http", "grpc", "in-kernel"]


class Target(Protocol):
    """A server under measurement. A real Triton is measured by the same code as a server of the workbench.

    Besides these, a target may have ``model_metadata(model)``, ``model_directory(model) -> Path | None`` (for example
    inputs), ``pid`` (to read its CPU use), ``loop_stalls() -> [(time_ns, ms)]`` (when its front end stood still) and
    ``watchers() -> str`` (which panels are open, in words); they are used where they are there.
    """

    @property
    def url(self) -> str:
        """Where the load goes."""

    @property
    def protocol(self) -> TargetProtocol:
        """How the load gets there."""

    def statistics(self, model: str) -> Mapping[str, Any]:
        """Triton's statistics of a model: ``{"model_stats": [...]}``."""

    def model_config(self, model: str) -> Mapping[str, Any]:
        """The configuration that is loaded, as Triton's JSON."""

    def records(self, after: int) -> RecordColumns | None:
        """Records after a cursor; None where the server keeps none."""

    def epoch(self, model: str) -> int | None:
        """The number of the applied configuration; None where the server does not count them."""


class Configurable(Target, Protocol):
    """A target whose configuration can be changed while it serves.

    Besides these, it may have ``hold(models, doing)``, which takes models for a sweep so that no other sweep and no
    edit comes between (``restore`` lets go of each), ``lost() -> str``, which says why a model is not held any more,
    ``let_go()``, which leaves to the server what ``restore`` could not put back, and ``composing(model) -> [names]``,
    the models that an ensemble is made of.
    """

    def configure(self, model: str, edits: Sequence[Any]) -> Any:
        """Applies edits (``workbench.config.Edit``) in memory."""

    def restore(self, model: str) -> None:
        """Brings back the configuration that was applied before the first ``configure`` since the last ``restore``.

        Does nothing when nothing was changed.
        """


@runtime_checkable
class InKernelTarget(Protocol):
    """What a target with protocol ``in-kernel`` offers in place of an address."""

    def submit(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> object:
        """Hands a request over from any thread; ``on_response`` is called, on any thread, once for each response."""


class ServerTarget:
    """Any running Triton or KServe v2 server, by address.

    Args:
        url: ``http://host:port`` or ``grpc://host:port``.
        client: a client that is there already; it is not closed with the target then.
        repositories: the server's model repositories, where they are on this machine (for example inputs).
        pid: the server's process, where it is on this machine (for its CPU use).
    """

    def __init__(
        self,
        url: str,
        *,
        client: TritonClient | None = None,
        repositories: Sequence[Path] = (),
        pid: int | None = None,
    ) -> None:
        self.client = client if client is not None else connect(url)
        self._owned = client is None
        self._repositories = tuple(Path(path) for path in repositories)
        self.pid = pid

    @property
    def url(self) -> str:
        """Where the load goes."""
        return self.client.url

    @property
    def protocol(self) -> TargetProtocol:
        """``http`` or ``grpc``, by the address."""
        return "grpc" if self.url.startswith("grpc") else "http"

    def statistics(self, model: str) -> Mapping[str, Any]:
        """Triton's statistics of a model."""
        return self.client.statistics(model)

    def model_config(self, model: str) -> Mapping[str, Any]:
        """The configuration that is loaded."""
        return self.client.model_config(model)

    def model_metadata(self, model: str) -> Mapping[str, Any]:
        """Triton's metadata of a model."""
        return self.client.model_metadata(model)

    def model_directory(self, model: str) -> Path | None:
        """The model's directory, if it is on this machine."""
        for repository in self._repositories:
            if (repository / model).is_dir():
                return repository / model
        return None

    def records(self, after: int) -> RecordColumns | None:
        """None: Triton keeps no records."""
        return None

    def epoch(self, model: str) -> int | None:
        """None: Triton does not count configurations."""
        return None

    def close(self) -> None:
        """Closes the client, if the target made it."""
        if self._owned:
            self.client.close()


class WorkbenchTarget(ServerTarget):
    """A server of the workbench, by address and token: with records, and configurable live."""

    def __init__(self, url: str, token: str, *, repositories: Sequence[Path] = (), pid: int | None = None) -> None:
        super().__init__(url, client=HttpClient(url, token), repositories=repositories, pid=pid)
        self._owned = True
        self.control = ControlClient(url, token)
        self._held = Hold(self.control, read=lambda model: self.control.config(model)["text"])
        if pid is None:
            found = self.control.capabilities().get("pid")
            self.pid = int(found) if found is not None else None

    def records(self, after: int) -> RecordColumns | None:
        """Records after a cursor."""
        return self.control.records(after)

    def epoch(self, model: str) -> int | None:
        """The number of the applied configuration."""
        return int(self.control.config(model)["epoch"])

    def loop_stalls(self) -> list[tuple[int, float]]:
        """When the server's event loop last stood still: end (ns of CLOCK_MONOTONIC) and length (ms)."""
        return [(int(when), float(ms)) for when, ms in self.control.state().get("stalls", ())]

    def hold(self, models: Sequence[str], doing: str) -> None:
        """Takes models at the server; see ``Configurable``."""
        self._held.take(models, doing)

    def lost(self) -> str:
        """Why a model is not held any more."""
        return self._held.lost

    def configure(self, model: str, edits: Sequence[Any]) -> Any:
        """Applies edits in memory, under a lease."""
        return self._held.configure(model, edits)

    def restore(self, model: str) -> None:
        """Has the server apply the configuration that was there before, to the byte; ends the lease."""
        self._held.release(model)

    def let_go(self) -> None:
        """Leaves to the server what ``restore`` could not put back."""
        self._held.let_go()

    def close(self) -> None:
        """Closes the clients."""
        super().close()
        self.control.close()


def directory_of(target: Target, model: str) -> Path | None:
    """The model's directory on this machine, if the target knows one."""
    finder = getattr(target, "model_directory", None)
    found = finder(model) if finder is not None else None
    return Path(found) if found is not None else None


def lost_of(target: Target) -> str:
    """Why the server has taken a model back, if it has: what is measured from then on is of no configuration."""
    tell = getattr(target, "lost", None)
    return str(tell()) if tell is not None else ""


def restore_all(target: Configurable, models: Sequence[str], failed: Callable[[int, Exception], None]) -> None:
    """Restores every model, whatever becomes of the others and whoever interrupts; ``failed`` as of ``do_all``."""
    complaints: list[Exception] = []

    def heard(index: int, error: Exception) -> None:
        complaints.append(error)
        failed(index, error)

    do_all([partial(target.restore, model) for model in models], heard)
    let_go = getattr(target, "let_go", None)
    if complaints and let_go is not None:
        let_go()


def pid_of(target: Target) -> int | None:
    """The server's process, if the target knows one."""
    pid = getattr(target, "pid", None)
    return int(pid) if isinstance(pid, int) and pid > 0 else None


def stalls_between(target: Target, window: tuple[int, int]) -> list[float]:
    """Lengths (ms) of the front end's stalls in a window; empty where the target does not tell, or is gone."""
    tell = getattr(target, "loop_stalls", None)
    if tell is None:
        return []
    with contextlib.suppress(ConnectionFailed):
        return [float(ms) for when, ms in tell() if window[0] <= int(when) < window[1]]
    return []


def try_statistics(target: Target, model: str) -> tuple[Mapping[str, Any] | None, str]:
    """Statistics, or None and why there are none; a server that is gone is still an error."""
    try:
        return target.statistics(model), ""
    except NotFound as error:
        return None, f"the server gives no statistics: {error.message}"
    except WorkbenchError as error:
        if error.code.name in ("UNSUPPORTED", "UNKNOWN"):
            return None, f"the server gives no statistics: {error.message}"
        raise
