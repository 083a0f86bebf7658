"""Lint of a configuration that Triton accepts: settings that are missing in a release, or hardly meant."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from workbench.config.document import ConfigDocument
from workbench.config.findings import Fix, LintContext, Report
from workbench.config.path import Edit
from workbench.config.rule import Severity
from workbench.config.schema import Message
from workbench.config.syntax import FieldNode, MessageNode, ScalarNode, elements, map_key
from workbench.config.validation import warnings


def lint_message(document: ConfigDocument, context: LintContext, report: Report) -> None:
    """Adds the findings of every rule below."""
    checker = _Checker(document, context, report)
    for rule in _RULES:
        rule(checker)


class _Checker:
    """One file under the rules."""

    def __init__(self, document: ConfigDocument, context: LintContext, report: Report) -> None:
        self.document = document
        self.message: Message = document.message
        self.context = context
        self.report = report

    def say(self, rule: str, severity: Severity, path: str, text: str, fix: Fix | None = None) -> None:
        """A finding at a path."""
        span = self.document.locate(path, nearest=True)
        place = (span.start, span.end) if span is not None else (0, 0)
        self.report.add(rule, severity, place, text, fix=fix, path=path)

    @property
    def release(self) -> tuple[int, int]:
        """The release as numbers; (0, 0) where it cannot be read."""
        year, _, month = self.context.triton_release.partition(".")
        return (int(year), int(month)) if year.isdecimal() and month.isdecimal() else (0, 0)


def _batch_axis(check: _Checker) -> None:
    message = check.message
    if message.max_batch_size <= 0:
        return
    tensors = [
        (f"{kind}[{index}]", each) for kind in ("input", "output") for index, each in enumerate(_io(message, kind))
    ]
    suspects = [place for place, each in tensors if len(each.dims) > 1 and each.dims[0] == -1]
    if not suspects or len(suspects) < sum(1 for _, each in tensors if each.dims):
        return
    for place in suspects:
        text = (
            f"max_batch_size is {message.max_batch_size}, so Triton puts a batch axis in front of these dims; the "
            "leading -1 is a second one"
        )
        fix = Fix("Remove the leading -1", (Edit(f"{place}.dims[0]", "remove"),))
        check.say("batch-axis-twice", "hint", f"{place}.dims[0]", text, fix)


def _io(message: Message, kind: str) -> Any:
    return getattr(message, kind)


def _warmups(check: _Checker) -> None:
    taken = {each.name for each in check.message.model_warmup}
    seen: set[str] = set()
    for index, each in enumerate(check.message.model_warmup):
        if each.name in seen:
            number = 2
            while f"{each.name}_{number}" in taken:
                number += 1
            new = f"{each.name}_{number}"
            taken.add(new)
            path = f"model_warmup[{index}].name"
            fix = Fix(f'Rename it to "{new}"', (Edit(path, "set", new),))
            check.say("duplicate-warmup", "warning", path, f"two warm-up samples are named '{each.name}'", fix)
        seen.add(each.name)


def _map_keys(check: _Checker) -> None:
    _keys_in(check, check.document.tree)


def _keys_in(check: _Checker, message: MessageNode) -> None:
    for name in dict.fromkeys(node.type.name for node in message.fields):
        nodes = elements(message, name)
        if message.type.fields[name].is_map:
            _keys_of(check, name, nodes.places)
        for item in nodes.nodes:
            if isinstance(item, MessageNode):
                _keys_in(check, item)


def _keys_of(check: _Checker, name: str, places: list[tuple[FieldNode, int]]) -> None:
    seen: set[object] = set()
    for node, index in places:
        entry = node.items()[index]
        assert isinstance(entry, MessageNode)
        key = map_key(entry)
        if key in seen:
            shown = key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)
            text = f"'{name}' has the key {json.dumps(shown, ensure_ascii=False)} twice: only the last one counts"
            check.report.add("duplicate-map-key", "warning", (entry.start, entry.end), text)
        seen.add(key)


def _delay(check: _Checker) -> None:
    message = check.message
    if message.max_batch_size > 1 or not message.HasField("dynamic_batching"):
        return
    if message.dynamic_batching.max_queue_delay_microseconds and (message.max_batch_size == 1 or message.input):
        path = "dynamic_batching.max_queue_delay_microseconds"
        text = (
            f"max_batch_size is {message.max_batch_size}: no batch can form, the delay does nothing but keep requests "
            "waiting"
        )
        check.say("delay-without-batching", "warning", path, text, Fix("Remove the delay", (Edit(path, "remove"),)))


def _priorities(check: _Checker) -> None:
    batching = check.message.dynamic_batching
    if batching.priority_queue_policy and not batching.priority_levels:
        path = "dynamic_batching.priority_queue_policy"
        zero = 0 in batching.priority_queue_policy
        text = "priority_queue_policy is ignored without priority_levels" + (
            ", and level 0 does not exist" if zero else ""
        )
        check.say("priority-without-levels", "warning", path, text, Fix("Remove it", (Edit(path, "remove"),)))


def _accelerator(check: _Checker) -> None:
    message = check.message
    if message.backend != "tensorrt" and message.platform != "tensorrt_plan":
        return
    for index, each in enumerate(message.optimization.execution_accelerators.gpu_execution_accelerator):
        if each.name == "tensorrt":
            path = f"optimization.execution_accelerators.gpu_execution_accelerator[{index}]"
            text = (
                "the TensorRT accelerator does nothing in a TensorRT model: precision and the like are fixed when the "
                "engine is built"
            )
            check.say("accelerator-for-tensorrt", "warning", path, text, Fix("Remove it", (Edit(path, "remove"),)))


_THREADS = ("intra_op_thread_count", "INTRA_OP_THREAD_COUNT", "CPU_EXTENSION_THREADS", "NUM_THREADS", "num_threads")


def _threads(check: _Checker) -> None:
    cores, message = check.context.cores, check.message
    if not cores:
        return
    instances = sum(max(each.count, 1) for each in message.instance_group if each.kind != 1) or 1
    for name in _THREADS:
        if name not in message.parameters:
            continue
        value = message.parameters[name].string_value.strip()
        threads = int(value) if value.isdecimal() and len(value) < 6 else 0
        if threads * instances > cores and threads:
            best = max(1, cores // instances)
            path = f'parameters["{name}"].string_value'
            text = f"{instances} instances x {threads} threads on {cores} cores: they take turns"
            fix = Fix(f"Set {name} to {best}", (Edit(path, "set", str(best)),)) if best < threads else None
            check.say("too-many-threads", "warning", path, text, fix)


def _release(check: _Checker) -> None:
    message, release = check.message, check.release
    shown = check.context.triton_release
    tensorflow = message.backend == "tensorflow" or message.platform.startswith("tensorflow_")
    if tensorflow and release > (25, 2):
        path = "backend" if message.backend else "platform"
        text = f"Triton {shown} has no TensorFlow backend: 25.02 was the last release with it"
        check.say("release", "error", path, text)
    if message.ensemble_scheduling.max_inflight_requests and (0, 0) < release < (25, 12):
        path = "ensemble_scheduling.max_inflight_requests"
        text = f"Triton {shown} does not know max_inflight_requests and refuses the file: it came with 25.12"
        check.say("release", "error", path, text, Fix("Remove it", (Edit(path, "remove"),)))
    if message.HasField("model_metrics") and (0, 0) < release <= (24, 10):
        text = f"Triton {shown} does not know model_metrics and refuses the file: it came later"
        check.say("release", "error", "model_metrics", text, Fix("Remove it", (Edit("model_metrics", "remove"),)))


_PLACEHOLDER = re.compile(rb"\$\{[^}]*\}|\$[A-Z][A-Z0-9_]*|\{\{[^}]*\}\}")


def _placeholders(check: _Checker) -> None:
    """Placeholders inside strings: the file parses, but nobody means ``${backend}``."""
    for node, item in _scalars(check.document.tree):
        match = _PLACEHOLDER.search(item.value) if isinstance(item.value, bytes) else None
        if match is not None:
            found = match.group().decode("utf-8", "replace")
            text = f"unfilled placeholder {found} in {node.type.name}"
            severity: Severity = "error" if node.type.name in ("name", "backend", "platform") else "warning"
            check.report.add("template-placeholder", severity, (item.start, item.end), text)


def _scalars(message: MessageNode) -> list[tuple[FieldNode, ScalarNode]]:
    out: list[tuple[FieldNode, ScalarNode]] = []
    for node in message.fields:
        for item in node.items():
            if isinstance(item, ScalarNode):
                out.append((node, item))
            else:
                out += _scalars(item)
    return out


def _eager(check: _Checker) -> None:
    message = check.message
    if message.optimization.eager_batching and message.backend != "tensorrt" and message.platform != "tensorrt_plan":
        path = "optimization.eager_batching"
        text = "eager_batching is read by the TensorRT backend only"
        check.say("ignored-setting", "hint", path, text, Fix("Remove it", (Edit(path, "remove"),)))


def _warned(check: _Checker) -> None:
    for problem in warnings(check.message):
        check.say("ignored-setting", "warning", problem.path, problem.message)


_RULES: tuple[Callable[[_Checker], None], ...] = (
    _batch_axis,
    _warmups,
    _map_keys,
    _delay,
    _priorities,
    _accelerator,
    _threads,
    _release,
    _placeholders,
    _warned,
    _eager,
)
