"""The tokenizer of protobuf text format, on bytes, with the C++ tokenizer's errors, lines and columns.

A file is never decoded first: Triton accepts any bytes in a comment or a string, and so does this. Source of every rule
and text: protobuf's ``io/tokenizer.cc`` as ``TextFormat::Parser`` sets it up (``#`` comments, ``f`` after a float).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Literal

TokenKind = Literal["identifier", "integer", "float", "string", "symbol", "end"]

_TAB = 8
_SKIP = re.compile(rb"(?:[ \n\t\r\v\f]+|#[^\n\0]*\n?)*")
_UNPRINTABLE = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_IDENTIFIER = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_DIGITS = re.compile(rb"[0-9]*")
_OCTAL = re.compile(rb"[0-7]*")
_HEX = re.compile(rb"[0-9a-fA-F]*")
_CONTROL_RUN = re.compile(rb"[\x00-\x1f]*")
_PLAIN = {b'"': re.compile(rb'[^\\\n\0"]*'), b"'": re.compile(rb"[^\\\n\0']*")}
_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_HEX4 = re.compile(rb"[0-9a-fA-F]{0,4}")
_HEX8 = re.compile(rb"0?(?:(?<=0)0)?(?:(?<=00)[01])?(?:(?<=00[01])[0-9a-fA-F]{0,5})?")


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a file: byte offsets ``start``..``end``; line and column from 1, as the C++ parser counts them.

    A column counts bytes, and a tab moves on to the next multiple of 8.
    """

    start: int
    end: int
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class SyntaxFault:
    """One error of the parser: Triton's text, where it says it is, and the span of the token to mark."""

    message: str
    line: int
    column: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.message}"


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its kind and its bytes ``start``..``end``."""

    kind: TokenKind
    start: int
    end: int
    text: bytes


class Positions:
    """Lines and columns of byte offsets; linear over a whole file, however long its lines are."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._starts = [0, *(match.end() for match in re.finditer(rb"\n", data))]
        self._last = (0, 0, 0)  # line index, offset, column: where the last question on a line with tabs ended

    def at(self, offset: int) -> tuple[int, int]:
        """Line and column (from 1) of a byte offset."""
        line = bisect_right(self._starts, offset) - 1
        known_line, begin, column = self._last
        if known_line != line or begin > offset:
            begin, column = self._starts[line], 0
        pieces = self._data[begin:offset].split(b"\t")
        for piece in pieces[:-1]:
            column += len(piece)
            column += _TAB - column % _TAB
        column += len(pieces[-1])
        self._last = (line, offset, column)
        return line + 1, column + 1

    def line_start(self, line: int) -> int:
        """The offset at which a line (from 1) begins."""
        return self._starts[min(max(line, 1), len(self._starts)) - 1]

    def span(self, start: int, end: int) -> Span:
        """The span of the bytes ``start``..``end``."""
        line, column = self.at(start)
        end_line, end_column = self.at(end)
        return Span(start, end, line, column, end_line, end_column)


