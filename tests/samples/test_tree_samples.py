"""The forests on digits, built and served as they stand: they recognise digits, and say how sure they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.engine import EngineOptions, InferenceEngine
from workbench.engine.linting import lint
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.repository.example_inputs import load_example_inputs
from workbench.samples import build

for module, name in {"xgboost": "xgboost", "lightgbm": "lightgbm", "treelite": "treelite"}.items():
    pytest.importorskip(module, reason=f"{name} is not installed")
datasets: Any = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")

NAMES = ("digits_xgb", "digits_lgbm", "digits_forest")


def test_they_recognise_digits(tmp_path: Path) -> None:
    built = build(tmp_path, models=NAMES)
    assert [model.name for model in built] == list(NAMES)
    assert not [finding for file in lint(tmp_path, triton_release="25.03") for finding in file.findings]
    engine = InferenceEngine(EngineOptions((tmp_path,), load_models=("*",)))
    engine.start()
    try:
        pixels, labels = datasets.load_digits(return_X_y=True)
        for name in NAMES:
            request = InferenceRequest(name, [Tensor.from_numpy("input__0", pixels.astype(np.float32)[:1000])])
            sure = engine.infer(request, 20).as_numpy("output__0")
            np.testing.assert_allclose(sure.sum(axis=1), 1, atol=1e-5)
            assert (sure.argmax(axis=1) == labels[:1000]).mean() > 0.99
            (example,) = load_example_inputs(tmp_path / name, [("input__0", "FP32", [64])], batch_size=10)
            answer = engine.infer(InferenceRequest(name, [Tensor.from_numpy("input__0", example["input__0"])]), 20)
            assert answer.as_numpy("output__0").shape == (10, 10)
    finally:
        engine.stop(5)
