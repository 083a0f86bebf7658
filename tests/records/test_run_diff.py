"""Two runs side by side, with intervals and a verdict; what differs of the places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.profiling import Load, Point
from workbench.records import RunStore
from workbench.records.run_diff import RunDiff

CONFIG = {"max_batch_size": 8, "dynamic_batching": {"max_queue_delay_microseconds": 0}}


def point(
    throughput: float, half: float, *, size: int = 8, load: Load | None = None, p99: float = 5.0, **more: Any
) -> Point:
    values: dict[str, Any] = {
        "model": "m", "load": load or Load.closed(1), "settings": {"max_batch_size": size}, "valid": True,
        "stable": True, "n": 100, "config": {**CONFIG, "max_batch_size": size}, "throughput": throughput,
        "throughput_low": throughput - half, "throughput_high": throughput + half, "p99_ms": p99,
        "p99_low": p99 - 1, "p99_high": p99 + 2,
    }  # fmt: skip
    return Point(**{**values, **more})


def stored(store: RunStore, *points: Point, **environment: Any) -> str:
    with store.create("sweep", model="m") as run:
        for each in points:
            run.add_point(each.to_json(), row=each.row(), key="k", config=each.config)
        with run._transaction() as connection:  # another machine, as far as the run says
            connection.executemany(
                "INSERT OR REPLACE INTO environment VALUES (?, ?)",
                [(key, json.dumps(value)) for key, value in environment.items()],
            )
        run.finish()
        return run.id


def verdicts(found: RunDiff, figure: str = "throughput") -> list[str]:
    return [row.verdict for row in found.figures if row.figure == figure]


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path)


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ((100, 5), (120, 5), "higher"),
        ((100, 5), (80, 5), "lower"),
        ((100, 5), (100, 5), "too close to call"),
        ((100, 5), (106, 5), "too close to call"),  # the difference's interval is 6 ± 7.1
        ((100, 5), (108, 5), "higher"),  # the intervals overlap, that of the difference does not hold 0
        ((100, 50), (120, 50), "too close to call"),
        ((100, float("nan")), (120, 5), "no interval"),
    ],
)
def test_a_difference_is_called_only_where_its_interval_allows(
    store: RunStore, a: tuple[float, float], b: tuple[float, float], verdict: str
) -> None:
    found = store.diff(stored(store, point(*a)), stored(store, point(*b)))
    assert verdicts(found) == [verdict]
    row = found.figures[0]
    assert row.change == pytest.approx((b[0] - a[0]) / a[0])
    if verdict == "higher":
        assert 0 < row.change_low < row.change < row.change_high
    assert verdict in repr(found)


def test_two_draws_of_one_thing_are_too_close_to_call_and_a_tenth_more_is_found(store: RunStore) -> None:
    rng = np.random.default_rng(3)

    def drawn(mean: float) -> Point:
        reading = rng.normal(mean, 10, 20)
        return point(float(reading.mean()), float(2.09 * reading.std(ddof=1) / np.sqrt(20)))

    same = [verdicts(store.diff(stored(store, drawn(100)), stored(store, drawn(100))))[0] for _ in range(60)]
    assert same.count("too close to call") >= 54
    more = [verdicts(store.diff(stored(store, drawn(100)), stored(store, drawn(110))))[0] for _ in range(40)]
    assert more.count("higher") >= 30
    assert "lower" not in more


def test_points_are_joined_by_settings_and_load(store: RunStore) -> None:
    rate = Load.open(200)
    a = stored(store, point(100, 1, size=4), point(100, 1), point(50, 1, load=rate))
    b = stored(store, point(110, 1), point(90, 1, size=16), point(60, 1, load=Load.open(200, duration_s=9, seed=4)))
    found = store.diff(a, b)
    assert [(row.settings["max_batch_size"], row.load) for row in found.figures if row.figure == "throughput"] == [
        (8, "concurrency 1"), (8, "200/s poisson"),
    ]  # fmt: skip
    assert found.only_a == ("max_batch_size 4 at concurrency 1",)
    assert found.only_b == ("max_batch_size 16 at concurrency 1",)
    assert any("the windows differ: duration_s 2.5" in note for note in found.notes)
    assert any("the seeds differ" in note for note in found.notes)
    assert any("measured at different times" in note for note in found.notes)
    frame = found.to_frame()
    assert frame["max_batch_size"].tolist() == [8] * len(frame)
    assert set(frame["figure"]) == {"throughput", "p99_ms"}


def test_what_is_not_valid_is_not_judged_and_a_failure_counts_for_nothing(store: RunStore) -> None:
    failed = point(0, 0, valid=False, error="the server was gone")
    a = stored(store, point(100, 1), failed)
    b = stored(store, failed, point(200, 1, valid=False, reasons=("lagged",)))
    assert verdicts(store.diff(a, b)) == ["not valid"]
    unsettled = stored(store, point(200, 1, stable=False))
    assert verdicts(store.diff(a, unsettled)) == ["not stable"]
    assert verdicts(store.diff(a, a)) == ["too close to call"]


def test_other_configurations_and_places_are_named(store: RunStore) -> None:
    batching = {**CONFIG, "dynamic_batching": {"max_queue_delay_microseconds": 500}}
    a = stored(store, point(100, 1), cpu_model="one", load_1m=3)
    b = stored(store, point(100, 1, config=batching, inputs="random"), cpu_model="two", load_1m=9)
    found = store.diff(a, b)
    assert found.environment == {"cpu_model": ("one", "two")}, "the load of the moment is no difference of the place"
    assert any("different processors (one; two)" in note for note in found.notes)
    assert "different inputs were sent" in found.notes
    assert any("not equally busy: load 3 in" in note for note in found.notes)
    assert found.configs == {
        "max_batch_size 8 at concurrency 1": {"dynamic_batching.max_queue_delay_microseconds": (0, 500)}
    }
    assert found.to_json()["environment"] == {"cpu_model": ["one", "two"]}


def test_runs_with_nothing_in_common_say_so(store: RunStore) -> None:
    found = store.diff(stored(store, point(1, 1, size=2)), stored(store, point(1, 1, size=4)))
    assert found.figures == ()
    assert found.notes == ("no configuration and load is in both runs",)
    assert found.to_frame().empty


def test_how_long_classes_were_measured_does_not_keep_points_apart(store: RunStore) -> None:
    def mixed(**options: Any) -> Load:
        return Load.classes({"fast": Load.open(200, priority=1), "bulk": Load.closed(4, batch_size=2)}, **options)

    a = stored(store, point(100, 1, load=mixed(duration_s=1, seed=3)))
    b = stored(store, point(120, 1, load=mixed(duration_s=2, warmup_s=0.1, min_requests=5, requests=900)))
    found = store.diff(a, b)
    assert verdicts(found) == ["higher"]
    assert found.only_a == found.only_b == ()
    assert any("the windows differ: duration_s 1" in note for note in found.notes)
    other = stored(store, point(120, 1, load=Load.classes({"fast": Load.open(300, priority=1)})))
    assert verdicts(store.diff(a, other)) == []


def test_a_configuration_is_the_same_however_it_was_set(store: RunStore) -> None:
    """A profile of what is applied stands beside the point of a sweep that has set it."""
    profile = stored(store, point(100, 1, settings={}))
    sweep = stored(store, point(90, 1, size=4), point(120, 1, size=8))
    found = store.diff(profile, sweep)
    assert verdicts(found) == ["higher"]
    assert (found.only_a, found.only_b) == ((), ("max_batch_size 4 at concurrency 1",))
    assert verdicts(store.diff(sweep, profile)) == ["lower"]
    twice = stored(store, point(120, 1, settings={"max_batch_size": 8}), point(110, 1, settings={"name": "m"}))
    assert verdicts(store.diff(profile, twice)) == [], "which of the two is meant?"
