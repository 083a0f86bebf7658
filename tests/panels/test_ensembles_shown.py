"""What a person sees of an ensemble: its steps, and where the time of its requests goes now."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ensembles import chain_config
from panel_helpers import look, look_away, wait_for, write_model

import workbench as wb
from workbench.errors import InvalidRequest
from workbench.panels.ensemble import graph_of
from workbench.session.kernel import Engine

PIPELINE = chain_config("pipeline", "quick", "slow", ("IN", "OUT"), 2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Engine]:
    root = tmp_path / "repository"
    write_model(root, "quick")
    write_model(root, "slow", sleep=0.02)
    (root / "pipeline" / "1").mkdir(parents=True)
    (root / "pipeline" / "config.pbtxt").write_text(PIPELINE)
    with wb.Engine(root) as engine:
        yield engine


@pytest.fixture
def asked(server: Engine) -> Iterator[Engine]:
    """The pipeline, asked all the time."""
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            server.infer("pipeline", {"IN": np.ones((1, 2), np.float32)})

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    yield server
    stop.set()
    for thread in threads:
        thread.join()


def test_the_overview_shows_queue_and_compute_of_an_ensembles_steps(asked: Engine) -> None:
    shown: Any = asked.panel("overview")
    look(shown)
    line = r"quick <b>([\d.]+)</b> \+ <b>([\d.]+)</b> ms → slow <b>([\d.]+)</b> \+ <b>([\d.]+)</b> ms"

    def figures() -> Any:
        return re.search(line, str(shown._rows["pipeline", "1"]._cells.value))

    found = wait_for(figures)
    _, quick, _, slow = (float(text) for text in found.groups())
    assert quick < slow
    assert slow >= 20
    for name in ("quick", "slow"):
        assert "→" not in shown._rows[name, "1"]._cells.value
    look_away(shown)


def test_a_model_table_names_the_steps(server: Engine) -> None:
    rows = server.models()
    assert rows["pipeline"].steps == ("quick", "slow")
    assert rows["quick"].steps == ()


def test_the_panel_shows_the_steps_in_their_order_and_marks_the_slowest(asked: Engine) -> None:
    shown: Any = asked.panel("ensemble")
    assert shown.model == "pipeline"
    look(shown)

    def boxes() -> Any:
        found = re.findall(r'<div class="wb-step([^"]*)"[^>]*><b>(\w+)</b>', str(shown._graph.value))
        return found if any(mark for mark, _ in found) else None

    assert [(mark.strip(), name) for mark, name in wait_for(boxes)] == [("", "quick"), ("wb-slowest", "slow")]
    assert "between → OUT" in shown._graph.value
    wait_for(lambda: list(shown._times.chart.sources["breakdown"].data["label"]) == ["quick", "slow"])
    assert re.search(r"1\. quick: [\d.]+ \+ [\d.]+\n  2\. slow: [\d.]+ \+ [\d.]+", repr(shown))
    page = shown.to_html()
    assert "between → OUT" in page
    assert "<svg" in page or "wb-graph" in page
    look_away(shown)


def test_the_panel_says_what_is_no_ensemble(server: Engine) -> None:
    with pytest.raises(InvalidRequest, match="'quick' is no ensemble that serves") as caught:
        server.panel("ensemble", model="quick")
    assert "pipeline" in caught.value.hint
    server.unload("pipeline")
    wait_for(lambda: not server.is_model_ready("pipeline"))
    shown: Any = server.panel("ensemble")
    assert "this server serves no ensemble" in shown._graph.value
    server.load("pipeline")
    shown.refresh()
    assert shown.model == "pipeline"
    assert "between → OUT" in shown._graph.value


def test_steps_that_can_run_side_by_side_are_on_one_level() -> None:
    def step(model: str, given: str, made: str, also: str = "") -> dict[str, Any]:
        inputs = {"A": given} | ({"B": also} if also else {})
        return {"model_name": model, "input_map": inputs, "output_map": {"C": made}}

    written = [
        step("last", "left", "OUT", also="right"),
        step("work", "first", "left"),
        step("work", "first", "right"),
        step("begin", "IN", "first"),
    ]
    found = graph_of({"ensemble_scheduling": {"step": written}})
    assert [(each.label, each.level) for each in found] == [("begin", 0), ("work", 1), ("work #2", 1), ("last", 2)]
    assert graph_of({"dynamic_batching": {}}) == []
