"""The public names of ``triton_python_backend_utils`` of Triton 2.51, and which model.py of the suite uses which.

``python tests/differential/listing.py`` writes the table to PB_UTILS.md; the case py-18 asks the real server whether
these are all of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

import answer_models
import completing_models
import nested_models
import python_models

MODULE = """
InferenceRequest InferenceResponse Logger MetricFamily ModelConfig PreferredMemory Tensor TritonError
TritonModelException TRITONSERVER_MEMORY_CPU TRITONSERVER_MEMORY_GPU TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START TRITONSERVER_REQUEST_RELEASE_ALL TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
TRITONSERVER_RESPONSE_COMPLETE_FINAL TRITON_STRING_TO_NUMPY deserialize_bytes_tensor get_input_config_by_name
get_input_tensor_by_name get_model_dir get_output_config_by_name get_output_tensor_by_name is_model_ready load_model
numpy_to_triton_type serialize_byte_tensor triton_string_to_numpy triton_to_numpy_type unload_model
using_decoupled_model_transaction_policy
"""
CLASSES = {
    "InferenceRequest": "async_exec correlation_id exec flags get_response_sender inputs is_cancelled parameters "
    "request_id requested_output_names set_flags set_release_flags timeout trace",
    "InferenceResponse": "error has_error output_tensors",
    "InferenceResponseSender": "is_cancelled send",
    "InferenceTrace": "get_context",
    "Logger": "ERROR INFO LogLevel VERBOSE WARNING log log_error log_info log_verbose log_warn",
    "Metric": "increment observe set value",
    "MetricFamily": "COUNTER GAUGE HISTOGRAM Metric",
    "ModelConfig": "add_input add_output as_dict set_dynamic_batching set_max_batch_size set_model_transaction_policy",
    "Tensor": "as_numpy from_dlpack is_cpu name shape to_dlpack triton_dtype",
    "TritonError": "ALREADY_EXISTS CANCELLED INTERNAL INVALID_ARG NOT_FOUND UNAVAILABLE UNKNOWN UNSUPPORTED code "
    "message",
}
ARGUMENTS = (
    "request_id correlation_id inputs requested_output_names model_name model_version flags timeout preferred_memory "
    "trace parameters"
)
"""Of ``InferenceRequest``; all of them are given by name somewhere."""


def sources() -> Mapping[str, str]:
    """The model.py files of the topics on Python models, by model; what they all begin with is left out."""
    found = {name: python_models.saying(code) for name, code in python_models.SAYING.items()}
    found |= {"counts": python_models.saying(python_models.COUNTS)}
    found |= {name: source for name, (source, _) in python_models.WHOLE.items()}
    found |= {name: python_models.saying(code) for name, code in nested_models.CALLS.items()}
    found |= {name: source for name, (source, _, _) in nested_models.REST.items()}
    found |= {name: answer_models.body(code) for name, code in {**answer_models.ALONE, **answer_models.STREAMS}.items()}
    found |= {
        name: "if c:\n" + re.sub("^", " ", code, flags=re.M) for name, (code, _) in completing_models.COMPLETING.items()
    }
    return {name: source.replace(python_models.HEAD, "") for name, source in found.items()}


def used() -> dict[str, list[str]]:
    """For every public name (``Tensor.shape``) the models that use it."""
    names: dict[str, list[str]] = {name: [] for name in MODULE.split()}
    names |= {f"{kind}.{name}": [] for kind, members in CLASSES.items() for name in members.split()}
    names |= {f"InferenceRequest({name}=)": [] for name in ARGUMENTS.split()}
    for model, source in sorted(sources().items()):
        tree = ast.parse(source)
        attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        given = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
        for name, models in names.items():
            argument = re.fullmatch(r"InferenceRequest\((\w+)=\)", name)
            if (argument[1] in given) if argument else (name.rpartition(".")[2] in attributes):
                models.append(model)
    return names


def table() -> str:
    """The text of PB_UTILS.md."""
    head = """# What the suite uses of triton_python_backend_utils

Every public name of the module in Triton 2.51, and how many model.py files of the differential suite use it. Written by
`python tests/differential/listing.py`.

| name | files | such as |
|---|---|---|
"""
    return head + "".join(
        f"| `{name}` | {len(models)} | {', '.join(models[:4])} |\n" for name, models in used().items()
    )
