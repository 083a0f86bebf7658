"""Servers that are somewhere else: a background process of the workbench here, any running Triton in
``remote_triton``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.client import ControlClient, TritonClient
from workbench.config import Edit
from workbench.engine.captured import CapturedRow
from workbench.protocol.tensors import InferenceRequest
from workbench.records import Event, RecordColumns
from workbench.server import runtime
from workbench.server.runtime import ServerInfo
from workbench.session.client_server import ClientServer
from workbench.session.given import config_json
from workbench.session.hints import explained
from workbench.session.owned import OwnedProcess, log_path, tail
from workbench.session.pipelines import traffic_frame
from workbench.session.remote_triton import TritonServer
from workbench.session.results import CapturedRows, ConfigureResult, ConfigView, SaveResult

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TritonServer", "WorkbenchServer"]


class WorkbenchServer(ClientServer):
    """A server of the workbench in a process of its own.

    *Owned* servers end with this object (and with this process, however that ends); *detached* ones go on, and
    ``wb.attach(name)`` finds them again.
    """

    kind = "process"

    def __init__(
        self, client: TritonClient, control: ControlClient, info: ServerInfo, process: OwnedProcess | None = None
    ) -> None:
        super().__init__(client, url=info["http"], name=info["name"])
        self._control = control
        self._info = info
        self._process = process

    @property
    def pid(self) -> int:
        """The process that serves."""
        return self._info["pid"]

    @property
    def owned(self) -> bool:
        """Whether it ends with this object."""
        return self._process is not None

    @property
    def log_path(self) -> Path | None:
        """The server's log, if it was started from Python on this machine."""
        path = log_path(self.name)
        return path if self.pid and path.is_file() else None

    def log(self, lines: int = 50) -> str:
        """The last lines of the server's log; empty where it is not known."""
        path = self.log_path
        return tail(path, lines) if path is not None else ""

    def why_gone(self) -> str:
        """Whether the process has ended, and where it said why."""
        if not self.pid:
            return ""
        if self._process is not None:
            # The connection is gone a moment before the process is.
            code = self._process.wait(0.5)
            if code is None:
                return ""
            ended = f"the server has ended with exit code {code}"
        elif runtime.process_created(self.pid):
            return ""
        else:
            ended = "the server has ended"
        path = self.log_path
        return f"{ended}; start it again with serve()" + (f"; its log is {path}" if path is not None else "")

    @property
    def grpc_url(self) -> str:
        """Where gRPC is served, ``grpc://host:port``; empty when it is off."""
        return self._info["grpc"]

    @property
    def metrics_url(self) -> str:
        """Where Prometheus metrics are; empty when they are off."""
        return self._info["metrics"]

    @property
    def control(self) -> ControlClient:
        """The server's control plane."""
        return self._control

    @property
    def token(self) -> str:
        """The bearer token of the control plane."""
        return self._info["token"]

    @property
    def control_mode(self) -> str:
        """``none``, ``poll`` or ``explicit``."""
        return self._info["control_mode"]

    @property
    def repository_paths(self) -> tuple[Path, ...]:
        """The model repositories that it serves."""
        return tuple(Path(path) for path in self._info["repositories"])

    @explained
    def load(self, model: str, *, config: Mapping[str, Any] | str | None = None) -> None:
        """Loads or reloads a model; the control plane allows it in every control mode."""
        self._control.load(model, config=config_json(config))

    @explained
    def unload(self, model: str) -> None:
        """Unloads a model."""
        self._control.unload(model)

    def state(self) -> dict[str, Any]:
        """The engine's snapshot."""
        return self._control.state()

    @explained
    def config(self, model: str) -> ConfigView:
        """Applied text, saved text, completed JSON, epoch."""
        answer = self._control.config(model)
        return ConfigView(
            model=model,
            text=answer["text"],
            saved_text=answer["saved_text"],
            effective=answer["effective"],
            epoch=answer["epoch"],
            dirty=answer["dirty"],
        )

    def _configure(self, model: str, edits: Sequence[Edit], dry_run: bool) -> ConfigureResult:
        return ConfigureResult.from_json(self._control.configure(model, edits, dry_run=dry_run))

    @explained
    def save(self, model: str) -> SaveResult:
        """Writes the applied configuration to config.pbtxt."""
        return SaveResult(**self._control.save(model))

    @explained
    def revert(self, model: str) -> ConfigureResult:
        """Applies the configuration as the file has it."""
        return ConfigureResult.from_json(self._control.revert(model))

    def record_columns(self, after: int = -1) -> RecordColumns:
        """Records after a sequence number, as columns."""
        return self._control.records(after)

    def events(self, after: int = -1) -> list[Event]:
        """Events after a sequence number."""
        return self._control.events(after)

    def captured(self) -> CapturedRows:
        """The requests whose inputs are kept, by ``seq``."""
        return CapturedRows(CapturedRow(**row) for row in self._control.captured())

    def captured_request(self, seq: int) -> InferenceRequest:
        """A kept request, with its inputs."""
        return self._control.captured_request(seq)

    def traffic(self) -> pd.DataFrame:
        """Bytes moved, one row a model.

        On the wire ``received`` and ``sent`` for its ``requests``; ``to_processes`` and ``from_processes`` of Python
        models; ``handed_on`` between an ensemble's steps, and how many of them were ``copied``. All is counted since
        the start (the inside counts since the load): subtract two answers.
        """
        return traffic_frame(self._control.state(), self._control.wire())

    def devices(self) -> dict[str, Any]:
        """CPU, memory and GPUs of the machine that serves."""
        return self._control.devices()

    def shutdown(self) -> None:
        """Ends the server, detached or not; running requests are finished first."""
        self._control.shutdown()
        self.close()

    def close(self) -> None:
        """Ends the server if it is owned, lets go of it if it is detached."""
        first = not self._closed
        super().close()
        if first:
            self._control.close()
            if self._process is not None:
                self._process.stop()
