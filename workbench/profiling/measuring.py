"""Measuring one load point: load, statistics at the window's edges, records, checks, verdict."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from workbench.clock import sleep, utc_now_iso
from workbench.errors import Unsupported, WorkbenchError
from workbench.profiling.class_side import class_figures
from workbench.profiling.client_side import client_side
from workbench.profiling.cpu import CpuReading, machine_cpus, read_cpu
from workbench.profiling.device import device_kind
from workbench.profiling.driver import Job
from workbench.profiling.encoding import encode
from workbench.profiling.figures import batch_reasons, client_fields, cpu_fields, server_fields, stream_fields
from workbench.profiling.generators import Generators, Place
from workbench.profiling.interrupting import interrupt_stops
from workbench.profiling.kernel_load import KernelLoad
from workbench.profiling.load import Load
from workbench.profiling.point import Point
from workbench.profiling.requests import Inputs, Prepared, prepare
from workbench.profiling.samples import Samples
from workbench.profiling.server_side import Counters, ServerSide, counters, difference, of_steps
from workbench.profiling.shared import SharedTensors
from workbench.profiling.stream_side import stream_side
from workbench.profiling.target import InKernelTarget, Target, pid_of, try_statistics
from workbench.profiling.verdict import Evidence, MeasureOptions, judge
from workbench.records import RecordColumns
from workbench.records.environment import capture_environment, cpu_condition

_T = TypeVar("_T")

_SETTLE_S = 1.0
_IDLE_S = 15.0


@dataclass(slots=True)
class _Edges:
    """Readings at the two edges of the window."""

    statistics: list[dict[str, Counters]] = field(default_factory=list)
    """By model: the one that is measured, then those that it is made of."""
    cpu: list[CpuReading] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Measured:
    """A point with what it was made of, for those who keep more than the figures."""

    point: Point
    samples: Samples
    records: RecordColumns | None = None
    lost: str = ""
    """Why the server, or its model, was not there to the end; empty where it was."""


class Measurer:
    """Measures points of one model on one target; keeps the generator's process between them.

    Args:
        target: the server.
        model: its model.
        inputs: what to send; None takes the model's example inputs.
        stop: once set, a measurement ends at once and gives what it has.
        on_event: hears ``{"event": "window" | "window_end" | "progress", ...}`` during a measurement.
        options: how strictly points are judged.
        place: where the load comes from; None: from processes of this machine.
    """

    def __init__(
        self,
        target: Target,
        model: str,
        *,
        inputs: Inputs = None,
        stop: threading.Event | None = None,
        on_event: Callable[[Mapping[str, Any]], None] | None = None,
        options: MeasureOptions | None = None,
        place: Place | None = None,
    ) -> None:
        self.target = target
        self.model = model
        self._inputs = inputs
        self._stop = stop if stop is not None else threading.Event()
        self._on_event = on_event
        self._options = options if options is not None else MeasureOptions()
        self._generators = Generators(clock=self._options.clock, place=place)
        self._cursor = -1
        self._lost = ""
        self._environment: dict[str, Any] | None = None

    def measure(self, load: Load, settings: Mapping[str, Any] | None = None) -> Point:
        """Measures a load point under the configuration that is applied now.

        Ctrl-C, and a notebook's interrupt, end it early and give what was measured until then; it sets ``stop``. So
        does a server that is lost, or that unloads the model: the point is not valid then, and says why.

        Args:
            load: what to send.
            settings: what the point stands for in a sweep; only written down.

        Raises:
            ConnectionFailed: nobody answers at the target's address when it begins.
            WorkbenchError: the model is not there, its inputs are not known, ...
        """
        return self.run(load, settings).point

    def run(self, load: Load, settings: Mapping[str, Any] | None = None) -> Measured:
        """As ``measure``, with the stamps and records behind the figures."""
        with interrupt_stops(self._stop):
            return self._measured(load, settings)

    def _measured(self, load: Load, settings: Mapping[str, Any] | None) -> Measured:
        target, model = self.target, self.model
        started = utc_now_iso()
        config = target.model_config(model)
        if config.get("model_transaction_policy", {}).get("decoupled"):
            load = replace(load, streaming=True)  # the server gives its responses in no other way
        prepared = prepare(target, model, config, load, self._inputs)
        epoch = target.epoch(model)
        before, complaint = self._counters()
        notes = [*prepared.notes, *([complaint] if complaint else [])]
        self._skip_records()
        self._lost = ""
        edges = _Edges()
        models = [model, *composing(target, config)] if before is not None else []
        samples = self._load(load, prepared, edges, models)
        self._lost = samples.extra.get("server_lost") or self._lost
        own = samples.only(_of_model(samples, prepared, model))
        after = self._asked(lambda: self._settled(before, own))
        records = self._asked(lambda: self._records(notes))
        whole = difference(before, after) if before is not None and after is not None else None
        window = _split(edges.statistics) if len(edges.statistics) == 2 else None
        classes = prepared.plan.classes
        rows = prepared.rows if len(classes) == 1 else [kind.rows for kind in classes]
        client = client_side(samples, load, rows, self._options.stability)
        cpu = cpu_fields(edges.cpu, samples)
        evidence = Evidence(load, samples, client, window, whole, cpu, machine_cpus(), own)
        reasons, remarks = judge(target, evidence, self._options)
        notes += remarks
        if epoch is not None and self._asked(lambda: target.epoch(model)) not in (epoch, None):
            reasons.append("the configuration was changed during the measurement")
        reasons = [*([self._lost] if self._lost else []), *reasons]
        point = Point(
            model=model,
            load=load,
            settings=dict(settings or {}),
            config=config,
            epoch=epoch,
            url=target.url,
            protocol=target.protocol,
            started=started,
            duration_s=samples.seconds,
            seed=load.seed,
            inputs=prepared.source,
            environment=self._surroundings(),
            **client_fields(client, samples),
            **(stream_fields(stream_side(samples, load)) if load.streaming else {}),
            classes=class_figures(samples, load, prepared.plan),
            **server_fields(window),
            **cpu,
            batch_reasons=batch_reasons(records, model, samples.window),
            valid=not reasons,
            stable=not reasons and not client.unstable,
            reasons=(*reasons, *client.unstable),
            notes=tuple(notes),
        )
        return Measured(point, samples, records, self._lost)

    def close(self) -> None:
        """Ends the generators' processes."""
        self._generators.close()

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- the load -----------------------------------------------------------------------------------------------------

    def _load(self, load: Load, prepared: Prepared, edges: _Edges, models: Sequence[str]) -> Samples:
        pid = pid_of(self.target)

        def on_event(event: dict[str, Any]) -> None:
            if event["event"] in ("window", "window_end"):
                edges.cpu.append(read_cpu(pid, self._options.clock))
                seen = self._asked(lambda: {name: counters(self.target.statistics(name), name) for name in models})
                if seen:
                    edges.statistics.append(seen)
            if self._on_event is not None:
                self._on_event(event)

        if self.target.protocol == "in-kernel":
            if not isinstance(self.target, InKernelTarget):
                raise Unsupported("this target lies in the kernel but takes no requests (it has no submit)")
            if load.generators > 1:
                raise Unsupported(
                    f"{load.generators} generators were asked for, but load in this kernel comes from one thread",
                    hint="serve the repository (wb.serve) and measure that",
                )
            run = KernelLoad(self.target, prepared, load, on_event=on_event, stop=self._stop)
            return run.run()
        with contextlib.ExitStack() as stack:
            shared = None
            if load.shared_memory != "none":
                shared = stack.enter_context(SharedTensors(self.target, prepared.requests, load.output_bytes))
            messages, plan = encode(self.target, prepared, shared)
            job = Job(load, self.target.url, self.target.protocol, messages, plan)
            return self._generators.run(job, on_event, self._stop)

    def _asked(self, ask: Callable[[], _T]) -> _T | None:
        """What the server tells once the load has begun. One that does not answer any more, or has the model no more,
        takes nothing from what was measured: the point says so."""
        try:
            return ask()
        except WorkbenchError as error:
            self._lost = self._lost or f"the server does not tell any more what it did: {error.message}"
            return None

    def _counters(self) -> tuple[Counters | None, str]:
        statistics, complaint = try_statistics(self.target, self.model)
        return (None if statistics is None else counters(statistics, self.model)), complaint

    def _settled(self, before: Counters | None, samples: Samples) -> Counters | None:
        """The counters when the server has booked everything: an answer can overtake its own statistics.

        After a run whose answers did not all come, waits until the server has worked off what is left, so that the next
        point does not start behind a queue.
        """
        if before is None:
            return None
        expected = int(samples.ok.sum())
        clock = self._options.clock
        start = clock()
        last, last_change = -1, start
        while True:
            now = self._counters()[0]
            if now is None:
                return None
            seen = now["success"]["count"] + now["fail"]["count"]
            if seen != last:
                last, last_change = seen, clock()
            success = now["success"]["count"] - before["success"]["count"]
            quiet_s = (clock() - last_change) / 1e9
            waited_s = (clock() - start) / 1e9
            if samples.drained and (success >= expected or quiet_s > _SETTLE_S):
                return now
            if not samples.drained and (quiet_s > _SETTLE_S or waited_s > _IDLE_S):
                return now
            if self._stop.is_set() and waited_s > _SETTLE_S:
                return now
            sleep(0.01 if samples.drained else 0.1)

    # -- records ------------------------------------------------------------------------------------------------------

    def _skip_records(self) -> None:
        """Moves the cursor to now, before the load starts: reading records costs the server a little."""
        records = self.target.records(self._cursor)
        if records is not None:
            self._cursor = records.last_seq

    def _records(self, notes: list[str]) -> RecordColumns | None:
        records = self.target.records(self._cursor)
        if records is None:
            return None
        self._cursor = records.last_seq
        if records.lost:
            notes.append(f"{records.lost} records were overwritten before they could be read")
        return records

    def _surroundings(self) -> dict[str, Any]:
        if self._environment is None:
            environment = capture_environment()
            self._environment = {**environment, "device": device_kind(environment)}
        return {**self._environment, **cpu_condition()}


