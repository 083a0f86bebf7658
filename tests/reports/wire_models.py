"""A server of identities, one for each data type, for the reports on the wire."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from workbench.engine import EngineOptions, InferenceEngine
from workbench.server import RunningServer, ServerOptions, serve_engine

TYPES = (
    "FP32", "FP64", "FP16", "BF16", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "BOOL",
    "STRING",
)  # fmt: skip
LIMIT = 1 << 20
MODEL = """import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            given = pb.get_input_tensor_by_name(request, "IN0")
            if given.is_cpu() and given.triton_dtype() != 13:
                answers.append(pb.InferenceResponse([pb.Tensor.from_dlpack("OUT", given.to_dlpack())]))
            else:
                answers.append(pb.InferenceResponse([pb.Tensor("OUT", given.as_numpy())]))
        return answers
"""
MANY = """import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb.get_input_tensor_by_name(request, "IN0").as_numpy().ravel()[0])
            for number in range(count):
                sender.send(pb.InferenceResponse([pb.Tensor("OUT", np.array([[number]], np.float32))]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def add_echo(root: Path, name: str, kind: str, source: str = MODEL, more: str = "") -> None:
    """An identity IN0 -> OUT of any number of elements."""
    (root / name / "1").mkdir(parents=True)
    (root / name / "1" / "model.py").write_text(source)
    (root / name / "config.pbtxt").write_text(
        f'backend: "python"\nmax_batch_size: 8\ninput {{ name: "IN0" data_type: TYPE_{kind} dims: -1 }}\n'
        f'output {{ name: "OUT" data_type: TYPE_{kind} dims: -1 }}\n{more}'
        'parameters { key: "WORKBENCH_EXECUTION" value { string_value: "thread" } }\n'
    )


@contextlib.contextmanager
def serving(root: Path) -> Iterator[RunningServer]:
    """Both front ends on a repository."""
    engine = InferenceEngine(EngineOptions(repositories=(root,), control_mode="explicit", load_models=("*",)))
    engine.start()
    try:
        with serve_engine(engine, ServerOptions(max_input_size=LIMIT, exit_timeout_s=5.0)) as server:
            yield server
    finally:
        engine.stop(10)
