"""Model directories: what is a model, which versions it has, what changed, and where paths may lead."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from workbench.config import ConfigDocument
from workbench.errors import InvalidRequest, NotFound
from workbench.repository.files import content_hash, example_inputs_hash, inside, write_override_files
from workbench.repository.models import (
    check_name,
    find_model,
    find_versions,
    list_models,
    read_model,
    select_versions,
)


def model(root: Path, name: str = "m", versions: tuple[str, ...] = ("1",)) -> Path:
    directory = root / name
    for version in versions:
        (directory / version).mkdir(parents=True)
        (directory / version / "model.onnx").write_bytes(b"weights")
    (directory / "config.pbtxt").write_text('backend: "onnxruntime"')
    return directory


def test_models_of_several_repositories(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        model(tmp_path / name, "shared")
        model(tmp_path / name, f"only_{name}")
        (tmp_path / name / ".hidden").mkdir()
        (tmp_path / name / "README.md").write_text("no model")
    both = (tmp_path / "a", tmp_path / "b")
    assert {name: len(paths) for name, paths in list_models(both).items()} == {"only_a": 1, "only_b": 1, "shared": 2}
    assert find_model(both, "only_b") == tmp_path / "b" / "only_b"
    with pytest.raises(InvalidRequest, match=r"^model appears in two or more repositories"):
        find_model(both, "shared")
    with pytest.raises(NotFound):
        find_model(both, "nope")
    with pytest.raises(NotFound, match="failed to stat file"):
        list_models([tmp_path / "missing"])


@pytest.mark.parametrize("name", ["", "a/b", "..", "a..b", ".", "x\0y"])
def test_names_that_no_model_has(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_name(name)
    with pytest.raises(InvalidRequest):
        find_model([tmp_path], name)


def test_version_directories(tmp_path: Path) -> None:
    directory = tmp_path / "m"
    for name in ("1", "12", "03", "0", "-4", "3abc", "abc", "warmup", "initial_state", "configs", "example_inputs"):
        (directory / name).mkdir(parents=True)
    (directory / "7").write_text("a file is no version")
    versions, warnings = find_versions(directory)
    assert versions == {1: directory / "1", 3: directory / "3", 12: directory / "12"}
    assert "ignore version directory '03' which contains leading zeros in its directory name" in warnings
    assert any("'3abc'" in warning for warning in warnings)


def policy(text: str) -> Any:
    return ConfigDocument.parse(f"version_policy {{ {text} }}".encode()).message.version_policy


@pytest.mark.parametrize(
    ("text", "served", "missing"),
    [
        (None, (5,), ()),
        ("latest { }", (5,), ()),
        ("latest { num_versions: 2 }", (3, 5), ()),
        ("latest { num_versions: 9 }", (1, 3, 5), ()),
        ("all { }", (1, 3, 5), ()),
        ("specific { versions: [ 5, 1 ] }", (1, 5), ()),
        ("specific { versions: [ 1, 2, 1 ] }", (1,), (2,)),
        ("specific { versions: 4 }", (), (4,)),
    ],
)
def test_version_policies(text: str | None, served: tuple[int, ...], missing: tuple[int, ...]) -> None:
    assert select_versions((3, 1, 5), None if text is None else policy(text)) == (served, missing)


def test_the_config_named_by_the_server(tmp_path: Path) -> None:
    directory = model(tmp_path)
    (directory / "configs").mkdir()
    (directory / "configs" / "small.pbtxt").write_text("max_batch_size: 2")
    assert read_model(directory, "small").config_bytes == b"max_batch_size: 2"
    assert read_model(directory, "other").config_bytes == b'backend: "onnxruntime"'
    (directory / "config.pbtxt").unlink()
    source = read_model(directory)
    assert source.config_bytes is None
    assert source.config_path == directory / "config.pbtxt"


def test_fingerprints_tell_what_changed(tmp_path: Path) -> None:
    directory = model(tmp_path, versions=("1", "2"))
    before = read_model(directory).fingerprint
    assert read_model(directory).fingerprint == before
    (directory / "example_inputs.json").write_text("{}")
    (directory / "1" / "__pycache__").mkdir()
    (directory / "1" / "__pycache__" / "model.pyc").write_bytes(b"")
    assert read_model(directory).fingerprint == before
    (directory / "2" / "model.onnx").write_bytes(b"other weights")
    now = read_model(directory).fingerprint
    assert now.version(1) == before.version(1)
    assert now.version(2) != before.version(2)
    assert (now.config, now.others) == (before.config, before.others)
    (directory / "labels.txt").write_text("cat")
    assert read_model(directory).fingerprint.others != now.others
    os.utime(directory / "config.pbtxt", ns=(1, 1))
    assert read_model(directory).fingerprint.config != now.config


def test_the_content_hash_follows_contents_only(tmp_path: Path) -> None:
    first, second = model(tmp_path, "a"), model(tmp_path, "b")
    os.utime(first / "1" / "model.onnx", ns=(1, 1))
    (second / "config.pbtxt").write_text("max_batch_size: 9")
    (second / "example_inputs.json").write_text("{}")
    assert content_hash(first) == content_hash(second)
    (second / "1" / "model.onnx").write_bytes(b"Weights")
    assert content_hash(first) != content_hash(second)
    (first / "1" / "model.onnx").rename(first / "1" / "other.onnx")
    assert content_hash(first) != content_hash(model(tmp_path, "c"))


def test_the_hash_of_the_example_inputs_follows_them_only(tmp_path: Path) -> None:
    directory = model(tmp_path, "a")
    none = example_inputs_hash(directory)
    (directory / "example_inputs.json").write_text("{}")
    written = example_inputs_hash(directory)
    assert written != none
    (directory / "1" / "model.onnx").write_bytes(b"Weights")
    assert example_inputs_hash(directory) == written
    (directory / "example_inputs").mkdir()
    (directory / "example_inputs" / "cat.jpg").write_bytes(b"cat")
    assert example_inputs_hash(directory) not in (none, written)


def test_paths_stay_inside(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "link").symlink_to(tmp_path)
    assert inside(base, "1/model.onnx") == base.resolve() / "1" / "model.onnx"
    for path in ("..", "../x", "a/../../x", "/etc/passwd", "link/x", ""):
        assert inside(base, path) is None, path


def test_override_files(tmp_path: Path) -> None:
    write_override_files(tmp_path, {"file:1/model.onnx": b"a", "labels.txt": b"b"})
    assert (tmp_path / "1" / "model.onnx").read_bytes() == b"a"
    assert (tmp_path / "labels.txt").read_bytes() == b"b"
    with pytest.raises(InvalidRequest, match=r"^Invalid file parameter 'file:\.\./x' with normalized path"):
        write_override_files(tmp_path, {"file:../x": b""})
    with pytest.raises(InvalidRequest, match="directory has been created as a file"):
        write_override_files(tmp_path, {"file:labels.txt/x": b""})
    for name in ("A" * 256, "A" * 256 + "/x", "1/" + "A" * 256, "a\0b"):  # no file can have such a name
        with pytest.raises(InvalidRequest, match=f"^Invalid file parameter 'file:{name}', "):
            write_override_files(tmp_path, {f"file:{name}": b""})


def test_a_version_beyond_64_bits_is_ignored(tmp_path: Path) -> None:
    versions, warnings = find_versions(model(tmp_path, "a", ("1", str(2**63 - 1), str(2**63), "9" * 30)))
    assert sorted(versions) == [1, 2**63 - 1]
    assert [warning.split("'")[1] for warning in warnings] == [str(2**63), "9" * 30]


def test_links_that_lead_back_up_do_not_go_round_for_ever(tmp_path: Path) -> None:
    directory = model(tmp_path, "a")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "vocabulary.txt").write_text("a")
    (directory / "1" / "shared").symlink_to(tmp_path / "shared")
    plain = content_hash(directory)
    for name in ("x", "y", "z"):
        (directory / "1" / name).symlink_to(directory)
        (directory / "1" / f"{name}1").symlink_to(".")
    assert read_model(directory).versions == {1: directory / "1"}
    assert content_hash(directory) == plain
    before = read_model(directory).fingerprint
    (tmp_path / "shared" / "vocabulary.txt").write_text("a b")  # other links are followed
    assert content_hash(directory) != plain
    assert read_model(directory).fingerprint != before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_what_has_no_contents_is_not_read(tmp_path: Path) -> None:
    directory = model(tmp_path, "a")
    plain = content_hash(directory)
    (directory / "1" / ".#model.py").symlink_to("user@host.1234")  # an editor's lock
    os.mkfifo(directory / "1" / "pipe")
    assert content_hash(directory) == plain
