"""Putting text into a config.pbtxt, and taking it out, where a person would."""

from __future__ import annotations

import re
from collections.abc import Callable

from workbench.config.schema import FieldType
from workbench.config.style import Style, line_indent, starts_line
from workbench.config.syntax import FieldNode, ListNode, MessageNode, ScalarNode

Change = tuple[int, int, bytes]
"""Bytes ``start``..``end`` become the third."""

Render = Callable[[str, bool], str]
"""Text of something new, for an indentation and whether it must stay on one line."""

_TAIL = re.compile(rb"[ \t\r\v\f]*(?:#[^\n]*)?(\n|\Z)")
_SPACES = re.compile(rb"[ \t]*")

_ORDER = (
    "name",
    "platform",
    "backend",
    "runtime",
    "default_model_filename",
    "cc_model_filenames",
    "max_batch_size",
    "version_policy",
    "input",
    "output",
    "batch_input",
    "batch_output",
    "instance_group",
    "dynamic_batching",
    "sequence_batching",
    "ensemble_scheduling",
    "model_transaction_policy",
    "optimization",
    "response_cache",
    "parameters",
    "metric_tags",
    "model_warmup",
    "model_operations",
    "model_repository_agents",
    "model_metrics",
)
"""Where people put the fields of a configuration."""


def apply_changes(data: bytes, changes: list[Change]) -> bytes:
    """The data with all changes made; they must not overlap."""
    out: list[bytes] = []
    at = 0
    for start, end, text in sorted(changes, key=lambda change: (change[0], change[1])):
        out += [data[at:start], text]
        at = end
    return b"".join([*out, data[at:]])


def _rank(message: MessageNode, kind: FieldType) -> int:
    if message.is_root and kind.name in _ORDER:
        return _ORDER.index(kind.name)
    return kind.index


def _line_begin(data: bytes, offset: int) -> int:
    return data.rfind(b"\n", 0, offset) + 1


def tail_end(data: bytes, offset: int) -> int | None:
    """The offset after the line's end, if only white space and a comment follow; else None."""
    match = _TAIL.match(data, offset)
    return match.end() if match else None


def new_field(data: bytes, message: MessageNode, kind: FieldType, render: Render, style: Style) -> list[Change]:
    """A field that the message does not have yet, put where its neighbours in the usual order are."""
    if not message.fields:
        return _into_empty(data, message, render, style)
    same = message.named(kind.name)
    before = [node for node in message.fields if _rank(message, node.type) < _rank(message, kind)]
    if not same and not before:
        return before_field(data, message, message.fields[0], render, style)
    anchor = same[-1] if same else max(before, key=lambda node: (_rank(message, node.type), node.start))
    if message.is_root and kind.kind == "message":
        anchor = _last_on_line(data, message, anchor)
    return after_field(data, message, anchor, render, style)


def _last_on_line(data: bytes, message: MessageNode, anchor: FieldNode) -> FieldNode:
    """The last field that begins on the line on which the anchor ends."""
    line_end = data.find(b"\n", anchor.full_end)
    if line_end < 0:
        line_end = len(data)
    return [node for node in message.fields if node.start < line_end][-1]


def _into_empty(data: bytes, message: MessageNode, render: Render, style: Style) -> list[Change]:
    newline = style.newline.encode()
    if message.is_root:
        before = b"" if not data or data.endswith(b"\n") else newline
        return [(len(data), len(data), before + render("", False).encode() + newline)]
    close = message.end - 1
    if b"\n" not in data[message.start : close]:
        return [(message.start + 1, close, b" " + render("", True).encode() + b" ")]
    indent = line_indent(data, close if starts_line(data, close) else message.start) + style.unit
    text = indent.encode() + render(indent, False).encode() + newline
    if starts_line(data, close):
        at = _line_begin(data, close)
        return [(at, at, text)]
    return [(close, close, newline + text)]


def after_field(data: bytes, message: MessageNode, anchor: FieldNode, render: Render, style: Style) -> list[Change]:
    """A new field right after another, on a line of its own where the other one ends its line."""
    changes: list[Change] = []
    separator = anchor.separator
    others = [node for node in message.fields if node is not anchor]
    if not separator and anchor is message.fields[-1] and others and all(node.separator for node in others):
        changes.append((anchor.end, anchor.end, others[-1].separator))
    end = tail_end(data, anchor.full_end)
    if end is None:
        gap = b"" if data[anchor.full_end : anchor.full_end + 1] in b" \t\r\n,;}>]" else b" "
        text = b" " + render("", True).encode() + separator + gap
        return _merged([*changes, (anchor.full_end, anchor.full_end, text)])
    newline = style.newline.encode()
    indent = _field_indent(data, message, anchor, style)
    text = indent.encode() + render(indent, False).encode() + separator
    if message.is_root and style.spaced and newline in text:
        text = newline + text
    if data[end - 1 : end] == b"\n":
        return [*changes, (end, end, text + newline)]
    return _merged([*changes, (end, end, newline + text)])


def _merged(changes: list[Change]) -> list[Change]:
    """Two insertions at one offset as one, in the order given."""
    if len(changes) == 2 and changes[0][:2] == changes[1][:2]:
        start, end, first = changes[0]
        return [(start, end, first + changes[1][2])]
    return changes


