"""What a slip of the pen asks of a load or a sweep: refused in words, before anything is measured or changed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.errors import InvalidRequest
from workbench.profiling import Load
from workbench.session.loads import loads_of
from workbench.session.remote import WorkbenchServer

DELAY = "dynamic_batching.max_queue_delay_microseconds"
QUICK: dict[str, Any] = {"duration_s": 0.1, "warmup_s": 0.01, "min_requests": 1, "store": None, "show_progress": False}
HUGE = 10**400


@pytest.mark.parametrize("name", ["concurrency", "rate"])
@pytest.mark.parametrize("value", [HUGE, True, math.nan, math.inf, -1, 0, "8", [], (), np.array([]), {2: 3}, b"8"])
def test_how_much_is_sent_is_said_in_numbers(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=name):
        loads_of(**{"concurrency": None, "rate": None, "options": {}, name: value})


def test_numbers_that_never_end_are_not_waited_for() -> None:
    with pytest.raises(InvalidRequest, match="concurrency names more than 100000 loads"):
        loads_of(itertools.count(1), None, {})  # type: ignore[arg-type]


Ask = Callable[[WorkbenchServer], object]


def swept(grid: Any = None, **options: Any) -> Ask:
    return lambda server: server.sweep("double", grid, **{"concurrency": 1, **QUICK, **options})


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (swept(0), "a grid maps paths to lists of values, got 0"),
        (swept([]), "a grid maps paths to lists of values, got []"),
        (swept(np.array([])), "a grid maps paths to lists of values, got []"),
        (swept({5: [1]}), "got the path 5"),
        (swept({DELAY: itertools.count()}), "more than 100000 combinations"),
        (swept({DELAY: range(10**12)}), "more than 100000 combinations"),
        (swept({DELAY: range(1000)}, concurrency=range(1, 1001)), "1000 configurations at 1000 loads"),
        (swept(store=5), "store must be a directory, got 5"),
        (swept(measure="strict"), "measure must be MeasureOptions, got 'strict'"),
        (swept(executor=5), "there is no executor 5"),
        (swept(generators_on=5), "there is no executor 5"),
        (lambda server: server.sweep("double", {}, load=[5], store=None), "what is replayed is a trace"),
        (lambda server: server.sweep(None, {}, **QUICK), "a model is given by its name, got None"),
        (lambda server: server.profile(5, concurrency=1), "a model is given by its name, got 5"),
        (lambda server: server.profile("", concurrency=1), "a model is given by its name, got ''"),
        (lambda server: server.ab("double", None, {}, concurrency=1), "a side of an A/B is values by path, got None"),
        (lambda server: server.ab("double", {}, {}, against=5, concurrency=1), "a model is given by its name, got 5"),
    ],
)
def test_a_slip_of_the_pen_is_refused_before_anything_begins(process: WorkbenchServer, ask: Ask, text: str) -> None:
    before = process.model_config("double")
    with pytest.raises(InvalidRequest) as caught:
        ask(process)
    assert text in caught.value.message
    assert process.control.leases() == []
    assert process.model_config("double") == before


def test_values_that_can_be_asked_for_once_are_swept(process: WorkbenchServer) -> None:
    result = process.sweep("double", {DELAY: (value for value in (5, 6))}, concurrency=1, **QUICK)
    assert [point.settings[DELAY] for point in result] == [5, 6]  # type: ignore[union-attr]


def test_inputs_without_rows_are_told_of(process: WorkbenchServer) -> None:
    empty = {"x": np.zeros((0, 4), np.float32)}
    (point,) = process.sweep("double", {}, concurrency=1, inputs=empty, **QUICK)  # type: ignore[misc]
    assert point.error == "the inputs have no rows"


def test_a_file_of_inputs_without_data_is_not_sent_as_random_numbers(process: WorkbenchServer, tmp_path: Path) -> None:
    file = tmp_path / "inputs.json"
    file.write_text('{"data": []}')
    (point,) = process.sweep("double", {}, concurrency=1, inputs=file, **QUICK)  # type: ignore[misc]
    assert point.error == "the file of inputs has no data"
    file.write_text('{"ranges": {"x": {"min": 0, "max": 5}}}')
    (point,) = process.sweep("double", {}, concurrency=1, inputs=file, **QUICK)  # type: ignore[misc]
    assert not point.error, "numbers are drawn as it says"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Load.classes(5), "a mixed load needs classes, got 5"),
        (lambda: Load.classes({"a": {"share": 1}}, rate="x"), "rate must be a number"),
        (lambda: Load.classes({"a": {"share": 1}}, rate=math.nan), "rate must be a number"),
        (lambda: Load.classes({"a": {"share": 1}}, concurrency=1.5), "concurrency must be a whole number"),
        (lambda: Load.classes({"a": {"rate": 5, "concurrency": 5}}), "has both a rate and a concurrency"),
        (lambda: Load.classes({"a": {"rate": 5, "kind": "open"}}), "the unknown option kind"),
        (lambda: Load.classes({"a": {"rate": 5}}, rate=7), "no class has a share of the rate"),
        (lambda: Load.replay(5), "what is replayed is a trace"),
        (lambda: Load.replay(None), "what is replayed is a trace"),
    ],
)
def test_classes_and_replays_without_sense_are_refused(make: Callable[[], Load], text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make()
    assert text in caught.value.message
