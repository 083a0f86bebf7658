"""JSON values with their places: from JSON text, or from a dict display in Python code."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, field
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_SCALAR = re.compile(r"-?Infinity|NaN|true|false|null|-?[0-9][0-9.eE+-]*")

UNKNOWN = object()
"""The value of an expression that only running the code would tell."""


@dataclass(slots=True)
class Node:
    """A value at the characters ``start``..``end``; an object has ``members``, a list ``items``."""

    start: int
    end: int
    value: Any = None
    members: dict[str, Node] | None = None
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    items: list[Node] | None = None

    @property
    def span(self) -> tuple[int, int]:
        """Where it stands."""
        return self.start, self.end

    @property
    def known(self) -> bool:
        """Whether its value is told by the text alone."""
        return self.value is not UNKNOWN

    def get(self, name: str) -> Node | None:
        """A member of an object; None where there is none."""
        return (self.members or {}).get(name)

    @property
    def string(self) -> str | None:
        """The value where it is a string."""
        return self.value if isinstance(self.value, str) else None

    def plain(self) -> Any:
        """The value as plain Python; ``UNKNOWN`` inside where it is not told."""
        if self.members is not None:
            return {key: node.plain() for key, node in self.members.items()}
        if self.items is not None:
            return [node.plain() for node in self.items]
        return self.value


class JsonFault(ValueError):
    """The text is no JSON: what is wrong, and where."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


def from_json_text(text: str) -> Node:
    """The value of JSON text (also with NaN and Infinity, which Triton reads).

    Raises:
        JsonFault: it is none.
    """
    node, end = _value(text, _skip(text, 0), 0)
    end = _skip(text, end)
    if end < len(text):
        raise JsonFault("extra text behind the JSON value", end)
    return node


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _value(text: str, at: int, depth: int) -> tuple[Node, int]:
    if depth > 100:
        raise JsonFault("nested too deeply", at)
    char = text[at : at + 1]
    if char == "{":
        return _object(text, at, depth)
    if char == "[":
        return _array(text, at, depth)
    match = _STRING.match(text, at) or _SCALAR.match(text, at)
    if match is None:
        raise JsonFault("a value is expected here" if char else "the text ends too early", min(at, len(text)))
    return Node(at, match.end(), _plain(match, "a value is expected here")), match.end()


def _plain(match: re.Match[str], expected: str) -> Any:
    """A string or a number by itself."""
    try:
        return json.loads(match.group())
    except ValueError as error:  # a wrong escape, a number with a leading zero
        raise JsonFault(expected, match.start()) from error


def _object(text: str, start: int, depth: int) -> tuple[Node, int]:
    members: dict[str, Node] = {}
    keys: dict[str, tuple[int, int]] = {}
    at = _skip(text, start + 1)
    while text[at : at + 1] != "}":
        match = _STRING.match(text, at)
        if match is None:
            raise JsonFault("a name in double quotes is expected here", min(at, len(text)))
        name = _plain(match, "a name in double quotes is expected here")
        colon = _skip(text, match.end())
        if text[colon : colon + 1] != ":":
            raise JsonFault("a colon is expected here", min(colon, len(text)))
        members[name], end = _value(text, _skip(text, colon + 1), depth + 1)
        keys[name] = (at, match.end())
        at = _next(text, end, "}")
    return Node(start, at + 1, members=members, keys=keys), at + 1


def _array(text: str, start: int, depth: int) -> tuple[Node, int]:
    items: list[Node] = []
    at = _skip(text, start + 1)
    while text[at : at + 1] != "]":
        node, end = _value(text, at, depth + 1)
        items.append(node)
        at = _next(text, end, "]")
    return Node(start, at + 1, items=items), at + 1


def _next(text: str, end: int, close: str) -> int:
    """Where the next member begins, or the closing bracket stands."""
    at = _skip(text, end)
    if text[at : at + 1] == close:
        return at
    if text[at : at + 1] != ",":
        raise JsonFault(f"a comma or {close} is expected here", min(at, len(text)))
    following = _skip(text, at + 1)
    if text[following : following + 1] == close:
        raise JsonFault("no comma before the end", at)
    return following


class Offsets:
    """Character offsets of syntax tree nodes (whose columns count UTF-8 bytes)."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def at(self, line: int, column: int) -> int:
        """The character at a line (from 1) and a column in bytes (from 0)."""
        text = self._lines[line - 1]
        skipped = column if text.isascii() else len(text.encode()[:column].decode("utf-8", "replace"))
        return self._starts[line - 1] + skipped

    def span(self, node: ast.expr | ast.stmt | ast.keyword | ast.arg | ast.alias) -> tuple[int, int]:
        """Where a node stands."""
        end_line = node.end_lineno or node.lineno
        return self.at(node.lineno, node.col_offset), self.at(end_line, node.end_col_offset or 0)


def from_python(expression: ast.expr, offsets: Offsets) -> Node:
    """The value that a display in Python code stands for, as far as the text tells it."""
    start, end = offsets.span(expression)
    if isinstance(expression, ast.Dict) and all(_is_name(key) for key in expression.keys):
        members: dict[str, Node] = {}
        keys: dict[str, tuple[int, int]] = {}
        for key, value in zip(expression.keys, expression.values, strict=True):
            assert isinstance(key, ast.Constant)
            name = str(key.value)
            members[name] = from_python(value, offsets)
            keys[name] = offsets.span(key)
        return Node(start, end, members=members, keys=keys)
    if isinstance(expression, ast.List | ast.Tuple) and not any(isinstance(e, ast.Starred) for e in expression.elts):
        return Node(start, end, items=[from_python(each, offsets) for each in expression.elts])
    try:
        value = ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return Node(start, end, UNKNOWN)
    return Node(start, end, value if isinstance(value, str | int | float | bool | None) else UNKNOWN)


def _is_name(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and isinstance(key.value, str)
