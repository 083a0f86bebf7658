"""``server.compare``: models of a server side by side, and what it takes to have each, in a server of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.clock import monotonic_ns
from workbench.errors import InvalidRequest, NotFound, NotReady, WorkbenchError
from workbench.profiling import MeasureOptions, Point
from workbench.records.runs import RunStore
from workbench.session.bars import step_bar
from workbench.session.loads import judged_by, loads_of
from workbench.session.measuring import SessionTarget, store_of
from workbench.session.opening import serve
from workbench.telemetry import family, sample
from workbench.tuning.compare_result import CompareResult, Startup
from workbench.tuning.comparing import CompareOptions, Step
from workbench.tuning.comparing import compare as run_compare
from workbench.tuning.drift import Metric
from workbench.tuning.vectors import Kind

if TYPE_CHECKING:
    from workbench.session.server import Server

_MIB = 2**20
_NOT_LOADED = "it is not loaded"


def compare(
    server: Server,
    models: Sequence[str],
    *,
    reference: str = "",
    concurrency: int | None = None,
    rate: float | None = None,
    load: Any = None,
    inputs: Any = None,
    input_names: Mapping[str, Mapping[str, str]] | None = None,
    output_names: Mapping[str, Mapping[str, str]] | None = None,
    output_kinds: Mapping[str, Kind] | None = None,
    metric: Metric | None = None,
    top_k: int = 5,
    rounds: int = 6,
    examples: int = 32,
    asking_s: float = 10.0,
    startup: bool = True,
    measure: MeasureOptions | None = None,
    store: RunStore | str | Path | None = "runs",
    title: str = "",
    stop: threading.Event | None = None,
    on_block: Callable[[int, int, Point], None] | None = None,
    on_step: Callable[[Step], None] | None = None,
    show_progress: bool = True,
    **options: Any,
) -> CompareResult:
    """Models side by side; see ``Server.compare``."""
    if isinstance(models, str) or not all(isinstance(name, str) for name in models):
        raise InvalidRequest(f"models must be a list of names, got {models!r:.80}", hint='compare(["a", "b"])')
    counts: dict[str, Any] = {"top_k": top_k, "rounds": rounds, "examples": examples}
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise InvalidRequest(f"{name} must be a whole number above 0, got {count!r:.80}")
    of_blocks = {"duration_s": 1.0, "warmup_s": 0.2, **options} if load is None else options
    loads = loads_of(concurrency, rate, of_blocks, load)
    if len(loads) != 1:
        raise InvalidRequest("models are compared at one load", hint="give concurrency or rate")
    judging = CompareOptions(
        rounds, loads[0].seed, top_k, metric, examples, asking_s, output_kinds or {},
        judged_by(measure, options),
    )  # fmt: skip
    runs = store_of(store)
    failed = _not_serving(server, models, reference or next(iter(models), ""))
    session = server.session

    with contextlib.ExitStack() as stack:
        stepped = _all_of(stack.enter_context(step_bar(show_progress)), on_step)
        for name in dict.fromkeys(models):
            stack.callback(session.begin_sweep(name))
        stack.enter_context(session.measuring_window())
        return run_compare(
            SessionTarget(server),
            models,
            loads[0],
            server.infer,
            reference=reference,
            inputs=inputs,
            input_names=input_names,
            output_names=output_names,
            startup=(lambda name, example: startup_of(server, name, example)) if startup else None,
            options=judging,
            store=runs,
            title=title,
            stop=stop,
            on_block=_all_of(lambda *_: session.point_ended(), on_block),
            on_step=stepped,
            failed=failed,
        )


def _all_of(*listeners: Callable[..., None] | None) -> Callable[..., None]:
    """Tells all that listen."""

    def tell(*news: Any) -> None:
        for listener in listeners:
            if listener is not None:
                listener(*news)

    return tell


def _not_serving(server: Server, models: Sequence[str], reference: str) -> dict[str, str]:
    """Of the models that do not serve: why.

    Raises:
        NotFound: the server has no such model.
        NotReady: it is the reference.
    """
    table = server.models()
    unknown = [name for name in models if name not in table.names]
    if unknown:
        raise NotFound(
            f"no model '{unknown[0]}' on this server",
            hint=f"there are {', '.join(table.names) or 'none'}; server.load(NAME) loads one that was built since",
        )
    found = {}
    for name in dict.fromkeys(models):
        rows = [row for row in table if row.name == name]
        if not any(row.ready for row in rows):
            why = rows[-1].reason.strip()
            found[name] = f"it does not serve ({rows[-1].state or 'not loaded'}): {why}" if why else _NOT_LOADED
    if reference in found:
        raise NotReady(
            f"the reference '{reference}' cannot be asked: {found[reference]}",
            hint=f"server.load({reference!r}), or another reference",
        )
    return {name: f"{why}: server.load({name!r})" if why == _NOT_LOADED else why for name, why in found.items()}


def startup_of(server: Server, model: str, example: Mapping[str, Any]) -> Startup:
    """How long a model takes to load and to answer its first request, and its memory, with the configuration applied.

    A server of its own is started for it, with nothing else loaded: where other models live, allocators keep and
    share what this one would need.
    """
    if not server.repository_paths or server.model_directory(model) is None:
        return Startup(why="its files are not on this machine")
    try:
        config = server.model_config(model)
        with serve(server.repository_paths, models=(), options={"id": f"startup of {model}"}) as alone:
            before = _memory(alone.pid)
            begun = monotonic_ns()
            alone.load(model, config=config)
            loaded = monotonic_ns()
            alone.infer(model, example)
            answered = monotonic_ns()
            return Startup((loaded - begun) / 1e9, (answered - loaded) / 1e6, (_memory(alone.pid) - before) / _MIB)
    except WorkbenchError as error:
        return Startup(why=f"it could not be loaded in a server of its own: {error.message}")


def _memory(pid: int) -> int:
    """Resident bytes of a process and all below it; pages that they share count for each."""
    return sum(process.rss_bytes for process in sample(family(pid)).processes)
