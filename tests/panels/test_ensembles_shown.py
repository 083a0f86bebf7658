"""What a person sees of an ensemble: its steps, and where the time of its requests goes now."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from panel_helpers import look, look_away, wait_for, write_model

import workbench as wb
from workbench.session.kernel import Engine

PIPELINE = """\
name: "pipeline"
platform: "ensemble"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
ensemble_scheduling { step [
  { model_name: "quick" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "between" } },
  { model_name: "slow" model_version: -1
    input_map { key: "IN" value: "between" } output_map { key: "OUT" value: "OUT" } }
] }
"""


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
    line = r"quick <b>([\d.]+)</b> \+ <b>([\d.]+)</b> → slow <b>([\d.]+)</b> \+ <b>([\d.]+)</b> ms"

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
