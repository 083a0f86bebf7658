"""The command line as a person and a program use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import workbench
from workbench.cli import VERBS, main

CONFIG = b'name: "m"\nbackend: "python"\nmax_batch_size: 4 # rows\ninput { name: "X" data_type: TYPE_FP32 dims: 4 }\n'


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "workbench.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "m" / "config.pbtxt"
    path.parent.mkdir()
    path.write_bytes(CONFIG)
    return path


def test_without_a_verb_the_verbs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for verb in VERBS:
        assert f"  {verb} " in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_verb_that_is_not_there_is_an_error_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["swep"]) == 2
    assert "Did you mean 'sweep'?" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert f"workbench {verb}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["profile"], "the following arguments are required: MODEL"),
        (["profile", "m", "--concurency", "4"], "did you mean --concurrency?"),
        (["runs", "show", "--jason"], "did you mean --json?"),
        (["runs"], "the following arguments are required: ACTION"),
        (
            ["build", "m", "--to", "tensorrt", "--best"],
            "what to do: one precision: --fp16, --bf16 or --int8; workbench",
        ),
        (["build", "m", "--to", "tensorrt", "--workspace=9"], "what to do: --memPoolSize=workspace:MIB; workbench"),
        (["build", "--onnx=m.onnx", "--saveEngine=m.engine", "--fp16"], "what to do: MODEL is the first argument"),
        (["build", "m", "--to", "tensorrt", "--fp8"], "what to do: workbench build --help"),
    ],
)
def test_a_wrong_command_line_is_told_in_two_lines(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert f"workbench {words[0]}" in shown
    assert "--help shows the options" in shown
    assert len(shown.splitlines()) == 2, "the options are not listed before what is wrong"


def test_the_version_is_told() -> None:
    answer = run("--version")
    assert (answer.returncode, answer.stdout.strip()) == (0, f"workbench {workbench.__version__}")


def test_config_prints_what_is_written_and_nothing_more(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", str(config)]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "name": "m",
        "backend": "python",
        "max_batch_size": 4,
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}],
    }
    assert main(["config", str(config.parent), "--text"]) == 0
    assert "max_batch_size: 4" in capsys.readouterr().out


def test_config_of_a_broken_file_points_at_the_place(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_bytes(b'name: "m"\nmax_batch_size: MAX\n')
    assert main(["config", str(config)]) == 1
    assert "config.pbtxt:2:17: Expected integer, got: MAX" in capsys.readouterr().err
    assert main(["config", str(config), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["column"] == 17


def test_config_of_an_absent_file_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", str(tmp_path / "none")]) == 1
    assert "cannot read" in capsys.readouterr().err


def test_lint_finds_places_and_fixes(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_bytes(CONFIG.replace(b"TYPE_FP32", b"TYPE_BYTES"))
    assert main(["lint", str(config.parent.parent), "--json"]) == 1
    (report,) = json.loads(capsys.readouterr().out)["files"]
    assert report["ok"] is False
    finding = next(f for f in report["findings"] if f["severity"] == "error")
    assert {"rule", "severity", "line", "column", "message", "fix"} <= set(finding)
    assert finding["line"] == 4
    assert "TYPE_STRING" in finding["fix"]["title"]
    assert main(["lint", str(config), "--fix"]) == 0
    assert b"TYPE_STRING" in config.read_bytes()
    assert b"# rows" in config.read_bytes()


def test_lint_of_nothing_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", str(tmp_path)]) == 1
    assert "no config.pbtxt" in capsys.readouterr().err


def test_doctor_names_each_backend_and_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.backends.probe.names", lambda: ["onnxruntime", "python"])
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    for name in ("onnxruntime", "python"):
        entry = report["backends"][name]
        assert entry["works"] is True
        assert entry["version"]
        assert set(entry) == {"works", "version", "device", "why", "install"}
    assert report["devices"]["memory_gib"] > 0
    assert report["devices"]["gpus"] or "no GPU here" in report["devices"]["gpu_note"]
    assert main(["doctor"]) == 0


def test_ps_without_servers_says_how_to_start_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = run("ps", env={**os.environ, "XDG_STATE_HOME": str(tmp_path)})
    assert (answer.returncode, "workbench serve" in answer.stdout) == (0, True)
    answer = run("ps", "--json", env={**os.environ, "XDG_STATE_HOME": str(tmp_path)})
    assert json.loads(answer.stdout) == []


def test_a_verb_that_needs_a_server_says_so_when_none_runs(tmp_path: Path) -> None:
    answer = run("profile", "m", env={**os.environ, "XDG_STATE_HOME": str(tmp_path)})
    assert answer.returncode == 1
    assert "no server runs here" in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        pytest.param(["--set", "max_batch_size"], "cannot read --set", id="no value"),
        pytest.param(["--set", "a=[1,"], "cannot read --set", id="broken JSON"),
    ],
)
def test_sweep_refuses_a_grid_that_it_cannot_read(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "m", *arguments]) == 1
    assert text in capsys.readouterr().err


def test_models_build_makes_one_sample(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert repository.is_dir()  # the download is there
    assert main(["models", "build", "--to", str(tmp_path / "r"), "--model", "magika", "--json"]) == 0
    (built,) = json.loads(capsys.readouterr().out)
    assert built["name"] == "magika"
    assert (tmp_path / "r" / "magika" / "1" / "model.onnx").is_file()
