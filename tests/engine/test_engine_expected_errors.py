"""What a load and the linter say of each bad configuration in Triton's own tests (../shared/cases/expected_errors.md).

A row is right where its case gives its text, or that of another row of the same case: such rows are alternatives. Every
row is either right or stands under ``NOT_COUNTED`` with the reason.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from onnx import helper
from onnx_models import TYPES, graph

from workbench.engine import InferenceEngine
from workbench.engine.linting import lint
from workbench.errors import WorkbenchError

SHARED = Path(__file__).parents[2].parent / "shared" / "cases"
UNSUPPORTED = "/expected_unsupported"
ABSENT = "its configuration is not among the cases"

NOT_COUNTED = {
    "autofill_noplatform/openvino": "needs OpenVINO model files: see tests/backends/test_openvino.py",
    "autofill_noplatform/pytorch": "needs TorchScript files: see tests/backends/test_pytorch_script.py",
    "autofill_noplatform/tensorrt": "needs TensorRT engines and a GPU",
    "custom_parameters/tensorrt": "needs TensorRT engines and a GPU",
    "cli_messages": "a command line, not a configuration",
}
"""The rows that are not counted, by the start of their case, and why."""

COUNTS = {
    "right": 84,
    ABSENT: 3,
    "needs OpenVINO model files: see tests/backends/test_openvino.py": 5,
    "needs TorchScript files: see tests/backends/test_pytorch_script.py": 2,
    "needs TensorRT engines and a GPU": 16,
    "a command line, not a configuration": 2,
}


class Row(NamedTuple):
    """A row of the table: its case, and the pattern of a text that is right for it."""

    case: str
    pattern: str


def rows() -> list[Row]:
    """All rows of the table."""
    file = SHARED / "expected_errors.md"
    found = []
    for line in file.read_text().splitlines() if file.exists() else ():
        match = re.match(r"- `([^`]+)` — (.*)", line)
        if match:
            # Triton's tests match with grep's basic expressions, where parentheses stand for themselves
            found.append(Row(match[1].removesuffix(UNSUPPORTED), re.sub(r"[()]", r"\\\g<0>", match[2])))
    return found


ROWS = rows()


def reason_not_counted(case: str) -> str | None:
    """Why the rows of a case are not counted; None where they are."""
    for start, reason in NOT_COUNTED.items():
        if case.startswith(start):
            return reason
    return None if (SHARED / "expected_errors" / case).is_dir() else ABSENT


CASES = sorted({row.case for row in ROWS if reason_not_counted(row.case) is None})


def is_right(case: str, said: str) -> bool:
    return any(re.search(row.pattern, said) for row in ROWS if row.case == case)


# ---- the repositories

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

IDENTITY = """backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: 16 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 16 }
instance_group { kind: KIND_CPU }
"""
"""The configuration to which a case that is only a part of one is added."""

PYTHON = """class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        {body}
        return config

    def execute(self, requests):
        raise NotImplementedError
"""

COMPLETIONS = {
    "conflicting_scheduler_sequence": "config.set_dynamic_batching()",
    "input_mismatch_datatype": 'config.add_input({"name": "INPUT1", "data_type": "TYPE_FP32", "dims": [4]})',
    "input_mismatch_dims": 'config.add_input({"name": "INPUT1", "data_type": "TYPE_FP32", "dims": [4]})',
    "input_missing_dims": 'config.add_input({"name": "INPUT1", "data_type": "TYPE_FP32"})',
    "input_wrong_property": (
        'config.add_input({"name": "INPUT1", "data_type": "TYPE_FP32", "dims": [4], "is_shape_tensor": True})'
    ),
    "output_mismatch_dims": 'config.add_output({"name": "OUTPUT1", "data_type": "TYPE_FP32", "dims": [4]})',
    "output_missing_dims": 'config.add_output({"name": "OUTPUT1", "data_type": "TYPE_FP32"})',
    "output_wrong_property": (
        'config.add_output({"name": "OUTPUT1", "data_type": "TYPE_FP32", "dims": [4], "label_filename": "l"})'
    ),
}
"""What the model of a case of Python's auto-completion adds to its configuration."""

UNKNOWN_PLATFORM = 'platform: "onnxruntime"'
"""Stands in some of the cases whose platform is to be appended."""

VERSIONS = {"simple": ("1", "3")}
"""Version directories of composing models that have other than one."""


