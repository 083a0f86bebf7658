"""The conformance suite on the backends that need no more than the core: onnxruntime, python, identity; and itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from conformance_kits import config, same
from onnx import helper
from onnx_models import TYPES, graph, identity

from workbench.backends.conformance import BackendConformance, Kit, ModelCase, conformance_problems


def onnx(model: bytes, text: str) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        (directory / "1" / "model.onnx").write_bytes(model)
        (directory / "config.pbtxt").write_text(text)

    return write


def affine(rng: np.random.Generator, rows: int) -> Mapping[str, Any]:
    return {"x": rng.standard_normal((rows, 4)).astype(np.float32)}


WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) / 8
MATMUL = graph(
    [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Neg", ["y"], ["z"])],
    [("x", "FP32", ("b", "n"))],
    [("y", "FP32", ("b", 3)), ("z", "FP32", ("b", 3))],
    [helper.make_tensor("w", TYPES["FP32"], [4, 3], WEIGHTS.tobytes(), raw=True)],
)
MATMUL_CONFIG = """\
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ $n ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "z" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""


def matmul(dims: str) -> ModelCase:
    return ModelCase(
        onnx(MATMUL, MATMUL_CONFIG.replace("$n", dims)),
        affine,
        lambda given: {"y": given["x"] @ WEIGHTS, "z": -(given["x"] @ WEIGHTS)},
        tolerance=1e-6,
        spoiled=lambda rng: {"x": rng.standard_normal((1, 5)).astype(np.float32)},
    )


def long_or_short(rng: np.random.Generator, rows: int) -> Mapping[str, Any]:
    return {"x": rng.standard_normal((rows, int(rng.integers(1, 40)))).astype(np.float32)}


class TestOnnxRuntime(BackendConformance):
    def kit(self) -> Kit:
        negate = graph([helper.make_node("Neg", ["x"], ["y"])], [("x", "FP32", ())], [("y", "FP32", ())])
        variable = same(onnx(identity("FP32", ("b", "s")), config("onnxruntime", "FP32", dims="-1")), "FP32")
        return Kit(
            "onnxruntime",
            model=matmul("4"),
            datatypes={kind: same(onnx(identity(kind), config("onnxruntime", kind)), kind) for kind in TYPES},
            dynamic=ModelCase(variable.write, long_or_short, variable.expected),
            scalar=ModelCase(
                onnx(negate, config("onnxruntime", "FP32", dims="1", batch=0)),
                lambda rng, rows: {"x": rng.standard_normal(1).astype(np.float32)},
                lambda given: {"y": -given["x"]},
            ),
            zero_rows=matmul("4"),
            failing=matmul("-1"),
            framework=("onnxruntime",),
        )


PYTHON = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x")
            if x.as_numpy().dtype == np.float32 and (x.as_numpy() > 1e6).any():
                raise ValueError("too large")
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x.as_numpy())]))
        return answers
"""


def python(wire: str, *, mode: str, dims: str = "4", batch: int = 8) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        (directory / "1" / "model.py").write_text(PYTHON)
        more = f'parameters {{ key: "WORKBENCH_EXECUTION" value {{ string_value: "{mode}" }} }}'
        (directory / "config.pbtxt").write_text(config("python", wire, dims=dims, batch=batch, more=more))

    return write


class TestPythonProcess(BackendConformance):
    mode = "process"

    def kit(self) -> Kit:
        write = python("FP32", mode=self.mode)
        plain = same(write, "FP32")
        # as_numpy has no BF16, as in real Triton; each model in a process of its own takes half a second
        kinds = [kind for kind in TYPES if kind != "BF16"] if self.mode == "thread" else ["FP16", "INT64", "BYTES"]
        return Kit(
            "python",
            model=plain,
            datatypes={kind: same(python(kind, mode=self.mode), kind) for kind in kinds},
            dynamic=ModelCase(python("FP32", mode=self.mode, dims="-1"), long_or_short, plain.expected),
            scalar="a Python model gets arrays as the request has them: none is without a dimension",
            zero_rows=plain,
            failing=ModelCase(
                write, affine, plain.expected, spoiled=lambda rng: {"x": np.full((1, 4), 2e6, np.float32)}
            ),
        )


class TestPythonThread(TestPythonProcess):
    mode = "thread"


def pair(wire: str, *, dims: str = "4") -> Callable[[Path], None]:
    return lambda directory: (
        (directory / "config.pbtxt").write_text(config("identity", wire, x="INPUT0", y="OUTPUT0", dims=dims)) and None
    )


class TestIdentity(BackendConformance):
    def kit(self) -> Kit:
        plain = same(pair("FP32"), "FP32", x="INPUT0", y="OUTPUT0")
        return Kit(
            "identity",
            model=plain,
            datatypes={kind: same(pair(kind), kind, x="INPUT0", y="OUTPUT0") for kind in TYPES},
            dynamic=ModelCase(
                pair("FP32", dims="-1"),
                lambda rng, rows: {"INPUT0": long_or_short(rng, rows)["x"]},
                plain.expected,
            ),
            scalar="it has no framework, so no scalars of one",
            zero_rows=plain,
            failing="it fails on nothing",
        )


def test_a_wrong_backend_is_found_out(tmp_path: Path) -> None:
    """The suite itself: a model that mixes rows up, and a kit that expects too much."""
    mixing = graph(
        [
            helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
            helper.make_node("Sub", ["x", "mean"], ["y"]),
        ],
        [("x", "FP32", ("b", 4))],
        [("y", "FP32", ("b", 4))],
    )
    write = onnx(mixing, config("onnxruntime", "FP32"))
    kit = Kit(
        "onnxruntime",
        model=ModelCase(write, affine),
        datatypes={"FP32": ModelCase(write, affine, lambda given: {"y": given["x"]})},
        framework=("json",),
    )
    problems = conformance_problems(kit, tmp_path)
    assert sorted(problems) == ["data_types", "imported_late", "rows_alone"]
    assert "rows [1, 1, 1, 1, 1, 1, 1, 1]: output 'y' is" in problems["rows_alone"]
    assert problems["imported_late"] == 'AssertionError: imported before a model needs it: ["json"]\n'
