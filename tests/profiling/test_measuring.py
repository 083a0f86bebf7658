from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_target import ERROR, INPUTS, ScriptedServer

from workbench.errors import ConnectionFailed, InvalidRequest
from workbench.profiling import Load, Measurer, Point, ServerTarget, measure
from workbench.profiling.intervals import nearest_rank


def short(**changes: object) -> dict[str, object]:
    options = {"duration_s": 0.4, "warmup_s": 0.05, "min_requests": 0, "drain_s": 2.0, **changes}
    return {"max_duration_s": options["duration_s"], **options}


def test_scripted_latencies_come_back_as_their_percentiles() -> None:
    # Of twenty requests sixteen take 10 ms, three 40 ms, one 80 ms: p50, p90 and p99 are known.
    script = [0.010] * 16 + [0.040] * 3 + [0.080]
    load = Load.open(400, "constant", **short(duration_s=1.0))
    for _ in range(5):  # a busy machine makes a point not valid, and that is said; then it is measured again
        with ScriptedServer() as control:  # what the way there and back adds on this machine, now
            way = measure(ServerTarget(control.url), "m", load, inputs=INPUTS)
        with ScriptedServer(lambda n: script[n % 20]) as server:
            point = measure(ServerTarget(server.url), "m", load, inputs=INPUTS)
            took = np.sort(server.took_ms)
        assert point.n == pytest.approx(400, abs=2)
        assert point.failed == 0
        if point.verdict == "valid":
            break
    for q, asked_ms in ((50, 10), (90, 40), (99, 80)):
        kept = nearest_rank(took, q / 100)
        assert kept >= asked_ms - 0.5  # the script's own timer ends up to half a millisecond early
        found = getattr(point, f"p{q}_ms")
        assert asked_ms - 0.5 <= found <= kept + max(2.0, 3 * way.p99_ms), (kept, way.p99_ms)
    for name in ("mean", "p50", "p90", "p95", "p99"):  # of 400 none bounds p99 from above
        figure, low, high = (getattr(point, f"{name}_{part}") for part in ("ms", "low", "high"))
        assert low <= figure, name
        assert figure <= high or (name == "p99" and math.isnan(high)), name
    assert point.throughput == pytest.approx(400, rel=0.05)
    assert point.littles_law == pytest.approx(1, abs=0.1)
    # What the server says of itself, whatever the client saw.
    assert point.compute_infer_ms == pytest.approx(took.mean(), abs=3)
    assert point.mean_batch == 1.0
    assert point.batch_rows == {1: pytest.approx(400, abs=40)}


def test_the_rate_of_an_open_loop_is_held_although_the_server_is_slow() -> None:
    with ScriptedServer(lambda n: 0.3) as server:
        load = Load.open(300, "poisson", **short(seed=3))
        with Measurer(ServerTarget(server.url), "m", inputs=INPUTS) as measurer:
            measured = measurer.run(load)
    samples = measured.samples
    inside = (samples.scheduled >= samples.window[0]) & (samples.scheduled < samples.window[1])
    assert inside.sum() == pytest.approx(120, abs=4 * math.sqrt(120))
    assert (samples.sent[inside] > 0).all()
    assert samples.extra["connections"] > 60  # 300/s × 0.3 s are under way at once
    assert measured.point.n == inside.sum()
    assert 299 <= measured.point.p50_ms < np.median(server.took_ms) + 40


def test_a_stall_shows_from_the_scheduled_time() -> None:
    """A closed loop sends nothing while the server stalls; an open one shows what users would have felt."""
    with ScriptedServer(lambda n: 0.001) as server:
        target = ServerTarget(server.url)
        load = Load.open(200, "constant", **short(duration_s=1.0))

        def stall(event: object) -> None:
            if isinstance(event, dict) and event["event"] == "window":
                server.stall_until = time.monotonic() + 0.4

        point = measure(target, "m", load, inputs=INPUTS, on_event=stall)
    assert point.p99_ms > 300
    assert point.p90_ms > 200  # four tenths of the requests waited up to 400 ms
    assert point.p50_ms < 100
    assert not point.stable


