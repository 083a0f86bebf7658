"""Interleaved A/B: which of two configurations is faster, or that it is too close to call."""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scripted_target import INPUTS, ScriptedServer, ScriptedTarget

from workbench.errors import ConfigError, InvalidRequest
from workbench.profiling import ABOptions, ABResult, Load, Point, ab
from workbench.profiling.ab_result import Block, Side
from workbench.profiling.ab_verdict import compare_pairs, confidence_of, figure_of, looks
from workbench.profiling.client_side import client_side
from workbench.profiling.figures import client_fields
from workbench.profiling.interleaving import Interleaver
from workbench.profiling.samples import OK, Samples

S = 1_000_000_000
BLOCK_S = 1.0


class Simulated:
    """A server with scripted latencies in virtual time, and eight clients in a closed loop.

    Requests leave in batches whose members share a lognormal compute time, and the machine gets slower and faster in a
    random walk: by 3 % from one block to the next, for A as for B.
    """

    def __init__(self, seed: int, times_b: float) -> None:
        self.rng = np.random.default_rng(seed)
        self.times = {"A": 1.0, "B": times_b}
        self.pace = 0.0

    def measure(self, side: Side, load: Load) -> Point:
        self.pace = 0.95 * self.pace + 0.03 * self.rng.standard_normal()
        batch = self.rng.lognormal(0, 0.3, 400) * self.times[side.name] * math.exp(self.pace)  # ms x 10
        ends = np.cumsum(batch) * 10e6
        ends = ends[ends < BLOCK_S * S]
        starts = np.concatenate([[0], ends[:-1]])
        wait = self.rng.uniform(0, 1e6, (len(ends), load.concurrency))
        sent = np.repeat(starts, load.concurrency) + wait.ravel() / 4
        done = np.repeat(ends, load.concurrency) + wait.ravel() / 4
        return self.point(side, load, sent.astype(np.int64), done.astype(np.int64))

    @staticmethod
    def point(side: Side, load: Load, sent: NDArray[np.int64], done: NDArray[np.int64]) -> Point:
        samples = Samples(sent, sent, done, np.full(len(sent), OK, np.int32), [], (0, int(BLOCK_S * S)))
        client = client_side(samples, load, 1)
        return Point(
            model=side.model, load=load, settings=side.settings, valid=True, stable=True, duration_s=BLOCK_S,
            **client_fields(client, samples),
        )  # fmt: skip


def compare(seed: int, times_b: float, **options: Any) -> ABResult:
    target = Simulated(seed, times_b)
    sides = Side("A", "m", {"max_batch_size": 4}), Side("B", "m", {"max_batch_size": 8})
    run = Interleaver(*sides, Load.closed(8), target.measure, options=ABOptions(seed=seed, **options))
    run.run()
    return run.result()


@pytest.mark.full
@pytest.mark.parametrize("metric", ["throughput", "mean_ms"])
def test_what_is_the_same_is_too_close_to_call_and_five_percent_are_found(metric: str) -> None:
    same = Counter(compare(seed, 1.0, metric=metric).faster for seed in range(100))
    assert same[""] >= 90
    for times_b, better in ((1.05, "A"), (1 / 1.05, "B")):
        found = Counter(compare(1000 + seed, times_b, metric=metric).faster for seed in range(100))
        assert found[better] >= 90
        assert found["A" if better == "B" else "B"] == 0


@pytest.mark.full
def test_the_interval_of_the_difference_holds_it() -> None:
    held = 0
    for seed in range(200):
        found = compare(5000 + seed, 1.05, pairs=8, max_pairs=8).comparisons["mean_ms"]
        held += found.low <= 0.05 <= found.high
    assert 0.91 <= held / 200 <= 0.99


def test_a_clear_difference_is_found_at_the_first_look_and_told_in_words() -> None:
    result = compare(3, 1.3)
    assert result.faster == "A"
    assert result.verdict.startswith("throughput: A faster by ")
    assert {block.pair for block in result.blocks} == set(range(6))
    assert len(result.blocks) == 12
    assert "mean latency: A faster by" in repr(result)
    assert "A: m max_batch_size 4" in repr(result)
    assert list(result.to_frame()["side"]) == [block.side for block in result.blocks]


def test_no_difference_takes_every_look() -> None:
    result = compare(4, 1.0, pairs=2, max_pairs=8)
    assert result.faster == ""
    assert "too close to call, B - A is between" in result.verdict
    assert len(result.blocks) == 16


def test_blocks_are_interleaved_in_an_order_that_the_seed_draws() -> None:
    def order(seed: int) -> list[str]:
        return [block.side for block in compare(seed, 1.0, pairs=12, max_pairs=12).blocks]

    assert order(1) == order(1)
    assert order(1) != order(2)
    for begin in range(0, 24, 2):  # each pair has both
        assert sorted(order(1)[begin : begin + 2]) == ["A", "B"]
    assert 3 < order(1)[::2].count("A") < 9  # and neither goes first always


