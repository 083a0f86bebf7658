"""``lint`` of texts on disk, and of a model's code and example inputs with its configuration known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.cli import main
from workbench.engine.linting import lint

CONFIG = """name: "m"
backend: "python"
input { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "B" data_type: TYPE_FP32 dims: [ 4 ] }
"""
MODEL = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN")
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("B", x.as_numpy())]))
        return answers
"""
GUIDE = """# Guide

    tritonserver --model-repository=/models --load-model=m

```
name: "m"
max_batchsize: 8
```
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose code and example inputs do not name its input."""
    directory = tmp_path / "repository" / "m"
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(CONFIG)
    (directory / "1" / "model.py").write_text(MODEL.replace('"IN"', '"a"'))
    (directory / "example_inputs.json").write_text('{"data": [{"a": [1, 2, 3, 4]}]}')
    return directory


def test_the_code_of_a_model_is_held_to_its_configuration(model: Path) -> None:
    report = lint(model.parent)
    found = {each.path.name: [finding.rule for finding in each.findings] for each in report}
    assert found == {
        "config.pbtxt": [],
        "model.py": ["python-tensor-name"],
        "example_inputs.json": ["request-input"],
    }
    assert not report.ok


@pytest.mark.parametrize("path", ["1/model.py", "example_inputs.json"])
def test_a_file_of_a_model_that_is_given_alone_is_held_to_it_too(model: Path, path: str) -> None:
    (report,) = lint(model / path)
    assert [each.rule for each in report.findings] == ["python-tensor-name" if "model" in path else "request-input"]


def test_fixing_a_repository_writes_the_code_and_the_examples(model: Path) -> None:
    report = lint(model.parent, fix=True)
    assert report.ok
    assert '(request, "A")' in (model / "1" / "model.py").read_text()
    assert json.loads((model / "example_inputs.json").read_text()) == {"data": [{"A": [1, 2, 3, 4]}]}
    assert {each.path.name for each in report if each.fixed} == {"model.py", "example_inputs.json"}


def test_a_model_that_completes_its_configuration_itself_is_not_held_to_the_file(model: Path) -> None:
    method = "def auto_complete_config(config):\n        config.add_input({})\n        return config\n"
    (model / "1" / "model.py").write_text(f"{MODEL}\n    @staticmethod\n    {method}")
    assert [each.findings for each in lint(model / "1" / "model.py")] == [()]


def test_the_command_line_lints_a_tutorial_and_mends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    guide = tmp_path / "guide.md"
    guide.write_text(GUIDE)
    assert main(["lint", str(guide)]) == 1
    printed = capsys.readouterr().out
    assert f"{guide}:3:45: error: --load-model needs" in printed
    assert f"{guide}:7:1: error:" in printed
    assert "max_batch_size" in printed
    assert main(["lint", str(guide), "--fix", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["files"]
    assert row["ok"]
    assert len(row["fixed"]) == 2
    assert "--model-control-mode=explicit --load-model=m" in guide.read_text()
    assert "max_batch_size: 8" in guide.read_text()


def test_json_that_is_no_request_and_a_text_without_triton_have_nothing_to_say(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"name": "x", "scripts": {}}')
    (tmp_path / "notes.txt").write_text("import duties are due\n\nname: Kim\n\n    a = b\n")
    assert all(each.findings == () for each in lint(tmp_path / "package.json", tmp_path / "notes.txt"))


def test_no_text_of_the_project_and_its_samples_is_blamed(sample_repository: Path) -> None:
    root = Path(__file__).parents[2]
    texts = [*root.glob("*.md"), *(root / "notebooks").glob("*.ipynb"), *(root / "workbench" / "samples").glob("*.py")]
    report = lint(sample_repository, *texts)
    others = [each for each in report if each.path.suffix != ".pbtxt"]
    assert len(others) > 10
    assert {str(each.path): each.findings for each in others if each.findings} == {}
