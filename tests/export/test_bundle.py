"""An export is whole or not there, and says what it holds."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from workbench.errors import AlreadyExists, ConfigError, InvalidRequest, NotFound
from workbench.export import ModelToExport, export_repository

CONFIG = b"""# a comment that people own
name: "m"
backend: "python"
max_batch_size: 1
input { name: "X" data_type: TYPE_FP32 dims: 4 }
output { name: "Y" data_type: TYPE_FP32 dims: 4 }
"""
TUNED = (
    CONFIG.replace(b"max_batch_size: 1", b"max_batch_size: 8")
    + b"dynamic_batching { max_queue_delay_microseconds: 500 }\n"
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "source" / "m"
    (directory / "1" / "__pycache__").mkdir(parents=True)
    (directory / "config.pbtxt").write_bytes(CONFIG)
    (directory / "1" / "model.py").write_text("class TritonPythonModel: ...\n")
    (directory / "1" / "__pycache__" / "model.pyc").write_bytes(b"x")
    return directory


def test_the_bundle_holds_the_exact_config_and_the_source_is_untouched(model: Path, tmp_path: Path) -> None:
    result = export_repository(
        [ModelToExport(model, TUNED, {"after": {"throughput": 7.0}})], tmp_path / "out", provenance={"goal": "p99"}
    )
    written = result.repository / "m"
    assert (written / "config.pbtxt").read_bytes() == TUNED
    assert (written / "1" / "model.py").read_text() == (model / "1" / "model.py").read_text()
    assert not list(written.rglob("__pycache__"))
    assert (model / "config.pbtxt").read_bytes() == CONFIG


def test_provenance_has_hashes_edits_and_figures(model: Path, tmp_path: Path) -> None:
    result = export_repository(
        [ModelToExport(model, TUNED, {"after": {"throughput": 7.0}})], tmp_path / "out", provenance={"goal": "p99"}
    )
    provenance = json.loads(result.provenance.read_text())
    entry = provenance["models"]["m"]
    assert provenance["goal"] == "p99"
    assert entry["measured"] == {"after": {"throughput": 7.0}}
    assert entry["config_sha256"] == hashlib.sha256(TUNED).hexdigest()
    assert {edit["path"].split(".")[0] for edit in entry["edits"]} == {"max_batch_size", "dynamic_batching"}
    for name, digest in entry["files"].items():
        assert hashlib.sha256((result.repository / "m" / name).read_bytes()).hexdigest() == digest
    assert str(tmp_path) not in result.provenance.read_text()


def test_a_broken_configuration_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        export_repository([ModelToExport(model, b"max_batch_sise: 1")], tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_nothing_that_is_not_an_export_is_overwritten(model: Path, tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.mkdir()
    (place / "mine.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(AlreadyExists):
            export_repository([ModelToExport(model, TUNED)], place, overwrite=overwrite)
    assert (place / "mine.txt").read_text() == "mine"
    (place / "mine.txt").unlink()
    export_repository([ModelToExport(model, CONFIG)], place)
    with pytest.raises(AlreadyExists):
        export_repository([ModelToExport(model, TUNED)], place)
    again = export_repository([ModelToExport(model, TUNED)], place, overwrite=True)
    assert (again.repository / "m" / "config.pbtxt").read_bytes() == TUNED


def test_what_cannot_be_exported_is_said(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="nothing to export"):
        export_repository([], tmp_path / "out")
    with pytest.raises(NotFound, match="no model directory"):
        export_repository([ModelToExport(tmp_path / "absent", TUNED)], tmp_path / "out")
    with pytest.raises(InvalidRequest, match="same name"):
        export_repository([ModelToExport(model, TUNED), ModelToExport(model, TUNED)], tmp_path / "out")
