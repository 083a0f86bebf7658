"""The configuration of a model that was built: its source's, edited where the new form needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import MessageToDict

from workbench.config import ConfigDocument, Edit, Span
from workbench.package.building.options import Target
from workbench.package.building.source import Source
from workbench.package.layout import config_text

BACKENDS: dict[Target, str] = {
    "tensorrt": "tensorrt",
    "onnx": "onnxruntime",
    "openvino": "openvino",
    "torchscript": "pytorch",
    "aoti": "pytorch",
}
PLATFORMS: dict[Target, str] = {"aoti": "torch_aoti"}
"""Where the backend alone does not say which form it is."""
FILES: dict[Target, str] = {
    "tensorrt": "model.plan",
    "onnx": "model.onnx",
    "openvino": "model.xml",
    "torchscript": "model.pt",
    "aoti": "model.pt2",
}
"""The model file of each target, by Triton's own names."""

_THREADS = {
    "onnxruntime": "intra_op_thread_count",
    "openvino": "INFERENCE_NUM_THREADS",
    "pytorch": "INTRA_OP_THREAD_COUNT",
}
"""Each backend's parameter for the threads of one call: the same number is kept."""
_KEPT = ("metric_tags", "WORKBENCH_EXECUTION")
_PLACES = ("default_model_filename", "cc_model_filenames", "model_operations", "version_policy", "platform", "runtime")


@dataclass(frozen=True, slots=True)
class Changes:
    """What the target makes of the configuration.

    ``max_batch_size`` is the engine's largest, None where there is no limit. ``renamed`` are inputs and outputs, old ->
    new. ``parameters`` are the new backend's.
    """

    max_batch_size: int | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    cuda_graphs: bool = False


def new_config(source: Source, target: Target, name: str, changes: Changes, comment: str) -> str:
    """The text of the new config.pbtxt: complete, and valid."""
    if source.document is None:
        document = ConfigDocument.parse(_from_signature(source, target, name, changes).encode())
    else:
        document = _without_parameters(source.document, source, target)
    edits = [Edit("name", "set", name)]
    edits += [Edit(path, "remove") for path in _PLACES if _has(document.message, path)]
    edits.append(Edit("backend", "set", BACKENDS[target]))
    if target in PLATFORMS:
        edits.append(Edit("platform", "set", PLATFORMS[target]))
    message = document.message
    if message.optimization.HasField("execution_accelerators"):
        edits.append(Edit("optimization.execution_accelerators", "remove"))
    size = changes.max_batch_size
    if size is not None and message.max_batch_size > size:
        edits.append(Edit("max_batch_size", "set", size))
        edits += _preferred(message, size)
    edits += _renaming(message, changes.renamed)
    if target == "tensorrt":
        for index, group in enumerate(message.instance_group):
            if group.kind in (group.KIND_CPU, group.KIND_MODEL):
                edits.append(Edit(f"instance_group[{index}].kind", "set", "KIND_GPU"))
    if changes.cuda_graphs:
        edits.append(Edit("optimization.cuda.graphs", "set", True))
    parameters = dict(changes.parameters)
    old, new = _THREADS.get(_backend(source), ""), _THREADS.get(BACKENDS[target], "")
    if source.document is not None and old in message_parameters(source.document) and new:
        parameters.setdefault(new, message_parameters(source.document)[old])
    edits += [Edit(f'parameters["{key}"].string_value', "set", value) for key, value in parameters.items()]
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + document.edit(edits).text


def message_parameters(document: ConfigDocument) -> dict[str, str]:
    """The parameters of a configuration as it is written."""
    message = document.message
    return {key: message.parameters[key].string_value for key in message.parameters}


def _backend(source: Source) -> str:
    return "onnxruntime" if source.form == "onnx" else "pytorch"


def _has(message: Any, path: str) -> bool:
    descriptor = message.DESCRIPTOR.fields_by_name[path]
    if descriptor.message_type is not None and not isinstance(getattr(message, path), dict):
        try:
            return bool(message.HasField(path))
        except ValueError:  # a repeated field or a map
            return len(getattr(message, path)) > 0
    return bool(getattr(message, path))


def _from_signature(source: Source, target: Target, name: str, changes: Changes) -> str:
    example = next(source.requests(1))
    text = config_text(
        name, BACKENDS[target], source.signature, example, max_batch_size=source.max_batch_size, comment="",
        reshapes=True, parameters={},
    )  # fmt: skip
    return text.replace("KIND_CPU", "KIND_GPU") if target == "tensorrt" else text


def _renaming(message: Any, renamed: Mapping[str, str]) -> list[Edit]:
    """Tensors under their new names, wherever the configuration names them."""
    edits = []
    for kind in ("input", "output"):
        for index, item in enumerate(getattr(message, kind)):
            if item.name in renamed:
                edits.append(Edit(f"{kind}[{index}].name", "set", renamed[item.name]))
    for index, state in enumerate(message.sequence_batching.state):
        for end in ("input_name", "output_name"):
            name = getattr(state, end)
            if name in renamed:
                edits.append(Edit(f"sequence_batching.state[{index}].{end}", "set", renamed[name]))
    for index, warmup in enumerate(message.model_warmup):
        for name in sorted(set(warmup.inputs) & set(renamed)):
            value = MessageToDict(warmup.inputs[name], preserving_proto_field_name=True)
            value["dims"] = [int(dim) for dim in value.get("dims", ())]
            edits.append(Edit(f'model_warmup[{index}].inputs["{renamed[name]}"]', "set", value))
            edits.append(Edit(f'model_warmup[{index}].inputs["{name}"]', "remove"))
    return edits


def _preferred(message: Any, size: int) -> list[Edit]:
    """Preferred batch sizes that are left of those of the source."""
    preferred = list(message.dynamic_batching.preferred_batch_size)
    left = [each for each in preferred if each <= size]
    if left == preferred:
        return []
    path = "dynamic_batching.preferred_batch_size"
    return [Edit(path, "set", left)] if left else [Edit(path, "remove")]


def _without_parameters(document: ConfigDocument, source: Source, target: Target) -> ConfigDocument:
    """Without the parameters of the source's backend, and the comments right above them, which explain those."""
    if _backend(source) == BACKENDS[target]:
        return document
    for key in message_parameters(document):
        if key in _KEPT:
            continue
        path = f'parameters["{key}"]'
        data = _without_comment(document.data, document.locate(path))
        document = ConfigDocument.parse(data, document.path).edit(Edit(path, "remove"))
    return document


def _without_comment(data: bytes, value: Span | None) -> bytes:
    """Without the comment lines above the entry of ``parameters`` that holds this value."""
    if value is None:
        return data
    lines = data[: value.start].splitlines(keepends=True)
    first = next((i for i in range(len(lines) - 1, -1, -1) if lines[i].lstrip().startswith((b"parameters", b"{"))), 0)
    above = first
    while above and lines[above - 1].lstrip().startswith(b"#"):
        above -= 1
    kept = b"".join([*lines[:above], *lines[first:]])
    return kept + data[value.start :]
