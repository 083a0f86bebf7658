"""Measuring a server of the session: its side of profiling's ``Configurable``, and the verbs profile, sweep, export."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.config import ConfigDocument
from workbench.errors import ConnectionFailed, InvalidRequest, NotFound, Unsupported, WorkbenchError
from workbench.export import ExportResult, ModelToExport, export_repository
from workbench.profiling import (
    ABOptions,
    ABResult,
    MeasureOptions,
    Measurer,
    Point,
    Progress,
    SweepJob,
    SweepOptions,
    SweepResult,
)
from workbench.profiling import ab as run_ab
from workbench.profiling import sweep as run_sweep
from workbench.profiling.ab_result import Block
from workbench.profiling.ab_verdict import looks
from workbench.profiling.hold import Desk, Hold
from workbench.profiling.paths import check_grid, normal_grid
from workbench.profiling.settings import split_setting
from workbench.profiling.sweeping import listed
from workbench.profiling.target import TargetProtocol
from workbench.protocol.tensors import InferenceRequest, InferenceResponse
from workbench.records import RecordColumns
from workbench.records.environment import capture_environment
from workbench.records.runs import RunStore
from workbench.session.bars import pair_bar, progress_bar
from workbench.session.given import as_edits
from workbench.session.hints import explain
from workbench.session.journal import JournalDesk
from workbench.session.loads import judged_by, loads_of
from workbench.session.pipelines import composing_models, with_composing
from workbench.session.remote import TritonServer, WorkbenchServer

if TYPE_CHECKING:
    from workbench.session.server import Server
    from workbench.session.sharding import ExecutorLike, PlaceLike
    from workbench.session.state import SessionState

_NOT_OF_ENSEMBLES = ("instance_group", "dynamic_batching", "sequence_batching", "model_warmup", "optimization")


class SessionTarget:
    """A server of the session as profiling sees it (``Configurable``)."""

    def __init__(self, server: Server) -> None:
        self._server = server
        desk = _desk(server)
        journal = isinstance(desk, JournalDesk)  # which knows itself what was there
        self._held = Hold(desk, read=None if journal else lambda model: server.config(model).text)

    @property
    def url(self) -> str:
        """Where the load goes."""
        return self._server.url

    @property
    def protocol(self) -> TargetProtocol:
        """How the load gets there."""
        if self._server.kind == "kernel":
            return "in-kernel"
        return "grpc" if self._server.url.startswith("grpc") else "http"

    @property
    def pid(self) -> int:
        """The server's process on this machine, 0 elsewhere."""
        return int(getattr(self._server, "pid", 0))

    def statistics(self, model: str) -> Mapping[str, Any]:
        """Triton's statistics of a model."""
        return self._server.statistics(model)

    def model_config(self, model: str) -> Mapping[str, Any]:
        """The configuration that is loaded."""
        return self._server.model_config(model)

    def model_metadata(self, model: str) -> Mapping[str, Any]:
        """Triton's metadata of a model."""
        return self._server.model_metadata(model)

    def model_directory(self, model: str) -> Path | None:
        """The model's directory, if it is on this machine."""
        return self._server.model_directory(model)

    def records(self, after: int) -> RecordColumns | None:
        """Records after a cursor; None where the server keeps none."""
        if self._server.kind == "remote":
            return None
        return self._server.record_columns(after)

    def loop_stalls(self) -> list[tuple[int, float]]:
        """When (ns) the server's event loop stood still lately, and for how many ms; empty where it does not tell."""
        return [(int(when), float(length)) for when, length in self._server.state().get("stalls", ())]

    def watchers(self) -> str:
        """How many panels are open on the server in this kernel, in words; empty for none."""
        count = self._server.session.watchers
        return f"{count} panel{'s are' if count > 1 else ' is'} open in this kernel" if count else ""

    def epoch(self, model: str) -> int | None:
        """The number of the applied configuration."""
        control = self._server.control_here() if isinstance(self._server, TritonServer) else None
        return self._server.config(model).epoch if control is None else int(control.config(model)["epoch"])

    def composing(self, model: str) -> list[str]:
        """The models that an ensemble is made of, those of ensembles within it too."""
        return _whole(self._server, [model])[1:]

    def hold(self, models: Sequence[str], doing: str) -> None:
        """Takes models, so that no other sweep and no edit comes between until ``restore``.

        Raises:
            NotReady: somebody has one of them; the text names the holder.
        """
        self._held.take(models, doing)

    def lost(self) -> str:
        """Why a model is not held any more, though it was not given back; empty while all is well."""
        return self._held.check()

    def configure(self, model: str, edits: Sequence[Any]) -> Any:
        """Applies edits in memory, under a lease.

        Raises:
            ConfigError: an edit or its result is refused; nothing has changed.
            NotReady: the model is in somebody else's hands.
        """
        try:
            return self._held.configure(model, as_edits(edits, {}), "edits under a lease")
        except WorkbenchError as error:
            explain(self._server, model, error)
            raise

    def restore(self, model: str) -> None:
        """Has the configuration applied that was there before the first ``configure``, and lets go of the model.

        To the byte on a server of the workbench. If that fails, it can be tried again.
        """
        self._held.release(model)

    def let_go(self) -> None:
        """Leaves to the server what ``restore`` could not put back: it does so when the lease ends."""
        self._held.let_go()

    def submit(self, request: InferenceRequest, on_response: Callable[[InferenceResponse], None]) -> object:
        """Hands a request to an engine in this kernel, from any thread."""
        from workbench.session.kernel import Engine

        if not isinstance(self._server, Engine):
            raise Unsupported("only an engine in this kernel takes requests without a socket")
        self._server.submit(request, on_response)
        return None


