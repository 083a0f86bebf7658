"""Sweeps over ensembles: the steps are swept, never the ensemble itself (model_analyzer#400, #162, #682, #764)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import report_models as models

import workbench as wb
from workbench.cli import main
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.profiling import SweepResult
from workbench.records.runs import RunStore

COUNT = "slow:instance_group[0].count"
ROWS = "slow:max_batch_size"
QUICK: dict[str, Any] = {"duration_s": 0.25, "warmup_s": 0.05, "min_requests": 3, "store": None, "show_progress": False}
ENSEMBLE = """platform: "ensemble"
max_batch_size: 4
input { name: "TEXT" data_type: TYPE_STRING dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling {
  step { model_name: "tokenizer" model_version: -1
    input_map { key: "TEXT" value: "TEXT" } output_map { key: "LENGTH" value: "t" } }
  step { model_name: "slow" model_version: -1
    input_map { key: "INPUT0" value: "t" } output_map { key: "OUTPUT0" value: "Y" } }
}
"""
TOKENIZER = """
class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy() for request in requests]
        lengths = [np.array([[len(text)] for text in rows.ravel()], np.float32) for rows in texts]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("LENGTH", each)]) for each in lengths]
"""
TOKENIZER_CONFIG = """backend: "python"
max_batch_size: 4
input { name: "TEXT" data_type: TYPE_STRING dims: 1 }
output { name: "LENGTH" data_type: TYPE_FP32 dims: 1 }
instance_group { kind: KIND_CPU }
"""


@pytest.fixture
def pipeline(root: Path) -> Path:
    """A tokenizer on strings and a model behind it."""
    models.add(root, "tokenizer", TOKENIZER_CONFIG, TOKENIZER)
    models.add(root, "slow", "# by hand\n" + models.identity(ms=2, size=4, dims="1"))
    directory = models.add(root, "chain", ENSEMBLE)
    inputs = {"data": [{"TEXT": {"content": ["some words"], "shape": [1]}}]}
    (directory / "example_inputs.json").write_text(json.dumps(inputs))
    return root


def files(root: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    return {name: data for name, data in found.items() if "__pycache__" not in name}


def test_f65_model_analyzer_400_settings_of_the_steps_are_swept_and_read_back(pipeline: Path) -> None:
    """Instances and rows of a step under an ensemble with a string input: the tool gave the ensemble a batcher."""
    before = files(pipeline)
    with wb.Engine(pipeline) as server:
        original = server.model_config("slow")
        result = server.sweep("chain", {COUNT: [1, 2], ROWS: [4, 8]}, concurrency=2, **QUICK)
        assert len(result) == 4
        for point in result:
            assert point.error == "", point.error
            assert point.failed == 0
            read = point.step_configs["slow"]
            assert (read["instance_group"][0]["count"], read["max_batch_size"]) == (
                point.settings[COUNT],
                point.settings[ROWS],
            )
            for field in ("instance_group", "dynamic_batching", "model_warmup", "optimization"):
                assert not point.config.get(field), field
            assert point.config["platform"] == "ensemble"
        assert server.model_config("slow") == original, "not restored"
        assert not server.config("slow").dirty
    assert files(pipeline) == before, "a file was touched"


def test_f65_model_analyzer_764_a_point_that_fails_is_a_row_and_the_sweep_goes_on(pipeline: Path) -> None:
    """A step that takes fewer rows than the ensemble allows takes the ensemble out: a row says why, then it is back."""
    before = files(pipeline)
    with wb.Engine(pipeline) as server:
        result = server.sweep("chain", {ROWS: [4, 1, -3, 8]}, concurrency=1, **QUICK)
        assert [bool(point.error) for point in result] == [False, True, True, False]
        assert "'chain' has no available versions" in result[1].error  # type: ignore[index,union-attr]
        assert "'max_batch_size' must be non-negative value" in result[2].error  # type: ignore[index,union-attr]
        assert server.infer("chain", {"TEXT": [["abc"]]})["Y"].tolist() == [[3.0]]
    assert files(pipeline) == before


@pytest.mark.parametrize(
    ("grid", "text", "hint"),
    [
        ({"instance_group[0].count": [1, 2]}, "an ensemble has no instance_group", "tokenizer:instance_group[0].count"),
        ({"dynamic_batching.max_queue_delay_microseconds": [0]}, "an ensemble has no dynamic_batching", "tokenizer:"),
        ({"elsewhere:max_batch_size": [1]}, "'elsewhere' is no step of 'chain'", "its steps are tokenizer, slow"),
        ({"slow:no_such_field": [1]}, "no_such_field", ""),
    ],
)
def test_f65_model_analyzer_400_what_an_ensemble_does_not_have_is_not_given_to_it(
    pipeline: Path, grid: dict[str, Any], text: str, hint: str
) -> None:
    """Neither a batcher nor instances, nor settings of a model that is no step."""
    with wb.Engine(pipeline) as server:
        with pytest.raises(WorkbenchError) as caught:
            server.sweep("chain", grid, **QUICK)
        assert text in caught.value.message
        assert hint in caught.value.hint
        with pytest.raises(InvalidRequest, match="'chain' is no step of 'slow'"):
            server.sweep("slow", {"chain:max_batch_size": [1]}, **QUICK)


def test_f65_model_analyzer_162_the_best_is_exported_with_all_its_steps(
    pipeline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a sweep by STEP:PATH has found is exported from the command line: every step with its own edits."""
    runs, to = tmp_path / "runs", tmp_path / "out"
    before = files(pipeline)
    with wb.Engine(pipeline) as server:
        result = server.sweep("chain", {COUNT: [2]}, concurrency=2, **QUICK)
    (point,) = (replace(each, valid=True, stable=True) for each in result)  # whatever else this machine does now
    assert SweepResult("chain", {COUNT: [2]}, (point,), 1).save(RunStore(runs))
    assert main(["runs", "show", "latest", "--runs", str(runs)]) == 0
    assert "slow:count" in capsys.readouterr().out
    arguments = ["export", "latest", "--runs", str(runs), "--model-repository", str(pipeline), "--to", str(to)]
    assert main(arguments) == 0, capsys.readouterr().err
    texts = {path.parent.name: path.read_text() for path in to.rglob("config.pbtxt")}
    assert sorted(texts) == ["chain", "slow", "tokenizer"]
    assert "count: 2" in texts["slow"]
    assert texts["slow"].startswith("# by hand"), "a comment was lost"
    assert texts["chain"] == before["chain/config.pbtxt"].decode()
    assert files(pipeline) == before
