"""The type stubs of ``triton_python_backend_utils`` say what the module has."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import workbench
from workbench.backends._child import pb_utils

STUBS = Path(workbench.__file__).parent / "backends" / "stubs"
FILE = STUBS / "triton_python_backend_utils-stubs" / "__init__.pyi"
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        made = pb_utils.InferenceRequest(model_name="m", inputs=requests[0].inputs(), requested_output_names=["OUT"])
        response = await made.async_exec()
        for each in made.exec(decoupled=True):
            reveal_type(each)
        reveal_type(response)
        reveal_type(pb_utils.MetricFamily("n", "d", pb_utils.MetricFamily.COUNTER).Metric({"a": "b"}).value())
        pb_utils.Tensor("OUT", 5)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1))])]
"""


class Nowhere:
    """A runtime that nobody calls."""


def public(names: Any) -> set[str]:
    return {name for name in names if not name.startswith("_") or name in ("__dlpack__", "__dlpack_device__")}


def test_the_stubs_and_the_module_have_the_same_names() -> None:
    module = pb_utils.build(Nowhere(), "")  # type: ignore[arg-type]
    tree = ast.parse(FILE.read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    stubbed = public(
        {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        | {
            node.target.id
            for node in tree.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
        | {alias.asname for node in tree.body if isinstance(node, ast.Import) for alias in node.names if alias.asname}
    )
    assert stubbed == public(vars(module))
    for name in public(classes):
        kind = getattr(module, name)
        said = public(
            node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else getattr(node.target, "id", "_")
            for node in classes[name].body
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AnnAssign)
        )
        has = public(key for key in dir(kind) if key not in dir(Exception))
        assert said == has, name
        assert inspect.getdoc(kind), name


def test_a_type_checker_reads_them(tmp_path: Path) -> None:
    # an editor finds the stubs of a package NAME in NAME-stubs where packages are installed; a path has them as NAME
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / pb_utils.NAME).symlink_to(FILE.parent)
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(file)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"MYPYPATH": str(tmp_path / "path"), "PATH": ""},
        check=False,
    )
    lines = [line.partition(": ")[2].replace("builtins.", "") for line in ran.stdout.splitlines()]
    assert lines[:3] == [
        'note: Revealed type is "triton_python_backend_utils.InferenceResponse"',
        'note: Revealed type is "triton_python_backend_utils.InferenceResponse"',
        'note: Revealed type is "float"',
    ], ran.stdout + ran.stderr
    assert 'incompatible type "int"' in lines[3]
    assert ran.stdout.rstrip().endswith("Found 1 error in 1 file (checked 1 source file)")


@pytest.mark.full
def test_the_model_files_of_the_differential_suite_have_no_unknown_names(tmp_path: Path) -> None:
    """An editor underlines nothing that works: every name that those files use is in the stubs."""
    sys.path[:0] = [str(Path(__file__).parents[1] / "differential")]
    import python_models
    import surface

    (tmp_path / "path").mkdir()
    (tmp_path / "path" / pb_utils.NAME).symlink_to(FILE.parent)
    for name, source in surface.sources().items():
        if "c_python_backend_utils" not in source:
            (tmp_path / f"{name}.py").write_text(python_models.HEAD + source)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--check-untyped-defs", "--cache-dir", str(tmp_path / "cache"), "."],
        capture_output=True, text=True, cwd=tmp_path, env={"MYPYPATH": str(tmp_path / "path"), "PATH": ""}, check=False,
    )  # fmt: skip
    wrong = [line for line in ran.stdout.splitlines() if "[attr-defined]" in line]
    assert wrong == []
    assert "checked" in ran.stdout, ran.stdout + ran.stderr
