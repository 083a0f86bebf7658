"""The model.py blocks of the seeds in the Python backend: what lint lets pass runs, what it refuses does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.config.texts import blocks, fix_text
from workbench.errors import WorkbenchError
from workbench.protocol.tensors import InferenceRequest, Tensor

MODEL = """import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        made = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "input").as_numpy()
            out = pb_utils.Tensor("probs", (x * {factor}).astype(np.float32))
            made.append(pb_utils.InferenceResponse(output_tensors=[out]))
        return made
"""


def config(name: str, source: tuple[str, str, int], result: tuple[str, str, int]) -> str:
    """A Python model with one input and one output, no batching."""
    io = [f'{kind} {{ name: "{each[0]}" data_type: TYPE_{each[1]} dims: [ {each[2]} ] }}'
          for kind, each in (("input", source), ("output", result))]  # fmt: skip
    return f'name: "{name}"\nbackend: "python"\n' + "\n".join(io) + "\n"


def add(root: Path, name: str, code: str, text: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "1" / "model.py").write_text(code)
    (root / name / "config.pbtxt").write_text(text)


def block(shared: Path, number: str, line: int, *, fixed: bool = False) -> str:
    """The block that begins at a line of a seed, as it stands or mended."""
    (path,) = (shared / "seeds").glob(f"{number}_*.txt")
    data = path.read_bytes()
    found = [each for each in blocks(data, path=str(path)) if each.kind != "other"]
    index = next(index for index, each in enumerate(found) if each.line == line)
    if fixed:
        found = [each for each in blocks(fix_text(data, path=str(path))[0], path=str(path)) if each.kind != "other"]
    return found[index].text


def answer(engine: Any, model: str, name: str, array: Any) -> np.ndarray[Any, Any]:
    response = engine.infer(InferenceRequest(model, [Tensor.from_numpy(name, np.asarray(array))]), 30)
    return np.asarray(response.outputs[0].data)


def test_the_model_that_doubles_runs(shared: Path, tmp_path: Path, make_engine: Any) -> None:
    text = config("doubled", ("input_ids", "INT32", 4), ("output", "FP32", 4))
    add(tmp_path, "doubled", block(shared, "000", 631), text)
    found = answer(make_engine(tmp_path), "doubled", "input_ids", np.arange(4, dtype=np.int32))
    assert found.tolist() == [0, 2, 4, 6]


def test_the_snippet_of_an_execute_runs_inside_of_one(shared: Path, tmp_path: Path, make_engine: Any) -> None:
    body = "".join(f"        {line}\n" for line in block(shared, "000", 717).split("\n"))
    head = MODEL.partition("        made")[0]
    add(
        tmp_path,
        "pair",
        head + body,
        config("pair", ("input", "FP32", 1), ("logits", "FP32", 2)).replace("[ 2 ]", "[ 1, 2 ]"),
    )
    found = answer(make_engine(tmp_path), "pair", "input", np.zeros(1, np.float32))
    assert found.ravel().tolist() == pytest.approx([0.7, 0.3])


def test_the_router_asks_the_big_model_where_the_small_one_is_not_sure(
    shared: Path, tmp_path: Path, make_engine: Any
) -> None:
    source, result = ("input", "FP32", 2), ("probs", "FP32", 2)
    add(tmp_path, "router", block(shared, "004", 81), config("router", source, result))
    add(tmp_path, "classifier_trt", MODEL.format(factor=1), config("classifier_trt", source, result))
    add(tmp_path, "big_model_trt", MODEL.format(factor=10), config("big_model_trt", source, result))
    engine = make_engine(tmp_path)
    assert answer(engine, "router", "input", np.array([0.9, 0.1], np.float32)).tolist() == pytest.approx([0.9, 0.1])
    assert answer(engine, "router", "input", np.array([0.5, 0.5], np.float32)).tolist() == pytest.approx([5, 5])


def test_the_bare_function_is_refused_and_the_fixed_model_runs(shared: Path, tmp_path: Path, make_engine: Any) -> None:
    text = config("bare", ("INPUT0", "FP32", 2), ("OUTPUT0", "FP32", 2))
    add(tmp_path, "bare", block(shared, "000", 389), text)
    add(tmp_path, "mended", block(shared, "000", 389, fixed=True), text.replace("bare", "mended"))
    engine = make_engine(tmp_path, exit_on_error=False)
    with pytest.raises(WorkbenchError):
        answer(engine, "bare", "INPUT0", np.ones(2, np.float32))
    reasons = {row["name"]: row.get("reason", "") for row in engine.repository_index()}
    assert "TritonPythonModel" in reasons["bare"]
    assert answer(engine, "mended", "INPUT0", np.array([1, 2], np.float32)).tolist() == [2, 4]
