"""What to write instead, where a value of another kind was given for a field: the likely path, and a value there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from workbench.config.schema import INTEGER_LIMITS, FieldType, MessageType

_DEPTH = 3
"""How far below a field its scalars are looked for."""

_EXAMPLES = {"bool": True, "string": "...", "float": 0.5, "double": 0.5}
_LIKELY = ("count", "string_value", "max_queue_delay_microseconds", "num_versions", "name")
"""Of several fields that could hold a value, those that are meant first."""


def instead(value: Any, kind: FieldType, path: str, *, element: bool = False) -> str:
    """How a message, list or map is set, for one who gave something else; "" for a field of another kind.

    Args:
        value: what was given.
        kind: the field.
        path: of the field, or of its element.
        element: one element of a list or map was set.
    """
    if kind.is_map and not element:
        key = '"KEY"' if kind.body.fields["key"].kind == "string" else "1"
        inner = kind.body.fields["value"]
        return f"it is a map: set one of its entries, such as {_inside(value, inner, f'{path}[{key}]')}"
    if kind.repeated and not element:
        if kind.kind != "message":
            return f"it is a list: {path}={_text([value] if _fits(value, kind) else [_example(kind)])}"
        if isinstance(value, Mapping):
            return f"it is a list: {path}={_text([value])}"
        return f"it is a list: set a field of one element, such as {_inside(value, kind, f'{path}[0]')}"
    if kind.kind != "message":
        return ""
    if value is True and "enable" not in kind.body.fields and len(kind.body.fields) > 1:
        return f"{path}={{}} sets it with all its defaults"
    return f"set one of its fields, such as {_inside(value, kind, path)}; fields there: {', '.join(kind.body.fields)}"


def _inside(value: Any, kind: FieldType, path: str) -> str:
    """An edit of a scalar at a path or below it: of one that could hold the value where there is any."""
    if kind.kind != "message":
        return f"{path}={_text(value if _fits(value, kind) else _example(kind))}"
    below = list(_scalars(kind.body, path, _DEPTH))
    found = _best([each for each in below if _fits(value, each[1])], named=isinstance(value, str))
    if found is not None:
        return f"{found[0]}={_text([value] if found[1].repeated else value)}"
    texts = [each for each in below if each[1].name == "string_value"]  # of a parameter: a number is written as a text
    if texts and isinstance(value, str | int | float):
        return f"{texts[0][0]}={_text(_text(value))}"
    found = _best(below)
    if found is None:
        return f"{path}={{}}"
    return f"{found[0]}={_text([_example(found[1])] if found[1].repeated else _example(found[1]))}"


def _best(fields: list[tuple[str, FieldType, int]], *, named: bool = False) -> tuple[str, FieldType, int] | None:
    """The least deep; of these an enum (where ``named``), then one that is likely, single before lists, in order."""

    def order(each: tuple[str, FieldType, int]) -> tuple[int, bool, int, bool]:
        _, kind, depth = each
        likely = _LIKELY.index(kind.name) if kind.name in _LIKELY else len(_LIKELY)
        return depth, not named or kind.enum is None, likely, kind.repeated

    return min(fields, key=order, default=None)


def _scalars(kind: MessageType, path: str, depth: int, at: int = 0) -> Iterator[tuple[str, FieldType, int]]:
    for each in kind.fields.values():
        inner = f"{path}.{each.name}"
        if each.is_map:
            continue
        if each.kind != "message":
            yield inner, each, at
        elif depth > 1:
            yield from _scalars(each.body, f"{inner}[0]" if each.repeated else inner, depth - 1, at + 1)


def _fits(value: Any, kind: FieldType) -> bool:
    """Whether a field holds a value as it is."""
    if kind.kind == "message":
        return False
    if isinstance(value, bool):
        return kind.kind == "bool"
    if isinstance(value, str):
        return value in kind.enum.numbers if kind.enum is not None else kind.kind == "string"
    if isinstance(value, int):
        limits = INTEGER_LIMITS.get(kind.kind)
        return limits is not None and limits[0] <= value <= limits[1]
    return isinstance(value, float) and kind.kind in ("float", "double")


def _example(kind: FieldType) -> Any:
    if kind.enum is not None:
        return list(kind.enum.numbers)[-1]
    return _EXAMPLES.get(kind.kind, 1)


def _text(value: Any) -> str:
    return json.dumps(value, default=str)
