"""What a load says of each bad configuration in Triton's own tests (../shared/cases/expected_errors.md)."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from onnx import helper
from onnx_models import TYPES, graph

from workbench.engine import InferenceEngine
from workbench.errors import WorkbenchError

SHARED = Path(__file__).parents[2].parent / "shared" / "cases"
GROUPS = (
    "autofill_noplatform/onnx",
    "autofill_noplatform/common",
    "autofill_noplatform/custom",
    "noautofill_platform",
    "special_cases",
)
WITHOUT_A_CONFIG = ("autofill_noplatform/common/no_version",)


def cases() -> dict[str, list[str]]:
    """Case -> patterns, any of which is right; rows ``CASE/expected_unsupported`` are alternatives of their case."""
    found: dict[str, list[str]] = defaultdict(list)
    file = SHARED / "expected_errors.md"
    for line in file.read_text().splitlines() if file.exists() else ():
        match = re.match(r"- `([^`]+)` — (.*)", line)
        if not match or not match[1].startswith(GROUPS):
            continue
        case = match[1].removesuffix("/expected_unsupported")
        if (SHARED / "expected_errors" / case / "config.pbtxt").exists() or case in WITHOUT_A_CONFIG:
            # Triton's tests match with grep's basic expressions, where parentheses stand for themselves
            found[case].append(re.sub(r"[()]", r"\\\g<0>", match[2]))
    return dict(found)


CASES = cases()

SUM_AND_DIFFERENCE = graph(
    [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["s"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["d"]),
        helper.make_node("Cast", ["s"], ["OUTPUT0"], to=TYPES["INT8"]),
        helper.make_node("Cast", ["d"], ["OUTPUT1"], to=TYPES["INT8"]),
    ],
    [("INPUT0", "INT32", ("b", 16)), ("INPUT1", "INT32", ("b", 16))],
    [("OUTPUT0", "INT8", ("b", 16)), ("OUTPUT1", "INT8", ("b", 16))],
)


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_load_says_what_triton_says(tmp_path: Path, make_engine: Any, case: str) -> None:
    name = case.rpartition("/")[2]
    directory = tmp_path / name
    (directory / "1").mkdir(parents=True)
    config = SHARED / "expected_errors" / case / "config.pbtxt"
    text = config.read_text() if config.exists() else None
    strict = case.startswith("noautofill_platform")
    if strict:
        assert text is not None
        text = text.replace('platform: "onnxruntime"', "")
        # a GPU that this machine may lack is named: a backend that asks no framework whether there is one
        text += '\nbackend: "python"\n' if name == "negative_gpu" else '\nplatform: "onnxruntime_onnx"\n'
    if text is not None:
        (directory / "config.pbtxt").write_text(text)
    if "custom" not in case and "no_version" not in case:
        (directory / "1" / "model.onnx").write_bytes(SUM_AND_DIFFERENCE)
    gpus = (0, 1) if name == "negative_gpu" else ()
    engine: InferenceEngine = make_engine(tmp_path, load_models=(), auto_complete=not strict, gpus=gpus)
    with pytest.raises(WorkbenchError) as caught:
        engine.load(name)
    said = f"{caught.value.message}\n{caught.value.hint}"
    assert any(re.search(pattern, said) for pattern in CASES[case]), said
    assert engine.is_live()


def test_the_cases_are_there(shared: Path) -> None:
    assert len(CASES) > 30
