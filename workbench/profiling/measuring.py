"""Measuring one load point: load, statistics at the window's edges, records, checks, verdict."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workbench.clock import Clock, monotonic_ns, sleep, utc_now_iso
from workbench.errors import Unsupported
from workbench.profiling.client_side import ClientSide, client_side
from workbench.profiling.cpu import CpuReading, cpus_between, read_cpu
from workbench.profiling.driver import GeneratorProcess, Job
from workbench.profiling.kernel_load import KernelLoad
from workbench.profiling.load import Load
from workbench.profiling.point import Point
from workbench.profiling.requests import Inputs, Prepared, encode, prepare
from workbench.profiling.samples import Samples
from workbench.profiling.server_side import Counters, ServerSide, counters, difference
from workbench.profiling.target import InKernelTarget, Target, pid_of, stalls_between, try_statistics
from workbench.records import RecordColumns
from workbench.records.environment import capture_environment, cpu_condition

_SETTLE_S = 1.0
_IDLE_S = 15.0


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How strictly a point is judged.

    A point is not valid when the generator's p99 send lag is above ``lag_limit_ms`` and above ``lag_share`` of the p99
    latency, or when the server's event loop stood still for more than ``stall_share`` of the window. Others that use
    more than ``other_cpu`` of the usable processors are noted. ``clock`` is CLOCK_MONOTONIC.
    """

    lag_limit_ms: float = 1.0
    lag_share: float = 0.1
    stall_share: float = 0.05
    other_cpu: float = 0.25
    clock: Clock = monotonic_ns


@dataclass(slots=True)
class _Edges:
    """Readings at the two edges of the window."""

    statistics: list[Counters] = field(default_factory=list)
    cpu: list[CpuReading] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Measured:
    """A point with what it was made of, for those who keep more than the figures."""

    point: Point
    samples: Samples
    records: RecordColumns | None = None


