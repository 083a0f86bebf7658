"""One interface for a server, wherever it runs: in a process of its own, in this kernel, or a real Triton elsewhere."""

from __future__ import annotations

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from workbench.config import Edit
from workbench.errors import InvalidRequest, NotFound, NotReady, Unsupported, WorkbenchError
from workbench.profiling.point import Point
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Parameter, RequestedOutput, Tensor
from workbench.session.given import EditLike, as_edits, as_tensor, plain
from workbench.session.hints import explain
from workbench.session.results import ConfigureResult, ModelRow, ModelTable, Result, SaveResult, Statistics
from workbench.session.telling import TellingServer

if TYPE_CHECKING:
    from workbench.export import ExportResult
    from workbench.profiling import ABResult, SweepJob, SweepResult
    from workbench.records.capture import Keep
    from workbench.session.capture import Capture
    from workbench.session.state import SessionState
    from workbench.tuning.compare_result import CompareResult

_FIELDS = frozenset(("priority", "timeout", "sequence_id", "sequence_start", "sequence_end"))
"""What Triton takes out of a request's parameters for itself; its clients have arguments for it."""

_MAKING_SESSION = threading.Lock()  # one state a server, whichever thread asks first


class Server(TellingServer):
    """A server that holds models.

    What a place cannot do raises ``Unsupported`` in words; it is never faked.
    """

    _session: SessionState | None = None

    # -- models ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def repository_index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """Triton's repository index: ``name``, ``version``, ``state``, ``reason`` of each version known."""

    @abstractmethod
    def model_metadata(self, model: str) -> dict[str, Any]:
        """Triton's model metadata: inputs and outputs with datatype and shape."""

    @abstractmethod
    def model_config(self, model: str) -> dict[str, Any]:
        """The completed configuration as Triton's JSON."""

    @abstractmethod
    def statistics(self, model: str = "") -> Statistics:
        """Triton's statistics of one model or of all."""

    @abstractmethod
    def load(self, model: str, *, config: Mapping[str, Any] | str | None = None) -> None:
        """Loads or reloads a model, with another configuration for this load if one is given.

        Raises:
            WorkbenchError: with Triton's text; after a failed reload the old version goes on serving.
        """

    @abstractmethod
    def unload(self, model: str) -> None:
        """Unloads a model; requests that run are finished first."""

    @abstractmethod
    def is_live(self) -> bool:
        """Whether the server runs and answers."""

    @abstractmethod
    def is_model_ready(self, model: str) -> bool:
        """Whether a model takes inferences; False also for one that is not known."""

    def models(self) -> ModelTable:
        """What is in the repository, and how it is."""
        return model_table(self.state(), self.repository_index())

    # -- inference ------------------------------------------------------------------------------------------------

    @abstractmethod
    def _infer(self, request: InferenceRequest, timeout_s: float) -> InferenceResponse:
        """Sends a request and waits for its one answer; raises the answer's error."""

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        outputs: Sequence[str] = (),
        version: int = -1,
        id: str = "",
        priority: int = 0,
        timeout: int = 0,
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        parameters: Mapping[str, Parameter] | None = None,
        timeout_s: float = 60.0,
    ) -> Result:
        """Asks a model.

        Args:
            model: its name.
            inputs: name → array, list, number or string; converted to the datatype that the model declares. Shapes are
                the full ones, the batch dimension included where ``max_batch_size`` is above 0.
            outputs: names wanted; none means all.
            version: -1 is the latest ready version.
            id: the request id, given back in the answer and kept in the record.
            priority: 1 is the highest; 0 is the model's default.
            timeout: Triton's request timeout in the queue, in microseconds; 0 is none.
            sequence_id: the sequence that the request belongs to; 0 is none.
            sequence_start: the request is the first of its sequence.
            sequence_end: the request is the last of its sequence.
            parameters: request parameters for the model, none of a name that the protocol has for itself.
            timeout_s: how long to wait for the answer.

        Raises:
            InvalidRequest: a reserved name in ``parameters``.
            WorkbenchError: with Triton's text: unknown model, wrong name, dtype or shape, queue full, model error, ...
        """
        for name in parameters or {}:
            if name in _FIELDS:
                text = f"'{name}' is a field of the request, not one of the model's parameters"
                raise InvalidRequest(text, hint=f"write infer(..., {name}=...)")
        request = InferenceRequest(
            model_name=model,
            inputs=self._tensors(model, inputs),
            outputs=[RequestedOutput(name) for name in outputs],
            model_version=version,
            id=id,
            parameters=dict(parameters or {}),
            priority=priority,
            timeout=timeout,
            sequence_id=sequence_id,
            sequence_start=sequence_start,
            sequence_end=sequence_end,
            client="python",
        )
        try:
            return Result(self._infer(request, timeout_s))
        except WorkbenchError as error:
            explain(self, model, error, request)
            raise error.with_traceback(None) from None  # the frames below are ours; a notebook would show them all

    def _tensors(self, model: str, inputs: Mapping[str, Any]) -> list[Tensor]:
        if not isinstance(inputs, Mapping):
            raise InvalidRequest(
                "inputs must be a mapping from input name to array",
                where=f"infer({model!r}, ...)",
                hint="write {'INPUT': array}",
            )
        declared: dict[str, str] = {}
        if any(not isinstance(value, np.ndarray | Tensor) for value in inputs.values()):
            # An unknown model is the answer of the inference itself, with its own text.
            with contextlib.suppress(NotFound, NotReady, InvalidRequest):
                declared = {entry["name"]: entry["datatype"] for entry in self.model_metadata(model).get("inputs", ())}
        return [as_tensor(name, value, declared.get(name, "")) for name, value in inputs.items()]

    def replay(self, record: Any = None, *, timeout_s: float = 60.0) -> Result | list[Result]:
        """Runs a captured request of a Python model again, on this thread, with the model.py as it lies there now.

        Prints appear here, ``breakpoint()`` stops here, and what the model raises is raised here as it is, so that
        ``%debug`` looks at the model's own frames. The server's instances are not touched; requests to other models
        (BLS) go to the server. A model with an environment of its own (EXECUTION_ENV_PATH) finds that environment's
        packages, where its Python is of this kernel's version; what this kernel has imported already stays as it is.

        Args:
            record: a ``seq``, a row of ``records()`` or of ``captured()``; None is the newest request that failed.
            timeout_s: how long a decoupled model may take for its responses after ``execute`` has returned.

        Returns:
            The answer; the list of answers of a decoupled model.

        Raises:
            NotFound: the request is not kept.
            Unsupported: the model is not a model.py, its files are on another machine, or its environment has another
                version of Python.
        """
        from workbench.session.replay import replay

        __tracebackhide__ = True
        return replay(self, record, timeout_s)

    def capture(
        self,
        model: str,
        *,
        limit_mb: float = 256,
        keep: Keep = "first",
        for_s: float | None = None,
        to: str | Path | None = None,
    ) -> Capture:
        """Takes down what clients send to a model from now on, inputs included, to send it again as load.

        ``with server.capture("m") as capture: ...`` while the real application talks to the server; then
        ``server.profile("m", wb.Load.replay(capture, factor=2))``. Whatever comes over HTTP and gRPC, or by ``infer``
        of an engine in this kernel, is in it; what models ask one another is not. Requests are served as ever: each
        costs the server a copy of its inputs more. The requests lie in the server's memory until the capture is
        stopped.

        Args:
            model: whose requests.
            limit_mb: how much memory what is kept may take. When it is reached, the capture says so.
            keep: the ``first`` requests up to the limit, or the ``last`` within it.
            for_s: how long; None is until it is stopped, an hour at most.
            to: a file to save it in when it is stopped, readable by its owner alone.

        Raises:
            NotFound: there is no such model.
            NotReady: four captures are kept already.
            Unsupported: a remote Triton does not give away what it is sent.
        """
        from workbench.session.capture import capture

        return capture(self, model, limit_mb=limit_mb, keep=keep, for_s=for_s, to=to)

    def resend(self, record: Any = None, *, timeout_s: float = 60.0) -> Result | list[Result]:
        """Sends a captured request to the server again, as it was: after a model was mended and loaded, say.

        Args:
            record: a ``seq``, a row of ``records()`` or of ``captured()``; None is the newest request that failed.
            timeout_s: how long to wait for the answer.

        Returns:
            The answer; of a decoupled model, which only an engine in this kernel can be asked so, the list of them.

        Raises:
            NotFound: the request is not kept.
            WorkbenchError: what it failed with.
        """
        from workbench.session.replay import resend

        __tracebackhide__ = True
        return resend(self, record, timeout_s)

    # -- configuration --------------------------------------------------------------------------------------------

    @abstractmethod
    def _configure(self, model: str, edits: Sequence[Edit], dry_run: bool) -> ConfigureResult:
        """Applies edits in memory."""

    def configure(self, model: str, *edits: EditLike, dry_run: bool = False, **fields: Any) -> ConfigureResult:
        """Applies edits to a model's configuration while it serves; the file is not touched (see ``save``).

        ``server.configure("m", "dynamic_batching.max_queue_delay_microseconds=500", max_batch_size=16)``; a field set
        to ``None`` is removed. ``dry_run`` only says what would happen.

        Raises:
            ConfigError: with Triton's text; nothing has changed then.
        """
        wanted = as_edits(edits, fields)
        if not wanted:
            raise InvalidRequest(
                "nothing to configure", where=f"configure({model!r})", hint='give edits such as "max_batch_size=8"'
            )
        try:
            return self._configure(model, wanted, dry_run)
        except WorkbenchError as error:
            explain(self, model, error)
            raise

    def save(self, model: str) -> SaveResult:
        """Writes the applied configuration to config.pbtxt, atomically; gives the diff that was written.

        Raises:
            Unsupported: a remote Triton writes no files.
        """
        raise Unsupported(
            f"{self._who()} does not write config.pbtxt files", hint="export the tuned repository instead"
        )

    def revert(self, model: str) -> ConfigureResult:
        """Applies the configuration as the file has it."""
        raise Unsupported(f"{self._who()} keeps no file to go back to")

    # -- measuring ------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def control_mode(self) -> str:
        """``none``, ``poll`` or ``explicit``; empty where the server does not say."""

    @property
    def repository_paths(self) -> tuple[Path, ...]:
        """The model repositories, where they are on this machine."""
        return ()

    def model_directory(self, model: str) -> Path | None:
        """The model's directory, if it is on this machine."""
        for repository in self.repository_paths:
            if (repository / model).is_dir():
                return repository / model
        return None

    def profile(
        self,
        model: str,
        load: Any = None,
        *,
        concurrency: int | None = None,
        rate: float | None = None,
        **options: Any,
    ) -> Point:
        """Measures one load point: a closed loop of ``concurrency`` clients, or an open loop of ``rate`` requests/s.

        Args:
            model: what to ask.
            load: any ``Load`` in their place: ``wb.Load.classes({...})`` for several classes of requests at once,
                ``wb.Load.replay(FILE, factor=2)`` for recorded traffic; a capture or trace is replayed as it came.
            concurrency: clients of a closed loop.
            rate: requests/s of an open loop.
            options: ``inputs`` (what to send: arrays by name, several such, a pandas DataFrame, a file as
                perf_analyzer's --input-data, ``.csv``, ``.parquet``, ``.npy``, ``.npz``, a directory of raw files, a
                trace; of a load of several classes also these by class; by default the model's example inputs),
                ``duration_s``, ``warmup_s``, ``batch_size``, ``seed``, ``distribution`` (``poisson``, ``constant``,
                ``gamma``, ``bursty``), ``priority``, ``sequence_length``, ``shared_memory`` and the rest of ``Load``;
                ``measure`` (``profiling.MeasureOptions``: how strictly it is judged),
                ``generators`` (how many processes send it) and ``executor`` (where they run: "ray" or ``wb.Ray(...)``
                on a cluster's nodes, so that the load comes from other machines; the server stays here).
        """
        from workbench.session.measuring import profile

        return profile(self, model, load=load, concurrency=concurrency, rate=rate, **options)

    def ab(self, model: str, a: Mapping[str, Any], b: Mapping[str, Any], **options: Any) -> ABResult:
        """Which of two configurations is faster, and by how much, or that it is too close to call.

        ``server.ab("m", {"max_batch_size": 4}, {"max_batch_size": 8}, concurrency=8)``. They are measured in turn, in
        blocks of a second, until it is decided; the configuration is put back at the end. Ctrl-C keeps what there is.

        Args:
            model: whose configuration.
            a: values by configuration path; ``{}`` for the configuration as it is.
            b: the other one's.
            options: ``concurrency`` or ``rate``, ``against`` (B's model, where it is another one), ``metric`` (by what
                it is decided: ``throughput``, ``mean_ms``, ``p50_ms`` or ``p99_ms``), ``pairs`` and ``max_pairs`` of
                blocks, ``seed``, ``inputs``, ``duration_s`` of a block, ``measure``, ``store``, ``title``.
        """
        from workbench.session.measuring import ab

        return ab(self, model, plain(a), plain(b), **options)

    def compare(self, models: Sequence[str], **options: Any) -> CompareResult:
        """Models side by side: how fast they are, and how far their answers are apart.

        ``server.compare(["minilm", "minilm_ts"], concurrency=4)``. All get the same inputs under the same load, in
        turn, in blocks of a second; ratios are taken round by round. Ctrl-C keeps what there is.

        Args:
            models: two or more.
            options: ``reference`` (whose answers are right; the first), ``concurrency`` or ``rate``, ``inputs`` (by the
                reference's names; its example inputs by default), ``input_names`` and ``output_names`` (``{MODEL:
                {REFERENCE'S NAME: ITS NAME}}``; by default equal names or places), ``output_kinds`` (``{REFERENCE'S
                NAME: "scores", "embedding" or "vectors"}``), ``metric`` (a function of the reference's outputs and the
                other's, by the reference's names, to a number: the larger, the worse), ``top_k``, ``rounds`` of blocks,
                ``examples`` (requests whose answers are compared, asked for ``asking_s`` at most), ``startup`` (whether
                to see what loading takes), ``duration_s`` of a block, ``seed``, ``batch_size``, ``store``, ``title``.

        Raises:
            WorkbenchError: no such model, a reference that does not serve, options without sense.
        """
        from workbench.session.comparing import compare

        return compare(self, models, **options)

    def sweep(
        self, model: str, grid: Mapping[str, Sequence[Any]] | None = None, *, wait: bool = True, **options: Any
    ) -> SweepResult | SweepJob:
        """Measures a grid of configurations × loads, applied live; the configuration is restored at the end.

        ``server.sweep("m", {"dynamic_batching.max_queue_delay_microseconds": [0, 500]}, concurrency=[1, 8])``. With
        ``wait=False`` it runs in the background and a ``SweepJob`` is given back.

        Args:
            model: whose configuration; under an ensemble that of a step, by ``STEP:PATH``.
            grid: values by configuration path; None removes the field.
            wait: False gives a started ``SweepJob``.
            options: ``concurrency`` and ``rate`` (one number or several), ``inputs``, ``duration_s``, ``warmup_s``,
                ``batch_size``, ``store`` (the directory of the runs, by default ``runs``), ``title``, ``resume``,
                ``executor`` ("ray" or ``wb.Ray(...)``: on a cluster, whose workers serve the repository themselves).
        """
        from workbench.session.measuring import sweep

        return sweep(self, model, plain({} if grid is None else grid), wait=wait, **options)

    def export(self, to: str | Path, **options: Any) -> ExportResult:
        """Writes the repository with the configurations as they are applied now, and ``provenance.json``.

        Args:
            to: the directory to make.
            options: ``models`` (names; by default all that are ready; what an ensemble is made of comes with it) and
                ``overwrite=True``, which replaces an earlier export.

        Raises:
            AlreadyExists: ``to`` holds something.
            NotFound: there is no such model.
            Unsupported: the model files are not on this machine.
        """
        from workbench.session.measuring import export

        return export(self, Path(to), **options)

    # -- looking --------------------------------------------------------------------------------------------------

    @property
    def session(self) -> SessionState:
        """The state that panels show; one a server."""
        with _MAKING_SESSION:
            if self._session is None:
                from workbench.session.state import SessionState

                self._session = SessionState(self)
                if self._closed:
                    self._session.close()
            return self._session

    def panel(self, name: str = "overview", **options: Any) -> Any:
        """A panel: ``overview``, ``config``, ``live``, ``timeline``, ``logs``, ``sweep``, ``ensemble``, ``devices``."""
        import importlib

        # The one late binding of the house: session lies below panels.
        panels = importlib.import_module("workbench.panels")
        return panels.panel(self, name, **options)

    # -- life -----------------------------------------------------------------------------------------------------

    def _stop_session(self) -> None:
        if self._session is not None:
            self._session.close()

    @abstractmethod
    def close(self) -> None:
        """Lets go of the server: ends it if it is owned. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def why_gone(self) -> str:
        """What to do when nothing answers any more; empty when there is nothing to say."""
        return ""

    def __repr__(self) -> str:
        if self._closed:
            return f"{type(self).__name__} {self.name!r} (closed)"
        try:
            models: object = self.models()
        except Exception as error:
            models = f"(no answer: {self.why_gone() or error})"
        return f"{type(self).__name__} {self.name!r} {self.url or '(in this kernel)'}\n{models}"


def model_table(state: Mapping[str, Any], index: Iterable[Mapping[str, str]]) -> ModelTable:
    """The rows of a repository index with what the engine's snapshot knows of each."""
    details = {(entry["model"], str(entry["version"])): entry for entry in state.get("versions", ())}
    by_name = {entry["model"]: entry for entry in details.values()}
    # Triton's index has no reason for a model whose directory or configuration cannot be read.
    unreadable = state.get("unreadable", {})
    rows = []
    for entry in index:
        known = details.get((entry["name"], str(entry.get("version", "")))) or by_name.get(entry["name"], {})
        reason = entry.get("reason") or unreadable.get(entry["name"], "")
        rows.append(_row({**entry, "reason": reason}, known))
    return ModelTable(rows)


def _row(entry: Mapping[str, str], known: Mapping[str, Any]) -> ModelRow:
    instances = known.get("instances")
    if instances is not None:
        instances = [each for each in instances if not each.get("passive")]
    success = known.get("statistics", {}).get("inference_stats", {}).get("success", {})
    return ModelRow(
        name=entry["name"],
        version=str(entry.get("version", "")),
        state=entry.get("state", ""),
        reason=entry.get("reason", ""),
        backend=str(known.get("backend", "")),
        max_batch_size=int(known.get("max_batch_size", 0)),
        batching=str(known.get("batching", "")),
        instances=-1 if instances is None else len(instances),
        healthy=-1 if instances is None else sum(1 for instance in instances if instance.get("healthy", True)),
        pending=int(known.get("pending", 0)),
        epoch=int(known.get("config_epoch", 0)),
        dirty=bool(known.get("dirty", False)),
        success=int(success.get("count", 0)),
        failures=int(sum(known.get("failures", {}).values())),
        steps=tuple(known.get("steps", ())),
        details=dict(known.get("details", {})),
    )
