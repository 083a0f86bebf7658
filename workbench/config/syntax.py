"""The parser of config.pbtxt: bytes to a syntax tree, with the errors of Triton's own (C++) parser.

The tree keeps the byte span of everything, so that an edit can change a value and leave every other byte alone. Source
of the grammar, the texts and their places: protobuf's ``text_format.cc`` (``TextFormat::Parser``, overwriting a
singular field forbidden).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from workbench.config.schema import INTEGER_LIMITS, FieldType, MessageType, root, types
from workbench.config.tokens import Positions, SyntaxFault, Token, Tokenizer, unquote
from workbench.errors import ConfigError

Scalar = bool | int | float | bytes | str
"""What a scalar in the tree holds: strings as bytes, enums by name (by number where the schema has no such name)."""


class ParseError(ConfigError):
    """A config.pbtxt that Triton's parser refuses.

    ``message``, ``line`` and ``column`` are those of the first error; ``faults`` holds all, each with the span of the
    token that it is about.
    """

    def __init__(self, faults: list[SyntaxFault], *, where: str = "") -> None:
        first = faults[0]
        place = f"{where or 'config.pbtxt'}:{first.line}:{first.column}"
        super().__init__(first.message, line=first.line, column=first.column, where=place)
        self.faults = tuple(faults)


@dataclass(slots=True)
class ScalarNode:
    """A scalar value at the bytes ``start``..``end``; ``parts`` are its tokens (several for adjacent strings)."""

    start: int
    end: int
    value: Scalar
    parts: tuple[Token, ...]


@dataclass(slots=True)
class MessageNode:
    """A message: from its opening to after its closing brace; the whole file for the root."""

    type: MessageType
    start: int
    end: int
    fields: list[FieldNode] = field(default_factory=list)

    @property
    def is_root(self) -> bool:
        """Whether this is the whole file (which has no braces)."""
        return self.type.full_name == "inference.ModelConfig"

    def named(self, name: str) -> list[FieldNode]:
        """The fields of that name in file order."""
        return [each for each in self.fields if each.type.name == name]


@dataclass(slots=True)
class ListNode:
    """``[ a, b ]``: the brackets' span, the values, and the spans of the commas between them."""

    start: int
    end: int
    items: list[ScalarNode | MessageNode]
    commas: list[tuple[int, int]]


Value = ScalarNode | MessageNode | ListNode


@dataclass(slots=True)
class FieldNode:
    """A field: name at ``start``; ``end`` is after the value, ``full_end`` after its ``,`` or ``;`` if it has one."""

    type: FieldType
    start: int
    name_end: int
    colon: bool
    value: Value
    end: int
    full_end: int
    separator: bytes

    def items(self) -> list[ScalarNode | MessageNode]:
        """The values: one, or those of the list."""
        return self.value.items if isinstance(self.value, ListNode) else [self.value]


@dataclass(slots=True)
class Elements:
    """The values of one field of a message, however they are spread over fields and lists."""

    places: list[tuple[FieldNode, int]]  # the field, and the index within its list (0 without one)

    @property
    def nodes(self) -> list[ScalarNode | MessageNode]:
        """The values in file order."""
        return [node.items()[index] for node, index in self.places]


def elements(message: MessageNode, name: str) -> Elements:
    """Every value of field ``name``."""
    return Elements([(node, index) for node in message.named(name) for index in range(len(node.items()))])


def map_key(entry: MessageNode) -> Scalar:
    """The key of a map entry (the default key where it has none)."""
    for node in entry.named("key"):
        if isinstance(node.value, ScalarNode):
            return node.value.value
    default = entry.type.fields["key"].default
    return b"" if isinstance(default, str) else default  # type: ignore[return-value]


def walk(message: MessageNode) -> Iterator[FieldNode]:
    """Every field of the message and of all messages in it, in file order."""
    for node in message.fields:
        yield node
        for item in node.items():
            if isinstance(item, MessageNode):
                yield from walk(item)


class _Stop(Exception):
    """The parser met an error and goes no further."""


