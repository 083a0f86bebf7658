"""What each Triton release lacks, or has no more.

Fields and enum values: the first release branch of triton-inference-server/common whose ``model_config.proto`` has
them, from 21.06 on (an older release's parser refuses the whole file). Backends and platforms: the release branches of
triton-inference-server/core, and the release notes.
"""

from __future__ import annotations

from collections.abc import Iterator

from workbench.config.findings import Fix
from workbench.config.lint_checker import Checker
from workbench.config.surroundings import whole_field
from workbench.config.syntax import FieldNode, MessageNode, ScalarNode

Release = tuple[int, int]

FIELDS: dict[str, Release] = {
    "ModelInstanceGroup.host_policy": (21, 6),
    "ModelInstanceGroup.passive": (21, 6),
    "ModelInstanceGroup.secondary_devices": (21, 6),
    "ModelSequenceBatching.Control.bool_false_true": (21, 9),
    "ModelConfig.response_cache": (21, 10),
    "ModelSequenceBatching.state": (21, 11),
    "ModelInput.optional": (22, 1),
    "ModelSequenceBatching.State.initial_state": (22, 1),
    "ModelWarmup.count": (22, 7),
    "ModelEnsembling.Step.model_namespace": (23, 3),
    "ModelSequenceBatching.StrategyOldest.preserve_ordering": (23, 8),
    "ModelSequenceBatching.State.use_growable_memory": (23, 11),
    "ModelSequenceBatching.State.use_same_buffer_for_input_output": (23, 11),
    "ModelSequenceBatching.iterative_sequence": (23, 11),
    "ModelConfig.runtime": (24, 1),
    "ModelInput.is_non_linear_format_io": (24, 8),
    "ModelOutput.is_non_linear_format_io": (24, 8),
    "ModelConfig.model_metrics": (24, 11),
    "ModelEnsembling.max_inflight_requests": (25, 12),
}
"""The first release that knows a field, by message and field."""

VALUES: dict[str, Release] = {
    "BATCH_ITEM_SHAPE": (22, 3),
    "BATCH_ITEM_SHAPE_FLATTEN": (22, 3),
    "TYPE_BF16": (22, 5),
}
"""The first release that knows an enum value."""

PLATFORMS: dict[str, Release] = {"torch_aoti": (26, 3)}
"""The first release that knows a platform."""

LAST_WITH: dict[str, Release] = {"tensorflow": (25, 2)}
"""The last release that brings a backend."""

WITHOUT: dict[str, tuple[Release, ...]] = {"onnxruntime": ((24, 2),)}
"""Single releases that do not bring a backend."""


def lint_release(check: Checker) -> None:
    """What the file asks for and its release does not have; nothing where the release cannot be read."""
    release = check.context.release
    if release == (0, 0):
        return
    shown = check.context.triton_release
    for name, node, item in _uses(check.document.tree):
        first = VALUES.get(name) if item is not None else FIELDS.get(name)
        if first is None or release >= first:
            continue
        what = name if item is not None else node.type.name
        text = f"Triton {shown} does not know {what} and refuses the file: it came with {_text(first)}"
        place = (node.start, node.end) if item is None else (item.start, item.end)
        fix = Fix(f"Remove {what}", (), ((*whole_field(check.document.data, node.start, node.end), b""),))
        check.report.add("release", "error", place, text, fix=fix if item is None else None)
    _backends(check, release, shown)


def _backends(check: Checker, release: Release, shown: str) -> None:
    message, backend = check.message, check.backend
    if not backend and message.platform.startswith("tensorflow_"):
        backend = "tensorflow"
    path = "backend" if message.backend else "platform"
    last = LAST_WITH.get(backend)
    if last is not None and release > last:
        text = f"Triton {shown} has no {_SHOWN[backend]} backend: {_text(last)} was the last release with it"
        check.say("release", path, text)
    if release in WITHOUT.get(backend, ()):
        check.say("release", path, f"the image of Triton {shown} does not bring the {_SHOWN[backend]} backend")
    first = PLATFORMS.get(message.platform)
    if first is not None and release < first:
        text = f"Triton {shown} does not know the platform {message.platform}: it came with {_text(first)}"
        check.say("release", "platform", text)


_SHOWN = {"tensorflow": "TensorFlow", "onnxruntime": "ONNX Runtime"}


def _text(release: Release) -> str:
    return f"{release[0]}.{release[1]:02d}"


def _uses(message: MessageNode) -> Iterator[tuple[str, FieldNode, ScalarNode | None]]:
    """Every field that is written, as ``Message.field``, and every enum value by its name."""
    owner = message.type.full_name.removeprefix("inference.")
    for node in message.fields:
        yield f"{owner}.{node.type.name}", node, None
        for item in node.items():
            if isinstance(item, MessageNode):
                yield from _uses(item)
            elif node.type.enum is not None:
                yield str(item.value), node, item