def _desk(server: Server) -> Desk:
    """Where the models of a server are taken for a sweep."""
    from workbench.session.kernel import Engine

    if isinstance(server, Engine):
        return server.engine
    if isinstance(server, WorkbenchServer):
        return server.control
    if isinstance(server, TritonServer):
        return server.control_here() or JournalDesk(server)  # a sweep by name and one by address hold the same lease
    raise Unsupported(f"a {type(server).__name__} cannot be swept")


def profile(
    server: Server,
    model: str,
    *,
    concurrency: int | None,
    rate: float | None,
    load: Any = None,
    inputs: Any = None,
    measure: MeasureOptions | None = None,
    executor: PlaceLike = None,
    **options: Any,
) -> Point:
    """Measures one load point; see ``Server.profile``."""
    _check_name(model)
    loads = loads_of(concurrency, rate, options, load)
    if len(loads) != 1:
        raise InvalidRequest(
            "profile measures one load point",
            hint="give concurrency or rate; several: server.sweep(model, {}, concurrency=[1, 4])",
        )
    from workbench.session.sharding import place_of

    place, stop = place_of(executor, server, loads), threading.Event()
    with contextlib.ExitStack() as stack:
        stack.enter_context(server.session.measuring_window())
        if place is not None:
            stack.callback(place.close)
            place.open(stop)
        measurer = stack.enter_context(
            Measurer(
                SessionTarget(server), model, inputs=inputs, stop=stop, options=judged_by(measure, options), place=place
            )
        )
        try:
            return measurer.measure(loads[0])
        except ConnectionFailed as error:
            explain(server, model, error)
            raise


def ab(
    server: Server,
    model: str,
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    *,
    concurrency: int | None = None,
    rate: float | None = None,
    load: Any = None,
    against: str = "",
    inputs: Any = None,
    pairs: int = 6,
    max_pairs: int = 24,
    metric: str | None = None,
    seed: int = 1,
    measure: MeasureOptions | None = None,
    store: RunStore | str | Path | None = "runs",
    title: str = "",
    show_progress: bool = True,
    stop: threading.Event | None = None,
    **options: Any,
) -> ABResult:
    """Compares two configurations in interleaved blocks; see ``Server.ab``."""
    _check_name(model)
    if against:
        _check_name(against)
    of_blocks = {"duration_s": 1.0, "warmup_s": 0.2, "seed": seed, **options} if load is None else options
    loads = loads_of(concurrency, rate, of_blocks, load)
    if len(loads) != 1:
        raise InvalidRequest("ab compares at one load", hint="give concurrency or rate")
    first, second = _one(server, model, a), _one(server, against or model, b)
    judging = ABOptions(pairs, max_pairs, metric, seed, judged_by(measure, options))
    runs = store_of(store)
    session = server.session
    with contextlib.ExitStack() as stack:
        for name in dict.fromkeys((model, against or model)):
            stack.callback(session.begin_sweep(name))
        stack.enter_context(session.measuring_window())
        bar = stack.enter_context(pair_bar(show_progress, looks(pairs, max_pairs)))

        def heard(block: Block) -> None:
            session.point_ended()
            bar(block)

        return run_ab(
            SessionTarget(server), model, first, second, loads[0], against=against, inputs=inputs, store=runs,
            title=title, stop=stop, on_block=heard, options=judging,
        )  # fmt: skip