_FIELD_START = re.compile(rb"[ \t]*[:{\[]")
_CLOSERS = {b"{": b"}", b"<": b">"}


class Parser:
    """Recursive descent over the schema; its depth is the schema's, so no file can exhaust the stack.

    Args:
        data: the file.
        recover: go on after an error with the next field (for the linter), instead of stopping as C++ does.
    """

    def __init__(self, data: bytes, *, recover: bool = False) -> None:
        self._positions = Positions(data)
        self._tokens = Tokenizer(data, self._positions)
        self._data = data
        self._recover = recover
        self._token = self._tokens.next()
        self._last_end = 0
        self.stop_offset = len(data)

    @property
    def faults(self) -> list[SyntaxFault]:
        """What was wrong, in the order of the C++ parser."""
        return self._tokens.faults

    def parse(self) -> MessageNode:
        """The tree; as far as it was read where there are faults."""
        top = MessageNode(root(), 0, len(self._data))
        seen: dict[str, str] = {}
        while self._token.kind != "end":
            try:
                self._field(top, seen)
            except _Stop:
                if not self._recover:
                    self.stop_offset = self._token.start
                    break
                self._resynchronise()
        return top

    # errors and tokens

    def _fail(self, message: str) -> _Stop:
        self._report(message)
        return _Stop()

    def _report(self, message: str, mark: Token | None = None) -> None:
        token = self._token
        line, column = self._positions.at(token.start)
        at = mark or token
        self.faults.append(SyntaxFault(message, line, column, at.start, max(at.end, at.start + 1)))

    def _fail_at(self, message: str, mark: Token) -> _Stop:
        self._report(message, mark)
        return _Stop()

    def _advance(self) -> Token:
        token = self._token
        self._last_end = token.end
        self._token = self._tokens.next()
        return token

    def _try(self, text: bytes) -> bool:
        if self._token.text == text:
            self._advance()
            return True
        return False

    def _expect(self, text: bytes) -> None:
        if not self._try(text):
            raise self._fail(f'Expected "{text.decode()}", found "{_shown(self._token)}".')

    def _identifier(self) -> Token:
        if self._token.kind != "identifier":
            raise self._fail(f"Expected identifier, got: {_shown(self._token)}")
        return self._advance()

    def _resynchronise(self) -> None:
        """Skips to the next line that begins like a top-level field: with a name that is none of a nested message."""
        nested = {name for each in types().values() for name in each.fields} - set(root().fields)
        while self._token.kind != "end":
            token = self._token
            if token.kind == "identifier" and token.text.decode() not in nested:
                begin = self._positions.line_start(self._positions.at(token.start)[0])
                if token.start == begin and _FIELD_START.match(self._data, token.end):
                    return
            self._advance()

    # grammar

    def _field(self, message: MessageNode, seen: dict[str, str]) -> None:
        start = self._token.start
        if self._try(b"["):
            raise self._extension(message)
        name = self._identifier()
        kind = message.type.fields.get(name.text.decode())
        if kind is None:
            text = f'Message type "{message.type.full_name}" has no field named "{_shown(name)}".'
            if not self._recover:
                raise self._fail_at(text, name)
            self._report(text, name)
            self._skip_value()
            return
        self._check_singular(kind, seen, name)
        if kind.kind == "message":
            colon = self._try(b":")
        else:
            self._expect(b":")
            colon = True
        value = self._list(kind) if kind.repeated and self._token.text == b"[" else self._value(kind)
        end, separator = self._last_end, b""
        if self._token.text in (b";", b","):
            separator = self._advance().text
        node = FieldNode(kind, start, name.end, colon, value, end, self._last_end, separator)
        message.fields.append(node)
        present = (
            kind.presence or message.type.is_entry or (isinstance(value, ScalarNode) and _is_set(value.value, kind))
        )
        if not kind.repeated and present:
            seen[kind.name] = kind.name
            if kind.oneof is not None:
                seen[f"oneof {kind.oneof}"] = kind.name

    def _extension(self, message: MessageNode) -> _Stop:
        name = _shown(self._identifier())
        while self._try(b"."):
            name += "." + _shown(self._identifier())
        self._expect(b"]")
        where = message.type.full_name
        return self._fail(f'Extension "{name}" is not defined or is not an extension of "{where}".')

    def _check_singular(self, kind: FieldType, seen: dict[str, str], name: Token) -> None:
        if kind.repeated:
            return
        text = ""
        if kind.name in seen:
            text = f'Non-repeated field "{kind.name}" is specified multiple times.'
        elif kind.oneof is not None and f"oneof {kind.oneof}" in seen:
            other = seen[f"oneof {kind.oneof}"]
            text = (
                f'Field "{kind.name}" is specified along with field "{other}", another member of oneof "{kind.oneof}".'
            )
        if text:
            if not self._recover:
                raise self._fail_at(text, name)
            self._report(text, name)

    def _list(self, kind: FieldType) -> ListNode:
        start = self._advance().start
        items: list[ScalarNode | MessageNode] = []
        commas: list[tuple[int, int]] = []
        if not self._try(b"]"):
            while True:
                items.append(self._value(kind))
                if self._try(b"]"):
                    break
                comma = self._token
                self._expect(b",")
                commas.append((comma.start, comma.end))
        return ListNode(start, self._last_end, items, commas)

    def _value(self, kind: FieldType) -> ScalarNode | MessageNode:
        if kind.kind == "message":
            return self._message(kind.body)
        return self._scalar(kind)

    def _message(self, kind: MessageType) -> MessageNode:
        opening = self._token
        if opening.text != b"<":
            self._expect(b"{")
        else:
            self._advance()
        node = MessageNode(kind, opening.start, opening.end)
        seen: dict[str, str] = {}
        while self._token.text not in (b">", b"}"):
            self._field(node, seen)
        self._expect(_CLOSERS[opening.text])
        node.end = self._last_end
        return node

    def _scalar(self, kind: FieldType) -> ScalarNode:
        first = self._token
        read = {"string": self._string, "bool": self._bool, "enum": self._enum}.get(kind.kind)
        if read is not None:
            value, parts = read(kind)
        elif kind.kind in ("float", "double"):
            number, parts = self._double()
            value = _to_float(number) if kind.kind == "float" else number
        else:
            value, parts = self._signed(INTEGER_LIMITS[kind.kind])
        return ScalarNode(first.start, self._last_end, value, parts)

    def _string(self, kind: FieldType) -> tuple[Scalar, tuple[Token, ...]]:
        if self._token.kind != "string":
            raise self._fail(f"Expected string, got: {_shown(self._token)}")
        parts: list[Token] = [self._advance()]
        while self._at_string():
            parts.append(self._advance())
        return b"".join(unquote(part.text) for part in parts), tuple(parts)

    def _at_string(self) -> bool:
        return self._token.kind == "string"

    def _bool(self, kind: FieldType) -> tuple[Scalar, tuple[Token, ...]]:
        if self._token.kind == "integer":
            number, part = self._unsigned(1)
            return bool(number), (part,)
        token = self._identifier()
        if token.text in (b"true", b"True", b"t"):
            return True, (token,)
        if token.text in (b"false", b"False", b"f"):
            return False, (token,)
        raise self._fail_at(f'Invalid value for boolean field "{kind.name}". Value: "{_shown(token)}".', token)

    def _enum(self, kind: FieldType) -> tuple[Scalar, tuple[Token, ...]]:
        assert kind.enum is not None
        if self._token.kind == "identifier":
            token = self._advance()
            name = token.text.decode()
            if name not in kind.enum.numbers:
                text = f'Unknown enumeration value of "{name}" for field "{kind.name}".'
                if not self._recover:
                    raise self._fail_at(text, token)
                self._report(text, token)
                name = kind.enum.names[0]
            return name, (token,)
        if self._token.kind == "integer" or self._token.text == b"-":
            number, parts = self._signed(INTEGER_LIMITS["int32"])
            return kind.enum.names.get(number, number), parts
        raise self._fail(f"Expected integer or identifier, got: {_shown(self._token)}")

    def _signed(self, limits: tuple[int, int]) -> tuple[int, tuple[Token, ...]]:
        if limits[0] < 0 and self._token.text == b"-":
            minus = self._advance()
            number, part = self._unsigned(-limits[0])
            return -number, (minus, part)
        number, part = self._unsigned(limits[1])
        return number, (part,)

    def _unsigned(self, highest: int) -> tuple[int, Token]:
        token = self._token
        if token.kind != "integer":
            raise self._fail(f"Expected integer, got: {_shown(token)}")
        number = _to_integer(token.text, highest)
        if number is None:
            raise self._fail(f"Integer out of range ({_shown(token)})")
        return number, self._advance()

    def _double(self) -> tuple[float, tuple[Token, ...]]:
        minus = self._advance() if self._token.text == b"-" else None
        token = self._token
        text = token.text.lower()
        if token.kind == "integer":
            if len(text) > 1 and text[:1] == b"0" and (text[1:2] == b"x" or text[1:2] in b"01234567"):
                raise self._fail(f"Expect a decimal number, got: {_shown(token)}")
            number = float(text)
        elif token.kind == "float":
            number = _strtod(text)
        elif text in (b"inf", b"infinity"):
            number = math.inf
        elif text == b"nan":
            number = math.nan
        else:
            got = _shown(token).lower() if token.kind == "identifier" else _shown(token)
            raise self._fail(f"Expected double, got: {got}")
        self._advance()
        return (-number, (minus, token)) if minus is not None else (number, (token,))

    # recovery

    def _skip_value(self) -> None:
        """Skips the value of a field that the schema does not know (only when recovering)."""
        self._try(b":")
        depth = 0
        while self._token.kind != "end":
            text = self._token.text
            if text in (b"{", b"[", b"<"):
                depth += 1
            elif text in (b"}", b"]", b">"):
                if depth == 0:
                    return
                depth -= 1
            elif depth == 0 and text == b"-":
                self._advance()
                continue
            string = self._advance().kind == "string"
            if depth == 0 and not (string and self._token.kind == "string"):
                break
        if self._token.text in (b";", b","):
            self._advance()


