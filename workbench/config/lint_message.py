"""Lint of a configuration that Triton accepts: tensors, maps, parameters and settings that are hardly meant so."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from workbench.config.findings import Fix
from workbench.config.lint_checker import Checker, removal
from workbench.config.normalization import backend_of_platform
from workbench.config.placeholders import string_placeholders
from workbench.config.schema import pb
from workbench.config.spelling import closest
from workbench.config.surroundings import whole_field
from workbench.config.syntax import FieldNode, MessageNode, ScalarNode, elements, map_key
from workbench.config.validation import warnings


def lint_message(check: Checker) -> None:
    """Adds the findings of every rule below."""
    for rule in _RULES:
        rule(check)


# tensors


def _tensors(check: Checker) -> Iterator[tuple[str, Any]]:
    for kind in ("input", "output"):
        for index, tensor in enumerate(getattr(check.message, kind)):
            yield f"{kind}[{index}]", tensor


def _batch_axis(check: Checker) -> None:
    tensors = list(_tensors(check))
    suspects = [place for place, each in tensors if len(each.dims) > 1 and each.dims[0] == -1]
    if not suspects or len(suspects) < sum(1 for _, each in tensors if each.dims):
        return
    most = check.message.max_batch_size
    if most == 0 and not check.message.HasField("sequence_batching") and check.message.platform != "ensemble":
        text = (
            "the dims of every tensor begin with -1, and max_batch_size is 0: if that is the batch axis, Triton can "
            "put requests together with max_batch_size set and these -1 left out"
        )
        check.say("batch-axis-in-dims", f"{suspects[0]}.dims[0]", text)
    for place in suspects if most > 0 else ():
        text = (
            f"max_batch_size is {most}, so Triton puts a batch axis in front of these dims; the leading -1 is a second "
            "one"
        )
        fix = removal(f"{place}.dims[0]", "Remove the leading -1")
        check.say("batch-axis-twice", f"{place}.dims[0]", text, fix)


def _reshapes(check: Checker) -> None:
    for place, tensor in _tensors(check):
        if tensor.HasField("reshape") and tensor.dims and list(tensor.reshape.shape) == list(tensor.dims):
            path = f"{place}.reshape"
            text = f"the reshape of '{tensor.name}' is its dims {list(tensor.dims)}"
            check.say("reshape-without-effect", path, text, removal(path, "Remove the reshape"))


_CHANNELS = (1, 3, 4)


def _formats(check: Checker) -> None:
    formats = pb().ModelInput
    for index, tensor in enumerate(check.message.input):
        if len(tensor.dims) != 3 or tensor.format not in (formats.FORMAT_NHWC, formats.FORMAT_NCHW):
            continue
        first, last = tensor.dims[0] in _CHANNELS, tensor.dims[2] in _CHANNELS
        here, other = ("FORMAT_NCHW", "FORMAT_NHWC") if tensor.format == formats.FORMAT_NCHW else (
            "FORMAT_NHWC",
            "FORMAT_NCHW",
        )  # fmt: skip
        if (last and not first) if here == "FORMAT_NCHW" else (first and not last):
            text = f"dims {list(tensor.dims)} of '{tensor.name}' look like {other}, and the format is {here}"
            check.say("dims-for-format", f"input[{index}].dims", text)


# maps


def _map_keys(check: Checker) -> None:
    _keys_in(check, check.document.tree)


def _keys_in(check: Checker, message: MessageNode) -> None:
    for name in dict.fromkeys(node.type.name for node in message.fields):
        nodes = elements(message, name)
        if message.type.fields[name].is_map:
            _keys_of(check, name, nodes.places)
        for item in nodes.nodes:
            if isinstance(item, MessageNode):
                _keys_in(check, item)


def _keys_of(check: Checker, name: str, places: list[tuple[FieldNode, int]]) -> None:
    seen: set[object] = set()
    for node, index in places:
        entry = node.items()[index]
        assert isinstance(entry, MessageNode)
        key = map_key(entry)
        if key in seen:
            shown = key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)
            text = f"'{name}' has the key {json.dumps(shown, ensure_ascii=False)} twice: only the last one counts"
            check.report.add("duplicate-map-key", "warning", (entry.start, entry.end), text)
        elif key == b"":
            text = f"this is an entry of '{name}' with an empty key"
            alone = len(node.items()) == 1
            fix = (
                Fix("Remove it", (), ((*whole_field(check.document.data, node.start, node.end), b""),))
                if alone
                else None
            )
            check.report.add("empty-map-key", "warning", (entry.start, entry.end), text, fix=fix)
        seen.add(key)


# backends


def _platform(check: Checker) -> None:
    message = check.message
    same = bool(message.backend) and backend_of_platform(message.platform) == message.backend
    if same and message.platform not in _MANY_PLATFORMS:
        text = f"backend '{message.backend}' has no other platform than '{message.platform}'"
        check.say("redundant-platform", "platform", text)


_MANY_PLATFORMS = ("tensorflow_savedmodel", "tensorflow_graphdef", "pytorch_libtorch", "torch_aoti")
"""Platforms that tell which of several kinds of file the backend reads."""


def _accelerator(check: Checker) -> None:
    if check.backend != "tensorrt":
        return
    for index, each in enumerate(check.message.optimization.execution_accelerators.gpu_execution_accelerator):
        if each.name == "tensorrt":
            path = f"optimization.execution_accelerators.gpu_execution_accelerator[{index}]"
            text = (
                "the TensorRT accelerator does nothing in a TensorRT model: precision and the like are fixed when the "
                "engine is built"
            )
            check.say("accelerator-for-tensorrt", path, text, removal(path))


_PARAMETERS: dict[str, tuple[str, ...]] = {
    "onnxruntime": (
        "intra_op_thread_count",
        "inter_op_thread_count",
        "execution_mode",
        "level",
        "enable_mem_arena",
        "enable_mem_pattern",
        "memory.enable_memory_arena_shrinkage",
        "WORKBENCH_SHARE_SESSION",
    ),
    "openvino": (
        "CPU_EXTENSION_PATH",
        "SKIP_OV_DYNAMIC_BATCHSIZE",
        "ENABLE_BATCH_PADDING",
        "RESHAPE_IO_LAYERS",
        "TARGET_DEVICE",
        "INFERENCE_NUM_THREADS",
        "COMPILATION_NUM_THREADS",
        "HINT_BF16",
        "NUM_STREAMS",
        "PERFORMANCE_HINT",
        "INFERENCE_PRECISION_HINT",
        "WORKBENCH_DYNAMIC_BATCH",
    ),
    "python": (
        "EXECUTION_ENV_PATH",
        "FORCE_CPU_ONLY_INPUT_TENSORS",
        "WORKBENCH_EXECUTION",
        "WORKBENCH_EXECUTE_TIMEOUT_S",
        "WORKBENCH_INITIALIZE_TIMEOUT_S",
        "WORKBENCH_RESTARTS",
    ),
    "pytorch": (
        "DISABLE_CUDNN",
        "DISABLE_OPTIMIZED_EXECUTION",
        "INFERENCE_MODE",
        "ENABLE_NVFUSER",
        "ENABLE_WEIGHT_SHARING",
        "ENABLE_CACHE_CLEANING",
        "INTER_OP_THREAD_COUNT",
        "INTRA_OP_THREAD_COUNT",
        "ENABLE_JIT_EXECUTOR",
        "ENABLE_JIT_PROFILING",
        "ENABLE_TENSOR_FUSER",
        "NUM_THREADS",
        "NUM_INTEROP_THREADS",
        "TORCH_COMPILE_OPTIONAL_PARAMETERS",
        "WORKBENCH_WARMUP_CALLS",
    ),
    "tensorflow": (
        "TF_NUM_INTRA_THREADS",
        "TF_NUM_INTER_THREADS",
        "TF_USE_PER_SESSION_THREADS",
        "TF_GRAPH_TAG",
        "TF_SIGNATURE_DEF",
        "TF_INIT_OPS_FILE",
        "MAX_SESSION_SHARE_COUNT",
        "WORKBENCH_ENGINE",
    ),
}
"""The parameters that a backend reads, by their exact names (the backends' documentation, and the workbench's own)."""


def _parameters(check: Checker) -> None:
    known = _PARAMETERS.get(check.backend, ())
    for entry in elements(check.document.tree, "parameters").nodes:
        if not isinstance(entry, MessageNode):
            continue
        key = map_key(entry)
        word = key.decode("utf-8", "replace") if isinstance(key, bytes) else ""
        better = None if not word or word in known else closest(word, known, cutoff=0.85)
        for node in entry.named("key"):
            if better is not None and isinstance(node.value, ScalarNode):
                text = f"backend {check.backend} reads no parameter '{word}'. Did you mean '{better}'?"
                change = (node.value.start, node.value.end, f'"{better}"'.encode())
                place = (node.value.start, node.value.end)
                check.report.add("unknown-parameter", "hint", place, text, fix=Fix(f"Write {better}", (), (change,)))


def _eager(check: Checker) -> None:
    if check.message.optimization.eager_batching and check.backend != "tensorrt":
        path = "optimization.eager_batching"
        text = "eager_batching is read by the TensorRT backend only"
        check.say("ignored-setting", path, text, removal(path))


def _warned(check: Checker) -> None:
    for problem in warnings(check.message):
        check.say("ignored-setting", problem.path, problem.message, None, "warning")


# placeholders


def _placeholders(check: Checker) -> None:
    string_placeholders(check.document.tree, check.report)


_RULES: tuple[Callable[[Checker], None], ...] = (
    _batch_axis,
    _reshapes,
    _formats,
    _map_keys,
    _platform,
    _accelerator,
    _parameters,
    _placeholders,
    _warned,
    _eager,
)
