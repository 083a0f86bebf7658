"""Building the sample repository: what appears, when it is built again, and what goes wrong in words."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from workbench.errors import NotFound
from workbench.samples import BuildProgress, SampleError, build, model_names, sources_directory
from workbench.samples.builder import NOTICE, STAMP
from workbench.samples.recipes import RECIPES


def _no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    # Port 9 (discard) of loopback: refused at once, and nothing leaves the machine.
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")


def test_every_sample_is_complete(repository: Path) -> None:
    assert sorted(path.name for path in repository.iterdir()) == sorted(model_names())
    for name, recipe in RECIPES.items():
        folder = repository / name
        assert (folder / "config.pbtxt").read_bytes() == (sources_directory() / name / "config.pbtxt").read_bytes()
        assert (folder / "example_inputs.json").is_file()
        notice = (folder / "1" / "NOTICE.txt").read_text()
        assert "Apache License, Version 2.0" in notice
        if recipe.wheel is not None:
            assert recipe.wheel.sha256 in notice
        stamp = json.loads((folder / "1" / "build.json").read_text())
        for file in recipe.files:
            assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == stamp["files"][file]
    assert not list(repository.rglob("*.part"))
    assert (repository / "tokenizer" / "1" / "model.py").is_file()


def test_a_second_build_changes_no_file_and_needs_no_network(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_index(monkeypatch)
    before = {path: path.stat().st_mtime_ns for path in repository.rglob("*") if path.is_file()}
    steps: list[BuildProgress] = []
    models = build(repository, cache_dir=tmp_path / "empty", progress=steps.append)
    assert {path: path.stat().st_mtime_ns for path in repository.rglob("*") if path.is_file()} == before
    assert [model.name for model in models] == list(model_names())
    assert not any(model.built for model in models)
    assert [(step.model, step.message) for step in steps] == [(name, "up to date") for name in model_names()]
    total = len(model_names())
    assert [(step.done, step.total) for step in steps] == [(done, total) for done in range(1, total + 1)]


def test_missing_weights_are_made_and_what_people_changed_stays(repository: Path, tmp_path: Path) -> None:
    config = sources_directory() / "magika" / "config.pbtxt"
    target = tmp_path / "repository"
    (target / "magika").mkdir(parents=True)
    edited = config.read_bytes().replace(b"max_batch_size: 16", b"max_batch_size: 8")
    assert edited != config.read_bytes()
    (target / "magika" / "config.pbtxt").write_bytes(edited)

    assert build(target, models=["magika"])[0].built
    weights = target / "magika" / "1" / "model.onnx"
    good = weights.read_bytes()
    assert good == (repository / "magika" / "1" / "model.onnx").read_bytes()
    assert (target / "magika" / "config.pbtxt").read_bytes() == edited

    for missing in (weights, target / "magika" / "labels.txt"):
        missing.unlink()
        assert build(target, models=["magika"])[0].built
        assert weights.read_bytes() == good
        assert not build(target, models=["magika"])[0].built

    weights.write_bytes(b"a model of the user's own")
    (kept,) = build(target, models=["magika"])
    assert (kept.built, kept.note) == (False, "changed since it was built, left as it is")
    (target / "magika" / "1" / "build.json").unlink()
    (kept,) = build(target, models=["magika"])
    assert (kept.built, kept.note) == (False, "weights of another origin, left as they are")
    assert weights.read_bytes() == b"a model of the user's own"

    assert build(target, models=["magika"], force=True)[0].built
    assert weights.read_bytes() == good
    assert (target / "magika" / "config.pbtxt").read_bytes() == edited


def test_an_older_recipe_is_built_again(tmp_path: Path) -> None:
    build(tmp_path, models=["tokenizer"])
    stamp = tmp_path / "tokenizer" / "1" / "build.json"
    now = json.loads(stamp.read_text())
    stamp.write_text(json.dumps({**now, "recipe": 0}))
    assert build(tmp_path, models=["tokenizer"])[0].built
    assert json.loads(stamp.read_text()) == now


def _vectors(model: Path) -> np.ndarray[Any, Any]:
    """The columns that vector_search searches in."""
    (found,) = (each for each in onnx.load(str(model)).graph.initializer if each.name == "vectors")
    return numpy_helper.to_array(found)


def test_a_sentence_more_is_a_vector_more_and_the_others_stay_as_they_are(repository: Path, tmp_path: Path) -> None:
    """Also: another build draws the same vectors from the seed."""
    shutil.copytree(repository / "vector_search", tmp_path / "vector_search")
    sentences = tmp_path / "vector_search" / "sentences.txt"
    count = len(sentences.read_text().splitlines())
    assert not build(tmp_path, models=["vector_search"])[0].built
    with sentences.open("a") as file:
        file.write("The lighthouse keeper counts the ships.\n")

    assert build(tmp_path, models=["vector_search"])[0].built
    assert not build(tmp_path, models=["vector_search"])[0].built
    before = _vectors(repository / "vector_search" / "1" / "model.onnx")
    after = _vectors(tmp_path / "vector_search" / "1" / "model.onnx")
    assert before.shape == after.shape == (384, 100_000)
    changed = np.abs(before - after).max(axis=0) > 1e-5
    assert np.flatnonzero(changed).tolist() == [count]
    np.testing.assert_allclose(np.linalg.norm(after, axis=0), 1, atol=1e-5)


def test_the_ensemble_needs_nothing_but_its_version_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _no_index(monkeypatch)
    (built,) = build(tmp_path, models=["semantic_search"], cache_dir=tmp_path / "empty")
    assert (built.built, built.size) == (True, 0)
    assert (tmp_path / "semantic_search" / "1").is_dir()
    assert not build(tmp_path, models=["semantic_search"], cache_dir=tmp_path / "empty")[0].built


def test_models_that_lie_under_each_others_names_are_left_there(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository / "magika", tmp_path / "tokenizer")
    shutil.copytree(repository / "tokenizer", tmp_path / "magika")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for model in build(tmp_path, models=["magika", "tokenizer"]):
        assert (model.built, model.note) == (False, "another model lies under this name, left as it is")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_builds_at_the_same_time_both_succeed(repository: Path, tmp_path: Path) -> None:
    problems: list[BaseException] = []

    def one() -> None:
        try:
            build(tmp_path, models=["magika", "tokenizer"], force=True)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    for name in ("magika", "tokenizer"):
        for file in RECIPES[name].files:
            assert (tmp_path / name / file).read_bytes() == (repository / name / file).read_bytes()
    assert not list(tmp_path.rglob("*.part"))
    assert not any(model.built for model in build(tmp_path, models=["magika", "tokenizer"]))


def test_without_network_the_error_says_what_and_what_to_do_and_nothing_half_built_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_index(monkeypatch)
    with pytest.raises(SampleError, match=r"cannot download magika 1\.0\.3") as caught:
        build(tmp_path / "repository", models=["magika"], cache_dir=tmp_path / "cache")
    assert "PIP_INDEX_URL" in caught.value.hint
    assert list((tmp_path / "cache").iterdir()) == []
    assert not (tmp_path / "repository" / "magika" / "1").exists()


def test_mlp_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _no_index(monkeypatch)
    (built,) = build(tmp_path / "repository", models=["mlp_4096"], cache_dir=tmp_path / "cache")
    assert built.built
    assert built.size > 2 * 4096 * 4096 * 4


def test_an_unknown_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no sample model 'resnet'") as caught:
        build(tmp_path / "repository", models=["mlp_4096", "resnet"])
    assert "minilm" in caught.value.hint
    assert not (tmp_path / "repository").exists()


def test_a_repository_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SampleError, match="cannot write the sample model 'mlp_4096'"):
        build(tmp_path / "file", models=["mlp_4096"])


def test_the_wheel_carries_the_sources_and_no_weights() -> None:
    """Named one by one in pyproject.toml, since weights lie beside them in a checkout."""
    root = Path(__file__).parents[2]
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    included = {path for path in wheel.get("only-include", []) if path.startswith("model_repository/")}
    built = {f"{name}/{file}" for name, recipe in RECIPES.items() for file in (*recipe.files, STAMP, NOTICE)}
    sources = root / "model_repository"
    found = {
        path.relative_to(sources).as_posix()
        for name in RECIPES
        for path in (sources / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {path.removeprefix("model_repository/") for path in included} == found - built
    assert wheel["sources"]["model_repository"] == "workbench/samples/model_repository"


def test_a_missing_package_is_named_with_the_way_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "workbench.samples.graphs", raising=False)
    monkeypatch.delattr("workbench.samples.graphs", raising=False)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(SampleError, match="the package 'onnx'") as caught:
        build(tmp_path, models=["mlp_4096"])
    assert "serving-workbench[samples]" in caught.value.hint
    assert not (tmp_path / "mlp_4096" / "1" / "model.onnx").exists()