@dataclass(slots=True)
class Tokenizer:
    """Reads one token at a time; what is wrong with a token goes to ``faults`` and reading goes on, as in C++."""

    data: bytes
    positions: Positions
    faults: list[SyntaxFault] = field(default_factory=list)
    _at: int = 0
    _previous: Token | None = None

    def next(self) -> Token:
        """The next token; of kind ``end`` when there is none."""
        data, size = self.data, len(self.data)
        while True:
            match = _SKIP.match(data, self._at)
            assert match is not None
            self._at = match.end()
            if self._at >= size:
                return Token("end", size, size, b"")
            if not _UNPRINTABLE.match(data, self._at):
                break
            self._fault("Invalid control characters encountered in text.", self._at)
            run = _CONTROL_RUN.match(data, self._at)
            assert run is not None
            self._at = run.end()
        start = self._at
        kind = self._read(data[start])
        token = Token(kind, start, self._at, data[start : self._at])
        self._previous = token
        return token

    def _fault(self, message: str, offset: int, start: int | None = None) -> None:
        line, column = self.positions.at(offset)
        begin = offset if start is None else start
        self.faults.append(SyntaxFault(message, line, column, begin, max(begin + 1, offset)))

    def _run(self, pattern: re.Pattern[bytes]) -> int:
        """Moves over what the pattern matches; how many bytes that was."""
        match = pattern.match(self.data, self._at)
        assert match is not None
        self._at = match.end()
        return match.end() - match.start()

    def _try(self, choices: bytes) -> bool:
        if self._at < len(self.data) and self.data[self._at] in choices:
            self._at += 1
            return True
        return False

    def _peek(self) -> int:
        return self.data[self._at] if self._at < len(self.data) else 0

    def _read(self, first: int) -> TokenKind:
        start = self._at
        if first in _LETTERS:
            self._run(_IDENTIFIER)
            return "identifier"
        self._at += 1
        if first == 0x2E:  # "."
            return self._read_dot(start)
        if 0x30 <= first <= 0x39:
            return self._read_number(zero=first == 0x30)
        if first in b"\"'":
            self._read_string(start, bytes((first,)))
            return "string"
        if first & 0x80:
            self._fault(f"Interpreting non ascii codepoint {first}.", start)
        return "symbol"

    def _read_dot(self, start: int) -> TokenKind:
        if not self._try(b"0123456789"):
            return "symbol"
        previous = self._previous
        if previous is not None and previous.kind == "identifier" and previous.end == start:
            self._fault("Need space between identifier and decimal point.", start)
        return self._read_number(dot=True)

    def _read_number(self, *, zero: bool = False, dot: bool = False) -> TokenKind:
        is_float = False
        if zero and self._try(b"xX"):
            if not self._run(_HEX):
                self._fault('"0x" must be followed by hex digits.', self._at)
        elif zero and 0x30 <= self._peek() <= 0x39:
            self._run(_OCTAL)
            if 0x30 <= self._peek() <= 0x39:
                self._fault("Numbers starting with leading zero must be in octal.", self._at)
                self._run(_DIGITS)
        else:
            self._run(_DIGITS)
            is_float = dot
            if not dot and self._try(b"."):
                is_float = True
                self._run(_DIGITS)
            if self._try(b"eE"):
                is_float = True
                self._try(b"+-")
                if not self._run(_DIGITS):
                    self._fault('"e" must be followed by exponent.', self._at)
            if self._try(b"fF"):
                is_float = True
        if self._peek() in _LETTERS:
            self._fault("Need space between number and identifier.", self._at)
        elif self._peek() == 0x2E:
            text = (
                "Already saw decimal point or exponent; can't have another one."
                if is_float
                else "Hex and octal numbers must be integers."
            )
            self._fault(text, self._at)
        return "float" if is_float else "integer"

    def _read_string(self, start: int, quote: bytes) -> None:
        plain = _PLAIN[quote]
        while True:
            self._run(plain)
            here = self._peek()
            if here == 0:
                self._fault("Unexpected end of string.", self._at, start)
                return
            if here == 0x0A:
                self._fault('Multiline strings are not allowed. Did you miss a "?.', self._at, start)
                return
            self._at += 1
            if here != 0x5C:  # the closing quote
                return
            self._read_escape()

    def _read_escape(self) -> None:
        if self._try(b"abfnrtv\\?'\"01234567"):
            return
        if self._try(b"xX"):
            if not self._try(b"0123456789abcdefABCDEF"):
                self._fault("Expected hex digits for escape sequence.", self._at)
        elif self._try(b"u"):
            if self._run(_HEX4) < 4:
                self._fault("Expected four hex digits for \\u escape sequence.", self._at)
        elif self._try(b"U"):
            if self._run(_HEX8) < 8:
                self._fault("Expected eight hex digits up to 10ffff for \\U escape sequence", self._at)
        else:
            self._fault("Invalid escape sequence in string literal.", self._at)


_SIMPLE_ESCAPES = {
    0x61: 0x07,
    0x62: 0x08,
    0x66: 0x0C,
    0x6E: 0x0A,
    0x72: 0x0D,
    0x74: 0x09,
    0x76: 0x0B,
    0x5C: 0x5C,
    0x3F: 0x3F,
    0x27: 0x27,
    0x22: 0x22,
}
_ESCAPE = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{0,2})"
    rb"|u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))|(.))",
    re.DOTALL,
)


def unquote(text: bytes) -> bytes:
    """The bytes that a string token stands for."""
    body = text[1:-1] if len(text) > 1 and text[-1:] == text[:1] else text[1:]
    return _ESCAPE.sub(_unescape, body) if b"\\" in body else body


def _unescape(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, high, low, short, long, simple = match.groups()
    if octal is not None:
        return bytes((int(octal, 8) & 0xFF,))
    if hexadecimal is not None:
        return bytes((int(hexadecimal or b"0", 16),))
    if high is not None:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00).encode()
    if simple is not None:
        return bytes((_SIMPLE_ESCAPES.get(simple[0], simple[0]),))
    return chr(min(int(short or long, 16), 0x10FFFF)).encode("utf-8", "surrogatepass")
