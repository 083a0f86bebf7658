"""Servers that are somewhere else: a background process of the workbench, or any running Triton."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.client import ControlClient, TritonClient
from workbench.clock import monotonic_ns
from workbench.config import ConfigDocument, Edit, change_class, from_json, to_json, to_text
from workbench.engine.captured import CapturedRow
from workbench.errors import ConnectionFailed, TimedOut, Unsupported, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse
from workbench.records import Event, RecordColumns
from workbench.server import runtime
from workbench.server.runtime import ServerInfo
from workbench.session.given import config_json
from workbench.session.hints import explain, explained
from workbench.session.journal import forget, left_behind, server_here
from workbench.session.owned import OwnedProcess, log_path, tail
from workbench.session.pipelines import composing_models, traffic_frame
from workbench.session.results import CapturedRows, ConfigureResult, ConfigView, SaveResult, Statistics
from workbench.session.server import Server

if TYPE_CHECKING:
    import pandas as pd

_RELOADS = "a remote Triton takes edits as a load with config override: the model is reloaded"
CONFIG_AGE_S = 5.0
"""How old a remote Triton's configuration may be in its state."""


class ClientServer(Server):
    """What every server reached by a client shares: KServe v2 and Triton's repository control."""

    def __init__(self, client: TritonClient, *, url: str, name: str) -> None:
        self._client = client
        self.url = url
        self.name = name

    def is_live(self) -> bool:
        """Whether it answers; False also where nothing is there."""
        return self._client.is_live()

    def is_model_ready(self, model: str) -> bool:
        """Whether a model takes inferences; False also where nothing is there."""
        return self._client.is_model_ready(model)

    def repository_index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """Triton's repository index."""
        return self._client.repository_index(ready=ready)

    @explained
    def model_metadata(self, model: str) -> dict[str, Any]:
        """Triton's model metadata."""
        return self._client.model_metadata(model)

    @explained
    def model_config(self, model: str) -> dict[str, Any]:
        """The completed configuration as Triton's JSON."""
        return self._client.model_config(model)

    def _log_settings(self, changes: Mapping[str, bool | int | str]) -> dict[str, Any]:
        return self._client.log_settings(changes)

    def statistics(self, model: str = "") -> Statistics:
        """Triton's statistics of one model or of all."""
        try:
            return Statistics(self._client.statistics(model))
        except WorkbenchError as error:
            explain(self, model, error)
            raise

    @explained
    def load(self, model: str, *, config: Mapping[str, Any] | str | None = None) -> None:
        """Loads or reloads a model."""
        self._client.load(model, config=config_json(config))

    @explained
    def unload(self, model: str) -> None:
        """Unloads a model."""
        self._client.unload(model)

    def _infer(self, request: InferenceRequest, timeout_s: float) -> InferenceResponse:
        try:
            response = self._client.infer(request, timeout_s=timeout_s)
        except ConnectionFailed as error:
            if not error.message.startswith("no answer from"):
                raise
            # The server is there and may be at it still: the same error as from an engine in this kernel.
            raise TimedOut(
                f"no answer from model '{request.model_name}' within {timeout_s:g} s", where=self.url, hint=error.hint
            ) from error
        if response.error is not None:
            raise response.error
        return response

    def close(self) -> None:
        """Closes the connections; the server goes on."""
        if not self._closed:
            self._closed = True
            self._stop_session()
            self._client.close()


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


