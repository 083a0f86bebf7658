"""How a person wrote their config.pbtxt, and writing new fields the same way."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from workbench.config.schema import FieldType, MessageType
from workbench.config.syntax import ListNode, MessageNode, ScalarNode, walk

_LISTED = ("input", "output", "instance_group", "step", "batch_input", "batch_output")
"""Repeated messages that people write as ``name [ {...} ]`` rather than as repeated blocks."""


@dataclass(frozen=True, slots=True)
class Style:
    """The habits of one file.

    ``colon_space`` stands after a scalar's colon; ``message_open`` stands between a message field's name and its brace;
    ``list_open`` before a list of messages; ``separator`` after each field but the last of a message; ``spaced`` where
    a blank line stands before top-level blocks.
    """

    unit: str = "  "
    newline: str = "\n"
    quote: str = '"'
    colon_space: str = " "
    message_open: str = " "
    list_open: str = " "
    separator: str = ""
    spaced: bool = False


PLAIN = Style()


def detect_style(data: bytes, tree: MessageNode) -> Style:
    """The habits of a file, by majority; those of Triton's documentation where it has none."""
    spaces: list[str] = []
    opens: list[str] = []
    lists: list[str] = []
    quotes: list[str] = []
    separators: list[str] = []
    for node in walk(tree):
        gap = data[node.name_end : node.value.start].decode("latin-1")
        if "#" in gap or "\n" in gap:
            continue
        if isinstance(node.value, ScalarNode):
            spaces.append(gap.partition(":")[2])
            if node.type.kind == "string":
                quotes.append(chr(data[node.value.start]))
        elif isinstance(node.value, MessageNode):
            opens.append(gap)
        elif node.type.kind == "message":
            lists.append(gap)
    for node in tree.fields:
        separators.append(node.separator.decode())
    return Style(
        unit=_indent_unit(data, tree),
        newline="\r\n" if data.count(b"\r\n") * 2 > data.count(b"\n") else "\n",
        quote=_most(quotes, '"'),
        colon_space=_most(spaces, " "),
        message_open=_most(opens, " "),
        list_open=_most(lists, " "),
        separator=_most(separators, ""),
        spaced=_is_spaced(data, tree),
    )


def _is_spaced(data: bytes, tree: MessageNode) -> bool:
    """Whether most top-level blocks have a blank line before them."""
    blocks = [node for node in tree.fields[1:] if node.type.kind == "message" and starts_line(data, node.start)]
    return sum(1 for node in blocks if _blank_above(data, node.start)) * 2 > len(blocks)


def _blank_above(data: bytes, offset: int) -> bool:
    """Whether a blank line stands above the line of ``offset``, or above the comments right above it."""
    begin = data.rfind(b"\n", 0, offset) + 1
    while begin > 0:
        above = data.rfind(b"\n", 0, begin - 1) + 1
        line = data[above : begin - 1].strip()
        if not line.startswith(b"#"):
            return not line
        begin = above
    return False


def _most(seen: list[str], default: str) -> str:
    return max(dict.fromkeys(seen), key=seen.count) if seen else default


_LEADING = re.compile(rb"[ \t]*")


def line_indent(data: bytes, offset: int) -> str:
    """The white space that the line of ``offset`` begins with."""
    begin = data.rfind(b"\n", 0, offset) + 1
    match = _LEADING.match(data, begin, max(begin, offset))
    return match.group().decode() if match else ""


def starts_line(data: bytes, offset: int) -> bool:
    """Whether only white space stands before ``offset`` on its line."""
    begin = data.rfind(b"\n", 0, offset) + 1
    return not data[begin:offset].strip(b" \t")


def _indent_unit(data: bytes, tree: MessageNode) -> str:
    units: list[str] = []
    for node in walk(tree):
        for item in node.items():
            if not isinstance(item, MessageNode) or not item.fields:
                continue
            first = item.fields[0]
            if starts_line(data, first.start) and data.find(b"\n", item.start, first.start) >= 0:
                outer, inner = line_indent(data, item.start), line_indent(data, first.start)
                if inner.startswith(outer) and len(inner) > len(outer):
                    units.append(inner[len(outer) :])
        if isinstance(node.value, ListNode) and node.value.items:
            item = node.value.items[0]
            outer, inner = line_indent(data, node.start), line_indent(data, item.start)
            if starts_line(data, item.start) and inner.startswith(outer) and len(inner) > len(outer):
                units.append(inner[len(outer) :])
    return _most(units, "  ")


