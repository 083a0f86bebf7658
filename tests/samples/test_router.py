"""The sample ``router``: who answers which row, what is counted, and what a failing model does."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench as wb
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.session.remote import WorkbenchServer


@pytest.fixture(scope="module")
def server(sample_repository: Path) -> Iterator[WorkbenchServer]:
    with wb.serve(sample_repository, models=["router", "magika", "magika_small"], name=None) as opened:
        yield opened


@pytest.fixture(scope="module")
def rows(sample_repository: Path) -> Any:
    """The examples of ``router``: twelve files, of some of which the small model is not sure."""
    data = json.loads((sample_repository / "router" / "example_inputs.json").read_text())["data"]
    return np.array([entry["bytes"] for entry in data], np.int32)


def ask(server: WorkbenchServer, rows: Any, **parameters: Any) -> Any:
    return server.infer("router", {"bytes": rows}, parameters=parameters)


def of_the_small(server: WorkbenchServer, rows: Any) -> Any:
    ends = np.concatenate([rows[:, :256], rows[:, -256:]], axis=1)
    return server.infer("magika_small", {"bytes": ends})["target_label"]


def calls(server: WorkbenchServer, model: str) -> tuple[int, int]:
    """Rows that a model has computed, and executions."""
    (entry,) = server.statistics(model)["model_stats"]
    return int(entry["inference_count"]), int(entry["execution_count"])


def test_each_row_has_the_answer_of_the_model_that_is_sure(server: WorkbenchServer, rows: Any) -> None:
    small, big = of_the_small(server, rows), server.infer("magika", {"bytes": rows})["target_label"]
    unsure = small.max(axis=1) < 0.8
    assert 2 <= unsure.sum() < len(rows) / 2
    before = [calls(server, model) for model in ("magika_small", "magika")]
    answer = ask(server, rows)
    after = [calls(server, model) for model in ("magika_small", "magika")]
    assert answer["escalated"].ravel().tolist() == unsure.tolist()
    np.testing.assert_allclose(answer["target_label"], np.where(unsure[:, None], big, small), atol=1e-5)
    # All rows to the small model in one call, the unsure ones to the big one in one call.
    assert [tuple(np.subtract(now, then)) for then, now in zip(before, after, strict=True)] == [
        (len(rows), 1), (unsure.sum(), 1),
    ]  # fmt: skip
    # The big model is right where the small one is not: a JavaScript module that looks like TypeScript at its ends.
    labels = (Path(str(server.model_directory("router"))) / "labels.txt").read_text().split()
    assert "javascript" in {labels[index] for index in answer["target_label"][unsure].argmax(axis=1)}


@pytest.mark.parametrize(("threshold", "share"), [(0, 0.0), (1.1, 1.0), ("0.8", 0.25)])
def test_a_request_may_bring_its_own_threshold(
    server: WorkbenchServer, rows: Any, threshold: Any, share: float
) -> None:
    assert ask(server, rows, threshold=threshold)["escalated"].mean() == pytest.approx(share)


def test_the_threshold_of_the_configuration_is_changed_while_it_serves(server: WorkbenchServer, rows: Any) -> None:
    server.configure("router", 'parameters["threshold"].string_value="0"')
    assert not ask(server, rows)["escalated"].any()
    server.revert("router")
    assert ask(server, rows)["escalated"].any()


def test_a_threshold_that_is_no_number_fails_its_request_alone(server: WorkbenchServer, rows: Any) -> None:
    with pytest.raises(InvalidRequest, match="the parameter 'threshold' must be a number, got 'high'"):
        ask(server, rows, threshold="high")
    assert ask(server, rows)["escalated"].any()


def test_rows_are_counted_by_who_answered(server: WorkbenchServer, rows: Any) -> None:
    def counted() -> dict[str, float]:
        text = urllib.request.urlopen(server.metrics_url, timeout=10).read().decode()
        found = re.findall(r'^router_rows\{.*answered_by="(\w+)".*\} (\S+)$', text, re.MULTILINE)
        return {name: float(value) for name, value in found}

    ask(server, rows[:1])
    before = counted()
    unsure = int(ask(server, rows)["escalated"].sum())
    ask(server, rows, threshold=0)
    after = counted()
    assert {name: after[name] - before[name] for name in after} == {
        "magika": unsure, "magika_small": 2 * len(rows) - unsure,
    }  # fmt: skip


def test_without_the_big_model_only_those_who_need_it_fail(server: WorkbenchServer, rows: Any) -> None:
    unsure = ask(server, rows)["escalated"].ravel()
    server.unload("magika")
    try:
        assert not ask(server, rows[~unsure])["escalated"].any()
        with pytest.raises(WorkbenchError, match="magika"):
            ask(server, rows[unsure])
    finally:
        server.load("magika")
    assert ask(server, rows)["escalated"].any()


def test_it_costs_less_than_the_big_model_alone(server: WorkbenchServer, rows: Any) -> None:
    """Compute of the models that it asks, by the server's own clock, for the same rows."""

    def compute_ms(*models: str) -> float:
        return sum(
            int(server.statistics(model)["model_stats"][0]["inference_stats"]["compute_infer"]["ns"])
            for model in models
        )

    routed = alone = 0.0
    for _ in range(5):  # in turn: what else the machine does meets both
        before = compute_ms("magika", "magika_small")
        ask(server, rows)
        between = compute_ms("magika", "magika_small")
        server.infer("magika", {"bytes": rows})
        routed, alone = routed + between - before, alone + compute_ms("magika", "magika_small") - between
    assert routed < 0.8 * alone
