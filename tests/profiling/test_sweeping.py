from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_target import INPUTS, ScriptedServer, ScriptedTarget

from workbench.config import Edit
from workbench.errors import ConfigError, InvalidRequest
from workbench.profiling import Load, Point, Progress, SweepJob, SweepOptions, SweepResult, sweep
from workbench.records import RunStore

FAST = {"duration_s": 0.15, "warmup_s": 0.02, "min_requests": 0, "drain_s": 1.0}
GRID = {"max_batch_size": [4, 8], "x.delay": [0, 5]}


@pytest.fixture
def server() -> object:
    with ScriptedServer(lambda n: 0.002) as scripted:
        original = dict(scripted.config)
        yield scripted
        assert scripted.config == original, "the configuration was not restored"


def test_every_combination_is_measured_and_the_configuration_restored(server: ScriptedServer, tmp_path: Path) -> None:
    target = ScriptedTarget(server)
    heard: list[Progress] = []
    store = RunStore(tmp_path)
    loads = [Load.closed(1, **FAST), Load.open(200, **FAST)]
    result = sweep(target, "m", GRID, loads, inputs=INPUTS, store=store, on_progress=heard.append)
    assert len(result) == result.total == 8
    assert [point.settings for point in result[::2]] == [
        {"max_batch_size": size, "x.delay": delay} for size in (4, 8) for delay in (0, 5)
    ]
    # read back from the server, not what was asked for
    assert [point.config["max_batch_size"] for point in result] == [4] * 4 + [8] * 4
    assert target.calls[-1] == "restore"
    assert [(progress.done, progress.total) for progress in heard] == [(n, 8) for n in range(9)]
    assert heard[0].eta_s > 0
    assert heard[-1].eta_s == 0
    assert result.status == "done"
    frame = result.to_frame()
    assert frame["x.delay"].tolist() == [0, 0, 5, 5, 0, 0, 5, 5]
    assert frame["load"].tolist() == ["closed", "open"] * 4
    with store.open(result.run_id) as run:
        assert run.info.status == "done"
        assert len(run.keys()) == 8
        assert run.frame()["throughput"].tolist() == frame["throughput"].tolist()
        assert len(run.configs()) == 4
        assert Point.from_json(run.points()[0]).settings == result[0].settings


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of file sizes there")
def test_a_store_that_takes_no_more_loses_no_point(server: ScriptedServer, tmp_path: Path) -> None:
    import resource

    store = RunStore(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_the_disk(progress: Progress) -> None:
        if progress.done == 1:
            size = max(path.stat().st_size for path in tmp_path.iterdir())
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    grid = {"max_batch_size": [4, 8, 16]}
    options = SweepOptions(keep_samples=True)
    loads = [Load.closed(1, **FAST)]
    try:
        result = sweep(
            ScriptedTarget(server), "m", grid, loads,
            inputs=INPUTS, store=store, on_progress=fill_the_disk, options=options,
        )  # fmt: skip
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [point.config["max_batch_size"] for point in result] == [4, 8, 16]
    assert not any(point.error for point in result)
    assert "nothing was stored: the run cannot be written" in result.error
    assert result.restored
    assert "nothing was stored" in repr(result)
    assert store.open(result.run_id).info.points >= 1


def test_a_refused_configuration_is_a_row_with_its_reason(server: ScriptedServer) -> None:
    target = ScriptedTarget(server)
    target.refuse = 7
    result = sweep(target, "m", {"max_batch_size": [7, 8]}, [Load.closed(1, **FAST)], inputs=INPUTS)
    assert [bool(point.error) for point in result] == [True, False]
    assert "refused by the script" in result[0].error
    assert result[0].verdict == "failed"
    assert result.to_frame()["verdict"].tolist()[0] == "failed"
    best = result.best()
    assert best is None or best is result[1]


def test_a_wrong_input_is_a_row_with_its_reason(server: ScriptedServer) -> None:
    load = Load.closed(1, batch_size=2, **FAST)
    result = sweep(ScriptedTarget(server), "m", {"max_batch_size": [0, 8]}, [load])
    assert "takes no batches" in result[0].error
    assert not result[1].error


def test_stopping_keeps_what_was_measured_and_restores(server: ScriptedServer, tmp_path: Path) -> None:
    stop = threading.Event()

    def on_progress(progress: Progress) -> None:
        if progress.done == 2:
            stop.set()

    store = RunStore(tmp_path)
    result = sweep(
        ScriptedTarget(server), "m", GRID, [Load.closed(1, **FAST)],
        inputs=INPUTS, store=store, stop=stop, on_progress=on_progress,
    )  # fmt: skip
    assert len(result) == 2
    assert result.stopped
    assert store.list()[0].status == "stopped"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_an_exception_restores_and_keeps_what_was_measured(
    server: ScriptedServer, tmp_path: Path, kind: type[BaseException]
) -> None:
    def on_progress(progress: Progress) -> None:
        if progress.done == 2:
            raise kind("in the middle")

    store = RunStore(tmp_path)

    def run() -> SweepResult:
        return sweep(
            ScriptedTarget(server), "m", GRID, [Load.closed(1, **FAST)],
            inputs=INPUTS, store=store, on_progress=on_progress,
        )  # fmt: skip

    if kind is KeyboardInterrupt:
        assert len(run()) == 2  # Ctrl-C in a cell gives what there is
    else:
        with pytest.raises(RuntimeError):
            run()
    assert store.list()[0].points == 2


def test_a_server_that_dies_ends_the_sweep_with_what_was_measured() -> None:
    server = ScriptedServer(lambda n: 0.002)

    def on_progress(progress: Progress) -> None:
        if progress.done == 1:
            server.close()

    result = sweep(
        ScriptedTarget(server), "m", GRID, [Load.closed(1, **FAST)], inputs=INPUTS, on_progress=on_progress
    )  # fmt: skip
    assert not result[0].error
    assert 2 <= len(result) <= 3
    assert result.status == "failed"
    assert "no server answers" in result.error


def test_a_job_runs_in_the_background_and_stops_at_once(server: ScriptedServer) -> None:
    first = threading.Event()
    job = SweepJob(
        ScriptedTarget(server), "m", {"max_batch_size": [1, 2, 4]}, [Load.closed(1, duration_s=0.2, warmup_s=0.0)],
        inputs=INPUTS, on_progress=lambda progress: first.set() if progress.done else None,
    )  # fmt: skip
    assert not job.running
    job.start()
    with pytest.raises(InvalidRequest, match="already"):
        job.start()
    assert first.wait(10)
    assert job.running
    assert len(job.points) >= 1
    begin = time.monotonic()
    result = job.stop(timeout_s=10)
    assert time.monotonic() - begin < 3
    assert result is not None
    assert result.stopped
    assert job.done
    assert job.result is result
    assert job.progress.total == 3


def test_a_listener_that_raises_does_not_end_a_job(server: ScriptedServer) -> None:
    def broken(progress: Progress) -> None:
        raise ValueError

    job = SweepJob(
        ScriptedTarget(server), "m", {}, [Load.closed(1, **FAST)], inputs=INPUTS, on_progress=broken
    )  # fmt: skip
    result = job.start().wait(20)
    assert result is not None
    assert len(result) == 1


def test_samples_are_kept_on_request(server: ScriptedServer, tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    options = SweepOptions(keep_samples=True, title="with stamps")
    result = sweep(
        ScriptedTarget(server), "m", {}, [Load.closed(1, **FAST)], inputs=INPUTS, store=store, options=options
    )
    with store.open("latest") as run:
        assert run.info.title == "with stamps"
        samples = run.samples(1)
        assert len(samples["sent"]) >= result[0].n


def _point(throughput: float, p99: float, **changes: object) -> Point:
    values: dict[str, object] = {
        "model": "m", "load": Load.closed(1), "valid": True, "n": 100, "throughput": throughput, "p99_ms": p99,
        "throughput_low": throughput - 5, "throughput_high": throughput + 5,
    }  # fmt: skip
    return Point(**{**values, **changes})  # type: ignore[arg-type]


def test_best_meets_the_goal_and_prefers_the_lower_tail_when_too_close_to_call() -> None:
    points = (
        _point(500, 50),
        _point(400, 9),
        _point(398, 5),
        _point(300, 1),
        _point(900, 1, valid=False),
        _point(800, 1, failed=3),
    )
    result = SweepResult("m", {}, points, 6)
    assert result.best() is points[0]
    assert result.best(p99_ms=10) is points[2]
    assert result.best(p99_ms=2) is points[3]
    assert result.best(p99_ms=0.5) is None
    wide = _point(200, 1, throughput_high=600.0)
    assert SweepResult("m", {}, (*points, wide), 7).best() is points[0], "an interval that wide is no throughput"


@pytest.mark.parametrize("grid", [{"a": []}, {"a": "text"}, {"a": 3}])
def test_a_grid_that_makes_no_sense_is_refused(grid: dict[str, object]) -> None:
    with ScriptedServer() as server, pytest.raises(InvalidRequest, match="list of values for 'a'"):
        sweep(ScriptedTarget(server), "m", grid, [Load.closed(1)])  # type: ignore[arg-type]


def test_save_writes_a_result_afterwards(tmp_path: Path) -> None:
    result = SweepResult("m", {"a": [1]}, (_point(1, 1),), 1)
    store = RunStore(tmp_path)
    run_id = result.save(store, title="later")
    assert store.open(run_id).frame()["p99_ms"].tolist() == [1.0]


def test_a_sweep_that_was_broken_off_is_resumed_without_repeating(server: ScriptedServer, tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    stop = threading.Event()
    loads = [Load.closed(1, **FAST)]

    def on_progress(progress: Progress) -> None:
        if progress.done == 2:
            stop.set()

    def target(*, files: bool = True) -> ScriptedTarget:
        return ScriptedTarget(server, repositories=[tmp_path / "repository"] if files else [])

    weights = tmp_path / "repository" / "m" / "1" / "weights"
    weights.parent.mkdir(parents=True)
    weights.write_text("one")
    first = sweep(target(), "m", GRID, loads, inputs=INPUTS, store=store, stop=stop, on_progress=on_progress)
    options = SweepOptions(resume=first.run_id)
    second = sweep(target(), "m", GRID, loads, inputs=INPUTS, store=store, options=options)
    assert second.run_id == first.run_id
    assert len(second) == 4
    assert [point.settings for point in second] == [
        {"max_batch_size": size, "x.delay": delay} for size in (4, 8) for delay in (0, 5)
    ]
    for before, after in zip(first, second, strict=False):
        assert not before.valid or after.throughput == before.throughput
    with store.open(first.run_id) as run:
        assert len(run.points()) == 4, "what was measured again takes the place of what was not valid"
        assert run.info.status == "done"
    # Another seed is another point.
    other = [Load.closed(1, seed=99, **FAST)]
    third = sweep(target(), "m", {"max_batch_size": [4]}, other, inputs=INPUTS, store=store, options=options)
    measured = {point.throughput for point in second}
    assert third[0].throughput not in measured
    # Neither is a point of other weights, nor of weights that are somewhere else.
    weights.write_text("two")
    for again in (target(), target(files=False)):
        (point,) = sweep(
            again, "m", {"max_batch_size": [4], "x.delay": [0]}, loads, inputs=INPUTS, store=store, options=options
        )
        assert point.throughput not in measured


def test_an_interrupt_while_restoring_does_not_keep_it_from_restoring(server: ScriptedServer) -> None:
    import os
    import signal

    class Slow(ScriptedTarget):
        def restore(self, model: str) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
            super().restore(model)

    result = sweep(Slow(server), "m", {"max_batch_size": [4]}, [Load.closed(1, **FAST)], inputs=INPUTS)
    assert result.restored


class StalledOnce(ScriptedTarget):
    """Its front end stood still during the first measurement, and never after."""

    asked = 0

    def loop_stalls(self) -> list[tuple[int, float]]:
        self.asked += 1
        # The stalled time lies in the middle of the window that has just ended.
        return [(time.monotonic_ns() - 60_000_000, 50.0)] if self.asked == 1 else []


@pytest.mark.parametrize(("attempts", "valid"), [(1, False), (2, True)])
def test_a_disturbed_point_is_measured_again(server: ScriptedServer, attempts: int, valid: bool) -> None:
    options = SweepOptions(attempts=attempts)
    (point,) = sweep(StalledOnce(server), "m", {}, [Load.closed(1, **FAST)], inputs=INPUTS, options=options)
    assert point.valid is valid, point.reasons
    assert any("measured again" in note and "stood still" in note for note in point.notes) is valid


class LoadedByOthers(ScriptedTarget):
    """Somebody loads the model with values of his own in the first window; not all servers number the loads."""

    numbered, loads = True, 0

    def epoch(self, model: str) -> int | None:
        return super().epoch(model) if self.numbered else None

    def loop_stalls(self) -> list[tuple[int, float]]:
        if self.loads:
            return []
        self.loads += 1
        self.server.config = {**self.server.config, "max_batch_size": 77}
        self.reloaded()
        return [(time.monotonic_ns() - 60_000_000, 50.0)]


@pytest.mark.parametrize("numbered", [True, False])
def test_a_point_is_measured_again_under_its_own_configuration(server: ScriptedServer, numbered: bool) -> None:
    target = LoadedByOthers(server)
    target.numbered = numbered
    (point,) = sweep(target, "m", {"max_batch_size": [4]}, [Load.closed(1, **FAST)], inputs=INPUTS)
    assert target.loads == 1
    assert point.config["max_batch_size"] == 4
    assert point.valid, point.reasons
    assert any("measured again" in note for note in point.notes)


def test_a_point_whose_configuration_reads_otherwise_is_not_valid(server: ScriptedServer, tmp_path: Path) -> None:
    class Deaf(ScriptedTarget):
        def configure(self, model: str, edits: Sequence[Edit]) -> None:
            super().configure(model, [replace(edit, value=77) for edit in edits])

    store = RunStore(tmp_path)
    result = sweep(Deaf(server), "m", {"max_batch_size": [4]}, [Load.closed(1, **FAST)], inputs=INPUTS, store=store)
    (point,) = result
    assert not point.valid
    assert not point.stable
    assert "max_batch_size was set to 4, the server says 77" in point.reasons
    assert result.best() is None
    with store.open(result.run_id) as run:
        assert run.keys() == {""}, "a run that is resumed would take it for a point of the other configuration"


def test_a_point_that_cannot_be_configured_again_keeps_why_it_was_not_valid(server: ScriptedServer) -> None:
    class Once(StalledOnce):
        def configure(self, model: str, edits: Sequence[Edit]) -> None:
            if self.calls:
                raise ConfigError("refused by the script")
            super().configure(model, edits)

    (point,) = sweep(Once(server), "m", {"max_batch_size": [4]}, [Load.closed(1, **FAST)], inputs=INPUTS)
    assert not point.valid
    assert any("stood still" in reason for reason in point.reasons)
    assert any("not measured again" in note and "refused by the script" in note for note in point.notes)


def test_a_printed_sweep_says_why_points_failed() -> None:
    failed = replace(_point(0, 0), valid=False, error="the configuration was refused: why")
    assert repr(SweepResult("m", {"a": [1]}, (failed, failed), 2)).count("the configuration was refused: why") == 1
