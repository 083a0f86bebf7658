"""server.ab in every place, an interrupt of server.profile, and a panel that is open while a point is measured."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from workbench.clock import sleep
from workbench.errors import ConfigError, InternalError, InvalidRequest
from workbench.profiling import MeasureOptions
from workbench.records.runs import Run, RunStore
from workbench.session.kernel import Engine
from workbench.session.server import Server

DELAY = "dynamic_batching.max_queue_delay_microseconds"
QUICK: dict[str, Any] = {"duration_s": 0.2, "warmup_s": 0.05, "min_requests": 0, "concurrency": 2}


@pytest.mark.full
def test_a_queue_delay_that_only_costs_is_found_and_put_back(anywhere: Server, tmp_path: Path) -> None:
    before = anywhere.config("double").text
    result = anywhere.ab("double", {}, {DELAY: 30_000}, pairs=3, store=tmp_path, **QUICK | {"duration_s": 0.4})
    assert result.verdict.startswith("throughput: A faster by")
    assert result.restored
    assert anywhere.config("double").text == before
    with_delay = {block.point.config["dynamic_batching"]["max_queue_delay_microseconds"] for block in result.blocks}
    assert len(with_delay) == 2  # as configured, and the other
    (info,) = RunStore(tmp_path).list()
    run = RunStore(tmp_path).open(info.id)
    assert info.kind == "ab"
    assert info.points == len(result.blocks)
    assert run.meta["verdict"] == result.verdict
    assert run.meta["sides"]["B"] == {"model": "double", "settings": {DELAY: 30_000}}
    run.close()


def test_what_makes_no_sense_is_refused_before_anything_is_measured(kernel: Engine) -> None:
    with pytest.raises(ConfigError, match='no field named "delay"'):
        kernel.ab("double", {}, {"dynamic_batching.delay": 1}, store=None, **QUICK)
    with pytest.raises(InvalidRequest, match="at one load"):
        kernel.ab("double", {}, {DELAY: 1}, rate=5, store=None, **QUICK)
    with pytest.raises(InvalidRequest, match="no figure 'p42'"):
        kernel.ab("double", {}, {DELAY: 1}, metric="p42", store=None, **QUICK)


def test_a_store_that_takes_nothing_loses_no_verdict(
    kernel: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(run: Run, *given: object, **more: object) -> int:
        raise InternalError("the run cannot be written: database or disk is full", where="here")

    monkeypatch.setattr(Run, "add_point", full)
    result = kernel.ab("double", {}, {DELAY: 1}, pairs=2, max_pairs=2, store=tmp_path, **QUICK)
    assert len(result.blocks) >= 4
    assert result.unstored == "it was not stored: the run cannot be written: database or disk is full (here)"
    assert result.unstored in repr(result)


def answered(server: Server) -> int:
    return int(server.statistics("double")["model_stats"][0]["inference_stats"]["success"]["count"])


def test_an_interrupted_profile_in_the_kernel_keeps_what_it_has(kernel: Engine) -> None:
    before = answered(kernel)

    def interrupt() -> None:
        while answered(kernel) < before + 50:
            sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    point = kernel.profile("double", concurrency=2, duration_s=60, warmup_s=0.0)
    assert point.n > 10
    assert point.reasons[0] == "the measurement was stopped before its end"


def test_a_window_of_so_many_requests_in_the_kernel(kernel: Engine) -> None:
    point = kernel.profile("double", concurrency=2, requests=40, warmup_s=0.05)
    assert point.n == 40
    assert point.duration_s < 2.0, "and not after 2.5 s"
    with pytest.raises(InvalidRequest, match="requests must be a whole number"):
        kernel.profile("double", requests=2.5)


def test_who_asks_for_a_hundred_requests_wants_no_fewer(kernel: Engine) -> None:
    """It is what a load has by default; of that fewer are only told of."""
    few: dict[str, Any] = {"rate": 30, "distribution": "constant", "duration_s": 0.3, "max_duration_s": 0.3}
    asked = kernel.profile("double", min_requests=100, **few)
    assert any("at least 100 were asked for" in reason for reason in asked.reasons)
    assert not asked.valid
    told = kernel.profile("double", **few)
    assert any("by default it is to have 100" in note for note in told.notes)
    assert not any("asked for" in text for text in (*told.reasons, *told.notes))


def test_an_open_panel_is_told(kernel: Engine) -> None:
    close = kernel.session.subscribe(lambda: None)
    try:
        point = kernel.profile("double", **QUICK)
    finally:
        close()
    assert any("1 panel is open in this kernel" in text for text in (*point.notes, *point.reasons))
    assert not any("open in this kernel" in text for text in kernel.profile("double", **QUICK).notes)


def test_the_rule_of_stability_is_an_argument(kernel: Engine) -> None:
    strict = MeasureOptions(stability="three_windows")
    point = kernel.profile("double", measure=strict, **QUICK)
    assert not any("is known to ±" in reason for reason in point.reasons)
    sweep = kernel.sweep("double", {}, measure=strict, store=None, show_progress=False, **QUICK)
    assert not any("is known to ±" in reason for reason in sweep[0].reasons)  # type: ignore[index]
