"""A window of so many requests, as perf_analyzer's count windows; and what a percentile of few of them is worth."""

from __future__ import annotations

import math
import re
import time
from typing import Any

import numpy as np
import pytest
from scripted_target import ERROR, INPUTS, ScriptedServer

from workbench.errors import InvalidRequest
from workbench.profiling import Load, Point, ServerTarget, measure
from workbench.profiling.client_side import client_side
from workbench.profiling.fruitless import Fruitless
from workbench.profiling.samples import OK, Samples
from workbench.profiling.sweep_result import SweepResult

BARELY = {"warmup_s": 0.02, "max_warmup_s": 0.02}


def measured(load: Load, latency_s: float = 0.004) -> Point:
    with ScriptedServer(lambda n: latency_s) as server:
        return measure(ServerTarget(server.url), "m", load, inputs=INPUTS)


def test_the_window_ends_with_the_last_of_so_many_requests() -> None:
    point = measured(Load.closed(2, requests=60, **BARELY))
    assert point.n == 60
    assert point.duration_s < 1.5, "and not after 2.5 s"
    assert point.throughput == pytest.approx(60 / point.duration_s)


def test_the_window_goes_on_for_as_long_as_they_take() -> None:
    point = measured(Load.closed(1, requests=30, duration_s=0.1, **BARELY), latency_s=0.03)
    assert point.n == 30
    assert point.duration_s > 0.8, "and not for twice 0.1 s"


def test_a_window_of_a_closed_loop_begins_with_an_answer_too() -> None:
    """Begun in the middle of a round it would be half a round too short: a fifth more throughput than there is."""
    point = measured(Load.closed(1, requests=3, warmup_s=0.05, max_warmup_s=0.05), latency_s=0.1)
    assert point.n == 3
    assert point.throughput == pytest.approx(1000 / point.mean_ms, rel=0.05), "one client has no more than that"


def test_an_open_loop_is_counted_too() -> None:
    point = measured(Load.open(200, "constant", requests=50, **BARELY))
    assert point.n == pytest.approx(50, abs=2), "it is about what was due in the window"
    assert point.duration_s == pytest.approx(0.25, abs=0.15)


def test_several_generators_have_at_least_so_many() -> None:
    point = measured(Load.closed(2, generators=2, requests=100, duration_s=60, **BARELY))
    assert 100 <= point.n < 2000


@pytest.mark.parametrize("asked", [50, 100])
def test_fewer_than_were_asked_for_are_not_valid(asked: int) -> None:
    """Also of a hundred, which is the default of ``min_requests``: of that fewer are only told of."""
    point = measured(Load.closed(1, requests=asked, max_duration_s=0.3, **BARELY), latency_s=0.03)
    assert not point.valid
    assert f"{point.n} requests in the window, at least {asked} were asked for" in point.reasons[0]
    noted = measured(Load.closed(1, duration_s=0.3, max_duration_s=0.3, **BARELY), latency_s=0.03)
    assert any("by default it is to have 100" in note for note in noted.notes)


@pytest.mark.parametrize(
    ("asked", "generators", "text"),
    [
        (50, 1, "requests had failed in it: 50 answers were asked for"),
        (1_000_000, 1, "as nothing but errors had come for"),
        (50, 2, "requests had failed in it: 50 answers were asked for"),
        (1_000_000, 2, "as nothing but errors had come for"),
    ],
)
def test_a_window_of_which_nothing_succeeds_ends_without_its_answers(asked: int, generators: int, text: str) -> None:
    """Not after ten minutes: perf_analyzer ends at the first request that fails."""
    failing: list[bool] = []

    def on_event(event: Any) -> None:
        if event["event"] == "window":
            failing.append(True)

    load = Load.closed(8, requests=asked, generators=generators, warmup_s=0.3, max_warmup_s=0.3)
    with ScriptedServer(lambda n: -0.002 if failing else 0.05) as server:
        begin = time.monotonic()
        point = measure(ServerTarget(server.url), "m", load, inputs=INPUTS, on_event=on_event)
    assert time.monotonic() - begin < 30
    assert not point.valid
    assert any(text in reason for reason in point.reasons), point.reasons
    assert any(ERROR in reason for reason in point.reasons)
    assert not any("max_duration_s gives it longer" in reason for reason in point.reasons), "it would not help"


def test_errors_that_pass_do_not_end_a_counted_window() -> None:
    """Fewer than were asked for, and not for long: the window goes on to its answers."""
    with ScriptedServer(lambda n: -0.01 if 200 <= n < 300 else 0.004) as server:
        load = Load.closed(2, requests=400, warmup_s=0.05, max_warmup_s=0.05)
        point = measure(ServerTarget(server.url), "m", load, inputs=INPUTS)
    assert point.n == 400
    assert point.failed == 100
    assert not any("ended" in reason for reason in point.reasons)


def test_refusals_beside_slow_answers_do_not_end_a_counted_window() -> None:
    """Of a model that takes seconds, behind a limit: between two answers nothing but refusals comes."""
    answers = Fruitless(wanted=100)
    s = 1_000_000_000
    for turn in range(1, 5):
        assert not answers.look(answered=20 * turn, failed=12 * (turn - 1), now=8 * turn * s)
        assert not answers.look(answered=20 * turn, failed=12 * turn, now=(8 * turn + 7) * s)
    assert answers.look(answered=80, failed=100, now=100 * s)