def test_errors_are_counted_by_their_text() -> None:
    with ScriptedServer(lambda n: -0.001 if n % 4 == 0 else 0.001) as server:
        point = measure(ServerTarget(server.url), "m", Load.closed(4, **short()), inputs=INPUTS)
        assert point.failed > 5
        assert list(point.errors) == [ERROR]
        assert f"failed      {ERROR}" in repr(point)
        assert point.n > point.failed
        assert server.received == server.success + server.fail
    assert any("requests failed" in note for note in point.notes)
    with ScriptedServer(lambda n: -0.001) as server:
        point = measure(ServerTarget(server.url), "m", Load.closed(4, **short()), inputs=INPUTS)
    assert f"no request was answered: {ERROR}" in point.reasons


def test_conservation_is_checked_against_the_server() -> None:
    with ScriptedServer(lambda n: 0.002) as server:

        def meddle(event: object) -> None:
            if isinstance(event, dict) and event["event"] == "window":
                server.success += 500

        point = measure(ServerTarget(server.url), "m", Load.closed(2, **short()), inputs=INPUTS, on_event=meddle)
    assert not point.valid
    assert any("others used the model" in reason for reason in point.reasons)


def test_the_users_of_a_model_do_not_disturb_a_load_on_its_neighbour() -> None:
    """What a model's configuration does to another one is measured while its own users go on."""
    with ScriptedServer(lambda n: 0.002) as server:

        def others(event: object) -> None:
            if isinstance(event, dict) and event["event"] == "window":
                server.success += 500

        load = Load.closed(2, model="neighbour", **short())
        point = measure(ServerTarget(server.url), "m", load, inputs=INPUTS, on_event=others)
    assert point.n > 0
    assert not any("used the model" in reason for reason in point.reasons)


def test_a_reload_in_between_makes_the_point_invalid() -> None:
    with ScriptedServer(lambda n: 0.002) as server:

        def reload(event: object) -> None:
            if isinstance(event, dict) and event["event"] == "window":
                server.success = server.busy_ns = 0

        load = Load.closed(2, **short(warmup_s=0.6))
        point = measure(ServerTarget(server.url), "m", load, inputs=INPUTS, on_event=reload)
    assert not point.valid
    assert any("statistics were reset" in reason for reason in point.reasons)
    assert math.isnan(point.queue_ms)


def test_a_late_generator_makes_the_point_invalid() -> None:
    from workbench.profiling import MeasureOptions

    with ScriptedServer() as server:
        strict = MeasureOptions(lag_limit_ms=0.0, lag_share=0.0)
        point = measure(ServerTarget(server.url), "m", Load.open(200, **short()), inputs=INPUTS, options=strict)
    assert not point.valid
    assert any("load generator was late" in reason for reason in point.reasons)


def test_a_server_without_statistics_is_measured_from_outside() -> None:
    with ScriptedServer(lambda n: 0.002, statistics=False) as server:
        point = measure(ServerTarget(server.url), "m", Load.closed(2, **short()), inputs=INPUTS)
    assert point.valid
    assert point.n > 10
    assert math.isnan(point.queue_ms)
    assert any("gives no statistics" in note for note in point.notes)


def test_overload_is_said() -> None:
    with ScriptedServer() as server:
        server.script = lambda n: 0.01 * max(0, n)  # each waits longer than the one before
        point = measure(
            ServerTarget(server.url), "m", Load.open(100, "constant", **short(duration_s=0.8)), inputs=INPUTS
        )
    assert not point.stable
    assert any("overload" in reason for reason in point.reasons)


def test_requests_that_are_refused_at_once_are_no_overload() -> None:
    with ScriptedServer(lambda n: -0.001 if n % 2 == 0 else 0.001) as server:
        load = Load.open(200, "constant", **short(duration_s=0.8))
        point = measure(ServerTarget(server.url), "m", load, inputs=INPUTS)
    (reason,) = [reason for reason in point.reasons if "offered" in reason]
    assert "overload" not in reason
    assert "the others failed" in reason