def write(case: str, root: Path) -> str:
    """Writes the repository of a case; gives the name of the model that is bad."""
    folder, name = SHARED / "expected_errors" / case, case.rpartition("/")[2]
    parts = {path.name: path for path in folder.iterdir() if path.is_dir()}
    if not parts:
        parts = {name: folder}
    for model, source in parts.items():
        for version in VERSIONS.get(model, ("1",)):
            (root / model / version).mkdir(parents=True)
        (root / model / "config.pbtxt").write_text(config_of(case, source))
    files = root / name / "1"
    if case.startswith("autofill_noplatform/python"):
        (files / "model.py").write_text(PYTHON.format(body=COMPLETIONS[name]))
    elif case.startswith(("autofill_noplatform/onnx", "noautofill_platform")):
        (files / "model.onnx").write_bytes(SUM_AND_DIFFERENCE)
    return name


def config_of(case: str, folder: Path) -> str:
    """The configuration of a case, as its notes say that it is to be completed."""
    if (folder / "partial.pbtxt").exists():
        return IDENTITY + (folder / "partial.pbtxt").read_text()
    text = (folder / "config.pbtxt").read_text()
    if not is_strict(case):
        return text
    # a GPU that this machine may lack is named: a backend that asks no framework whether there is one
    platform = 'backend: "python"' if case.endswith("negative_gpu") else 'platform: "onnxruntime_onnx"'
    return f"{text.replace(UNKNOWN_PLATFORM, '')}\n{platform}\n"


def is_strict(case: str) -> bool:
    """Whether auto-completion is to be off."""
    return case.startswith("noautofill_platform")


def gpus_of(case: str) -> tuple[int, ...]:
    return (0, 1) if case.endswith("negative_gpu") else ()


# ---- tests


def each(cases: list[str]) -> pytest.MarkDecorator:
    """Runs a test for each case; without the reference material it is skipped, and says so."""
    absent = pytest.param("", marks=pytest.mark.skip(reason="no reference material: ../shared is absent"), id="absent")
    return pytest.mark.parametrize("case", cases or [absent])


@each(CASES)
def test_the_load_says_what_triton_says(tmp_path: Path, make_engine: Any, case: str) -> None:
    name = write(case, tmp_path)
    if case.endswith("runtime_escape"):  # Triton says so of a library that is there
        (tmp_path / name / "dummy_runtime").mkdir()
        (tmp_path / name / "dummy_runtime" / "libtriton_identity.so").write_bytes(b"")
    engine: InferenceEngine = make_engine(
        tmp_path, load_models=(), auto_complete=not is_strict(case), gpus=gpus_of(case)
    )
    if "valid_config_with_warn" in case:
        engine.load(name)
        said = "\n".join(event.text for event in engine.events.after() if event.level == "warning")
    else:
        with pytest.raises(WorkbenchError) as caught:
            engine.load(name)
        said = caught.value.message
        if said.endswith("failed to poll from model repository"):
            said = caught.value.hint  # Triton's wire text says no more, its log does
        else:
            assert said.startswith(f"load failed for model '{name}': ")
        reasons = [row.get("reason", "") for row in engine.repository_index() if row["name"] == name]
        assert all(each in said for each in reasons)
    assert is_right(case, said), said
    assert engine.is_live()


ELSEWHERE = {
    "autofill_noplatform/common/no_version": "decided by the files beside the configuration",
    "autofill_noplatform/custom/no_delimiter": "decided by the files beside the configuration",
    "autofill_noplatform/custom/unknown_backend.unknown": "decided by the backends of the server",
    "autofill_noplatform/onnx": "decided by the model file",
    "autofill_noplatform/python": "decided by model.py",
    "noautofill_platform/negative_gpu": "decided by the GPUs of the server",
}
"""The cases that the configurations of a repository do not decide."""

DECIDED = [case for case in CASES if not case.startswith(tuple(ELSEWHERE))]


@each(DECIDED)
def test_the_linter_says_what_triton_says(tmp_path: Path, case: str) -> None:
    name = write(case, tmp_path)
    reports = [report for report in lint(tmp_path) if report.path.parent.name == name]
    said = [finding.message for report in reports for finding in report.findings]
    assert any(is_right(case, each) for each in said), said


def test_every_row_is_right_or_has_a_reason(shared: Path) -> None:
    counted = Counter(reason_not_counted(row.case) or "right" for row in ROWS)
    print(f"{len(ROWS)} rows: {dict(counted)}")
    assert dict(counted) == COUNTS
    assert len(DECIDED) == 59
