"""The linter of files on disk: what it reads, what it writes, what it says of what it cannot read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.engine.linting import lint
from workbench.errors import ConfigError

MISTAKE = 'name: "m"\nbackend: "python"\nmax_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 16 ] }\n'


def model(root: Path, name: str, text: str = 'backend: "python"\n') -> Path:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(text)
    return root / name / "config.pbtxt"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    written = model(tmp_path, "good")
    (tmp_path / "folder" / "config.pbtxt").mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "config.pbtxt")
    (tmp_path / "dangling").mkdir()
    (tmp_path / "dangling" / "config.pbtxt").symlink_to("nowhere")
    found = {report.path: [finding.rule for finding in report.findings] for report in lint(tmp_path)}
    without = {tmp_path / name: ["no-backend"] for name in ("dangling", "folder", "pipe")}
    assert found == {written: ["model-file"], **without, tmp_path / "folder" / "config.pbtxt": ["version-directory"]}


def test_a_fix_is_written_through_a_link(tmp_path: Path) -> None:
    real = tmp_path / "shared.pbtxt"
    real.write_text(MISTAKE)
    link = model(tmp_path / "models", "m")
    link.unlink()
    link.symlink_to(real)
    assert not lint(tmp_path / "models").ok
    report = lint(tmp_path / "models", fix=True)
    assert report.files[0].fixed
    assert link.is_symlink()
    assert real.read_text() == link.read_text() != MISTAKE


def test_a_file_that_cannot_be_written_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = model(tmp_path, "m", MISTAKE)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(ConfigError, match=r"cannot write .*Read-only file system") as caught:
        lint(file, fix=True)
    assert caught.value.where == str(file)
    assert file.read_text() == MISTAKE
