"""The edits that lead from one configuration to another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.config.convert import to_json
from workbench.config.path import Edit
from workbench.config.schema import FieldType, Message, MessageType, type_of


def edits_between(before: Message, after: Message) -> list[Edit]:
    """The few edits that make ``before`` equal to ``after``; empty where they are equal.

    A number or boolean that falls back to its default is set to it (its line stays); other things that are gone are
    removed. Removals come before what takes their place, so a change of scheduler works.
    """
    return message_edits(to_json(before, defaults=False), to_json(after, defaults=False), type_of(before), "")


def message_edits(before: Mapping[str, Any], after: Mapping[str, Any], kind: MessageType, prefix: str) -> list[Edit]:
    """As ``edits_between``, on coerced JSON without defaults; ``prefix`` is the path of the message."""
    removed: list[Edit] = []
    changed: list[Edit] = []
    for name, each in kind.fields.items():
        path = f"{prefix}.{name}" if prefix else name
        if name in before and name in after:
            changed += field_edits(before[name], after[name], each, path)
        elif name in after:
            if each.presence or each.repeated or after[name] != each.default:
                changed.append(Edit(path, "set", after[name]))
        elif name in before:
            if each.presence or each.repeated or each.kind in ("string", "enum"):
                removed.append(Edit(path, "remove"))
            elif before[name] != each.default:
                changed.append(Edit(path, "set", each.default))
    return removed + changed


def field_edits(before: Any, after: Any, kind: FieldType, path: str) -> list[Edit]:
    """The edits of one field that both sides have."""
    if before == after:
        return []
    if kind.is_map:
        return _map_edits(before, after, kind, path)
    if kind.repeated:
        return _list_edits(before, after, kind, path) if after else [Edit(path, "remove")]
    if kind.kind == "message":
        return message_edits(before, after, kind.body, path)
    return [Edit(path, "set", after)]


def _map_edits(before: Mapping[Any, Any], after: Mapping[Any, Any], kind: FieldType, path: str) -> list[Edit]:
    inner = kind.body.fields["value"]
    old, new = {str(key): item for key, item in before.items()}, {str(key): item for key, item in after.items()}
    at = {key: f"{path}[{json.dumps(key, ensure_ascii=False)}]" for key in (*old, *new)}
    edits = [Edit(at[key], "remove") for key in old if key not in new]
    for key, item in new.items():
        if key in old:
            edits += field_edits(old[key], item, inner, at[key])
        else:
            edits.append(Edit(at[key], "set", item))
    return edits


def _list_edits(before: Sequence[Any], after: Sequence[Any], kind: FieldType, path: str) -> list[Edit]:
    """Keeps the common beginning and end; changes, removes or inserts between them."""
    shared = min(len(before), len(after))
    head = next((i for i in range(shared) if before[i] != after[i]), shared)
    tail = next((i for i in range(shared - head) if before[-1 - i] != after[-1 - i]), shared - head)
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    edits: list[Edit] = []
    for index in range(min(len(old), len(new))):
        at = f"{path}[{head + index}]"
        if kind.kind == "message":
            edits += message_edits(old[index], new[index], kind.body, at)
        else:
            edits.append(Edit(at, "set", new[index]))
    for index in reversed(range(len(new), len(old))):
        edits.append(Edit(f"{path}[{head + index}]", "remove"))
    for index in range(len(old), len(new)):
        edits.append(Edit(f"{path}[{head + index}]", "insert", new[index]))
    return edits