_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def quote_string(text: str, quote: str) -> str:
    """A string in quotes; what is not printable ASCII control stays as it is, in UTF-8."""
    out = []
    for char in text:
        if char in _ESCAPES:
            out.append(_ESCAPES[char])
        elif char == quote:
            out.append("\\" + char)
        elif char < " " or char == "\x7f":
            out.append(f"\\{ord(char):03o}")
        else:
            out.append(char)
    return quote + "".join(out) + quote


def render_scalar(value: Any, kind: FieldType, style: Style) -> str:
    """A coerced JSON scalar as text."""
    if kind.kind == "string":
        return quote_string(str(value), style.quote)
    if kind.kind == "bool":
        return "true" if value else "false"
    if kind.kind in ("float", "double"):
        number = float(value)
        if math.isnan(number):
            return "nan"
        if math.isinf(number):
            return "inf" if number > 0 else "-inf"
        text = repr(number)
        return text[:-2] if text.endswith(".0") and text != "-0.0" else text
    return str(value)


def render_field(value: Any, kind: FieldType, style: Style, *, indent: str, inline: bool) -> str:
    """A whole field (all its elements) as text, without indentation before its first line."""
    if kind.is_map:
        entries = [render_entry(key, item, kind, style, indent=indent, inline=inline) for key, item in value.items()]
        return _joined([f"{kind.name}{style.message_open}{entry}" for entry in entries], style, indent, inline)
    if kind.kind != "message":
        if not kind.repeated:
            return f"{kind.name}:{style.colon_space}{render_scalar(value, kind, style)}"
        items = ", ".join(render_scalar(item, kind, style) for item in value)
        return f"{kind.name}:{style.colon_space or ' '}[ {items} ]"
    if not kind.repeated:
        return kind.name + style.message_open + render_message(value, kind.body, style, indent=indent, inline=inline)
    if kind.name not in _LISTED or not value:
        blocks = [
            kind.name + style.message_open + render_message(item, kind.body, style, indent=indent, inline=inline)
            for item in value
        ]
        return _joined(blocks, style, indent, inline)
    return kind.name + style.list_open + _render_list(value, kind, style, indent, inline)


def _render_list(value: Any, kind: FieldType, style: Style, indent: str, inline: bool) -> str:
    inner = indent if inline else indent + style.unit
    items = [render_message(item, kind.body, style, indent=inner, inline=inline) for item in value]
    if inline:
        return "[ " + ", ".join(items) + " ]"
    return f"[{style.newline}{inner}" + f",{style.newline}{inner}".join(items) + f"{style.newline}{indent}]"


def _joined(parts: list[str], style: Style, indent: str, inline: bool) -> str:
    return " ".join(parts) if inline else f"{style.newline}{indent}".join(parts)


def render_entry(key: Any, value: Any, kind: FieldType, style: Style, *, indent: str, inline: bool) -> str:
    """A map entry's message ``{ key: ... value ... }``."""
    inner = kind.body.fields["value"]
    return _braces(
        [
            render_field(key, kind.body.fields["key"], style, indent="", inline=True),
            render_field(value, inner, style, indent="", inline=True)
            if inner.kind != "message" or len(value) <= 1
            else render_field(value, inner, style, indent=indent + style.unit, inline=inline),
        ],
        style,
        indent,
        inline,
    )


def render_message(value: Any, kind: MessageType, style: Style, *, indent: str, inline: bool) -> str:
    """A message with its braces."""
    if not value:
        return "{ }"
    inner = indent if inline else indent + style.unit
    parts = [
        render_field(item, kind.fields[name], style, indent=inner, inline=inline)
        for name, item in value.items()
        if not _is_empty(item, kind.fields[name])
    ]
    return _braces(parts, style, indent, inline)


def _is_empty(value: Any, kind: FieldType) -> bool:
    return kind.repeated and not value


def _braces(parts: list[str], style: Style, indent: str, inline: bool) -> str:
    if not parts:
        return "{ }"
    if inline:
        return "{ " + f"{style.separator} ".join(parts) + " }"
    inner = indent + style.unit
    body = f"{style.separator}{style.newline}{inner}".join(parts)
    return f"{{{style.newline}{inner}{body}{style.newline}{indent}}}"


def render_fields(value: Any, kind: MessageType, style: Style, *, indent: str, inline: bool) -> str:
    """The fields of a message without braces, as at the top of a file."""
    parts = [
        render_field(item, kind.fields[name], style, indent=indent, inline=inline)
        for name, item in value.items()
        if not _is_empty(item, kind.fields[name])
    ]
    return _joined(parts, style, indent, inline)