class Measurer:
    """Measures points of one model on one target; keeps the generator's process between them.

    Args:
        target: the server.
        model: its model.
        inputs: what to send; None takes the model's example inputs.
        stop: once set, a measurement ends at once and gives what it has.
        on_event: hears ``{"event": "window" | "window_end" | "progress", ...}`` during a measurement.
        options: how strictly points are judged.
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
    ) -> None:
        self.target = target
        self.model = model
        self._inputs = inputs
        self._stop = stop if stop is not None else threading.Event()
        self._on_event = on_event
        self._options = options if options is not None else MeasureOptions()
        self._generator = GeneratorProcess(clock=self._options.clock)
        self._cursor = -1
        self._environment: dict[str, Any] | None = None

    def measure(self, load: Load, settings: Mapping[str, Any] | None = None) -> Point:
        """Measures a load point under the configuration that is applied now.

        Args:
            load: what to send.
            settings: what the point stands for in a sweep; only written down.

        Raises:
            ConnectionFailed: nobody answers at the target's address.
            WorkbenchError: the model is not there, its inputs are not known, ...
        """
        return self.run(load, settings).point

    def run(self, load: Load, settings: Mapping[str, Any] | None = None) -> Measured:
        """As ``measure``, with the stamps and records behind the figures."""
        target, model = self.target, self.model
        started = utc_now_iso()
        config = target.model_config(model)
        prepared = prepare(target, model, config, load, self._inputs)
        epoch = target.epoch(model)
        before, complaint = self._counters()
        notes = [*prepared.notes, *([complaint] if complaint else [])]
        self._skip_records()
        edges = _Edges()
        samples = self._load(load, prepared, edges, with_statistics=before is not None)
        after = self._settled(before, samples)
        records = self._records(samples, notes)
        whole = difference(before, after) if before is not None and after is not None else None
        window = difference(*edges.statistics) if len(edges.statistics) == 2 else None
        client = client_side(samples, load, prepared.rows)
        reasons = self._judge(samples, client, window, whole, notes)
        if epoch is not None and target.epoch(model) != epoch:
            reasons.append("the configuration was changed during the measurement")
        environment, cpu = self._surroundings(), _cpu_fields(edges, samples)
        usable = int(environment.get("cpus_usable") or 1)
        if not math.isnan(cpu.get("server_cpu", math.nan)) and cpu["other_cpu"] > self._options.other_cpu * usable:
            notes.append(f"others kept {cpu['other_cpu']:.1f} of {usable} processors busy meanwhile")
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
            environment=environment,
            **_client_fields(client, samples),
            **_server_fields(window),
            **cpu,
            batch_reasons=_batch_reasons(records, model, samples.window),
            valid=not reasons,
            stable=not reasons and not client.unstable,
            reasons=(*reasons, *client.unstable),
            notes=tuple(notes),
        )
        return Measured(point, samples, records)

    def close(self) -> None:
        """Ends the generator's process."""
        self._generator.close()

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- the load -----------------------------------------------------------------------------------------------------

    def _load(self, load: Load, prepared: Prepared, edges: _Edges, *, with_statistics: bool) -> Samples:
        pid = pid_of(self.target)

        def on_event(event: dict[str, Any]) -> None:
            if event["event"] in ("window", "window_end"):
                edges.cpu.append(read_cpu(pid, self._options.clock))
                if with_statistics:
                    edges.statistics.append(counters(self.target.statistics(self.model), self.model))
            if self._on_event is not None:
                self._on_event(event)

        if self.target.protocol == "in-kernel":
            if not isinstance(self.target, InKernelTarget):
                raise Unsupported("this target lies in the kernel but takes no requests (it has no submit)")
            run = KernelLoad(self.target, prepared.requests, load, on_event=on_event, stop=self._stop)
            return run.run()
        job = Job(load, self.target.url, self.target.protocol, encode(self.target, prepared.requests))
        return self._generator.run(job, on_event, self._stop)

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

    def _records(self, samples: Samples, notes: list[str]) -> RecordColumns | None:
        records = self.target.records(self._cursor)
        if records is None:
            return None
        self._cursor = records.last_seq
        if records.lost:
            notes.append(f"{records.lost} records were overwritten before they could be read")
        return records

    # -- the verdict --------------------------------------------------------------------------------------------------

    def _judge(
        self,
        samples: Samples,
        client: ClientSide,
        window: ServerSide | None,
        whole: ServerSide | None,
        notes: list[str],
    ) -> list[str]:
        """Why the figures must not be believed; what is only worth knowing goes to ``notes``."""
        reasons = []
        options = self._options
        if samples.stopped:
            reasons.append("the measurement was stopped before its end")
        if client.n == 0:
            reasons.append("no request was answered")
        elif client.failed:
            total = client.n + client.failed
            notes.append(f"{client.failed} of {total} requests failed; latencies are those of the others")
            if client.failed > total / 2:
                reasons.append("most requests failed")
        lag, p99 = client.lag_at(0.99), client.at(0.99)
        if lag > options.lag_limit_ms and lag > options.lag_share * p99:
            reasons.append(
                f"the load generator was late: send lag p99 {lag:.2f} ms, {lag / p99:.0%} of the p99 latency "
                "(the machine is too busy for this load)"
            )
        reasons += self._stalls(samples, notes)
        if self.target.protocol == "in-kernel":
            notes.append("the load came from a thread of this kernel, which shares the GIL with the engine")
        reasons += _conservation(samples, window, whole)
        return reasons

    def _stalls(self, samples: Samples, notes: list[str]) -> list[str]:
        """The server's loop held up: some is noted, more than ``stall_share`` of the window is too much."""
        found = stalls_between(self.target, samples.window)
        if not found:
            return []
        text = f"the server's event loop stood still {len(found)} times, {sum(found):.0f} ms in all"
        if sum(found) > self._options.stall_share * samples.seconds * 1e3:
            return [text]
        notes.append(text)
        return []

    def _surroundings(self) -> dict[str, Any]:
        if self._environment is None:
            self._environment = capture_environment()
        return {**self._environment, **cpu_condition()}


