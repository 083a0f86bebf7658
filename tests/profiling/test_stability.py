"""When a warm-up may end, how long a window lasts, and by which rule its figures count as settled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scripted_target import INPUTS, ScriptedServer

from workbench.profiling import Load, MeasureOptions, Measurer, ServerTarget, measure
from workbench.profiling.client_side import client_side
from workbench.profiling.cpu import CpuReading
from workbench.profiling.figures import cpu_fields
from workbench.profiling.samples import OK, Samples
from workbench.profiling.verdict import Evidence, judge

S = 1_000_000_000


def closed_loop(latency_ms: np.ndarray[Any, Any], clients: int = 4) -> Samples:
    """A closed loop in virtual time: each client sends when its answer is there; latencies in the order of sending."""
    free = np.zeros(clients, np.int64)
    sent = np.empty(len(latency_ms), np.int64)
    for number, ms in enumerate(latency_ms):
        client = int(free.argmin())
        sent[number] = free[client]
        free[client] += int(ms * 1e6)
    done = sent + (latency_ms * 1e6).astype(np.int64)
    window = (0, int(free.min()) + 1)
    return Samples(sent, sent, done, np.full(len(sent), OK, np.int32), [], window)


def reasons(latency_ms: np.ndarray[Any, Any], clients: int = 4, **options: Any) -> tuple[str, ...]:
    return client_side(closed_loop(latency_ms, clients), Load.closed(clients), 1, **options).unstable


def test_settled_latencies_are_stable_by_either_rule() -> None:
    noise = np.random.default_rng(1).lognormal(2, 0.5, 4000)
    assert reasons(noise) == ()
    assert reasons(noise, stability="three_windows") == ()


def test_clients_that_go_in_step_are_stable_although_their_answers_come_in_bursts() -> None:
    # Eight clients, 110 ms a request, 2.5 s: in each tenth of the window eight or sixteen answers.
    assert reasons(np.full(8 * 23, 110.0) + np.random.default_rng(1).normal(0, 2, 8 * 23), 8) == ()


def test_a_closed_loops_throughput_has_an_interval_that_holds_it() -> None:
    rng, held = np.random.default_rng(3), 0
    for _ in range(300):
        samples = closed_loop(rng.lognormal(2, 0.5, 800))
        # A window at any phase of the clients, not from the first send on.
        begin, end = (int(samples.window[1] * share) for share in rng.uniform((0.1, 0.85), (0.15, 0.95)))
        inside = Samples(samples.scheduled, samples.sent, samples.done, samples.status, [], (begin, end))
        found = client_side(inside, Load.closed(4), 1).throughput
        held += found.low <= 4 / math.exp(2 + 0.125) * 1000 <= found.high
    assert 0.92 <= held / 300 <= 0.99


def test_throughput_is_never_known_exactly_however_even_the_answers_come() -> None:
    """Two clients in step, 41 ms a request: each tenth of a window may count the same, its edges may lie anywhere."""
    rng, held = np.random.default_rng(4), 0
    samples = closed_loop(np.full(400, 41.0), 2)
    for begin in (int(each * 1e9) for each in rng.uniform(1, 5, 300)):
        window = (begin, begin + 820_000_000)
        inside = Samples(samples.scheduled, samples.sent, samples.done, samples.status, [], window)
        found = client_side(inside, Load.closed(2), 1).throughput
        assert found.high > found.value > found.low
        held += found.low <= 2000 / 41 <= found.high
    assert held / 300 >= 0.92


def test_a_drift_is_not() -> None:
    drift = np.random.default_rng(1).lognormal(2, 0.2, 4000) * np.linspace(1, 2, 4000)
    by_interval = reasons(drift)
    assert any(reason.startswith("mean latency is known to ±") for reason in by_interval)
    assert any("measure for about" in reason or "has not settled" in reason for reason in by_interval)
    by_windows = reasons(drift, stability="three_windows")
    assert any(reason.startswith("mean latency differs by") for reason in by_windows)
    assert any(reason.startswith("throughput differs by") for reason in by_windows)


def test_perf_analyzers_rule_is_ten_percent_over_three_windows() -> None:
    # The last window is slower by less than a tenth, or by more.
    steady = np.full(3000, 10.0)
    assert reasons(np.concatenate([steady, np.full(1400, 10.8)]), stability="three_windows") == ()
    assert reasons(np.concatenate([steady, np.full(1400, 11.2)]), stability="three_windows") != ()
    # What it lets pass: so few and so scattered requests that the mean could be another one.
    few = np.tile([1.0, 1.0, 60.0], 9)
    assert reasons(few, 1, stability="three_windows") == ()
    assert any("mean latency is known to ±" in reason for reason in reasons(few, 1))


def test_nothing_answered_in_a_third_is_said() -> None:
    latency = np.concatenate([np.full(300, 10.0), np.full(4, 2000.0), np.full(4, 10.0)])
    assert reasons(latency, stability="three_windows") == ("nothing was answered in a third of the window",)


def options(**changes: Any) -> dict[str, Any]:
    return {"duration_s": 0.4, "max_duration_s": 0.4, "min_requests": 0, "drain_s": 2.0, **changes}


@pytest.mark.parametrize("kind", ["closed", "open"])
def test_a_cold_server_is_warmed_until_it_has_settled(kind: str) -> None:
    """The slow first requests of a model that compiles are not in the window, although the warm-up was short."""
    with ScriptedServer(lambda n: 0.005 + 0.08 * 0.96**n) as server:
        load = Load.closed(2, **options(warmup_s=0.2, max_warmup_s=20.0))
        if kind == "open":
            load = Load.open(60, "constant", **options(warmup_s=0.2, max_warmup_s=20.0))
        with Measurer(ServerTarget(server.url), "m", inputs=INPUTS) as measurer:
            measured = measurer.run(load)
    assert measured.samples.extra["warm"]
    assert measured.samples.extra["warmup_s"] > 0.5
    counted = np.flatnonzero(measured.samples.scheduled >= measured.samples.window[0])
    assert counted[0] > 35  # of 85 ms at first less than 25 are left
    assert not any("warm-up" in note for note in measured.point.notes)


def test_a_warm_up_that_never_settles_ends_and_is_told() -> None:
    with ScriptedServer(lambda n: 0.002 * 1.05**n) as server:
        load = Load.closed(2, **options(warmup_s=0.1, max_warmup_s=0.4))
        point = measure(ServerTarget(server.url), "m", load, inputs=INPUTS)
    assert any(note.startswith("the warm-up had not settled after 0.") for note in point.notes)


def test_a_warm_up_of_nothing_is_none() -> None:
    with (
        ScriptedServer(lambda n: 0.05 if n < 4 else 0.002) as server,
        Measurer(ServerTarget(server.url), "m", inputs=INPUTS) as measurer,
    ):
        samples = measurer.run(Load.closed(2, **options(warmup_s=0.0))).samples
    assert samples.window[0] - samples.sent.min() < 0.04 * S


def test_all_windows_of_a_load_have_the_same_arrivals_however_long_their_warm_ups() -> None:
    def arrivals(cold: bool) -> tuple[list[int], float]:
        with ScriptedServer(lambda n: min(0.5, 0.002 * 1.05**n) if cold else 0.002) as server:
            load = Load.open(150, seed=4, **options(warmup_s=0.2, max_warmup_s=0.8))
            with Measurer(ServerTarget(server.url), "m", inputs=INPUTS) as measurer:
                samples = measurer.run(load).samples
        inside = samples.scheduled >= samples.window[0]
        # Scheduled times are whole nanoseconds from the window's begin.
        return (samples.scheduled[inside] - samples.window[0]).tolist(), samples.extra["warmup_s"]

    (short, _), (long, longest) = arrivals(False), arrivals(True)
    assert longest >= 0.8
    common = min(len(short), len(long)) - 20
    assert common > 20
    assert short[:common] == long[:common]


def test_a_window_grows_until_its_figures_are_known() -> None:
    def scattered(n: int) -> float:
        return 0.02 if n % 3 == 0 else 0.005

    with ScriptedServer(scattered) as server:
        load = Load.closed(1, **options(warmup_s=0.0, duration_s=0.3, max_duration_s=20.0))
        point = measure(ServerTarget(server.url), "m", load, inputs=INPUTS)
        fixed = Load.closed(1, **options(warmup_s=0.0, duration_s=0.3, max_duration_s=0.3))
        short = measure(ServerTarget(server.url), "m", fixed, inputs=INPUTS)
    assert point.duration_s > 0.6
    if point.duration_s < 20.0:  # a machine on which nothing settles has it run to its longest, and says so
        assert point.mean_high - point.mean_low < 0.25 * point.mean_ms
    else:
        assert not point.stable
    assert short.duration_s < 0.4
    assert not short.stable


def evidence(samples: Samples, load: Load, **cpu: float) -> Evidence:
    return Evidence(load, samples, client_side(samples, load, 1), None, None, cpu, 2 if cpu else 0)


class Watched(ServerTarget):
    """A target in front of which a panel is open."""

    def watchers(self) -> str:
        return "2 panels are open"


@pytest.mark.parametrize(
    ("server_cpu", "other_cpu", "valid"),
    [(0.4, 1.4, False), (0.4, 0.7, True), (1.4, 0.55, True), (0.1, 0.2, True), (math.nan, 1.9, True)],
)
def test_processors_that_others_took_are_told_and_judged(server_cpu: float, other_cpu: float, valid: bool) -> None:
    samples = closed_loop(np.full(2000, 10.0))
    found = evidence(samples, Load.closed(4), server_cpu=server_cpu, generator_cpu=0.1, other_cpu=other_cpu)
    with ScriptedServer() as server:
        reasons, notes = judge(Watched(server.url), found, MeasureOptions())
        strict = judge(ServerTarget(server.url), found, MeasureOptions(other_cpu=0.05, other_cpu_limit=0.05))
    assert (reasons == []) is valid
    if other_cpu > 0.5 and not math.isnan(server_cpu):
        text = f"others kept {other_cpu:.1f} of 2 processors busy meanwhile (2 panels are open)"
        assert text in (notes if valid else reasons)
    else:
        assert "2 panels are open meanwhile" in notes
    busy = server_cpu + 0.1 + other_cpu > 1.8
    assert (strict[0] != []) is busy


@pytest.mark.parametrize(
    ("stolen", "said"),
    [(1.1, "1.4 of 2 processors busy meanwhile, 1.1 of them outside this virtual machine (steal)"),
     (0.04, "1.4 of 2 processors busy meanwhile"), (math.nan, "1.4 of 2 processors busy meanwhile")],
)  # fmt: skip
def test_what_a_hypervisor_took_is_told_apart(stolen: float, said: str) -> None:
    """Nothing that runs here is to blame for it, and no program that is closed helps."""
    samples = closed_loop(np.full(2000, 10.0))
    found = evidence(
        samples, Load.closed(4), server_cpu=0.4, generator_cpu=0.1, other_cpu=1.4, stolen_cpu=stolen
    )  # fmt: skip
    with ScriptedServer() as server:
        reasons, _ = judge(ServerTarget(server.url), found, MeasureOptions())
    assert reasons == [f"others kept {said}"]


def test_what_a_hypervisor_took_is_no_more_than_what_others_took() -> None:
    """Of a guest whose processes are charged for what is stolen from them."""
    samples = closed_loop(np.full(100, 10.0))
    readings = [CpuReading(0, 0.0, 0.0, 0.0), CpuReading(10**9, 1.9, 1.2, 1.0)]
    found = cpu_fields(readings, samples)
    assert found["stolen_cpu"] == pytest.approx(found["other_cpu"])
    assert 0 < found["other_cpu"] <= 0.7
    half = cpu_fields([readings[0], CpuReading(10**9, 1.9, 1.2, 0.3)], samples)
    assert half["stolen_cpu"] == pytest.approx(0.3)


def test_littles_law_is_held_by_honest_books_and_broken_by_others() -> None:
    honest = closed_loop(np.random.default_rng(2).lognormal(2, 0.5, 2000))
    client = client_side(honest, Load.closed(4), 1)
    assert client.littles_law == pytest.approx(1, abs=0.02)
    lost = np.where(np.arange(2000) % 3 == 0, 1, OK).astype(np.int32)  # a third was sent and never answered
    broken = Samples(honest.scheduled, honest.sent, np.where(lost > 0, 0, honest.done), lost, ["?"], honest.window)
    assert any("Little's law does not hold" in text for text in client_side(broken, Load.closed(4), 1).unstable)


def test_littles_law_counts_what_is_refused_after_a_while() -> None:
    """Requests that a queue's timeout ends have waited: they were under way."""
    honest = closed_loop(np.full(2000, 20.0))
    refused = np.where(np.arange(2000) % 4 == 0, 1, OK).astype(np.int32)
    found = Samples(honest.scheduled, honest.sent, honest.done, refused, ["timed out"], honest.window)
    client = client_side(found, Load.closed(4), 1)
    assert client.littles_law == pytest.approx(1, abs=0.02)
    assert not any("Little" in text for text in client.unstable)