def measure(
    target: Target,
    model: str,
    load: Load,
    *,
    inputs: Inputs = None,
    stop: threading.Event | None = None,
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
    options: MeasureOptions | None = None,
) -> Point:
    """Measures one load point of a model under the configuration that is applied now.

    Args:
        target: the server (``ServerTarget(url)`` for any running one).
        model: its model.
        load: ``Load.closed(8)``, ``Load.open(200)``, ...
        inputs: what to send; None takes the model's example inputs where they are on this machine.
        stop: once set, the measurement ends at once and gives what it has.
        on_event: hears of the window's edges and of progress.
        options: how strictly the point is judged.

    Raises:
        ConnectionFailed: nobody answers at the target's address.
        WorkbenchError: the model is not there, its inputs are not known, ...
    """
    with Measurer(target, model, inputs=inputs, stop=stop, on_event=on_event, options=options) as measurer:
        return measurer.measure(load)


def _of_model(samples: Samples, prepared: Prepared, model: str) -> NDArray[np.bool_]:
    """Which requests went to the model that is measured."""
    own = np.array([not kind.model or kind.model == model for kind in prepared.plan.classes])
    if len(own) == 1:
        return np.full(len(samples.status), own[0])
    chosen: NDArray[np.bool_] = own[samples.class_of]
    return chosen


def composing(target: Target, config: Mapping[str, Any]) -> list[str]:
    """The models that do an ensemble's work, each once; of ensembles within it theirs. None for another model."""
    found: dict[str, None] = {}
    for step in (config.get("ensemble_scheduling") or {}).get("step", ()):
        name = str(step["model_name"])
        inner = composing(target, target.model_config(name))
        found |= dict.fromkeys(inner or [name])
    return list(found)


def _split(edges: Sequence[Mapping[str, Counters]]) -> ServerSide:
    """The server's side between the edges of a window."""
    whole, *steps = (difference(edges[0][name], edges[1][name]) for name in edges[0])
    return of_steps(whole, steps)


def failed_point(model: str, load: Load, settings: Mapping[str, Any], error: str) -> Point:
    """A row for a point that could not be measured."""
    reason = error.splitlines()[0] if error else "unknown error"
    return replace(
        Point(model=model, load=load, settings=dict(settings)),
        error=reason,
        reasons=(reason,),
        seed=load.seed,
        started=utc_now_iso(),
    )
