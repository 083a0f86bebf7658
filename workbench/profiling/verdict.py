"""The verdict on a point: whether its figures may be believed, and if not, why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from workbench.clock import Clock, monotonic_ns
from workbench.profiling.claims import too_few
from workbench.profiling.client_side import ClientSide, counted_requests, lags_ms
from workbench.profiling.intervals import nearest_rank
from workbench.profiling.load import Load
from workbench.profiling.samples import Samples
from workbench.profiling.server_side import ServerSide
from workbench.profiling.stability import Stability
from workbench.profiling.target import Target, stalls_between

_DEFAULT_REQUESTS = Load.closed(1).min_requests
"""What a load is to have where nobody has said how many: then fewer are told of, and no more than that."""

_TOLD_STOLEN = 0.1
"""Processors: less of a hypervisor's part is not worth a word."""


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How strictly a point is judged.

    A point is not valid when the generator's send lag (p99 in an open loop, p50 in a closed one) is above
    ``lag_limit_ms`` and above ``lag_share`` of the same percentile of the latency, or when the server's event loop
    stood still for more than ``stall_share`` of the window, or when programs other than server and generator took more
    than ``other_cpu_limit`` of the processors while less than a tenth of them was idle, or when it has fewer requests
    than its load asks for (fewer than a load's default are noted, unless ``requests_asked``: somebody has asked for
    just so many). Others that took more than ``other_cpu`` are noted, and so is a panel that was open. ``stability`` is
    the rule by which a point counts as stable: ``interval``, or perf_analyzer's ``three_windows``
    (``profiling.stability``). ``clock`` is CLOCK_MONOTONIC.
    """

    lag_limit_ms: float = 1.0
    lag_share: float = 0.1
    stall_share: float = 0.05
    other_cpu: float = 0.25
    other_cpu_limit: float = 0.5
    requests_asked: bool = False
    stability: Stability = "interval"
    clock: Clock = monotonic_ns


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict rests on: the generator's stamps and their evaluation, the server's counters over the window and
    over the whole run (None where it gives none).

    ``cpu`` is who used the processors, as ``figures.cpu_fields`` gives it, of ``cpus`` in all.
    ``own`` has the requests that went to the model that is measured; None: all did.
    """

    load: Load
    samples: Samples
    client: ClientSide
    window: ServerSide | None
    whole: ServerSide | None
    cpu: Mapping[str, float] = field(default_factory=dict)
    cpus: int = 0
    own: Samples | None = None


def judge(target: Target, evidence: Evidence, options: MeasureOptions) -> tuple[list[str], list[str]]:
    """Why the figures must not be believed (empty: they may be), and what else is worth knowing."""
    samples, client = evidence.samples, evidence.client
    reasons: list[str] = []
    notes: list[str] = []
    if samples.stopped:
        reasons.append("the measurement was stopped before its end")
    reasons += samples.extra.get("lost", ())
    in_vain = str(samples.extra.get("fruitless", ""))
    said = next(iter(samples.errors()), "")
    said = f": {said[:300]}" if said else ""
    if client.n == 0:
        reasons.append(f"no request was answered{said}")
    elif client.failed:
        total = client.n + client.failed
        notes.append(f"{client.failed} of {total} requests failed; latencies are those of the others")
        most = client.failed > total / 2
        if most or in_vain:
            reasons.append(f"{'most requests' if most else 'requests'} failed{said}")
    if in_vain:
        reasons.append(in_vain)
    load = evidence.load
    asked = options.requests_asked or load.requests > 0 or load.min_requests != _DEFAULT_REQUESTS
    short = _short(evidence, asked)
    if short:
        (reasons if asked else notes).append(short)
    few = too_few(client.n, client.p99_worth)
    if client.n and few:
        notes.append(few)
    if not samples.extra.get("warm", True):
        notes.append(
            f"the warm-up had not settled after {samples.extra['warmup_s']:.1f} s: max_warmup_s gives it longer"
        )
    reasons += _lag(evidence, options)
    unsure, told = _elsewhere(evidence, options)
    reasons += unsure
    notes += told
    stalls = stalls_between(target, samples.window)
    if stalls:
        text = f"the server's event loop stood still {len(stalls)} times, {sum(stalls):.0f} ms in all"
        too_much = sum(stalls) > options.stall_share * samples.seconds * 1e3
        (reasons if too_much else notes).append(text)
    if target.protocol == "in-kernel":
        notes.append("the load came from a thread of this kernel, which shares the GIL with the engine")
        if evidence.load.shared_memory != "none":
            notes.append("shared memory was not used: in this kernel tensors are handed over as they are")
    watching = watchers_of(target)
    taken = _others(evidence, options, watching)
    if taken:
        (reasons if taken[0] else notes).append(taken[1])
    elif watching:
        notes.append(f"{watching} meanwhile")
    if "lost" not in samples.extra:  # else the server has served requests that nobody knows of any more
        reasons += _conservation(evidence)
    return reasons, notes


