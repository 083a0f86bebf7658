"""Lint of ``model_warmup``: what would fail the load when an instance warms up (section 8), as far as the text tells.

The files of samples are a matter of the model directory. Checked against tritonserver 2.51: a sample's requests are
validated as any others are, inputs beyond the model's are accepted (control tensors are given so).
"""

from __future__ import annotations

from typing import Any

from workbench.config.findings import Fix
from workbench.config.lint_checker import Checker
from workbench.config.path import Edit
from workbench.config.schema import enum_name, pb
from workbench.config.spelling import closest
from workbench.config.syntax import MessageNode, ScalarNode, elements, map_key


def lint_warmup(check: Checker) -> None:
    """Adds the findings of every sample."""
    taken = {each.name for each in check.message.model_warmup}
    seen: set[str] = set()
    for index, sample in enumerate(check.message.model_warmup):
        path = f"model_warmup[{index}]"
        if sample.name in seen:
            _duplicate(check, path, sample.name, taken)
        seen.add(sample.name)
        _batch(check, path, sample)
        if check.message.input and sample.batch_size:
            _names(check, path, sample)
        for key in sorted(sample.inputs):
            _input(check, f"{path}.inputs{_quoted(key)}", key, sample.inputs[key])


def _quoted(key: str) -> str:
    import json

    return f"[{json.dumps(key, ensure_ascii=False)}]"


def _duplicate(check: Checker, path: str, name: str, taken: set[str]) -> None:
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    new = f"{name}_{number}"
    taken.add(new)
    fix = Fix(f'Rename it to "{new}"', (Edit(f"{path}.name", "set", new),))
    check.say("duplicate-warmup", f"{path}.name", f"two warm-up samples are named '{name}'", fix)


def _batch(check: Checker, path: str, sample: Any) -> None:
    message = check.message
    most = max(1, message.max_batch_size)
    if sample.batch_size <= most or (message.max_batch_size == 0 and not message.input):
        return
    name = message.name or check.context.directory_name or "the model"
    text = f"batch size {sample.batch_size} for '{name}', max allowed is {message.max_batch_size}"
    fix = Fix(f"Set batch_size to {most}", (Edit(f"{path}.batch_size", "set", most),))
    check.say("warmup-batch", f"{path}.batch_size", text, fix)


def _names(check: Checker, path: str, sample: Any) -> None:
    message = check.message
    inputs = [each.name for each in message.input]
    sequence = message.sequence_batching
    others = [each.name for each in sequence.control_input] + [each.input_name for each in sequence.state]
    missing = [each.name for each in message.input if not each.optional and each.name not in sample.inputs]
    for key in sorted(sample.inputs):
        if key in inputs or key in others:
            continue
        better = closest(key, missing or inputs + others, cutoff=0.6) or (missing[0] if len(missing) == 1 else None)
        text = f'no input "{key}"' + (f'; did you mean "{better}"?' if better else "")
        fix = _rename(check, path, key, better) if better in missing else None
        check.say("warmup-input", f"{path}.inputs{_quoted(key)}", text, fix, None if missing else "warning")
    if missing:
        given = ",".join(f"'{each}'" for each in sorted(sample.inputs) if each in inputs)
        lacks = ",".join(f"'{each}'" for each in missing)
        text = (
            f"expected {len(inputs)} inputs but got {len(inputs) - len(missing)} inputs for model "
            f"'{message.name or check.context.directory_name or 'the model'}'. Got input(s) [{given}], but missing "
            f"required input(s) [{lacks}]. Please provide all required input(s)."
        )
        check.say("warmup-input", path, text)


def _rename(check: Checker, path: str, key: str, better: str | None) -> Fix | None:
    """The key of an entry is written anew, in its quotes."""
    index = int(path.split("[")[1].rstrip("]"))
    sample = elements(check.document.tree, "model_warmup").nodes[index]
    assert isinstance(sample, MessageNode)
    for entry in elements(sample, "inputs").nodes:
        if isinstance(entry, MessageNode) and map_key(entry) == key.encode():
            for node in entry.named("key"):
                if isinstance(node.value, ScalarNode) and better is not None:
                    new = f'"{better}"'.encode()
                    return Fix(f'Write "{better}"', (), ((node.value.start, node.value.end, new),))
    return None


def _input(check: Checker, path: str, key: str, item: Any) -> None:
    if any(dim < 0 for dim in item.dims):
        text = f"warmup setting expects all variable-size dimensions are specified for input '{key}'"
        check.say("warmup-data", f"{path}.dims", text)
    choice = item.WhichOneof("input_data_type")
    if choice is None:
        text = f"warmup setting expects input '{key}' to have input_data_type set"
        check.say("warmup-data", path, f"{text} (zero_data: true, random_data: true or input_data_file)")
    elif choice != "input_data_file" and not getattr(item, choice):
        where = f"{path}.{choice}"
        text = f"{choice}: false does not switch it off: the input is {_FILLED[choice]} all the same"
        check.say("warmup-data", where, text, Fix(f"Set {choice} to true", (Edit(where, "set", True),)), "warning")
    spec = next((each for each in check.message.input if each.name == key), None)
    if spec is not None:
        _against(check, path, key, item, spec)


_FILLED = {"zero_data": "zeros", "random_data": "random"}


def _against(check: Checker, path: str, key: str, item: Any, spec: Any) -> None:
    name = enum_name(pb().DataType, spec.data_type)
    if spec.data_type and name and item.data_type != spec.data_type:
        own = enum_name(pb().DataType, item.data_type) or item.data_type
        text = f"the sample's input '{key}' is {own}, the model's is {name}"
        fix = Fix(f"Set data_type to {name}", (Edit(f"{path}.data_type", "set", name),))
        check.say("warmup-shape", f"{path}.data_type", text, fix)
    dims, wanted = list(item.dims), list(spec.dims)
    fits = len(dims) == len(wanted) and all(-1 in (a, b) or a == b for a, b in zip(dims, wanted, strict=True))
    if wanted and not fits:
        text = f"the sample's input '{key}' has dims {dims}, the model's has {wanted}"
        if check.message.max_batch_size and len(dims) == len(wanted) + 1:
            text += "; leave the batch dimension out"
        check.say("warmup-shape", f"{path}.dims", text)
