"""Between the syntax tree, the protobuf message, Triton's JSON and normalised text."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

from workbench.config.schema import INTEGER_LIMITS, FieldType, Message, MessageType, pb, root, type_of
from workbench.config.style import PLAIN, Style, render_fields
from workbench.config.suggest import instead
from workbench.config.syntax import ListNode, MessageNode, ParseError, ScalarNode
from workbench.config.tokens import Positions, SyntaxFault
from workbench.errors import ConfigError

Json = Any
"""A value as ``json`` knows it: None, bool, int, float, str, list or dict."""


# syntax tree -> message


def message_from_syntax(tree: MessageNode, data: bytes, *, where: str = "") -> Message:
    """The ``inference.ModelConfig`` that a tree stands for.

    Raises:
        ParseError: a string holds bytes that are not UTF-8 (a protobuf string cannot hold them).
    """
    message = pb().ModelConfig()
    Filler(data, where).fill(message, tree)
    return message


class Filler:
    """Sets a message from a syntax tree; ``data`` is the file, for the place of an error."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data = data
        self._where = where

    def fill(self, message: Message, tree: MessageNode) -> None:
        """Sets the fields of a message node on an empty message."""
        for node in tree.fields:
            kind = node.type
            if isinstance(node.value, ListNode) or kind.repeated:
                for item in node.items():
                    self._append(message, kind, item)
            elif isinstance(node.value, MessageNode):
                getattr(message, kind.name).SetInParent()
                self.fill(getattr(message, kind.name), node.value)
            else:
                setattr(message, kind.name, self.scalar(node.value, kind))

    def scalar(self, node: ScalarNode, kind: FieldType) -> Any:
        """A scalar as protobuf takes it."""
        value = node.value
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                line, column = Positions(self._data).at(node.start)
                text = f'String field "{kind.name}" contains bytes that are not UTF-8.'
                raise ParseError([SyntaxFault(text, line, column, node.start, node.end)], where=self._where) from None
        if kind.enum is not None and isinstance(value, str):
            return kind.enum.numbers[value]
        return value

    def _append(self, message: Message, kind: FieldType, item: ScalarNode | MessageNode) -> None:
        target = getattr(message, kind.name)
        if isinstance(item, ScalarNode):
            target.append(self.scalar(item, kind))
        elif not kind.is_map:
            self.fill(target.add(), item)
        else:
            self._entry(target, kind.body, item)

    def _entry(self, target: Any, kind: MessageType, item: MessageNode) -> None:
        key: Any = kind.fields["key"].default
        value: Any = None
        for node in item.fields:
            if node.type.name == "key" and isinstance(node.value, ScalarNode):
                key = self.scalar(node.value, node.type)
            else:
                value = node.value
        if kind.fields["value"].kind != "message":
            target[key] = self.scalar(value, kind.fields["value"]) if isinstance(value, ScalarNode) else ""
            return
        if key in target:
            del target[key]  # the last entry of a key wins whole
        entry = target[key]
        if isinstance(value, MessageNode):
            self.fill(entry, value)


# message -> JSON


def to_json(message: Message, *, defaults: bool = True) -> dict[str, Json]:
    """A message as Triton's JSON: proto field names, 64-bit integers as numbers, enums by name, map keys as strings.

    Args:
        message: an ``inference.ModelConfig`` or a message in it.
        defaults: print every primitive, list and map also where it is not set, as ``GET /v2/models/M/config`` does;
            otherwise only what is set.
    """
    return _to_json(message, type_of(message), defaults)


def _to_json(message: Message, kind: MessageType, defaults: bool) -> dict[str, Json]:
    out: dict[str, Json] = {}
    for each in kind.fields.values():
        value = getattr(message, each.name)
        if each.is_map:
            if value or defaults:
                inner = each.body.fields["value"]
                out[each.name] = {
                    str(key): _to_json(value[key], inner.body, defaults)
                    if inner.kind == "message"
                    else _scalar_json(value[key], inner)
                    for key in value
                }
        elif each.repeated:
            if value or defaults:
                out[each.name] = [
                    _to_json(item, each.body, defaults) if each.kind == "message" else _scalar_json(item, each)
                    for item in value
                ]
        elif each.presence:
            if message.HasField(each.name):
                out[each.name] = (
                    _to_json(value, each.body, defaults) if each.kind == "message" else _scalar_json(value, each)
                )
        elif defaults or _nonzero(value):
            out[each.name] = _scalar_json(value, each)
    return out


def _nonzero(value: Any) -> bool:
    return bool(value) or (isinstance(value, float) and math.copysign(1, value) < 0)


def _scalar_json(value: Any, kind: FieldType) -> Json:
    if kind.enum is not None:
        return kind.enum.names.get(value, value)
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        return shortest_float(value) if kind.kind == "float" else value
    return value


def shortest_float(value: float) -> float:
    """The 32-bit float with as few digits as tell it apart (0.1, not 0.10000000149011612)."""
    packed = struct.pack("<f", value)
    for digits in range(6, 10):
        short = float(f"{value:.{digits}g}")
        try:
            if struct.pack("<f", short) == packed:
                return short
        except OverflowError:
            continue
    return value


# JSON -> message


def from_json(value: Mapping[str, Json] | str | bytes) -> Message:
    """An ``inference.ModelConfig`` from JSON, as the load API's ``config`` parameter carries it.

    Raises:
        ConfigError: not JSON, an unknown field, or a value that its field cannot hold.
    """
    if isinstance(value, str | bytes):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"model configuration is not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise ConfigError("model configuration must be a JSON object")
    message = pb().ModelConfig()
    fill(message, root(), coerce_message(value, root(), ""))
    return message