def test_a_pair_has_the_same_arrivals_and_another_pair_has_others() -> None:
    seeds: dict[int, list[int]] = {}
    for block in compare(1, 1.0, pairs=3, max_pairs=3).blocks:
        seeds.setdefault(block.pair, []).append(block.point.load.seed)
    assert seeds == {0: [1, 1], 1: [2, 2], 2: [3, 3]}


def test_blocks_that_are_not_valid_are_left_out_with_their_pair_and_measured_again() -> None:
    target = Simulated(1, 1.3)
    calls = 0

    def measure(side: Side, load: Load) -> Point:
        nonlocal calls
        calls += 1
        point = target.measure(side, load)
        if calls == 3:
            return Point(model="m", load=load, valid=False, throughput=1.0, reasons=("the load generator was late",))
        return point

    run = Interleaver(Side("A", "m"), Side("B", "m"), Load.closed(8), measure)
    run.run()
    result = run.result()
    assert len(result.blocks) == 14
    assert result.comparisons["throughput"].pairs == 6
    assert "  ! 1 of 14 blocks was left out: 1 × the load generator was late\n" in repr(result) + "\n"


def test_what_was_left_out_is_a_line_and_each_kind_of_reason_is_told_once() -> None:
    calls = 0

    def measure(side: Side, load: Load) -> Point:
        nonlocal calls
        calls += 1
        if calls % 7 == 0:
            return Point(model="m", load=load, valid=True, n=500, throughput=1.0, failed=calls)
        why = f"the load generator was late: send lag p50 {calls / 10} ms"
        return Point(model="m", load=load, valid=False, throughput=1.0, reasons=(why,))

    run = Interleaver(
        Side("A", "m"), Side("B", "m"), Load.closed(8), measure, options=ABOptions(pairs=5, max_pairs=5)
    )  # fmt: skip
    run.run()
    result = run.result()
    late = "the load generator was late: send lag p50 0.1 ms"
    assert result.verdict == f"no verdict: no pair of blocks is valid: {late}; 7 requests failed"
    lines = [line for line in repr(result).splitlines() if "left out" in line]
    assert lines == [f"  ! 20 of 20 blocks were left out: 18 × {late}; 2 × 7 requests failed"]


def test_a_machine_that_stays_busy_gives_no_verdict_and_no_endless_loop() -> None:
    def measure(side: Side, load: Load) -> Point:
        return Point(model="m", load=load, valid=False, throughput=1.0, reasons=("others were busy",))

    run = Interleaver(Side("A", "m"), Side("B", "m"), Load.closed(1), measure, options=ABOptions(pairs=2, max_pairs=4))
    run.run()
    assert run.result().verdict == "no verdict: no pair of blocks is valid: others were busy"
    assert run.result().faster == ""


def test_an_improvement_is_a_share_of_the_worse_one() -> None:
    twice = compare_pairs("throughput", [100, 101, 99], [200, 202, 198])
    assert (twice.faster, round(twice.change, 6)) == ("B", 1.0)
    assert "B faster by 100.0% (100.0% to 100.0%)" in twice.text
    half = compare_pairs("mean_ms", [10.0, 10.1, 9.9], [5.0, 5.05, 4.95])
    assert half.faster == "B"
    assert half.change == pytest.approx(-0.5)
    assert half.text.startswith("mean latency: B faster by 50.0%")
    slower = compare_pairs("mean_ms", [5.0, 5.05, 4.95], [10.0, 10.1, 9.9])
    assert slower.text.startswith("mean latency: A faster by 50.0%")
    open_end = compare_pairs("throughput", [100, 103], [100, 150])
    assert open_end.text.endswith("B - A is between -88.9% and anything"), open_end.text
    few = compare_pairs("p99_ms", [5.0, math.nan], [4.0, 3.0])
    assert few.faster == ""
    assert few.text == "p99: no verdict, 1 pair of blocks with 100 requests or more is too few"
    assert math.isnan(figure_of(Point(model="m", load=Load.closed(1), n=99, p99_ms=5.0), "p99_ms"))
    assert figure_of(Point(model="m", load=Load.closed(1), n=100, p99_ms=5.0), "p99_ms") == 5.0