def test_nobody_there_is_an_error_at_once() -> None:
    with ScriptedServer() as server:
        url = server.url
    with pytest.raises(ConnectionFailed, match="no server answers"):
        measure(ServerTarget(url), "m", Load.closed(1, **short()), inputs=INPUTS)


def test_a_silent_server_is_given_up_after_the_drain() -> None:
    with ScriptedServer(lambda n: 60.0, statistics=False) as server:
        point = measure(ServerTarget(server.url), "m", Load.closed(3, **short(drain_s=0.2)), inputs=INPUTS)
    assert point.failed == 3
    assert not point.valid
    assert "no answer 0.2 s after the end" in next(iter(point.errors))


def test_stopping_keeps_what_was_measured() -> None:
    stop = threading.Event()
    with ScriptedServer(lambda n: 0.002) as server:

        def after_window(event: object) -> None:
            if isinstance(event, dict) and event["event"] == "progress" and event["answered"] > 50:
                stop.set()

        begin = time.monotonic()
        load = Load.closed(2, duration_s=60, warmup_s=0)
        point = measure(ServerTarget(server.url), "m", load, inputs=INPUTS, stop=stop, on_event=after_window)
        assert time.monotonic() - begin < 10
    assert point.n >= 50
    assert not point.valid
    assert "stopped" in point.reasons[0]


def test_the_window_grows_until_there_are_enough_requests() -> None:
    with ScriptedServer(lambda n: 0.05) as server:
        load = Load.closed(1, duration_s=0.1, warmup_s=0.0, min_requests=8, max_duration_s=2.0)
        point = measure(ServerTarget(server.url), "m", load, inputs=INPUTS)
    assert point.n >= 8
    assert 0.35 < point.duration_s < 2.5


def test_fewer_requests_than_were_asked_for_are_not_enough() -> None:
    window = {"duration_s": 0.2, "max_duration_s": 0.2, "warmup_s": 0.0}
    with ScriptedServer(lambda n: 0.02) as server:
        asked, default, had, opened = (
            measure(ServerTarget(server.url), "m", load, inputs=INPUTS)
            for load in (
                Load.closed(1, **window, min_requests=1000),
                Load.closed(1, **window),
                Load.closed(1, **window, min_requests=3),
                Load.open(100, "constant", **window, min_requests=1000),
            )
        )
    for point in (asked, opened):
        assert not point.valid
        assert any("requests in the window, at least 1000 were asked for" in reason for reason in point.reasons)
    assert default.valid, default.reasons
    assert any(f"{default.n} requests in the window, by default it is to have 100" in note for note in default.notes)
    assert had.valid, had.reasons
    assert not [text for text in (*had.reasons, *had.notes) if "requests in the window" in text]


def test_inputs_come_from_the_model_directory(tmp_path: Path) -> None:
    model = tmp_path / "m"
    model.mkdir()
    (model / "example_inputs.json").write_text(json.dumps({"data": [{"X": [1, 2, 3, 4]}, {"X": [5, 6, 7, 8]}]}))
    with ScriptedServer() as server:
        target = ServerTarget(server.url, repositories=[tmp_path])
        point = measure(target, "m", Load.closed(1, **short(batch_size=2)))
        bodies = b"".join(server.bodies)
    assert point.inputs == "example_inputs.json"
    assert np.arange(1, 9, dtype=np.float32).tobytes() in bodies
    assert point.throughput == pytest.approx(2 * point.n / point.duration_s, rel=0.01)


def test_random_inputs_are_said_to_be_random() -> None:
    with ScriptedServer() as server:
        point = measure(ServerTarget(server.url), "m", Load.closed(1, **short()))
        assert len(server.bodies) == 16  # different requests in rotation
    assert point.inputs == "random"
    assert any("random numbers" in note for note in point.notes)


def test_a_load_shows_what_it_sends_and_for_how_long() -> None:
    parts = {"interactive": Load.open(20, priority=1), "bulk": Load.closed(2, batch_size=8)}
    assert repr(Load.classes(parts, duration_s=3)).splitlines() == [
        "Load, 3 to 6 s after 0.5 to 5 s of warm-up, seed 1:",
        "  interactive: 20/s poisson priority 1",
        "  bulk: concurrency 2 × 8 rows",
    ]


