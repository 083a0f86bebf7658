"""Slips of the pen in a file that does not parse: a missing colon, a list without brackets, a value in quotes, ..."""

from __future__ import annotations

import re

from workbench.config.findings import Fix
from workbench.config.schema import types
from workbench.config.surroundings import enclosing
from workbench.config.tokens import Positions, SyntaxFault

_STRING_OR_COMMENT = re.compile(rb"""#|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""")

Explained = tuple[str, str, Fix | None]
"""A rule, what is added to the parser's text, and a fix."""

_BOOLEANS = {"true": b"true", "yes": b"true", "on": b"true", "false": b"false", "no": b"false", "off": b"false"}


def explain_slip(data: bytes, fault: SyntaxFault) -> Explained | None:
    """What was meant where the parser stopped; None where that cannot be told."""
    text = data[fault.start : fault.end].decode("utf-8", "replace")
    for attempt in (_string, _number, _separator, _list, _quoted, _boolean, _message, _balance, _again):
        found = attempt(data, fault, text)
        if found is not None:
            return found
    return None


def _string(data: bytes, fault: SyntaxFault, text: str) -> Explained | None:
    if not fault.message.startswith("Expected string, got: ") or not re.fullmatch(r"[A-Za-z_0-9.+-]+", text):
        return None
    word = re.compile(rb"[A-Za-z0-9_./+-]*").match(data, fault.start)
    assert word is not None
    fix = Fix("Put it in quotes", (), ((fault.start, word.end(), b'"' + word.group() + b'"'),))
    return "unquoted-string", "(a string stands in quotes)", fix


def _number(_: bytes, fault: SyntaxFault, text: str) -> Explained | None:
    if not fault.message.startswith("Expected integer, got: "):
        return None
    number = re.fullmatch(r"[\"']?(-?[0-9]+)(?:\.0*)?[\"']?", text)
    if number is None:
        return None
    fix = Fix(f"Write {number.group(1)}", (), ((fault.start, fault.end, number.group(1).encode()),))
    return "number-form", "(a whole number is expected)", fix


def _separator(data: bytes, fault: SyntaxFault, text: str) -> Explained | None:
    if fault.message.startswith('Expected ":", found '):
        if text == "=":
            return "missing-separator", "(a colon, not =)", Fix("Write a colon", (), ((fault.start, fault.end, b":"),))
        end = _end_before(data, fault.start)
        return "missing-separator", "(a colon goes before the value)", Fix("Add a colon", (), ((end, end, b":"),))
    if fault.message.startswith('Expected ",", found ') and text and text not in "}>":
        end = _end_before(data, fault.start)
        return "missing-separator", "(a comma goes between the items)", Fix("Add a comma", (), ((end, end, b","),))
    return None


def _end_before(data: bytes, place: int) -> int:
    """Where what stands before a place ends: blanks and comments are not counted."""
    while True:
        end = len(data[:place].rstrip())
        start = data.rfind(b"\n", 0, end) + 1
        comment = next((m.start() for m in _STRING_OR_COMMENT.finditer(data[start:end]) if m.group() == b"#"), -1)
        if comment < 0:
            return end
        place = start + comment


def _list(data: bytes, fault: SyntaxFault, text: str) -> Explained | None:
    if fault.message.endswith(("got: ]", 'found "]".')) and text == "]":
        comma = data.rfind(b",", 0, fault.start)
        if comma >= 0 and not data[comma + 1 : fault.start].strip():
            return "trailing-comma", "(no comma before the end)", Fix("Remove it", (), ((comma, comma + 1, b""),))
    if fault.message == "Expected integer, got: (":
        match = re.compile(rb"\(([-\d\s,]*)\)").match(data, fault.start)
        if match is not None:
            return _bracketed(match.start(), match.end(), match.group(1))
    before = re.search(rb":[ \t]*((?:-?\d+[ \t]*,[ \t]*)+)\Z", data[: fault.start])
    if before is not None and re.fullmatch(r"-|\d+", text):
        whole = re.compile(rb"-?\d+(?:[ \t]*,[ \t]*-?\d+)*").match(data, before.start(1))
        assert whole is not None
        return _bracketed(whole.start(), whole.end(), whole.group())
    return None


def _bracketed(start: int, end: int, inside: bytes) -> Explained:
    fix = Fix("Put the list in brackets", (), ((start, end, b"[ " + inside.strip() + b" ]"),))
    return "list-form", "(a list stands in [ ])", fix