def _one(server: Server, model: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """One side's settings in their normal form."""
    if not isinstance(settings, Mapping):
        raise InvalidRequest(
            f"a side of an A/B is values by path, got {settings!r:.80}", hint='{"max_batch_size": 8}, or {} as it is'
        )
    normal = checked_grid(server, model, {path: [value] for path, value in settings.items()})
    return {path: values[0] for path, values in normal.items()}


def sweep(
    server: Server,
    model: str,
    grid: Mapping[str, Sequence[Any]],
    *,
    wait: bool = True,
    concurrency: int | Sequence[int] | None = None,
    rate: float | Sequence[float] | None = None,
    load: Any = None,
    inputs: Any = None,
    store: RunStore | str | Path | None = "runs",
    title: str = "",
    kind: str = "sweep",
    resume: str | bool = "",
    remeasure: bool = False,
    content: str = "",
    keep_samples: bool = False,
    measure: MeasureOptions | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    show_progress: bool = True,
    stop: threading.Event | None = None,
    executor: ExecutorLike = None,
    generators_on: PlaceLike = None,
    **options: Any,
) -> SweepResult | SweepJob:
    """Measures a grid; see ``Server.sweep``.

    Args:
        server: where.
        model: the model.
        grid: values by configuration path; None removes the field. Under an ensemble by ``STEP:PATH``: its own
            configuration has no instances and no batching. ``parameters[KEY]`` takes plain values; of a list field
            (``dynamic_batching.preferred_batch_size``) ``[4, 8]`` is one value, ``[[4, 8], [16]]`` are two.
        wait: False gives a started ``SweepJob``.
        concurrency: closed loops: one number or several.
        rate: open loops, requests/s: one number or several.
        load: a ``Load`` or several, in place of the two; what ``Load.replay`` takes is replayed as it came.
        inputs: what to send; None takes the model's example inputs.
        store: the directory of the run store; None stores nothing.
        title: what a person calls the run.
        kind: what the run is stored as.
        resume: the id of a run of the store that was ended early: what it has is not measured again. True takes the
            newest one of the same model, grid and loads, or begins a new one.
        remeasure: when resuming, points that were not valid are measured again.
        content: what the model's files are (a version, a git hash), where they are not on this machine: to resume.
        keep_samples: store the stamps of every request and the server's records with each point.
        measure: how strictly points are judged, and by which rule they count as stable.
        on_progress: hears of each point.
        show_progress: draw a bar while waiting.
        stop: once set, ends the sweep and keeps what was measured.
        executor: where to measure: None at the server itself; "ray" or ``wb.Ray(...)`` on a Ray cluster, whose workers
            serve the repository themselves.
        generators_on: in its place, where the ``generators`` of the load run while the server is measured that is here.
        options: of the load: ``duration_s``, ``warmup_s``, ``batch_size``, ``seed``, ``distribution``, ...

    Raises:
        ConfigError: a path of the grid that no configuration has.
        InvalidRequest: loads or values that make no sense; a model that is no step; batching of an ensemble itself.
        NotReady: a sweep of the model runs already, here or elsewhere.
    """
    from workbench.session.sharding import executor_for

    _check_name(model)
    target, loads, runs = SessionTarget(server), loads_of(concurrency, rate, options, load), store_of(store)
    grid = checked_grid(server, model, grid)
    where = executor_for(target, server, model, loads, executor, generators_on)
    settings = SweepOptions(
        title=title, kind=kind, resume=resume, remeasure=remeasure, content=content,
        keep_samples=keep_samples, measure=judged_by(measure, options))  # fmt: skip
    session = server.session
    given = {"inputs": inputs, "store": runs, "options": settings, "stop": stop, "executor": where}
    if not wait:
        return _in_background(
            session, model, partial(SweepJob, target, model, grid, loads, **given), _tell_all(session, on_progress)
        )
    with contextlib.ExitStack() as stack:
        stack.callback(session.begin_sweep(model))
        stack.enter_context(session.measuring_window())
        hear = _tell_all(session, stack.enter_context(progress_bar(show_progress, f"sweep {model}")), on_progress)
        return run_sweep(target, model, grid, loads, on_progress=hear, **given)


def _check_name(model: Any) -> None:
    if not isinstance(model, str) or not model:
        raise InvalidRequest(f"a model is given by its name, got {model!r:.80}", hint="server.models() lists them")


def store_of(store: Any) -> RunStore | None:
    """The run store that a person names: by its directory, or None for none.

    Raises:
        InvalidRequest: it is neither.
    """
    if store is not None and not isinstance(store, str | Path | RunStore):
        raise InvalidRequest(f"store must be a directory, got {store!r:.80}", hint='store="runs", None stores nothing')
    return RunStore(store) if isinstance(store, str | Path) else store


def _in_background(
    session: SessionState, model: str, make: Callable[..., SweepJob], hear: Callable[[Progress], None]
) -> SweepJob:
    """Makes the job of a sweep and starts it."""
    end = session.begin_sweep(model)
    try:
        job = make(on_progress=hear, on_end=end)
        session.watch(job)
        return job.start()
    except BaseException:
        end()
        raise


def _tell_all(session: SessionState, *listeners: Callable[[Progress], None] | None) -> Callable[[Progress], None]:
    def tell(progress: Progress) -> None:
        session.point_ended()
        for listener in listeners:
            if listener is not None:
                listener(progress)

    return tell


def checked_grid(server: Server, model: str, grid: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """The grid in its normal form; see ``profiling.paths``.

    A value that is refused is a row of the result; a path that no configuration has is a slip of the pen.

    Raises:
        ConfigError: the schema has no such path, or no combination can be written.
        InvalidRequest: it is no grid.
        NotFound: there is no such model.
    """
    grid = listed(grid)
    whole = _whole(server, [model])
    for key in grid:
        name, path = split_setting(key, model)
        if name not in whole:
            steps = f"; its steps are {', '.join(whole[1:])}" if whole[1:] else "; it has no steps"
            raise InvalidRequest(f"'{name}' is no step of '{model}', in '{key}'", hint=f"write STEP:PATH{steps}")
        if name == model and len(whole) > 1 and path.partition(".")[0].partition("[")[0] in _NOT_OF_ENSEMBLES:
            raise InvalidRequest(
                f"an ensemble has no {path.partition('.')[0].partition('[')[0]}: '{model}' runs what its steps run",
                hint=f"sweep a step: {whole[1]}:{path}",
            )
    normal = normal_grid(grid, model)
    check_grid(normal, model, lambda name: ConfigDocument.parse(server.config(name).text.encode(), name))
    return normal


def export(
    server: Server,
    to: Path,
    *,
    models: Sequence[str] | None = None,
    measured: Mapping[str, Mapping[str, Any]] | None = None,
    provenance: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> ExportResult:
    """Writes the repository with the configurations as they are applied now; see ``Server.export``.

    Args:
        server: a server whose repository is on this machine.
        to: the directory to make.
        models: which; None takes all that are ready. The models that an ensemble is made of come with it.
        measured: figures for the provenance, by model.
        provenance: more for provenance.json.
        overwrite: replace an earlier export.

    Raises:
        NotFound: there is no such model.
        Unsupported: the model files are not on this machine.
        AlreadyExists: ``to`` holds something.
    """
    known = server.models()
    names = list(models) if models is not None else [row.name for row in known if row.ready]
    unknown = [name for name in names if name not in known.names]
    if unknown:
        raise NotFound(f"no model {unknown[0]!r} to export", where=str(to), hint=f"there are {', '.join(known.names)}")
    chosen = []
    for name in _whole(server, names):
        directory = server.model_directory(name)
        if directory is None:
            raise Unsupported(
                f"the files of model '{name}' are not on this machine",
                where=server.url,
                hint="export where the repository is",
            )
        chosen.append(ModelToExport(directory, server.config(name).text.encode(), dict((measured or {}).get(name, {}))))
    about = {"environment": capture_environment(), **(provenance or {})}
    return export_repository(chosen, to, provenance=about, overwrite=overwrite)


def _whole(server: Server, names: Sequence[str]) -> list[str]:
    return with_composing(names, lambda name: composing_models(server.config(name).effective))
