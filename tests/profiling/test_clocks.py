"""The clock of another machine: whatever offset, drift and ways there are, the error stays within the stated bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scripted_target import ScriptedServer

from workbench.profiling import Load, MeasureOptions, Samples, ServerTarget
from workbench.profiling.client_side import client_side
from workbench.profiling.clocks import LONGEST_NS, ClockMap, Trip, best_fix, moved, round_trips
from workbench.profiling.merging import merge
from workbench.profiling.verdict import Evidence, judge

MS = 1_000_000


class Ways:
    """This machine's clock, and another one that is ahead and drifts; each trip takes its time there and back."""

    def __init__(self, ahead_ns: int, drift: float, ways: Callable[[], tuple[float, float]]) -> None:
        self.now = 5_000 * MS
        self.ahead_ns, self.drift, self.ways = ahead_ns, drift, ways
        self.back = 0

    def there(self, here: int) -> int:
        return here + self.ahead_ns + round(here * self.drift)

    def clock(self) -> int:
        self.now += self.back
        self.back = 0
        return self.now

    def read(self) -> int:
        go, back = self.ways()
        self.now += round(go * MS)
        self.back = round(back * MS)
        return self.there(self.now)


def asked_at(ways: Ways, at: int) -> list[Trip]:
    ways.now = at
    return round_trips(ways.read, ways.clock)


@pytest.mark.parametrize("ahead_ns", [0, -3_600_000 * MS, 90 * 86_400_000 * MS])
@pytest.mark.parametrize("drift", [0.0, 2e-4, -5e-4])
@pytest.mark.parametrize("share", [0.5, 0.0, 1.0, 0.9])
def test_the_error_is_within_the_bound_however_unequal_the_ways(ahead_ns: int, drift: float, share: float) -> None:
    rng = np.random.default_rng(3)

    def ways() -> tuple[float, float]:
        length = 0.4 + rng.exponential(2.0)
        return length * share, length * (1 - share)

    link = Ways(ahead_ns, drift, ways)
    begin, end = 5_000 * MS, 65_000 * MS
    clocks = ClockMap(best_fix(asked_at(link, begin)), best_fix(asked_at(link, end)))
    here = np.linspace(begin + 100 * MS, end, 1000).astype(np.int64)
    error = np.abs(clocks.here(np.array([link.there(int(each)) for each in here])) - here)
    slack = 200 + abs(drift) * 4 * MS  # rounding, and what the clock drifts within a round trip
    assert error.max() <= clocks.uncertainty_ns + slack
    assert clocks.uncertainty_ns < 0.5 * MS, "the shortest of thirty tells"
    # A turn that is told by the clock there comes when it was meant.
    for at in here[::100].tolist():
        assert abs(int(clocks.here(np.array([clocks.there(at)]))[0]) - at) <= 1
    if share == 0.5:
        assert error.max() <= slack, "equal ways: no error at all"
        assert clocks.drift == pytest.approx(-drift, abs=1e-6)


def test_without_the_second_fix_the_drift_comes_on_top() -> None:
    link = Ways(7 * MS, 1e-4, lambda: (0.1, 0.3))
    clocks = ClockMap(best_fix(asked_at(link, 5_000 * MS)))
    at = 15_000 * MS
    error = abs(int(clocks.here(np.array([link.there(at)]))[0]) - at)
    assert error <= clocks.uncertainty_ns + 10_000 * MS * 1.1e-4


def test_a_slow_way_is_not_asked_for_long() -> None:
    link = Ways(0, 0.0, lambda: (200.0, 200.0))
    trips = asked_at(link, 0)
    assert trips[-1].end - trips[0].begin < LONGEST_NS + 400 * MS
    assert 1 <= len(trips) <= 4
    assert best_fix(trips).uncertainty == 200 * MS


def samples(scheduled: Sequence[int]) -> Samples:
    at = np.array(scheduled, np.int64)
    sent, done = at + 10, at + 900
    sent[-1] = done[-1] = 0  # never sent
    return Samples(
        at, sent, done, np.array([0] * (len(at) - 1) + [1], np.int32), ["no"], (int(at[0]), int(at[-1])),
        response_of=np.array([1, 0]), response_at=at[[1, 0]] + 500,
    )  # fmt: skip


def test_stamps_are_moved_and_what_was_measured_between_them_stays() -> None:
    link = Ways(-4_000 * MS, 3e-4, lambda: (0.1, 0.2))
    clocks = ClockMap(best_fix(asked_at(link, 5_000 * MS)), best_fix(asked_at(link, 9_000 * MS)))
    true = [6_000 * MS, 7_000 * MS, 8_000 * MS]
    there = samples([link.there(at) for at in true])
    here = moved(there, clocks)
    assert np.abs(here.scheduled - np.array(true)).max() <= clocks.uncertainty_ns + 1
    assert np.abs(np.array(here.window) - np.array([true[0], true[-1]])).max() <= clocks.uncertainty_ns + 1
    assert (here.done - here.scheduled)[:2].tolist() == [900, 900]
    assert (here.sent - here.scheduled)[:2].tolist() == [10, 10]
    assert here.sent[2] == here.done[2] == 0, "never stays never"
    assert (here.response_at - here.scheduled[here.response_of]).tolist() == [500, 500]
    assert here.errors() == {"no": 1}


def test_the_verdict_says_where_a_clock_is_not_known_well_enough() -> None:
    def part(node: str, uncertainty_ms: float, here: bool) -> Samples:
        at = np.arange(200, dtype=np.int64) * 5 * MS + 1
        place = {"node": node, "here": here, "uncertainty_ms": uncertainty_ms, "note": ""}
        return Samples(
            at, at + 1000, at + 3 * MS, np.zeros(200, np.int32), [], (1, 1000 * MS), cpu_s=0.2, extra={"place": place}
        )

    def told(*uncertain: float) -> tuple[list[str], list[str]]:
        merged = merge([part(f"node{n}", each, n == 0) for n, each in enumerate(uncertain)])
        assert merged.cpu_s == 0.2, "other machines' processors are not this one's"
        load = Load.open(200, generators=2)
        with ScriptedServer() as server:
            target = ServerTarget(server.url)
            evidence = Evidence(load, merged, client_side(merged, load, 1), None, None)
            return judge(target, evidence, MeasureOptions(lag_limit_ms=1.0))

    reasons, notes = told(0.21, 0.34)
    assert not reasons
    assert any("2 generators on nodes node0, node1, whose clocks are known to 0.34 ms" in note for note in notes)
    reasons, _ = told(0.21, 3.1)
    assert len(reasons) == 1
    assert reasons[0].startswith("the clock of node node1 is known to 3.10 ms only")
