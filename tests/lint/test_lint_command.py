"""``workbench lint`` and ``wb.lint``: what is checked, what comes out, and what it means to a program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lint_cases import BATCHING, ORT, PAIR, TWO, change, ensemble, onnx, py, step, write

import workbench as wb
from workbench.cli.__main__ import main
from workbench.errors import ConfigError, InvalidRequest, NotFound

TWO_WRONG = step("m", "A=A", "B=t") + step("n", "AA=t", "B=B")
WRONG = change(BATCHING, "max_batch_size: 8", "max_batch_size: -1")


def rules(*paths: Path, **options: object) -> list[str]:
    return [each.rule for file in wb.lint(*paths, **options) for each in file.findings]  # type: ignore[arg-type]


def test_the_exit_code_says_whether_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {**py(BATCHING, "good"), **onnx('platform: "onnxruntime_onnx"\n' + ORT, "hinted")})
    assert main(["lint", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 files: 1 hint"
    write(tmp_path, py(WRONG, "bad"))
    assert main(["lint", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    place = f"{tmp_path / 'bad' / 'config.pbtxt'}:2:17"
    assert f"{place}: error: 'max_batch_size' must be non-negative value for bad [validation]" in out
    assert "    fix: Set max_batch_size to 0" in out
    assert out.splitlines()[-1] == "5 files: 1 error, 1 hint (1 fix offered: --fix)"
    assert main(["lint", str(tmp_path), "--fix"]) == 0
    assert "fixed: Set max_batch_size to 0 [validation]" in capsys.readouterr().out


def test_json_is_what_a_program_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {**py(WRONG), "docs/": ""})
    assert main(["lint", str(tmp_path), "--json"]) == 1
    files = {
        Path(file["path"]).relative_to(tmp_path).as_posix(): file
        for file in json.loads(capsys.readouterr().out)["files"]
    }
    assert set(files) == {"m/config.pbtxt", "m/1/model.py", "docs"}
    assert files["m/1/model.py"]["ok"]
    assert not files["docs"]["ok"]
    (finding,) = files["m/config.pbtxt"]["findings"]
    assert set(finding) == {"rule", "severity", "line", "column", "message", "fix"}
    assert finding["fix"] == {
        "title": "Set max_batch_size to 0",
        "edits": [{"path": "max_batch_size", "op": "set", "value": 0}],
    }


def test_rules_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--explain", "batch-axis-twice"]) == 0
    assert capsys.readouterr().out.startswith(
        "batch-axis-twice (hint)\n    max_batch_size > 0 adds the batch axis by itself"
    )
    assert main(["lint", "--rules", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rules"]
    assert {"rule", "severity", "explanation", "fix"} == set(rows[0])
    assert len(rows) > 80
    assert main(["lint", "--explain", "batch-axis-twise"]) == 1
    assert "did you mean 'batch-axis-twice'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["nowhere"], [".", "--triton-release", "newest"], [".", "--rate-limit-resource", "R"]]
)
def test_what_makes_no_sense_is_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(write(tmp_path, py(BATCHING)))
    assert main(["lint", *arguments]) == 1
    assert capsys.readouterr().err.startswith("workbench lint: ")


def test_an_empty_directory_is_no_repository(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no config\.pbtxt at"):
        wb.lint(tmp_path)
    with pytest.raises(InvalidRequest):
        wb.lint()


def test_one_model_is_checked_with_those_beside_it(tmp_path: Path) -> None:
    write(tmp_path, ensemble(TWO_WRONG) | PAIR | py(WRONG, "other"))
    assert set(rules(tmp_path / "e")) == {"ensemble-tensors"}
    assert rules(tmp_path / "e" / "config.pbtxt") == rules(tmp_path / "e")
    assert rules(tmp_path / "m") == []
    assert rules(tmp_path / "m", tmp_path / "other") == ["validation"]


def test_an_ensemble_without_its_models_is_not_refused(tmp_path: Path) -> None:
    write(tmp_path, ensemble(TWO))
    assert rules(tmp_path / "e") == ["ensemble-not-checked"]
    assert set(rules(tmp_path)) == {"ensemble-dependency"}


def test_a_lone_file_needs_no_model_around_it(tmp_path: Path) -> None:
    write(tmp_path, {"config.pbtxt": BATCHING, "draft.pbtxt": WRONG})
    assert rules(tmp_path / "config.pbtxt") == []
    assert rules(tmp_path / "draft.pbtxt") == ["validation"]


def test_several_repositories_are_one_server(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", ensemble(TWO) | py(BATCHING)), write(tmp_path / "two", py(BATCHING, "n"))
    assert rules(one) == ["ensemble-dependency"]
    assert rules(one, two) == []
    write(two, py(BATCHING))
    found = rules(one, two)
    assert found.count("duplicate-model") == 2
    assert "ensemble-dependency" in found


def test_fixes_are_written_over_the_whole_repository(tmp_path: Path) -> None:
    write(
        tmp_path,
        ensemble(change(TWO, '"m"', '"mm"'), "max_batch_size: 16\n") | PAIR | py('name: "x"\n' + BATCHING, "y"),
    )
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    report = wb.lint(tmp_path, fix=True)
    assert report.ok
    written = {
        path.relative_to(tmp_path).as_posix() for path, stamp in stamps.items() if path.stat().st_mtime_ns != stamp
    }
    assert written == {"e/config.pbtxt", "y/config.pbtxt"}
    assert {str(file.path.relative_to(tmp_path)): len(file.fixed) for file in report if file.fixed} == {
        "e/config.pbtxt": 2,
        "y/config.pbtxt": 1,
    }
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(stamps)


def test_what_cannot_be_read_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, py(BATCHING))

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigError, match=r"cannot read .*Permission denied") as caught:
        wb.lint(tmp_path)
    assert caught.value.where == str(tmp_path / "m")


def test_a_chain_of_ensembles_names_the_model_that_is_at_fault(tmp_path: Path) -> None:
    outer = ensemble(step("e", "A=A", "B=t") + step("n", "A=t", "B=B"), name="outer")
    write(tmp_path, outer | ensemble(TWO) | py(WRONG) | py(BATCHING, "n"))
    found = {
        str(file.path.parent.name): [each.message for each in file.findings]
        for file in wb.lint(tmp_path)
        if file.findings
    }
    inner = "ensemble e contains models that are not available or ambiguous: m"
    refused = "'max_batch_size' must be non-negative value for m"
    assert found["m"] == [refused]
    assert found["e"] == [f"{inner} ('m' is refused: {refused})"]
    assert found["outer"] == [
        f"ensemble 'outer' depends on 'e' which is not valid. Model 'e' failed with error: {inner}"
    ]


@pytest.mark.parametrize("path", [".", "config.pbtxt", "../m", "1/.."])
def test_a_model_is_checked_from_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    write(tmp_path, py('name: "x"\n' + BATCHING))
    monkeypatch.chdir(tmp_path / "m")
    assert [each.message for file in wb.lint(path) for each in file.findings] == [
        "unexpected directory name 'm' for model 'x', directory name must equal model name"
    ]
