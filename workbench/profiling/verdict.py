"""The verdict on a point: whether its figures may be believed, and if not, why."""

from __future__ import annotations

import math
from dataclasses import dataclass

from workbench.clock import Clock, monotonic_ns
from workbench.profiling.client_side import ClientSide
from workbench.profiling.load import Load
from workbench.profiling.samples import Samples
from workbench.profiling.server_side import ServerSide
from workbench.profiling.target import Target, stalls_between

P99_REQUESTS = 368
"""From so many requests on a 95 % interval of p99 has an upper end: the smallest n with 1 - 0.99^n >= 97.5 %."""


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How strictly a point is judged.

    A point is not valid when the generator's send lag (p99 in an open loop, p50 in a closed one) is above
    ``lag_limit_ms`` and above ``lag_share`` of the same percentile of the latency, or when the server's event loop
    stood still for more than ``stall_share`` of the window. Others that use more than ``other_cpu`` of the usable
    processors are noted. ``clock`` is CLOCK_MONOTONIC.
    """

    lag_limit_ms: float = 1.0
    lag_share: float = 0.1
    stall_share: float = 0.05
    other_cpu: float = 0.25
    clock: Clock = monotonic_ns


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict rests on: the generator's stamps and their evaluation, the server's counters over the window and
    over the whole run (None where it gives none)."""

    load: Load
    samples: Samples
    client: ClientSide
    window: ServerSide | None
    whole: ServerSide | None


def judge(target: Target, evidence: Evidence, options: MeasureOptions) -> tuple[list[str], list[str]]:
    """Why the figures must not be believed (empty: they may be), and what else is worth knowing."""
    samples, client = evidence.samples, evidence.client
    reasons: list[str] = []
    notes: list[str] = []
    if samples.stopped:
        reasons.append("the measurement was stopped before its end")
    said = next(iter(samples.errors()), "")
    said = f": {said[:300]}" if said else ""
    if client.n == 0:
        reasons.append(f"no request was answered{said}")
    elif client.failed:
        total = client.n + client.failed
        notes.append(f"{client.failed} of {total} requests failed; latencies are those of the others")
        if client.failed > total / 2:
            reasons.append(f"most requests failed{said}")
    if client.n and math.isnan(client.p99.high):
        notes.append(f"p99 has no upper bound: it rests on {client.n} requests, {P99_REQUESTS} are needed for one")
    reasons += _lag(evidence, options)
    stalls = stalls_between(target, samples.window)
    if stalls:
        text = f"the server's event loop stood still {len(stalls)} times, {sum(stalls):.0f} ms in all"
        too_much = sum(stalls) > options.stall_share * samples.seconds * 1e3
        (reasons if too_much else notes).append(text)
    if target.protocol == "in-kernel":
        notes.append("the load came from a thread of this kernel, which shares the GIL with the engine")
    reasons += _conservation(evidence)
    return reasons, notes


def _lag(evidence: Evidence, options: MeasureOptions) -> list[str]:
    """A late send of an open loop delays whoever comes after it, so its worst counts. A closed loop only sends a little
    less when its generator is late now and then; always being late makes it another load."""
    name, q = ("p99", 0.99) if evidence.load.kind == "open" else ("p50", 0.5)
    lag, latency = evidence.client.lag_at(q), evidence.client.at(q)
    if lag > options.lag_limit_ms and lag > options.lag_share * latency:
        return [
            f"the load generator was late: send lag {name} {lag:.2f} ms, {lag / latency:.0%} of the {name} latency "
            "(the machine is too busy for this load)"
        ]
    return []


def _conservation(evidence: Evidence) -> list[str]:
    """Sent = answered + failed on the client's side, and what the client got = what the server gave."""
    samples, window, whole = evidence.samples, evidence.window, evidence.whole
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
