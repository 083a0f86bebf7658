"""Edits of a configuration and the paths that name its places.

``dynamic_batching.max_queue_delay_microseconds``, ``instance_group[0].count``, ``parameters["k"].string_value``; values
are JSON, and a key of letters, digits, ``_``, ``.`` and ``-`` needs no quotes. The same grammar serves lint fixes,
``configure``, ``--set`` and records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from workbench.config.schema import FieldType, MessageType, root
from workbench.config.spelling import closest
from workbench.errors import ConfigError

Op = Literal["set", "remove", "insert"]


@dataclass(frozen=True, slots=True)
class Edit:
    """One change: ``set`` a value, ``remove`` what is there, or ``insert`` an element before an index of a list.

    ``value`` is JSON and unused by ``remove``. ``set`` creates what is missing on the way; ``insert`` without an index
    appends.
    """

    path: str
    op: Op = "set"
    value: Any = None

    def to_json(self) -> dict[str, Any]:
        """The edit as a JSON object, as records and the control plane carry it."""
        if self.op == "remove":
            return {"path": self.path, "op": self.op}
        return {"path": self.path, "op": self.op, "value": self.value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Edit:
        """The reverse of ``to_json``.

        Raises:
            ConfigError: no path, or an unknown op.
        """
        path, op = value.get("path"), value.get("op", "set")
        if not isinstance(path, str) or op not in ("set", "remove", "insert"):
            raise ConfigError(
                "an edit needs a 'path' and an 'op' of 'set', 'remove' or 'insert'", where=str(value)[:200]
            )
        if op != "remove" and "value" not in value:
            raise ConfigError(f"an edit with op '{op}' needs a 'value'", where=path)
        return cls(path, cast("Op", op), value.get("value"))

    def __str__(self) -> str:
        return f"{self.op} {self.path}" + ("" if self.op == "remove" else f" = {json.dumps(self.value)}")


@dataclass(frozen=True, slots=True)
class Step:
    """One field of a path; ``index`` picks an element of a list, ``key`` one of a map."""

    field: FieldType
    index: int | None = None
    key: str | int | None = None

    @property
    def picks(self) -> bool:
        """Whether the step names one element (or a singular field) rather than a whole list or map."""
        return not self.field.repeated or self.index is not None or self.key is not None


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUMBER = re.compile(r"-?[0-9]{1,20}")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def parse_path(path: str, *, within: MessageType | None = None) -> tuple[Step, ...]:
    """The steps of a path, checked against the schema.

    Args:
        path: as in the module's text.
        within: the message that the path begins in; ModelConfig where not given.

    Raises:
        ConfigError: bad grammar or a name that the schema does not have.
    """
    kind: MessageType | None = within or root()
    steps: list[Step] = []
    at = 0
    while True:
        match = _NAME.match(path, at)
        if match is None:
            raise _bad(path, at, "a field name is expected")
        if kind is None:
            raise _bad(path, at, f"'{steps[-1].field.name}' has no fields")
        found = kind.fields.get(match.group())
        if found is None:
            text = f'Message type "{kind.full_name}" has no field named "{match.group()}".'
            raise ConfigError(text, where=path, hint=_nearest(match.group(), kind))
        step, at = _picked(path, match.end(), found)
        steps.append(step)
        kind = _next_kind(step)
        if at == len(path):
            return tuple(steps)
        if path[at] != ".":
            raise _bad(path, at, "'.' or '[' is expected")
        if not step.picks:
            what, one = ("a map", '["KEY"]') if found.is_map else ("a list", "[0]")
            raise _bad(path, at, f"'{found.name}' is {what}: name one element, as in {found.name}{one}")
        at += 1


def _nearest(word: str, kind: MessageType) -> str:
    """What exists in a message, and what of it was probably meant."""
    near = closest(word, kind.fields, cutoff=0.6)
    if near is None and len(word) > 3:
        near = next((name for name in kind.fields if word.lower() in name), None)
    meant = f"did you mean '{near}'? " if near is not None else ""
    return f"{meant}fields there: {', '.join(kind.fields)}"


def _next_kind(step: Step) -> MessageType | None:
    if step.field.is_map:
        value = step.field.body.fields["value"]
        return value.message
    return step.field.message


def _picked(path: str, at: int, found: FieldType) -> tuple[Step, int]:
    if path[at : at + 1] != "[":
        return Step(found), at
    string, number = _STRING.match(path, at + 1), _NUMBER.match(path, at + 1)
    match = string or number or (_WORD.match(path, at + 1) if found.is_map else None)
    if match is None or path[match.end() : match.end() + 1] != "]":
        raise _bad(path, at, "'[' needs an index or a key in quotes, then ']'")
    if not found.repeated:
        raise _bad(path, at, f"'{found.name}' is neither a list nor a map")
    end = match.end() + 1
    if not found.is_map:
        if number is None or int(number.group()) < 0:
            raise _bad(path, at, f"'{found.name}' is a list: an index from 0 is expected")
        return Step(found, index=int(number.group())), end
    try:
        text = json.loads(string.group()) if string is not None else match.group()
    except ValueError:
        raise _bad(path, at, "the key is not a JSON string") from None
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _bad(path, at, "the key holds a lone surrogate") from None
    key: str | int = text if found.body.fields["key"].kind == "string" else _integer_key(path, at, text)
    return Step(found, key=key), end


def _integer_key(path: str, at: int, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise _bad(path, at, "the key must be an integer")
    return int(text)


def _bad(path: str, at: int, why: str) -> ConfigError:
    return ConfigError(f"'{path}' is not a path in a model configuration: {why} at position {at + 1}", where=path)


def format_path(steps: tuple[Step, ...] | list[Step]) -> str:
    """The text of a path."""
    return ".".join(format_step(step) for step in steps)


def format_step(step: Step) -> str:
    """The text of one step."""
    if step.index is not None:
        return f"{step.field.name}[{step.index}]"
    if step.key is not None:
        return f"{step.field.name}[{json.dumps(str(step.key), ensure_ascii=False)}]"
    return step.field.name


def parse_edit(text: str) -> Edit:
    """An edit from ``path=json``, as ``--set`` takes it; text that is not JSON, or any for a string field, is a string.

    Raises:
        ConfigError: no ``=``, or a path that the schema does not have.
    """
    parts = split_at_equals(text)
    if parts is None:
        raise ConfigError(f"'{text}' must have the form path=value", hint="as in instance_group[0].count=2")
    path, value = parts
    last = parse_path(path)[-1]
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return Edit(path, "set", value)
    leaf = last.field.body.fields["value"] if last.key is not None else last.field
    if leaf.kind == "string" and last.picks and not isinstance(parsed, str):
        return Edit(path, "set", value)
    return Edit(path, "set", parsed)


def split_at_equals(text: str) -> tuple[str, str] | None:
    """``path=value`` as its two sides; None where there is no ``=`` outside the quotes of a key."""
    match = re.match(r'((?:[^="]|"(?:[^"\\]|\\.)*")*?)\s*=\s*(.*)\Z', text, re.DOTALL)
    return (match.group(1).strip(), match.group(2).strip()) if match else None