def coerce(value: Json, kind: FieldType, path: str) -> Json:
    """The JSON value of a whole field, checked against the schema and in one form (numbers, enum names, field names).

    Raises:
        ConfigError: names the path and what was expected.
    """
    if kind.is_map:
        if not isinstance(value, Mapping):
            raise _refused(path, "an object", value, instead(value, kind, path))
        inner = kind.body.fields["value"]
        key = kind.body.fields["key"]
        return {
            coerce_key(each, key, path): coerce_one(item, inner, f"{path}[{json.dumps(str(each))}]")
            for each, item in value.items()
        }
    if kind.repeated:
        if not isinstance(value, list | tuple):
            raise _refused(path, "an array", value, instead(value, kind, path))
        return [coerce_one(item, kind, f"{path}[{index}]") for index, item in enumerate(value)]
    return coerce_one(value, kind, path)


def coerce_key(value: Json, kind: FieldType, path: str) -> str | int:
    """A map's key in the type of its field."""
    if kind.kind == "string":
        return str(value)
    number: int = coerce_one(value, kind, f"{path} key")
    return number


def coerce_one(value: Json, kind: FieldType, path: str) -> Json:
    """As ``coerce``, for one element of a field."""
    if kind.kind == "message":
        if not isinstance(value, Mapping):
            raise _refused(path, "an object", value, instead(value, kind, path, element=True))
        return coerce_message(value, kind.body, path)
    check: Callable[[Json, FieldType, str], Json] = _CHECKS.get(kind.kind, _integer)
    return check(value, kind, path)


def coerce_message(value: Mapping[str, Json], kind: MessageType, path: str) -> dict[str, Json]:
    """As ``coerce``, for the fields of a message; null is "not set"."""
    out: dict[str, Json] = {}
    for name, item in value.items():
        found = kind.find(str(name))
        where = f"{path}.{name}" if path else str(name)
        if found is None:
            raise ConfigError(f'Message type "{kind.full_name}" has no field named "{name}".', where=where)
        if item is None:
            continue
        for other in found.siblings:
            if other in out:
                text = f'Field "{found.name}" is specified along with field "{other}", another member of oneof'
                raise ConfigError(f'{text} "{found.oneof}".', where=where)
        out[found.name] = coerce(item, found, where)
    return out


def _refused(path: str, expected: str, value: Json, hint: str = "") -> ConfigError:
    shown = json.dumps(value, default=str)
    return ConfigError(f"'{path}' must be {expected}, got {shown[:80]}", where=path, hint=hint)


def _string(value: Json, kind: FieldType, path: str) -> str:
    if not isinstance(value, str):
        raise _refused(path, "a string", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _refused(path, "a string without lone surrogates", value) from None
    return value


def _boolean(value: Json, kind: FieldType, path: str) -> bool:
    if not isinstance(value, bool):
        raise _refused(path, "true or false", value)
    return value


def _enum(value: Json, kind: FieldType, path: str) -> str | int:
    assert kind.enum is not None
    if isinstance(value, str) and value in kind.enum.numbers:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**31:
        return kind.enum.names.get(value, value)
    raise _refused(path, "one of " + ", ".join(kind.enum.numbers), value)


def _float(value: Json, kind: FieldType, path: str) -> float:
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(path, "a number", value)
    try:
        number = float(value)
        if kind.kind == "float" and math.isfinite(number):
            number = shortest_float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        raise _refused(path, f"within the range of a {kind.kind}", value) from None
    return number


def _integer(value: Json, kind: FieldType, path: str) -> int:
    low, high = INTEGER_LIMITS[kind.kind]
    number = value
    digits = isinstance(value, str) and len(value) <= 24 and value.lstrip("-").isdecimal() and value.isascii()
    if digits or (isinstance(value, float) and value.is_integer()):
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
        raise _refused(path, f"an integer from {low} to {high}", value)
    return number


_CHECKS: dict[str, Callable[[Json, FieldType, str], Json]] = {
    "string": _string,
    "bool": _boolean,
    "enum": _enum,
    "float": _float,
    "double": _float,
}


def fill(message: Message, kind: MessageType, value: Mapping[str, Json]) -> None:
    """Sets the fields of a coerced JSON object on a message (which should be empty of them)."""
    for name, item in value.items():
        set_field(message, kind.fields[name], item)


def set_field(message: Message, kind: FieldType, value: Json) -> None:
    """Makes a field of a message equal to a coerced JSON value, whatever it was."""
    message.ClearField(kind.name)
    if kind.is_map:
        inner = kind.body.fields["value"]
        target = getattr(message, kind.name)
        for key, item in value.items():
            if inner.kind == "message":
                fill(target[key], inner.body, item)
            else:
                target[key] = item
    elif kind.repeated:
        target = getattr(message, kind.name)
        for item in value:
            if kind.kind == "message":
                fill(target.add(), kind.body, item)
            else:
                target.append(scalar_to_message(item, kind))
    elif kind.kind == "message":
        getattr(message, kind.name).SetInParent()
        fill(getattr(message, kind.name), kind.body, value)
    else:
        setattr(message, kind.name, scalar_to_message(value, kind))


def scalar_to_message(value: Json, kind: FieldType) -> Any:
    """A coerced JSON scalar as protobuf holds it (enums by number)."""
    return kind.enum.numbers[value] if kind.enum is not None and isinstance(value, str) else value


# message -> text


def to_text(message: Message, *, style: Style = PLAIN) -> str:
    """A message as config.pbtxt in one normal form; parsing it gives the same message.

    Only what is set is written; 2 spaces of indentation, ``input [ { ... } ]``, ``parameters { key: ... }``.
    """
    kind = type_of(message)
    lines = render_fields(to_json(message, defaults=False), kind, style, indent="", inline=False)
    return "".join(f"{line}\n" for line in lines.split("\n")) if lines else ""
