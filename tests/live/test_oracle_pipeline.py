"""The sample ensemble, exported, in the real Triton, where Python models run the very ONNX files of its steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs_onnx import on_the_python_backend

import workbench as wb
from workbench.errors import WorkbenchError
from workbench.session.remote import TritonServer, WorkbenchServer

pytestmark = [pytest.mark.oracle, pytest.mark.full, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def ours(sample_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkbenchServer]:
    """The sample ensemble, served here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        with wb.serve(sample_repository, models=["semantic_search"]) as server:
            yield server


@pytest.fixture(scope="module")
def theirs(
    ours: WorkbenchServer, tmp_path_factory: pytest.TempPathFactory, start_triton: Callable[..., Any]
) -> Iterator[TritonServer]:
    """Its export in the real Triton; the ensemble and the tokenizer are as they were exported."""
    made = ours.export(tmp_path_factory.mktemp("pipeline") / "bundle", models=["semantic_search"])
    for name in ("minilm", "vector_search"):
        on_the_python_backend(made.repository / name)
    with start_triton(made.repository) as running, wb.connect(running.http) as server:
        assert isinstance(server, TritonServer)
        yield server


def texts(ours: WorkbenchServer) -> list[str]:
    directory = ours.model_directory("semantic_search")
    assert directory is not None
    data = json.loads((directory / "example_inputs.json").read_text())["data"]
    return [each["TEXT"]["content"][0] for each in data]


def test_the_ensemble_loads_as_it_was_exported(ours: WorkbenchServer, theirs: TritonServer) -> None:
    assert theirs.models()["semantic_search"].ready
    here, there = (server.model_config("semantic_search") for server in (ours, theirs))
    assert here["ensemble_scheduling"]["step"] == there["ensemble_scheduling"]["step"]
    assert here["max_batch_size"] == there["max_batch_size"] == 8
    assert theirs.models()["semantic_search"].steps == ("tokenizer", "minilm", "vector_search")


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_answers_are_the_same(ours: WorkbenchServer, theirs: TritonServer, rows: int) -> None:
    questions = texts(ours)
    for start in range(0, len(questions), rows):
        asked = {"TEXT": [[text] for text in questions[start : start + rows]]}
        here, there = (server.infer("semantic_search", asked) for server in (ours, theirs))
        assert set(here) == set(there)  # Triton gives an ensemble's outputs in the order of a hash table
        np.testing.assert_allclose(here["scores"], there["scores"], atol=1e-5)
        # Ids that are next to each other may change places where their scores are equal but for rounding.
        assert here["ids"][:, 0].tolist() == there["ids"][:, 0].tolist()
        assert np.mean(here["ids"] == there["ids"]) > 0.9
        assert dict(here.parameters) == dict(there.parameters)


def test_errors_are_the_same(ours: WorkbenchServer, theirs: TritonServer) -> None:
    for inputs in ({"TEXT": [["x"]] * 9}, {"TEXT": ["no batch dimension"]}, {}, {"MORE": [[1]]}, {"TEXT": [[1.5]]}):
        said = []
        for server in (ours, theirs):
            with pytest.raises(WorkbenchError) as caught:
                server.infer("semantic_search", {name: np.array(value) for name, value in inputs.items()})
            said.append(caught.value.message)
        assert said[0] == said[1]