def _field_indent(data: bytes, message: MessageNode, anchor: FieldNode, style: Style) -> str:
    if starts_line(data, anchor.start):
        return line_indent(data, anchor.start)
    for node in message.fields:
        if starts_line(data, node.start):
            return line_indent(data, node.start)
    return line_indent(data, anchor.start) + ("" if message.is_root else style.unit)


def before_field(data: bytes, message: MessageNode, anchor: FieldNode, render: Render, style: Style) -> list[Change]:
    """A new field right before another."""
    separator = anchor.separator
    if not starts_line(data, anchor.start):
        text = render("", True).encode() + separator + b" "
        return [(anchor.start, anchor.start, text)]
    indent = line_indent(data, anchor.start)
    at = _above_comments(data, _line_begin(data, anchor.start))
    text = indent.encode() + render(indent, False).encode() + separator + style.newline.encode()
    return [(at, at, text)]


def _above_comments(data: bytes, begin: int) -> int:
    """The start of the comment lines right above a line, unless they are the head of the file."""
    at = begin
    while at > 0:
        above = _line_begin(data, at - 1)
        if not data[above : at - 1].strip().startswith(b"#"):
            return at
        at = above
    return begin if data[:begin].strip() else 0


def like_field(data: bytes, anchor: FieldNode, body: Callable[[str, bool], str]) -> Render:
    """Renders one more field of a repeated name in the way that ``anchor`` is written (its colon and spaces)."""
    gap = data[anchor.name_end : anchor.value.start].decode("latin-1")
    if "#" in gap:
        gap = ": " if anchor.colon else " "
    own_line = b"\n" in data[anchor.value.start : anchor.value.end]

    def render(indent: str, inline: bool) -> str:
        space = " " if inline and "\n" in gap else gap
        return anchor.type.name + space + body(indent, inline or not own_line)

    return render


def list_insert(
    data: bytes, node: ListNode, index: int, body: Callable[[str, bool], str], style: Style
) -> list[Change]:
    """A new item in ``[ ... ]`` before ``index``, or at the end."""
    if not node.items:
        inner = data[node.start + 1 : node.end - 1]
        if b"#" in inner:
            return [(node.end - 1, node.end - 1, body("", True).encode() + b" ")]
        return [(node.start + 1, node.end - 1, b" " + body("", True).encode() + b" ")]
    anchor = node.items[min(index, len(node.items) - 1)]
    indent = line_indent(data, anchor.start)
    own_line = starts_line(data, anchor.start)
    flat = b"\n" not in data[anchor.start : anchor.end] and not _is_bare(anchor)
    if _is_bare(anchor):
        flat = not own_line
    text = body(indent, flat).encode()
    newline = style.newline.encode()
    if index < len(node.items):
        gap = newline + indent.encode() if own_line and not isinstance(anchor, ScalarNode) else b" "
        return [(anchor.start, anchor.start, text + b"," + gap)]
    end = tail_end(data, anchor.end) if own_line and not isinstance(anchor, ScalarNode) else None
    if own_line and not isinstance(anchor, ScalarNode) and (end is None or data[end - 1 : end] != b"\n"):
        return [(anchor.end, anchor.end, b"," + newline + indent.encode() + text)]
    if end is not None:
        return [(anchor.end, anchor.end, b","), (end, end, indent.encode() + text + newline)]
    if isinstance(anchor, ScalarNode) and own_line and tail_end(data, anchor.end) is not None:
        return [(anchor.end, anchor.end, b"," + newline + indent.encode() + text)]
    return [(anchor.end, anchor.end, b", " + text)]


def _is_bare(node: ScalarNode | MessageNode) -> bool:
    return isinstance(node, MessageNode) and not node.fields


def list_remove(data: bytes, node: ListNode, index: int) -> list[Change]:
    """Takes an item and one comma out of a list of at least two."""
    item = node.items[index]
    if index < len(node.items) - 1:
        return [_tidy(data, item.start, node.commas[index][1])]
    comma_start, comma_end = node.commas[index - 1]
    start, end, _ = _tidy(data, item.start, item.end)
    if not data[comma_end : item.start].strip(b" \t"):
        return [(comma_start, item.end, b"")]
    return [(comma_start, comma_end, b""), (max(start, comma_end), end, b"")]


def remove_field(data: bytes, message: MessageNode, node: FieldNode) -> list[Change]:
    """Takes a field out, with its line where it has one to itself (a comment at its end goes with it)."""
    start, end, _ = _tidy(data, node.start, node.full_end)
    changes: list[Change] = []
    index = message.fields.index(node)
    if index and index == len(message.fields) - 1 and not node.separator and not message.is_root:
        previous = message.fields[index - 1]
        if previous.separator:
            at = previous.full_end - len(previous.separator)
            changes.append((at, previous.full_end, b""))
            start = max(start, previous.full_end)
    return [*changes, (start, end, b"")]


def _tidy(data: bytes, start: int, end: int) -> Change:
    """The bytes to delete with ``start``..``end``: the whole line, or the spaces on one side."""
    begin = _line_begin(data, start)
    alone = not data[begin:start].strip(b" \t")
    line_end = tail_end(data, end)
    if alone and line_end is not None:
        return (begin, line_end, b"")
    if line_end is not None:
        while start > begin and data[start - 1] in b" \t":
            start -= 1
        return (start, end, b"")
    spaces = _SPACES.match(data, end)
    assert spaces is not None
    return (start, spaces.end(), b"")
