"""What stands around a place in a file that does not parse."""

from __future__ import annotations

import re
from dataclasses import dataclass

from workbench.config.style import starts_line
from workbench.config.textedit import tail_end
from workbench.config.tokens import Positions, Tokenizer, unquote


@dataclass(frozen=True, slots=True)
class Block:
    """An open ``name {``: the name and where it begins, where the brace is, and whether it is an item of a list."""

    name: str
    start: int
    brace: int
    listed: bool


def enclosing(data: bytes, offset: int) -> list[Block]:
    """The messages that are open at a byte offset, outermost first."""
    tokens = Tokenizer(data, Positions(data))
    stack: list[Block | None] = []  # None for a list's bracket
    name, start = "", 0
    while True:
        token = tokens.next()
        if token.kind == "end" or token.start >= offset:
            return [block for block in stack if block is not None]
        if token.kind == "identifier":
            name, start = token.text.decode(), token.start
        elif token.text == b"[":
            stack.append(None)
        elif token.text in (b"{", b"<"):
            listed = bool(stack) and stack[-1] is None
            stack.append(Block(name, start, token.start, listed))
        elif token.text in (b"}", b">", b"]") and stack:
            closed = stack.pop()
            if closed is not None:
                name, start = closed.name, closed.start


def block_end(data: bytes, offset: int) -> int | None:
    """The end of the first ``{ ... }`` after a byte offset; None where it is not closed."""
    tokens = Tokenizer(data, Positions(data))
    depth = 0
    while True:
        token = tokens.next()
        if token.kind == "end":
            return None
        if token.start < offset:
            continue
        if token.text in (b"{", b"<"):
            depth += 1
        elif token.text in (b"}", b">"):
            depth -= 1
            if depth == 0:
                return token.end


_SCALAR = re.compile(rb"[ \t]*:[ \t]*(-?[A-Za-z0-9_.+-]+|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')")


def scalar_after(data: bytes, name_end: int) -> tuple[int, object] | None:
    """The end and the JSON value of ``: value`` behind a field's name; None where it is no scalar."""
    match = _SCALAR.match(data, name_end)
    if match is None:
        return None
    text = match.group(1)
    if text[:1] in (b"'", b'"'):
        return match.end(), unquote(text).decode("utf-8", "replace")
    words: dict[bytes, object] = {b"true": True, b"True": True, b"false": False, b"False": False}
    if text in words:
        return match.end(), words[text]
    try:
        return match.end(), int(text)
    except ValueError:
        pass
    try:
        return match.end(), float(text)
    except ValueError:
        return match.end(), text.decode("utf-8", "replace")


def whole_field(data: bytes, start: int, end: int) -> tuple[int, int]:
    """The bytes to delete with a field: its separator, and its line or the spaces behind it."""
    if data[end : end + 1] in (b",", b";"):
        end += 1
    line_end = tail_end(data, end)
    if starts_line(data, start) and line_end is not None:
        return data.rfind(b"\n", 0, start) + 1, line_end
    while data[end : end + 1] in (b" ", b"\t"):
        end += 1
    return start, end
