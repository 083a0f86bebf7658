"""The demo end to end on real models, and its advice under exchanged names."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import main
from workbench.config import ConfigDocument

pytestmark = pytest.mark.timeout(300)


def demo(repository: Path, to: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    arguments = ["--model-repository", str(repository), "--to", str(to), "--seconds", "1.2", "--json"]
    assert main(["demo", *arguments, "--model", "mlp_4096", "--model", "magika"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)["models"]
    assert json.loads((to / "summary.json").read_text())["models"] == printed
    return printed


def exchange(repository: Path, to: Path) -> None:
    """The two model directories under each other's name: files, configuration and example inputs together."""
    for name, other in (("mlp_4096", "magika"), ("magika", "mlp_4096")):
        shutil.copytree(repository / name, to / other, copy_function=_link)
        config = to / other / "config.pbtxt"
        text = config.read_text()
        config.unlink()
        config.write_text(re.sub(rf'^name: "{name}"', f'name: "{other}"', text, flags=re.MULTILINE))


def _link(source: str, target: str) -> None:
    Path(target).symlink_to(source)


@pytest.mark.parametrize("names", ["exchanged", pytest.param("their own", marks=pytest.mark.full)])
def test_batching_is_turned_on_where_it_pays_and_the_names_do_not_matter(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], names: str
) -> None:
    pays, does_not = "mlp_4096", "magika"
    if names == "exchanged":
        exchange(repository, tmp_path / "exchanged")
        repository, pays, does_not = tmp_path / "exchanged", does_not, pays
    models = demo(repository, tmp_path / "demo", capsys)
    mlp, magika = models[pays], models[does_not]
    assert (mlp["batching"], magika["batching"]) == ("on", "off")
    assert mlp["after"]["throughput"] >= 3 * mlp["before"]["throughput"]
    for outcome in (mlp, magika):
        for when in ("before", "after"):
            figures = outcome[when]
            assert figures["failed"] == 0
            assert 0 < figures["p50_ms"] <= figures["p99_ms"]
            assert figures["mean_batch"] >= 1

    changed = {key for key in mlp["after"]["config"] if mlp["after"]["config"][key] != mlp["before"]["config"].get(key)}
    assert changed == {"max_batch_size", "dynamic_batching"}
    assert magika["after"]["config"] == magika["before"]["config"]

    exported = tmp_path / "demo" / "export" / "model_repository" / pays / "config.pbtxt"
    written = ConfigDocument.parse(exported.read_bytes()).message
    assert written.max_batch_size == mlp["after"]["config"]["max_batch_size"]
    source = ConfigDocument.parse((repository / pays / "config.pbtxt").read_bytes())
    assert source.message.max_batch_size == 1, "the demo never touches the user's files"


def test_an_ensemble_is_not_tuned_but_what_it_is_made_of(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model-repository", str(repository), "--to", str(tmp_path / "demo"), "--model", "semantic_search"]
    assert main(["demo", *arguments]) == 1
    said = capsys.readouterr().err
    assert "'semantic_search' is an ensemble and has no batching of its own" in said
    assert "tokenizer, minilm, vector_search" in said
    assert not (tmp_path / "demo").exists()


def test_a_model_that_streams_is_not_tuned(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model-repository", str(repository), "--to", str(tmp_path / "demo"), "--model", "generator"]
    assert main(["demo", *arguments]) == 1
    said = capsys.readouterr().err
    assert "'generator' answers in streams and takes no batches" in said
    assert "workbench profile generator" in said