def _quoted(data: bytes, fault: SyntaxFault, text: str) -> Explained | None:
    """An enum or a boolean in quotes, or a field's name as in JSON."""
    named = re.search(rb"[\"'](\w+)[\"'][ \t]*\Z", data[: fault.start])
    if fault.message == "Expected identifier, got: :" and named is not None:  # read as more of the string before it
        fix = Fix(f"Write {named.group(1).decode()}", (), ((named.start(), named.end(), named.group(1)),))
        return "quoted-value", "(the name of a field stands without quotes)", fix
    bare = text[1:-1] if len(text) > 2 and text[0] == text[-1] and text[0] in "\"'" else ""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", bare):
        return None
    change = ((fault.start, fault.end, bare.encode()),)
    if fault.message.startswith("Expected integer or identifier, got: "):
        return "quoted-value", "(the name of an enum stands without quotes)", Fix(f"Write {bare}", (), change)
    if not fault.message.startswith("Expected identifier, got: "):
        return None
    if bare.lower() in _BOOLEANS:
        change = ((fault.start, fault.end, _BOOLEANS[bare.lower()]),)
        return "quoted-value", "(true and false stand without quotes)", Fix("Write it without quotes", (), change)
    if data[fault.end :].lstrip()[:1] == b":":
        return "quoted-value", "(the name of a field stands without quotes)", Fix(f"Write {bare}", (), change)
    return None


def _boolean(data: bytes, fault: SyntaxFault, _: str) -> Explained | None:
    match = re.match(r'Invalid value for boolean field "\w+"\. Value: "(\w+)"\.', fault.message)
    better = _BOOLEANS.get(match.group(1).lower()) if match is not None else None
    if match is None or better is None:
        return None
    start = data.rfind(match.group(1).encode(), 0, max(fault.start, fault.end))
    if start < 0:
        return None
    change = ((start, start + len(match.group(1)), better),)
    return "quoted-value", f"(write {better.decode()})", Fix(f"Write {better.decode()}", (), change)


def _message(data: bytes, fault: SyntaxFault, text: str) -> Explained | None:
    """A value where a message stands: the value of a parameter, the versions of a policy, a switch."""
    if not fault.message.startswith('Expected "{", found '):
        return None
    before = re.search(rb"(\w+)[ \t]*:?[ \t]*\Z", data[: fault.start])
    name = before.group(1).decode() if before is not None else ""
    blocks = [block.name for block in enclosing(data, fault.start)]
    inner, end = "", fault.end
    if name == "value" and blocks and blocks[-1] == "parameters":
        inner = "string_value: " + (text if text[:1] in ('"', "'") else f'"{text}"')
    elif name == "latest" and text.isdecimal():
        inner = f"num_versions: {text}"
    elif name == "specific" and re.fullmatch(r"\d+", text):
        inner = f"versions: [ {text} ]"
    elif name in _LISTS and (listed := _list_at(data, fault.start)) is not None:
        inner, end = f"{_LISTS[name]}: {listed}", fault.start + len(listed.encode())
    elif not (text.lower() == "true" and any(name in kind.fields for kind in types().values())):
        return "message-form", f"({name} holds fields: {name} {{ ... }})" if name else "", None
    new = f"{{ {inner} }}" if inner else "{ }"
    return (
        "message-form",
        f"({name} holds fields: {new})",
        Fix(f"Write {new}", (), ((fault.start, end, new.encode()),)),
    )


_LISTS = {"reshape": "shape", "specific": "versions"}
"""Messages that hold one list, for which people write the list alone."""


def _list_at(data: bytes, start: int) -> str | None:
    """A list of whole numbers that begins there, as it is written."""
    match = re.match(rb"\[[\s\d,-]*\]", data[start:])
    return None if match is None else match.group().decode()


def _balance(data: bytes, fault: SyntaxFault, text: str) -> Explained | None:
    if fault.start >= len(data.rstrip()) and fault.message.startswith("Expected"):
        left = enclosing(data, len(data))
        if left:
            line = Positions(data).at(left[-1].brace)[0]
            return "unbalanced", f"(the file ends, and '{left[-1].name}' of line {line} is not closed)", None
        if fault.message == 'Expected ",", found "".':
            return "unbalanced", "(the file ends, and a list is not closed)", None
    if text in ("}", "]", ">") and fault.message == f"Expected identifier, got: {text}":
        return "unbalanced", "(there is nothing that it closes)", None
    return None


def _again(data: bytes, fault: SyntaxFault, _: str) -> Explained | None:
    match = re.match(r'Non-repeated field "(\w+)" is specified multiple times\.', fault.message)
    if match is None:
        return None
    first = re.search(rb"\b" + match.group(1).encode() + rb"\b", data)
    line = Positions(data).at(first.start())[0] if first is not None else 0
    return "duplicate-field", f"(first in line {line}; write it once)" if line else "", None
