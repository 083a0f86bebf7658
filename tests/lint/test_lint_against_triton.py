"""What the linter calls an error, the real Triton 2.51 refuses, with the same words; what it does not, loads.

One server in explicit mode: each repository of the tables is written into its directory, asked for, and taken away.
"""

from __future__ import annotations

import json
import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from lint_cases import CASES, Files, write
from real_triton import real_triton
from test_lint_texts import ROWS

import workbench as wb

pytestmark = [pytest.mark.full, pytest.mark.oracle]

MODEL_PY = """import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensors = [pb_utils.Tensor("B", pb_utils.get_input_tensor_by_name(request, "A").as_numpy())]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses
"""

OTHER_WORDS = {
    "10.43": "no ONNX Runtime in this build",
    "10.42": "the backend directory's own words",
    "10.40": "GPUs of the machine",
    "10.4": "no ONNX Runtime in this build",
    "4.4": "the rate limiter is off",
    "10.41": "model_metrics came with 24.11",
    "8": "texts carry a request id",
}
"""Rows that this binary cannot tell."""


CLEAN = ("ensemble-tensors", "warmup-input", "warmup-data", "sequence-control", "io-reshape", "priority-level")


def runnable(files: Files) -> bool:
    """Whether the binary can load such a repository: Python code and ensembles; it hangs where model.py is missing."""
    models = {name.split("/")[0] for name in files}
    python = all(
        f"{model}/1/model.py" in files or "ensemble" in str(files.get(f"{model}/config.pbtxt")) for model in models
    )
    text = " ".join(str(content) for name, content in files.items() if name.endswith("config.pbtxt"))
    return python and not re.search("onnxruntime|tensorrt|tensorflow|pytorch|torch_aoti|KIND_GPU|kaldi", text)


def with_code(files: Files) -> Files:
    return {name: MODEL_PY if name.endswith("model.py") else content for name, content in files.items()}


def load(address: str, model: str) -> str:
    """The error of a load, empty where it works."""
    call = urllib.request.Request(f"{address}/v2/repository/models/{model}/load", b"", method="POST")
    try:
        with urllib.request.urlopen(call, timeout=60):
            return ""
    except urllib.error.HTTPError as error:
        return str(json.loads(error.read())["error"])


def ask(address: str, action: str) -> None:
    urllib.request.urlopen(
        urllib.request.Request(f"{address}/v2/repository/{action}", b"", method="POST"), timeout=60
    ).close()


@pytest.mark.timeout(900)
def test_lint_and_triton_agree(oracle: Path, tmp_path: Path) -> None:
    root, log = tmp_path / "models", tmp_path / "log"
    root.mkdir()
    tables: dict[str, tuple[Files, str]] = {}
    for number, files, text in ROWS:
        if number not in OTHER_WORDS and runnable(files):
            tables.setdefault(number, (files, text))
    clean = {case.rule: (case.without, "") for case in CASES if case.rule in CLEAN and runnable(case.without)}
    different = []
    with real_triton(oracle, root, log, ["--model-control-mode=explicit"]) as server:
        for number, (files, text) in (tables | clean).items():
            write(root, with_code(files))
            name = "e" if (root / "e").exists() else "m"
            report = wb.lint(root, triton_release="24.10")
            refused = any(file.path.is_relative_to(root / name) and not file.ok for file in report)
            before = len(log.read_text())
            error = load(server.http, name)
            said = log.read_text()[before:] + error
            if bool(error) != refused or text not in said:
                different.append((number, text, refused, error))
            for path in root.iterdir():
                ask(server.http, f"models/{path.name}/unload")
                shutil.rmtree(path)
    print(f"{len(tables)} faults and {len(clean)} clean repositories")
    assert not different, "\n".join(map(str, different))
