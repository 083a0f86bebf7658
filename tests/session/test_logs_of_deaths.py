"""What ``logs`` says of a Python model's process that died."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from workbench.errors import WorkbenchError

CONFIG = """name: "dies"
backend: "python"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
"""
MODEL = """import os


class TritonPythonModel:
    def execute(self, requests):
        os._exit(3)
"""


def test_a_death_is_told_once_and_the_error_points_to_the_log(tmp_path: Path, module_state: None) -> None:
    (tmp_path / "dies" / "1").mkdir(parents=True)
    (tmp_path / "dies" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "dies" / "1" / "model.py").write_text(MODEL)
    with wb.serve(tmp_path) as server:
        with pytest.raises(WorkbenchError) as caught:
            server.infer("dies", {"x": np.ones((1, 2), np.float32)})
        assert "server.logs(model='dies')" in caught.value.hint
        assert "replay" not in caught.value.hint  # it would end this kernel
        told = [line.text for line in server.logs(model="dies") if line.text.startswith("Stub process 'dies_0'")]
        assert len(told) == 1