def test_a_lost_request_breaks_conservation() -> None:
    samples = closed_loop(np.full(500, 10.0))
    status = samples.status.copy()
    status[7] = -1  # begun, and neither answered nor failed
    lost = Samples(samples.scheduled, samples.sent, samples.done, status, [], samples.window)
    with ScriptedServer() as server:
        reasons, _ = judge(ServerTarget(server.url), evidence(lost, Load.closed(4)), MeasureOptions())
    assert reasons == ["requests were lost: 500 begun, 499 answered, 0 failed"]


def test_a_late_open_loop_does_not_vanish_among_the_requests_of_a_closed_one() -> None:
    """40 of 8040 requests were due and sent 20 ms late: in all stamps together p99 of the lag is zero."""
    bulk = closed_loop(np.full(8000, 4.0), clients=8)
    due = np.arange(40, dtype=np.int64) * 100_000_000
    window = (0, int(bulk.done.max()) + 1)

    def mixed(late_ms: float) -> list[str]:
        sent = due + int(late_ms * 1e6)
        samples = Samples(
            np.concatenate((bulk.scheduled, due)), np.concatenate((bulk.sent, sent)),
            np.concatenate((bulk.done, sent + 4_000_000)), np.full(8040, OK, np.int32), [], window,
            class_of=np.repeat(np.array([0, 1], np.int32), (8000, 40)),
        )  # fmt: skip
        load = Load.classes({"bulk": Load.closed(8), "urgent": Load.open(10, "constant")})
        found = Evidence(load, samples, client_side(samples, load, [1, 1]), None, None)
        with ScriptedServer() as server:
            return [
                reason for reason in judge(ServerTarget(server.url), found, MeasureOptions())[0] if "late" in reason
            ]

    assert mixed(0.05) == []
    (reason,) = mixed(20.0)
    assert reason.startswith("the load generator, with class 'urgent', was late: send lag p99 20.00 ms, 83% of the p99")
