"""Torch modules: as ONNX where the exporter manages, else as an exported program behind a model.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench as wb
from workbench.errors import InvalidRequest

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

ROWS = np.random.default_rng(4).random((3, 4)).astype(np.float32)


class TwoHeads(torch.nn.Module):
    """Two inputs, two outputs, dropout that must be off."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.dropout = torch.nn.Dropout(0.9)

    def forward(self, x: Any, scale: Any) -> Any:
        hidden = self.dropout(torch.relu(self.linear(x)))
        return hidden * scale, x.sum(dim=1)


class Sorted(torch.nn.Module):
    """Something that ONNX's exporter has no words for."""

    def forward(self, x: Any) -> Any:
        return torch.special.bessel_j0(x)


class Branches(torch.nn.Module):
    """Its way depends on the values: torch cannot export it."""

    def forward(self, x: Any) -> Any:
        return x + 1 if float(x.sum()) > 0 else x - 1


@pytest.fixture
def to(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def expected(module: Any, *arrays: np.ndarray) -> Any:
    with torch.no_grad():
        return module.eval()(*map(torch.from_numpy, arrays))


def test_a_module_becomes_onnx(to: Path) -> None:
    if importlib.util.find_spec("onnxscript") is None:
        pytest.skip("onnxscript is not installed")
    module, scale = TwoHeads().train(), np.full((3, 1), 2.0, np.float32)
    packaged = wb.package(module, "heads", example_inputs=(ROWS, scale), to=to, outputs=["hidden", "total"])
    assert module.training  # the caller's own is as it was
    assert (packaged.backend, packaged.max_batch_size) == ("onnxruntime", 32)
    assert (to / "heads" / "1" / "model.onnx").is_file()
    hidden, total = expected(module, ROWS, scale)
    with wb.Engine(to) as server:
        answer = server.infer("heads", {"x": ROWS, "scale": scale})
        np.testing.assert_allclose(answer["hidden"], hidden.numpy(), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(answer["total"], total.numpy()[:, None], rtol=1e-4)
        assert server.infer("heads", {"x": ROWS[:1], "scale": scale[:1]})["hidden"].shape == (1, 3)
    assert wb.lint(to).ok


def test_what_onnx_cannot_say_becomes_a_program(to: Path) -> None:
    packaged = wb.package(Sorted(), "bessel", example_inputs={"x": ROWS}, to=to)
    assert packaged.backend == "python"
    assert any(need.startswith("torch==") for need in packaged.needs)
    assert "# Not as ONNX: " in (to / "bessel" / "config.pbtxt").read_text()
    with wb.serve(to) as server:
        for rows in (ROWS, ROWS[:1], np.concatenate([ROWS, ROWS])):
            answer = server.infer("bessel", {"x": rows})["output"]
            np.testing.assert_allclose(answer, expected(Sorted(), rows).numpy(), rtol=1e-4)
    assert wb.lint(to).ok


def test_what_torch_cannot_export_is_said(to: Path) -> None:
    with pytest.raises(InvalidRequest, match="torch cannot export Branches") as caught:
        wb.package(Branches(), "branches", example_inputs={"x": ROWS}, to=to, max_batch_size=4)
    assert "%%triton_model" in caught.value.hint
    assert list(to.iterdir()) == []
