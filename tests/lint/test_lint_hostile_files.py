"""Files that were never meant to be read: the linter says so, soon, and goes on to the next one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.engine.linting import FileReport, lint
from workbench.errors import WorkbenchError

BASE = """backend: "identity"
max_batch_size: 8
input { name: "a" data_type: TYPE_FP32 dims: 4 }
output { name: "a" data_type: TYPE_FP32 dims: 4 }
"""
WARMUP = """model_warmup {
  name: "w"
  batch_size: 1
  inputs { key: "a" value { data_type: TYPE_FP32 dims: 4 input_data_file: "file" } }
}
"""
STATE = """sequence_batching {
  state {
    input_name: "s" output_name: "t" data_type: TYPE_FP32 dims: 1
    initial_state { name: "i" data_type: TYPE_FP32 dims: 1 data_file: "file" }
  }
}
"""


def add(root: Path, extra: str = "") -> Path:
    directory = root / "m"
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(BASE + extra)
    return directory


def findings(reports: list[FileReport]) -> list[str]:
    return [finding.message for report in reports for finding in report.findings]


@pytest.mark.parametrize(("extra", "folder"), [(WARMUP, "warmup"), (STATE, "initial_state")])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_not_read(tmp_path: Path, extra: str, folder: str, kind: str) -> None:
    path = add(tmp_path, extra) / folder / "file"
    path.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    said = findings(list(lint(tmp_path)))
    assert len(said) == 1
    assert "not a regular file" in said[0] or "leads out of" in said[0]


@pytest.mark.parametrize("name", ["pipe.md", "pipe.py", "config.pbtxt"])
def test_a_pipe_given_by_name_is_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(WorkbenchError, match=r"exist|regular|no config") as caught:
        lint(tmp_path / name)
    assert str(tmp_path) in str(caught.value)


def test_a_long_text_of_lines_that_repeat_is_read_in_no_time(tmp_path: Path) -> None:
    text = tmp_path / "long.md"
    text.write_text("# Long\n\n```\n" + 'name: "x"\n' * 20_000 + "```\n")
    assert any("name" in message for message in findings(list(lint(text))))


@pytest.mark.parametrize("code", ["x = " + "-" * 100_000 + "1", "x = " + "(" * 5_000 + ")" * 5_000, "x = 1\0"])
def test_code_that_python_cannot_read_is_a_finding(tmp_path: Path, code: str) -> None:
    directory = add(tmp_path)
    config = directory / "config.pbtxt"
    config.write_text(config.read_text().replace("identity", "python"))
    (directory / "1" / "model.py").write_text(code)
    assert any("Python cannot read this" in message for message in findings(list(lint(tmp_path))))
