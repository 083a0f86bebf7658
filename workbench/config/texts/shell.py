"""Shell commands with the places of their words: enough of the shell's grammar to read what people paste."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_OPERATORS = ("&&", "||", "|", ";", "&")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_WRAPPERS = ("sudo", "time", "nohup", "exec", "env", "nice")


@dataclass(frozen=True, slots=True)
class Word:
    """A word without its quotes; ``start`` and ``end`` include them. ``literal`` is false where a variable is in it."""

    text: str
    start: int
    end: int
    literal: bool = True

    @property
    def span(self) -> tuple[int, int]:
        """Where it stands."""
        return self.start, self.end


@dataclass(slots=True)
class Command:
    """One simple command."""

    words: list[Word] = field(default_factory=list)

    @property
    def program(self) -> str:
        """The program's name without its directory."""
        return self.words[0].text.rpartition("/")[2] if self.words else ""

    @property
    def span(self) -> tuple[int, int]:
        """From the first word to the last."""
        return self.words[0].start, self.words[-1].end

    def from_word(self, index: int) -> Command:
        """The command that begins at a word, as in ``docker run IMAGE command ...``."""
        return Command(self.words[index:])


def commands(text: str) -> list[Command]:
    """The simple commands of a text, in order; a prompt (``$ ``), assignments and ``sudo`` are left out."""
    found: list[Command] = []
    current = Command()
    at, size = 0, len(text)
    while at < size:
        char = text[at]
        if char == "\n" or text.startswith(_OPERATORS, at):
            found.append(current)
            current = Command()
            at += 2 if text.startswith(("&&", "||"), at) else 1
        elif char == "\\" and re.match(r"\\[ \t]*\r?(?:\n|$)", text[at:]):
            end = text.find("\n", at)
            at = size if end < 0 else end + 1
        elif char in " \t\r":
            at += 1
        elif char == "#":
            end = text.find("\n", at)
            at = size if end < 0 else end
        else:
            word = _word(text, at)
            at = word.end
            if current.words or not (word.text in ("$", ">", *_WRAPPERS) or _ASSIGNMENT.match(word.text)):
                current.words.append(word)
    found.append(current)
    return [each for each in found if each.words]


def _word(text: str, start: int) -> Word:
    out: list[str] = []
    at, literal, size = start, True, len(text)
    while at < size and text[at] not in " \t\r\n" and not text.startswith(("|", ";", "&"), at):
        char = text[at]
        if char == "'":
            end = text.find("'", at + 1)
            end = size if end < 0 else end
            out.append(text[at + 1 : end])
            at = end + 1
        elif char == '"':
            at += 1
            while at < size and text[at] != '"':
                if text[at] == "\\" and at + 1 < size:
                    at += 1
                elif text[at] in "$`":
                    literal = False
                out.append(text[at])
                at += 1
            at += 1
        elif char == "`" or text.startswith("$(", at):
            end = text.find("`" if char == "`" else ")", at + 2)
            end = size if end < 0 else end + 1
            literal = False
            out.append(text[at:end])
            at = end
        elif char == "\\" and at + 1 < size:
            if text[at + 1] == "\n":
                break
            out.append(text[at + 1])
            at += 2
        else:
            literal = literal and char not in "$`"
            out.append(char)
            at += 1
    return Word("".join(out), start, min(max(at, start + 1), size), literal)


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command: ``name`` without its dashes, its value (None: none was given), and its places."""

    name: str
    value: str | None
    word: Word
    value_word: Word | None
    literal: bool

    @property
    def name_span(self) -> tuple[int, int]:
        """Where the name stands, with its dashes."""
        return self.word.start, self.word.start + len(self.word.text.partition("=")[0])

    @property
    def span(self) -> tuple[int, int]:
        """The whole option."""
        return self.word.start, (self.value_word or self.word).end


def options(words: list[Word], flags: frozenset[str] = frozenset()) -> list[Option]:
    """The options among words. ``flags``: names that take no value, so that the next word is not theirs."""
    out: list[Option] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not re.match(r"-{1,2}[A-Za-z]", word.text):
            continue
        name, equals, value = word.text.lstrip("-").partition("=")
        if equals:
            out.append(Option(name, value, word, None, word.literal))
        elif name not in flags and index < len(words) and not re.match(r"-{1,2}[A-Za-z]", words[index].text):
            out.append(Option(name, words[index].text, word, words[index], words[index].literal))
            index += 1
        else:
            out.append(Option(name, None, word, None, True))
    return out