class TritonServer(ClientServer):
    """Any running Triton or KServe v2 server; nothing is installed there.

    ``configure`` is a load with a config override, where its control mode allows; it reloads the model.
    """

    kind = "remote"

    def __init__(self, client: TritonClient, *, url: str) -> None:
        super().__init__(client, url=url, name=url)
        self._originals: dict[str, dict[str, Any]] = left_behind(url)
        self._epochs: dict[str, int] = {}
        self._configs: dict[str, tuple[int, dict[str, Any]]] = {}
        self._metadata = client.server_metadata()

    @property
    def control_mode(self) -> str:
        """Unknown: Triton does not say."""
        return ""

    @property
    def release(self) -> str:
        """Name and version as the server says them."""
        return f"{self._metadata.get('name', '')} {self._metadata.get('version', '')}".strip()

    def state(self) -> dict[str, Any]:
        """Pieced together from configurations and statistics: no instances, no pending requests, no batches."""
        versions = []
        statistics = {(entry["name"], entry["version"]): entry for entry in self.statistics().get("model_stats", ())}
        for entry in self.repository_index():
            if entry.get("state") != "READY":
                continue
            config = self._recent_config(entry["name"])
            known = statistics.get((entry["name"], entry.get("version", "")), {})
            versions.append(
                {
                    "model": entry["name"],
                    "version": entry.get("version", ""),
                    "state": "READY",
                    "backend": config.get("backend") or config.get("platform", ""),
                    "max_batch_size": int(config.get("max_batch_size", 0)),
                    "batching": scheduling_choice(config),
                    "steps": composing_models(config),
                    "config_epoch": self._epochs.get(entry["name"], 0),
                    "dirty": entry["name"] in self._originals,
                    "statistics": known,
                    # Triton's statistics count failures, not their reasons.
                    "failures": {"OTHER": int(known.get("inference_stats", {}).get("fail", {}).get("count", 0))},
                }
            )
        return {"versions": versions, "release": self.release}

    def _recent_config(self, model: str) -> dict[str, Any]:
        """The configuration, read again every few seconds: a state is asked for often, by a panel that looks on."""
        now = monotonic_ns()
        read_at, config = self._configs.get(model, (0, {}))
        if not config or now - read_at > CONFIG_AGE_S * 1e9:
            config = self.model_config(model)
            self._configs[model] = (now, config)
        return config

    @explained
    def load(self, model: str, *, config: Mapping[str, Any] | str | None = None) -> None:
        """Loads or reloads a model."""
        try:
            self._client.load(model, config=config_json(config))
        finally:
            self._configs.pop(model, None)
        self._reloaded(model)

    @explained
    def config(self, model: str) -> ConfigView:
        """The loaded configuration; a remote server does not give its file."""
        effective = self.model_config(model)
        original = self._originals.get(model, effective)
        return ConfigView(
            model=model,
            text=to_text(from_json(effective)),
            saved_text=to_text(from_json(original)),
            effective=effective,
            epoch=self._epochs.get(model, 0),
            dirty=model in self._originals and original != effective,
        )

    def _configure(self, model: str, edits: Sequence[Edit], dry_run: bool) -> ConfigureResult:
        before = self.model_config(model)
        document = ConfigDocument.parse(
            to_text(from_json(before)).encode(), path=f"{self.url}/v2/models/{model}/config"
        )
        edited = _without_made_sizes(document, edits)
        nothing = change_class(document.message, edited.message).kind == "none"
        result = ConfigureResult(
            model=model,
            epoch=self._epochs.get(model, 0),
            change_class="none" if nothing else "reload",
            reasons=() if nothing else (_RELOADS,),
            triton="" if nothing else "this is what it does",
            diff=document.diff(edited),
            took_ms=0.0,
            dirty=model in self._originals or not nothing,
            config=before,
        )
        if dry_run or nothing:
            return result
        started = monotonic_ns()
        self._override(model, to_json(edited.message, defaults=False))
        self._originals.setdefault(model, before)
        after = self.model_config(model)
        took = (monotonic_ns() - started) / 1e6
        dirty = after != self._originals[model]
        return replace(result, epoch=self._epochs[model], took_ms=took, dirty=dirty, config=after)

    def _override(self, model: str, config: Mapping[str, Any]) -> None:
        try:
            self._client.load(model, config=json.dumps(config))
        except WorkbenchError as error:
            if "explicit model load / unload is not allowed" in error.message:
                raise Unsupported(
                    "this server does not take configuration changes",
                    where=self.url,
                    hint="start it with --model-control-mode=explicit",
                ) from error
            raise
        finally:
            self._configs.pop(model, None)
        self._reloaded(model)

    def _reloaded(self, model: str) -> None:
        self._configs.pop(model, None)
        forget(self.url, model)
        self._epochs[model] = self._epochs.get(model, 0) + 1

    def is_as_saved(self, model: str) -> bool:
        """Whether what is loaded is what its file says. False where that is not known: only a server of the workbench
        on this machine tells."""
        with contextlib.suppress(WorkbenchError), self._control_here() as control:
            return control is not None and not control.config(model)["dirty"]
        return False

    def put_back(self, model: str, config: Mapping[str, Any], *, as_saved: bool = False) -> ConfigureResult:
        """Loads the model with a configuration that it had (``model_config`` gave it), unless it has it now.

        ``as_saved``: it was as its file has it (``is_as_saved``), and is so again, with no override left; if the file
        has changed since, the configuration counts.
        """
        started = monotonic_ns()
        before = after = self.model_config(model)
        if as_saved and self._back_to_file(model):
            after = self.model_config(model)
        if config != after:
            self._override(model, config)
            after = self.model_config(model)
        if self._originals.get(model) == after:
            del self._originals[model]
        old, new = (ConfigDocument.parse(to_text(from_json(each)).encode()) for each in (before, after))
        diff = old.diff(new)
        return ConfigureResult(
            model=model,
            epoch=self._epochs.get(model, 0),
            change_class="reload" if diff else "none",
            reasons=(_RELOADS,) if diff else (),
            triton="this is what it does" if diff else "",
            diff=diff,
            took_ms=(monotonic_ns() - started) / 1e6,
            dirty=model in self._originals,
            config=after,
        )

    def _back_to_file(self, model: str) -> bool:
        """Whether the model was another than its file's, and is its file's now."""
        with contextlib.suppress(WorkbenchError), self._control_here() as control:
            if control is not None and control.config(model)["dirty"]:
                control.revert(model)
                self._reloaded(model)
                return True
        return False

    @contextlib.contextmanager
    def _control_here(self) -> Iterator[ControlClient | None]:
        """The control plane, where this is a server of the workbench on this machine."""
        info = server_here(self.url)
        if info is None or not info["http"]:
            yield None
            return
        with ControlClient(info["http"], info["token"]) as control:
            yield control

    @explained
    def revert(self, model: str) -> ConfigureResult:
        """Loads the model with the configuration that it had when it was first edited from here.

        Not a plain load: after an override Triton keeps that until another one comes.
        """
        return self.put_back(model, self._originals.get(model) or self.model_config(model))


def _without_made_sizes(document: ConfigDocument, edits: Sequence[Edit]) -> ConfigDocument:
    """The edited configuration without the ``preferred_batch_size`` that Triton makes of ``max_batch_size`` where none
    is given: of another ``max_batch_size`` it makes another one, and refuses one that is above it."""
    edited = document.edit(list(edits))
    most, sizes = document.message.max_batch_size, "dynamic_batching.preferred_batch_size"
    kept = edited.message.max_batch_size == most or any(
        edit.path == "dynamic_batching" or edit.path.startswith(sizes) for edit in edits
    )
    if kept or list(edited.message.dynamic_batching.preferred_batch_size) != [most]:
        return edited
    return edited.edit([Edit(sizes, "remove")])


def scheduling_choice(config: Mapping[str, Any]) -> str:
    """The scheduler of a configuration in a word: ``dynamic``, ``sequence``, ``ensemble`` or empty."""
    for key, word in (
        ("dynamic_batching", "dynamic"),
        ("sequence_batching", "sequence"),
        ("ensemble_scheduling", "ensemble"),
    ):
        if config.get(key) is not None:
            return word
    return ""
