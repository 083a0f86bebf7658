"""What the linter says about the troubles that people report in public; each test has the thread's name."""

from __future__ import annotations

from pathlib import Path

import pytest
from lint_cases import BATCHING, IO, PAIR, PY, TWO, WARM, Files, change, ensemble, onnx, py, write

import workbench as wb

LEVELS = "dynamic_batching { priority_levels: 2 default_priority_level: 2 }\n"


def said(root: Path, files: Files) -> list[tuple[str, str, str]]:
    """Rule, severity and message of every finding."""
    report = wb.lint(write(root, files))
    return [(each.rule, each.severity, each.message) for file in report for each in file.findings]


def test_f05_server_6055_priority_is_lost_inside_an_ensemble(tmp_path: Path) -> None:
    files = ensemble(TWO) | py(BATCHING) | py(BATCHING + LEVELS, "n")
    text = "priority sent to ensemble 'e', but step 'm' declares no priority_levels"
    assert said(tmp_path, files) == [("priority-not-everywhere", "hint", text)]


def test_f13_onnxruntime_backend_148_preferred_sizes_without_a_maximum(tmp_path: Path) -> None:
    (found,) = said(tmp_path, onnx('platform: "onnxruntime_onnx"\ndynamic_batching { preferred_batch_size: [ 2 ] }\n'))
    assert found[0] == "preferred-above-max"
    assert found[2].endswith("must be <= max batch size for m (max_batch_size is 0: not set)")


@pytest.mark.parametrize("reshape", ["reshape { }", "reshape: { shape: [ ] }"])
def test_f18_server_7355_an_empty_reshape_in_an_ensemble(tmp_path: Path, reshape: str) -> None:
    scalar = change(BATCHING, "dims: [ 4 ]", f"dims: [ 1 ] {reshape}")
    files = ensemble(TWO, io=change(IO, "[ 4 ]", "[ 1 ]")) | py(scalar) | py(BATCHING, "n")
    assert said(tmp_path, files) == []


def test_f46_server_4331_stray_folders_make_no_noise(tmp_path: Path) -> None:
    files = {
        **py(BATCHING),
        ".ipynb_checkpoints/config-checkpoint.pbtxt": "x",
        "README": "x",
        "m/.ipynb_checkpoints/config-checkpoint.pbtxt": "max_batch_size: [",
        "m/config.pbtxt~": "x",
        "m/.config.pbtxt.swp": "x",
    }
    assert said(tmp_path, files) == []
    noisy = {"m/docs/": "", "m/01/": "", "m/1.bak/": ""}
    found = said(tmp_path, noisy)
    assert [(rule, severity) for rule, severity, _ in found] == [("version-directory", "hint")] * 3


def test_f61_server_4412_warm_up_that_cannot_work(tmp_path: Path) -> None:
    no_batch = change(BATCHING, "max_batch_size: 8\n", "")
    name = "image_arrays"
    config = change(BATCHING, '"A"', f'"{name}"')
    files = {
        **py(no_batch + change(WARM, "batch_size: 1", "batch_size: 256"), "postprocess"),
        **py(config + change(WARM, '"A"', '"image_array"'), "key"),
        **py(config + change(WARM, '"A"', '"input"'), "other_key"),
        **py(BATCHING + change(WARM, "zero_data: true", "zero_data: false"), "choice"),
    }
    found = {(rule, message) for rule, _, message in said(tmp_path, files)}
    assert ("warmup-batch", "batch size 256 for 'postprocess', max allowed is 0") in found
    assert ("warmup-input", 'no input "image_array"; did you mean "image_arrays"?') in found
    assert ("warmup-input", 'no input "input"; did you mean "image_arrays"?') in found
    assert any(rule == "warmup-data" and message.startswith("zero_data: false") for rule, message in found)
    assert all(file.ok for file in wb.lint(tmp_path, fix=True))


@pytest.mark.parametrize(
    "head",
    [
        "dynamic_batching { }\n",
        "dynamic_batching {\n  preferred_batch_size: [ 4 ]\n}\n",
        "instance_group [ { count: 2 } ]\n",
        WARM,
        "optimization { }\n",
    ],
)
def test_f65_model_analyzer_400_what_an_ensemble_cannot_have(tmp_path: Path, head: str) -> None:
    write(tmp_path, ensemble(TWO, head) | PAIR)
    before = wb.lint(tmp_path)
    assert not before.ok
    after = wb.lint(tmp_path, fix=True)
    assert [each.message for file in after for each in file.findings] == []
    assert (tmp_path / "e" / "config.pbtxt").read_text() == str(ensemble(TWO, "")["e/config.pbtxt"])
    assert (tmp_path / "m" / "1" / "model.py").read_text() == PY
