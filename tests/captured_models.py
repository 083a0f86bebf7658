"""Models of which every answer depends on every byte that was sent, for tests of what clients send."""

from __future__ import annotations

from pathlib import Path

TYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING",
)  # fmt: skip

_HEAD = """
backend: "python"
max_batch_size: 8
parameters { key: "WORKBENCH_EXECUTION" value { string_value: "thread" } }
instance_group { kind: KIND_CPU }
output { name: "SUM" data_type: TYPE_INT64 dims: 1 }
output { name: "PARAMETERS" data_type: TYPE_STRING dims: 1 }
"""
_SOURCE = """
import zlib
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        total = 0
        for tensor in request.inputs():
            array = tensor.as_numpy()
            data = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
            total = zlib.crc32(repr((tensor.name(), array.shape)).encode() + data, total)
        rows = len(request.inputs()[0].as_numpy())
        return pb_utils.InferenceResponse([
            pb_utils.Tensor("SUM", np.full((rows, 1), total, np.int64)),
            pb_utils.Tensor("PARAMETERS", np.full((rows, 1), request.parameters().encode(), object)),
        ])
"""


def write_summing(root: Path) -> Path:
    """``sums`` takes any of the ``TYPES``, ragged; ``steps`` takes sequences of INT32; both answer with a checksum."""
    every = "".join(f'input {{ name: "{kind}" data_type: TYPE_{kind} dims: -1 optional: true }}\n' for kind in TYPES)
    queue = "default_queue_policy { default_timeout_microseconds: 60000000 allow_timeout_override: true }"
    levels = f"dynamic_batching {{ priority_levels: 3 default_priority_level: 2 {queue} }}\n"
    _write(root, "sums", _HEAD + every + levels)
    steps = 'input { name: "INT32" data_type: TYPE_INT32 dims: 1 }\n'
    _write(root, "steps", _HEAD + steps + "sequence_batching { max_sequence_idle_microseconds: 60000000 }\n")
    return root


def _write(root: Path, name: str, config: str) -> None:
    version = root / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(f'name: "{name}"\n{config}')
    (version / "model.py").write_text(_SOURCE)