_LONGEST_SHOWN = 1000


def _shown(token: Token) -> str:
    """The token as an error shows it; only what no person wrote is cut."""
    text = token.text.decode("utf-8", "replace")
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def _is_set(value: Scalar, kind: FieldType) -> bool:
    if kind.enum is not None:
        return kind.enum.numbers.get(str(value), value) != 0
    if isinstance(value, float):
        return value != 0 or math.copysign(1, value) < 0
    return bool(value)


def _to_integer(text: bytes, highest: int) -> int | None:
    """protobuf's ParseInteger: None for a digit that the base does not have and for what is out of range."""
    if text[:2].lower() == b"0x":
        base, digits = 16, text[2:] or b"0"
    else:
        base, digits = (8, text) if text[:1] == b"0" else (10, text)
    if len(digits) > 40 + (len(digits) - len(digits.lstrip(b"0"))):
        return None  # far beyond any limit; int() of a huge text is quadratic and refused by Python
    try:
        number = int(digits, base)
    except ValueError:
        return None
    return number if number <= highest else None


def _strtod(text: bytes) -> float:
    body = text.rstrip(b"f")
    while body and body[-1:] in b"e+-":
        body = body[:-1]
    try:
        return float(body)
    except (ValueError, OverflowError):
        return 0.0


def _to_float(number: float) -> float:
    """The nearest 32-bit float; beyond its range, infinity."""
    try:
        result: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return result


def parse_syntax(data: bytes, *, where: str = "") -> MessageNode:
    """The syntax tree of a config.pbtxt.

    Raises:
        ParseError: with the message, line and column of Triton's own parser.
    """
    parser = Parser(data)
    tree = parser.parse()
    if parser.faults:
        raise ParseError(parser.faults, where=where)
    return tree
