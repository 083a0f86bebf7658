"""Several generator processes that send one load."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import psutil
import pytest
from scripted_target import INPUTS, ScriptedServer

from workbench.errors import InternalError, InvalidRequest
from workbench.profiling import Load, MeasureOptions, Measurer, Samples, ServerTarget
from workbench.profiling.arrivals import arrivals
from workbench.profiling.driver import Job
from workbench.profiling.generators import Generators
from workbench.profiling.http_load import http_messages
from workbench.profiling.load import schedule
from workbench.profiling.merging import Share, merge, share_out
from workbench.profiling.plan import ClassPlan, Plan
from workbench.profiling.recorder import Recorder
from workbench.profiling.samples import MAX_TEXTS

ONE = Plan.plain(1)


def newest_child() -> int:
    """The generator that was started last."""
    # numbers alone begin anew after the last one; times are of a hundredth of a second
    return max(psutil.Process().children(), key=lambda child: (child.create_time(), child.pid)).pid


def job(server: ScriptedServer, load: Load) -> Job:
    return Job(load, server.url, "http", http_messages(server.url, "/v2/models/m/infer", [({}, b"{}")]))


@pytest.mark.parametrize("distribution", ["constant", "poisson"])
def test_the_parts_of_an_open_loop_are_the_arrivals_of_one(distribution: str) -> None:
    load = Load.open(2000, distribution, duration_s=10, seed=7, generators=3)  # type: ignore[arg-type]
    parts = share_out(load, ONE)
    assert np.array_equal(np.sort(np.concatenate([part.offsets for part in parts])), schedule(load))
    again = share_out(load, ONE)
    assert all(np.array_equal(a.offsets, b.offsets) for a, b in zip(parts, again, strict=True))
    if distribution == "poisson":
        # Each is a Poisson process of its own: gaps as variable as exponential ones, counts unrelated to the others'.
        counts = [np.bincount(part.offsets // 20_000_000, minlength=1000)[:1000] for part in parts]
        for part in parts:
            gaps = np.diff(part.offsets)
            assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.05)
        assert np.abs(np.corrcoef(counts) - np.eye(3)).max() < 0.1


def test_clients_are_divided_and_too_few_are_refused() -> None:
    parts = share_out(Load.closed(8, generators=3), ONE)
    assert [part.load.concurrency for part in parts] == [3, 3, 2]
    with pytest.raises(InvalidRequest, match="3 generators cannot divide 2 clients"):
        Load.closed(2, generators=3)


CLASSES = {"fast": Load.open(300), "slow": Load.open(60, "constant"), "bulk": Load.closed(4), "single": Load.closed(1)}
OF_CLASSES = Plan(tuple(ClassPlan(index, 1, name) for index, name in enumerate(CLASSES)))


def in_the_whole(share: Share) -> list[tuple[int, int]]:
    """When it sends, and of which class of the whole load."""
    return [
        (when, share.classes[mark]) for when, mark in zip(share.offsets.tolist(), share.marks.tolist(), strict=True)
    ]


def test_the_classes_of_a_mixed_load_are_divided_each_by_a_stream_of_its_own() -> None:
    load = Load.classes(CLASSES, duration_s=5, seed=11, generators=3)
    parts = share_out(load, OF_CLASSES)
    times, of = arrivals(load)
    assert sorted(when for part in parts for when in in_the_whole(part)) == sorted(zip(times, of, strict=True))
    names = [[name for name, _ in part.load.mix] for part in parts]
    assert [[kind.name for kind in part.plan.classes] for part in parts] == names
    clients = [sum(one.concurrency for _, one in part.load.mix if one.kind == "closed") for part in parts]
    assert sorted(clients) == [1, 2, 2]  # dealt out over both classes, one client of the single one in all
    assert sum("single" in own for own in names) == 1
    assert all({"fast", "slow"} <= set(own) for own in names)
    # Another class beside it changes nothing of who sends a class's arrivals.
    fewer = share_out(Load.classes({"fast": Load.open(300)}, duration_s=5, seed=11, generators=3), Plan.plain(1))
    for part, alone in zip(parts, fewer, strict=True):
        assert [when for when, index in in_the_whole(part) if index == 0] == alone.offsets.tolist()


def test_a_mixed_load_with_too_little_for_all_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="3 generators cannot divide 2 clients"):
        Load.classes({"a": Load.closed(1), "b": Load.closed(1)}, generators=3)
    sequences = Plan((ClassPlan(0, 4, "a", length=5),))
    with pytest.raises(InvalidRequest, match="3 generators cannot divide the 2 clients and sequences"):
        share_out(Load.classes({"a": Load.open(9, sequences=2)}, generators=3), sequences)


def test_three_generators_send_the_classes_that_one_would_send() -> None:
    parts = {"even": Load.open(150, "constant"), "poisson": Load.open(100), "loop": Load.closed(4)}
    fixed = {"duration_s": 0.6, "max_duration_s": 0.6, "warmup_s": 0.1, "max_warmup_s": 0.1, "seed": 5}
    load = Load.classes(parts, generators=3, **fixed)
    with ScriptedServer(lambda n: 0.02) as server, Measurer(ServerTarget(server.url), "m", inputs=INPUTS) as measurer:
        found = measurer.run(load)
    samples, (begin, end) = found.samples, found.samples.window
    times, of = arrivals(load)
    inside = (times >= int(0.1e9)) & (times < int(0.1e9) + end - begin)
    for index in (0, 1):
        mine = samples.scheduled[(samples.class_of == index) & (samples.scheduled >= begin) & (samples.scheduled < end)]
        assert np.array_equal(mine - begin, times[inside & (of == index)] - int(0.1e9))
    loop = samples.of_class(2)
    under_way = np.clip(np.minimum(loop.done, end) - np.maximum(loop.scheduled, begin), 0, None)
    assert under_way.sum() / (end - begin) == pytest.approx(4, rel=0.2)
    assert list(found.point.classes) == list(parts)
    assert sum(each.n for each in found.point.classes.values()) == found.point.n
    assert len(samples.extra["generators"]) == 3


def test_samples_are_merged_with_their_errors_and_responses() -> None:
    def samples(scheduled: list[int], status: list[int], texts: list[str], responses: list[int]) -> Samples:
        at = np.array(scheduled, np.int64)
        responses_at = at[responses] + 3 if responses else np.empty(0, np.int64)
        return Samples(
            at, at + 1, at + 5, np.array(status, np.int32), texts, (10, 100), cpu_s=0.5,
            response_of=np.array(responses, np.int64), response_at=responses_at,
        )  # fmt: skip

    merged = merge([samples([10, 30, 50], [0, 1, 0], ["no"], [0, 2]), samples([20, 40], [2, 1], ["no", "late"], [1])])
    assert merged.scheduled.tolist() == [10, 20, 30, 40, 50]
    assert merged.errors() == {"no": 2, "late": 1}
    assert [int(merged.scheduled[i]) for i in merged.response_of] == [10, 40, 50]
    assert merged.response_at.tolist() == [13, 43, 53]
    assert merged.cpu_s == 1.0
    assert [each["n"] for each in merged.extra["generators"]] == [3, 2]


def test_more_error_texts_than_are_kept_are_not_counted_for_another_ones() -> None:
    def failed(texts: list[str]) -> Samples:
        at = np.arange(1, len(texts) + 1)
        return Samples(at, at, at + 5, np.arange(1, len(texts) + 1, dtype=np.int32), texts, (0, 1000))

    merged = merge([failed([f"a{n}" for n in range(MAX_TEXTS)]), failed(["b1", "b2", "a63"])]).errors()
    assert merged["a62"] == 1
    assert merged["a63"] == 2
    assert sum(merged.values()) == MAX_TEXTS + 3
    assert [count for text, count in merged.items() if "another" in text] == [2]


def test_what_waited_for_its_sequence_is_no_lag_of_a_generator() -> None:
    def samples(scheduled: list[int], held: list[bool]) -> Samples:
        at = np.array(scheduled, np.int64)
        sent = at + np.where(held, 50_000_000, 1_000_000)
        return Samples(
            at, sent, sent + 5, np.zeros(len(at), np.int32), [], (0, 100), held=np.array(held, np.bool_)
        )  # fmt: skip

    merged = merge([samples([10, 30], [False, True]), samples([20], [True]), samples([40, 50], [False, False])])
    assert merged.held.tolist() == [False, True, True, False, False]
    assert [each["n"] for each in merged.extra["generators"]] == [1, 0, 2]
    assert merged.extra["generators"][0]["lag_p99_ms"] == 1.0


def test_sequences_are_divided_and_each_generator_draws_lengths_of_its_own() -> None:
    parts = [part.load for part in share_out(Load.open(100, generators=3, sequences=8), ONE)]
    assert [part.sequences for part in parts] == [3, 3, 2]
    assert len({part.seed for part in parts}) == 3
    assert len({part.load.seed for part in share_out(Load.closed(3, generators=3), ONE)}) == 3


def test_generators_keep_no_more_sequences_at_once_than_were_asked_for() -> None:
    """Two sequences of 20 ms a request give 100/s: of the 200/s that are due most wait, which no generator is to blame
    for."""
    fixed = {"duration_s": 0.6, "max_duration_s": 0.6, "warmup_s": 0.1, "max_warmup_s": 0.1, "sequence_length": 5}
    options = MeasureOptions(lag_limit_ms=50.0)
    with ScriptedServer(lambda n: 0.02) as server:
        server.config["sequence_batching"] = {}
        with Measurer(ServerTarget(server.url), "m", inputs=INPUTS, options=options) as measurer:
            measured = measurer.run(Load.open(200, "constant", sequences=2, generators=2, **fixed))  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="2 generators cannot divide 1 sequences"):
                measurer.measure(Load.open(200, sequences=1, generators=2, **fixed))  # type: ignore[arg-type]
    samples, point = measured.samples, measured.point
    sent = samples.sent > 0
    edges = np.concatenate([np.ones(sent.sum(), int), -np.ones(sent.sum(), int)])
    times = np.concatenate([samples.sent[sent], samples.done[sent]])
    assert np.cumsum(edges[np.lexsort((edges, times))]).max() == 2
    assert samples.held.sum() > 20
    assert point.p99_ms > 100  # from when they were due
    assert not any("was late" in reason for reason in point.reasons), point.reasons


def test_a_generator_tells_each_answer_once_and_forgets_none() -> None:
    now = 0
    recorder = Recorder(lambda: now)
    told: list[int] = []
    numbers: list[int] = []
    slow = recorder.new(5)  # answered last of all
    for span in range(1, 6):
        for now in range(10 * span, 10 * span + 10, 2):
            numbers.append(recorder.new(now))
            if len(numbers) % 3:
                recorder.finish(numbers[-1], None if len(numbers) % 4 else "failed")
        found = np.frombuffer(recorder.answers_between(10 * span, 10 * span + 5), np.int64).reshape(2, -1)
        told += found[0].tolist()
        now = 10 * span + 9
        for number in numbers:
            recorder.finish(number, None)
        found = np.frombuffer(recorder.answers_between(10 * span + 5, 10 * span + 10), np.int64).reshape(2, -1)
        told += found[0].tolist()
    now = 100
    recorder.finish(slow, None)
    found = np.frombuffer(recorder.answers_between(60, 101), np.int64).reshape(2, -1)
    assert found.tolist() == [[5], [100]]
    assert sorted(told) == [recorder.scheduled[n] for n in numbers if recorder.status[n] == 0]


def test_three_generators_add_up_to_the_load_that_was_asked_for() -> None:
    events: list[dict[str, object]] = []
    with ScriptedServer(lambda n: 0.02) as server, Generators() as generators:
        load = Load.open(300, duration_s=0.6, max_duration_s=0.6, warmup_s=0.1, max_warmup_s=0.3, generators=3)
        samples = generators.run(job(server, load), events.append)
        assert len(generators.pids) == 3
        begin, end = samples.window
        inside = (samples.scheduled >= begin) & (samples.scheduled < end)
        whole = schedule(load)
        expected = whole[(whole >= int(0.3e9)) & (whole < int(0.3e9) + end - begin)]
        assert np.array_equal(samples.scheduled[inside] - begin, expected - int(0.3e9))  # as of one, to the nanosecond
        assert samples.ok.all()
        assert ((samples.done - samples.sent) >= 19_000_000).all()
        assert [event["event"] for event in events if event["event"] != "progress"] == ["window", "window_end"]

        closed = generators.run(job(server, Load.closed(4, duration_s=0.3, warmup_s=0, generators=2)), events.append)
        assert closed.extra["connections"] == 4
        begin, end = closed.window
        under_way = np.clip(np.minimum(closed.done, end) - np.maximum(closed.scheduled, begin), 0, None)
        assert under_way.sum() / (end - begin) == pytest.approx(4, rel=0.2)  # however long each of them took


def test_one_that_hears_late_of_the_window_sends_no_arrivals_twice() -> None:
    resumed: list[threading.Timer] = []

    def pause(event: dict[str, object]) -> None:
        if event["event"] == "progress" and not resumed:
            last = psutil.Process(newest_child())
            last.suspend()
            resumed.append(threading.Timer(0.5, last.resume))
            resumed[0].start()

    with ScriptedServer(lambda n: 0.001) as server, Generators() as generators:
        load = Load.open(300, duration_s=1.0, max_duration_s=1.0, warmup_s=0.3, max_warmup_s=0.3, generators=2)
        samples = generators.run(job(server, load), pause)
    begin, end = samples.window
    inside = (samples.scheduled >= begin) & (samples.scheduled < end)
    whole = schedule(load)
    expected = whole[(whole >= int(0.3e9)) & (whole < int(0.3e9) + end - begin)]
    assert np.array_equal(samples.scheduled[inside] - begin, expected - int(0.3e9))
    assert samples.extra["generators"][1]["lag_p99_ms"] > 50  # and it is told how late they were


def test_one_that_is_killed_fails_the_point_and_the_others_data_are_kept() -> None:
    killed: list[int] = []
    with ScriptedServer(lambda n: 0.002) as server:
        measurer = Measurer(ServerTarget(server.url), "m", inputs=INPUTS, on_event=lambda event: kill(event))

        def kill(event: object) -> None:
            if isinstance(event, dict) and event["event"] == "window" and not killed:
                killed.append(newest_child())
                os.kill(killed[0], signal.SIGKILL)

        with measurer:
            load = Load.closed(4, duration_s=20, warmup_s=0.2, max_warmup_s=0.2, generators=2)
            measured = measurer.run(load)
            assert not measured.point.valid
            assert "load generator 2 of 2 ended during a run (exit code -9)" in measured.point.reasons
            assert measured.samples.ok.sum() > 10  # of the warm-up, from the other one
            assert measured.samples.seconds < 10
            again = measurer.measure(Load.closed(4, duration_s=0.3, warmup_s=0, generators=2, min_requests=0))
            assert again.n > 10
            assert not any("ended during" in reason for reason in again.reasons)


def test_when_all_die_it_is_an_error() -> None:
    with ScriptedServer() as server, Generators() as generators:

        def kill(event: dict[str, object]) -> None:
            if event["event"] == "window":
                for pid in generators.pids:
                    os.kill(pid, signal.SIGKILL)

        with pytest.raises(InternalError, match=r"generator 1 of 2 ended .*generator 2 of 2 ended"):
            generators.run(job(server, Load.closed(2, duration_s=20, generators=2)), kill)


def test_a_stop_keeps_what_all_of_them_have_measured() -> None:
    stop = threading.Event()
    with ScriptedServer(lambda n: 0.002) as server, Generators() as generators:

        def on_event(event: dict[str, object]) -> None:
            if event["event"] == "progress" and int(str(event["answered"])) > 20:
                stop.set()

        load = Load.open(400, duration_s=30, warmup_s=0, generators=2)
        samples = generators.run(job(server, load), on_event, stop)
    assert samples.stopped
    assert all(each["n"] > 0 for each in samples.extra["generators"])
    assert 0 < samples.seconds < 15


def test_the_verdict_names_the_one_that_was_late() -> None:
    """One of three sends late: in all stamps together p99 of the lag could still look well."""

    def pause(event: object) -> None:
        if isinstance(event, dict) and event["event"] == "window":
            last = psutil.Process(newest_child())
            last.suspend()
            threading.Timer(0.3, last.resume).start()

    load = Load.open(300, duration_s=0.8, max_duration_s=0.8, warmup_s=0.1, max_warmup_s=0.1, generators=3)
    options = MeasureOptions(lag_limit_ms=20.0)
    with ScriptedServer(lambda n: 0.001) as server:
        target = ServerTarget(server.url)
        with Measurer(target, "m", inputs=INPUTS, on_event=pause, options=options) as measurer:
            point = measurer.measure(load)
    assert not point.valid
    late = [reason for reason in point.reasons if "was late" in reason]
    assert any(reason.startswith("load generator 3 of 3 was late") for reason in late)