@pytest.mark.parametrize(("a_ms", "b_ms"), [(500.0, 400.0), (490.0, 340.0), (260.0, 240.0), (90.0, 95.0)])
@pytest.mark.parametrize("pairs", [6, 24])
def test_few_requests_a_block_are_no_exact_throughput(a_ms: float, b_ms: float, pairs: int) -> None:
    """A clockwork: one client, latencies that never vary, windows that always begin at the same phase."""

    def block(latency_ms: float, load: Load) -> Point:
        n = int(1200 // latency_ms) - int(200 // latency_ms)  # those that end from 0.2 s to 1.2 s after the start
        return Point(model="m", load=load, valid=True, n=n, throughput=float(n), mean_ms=latency_ms, stable=True)

    run = Interleaver(
        Side("A", "m"), Side("B", "m"), Load.closed(1),
        lambda side, load: block(a_ms if side.name == "A" else b_ms, load),
        options=ABOptions(pairs=pairs, max_pairs=24),
    )  # fmt: skip
    run.run()
    found = run.result().comparisons["throughput"]
    assert found.low < a_ms / b_ms - 1 < found.high


def test_a_percentile_is_not_taken_of_the_blocks_alone_in_which_a_side_was_quick() -> None:
    def measure(side: Side, load: Load) -> Point:
        n = 99 if side.name == "B" and load.seed == 3 else 500
        return Point(model="m", load=load, valid=True, stable=True, n=n, throughput=float(n), p99_ms=10.0)

    run = Interleaver(Side("A", "m"), Side("B", "m"), Load.closed(1), measure, options=ABOptions(metric="p99_ms"))
    run.run()
    assert run.result().verdict == "p99: no verdict, 0 pairs of blocks with 100 requests or more are too few"


def test_looks_double_and_share_the_error() -> None:
    assert looks(6, 24) == [6, 12, 24]
    assert looks(6, 6) == [6]
    assert looks(5, 12) == [5, 10, 12]
    assert confidence_of(1) == pytest.approx(0.95)
    assert confidence_of(5) == pytest.approx(0.99)
    for bad in ({"pairs": 1}, {"pairs": 9, "max_pairs": 8}, {"metric": "p42"}):
        with pytest.raises(InvalidRequest):
            ABOptions(**bad)  # type: ignore[arg-type]


# -- on a socket

BLOCK = Load.closed(2, duration_s=0.15, warmup_s=0.02, max_warmup_s=0.02, min_requests=0, drain_s=2.0)
QUICK = ABOptions(pairs=3, max_pairs=24)  # as many as a busy machine needs


def slow_when(server: ScriptedServer, key: str, value: Any) -> None:
    server.script = lambda n: 0.025 if server.config.get(key) == value else 0.004


def test_settings_are_applied_block_by_block_and_restored() -> None:
    with ScriptedServer() as server:
        slow_when(server, "max_batch_size", 4)
        target = ScriptedTarget(server)
        heard: list[Block] = []
        result = ab(
            target, "m", {"max_batch_size": 4}, {"max_batch_size": 16}, BLOCK,
            inputs=INPUTS, options=QUICK, on_block=heard.append,
        )  # fmt: skip
        assert server.config["max_batch_size"] == 8
    assert result.faster == "B"
    assert result.restored
    assert result.blocks == tuple(heard)
    for block in result.blocks:
        assert block.point.config["max_batch_size"] == (4 if block.side == "A" else 16)
    assert target.calls[-1] == "restore"


def test_as_configured_is_what_it_was_although_the_other_side_sets_more() -> None:
    with ScriptedServer() as server:
        slow_when(server, "instance_count", 2)
        target = ScriptedTarget(server)
        result = ab(target, "m", {}, {"instance_count": 2}, BLOCK, inputs=INPUTS, options=QUICK)
        assert "instance_count" not in server.config
    assert result.faster == "A"
    for block in result.blocks:
        assert block.point.config.get("instance_count") == (None if block.side == "A" else 2)
    assert "A: m as configured" in repr(result)


def test_a_model_that_somebody_loads_anew_gets_the_sides_settings_again() -> None:
    with ScriptedServer(lambda n: 0.004) as server:
        target = ScriptedTarget(server)

        def elsewhere(block: Block) -> None:
            server.config = {**server.config, "max_batch_size": 8}
            target.reloaded()

        result = ab(
            target, "m", {"max_batch_size": 4}, {"max_batch_size": 16}, BLOCK, inputs=INPUTS, on_block=elsewhere,
            options=ABOptions(pairs=4, max_pairs=4),
        )  # fmt: skip
    sides = [block.side for block in result.blocks]
    assert any(one == other for one, other in itertools.pairwise(sides)), "else each is applied anew anyway"
    for block in result.blocks:
        assert block.point.config["max_batch_size"] == (4 if block.side == "A" else 16)


@pytest.mark.parametrize("a", [{}, {"max_batch_size": 4}])
def test_blocks_of_one_side_have_one_configuration(a: dict[str, Any]) -> None:
    """Else a side is compared with itself: what neither side sets may be changed by somebody else, too."""
    blocks: list[Block] = []

    with ScriptedServer(lambda n: 0.004) as server:
        target = ScriptedTarget(server)

        def elsewhere(block: Block) -> None:
            blocks.append(block)
            if len(blocks) == 4:
                server.config = {**server.config, "instance_count": 3}
                target.reloaded()

        result = ab(
            target, "m", a, {"max_batch_size": 4}, BLOCK, inputs=INPUTS, on_block=elsewhere,
            options=ABOptions(pairs=20, max_pairs=20),
        )  # fmt: skip
    assert "somebody else has changed 'm' (instance_count)" in result.verdict
    assert len(result.blocks) == 5


def test_a_value_that_the_server_reads_otherwise_is_not_compared() -> None:
    class Deaf(ScriptedTarget):
        def configure(self, model: str, edits: Any) -> None:
            super().configure(model, [replace(edit, value=8) for edit in edits])

    with ScriptedServer(lambda n: 0.004) as server:
        result = ab(
            Deaf(server), "m", {}, {"max_batch_size": 4}, BLOCK, inputs=INPUTS,
            options=ABOptions(pairs=2, max_pairs=2),
        )  # fmt: skip
    assert result.verdict.startswith("no verdict: no pair of blocks is valid: ")
    assert "max_batch_size was set to 4, the server says 8" in result.verdict


def test_what_is_refused_is_said_and_everything_put_back() -> None:
    with ScriptedServer(lambda n: 0.004) as server:
        target = ScriptedTarget(server)
        target.refuse = 7
        result = ab(target, "m", {"max_batch_size": 4}, {"max_batch_size": 7}, BLOCK, inputs=INPUTS, options=QUICK)
        assert server.config["max_batch_size"] == 8
    assert "no verdict: B could not be measured: refused by the script" in result.verdict
    assert result.blocks[-1].point.error
    assert result.blocks[-1].side == "B"


def test_a_configuration_that_cannot_be_put_back_is_said() -> None:
    class Stubborn(ScriptedTarget):
        def restore(self, model: str) -> None:
            raise ConfigError("somebody sits on it")

        def let_go(self) -> None:
            self.calls.append("let go")

    with ScriptedServer(lambda n: 0.004) as server:
        sides: Any = {"max_batch_size": 4}, {"max_batch_size": 5}
        options = ABOptions(pairs=2, max_pairs=2)
        target = Stubborn(server)
        result = ab(target, "m", *sides, BLOCK, inputs=INPUTS, options=options)
    assert not result.restored
    assert target.calls[-1] == "let go", "the server then puts it back by itself"
    assert "the configuration of 'm' could not be restored: somebody sits on it" in result.error
    assert result.comparisons["throughput"].pairs == 2  # what was measured is kept


class Taken(ScriptedTarget):
    """A server that has taken the model back by the end of the third block."""

    asked = 0

    def hold(self, models: Any, doing: str) -> None:
        self.calls.append(("hold", list(models)))

    def lost(self) -> str:
        self.asked += 1
        return "'m' is not yours any more" if self.asked >= 3 else ""


@pytest.mark.parametrize("b", [{"max_batch_size": 4}, {}])
def test_a_model_that_is_lost_in_the_middle_ends_it_in_words(b: dict[str, Any]) -> None:
    with ScriptedServer(lambda n: 0.004) as server:
        target = Taken(server)
        result = ab(target, "m", {}, b, BLOCK, inputs=INPUTS, options=QUICK)
    assert target.calls[0] == ("hold", ["m"]), "also where nothing is set: nobody else may change it meanwhile"
    assert "'m' is not yours any more" in result.verdict
    assert len(result.blocks) == 3
    assert [bool(block.point.error) for block in result.blocks] == [False, False, True]
    assert [block.pair for block in result.blocks] == [0, 0, 1]


@pytest.mark.parametrize("how", ["stop", "interrupt"])
def test_ended_early_it_keeps_what_was_measured(how: str) -> None:
    stop = threading.Event()
    blocks: list[Block] = []

    def heard(block: Block) -> None:
        blocks.append(block)
        if len(blocks) == 4:
            stop.set() if how == "stop" else os.kill(os.getpid(), signal.SIGINT)

    with ScriptedServer(lambda n: 0.004) as server:
        result = ab(
            ScriptedTarget(server), "m", {"max_batch_size": 4}, {"max_batch_size": 5}, BLOCK,
            inputs=INPUTS, stop=stop, on_block=heard, options=ABOptions(pairs=20, max_pairs=20),
        )  # fmt: skip
        assert server.config["max_batch_size"] == 8
    assert result.stopped
    assert 4 <= len(result.blocks) <= 5
    assert len({block.pair for block in result.blocks}) >= 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
