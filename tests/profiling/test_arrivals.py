"""When open loops send: seeded, of the rate that was asked for, and of the shape that their name says."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from workbench.errors import InvalidRequest
from workbench.profiling import Load
from workbench.profiling.load import schedule

LONG = {"warmup_s": 0.0, "duration_s": 200.0, "max_duration_s": 200.0}


def gaps(load: Load) -> NDArray[np.float64]:
    times: NDArray[np.float64] = schedule(load) / 1e9
    return np.diff(times)


def cv(values: NDArray[np.float64]) -> float:
    return float(values.std() / values.mean())


@pytest.mark.parametrize("shape", [{"distribution": "gamma", "cv": 3.0}, {"distribution": "bursty"}], ids=str)
def test_the_mean_rate_is_the_one_asked_for_in_every_part_of_a_load(shape: dict[str, object]) -> None:
    for seed in range(20):
        load = Load(kind="open", rate=40, seed=seed, warmup_s=0.5, duration_s=2.0, max_duration_s=5.0, **shape)  # type: ignore[arg-type]
        times = schedule(load)
        assert (np.diff(times) >= 0).all()
        begin = load.longest_warmup_s
        edges = (np.array([0, begin, begin + 2.0, begin + 5.0]) * 1e9).astype(np.int64)
        assert np.diff(np.searchsorted(times, edges)).tolist() == [round(40 * begin), 80, 120]
        assert times[-1] < edges[-1]


def test_the_same_seed_gives_the_same_arrivals_and_another_one_others() -> None:
    for distribution in ("poisson", "gamma", "bursty"):
        one, same, other = (Load.open(100, distribution, seed=seed) for seed in (7, 7, 8))
        assert schedule(one).tolist() == schedule(same).tolist() != schedule(other).tolist()
        again = Load.from_json(json.loads(json.dumps(one.to_json())))
        assert (again, schedule(again).tolist()) == (one, schedule(one).tolist())


@pytest.mark.parametrize("wanted", [0.3, 1.0, 2.0, 4.0])
def test_gamma_gaps_have_the_coefficient_of_variation_asked_for(wanted: float) -> None:
    drawn = [cv(gaps(Load.open(100, "gamma", cv=wanted, seed=seed, **LONG))) for seed in range(5)]
    assert np.mean(drawn) == pytest.approx(wanted, rel=0.05)
    if wanted == 1.0:  # Poisson: a gap is longer than its mean with probability 1/e
        found = gaps(Load.open(100, "gamma", cv=1.0, **LONG))
        assert (found > found.mean()).mean() == pytest.approx(np.exp(-1), abs=0.01)


def test_bursts_have_the_rate_the_length_and_the_share_asked_for() -> None:
    load = Load.open(100, "bursty", burst_factor=5, burst_s=0.4, **LONG)
    times = schedule(load) / 1e9
    # Within a burst gaps are of 2 ms on average; a pause lasts 1.6 s on average.
    pauses = np.flatnonzero(np.diff(times) > 0.05)
    bursts = np.split(times, pauses + 1)
    lengths = np.array([burst[-1] - burst[0] for burst in bursts if len(burst) > 1])
    # Pauses under 50 ms (3 % of all) do not show.
    assert len(bursts) == pytest.approx(200 / 5 / 0.4, rel=0.1)
    assert lengths.mean() == pytest.approx(0.4, rel=0.15)
    assert lengths.sum() == pytest.approx(200 / 5, rel=0.05)
    inside = np.concatenate([np.diff(burst) for burst in bursts])
    assert 1 / inside.mean() == pytest.approx(500, rel=0.05)
    assert cv(inside) == pytest.approx(1.0, abs=0.1)  # Poisson within a burst
    # Counts of 100 ms vary far more than those of a Poisson process, whose variance is its mean.
    counts = np.histogram(times, np.arange(0, 200, 0.1))[0]
    assert counts.var() / counts.mean() > 20


def test_a_window_shorter_than_one_burst_still_has_its_rate() -> None:
    load = Load.open(50, "bursty", burst_factor=10, burst_s=5.0, warmup_s=0.0, duration_s=1.0, max_duration_s=1.0)
    times = schedule(load) / 1e9
    assert len(times) == 50
    cut = np.sort(np.concatenate((times, times + 1.0)))  # the circle on which the burst lies
    assert np.min(cut[49:99] - cut[:50]) < 0.11


def test_classes_have_arrivals_of_their_own_that_add_up() -> None:
    load = Load.classes({"a": Load.open(50, "gamma"), "b": Load.open(50, "gamma"), "c": Load.closed(2)}, seed=3)
    a, b = (schedule(part) for part in load.parts[:2])
    assert len(a) == len(b)
    assert a.tolist() != b.tolist()
    assert schedule(load).tolist() == sorted([*a.tolist(), *b.tolist()])
    other = Load.classes({"a": Load.open(50, "gamma"), "b": Load.open(50, "gamma"), "c": Load.closed(2)}, seed=4)
    assert schedule(other).tolist() != schedule(load).tolist()


def test_shares_divide_a_total() -> None:
    clients = Load.classes({"a": {"share": 3}, "b": {"share": 1, "priority": 2}, "c": {"share": 0.01}}, concurrency=9)
    assert [part.concurrency for part in clients.parts] == [6, 2, 1]
    assert clients.parts[1].priority == 2
    assert clients.clients == 9
    rates = Load.classes({"a": {"share": 3, "distribution": "gamma"}, "b": {"share": 1}}, rate=100)
    assert [(part.rate, part.distribution) for part in rates.parts] == [(75, "gamma"), (25, "poisson")]
    again = Load.from_json(json.loads(json.dumps(rates.to_json())))
    assert again == rates
    assert rates.label == "a 75/s gamma cv 2 + b 25/s poisson"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Load.open(10, "pareto"), "distribution must be one of constant, poisson, gamma, bursty"),  # type: ignore[arg-type]
        (lambda: Load.open(10, "gamma", cv=0), "cv must be a number from 1e-06 to"),
        (lambda: Load.open(10, "bursty", burst_factor=1), "burst_factor must be above 1"),
        (lambda: Load.open(10, "trace"), "a replay needs a trace"),
        (lambda: Load.classes({}), "needs classes"),
        (lambda: Load.classes({"a": {"share": 1}}), "the shares of a need a total"),
        (lambda: Load.classes({"a": {"share": 1}, "b": {"share": 1}}, concurrency=1), "cannot be divided among 2"),
        (lambda: Load.classes({"a": {"priority": 1}}, rate=5), "class 'a' says neither how much is sent nor its share"),
        (lambda: Load.classes({"a": Load.closed(1, duration_s=9)}), "class 'a' sets duration_s, which is the whole"),
        (lambda: Load.classes({"a": Load.classes({"b": Load.closed(1)})}), "class 'a' can be neither a mixed load"),
        (lambda: Load.classes({"a": {"share": "x"}}, rate=5), "the share of class 'a' must be a number above 0"),
        (lambda: Load.classes({"a": {"share": math.inf}}, rate=5), "the share of class 'a' must be a number above 0"),
        (lambda: Load.classes({"a": {"share": math.nan}}, rate=5), "the share of class 'a' must be a number above 0"),
        (lambda: Load.classes({"a": {"rate": 1, "prio": 2}}), "class 'a' has the unknown option prio"),
        (lambda: Load.classes({"a": {"share": 1, "prio": 2}}, rate=5), "class 'a' has the unknown option prio"),
        (lambda: Load.closed(1, parameters={"a": object()}), "parameter 'a' must be true or false, a text or a number"),
        (lambda: Load.closed(1, parameters={"a": 2**70}), "parameter 'a' must be true or false, a text or a number"),
        (lambda: Load.closed(1, parameters={1: 2}), "parameters must be values by name"),
        (lambda: Load.classes({"a": Load.closed(4)}, generators=5), "5 generators cannot divide 4 clients"),
        (
            lambda: Load.closed(1, sequence_length_variation=1.5),
            "sequence_length_variation must be a number from 0 to 1, got 1.5",
        ),
    ],
)
def test_loads_that_make_no_sense_are_refused_in_words(make: object, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make()  # type: ignore[operator]
    assert text in f"{caught.value.message} {caught.value.hint}"


def test_what_was_written_before_there_were_such_loads_is_read_and_keeps_its_key() -> None:
    old = {"kind": "open", "rate": 5.0, "distribution": "poisson", "batch_size": 2, "seed": 3, "streaming": False}
    load = Load.from_json(old)
    assert load == Load.open(5.0, batch_size=2, seed=3)
    assert set(load.to_json()) - {"generators"} <= {
        *old, "concurrency", "duration_s", "warmup_s", "min_requests", "max_duration_s", "max_warmup_s", "drain_s",
        "max_in_flight",
    }  # fmt: skip
