"""The model.py files of the topic py answer alike in processes and on threads of the server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import python_models

from workbench.engine import EngineOptions, InferenceEngine
from workbench.errors import WorkbenchError
from workbench.protocol.tensors import InferenceRequest, Tensor

pytestmark = [pytest.mark.full, pytest.mark.timeout(180)]

BESIDE = ("echo", "raising", "refusing", "many", "none", "fields", "exec")


def answers(root: Path, execution: Literal["process", "thread"]) -> dict[str, Any]:
    """What each model answers, or why it is not loaded."""
    python_models.build(root)
    engine = InferenceEngine(
        EngineOptions((root,), control_mode="explicit", auto_complete=False, gpus=(), python_execution=execution)
    )
    engine.start()

    def ask(name: str) -> str:
        try:
            engine.load(name)
            request = InferenceRequest(name, [Tensor.from_numpy("IN", np.array([[1, 2]], np.float32))], id="rid")
            found = str([each.as_numpy("OUT").tolist() for each in engine.infer_stream(request) if each.outputs])
        except WorkbenchError as error:
            # how a file is imported is not alike
            found = error.code.name + re.sub(r"  <frozen importlib.*\n", "", error.message)
        if name not in BESIDE:
            engine.unload(name)
        return found.replace(str(root), "ROOT")

    try:
        for name in BESIDE:
            ask(name)
        names = sorted({*python_models.SAYING, *python_models.WHOLE})
        found = {name: ask(name) for name in names}
        shown = [(each.name, each.kind, each.text, each.rows) for each in engine.custom_metrics.values()]
        return {**found, "metrics left": shown}
    finally:
        engine.stop(5)


def test_processes_and_threads_answer_alike(tmp_path: Path) -> None:
    sides = {}
    for execution in ("process", "thread"):
        (tmp_path / execution / "models").mkdir(parents=True)
        sides[execution] = answers(tmp_path / execution / "models", execution)
    assert sides["process"].keys() == sides["thread"].keys()
    differ = {
        name: (said, sides["thread"][name]) for name, said in sides["process"].items() if said != sides["thread"][name]
    }
    assert differ == {}
