"""Models of Triton's example backends and of the Python backend, as the reports need them."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.engine import InferenceEngine
from workbench.protocol.tensors import InferenceRequest, Tensor

F = np.float32
THREAD_OR_FULL = pytest.mark.parametrize("execution", [pytest.param("process", marks=pytest.mark.full), "thread"])
"""On a thread; in a process too with `make test-full`."""
PYTHON = "import json, os, threading, time\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"


def add(root: Path, name: str, config: str, source: str = "") -> Path:
    """Writes a model's directory; ``source`` is its model.py."""
    directory = root / name
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(config)
    if source:
        (directory / "1" / "model.py").write_text(PYTHON + source)
    return directory


def identity(
    *,
    ms: int = 0,
    size: int = 8,
    dims: str = "4",
    count: int = 1,
    batching: str = "dynamic_batching { }",
    group: str = "",
    more: str = "",
) -> str:
    """The configuration of an ``identity``: INPUT0 is OUTPUT0, FP32, after so many milliseconds."""
    return f"""backend: "identity"
max_batch_size: {size}
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: {dims} {more} }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: {dims} }}
instance_group {{ count: {count} kind: KIND_CPU {group} }}
parameters {{ key: "execute_delay_ms" value {{ string_value: "{ms}" }} }}
{batching}
"""


def gate(*, size: int = 8, count: int = 1, batching: str = "dynamic_batching { }", group: str = "") -> str:
    """The configuration of a model that ends when the test lets it: x is y."""
    return f"""backend: "gate"
max_batch_size: {size}
input {{ name: "x" data_type: TYPE_FP32 dims: 4 }}
output {{ name: "y" data_type: TYPE_FP32 dims: 4 }}
instance_group {{ count: {count} kind: KIND_CPU {group} }}
{batching}
"""


def python(
    *,
    size: int = 8,
    batching: str = "",
    more: str = "",
    inputs: Sequence[str] = ("IN",),
    outputs: Sequence[str] = ("OUT",),
    dims: str = "4",
) -> str:
    """The configuration of a Python model on FP32 tensors."""
    tensors = "".join(f'input {{ name: "{name}" data_type: TYPE_FP32 dims: {dims} }}\n' for name in inputs)
    tensors += "".join(f'output {{ name: "{name}" data_type: TYPE_FP32 dims: {dims} }}\n' for name in outputs)
    return (
        f'backend: "python"\nmax_batch_size: {size}\n{tensors}instance_group {{ kind: KIND_CPU }}\n{batching}\n{more}\n'
    )


def ask(model: str, *, name: str = "INPUT0", rows: int = 1, width: int = 4, value: float = 0.0, **more: Any) -> Any:
    """A request with one FP32 tensor of [rows, width]; ``rows`` 0 leaves the batch dimension out."""
    shape = (rows, width) if rows else (width,)
    return InferenceRequest(model, [Tensor.from_numpy(name, np.full(shape, value, F))], **more)


def stats(engine: InferenceEngine, model: str) -> dict[str, Any]:
    """Triton's statistics of a model."""
    found: dict[str, Any] = engine.statistics(model)["model_stats"][0]
    return found


def sizes(engine: InferenceEngine, model: str) -> list[int]:
    """Rows of the executed batches in the order in which they were formed, which is not that of their ends."""
    batches = engine.records.read().batches
    found = zip(batches["batch_seq"], batches["rows"], batches["model"], strict=True)
    return [int(rows) for _, rows, name in sorted(found) if name == model]


def metric(url: str, name: str, **labels: str) -> float:
    """The value of a series on /metrics."""
    inner = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{{inner}}} "))


def nothing_left(engine: InferenceEngine) -> bool:
    """Whether no model has a request in its queue or on its way."""
    return all(each.pending == 0 and each.running == 0 for each in engine.snapshot().versions)
