"""Sweeps that other machines measure: what their workers serve, and the server of a worker."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.distributed.kubernetes import JobOptions, as_yaml, job_manifest
from workbench.distributed.ray_cluster import Ray
from workbench.distributed.ray_generators import RayGenerators
from workbench.distributed.serving import InputFile, Serving
from workbench.distributed.shards import plan_shards, read_shard
from workbench.distributed.worker import WorkerExecutor
from workbench.errors import AlreadyExists, InvalidRequest, NotReady, Unsupported
from workbench.profiling import Load, MeasureOptions, Progress, SweepOptions, SweepResult
from workbench.profiling import sweep as run_sweep
from workbench.profiling.executing import Executor, LocalExecutor
from workbench.profiling.generators import Place
from workbench.profiling.target import Configurable
from workbench.records.runs import RunStore
from workbench.repository.files import content_hash, example_inputs_hash
from workbench.session.bars import progress_bar
from workbench.session.loads import loads_of
from workbench.session.measuring import SessionTarget, checked_grid
from workbench.session.opening import serve
from workbench.session.pipelines import composing_models, with_composing
from workbench.session.server import Server

ExecutorLike = Executor | Ray | str | None
PlaceLike = Place | Ray | str | None


def executor_of(given: ExecutorLike, server: Server, model: str) -> Executor | None:
    """The executor that a person names; None measures at the server itself.

    Raises:
        InvalidRequest: there is none of that name; the model has edits that no other machine can see.
        Unsupported: the model's files are not on this machine.
    """
    if given is None or given == "local":
        return None
    if given == "ray":
        given = Ray()
    if isinstance(given, str) or not (isinstance(given, Ray) or hasattr(given, "open")):
        raise InvalidRequest(f"there is no executor {given!r:.80}", hint='there are "local" and "ray"; or wb.Ray(...)')
    return given.bind(serving_of(server, model)) if isinstance(given, Ray) else given


def place_of(given: PlaceLike, server: Server, loads: Sequence[Load]) -> Place | None:
    """Where the generators of load points run; None: on this machine.

    Raises:
        InvalidRequest: there is no such place.
        Unsupported: the engine is in this kernel: no other machine reaches it.
    """
    if given is None or given == "local":
        return None
    if server.kind == "kernel":
        raise Unsupported(
            "generators on other machines cannot reach an engine in this kernel",
            hint="serve the repository (workbench serve) and measure that",
        )
    if given == "ray":
        given = Ray()
    if isinstance(given, str) or not (isinstance(given, Ray) or hasattr(given, "open")):
        raise InvalidRequest(f"there is no executor {given!r:.80}", hint='there are "local" and "ray"; or wb.Ray(...)')
    if isinstance(given, Ray):
        return RayGenerators(given, server.url, max(load.generators for load in loads))
    return given


def executor_for(
    target: Configurable,
    server: Server,
    model: str,
    loads: Sequence[Load],
    executor: ExecutorLike,
    generators_on: PlaceLike,
) -> Executor | None:
    """What measures the points of a sweep; None where all of it is done at the server and from this machine.

    Raises:
        InvalidRequest: both are named; or as ``executor_of`` and ``place_of``.
    """
    where, place = executor_of(executor, server, model), place_of(generators_on, server, loads)
    if where is not None and place is not None:
        raise InvalidRequest("the workers of an executor send their load themselves", hint="leave out generators_on")
    return where if place is None else LocalExecutor(target, place)


def serving_of(server: Server, model: str) -> Serving:
    """What another machine must serve to measure a model as it is applied here.

    Raises:
        InvalidRequest: it, or a model that it is made of, has edits that are not saved: others serve the files.
        Unsupported: the files are not on this machine.
    """
    models = with_composing([model], lambda name: composing_models(server.config(name).effective))
    contents, texts = {}, {}
    for name in models:
        directory = server.model_directory(name)
        if directory is None:
            raise Unsupported(
                f"the files of model '{name}' are not on this machine: what other machines must serve is not known",
                where=server.url,
                hint="sweep from where the repository is: wb.serve(repository)",
            )
        view = server.config(name)
        if view.dirty:
            raise InvalidRequest(
                f"'{name}' has edits that are not saved, and other machines serve the files",
                where=str(directory),
                hint=f"server.save({name!r}), or server.revert({name!r}); sweep the edited paths otherwise",
            )
        contents[name], texts[name] = content_hash(directory), view.text
    paths = tuple(str(path) for path in server.repository_paths)
    directory = server.model_directory(model)
    examples = example_inputs_hash(directory) if directory is not None else ""
    return Serving(open_target, paths, tuple(models), contents, texts, examples)


@contextlib.contextmanager
def open_target(serving: Serving) -> Iterator[Configurable]:
    """Serves a repository in a background process and gives the target; the server ends with it.

    Raises:
        InvalidRequest: a model begins with another configuration than where the sweep was planned.
        LoadFailed: it cannot be served.
    """
    with serve(list(serving.repositories), models=serving.models) as server:
        for model in serving.models:
            reason = next((row.reason for row in server.models() if row.name == model and not row.ready), "")
            if reason:
                raise Unsupported(f"'{model}' cannot be served here: {reason}", where=", ".join(serving.repositories))
            serving.check_text(model, server.config(model).text)
        yield SessionTarget(server)


def write_shards(
    server: Server,
    model: str,
    grid: Mapping[str, Sequence[Any]],
    to: Path,
    count: int,
    *,
    concurrency: int | Sequence[int] | None = None,
    rate: float | Sequence[float] | None = None,
    load: Any = None,
    inputs: str | Path | None = None,
    job: JobOptions | None = None,
    title: str = "",
    content: str = "",
    keep_samples: bool = False,
    measure: MeasureOptions | None = None,
    **options: Any,
) -> list[Path]:
    """Divides a sweep into shard files, and with ``job`` into a Kubernetes Job; gives the paths, the Job's last.

    Arguments as ``Server.sweep`` where it has them; ``inputs`` must be a file, which goes with each shard.

    Raises:
        AlreadyExists: the directory holds shards.
        InvalidRequest: a grid or loads that make no sense, more shards than points, edits that are not saved.
        Unsupported: the model's files are not on this machine.
    """
    if inputs is not None and not isinstance(inputs, str | Path):
        raise InvalidRequest("the inputs of shards must be a file", hint="as perf_analyzer's --input-data")
    given = SweepOptions(title=title, content=content, keep_samples=keep_samples, measure=measure or MeasureOptions())
    shards = plan_shards(
        serving_of(server, model), checked_grid(server, model, grid), loads_of(concurrency, rate, options, load), count,
        inputs=InputFile.of(inputs), options=given,
    )  # fmt: skip
    manifests = job_manifest(shards, job) if job is not None else []
    to.mkdir(parents=True, exist_ok=True)
    if found := sorted(to.glob("shard-*.json")):
        raise AlreadyExists("the directory holds shards already", where=str(found[0]), hint="take another directory")
    paths = [shard.write(to) for shard in shards]
    if manifests:
        path = to / "job.yaml"
        path.write_text(as_yaml(manifests), encoding="utf-8")
        paths.append(path)
    return paths


def run_shard(
    path: str | Path,
    *,
    repository: str | Path | None = None,
    store: RunStore | str | Path = "runs",
    remeasure: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    show_progress: bool = True,
    stop: threading.Event | None = None,
) -> SweepResult:
    """Serves the repository of a shard and measures its points; a run that it has begun before is gone on with.

    Args:
        path: the shard's file.
        repository: where the model repository lies here; None: where it lay when the shard was written.
        store: the run store.
        remeasure: points that were not valid are measured again.
        on_progress: hears of each point.
        show_progress: draw a bar.
        stop: once set, ends it and keeps what was measured.

    Raises:
        InvalidRequest: it is no shard, or the repository here holds other files or another config.pbtxt.
        NotFound: there is no such file, or no such model in the repository.
    """
    shard = read_shard(path, open_target)
    serving = shard.serving.at([repository]) if repository is not None else shard.serving
    runs = RunStore(store) if isinstance(store, str | Path) else store
    serving.check()
    with contextlib.ExitStack() as stack:
        file = shard.inputs
        inputs = file.put(stack.enter_context(tempfile.TemporaryDirectory())) if file is not None else None
        target = stack.enter_context(open_target(serving))
        title = f"{shard.model}, shard {shard.number + 1} of {shard.of}"
        listeners = [stack.enter_context(progress_bar(show_progress, title)), on_progress]

        def tell(progress: Progress) -> None:
            for listener in listeners:
                if listener is not None:
                    listener(progress)

        def measured(resume: bool) -> SweepResult:
            options = replace(shard.options, resume=resume, remeasure=remeasure)
            return run_sweep(
                target, shard.model, shard.grid, shard.loads, inputs=inputs, store=runs, on_progress=tell, stop=stop,
                options=options, executor=WorkerExecutor(target, serving),
            )  # fmt: skip

        try:
            return measured(resume=True)
        except NotReady:  # another machine began it and was lost: what it has is merged with what is measured here
            return measured(resume=False)