def test_a_window_of_which_nothing_is_answered_any_more_ends_without_its_answers() -> None:
    """Neither answers nor many errors: over gRPC each client has one when its call has taken two minutes."""
    answers = Fruitless(wanted=100, silence_s=120.0)
    s = 1_000_000_000
    assert not answers.look(answered=0, failed=0, now=119 * s)
    assert not answers.look(answered=1, failed=0, now=120 * s), "the time counts from the last answer"
    assert not answers.look(answered=1, failed=4, now=239 * s)
    assert answers.look(answered=1, failed=4, now=241 * s)
    assert answers.said == (
        "the window was ended as nothing had been answered for 121 s: 100 answers were asked for "
        "(max_duration_s=... waits for as long as it says)"
    )
    assert not Fruitless(wanted=0, silence_s=120.0).look(answered=0, failed=0, now=900 * s), "none are counted"


@pytest.mark.parametrize("after", [0, 20])
def test_at_a_server_that_does_not_answer_any_more_so_it_ends(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes requests and answers none, from the first on or later: not for ten minutes."""
    monkeypatch.setattr("workbench.profiling.load._SILENCE_S", 1.0)
    load = Load.closed(2, requests=1000, generators=2, drain_s=0.1, **BARELY)
    with ScriptedServer(lambda n: 60.0 if n >= after else 0.004) as server:
        begin = time.monotonic()
        point = measure(ServerTarget(server.url), "m", load, inputs=INPUTS)
    assert time.monotonic() - begin < 30
    assert not point.valid
    said = re.compile(r"as nothing had been answered for \d+ s: 1000 answers were asked for")
    assert any(said.search(each) for each in point.reasons), point.reasons


def test_silence_counts_only_while_something_is_under_way_and_responses_of_a_stream_break_it() -> None:
    s = 1_000_000_000
    sparse = Fruitless(wanted=3, silence_s=120.0)
    assert not sparse.look(answered=0, failed=0, now=200 * s, under_way=0), "nothing was due"
    assert not sparse.look(answered=0, failed=0, now=319 * s), "the time counts from when something was sent"
    assert sparse.look(answered=0, failed=0, now=321 * s)
    streams = Fruitless(wanted=3, silence_s=120.0)
    assert not streams.look(answered=0, failed=0, now=100 * s, responses=100)
    assert not streams.look(answered=0, failed=0, now=219 * s, responses=100)
    assert streams.look(answered=0, failed=0, now=221 * s, responses=100)


@pytest.mark.parametrize(
    "load",
    [
        Load.open(2, "constant", requests=5, generators=2, **BARELY),  # 1 s between two of each generator
        Load.closed(2, requests=3, streaming=True, generators=2, **BARELY),
    ],
    ids=["sparse arrivals", "long streams"],
)
def test_a_window_that_is_slow_but_answered_goes_on_to_its_answers(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.profiling.load._SILENCE_S", 0.3 if load.has_open else 0.8)
    with ScriptedServer() as server:
        server.stream = lambda n: (0.1,) * 20
        point = measure(ServerTarget(server.url), "m", load, inputs=INPUTS)
    assert not any("ended" in reason for reason in point.reasons), point.reasons
    assert point.n >= load.requests


def test_who_says_how_long_a_window_may_last_has_it_wait_for_answers_for_as_long() -> None:
    assert Load.closed(1, requests=5, max_duration_s=500).longest_silence_s > 500
    assert Load.closed(1, requests=5).longest_silence_s == 120, "as long as a call by gRPC may take"


def test_a_p99_of_a_hundred_requests_is_told_to_be_no_more_than_that() -> None:
    point = measured(Load.closed(2, requests=100, **BARELY))
    assert point.n == 100
    assert math.isnan(point.p99_high)
    assert math.isnan(point.p99_claimable_ms)
    assert any(note.startswith("p99 needs at least 459 requests, had ") for note in point.notes)
    assert point.claim(p99_ms=1000.0).verdict == "open"
    shown = repr(SweepResult("m", {}, (point,), 1))
    assert f"{point.p99_ms:.2f}?" in shown
    assert "? p99 needs at least 459 requests, had " in shown


def test_a_load_of_the_store_is_what_it_was() -> None:
    assert "requests" not in Load.closed(1).to_json(), "else every point of an older run had another key"
    load = Load.classes({"a": Load.closed(1), "b": Load.open(5)}, requests=70)
    assert Load.from_json(load.to_json()) == load
    assert all(part.requests == 70 for part in load.parts)
    assert Load.closed(1, requests=70).block.longest_s > 60
    with pytest.raises(InvalidRequest, match="requests must be a whole number"):
        Load.closed(1, requests=-1)


def test_what_was_refused_unsent_was_never_under_way() -> None:
    """The books of an open loop that is refused what is above ``max_in_flight``."""
    s = 1_000_000_000
    sent = np.arange(100, dtype=np.int64) * 10_000_000 + 5 * s
    done = sent + 8_000_000
    refused = sent[::4] + 1_000_000
    zeros = np.zeros(len(refused), np.int64)
    options: dict[str, Any] = {"texts": ["not sent"], "window": (5 * s, 6 * s)}
    samples = Samples(
        np.concatenate([sent, refused]), np.concatenate([sent, zeros]), np.concatenate([done, refused]),
        np.concatenate([np.full(len(sent), OK, np.int32), np.full(len(refused), 1, np.int32)]), **options,
    )  # fmt: skip
    found = client_side(samples, Load.open(100, max_in_flight=1), 1)
    assert found.failed == 25
    assert found.littles_law == pytest.approx(1.0, abs=0.02)
    assert not [text for text in found.unstable if "Little" in text]
