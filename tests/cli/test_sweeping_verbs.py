"""sweep with Model Analyzer's file and a repository of its own, ab, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onnx_models import add_model

from workbench.cli import main
from workbench.records.runs import RunStore

DELAY = "dynamic_batching.max_queue_delay_microseconds"
FAST = ["-p", "150", "--warmup", "0.02"]
ANALYZER = """
profile_models:
  double:
    parameters: {concurrency: [1]}
    constraints: {perf_latency_p99: {max: 5000}, gpu_used_memory: {max: 1}}
    model_config_parameters: {max_batch_size: [4, 8]}
  spare:
    parameters: {concurrency: 1}
    model_config_parameters: {max_batch_size: 8}
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served") / "models"
    root.mkdir()
    for name in ("double", "spare"):
        add_model(root, name)
    return root


def test_a_file_of_model_analyzer_is_measured(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yml"
    config.write_text(ANALYZER)
    where = ["--model-repository", str(repository), "--runs", str(tmp_path / "runs")]
    code = main(["sweep", "--model-analyzer", str(config), *where, "--json", *FAST])
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert [(sweep["model"], len(sweep["points"])) for sweep in told["sweeps"]] == [("double", 2), ("spare", 1)]
    assert "gpu_used_memory" in shown.err, "what is left out is said"
    assert told["not_understood"]
    assert code == (0 if all(sweep["best"] for sweep in told["sweeps"]) else 1)
    assert [info.points for info in RunStore(tmp_path / "runs").list()] == [2, 1]
    assert main(["sweep", "other", "--model-analyzer", str(config), *where]) == 1
    assert "no model 'other'" in capsys.readouterr().err
    assert main(["sweep", "--model-analyzer", str(config), "--set", "max_batch_size=4", *where]) == 1
    assert main(["sweep", *where]) == 1
    assert "which model?" in capsys.readouterr().err


def test_an_interrupt_ends_all_sweeps_of_a_file_of_model_analyzer(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbench.profiling import SweepResult
    from workbench.session.server import Server

    begun: list[str] = []

    def stopped(server: Server, model: str, **options: object) -> SweepResult:
        begun.append(model)
        return SweepResult(model, {}, (), 1, stopped=True)

    monkeypatch.setattr(Server, "sweep", stopped)
    config = tmp_path / "config.yml"
    config.write_text(ANALYZER)
    assert main(["sweep", "--model-analyzer", str(config), "--model-repository", str(repository), *FAST]) == 130
    assert begun == ["double"]


def test_two_configurations_are_compared(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from workbench.session.opening import serve

    with serve(repository, name="ab-test"):
        where = ["double", "--server", "ab-test", "--runs", str(tmp_path), "--concurrency", "1", "--pairs", "2", *FAST]
        slow = ["--b", f"{DELAY}=30000", "--b", "dynamic_batching.preferred_batch_size=[4,8]"]
        assert main(["ab", *where, *slow, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["faster"] == "A", told["verdict"]
        assert told["sides"]["A"]["settings"] == {}
        settings = told["sides"]["B"]["settings"]
        assert settings == {DELAY: 30000, "dynamic_batching.preferred_batch_size": [4, 8]}
        assert {block["side"] for block in told["blocks"]} == {"A", "B"}
        assert main(["runs", "list", "--runs", str(tmp_path), "--json"]) == 0
        assert [row["kind"] for row in json.loads(capsys.readouterr().out)] == ["ab"]
        assert main(["ab", *where, "--a", "max_batch_size=4", "--a", "max_batch_size=8"]) == 1
        assert "twice" in capsys.readouterr().err
        assert main(["ab", *where, "--concurrency", "1,2"]) == 1
        assert "at one load" in capsys.readouterr().err