def _conservation(samples: Samples, window: ServerSide | None, whole: ServerSide | None) -> list[str]:
    """Sent = answered + failed on the client's side, and what the client got = what the server gave."""
    reasons = []
    total = len(samples.status)
    answered, failed = int(samples.ok.sum()), int((samples.status > 0).sum())
    if answered + failed != total:
        reasons.append(f"requests were lost: {total} begun, {answered} answered, {failed} failed")
    if (window is not None and window.reset) or (whole is not None and whole.reset):
        reasons.append("the server's statistics were reset: the model was reloaded during the measurement")
    elif whole is not None and whole.success < answered:
        reasons.append(
            f"the server counted {whole.success} successes, but {answered} answers came (was the model reloaded?)"
        )
    elif whole is not None and whole.success - answered > max(1, 0.01 * answered) and samples.drained:
        reasons.append(
            f"others used the model: the server counted {whole.success} successes, {answered} of them to this load"
        )
    return reasons


def _client_fields(client: ClientSide, samples: Samples) -> dict[str, Any]:
    latency = client.latency_ms
    return {
        "n": client.n,
        "sent": int((samples.sent > 0).sum()),
        "failed": client.failed,
        "errors": samples.errors(),
        "throughput": client.throughput.value,
        "throughput_low": client.throughput.low,
        "throughput_high": client.throughput.high,
        "mean_ms": float(np.mean(latency)) if len(latency) else math.nan,
        "p50_ms": client.p50.value,
        "p50_low": client.p50.low,
        "p50_high": client.p50.high,
        "p90_ms": client.at(0.9),
        "p95_ms": client.at(0.95),
        "p99_ms": client.p99.value,
        "p99_low": client.p99.low,
        "p99_high": client.p99.high,
        "max_ms": float(latency[-1]) if len(latency) else math.nan,
        "sent_p50_ms": client.sent_at(0.5),
        "sent_p90_ms": client.sent_at(0.9),
        "sent_p95_ms": client.sent_at(0.95),
        "sent_p99_ms": client.sent_at(0.99),
        "lag_p50_ms": client.lag_at(0.5),
        "lag_p99_ms": client.lag_at(0.99),
        "littles_law": client.littles_law,
    }


def _server_fields(side: ServerSide | None) -> dict[str, Any]:
    if side is None or side.reset:
        return {}
    names = ("mean_batch", "request_ms", "queue_ms", "compute_input_ms", "compute_infer_ms", "compute_output_ms")
    fields: dict[str, Any] = {name: getattr(side, name) for name in (*names, "overhead_ms")}
    return fields | {"batch_rows": side.batch_rows, "batch_compute_ms": side.batch_compute_ms}


def _cpu_fields(edges: _Edges, samples: Samples) -> dict[str, Any]:
    if len(edges.cpu) != 2:
        return {}
    machine, server = cpus_between(*edges.cpu)
    generator = samples.cpu_s / samples.seconds if samples.seconds > 0 else math.nan
    known = generator + (0.0 if math.isnan(server) else server)
    return {"generator_cpu": generator, "server_cpu": server, "other_cpu": max(0.0, machine - known)}


def _batch_reasons(records: RecordColumns | None, model: str, window: tuple[int, int]) -> dict[str, dict[int, int]]:
    """Executions of the window by reason and rows."""
    if records is None:
        return {}
    batches = records.batches
    chosen = (batches["model"] == model) & (batches["done"] >= window[0]) & (batches["done"] < window[1])
    out: dict[str, dict[int, int]] = {}
    for reason, rows in zip(batches["reason"][chosen], batches["rows"][chosen].tolist(), strict=True):
        sizes = out.setdefault(str(reason), {})
        sizes[rows] = sizes.get(rows, 0) + 1
    return {reason: dict(sorted(sizes.items())) for reason, sizes in sorted(out.items())}


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
