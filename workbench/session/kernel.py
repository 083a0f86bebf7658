"""The engine inside this kernel, for debugging a model: breakpoints, prints and tracebacks are here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from workbench.config import Edit
from workbench.engine import EngineOptions, InferenceEngine
from workbench.engine.options import BACKEND_DIRECTORY, scheduling_hooks
from workbench.errors import WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse
from workbench.records import Event, RecordColumns
from workbench.server.settings import LogControl
from workbench.session.given import config_json
from workbench.session.hints import explain, explained
from workbench.session.opening import PathLike, repositories
from workbench.session.pipelines import traffic_frame
from workbench.session.results import CapturedRows, ConfigureResult, ConfigView, SaveResult, Statistics
from workbench.session.server import Server
from workbench.telemetry import Device

if TYPE_CHECKING:
    import pandas as pd


class Engine(Server):
    """Serves a model repository inside this process, without a socket.

    Python models run on threads here (``python_execution="process"`` gives them processes of their own, as
    ``wb.serve`` does); figures measured on threads are marked "not like Triton".

    Args:
        path: the repository, or several.
        models: which to load, ``*`` is all. A model that fails to load does not stop the others: see ``models()``.
        python_execution: where Python models run.
        control_mode: Triton's ``--model-control-mode``.
        backend_directory: where Python-based backends are, ``<backend_directory>/<name>/model.py``.
        host_policies: a policy's name -> ``cpu-cores`` or ``numa-node`` -> value, as ``--host-policy`` has them.
        gpus: the devices to place instances on, numbers or records (``workbench.telemetry.load_devices``); None asks
            NVML.
        inline: let ``infer`` run a request on the calling thread where the model is small, its backend is bound to no
            thread (Python models are), and the request would leave the queue at once; its batch has the reason
            ``inline`` in the records. ``profile`` and ``sweep`` always go through the scheduler.

    Raises:
        NotFound: there is no such directory.
        Unsupported: a host policy has a setting that there is not.
    """

    kind = "kernel"

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        *,
        models: Sequence[str] = ("*",),
        python_execution: Literal["process", "thread"] = "thread",
        control_mode: Literal["none", "explicit"] = "explicit",
        backend_directory: PathLike = BACKEND_DIRECTORY,
        host_policies: Mapping[str, Mapping[str, str]] | None = None,
        gpus: Sequence[int | Device] | None = None,
        inline: bool = True,
    ) -> None:
        self._paths = repositories(path)
        self.name = self._paths[0].name
        self.url = ""
        queued, backlog = scheduling_hooks(os.environ)
        self.engine = InferenceEngine(
            EngineOptions(
                repositories=self._paths,
                control_mode=control_mode,
                load_models=tuple(models),
                python_execution=python_execution,
                backend_directory=Path(backend_directory).resolve(),
                host_policies=host_policies or {},
                gpus=None if gpus is None else tuple(gpus),
                hold_until_queued=queued,
                hold_until_backlog=backlog,
                inline=inline,
            )
        )
        self._mode = control_mode
        self.engine.start()

    @property
    def control_mode(self) -> str:
        """``none`` or ``explicit``."""
        return self._mode

    @property
    def pid(self) -> int:
        """This process."""
        return os.getpid()

    @property
    def repository_paths(self) -> tuple[Path, ...]:
        """The model repositories that it serves."""
        return self._paths

    def is_live(self) -> bool:
        """Whether the engine runs."""
        return self.engine.is_live()

    def is_model_ready(self, model: str) -> bool:
        """Whether a model takes inferences."""
        return self.engine.is_model_ready(model)

    def repository_index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """Triton's repository index."""
        return self.engine.repository_index(ready=ready)

    @explained
    def model_metadata(self, model: str) -> dict[str, Any]:
        """Triton's model metadata."""
        return self.engine.model_metadata(model)

    @explained
    def model_config(self, model: str) -> dict[str, Any]:
        """The completed configuration as Triton's JSON."""
        from workbench.config import to_json

        return to_json(self.engine.model_config(model))

    def statistics(self, model: str = "") -> Statistics:
        """Triton's statistics of one model or of all."""
        try:
            return Statistics(self.engine.statistics(model))
        except WorkbenchError as error:
            explain(self, model, error)
            raise

    @explained
    def load(self, model: str, *, config: Mapping[str, Any] | str | None = None) -> None:
        """Loads or reloads a model."""
        self.engine.load(model, config=config_json(config))

    @explained
    def unload(self, model: str) -> None:
        """Unloads a model."""
        self.engine.unload(model)

    def state(self) -> dict[str, Any]:
        """The engine's snapshot."""
        return self.engine.snapshot().to_json()

    def _infer(self, request: InferenceRequest, timeout_s: float) -> InferenceResponse:
        return self.engine.infer(request, timeout_s=timeout_s, once=True)

    def submit(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> None:
        """Hands a request over from any thread; ``on_response`` is called on the engine's thread for each response.

        A request that is refused at once is answered by a response with ``error``.
        """

        self.engine.post(request, on_response)

    @explained
    def config(self, model: str) -> ConfigView:
        """Applied text, saved text, completed JSON, epoch."""
        state = self.engine.config_state(model)
        return ConfigView(
            model=model,
            text=state.document.data.decode("utf-8", "replace"),
            saved_text=(state.saved or b"").decode("utf-8", "replace"),
            effective=state.effective,
            epoch=state.epoch,
            dirty=state.dirty,
        )

    def _configure(self, model: str, edits: Sequence[Edit], dry_run: bool) -> ConfigureResult:
        return self.engine.configure(model, edits, dry_run=dry_run)

    @explained
    def save(self, model: str) -> SaveResult:
        """Writes the applied configuration to config.pbtxt."""
        return self.engine.save(model)

    @explained
    def revert(self, model: str) -> ConfigureResult:
        """Applies the configuration as the file has it."""
        return self.engine.revert(model)

    def record_columns(self, after: int = -1) -> RecordColumns:
        """Records after a sequence number, as columns."""
        return self.engine.records.read(after)

    def events(self, after: int = -1) -> list[Event]:
        """Events after a sequence number."""
        return self.engine.events.after(after)

    def _log_settings(self, changes: Mapping[str, bool | int | str]) -> dict[str, Any]:
        control = LogControl(self.engine.log_settings)
        control.update(dict(changes))
        return control.current()

    def captured(self) -> CapturedRows:
        """The requests whose inputs are kept, by ``seq``."""
        return CapturedRows(self.engine.captured.rows())

    def captured_request(self, seq: int) -> InferenceRequest:
        """A kept request, with its inputs."""
        return self.engine.captured.get(seq)

    def traffic(self) -> pd.DataFrame:
        """Bytes moved to and from Python models in processes, and between an ensemble's steps."""
        return traffic_frame(self.state(), {})

    def devices(self) -> dict[str, Any]:
        """CPU, memory and GPUs of this machine."""
        from workbench.telemetry import family, sample

        return sample(family()).to_json()

    def close(self) -> None:
        """Stops the engine; running requests are finished first."""
        if not self._closed:
            self._closed = True
            self._stop_session()
            self.engine.stop()
