"""A framework that a model has brought does not make the server's garbage collections long, and no memory is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench as wb

CONFIG = """\
backend: "python"
input [ { name: "ANY" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "SECONDS" data_type: TYPE_FP64 dims: [ 1 ] } ]
"""

COLLECTOR = """\
import gc
import time

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        began = time.thread_time()
        gc.collect()
        took = np.array([time.thread_time() - began])
        return [pb.InferenceResponse([pb.Tensor("SECONDS", took)]) for _ in requests]
"""
"""Runs on a thread of the server: it tells how long a full collection takes there."""

IN_A_CYCLE = """\
class TritonPythonModel:
    def initialize(self, args):
        self.me, self.tell = self, open({path!r}, "a", buffering=1)
        print("made", file=self.tell)

    def execute(self, requests):
        raise NotImplementedError

    def __del__(self):
        print("freed", file=self.tell)
"""
"""Nothing but the garbage collector frees it."""

IMPORTS = """\
import sys

sys.path.append({path!r})


class TritonPythonModel:
    def initialize(self, args):
        import big_framework

    def execute(self, requests):
        raise NotImplementedError
"""


def write(root: Path, name: str, source: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(CONFIG)
    (root / name / "1" / "model.py").write_text(source)


def of_many_modules(root: Path, folder: Path) -> None:
    """A model whose initialize imports 200 modules of 800,000 objects."""
    package = folder / "packages" / "big_framework"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from big_framework import " + ", ".join(f"m{each}" for each in range(200)))
    for each in range(200):
        (package / f"m{each}.py").write_text("held = [{each: [each]} for each in range(2000)]\n")
    write(root, "heavy", IMPORTS.format(path=str(package.parent)))


def of_tensorflow(root: Path, _folder: Path) -> None:
    """A SavedModel, for TensorFlow itself."""
    import tensorflow_models

    tensorflow_models.save(root / "heavy", tensorflow_models.config(parameters="WORKBENCH_ENGINE=tensorflow"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    root = tmp_path / "models"
    write(root, "collector", COLLECTOR)
    write(root, "in_a_cycle", IN_A_CYCLE.format(path=str(tmp_path / "told")))
    with wb.serve(root, models=["collector"], options={"python_execution": "thread"}) as server:
        yield server


def collected(server: Any) -> float:
    """CPU seconds of a full collection in the server, the shortest of three."""
    return min(float(server.infer("collector", {"ANY": np.zeros(1, np.float32)})["SECONDS"][0]) for _ in range(3))


needs_tensorflow = pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed")


@pytest.mark.parametrize(
    "make",
    [of_many_modules, pytest.param(of_tensorflow, marks=[pytest.mark.full, needs_tensorflow])],
)
def test_a_full_collection_is_as_short_after_a_framework_was_imported(
    server: Any, tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    before = collected(server)
    make(tmp_path / "models", tmp_path)
    server.load("heavy")
    after = collected(server)
    assert after < before + 0.02


def test_what_models_leave_in_cycles_is_freed_before_and_after_a_framework_was_imported(
    server: Any, tmp_path: Path
) -> None:
    server.load("in_a_cycle")
    collected(server)  # now it is among what only a full collection looks at
    server.unload("in_a_cycle")
    of_many_modules(tmp_path / "models", tmp_path)
    for name in ("heavy", "in_a_cycle") * 3:
        server.load(name)
        server.unload(name)
    collected(server)
    assert Counter((tmp_path / "told").read_text().split()) == {"made": 4, "freed": 4}