def _short(evidence: Evidence, by_somebody: bool) -> str:
    """How many requests the window has where it is to have more; nothing of one that was cut short or has none."""
    samples, asked = evidence.samples, evidence.load.requests or evidence.load.min_requests
    begin, end = samples.window
    # The window ends by what ended in it; an open loop's point is about what was scheduled in it.
    had = max(evidence.client.n, int((samples.ok & (samples.done >= begin) & (samples.done < end)).sum()))
    if samples.stopped or {"lost", "server_lost", "fruitless"} & samples.extra.keys() or not 0 < had < asked:
        return ""
    wanted = f"at least {asked} were asked for" if by_somebody else f"by default it is to have {asked}"
    return f"{had} requests in the window, {wanted} (max_duration_s gives it longer)"


def watchers_of(target: Target) -> str:
    """Which panels are open on the server, in words (a target may have ``watchers() -> str``); empty for none."""
    tell = getattr(target, "watchers", None)
    return str(tell()) if tell is not None else ""


def _others(evidence: Evidence, options: MeasureOptions, watching: str) -> tuple[bool, str] | None:
    """What other programs took of the processors, and whether that was too much; not known without the server's use.

    Others on processors of which enough are idle take nothing from a measurement.
    """
    cpu, cpus = evidence.cpu, evidence.cpus
    other = cpu.get("other_cpu", math.nan)
    if cpus == 0 or math.isnan(cpu.get("server_cpu", math.nan)) or not other > options.other_cpu * cpus:
        return None
    busy = cpu["server_cpu"] + cpu["generator_cpu"] + other
    blame = f" ({watching})" if watching else ""
    stolen = cpu.get("stolen_cpu", 0.0)
    outside = f", {stolen:.1f} of them outside this virtual machine (steal)" if stolen >= _TOLD_STOLEN else ""
    text = f"others kept {other:.1f} of {cpus} processors busy meanwhile{outside}{blame}"
    return other > options.other_cpu_limit * cpus and busy > 0.9 * cpus, text


def _lag(evidence: Evidence, options: MeasureOptions) -> list[str]:
    """A late send of an open loop delays whoever comes after it, so its worst counts. A closed loop only sends a little
    less when its generator is late now and then; always being late makes it another load."""
    samples, load = evidence.samples, evidence.load
    name, q = ("p99", 0.99) if load.has_open else ("p50", 0.5)
    latency = evidence.client.at(q)
    lags = {"the load generator": (evidence.client.lag_at(q), latency)}
    # Of several the one that was late may vanish among the others, though its part of the load was another.
    several = samples.extra.get("generators", ())
    for number, each in enumerate(several, 1):
        lags[f"load generator {number} of {len(several)}"] = float(each[f"lag_{name}_ms"]), latency
    # So may an open loop among the requests of closed ones, which are never late by much.
    for index, (kind, part) in enumerate(load.mix):
        if part.kind == "open":
            mine = samples.of_class(index)
            answered = np.sort((mine.done - mine.scheduled)[counted_requests(mine, part) & mine.ok] / 1e6)
            who = f"the load generator, with class '{kind}',"
            lags[who] = nearest_rank(lags_ms(mine, part), q), nearest_rank(answered, q)
    late = {
        who: (lag, of) for who, (lag, of) in lags.items() if lag > options.lag_limit_ms and lag > options.lag_share * of
    }
    if len(late) > 1:
        late.pop("the load generator", None)  # which of them says more
    return [
        f"{who} was late: send lag {name} {lag:.2f} ms, {lag / of:.0%} of the {name} latency "
        "(the machine is too busy for this load)"
        for who, (lag, of) in late.items()
    ]


def _elsewhere(evidence: Evidence, options: MeasureOptions) -> tuple[list[str], list[str]]:
    """Whether the clocks of generators on other machines are known well enough, and what is to be known of them.

    Their latencies are by one clock each; but when they sent, and which arrivals the window has, is as far off.
    """
    far = [each for each in evidence.samples.extra.get("generators", ()) if "node" in each]
    if not far:
        return [], []
    worst = max(far, key=lambda each: float(each["uncertainty_ms"]))
    known = float(worst["uncertainty_ms"])
    nodes = ", ".join(dict.fromkeys(str(each["node"]) for each in far))
    who, whose = ("generators on nodes", "clocks are") if len(far) > 1 else ("generator on node", "clock is")
    notes = [f"the load came from {len(far)} {who} {nodes}, whose {whose} known to {known:.2f} ms"]
    notes += [str(each["note"]) for each in far if each.get("note")]
    if known <= options.lag_limit_ms:
        return [], notes
    return [
        f"the clock of node {worst['node']} is known to {known:.2f} ms only, and generators may be "
        f"{options.lag_limit_ms:g} ms late at most (the way to it is too long or too busy)"
    ], notes


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
    own = samples if evidence.own is None else evidence.own
    answered = int(own.ok.sum())
    if reasons or not len(own.status):  # of a load that is all for another model, this one serves the others
        return reasons
    if whole is not None and whole.success < answered:
        reasons.append(
            f"the server counted {whole.success} successes, but {answered} answers came (was the model reloaded?)"
        )
    elif whole is not None and whole.success - answered > max(1, 0.01 * answered) and samples.drained:
        reasons.append(
            f"others used the model: the server counted {whole.success} successes, {answered} of them to this load"
        )
    return reasons