def test_the_same_seed_gives_the_same_arrivals() -> None:
    from workbench.profiling.load import schedule

    load = Load.open(500, seed=9)
    assert (schedule(load) == schedule(Load.open(500, seed=9))).all()
    assert not np.array_equal(schedule(load)[:100], schedule(Load.open(500, seed=10))[:100])
    gaps = np.diff(schedule(Load.open(1000, duration_s=20))) / 1e9
    assert gaps.mean() == pytest.approx(0.001, rel=0.05)
    assert gaps.std() == pytest.approx(0.001, rel=0.05)  # exponential: deviation equals mean


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "half"},
        {"concurrency": 0},
        {"kind": "open"},
        {"duration_s": 0},
        {"batch_size": 0},
        {"distribution": "x"},
        {"streaming": "no"},
        {"parameters": [1]},
        {"concurrency": 2.5},
        {"concurrency": True},
    ],
)
def test_loads_that_make_no_sense_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        Load(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, 1e308, 10**30, "3", None, [], b"x"], ids=repr)
def test_no_number_of_a_load_is_nan_infinite_huge_negative_or_something_else(value: object) -> None:
    """Each would hang a generator, fill the memory, or fail somewhere inside: the option is named at once."""
    numbers = [item.name for item in fields(Load) if isinstance(item.default, int | float)]
    assert len(numbers) > 20
    for name in numbers:
        with pytest.raises(InvalidRequest, match=name):
            Load(kind="open", **{"rate": 10.0, name: value})  # type: ignore[arg-type]


def test_numbers_of_numpy_are_taken_as_numbers() -> None:
    load = Load.closed(np.int64(4), duration_s=np.float32(0.5), seed=np.uint8(3))
    assert json.loads(json.dumps(load.to_json()))["concurrency"] == 4


def test_a_point_survives_json() -> None:
    with ScriptedServer(lambda n: 0.002) as server:
        point = measure(ServerTarget(server.url), "m", Load.closed(2, **short()), inputs=INPUTS)
    back = Point.from_json(json.loads(json.dumps(point.to_json())))
    assert back.row().keys() == point.row().keys()
    assert back.throughput == point.throughput
    assert back.batch_rows == point.batch_rows
    assert math.isnan(back.p99_high) == math.isnan(point.p99_high)
    assert point.config["max_batch_size"] == 8
    assert point.environment["cpus"] >= 1
    assert "infer/s" in repr(point)


@pytest.mark.parametrize(("stall_ms", "valid"), [(5.0, True), (200.0, False)])
def test_stalls_of_the_servers_loop_are_said_and_judged(stall_ms: float, valid: bool) -> None:
    asked: list[int] = []

    class Stalling(ServerTarget):
        def statistics(self, model: str) -> Any:
            asked.append(time.monotonic_ns())  # before the load, at the window's two edges, at the end
            return super().statistics(model)

        def loop_stalls(self) -> list[tuple[int, float]]:
            return [(asked[1], stall_ms), (asked[1] - 10**12, 5000.0)]  # the second one was long before

    with ScriptedServer(lambda n: 0.002) as server:
        point = measure(Stalling(server.url), "m", Load.closed(2, **short()), inputs=INPUTS)
    said = [text for text in (*point.reasons, *point.notes) if "stood still 1 times" in text]
    assert len(said) == 1
    assert (said[0] in point.notes) is valid
    assert point.valid is valid


def test_a_stop_before_the_start_gives_an_empty_point() -> None:
    stop = threading.Event()
    stop.set()
    with ScriptedServer(lambda n: 0.002) as server:
        for load in (Load.closed(2, **short()), Load.open(100, **short())):
            point = measure(ServerTarget(server.url), "m", load, inputs=INPUTS, stop=stop)
            assert not point.valid
            assert "stopped" in point.reasons[0]
            assert point.row()["verdict"] == "not valid"
