"""A server, or its model, that is lost while it is measured: the point is a row, with its reason and its samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from onnx_models import add_model
from scripted_target import INPUTS, ScriptedServer, ScriptedTarget

import workbench as wb
from workbench.profiling import ABOptions, Load, Measurer, ServerTarget, ab, sweep
from workbench.records.runs import RunStore
from workbench.session.measuring import SessionTarget
from workbench.session.server import Server

LONG = Load.closed(2, duration_s=60, warmup_s=0.0)
SHORT = Load.closed(2, duration_s=0.3, max_duration_s=0.3, warmup_s=0.0, min_requests=0)


def after(answers: int, act: Callable[[], object], *, at: str = "progress") -> Callable[[Any], None]:
    """Hears of a measurement, and acts once so many requests have been answered, or at an edge of the window."""
    left = [True]

    def heard(event: Any) -> None:
        if left and event["event"] == at and event.get("answered", answers) >= answers:
            left.clear()
            act()

    return heard


@pytest.mark.parametrize("at", ["progress", "window_end"])
def test_a_server_lost_in_the_middle_gives_what_was_measured(at: str) -> None:
    began = time.monotonic()
    with ScriptedServer(lambda n: 0.002) as server:
        target = ServerTarget(server.url)
        with Measurer(target, "m", inputs=INPUTS, on_event=after(50, server.close, at=at)) as measurer:
            found = measurer.run(LONG if at == "progress" else SHORT)
    assert time.monotonic() - began < 30
    point = found.point
    assert point.verdict == "not valid"
    assert not point.error
    assert ("the server was lost" if at == "progress" else "does not tell any more") in point.reasons[0]
    assert point.n >= 50
    assert point.p50_ms >= 1.5
    assert found.samples.ok.sum() >= point.n
    assert found.lost == point.reasons[0]


def test_a_sweep_whose_server_is_lost_keeps_the_point_that_was_under_way(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    with ScriptedServer(lambda n: 0.002) as server:
        target = ScriptedTarget(server)

        def until_the_long_one(n: int) -> float:
            if any(progress.done == 1 for progress in heard) and n - started[0] > 100:
                server.die()
            return 0.002

        heard: list[Any] = []
        started = [0]

        def on_progress(progress: Any) -> None:
            heard.append(progress)
            started[0] = server.received

        server.script = until_the_long_one
        grid = {"max_batch_size": [4]}
        loads = [SHORT, LONG, SHORT, SHORT]
        result = sweep(target, "m", grid, loads, inputs=INPUTS, store=store, on_progress=on_progress)
    assert result.status == "failed"
    first, cut, *_ = result
    assert first.verdict == "valid" or first.n > 10
    assert cut.n >= 90
    assert not cut.valid
    assert "the server was lost" in cut.reasons[0]
    assert len(result) < len(loads), "it goes on for nothing"
    with store.open(result.run_id) as run:  # the row is there, and is measured again by a sweep that goes on
        points = run.points()
        assert [stored["n"] for stored in points] == [point.n for point in result]
        assert not points[1]["key"]


def test_an_ab_whose_server_is_lost_keeps_its_blocks() -> None:
    with ScriptedServer(lambda n: 0.002) as server:
        target = ScriptedTarget(server)
        blocks: list[Any] = []

        def die_in_the_third(n: int) -> float:
            if len(blocks) == 2 and server.received > ended[-1] + 100:
                server.die()
            return 0.002

        ended: list[int] = []

        def on_block(block: Any) -> None:
            blocks.append(block)
            ended.append(server.received)

        server.script = die_in_the_third
        load = Load.closed(2, duration_s=0.4, warmup_s=0.0, min_requests=0)
        result = ab(
            target, "m", {}, {"max_batch_size": 4}, load, inputs=INPUTS, on_block=on_block, options=ABOptions(2)
        )
    assert result.error
    assert result.verdict.startswith("no verdict")
    assert len(result.blocks) >= 3
    assert result.blocks[2].point.n > 50
    assert not result.blocks[2].point.valid


@pytest.fixture(params=["http", "kernel"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    add_model(tmp_path, "double")
    if request.param == "http":
        with wb.serve(tmp_path) as opened:
            yield opened
    else:
        with wb.Engine(tmp_path) as engine:
            yield engine


@pytest.mark.full
def test_a_load_whose_model_is_unloaded_ends_early(served: Server) -> None:
    began = time.monotonic()

    def unload() -> None:
        served.unload("double")

    with Measurer(SessionTarget(served), "double", on_event=after(0, unload, at="window")) as measurer:
        found = measurer.run(Load.closed(2, duration_s=60, warmup_s=0.3, max_warmup_s=0.3))
    assert time.monotonic() - began < 30
    assert not found.point.valid
    assert "the model was lost" in found.point.reasons[0]
    assert "Request for unknown model" in found.point.reasons[0]
    assert 3 <= found.samples.seconds < 20
    assert found.samples.ok.sum() > 0


@pytest.mark.full
def test_a_model_that_comes_back_is_measured_on(tmp_path: Path) -> None:
    add_model(tmp_path, "double")
    with wb.serve(tmp_path) as server:

        def reload() -> None:
            server.unload("double")
            time.sleep(0.5)  # the gap itself
            server.load("double")

        with Measurer(SessionTarget(server), "double", on_event=after(0, reload, at="window")) as measurer:
            found = measurer.run(Load.closed(2, duration_s=5, max_duration_s=5, warmup_s=0.0))
    assert not found.lost
    assert found.samples.seconds >= 5
    assert found.point.failed > 0
    assert (found.samples.done[found.samples.ok] > found.samples.window[1] - 1_000_000_000).any()
