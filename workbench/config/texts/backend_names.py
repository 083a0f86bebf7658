"""What a model.py finds in ``triton_python_backend_utils`` (reference: pb_stub.cc, triton_python_backend_utils.py)."""

from __future__ import annotations

PB_UTILS = frozenset(
    """InferenceRequest InferenceResponse InferenceResponseSender InferenceTrace Logger MemoryType Metric MetricFamily
    MetricKind ModelConfig PreferredMemory ResponseIterator SharedMemory Tensor TritonError TritonModelException
    TRITONSERVER_MEMORY_CPU TRITONSERVER_MEMORY_GPU TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END TRITONSERVER_REQUEST_RELEASE_ALL TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
    TRITONSERVER_RESPONSE_COMPLETE_FINAL TRITON_STRING_TO_NUMPY async_event_future_done_callback
    deserialize_bytes_tensor get_input_config_by_name get_input_tensor_by_name get_model_dir get_output_config_by_name
    get_output_tensor_by_name is_model_ready json load_model np numpy_to_triton_type serialize_byte_tensor struct
    triton_string_to_numpy triton_to_numpy_type unload_model using_decoupled_model_transaction_policy""".split()  # noqa: SIM905
)
"""Every name of the module."""

RESPONSE_KEYWORDS = ("output_tensors", "error", "parameters")
REQUEST_KEYWORDS = (
    "request_id", "correlation_id", "inputs", "requested_output_names", "model_name", "model_version", "flags",
    "timeout", "preferred_memory", "trace", "parameters",
)  # fmt: skip
"""Keywords of ``InferenceResponse`` and ``InferenceRequest``."""

TENSOR_METHODS = frozenset(
    "name as_numpy triton_dtype to_dlpack is_cpu shape from_dlpack __dlpack__ __dlpack_device__".split()  # noqa: SIM905
)

METHODS: dict[str, tuple[str, ...]] = {
    "initialize": ("args",),
    "execute": ("requests",),
    "finalize": (),
    "is_ready": (),
}
"""Methods that Triton calls on the model, with what it passes."""

IS_READY_SINCE = (26, 3)
"""The release that first asks a model (python_backend 65529b0)."""

MODULES: dict[str, str] = {
    "np": "import numpy as np",
    "numpy": "import numpy",
    "json": "import json",
    "os": "import os",
    "torch": "import torch",
    "asyncio": "import asyncio",
    "pb_utils": "import triton_python_backend_utils as pb_utils",
}
"""Names that always mean a module, and the line that brings them."""
