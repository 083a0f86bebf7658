"""The conformance suite on PyTorch's forms: TorchScript, a .pt2, a model.py.

The last two run on threads here: a process for each model takes seconds to import torch, and that they run in one is
what the Python backend's own conformance and ``test_pytorch_process`` are for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance_kits import config, same

from workbench.backends.conformance import BackendConformance, Kit, ModelCase

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch_models import Linear, Same, export, script

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TYPES = ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64")
WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) / 8
LINEAR = """\
backend: "pytorch"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ $n ] } ]
output [ { name: "OUTPUT__1" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
THREAD = 'parameters { key: "WORKBENCH_EXECUTION" value { string_value: "thread" } }'
EAGER = (
    THREAD + "\n"
    'runtime: "model.py"\n'
    'parameters { key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value { string_value: "{\\"disable\\": true}" } }\n'
)
EAGER_SOURCE = """
import torch

class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(4, 3))

    def forward(self, x):
        y = x @ self.w
        return -y, y
"""


def linear(write: Callable[[Path], None], dims: str = "4", more: str = "") -> ModelCase:
    """A matrix product under the configuration above."""

    def write_all(directory: Path) -> None:
        write(directory)
        (directory / "config.pbtxt").write_text(LINEAR.replace("$n", dims) + more)

    return ModelCase(
        write_all,
        lambda rng, rows: {"x": rng.standard_normal((rows, 4)).astype(np.float32)},
        lambda given: {"OUTPUT__0": given["x"] @ WEIGHTS, "OUTPUT__1": -(given["x"] @ WEIGHTS)},
        tolerance=1e-5,
        spoiled=lambda rng: {"x": rng.standard_normal((1, 5)).astype(np.float32)},
    )


def identity(write: Callable[[Path, str, Any], None], wire: str, dims: str = "4", more: str = "") -> ModelCase:
    def write_all(directory: Path) -> None:
        write(directory, wire, dims)
        text = config("pytorch", wire, x="INPUT__0", y="OUTPUT__0", dims=dims, more=more)
        (directory / "config.pbtxt").write_text(text)

    return same(write_all, wire, x="INPUT__0", y="OUTPUT__0")


def varied(case: ModelCase) -> ModelCase:
    def inputs(rng: np.random.Generator, rows: int) -> Any:
        return {"INPUT__0": rng.standard_normal((rows, int(rng.integers(1, 40)))).astype(np.float32)}

    return ModelCase(case.write, inputs, case.expected)


def script_same(directory: Path, wire: str, dims: Any) -> None:
    script(Same(), directory / "1" / "model.pt")


class TestTorchScript(BackendConformance):
    def kit(self) -> Kit:
        strings = ModelCase(
            _write_strings,
            lambda rng, rows: {"INPUT__0": np.array([f"é{n}".encode() for n in rng.integers(0, 9, rows)], object)},
            lambda given: {"OUTPUT__0": given["INPUT__0"]},
        )
        return Kit(
            "pytorch",
            model=linear(_script_linear),
            datatypes={kind: identity(script_same, kind) for kind in TYPES} | {"BYTES": strings},
            dynamic=varied(identity(script_same, "FP32", "-1")),
            scalar="Triton refuses scalars of PyTorch: output 'N' is a scalar which is not supported.",
            zero_rows=linear(_script_linear),
            failing=linear(_script_linear, "-1"),
            framework=("torch",),
        )


def _script_linear(directory: Path) -> None:
    script(Linear(), directory / "1" / "model.pt")


class Strings(torch.nn.Module):
    def forward(self, words: list[str]) -> list[str]:
        return words


def _write_strings(directory: Path) -> None:
    script(Strings(), directory / "1" / "model.pt")
    (directory / "config.pbtxt").write_text(
        'backend: "pytorch"\nmax_batch_size: 8\n'
        'input [ { name: "INPUT__0" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } } ]\n'
        'output [ { name: "OUTPUT__0" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } } ]\n'
    )


def _export_linear(directory: Path) -> None:
    export(Linear(), directory / "1" / "model.pt2", torch.zeros(2, 4))


def export_same(directory: Path, wire: str, dims: Any) -> None:
    kinds = {"FP16": torch.float16, "FP32": torch.float32, "INT64": torch.int64, "BF16": torch.bfloat16}
    example = torch.zeros((2, 4), dtype=kinds[wire])
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim.AUTO if dims == "-1" else 4}
    program = torch.export.export(Same(), (example,), dynamic_shapes=(sizes,))
    torch.export.save(program, directory / "1" / "model.pt2")


class TestExportedProgram(BackendConformance):
    def kit(self) -> Kit:
        return Kit(
            "pytorch",
            model=linear(_export_linear, more=THREAD),
            datatypes={kind: identity(export_same, kind, more=THREAD) for kind in ("BF16", "FP16", "INT64")},
            dynamic=varied(identity(export_same, "FP32", "-1", THREAD)),
            scalar="as for TorchScript",
            zero_rows=linear(_export_linear, more=THREAD),
            failing=linear(_export_linear, "-1", THREAD),
            framework=("torch",),
        )


def _eager(directory: Path) -> None:
    (directory / "1" / "model.py").write_text(EAGER_SOURCE)
    torch.save(Linear().state_dict(), directory / "1" / "model.pt")


class TestEager(BackendConformance):
    def kit(self) -> Kit:
        case = linear(_eager, more=EAGER)
        return Kit(
            "pytorch",
            model=case,
            datatypes={"FP32": case},
            dynamic="as for an exported program",
            scalar="as for TorchScript",
            zero_rows=case,
            failing=linear(_eager, "-1", more=EAGER),
            framework=("torch",),
        )
