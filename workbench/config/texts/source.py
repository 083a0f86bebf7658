"""Pieces of a file, and how what is found in them is said of the file."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from workbench.config.findings import Finding, Findings, Fix, Replacement
from workbench.config.rule import Severity
from workbench.config.spelling import closest
from workbench.config.texts.rules import TEXT_RULES

Change = tuple[int, int, str]
"""Characters ``start``..``end`` of a passage become the third."""

Kind = Literal[
    "config",
    "model",
    "python",
    "request",
    "command",
    "dockerfile",
    "metrics",
    "tree",
    "yaml",
    "message",
    "comment",
    "other",
]
"""What a passage is: a config.pbtxt or a part of one, a model.py or a part of one, other Python, an inference request
in JSON, shell commands, a Dockerfile, metrics or PromQL, the directory tree of a repository, Kubernetes or Compose
YAML, protobuf text that is no model configuration, comments only, or anything else."""


class SourceFile:
    """A file as text. Offsets count characters; bytes that are not UTF-8 stay what they are."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.text = data.decode("utf-8", "surrogateescape")
        self._plain = self.text.isascii()
        self._starts = [0, *(index + 1 for index, char in enumerate(self.text) if char == "\n")]

    def at(self, offset: int) -> tuple[int, int]:
        """Line and column from 1, in characters."""
        line = bisect_right(self._starts, offset) - 1
        return line + 1, offset - self._starts[line] + 1

    def byte(self, offset: int) -> int:
        """The byte at which a character begins."""
        return offset if self._plain else len(self.text[:offset].encode("utf-8", "surrogateescape"))

    def lines(self) -> list[tuple[int, int]]:
        """Start and end of every line, without its end-of-line characters."""
        out = []
        for index, start in enumerate(self._starts):
            end = self._starts[index + 1] - 1 if index + 1 < len(self._starts) else len(self.text)
            out.append((start, end - 1 if end > start and self.text[end - 1] == "\r" else end))
        return out


@dataclass(slots=True)
class Passage:
    """One block of a file: its text without indentation, and where each character of it stands in the file.

    ``places`` has one offset more than ``text`` has characters. ``prefix`` is the indentation that a new line gets;
    ``escaped`` is true inside a JSON string (a notebook). ``language`` is a fence's word, ``path`` the file that the
    text says it is.
    """

    kind: Kind
    text: str
    places: Sequence[int]
    line: int
    prefix: str = ""
    language: str = ""
    path: str = ""
    escaped: bool = False

    @classmethod
    def whole(cls, source: SourceFile, kind: Kind, path: str = "") -> Passage:
        """All of a file."""
        return cls(kind, source.text, range(len(source.text) + 1), 1, path=path)

    def part(self, start: int, end: int, kind: Kind) -> Passage:
        """A part of the passage."""
        line = self.line + self.text.count("\n", 0, start)
        return Passage(
            kind, self.text[start:end], self.places[start : end + 1], line, self.prefix, path=self.path,
            escaped=self.escaped,
        )  # fmt: skip


@dataclass(slots=True)
class Notes:
    """Collects what is found in one file; ``release`` is the Triton release that it is meant for."""

    source: SourceFile
    release: tuple[int, int] = (0, 0)
    findings: Findings = field(default_factory=Findings)

    def say(
        self,
        passage: Passage,
        rule: str,
        span: tuple[int, int],
        message: str,
        title: str = "",
        changes: Iterable[Change] = (),
        severity: Severity | None = None,
    ) -> None:
        """A finding at the characters ``span`` of a passage; with ``title``, the changes are its fix."""
        fix = self.fix(passage, title, changes) if title else None
        start, end = passage.places[span[0]], passage.places[span[1]]
        self.add(rule, severity or TEXT_RULES[rule].severity, start, end, message, fix)

    def add(self, rule: str, severity: Severity, start: int, end: int, message: str, fix: Fix | None = None) -> None:
        """A finding at characters of the file; the same thing is said once."""
        line, column = self.source.at(start)
        first, last = self.source.byte(start), self.source.byte(max(start, end))
        self.findings.add_at(Finding(rule, severity, line, column, message, fix, first, last))

    def fix(self, passage: Passage, title: str, changes: Iterable[Change]) -> Fix | None:
        """Changes of a passage as a fix of the file; None where they cannot be written there."""
        replacements: list[Replacement] = []
        for start, end, text in changes:
            begin, stop = passage.places[start], passage.places[end]
            if passage.escaped:
                if '",' in self.source.text[begin:stop] or "\n" in self.source.text[begin:stop]:
                    return None  # it would join lines of a notebook's JSON
                text = _json_escaped(text)
            else:
                newline = "\r\n" if "\r\n" in self.source.text else "\n"
                text = text.replace("\n", newline + passage.prefix)
            encoded = text.encode("utf-8", "surrogateescape")
            replacements.append((self.source.byte(begin), self.source.byte(stop), encoded))
        return Fix(title, (), tuple(replacements)) if replacements else None


def _json_escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def line_span(text: str, offset: int) -> tuple[int, int]:
    """Start and end of the line of ``offset``, with its end of line."""
    end = text.find("\n", offset)
    return text.rfind("\n", 0, offset) + 1, len(text) if end < 0 else end + 1


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.7) -> tuple[str, str | None]:
    """Words to put behind a message, and the name."""
    best = closest(name, known, cutoff=cutoff)
    return (f"; did you mean '{best}'?" if best else ""), best
