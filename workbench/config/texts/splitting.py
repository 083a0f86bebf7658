"""Splits a text into its blocks of code and its prose: Markdown fences, indented and plain passages."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from workbench.config.texts import recognition
from workbench.config.texts.source import Kind, Passage, SourceFile

_FENCE = re.compile(r"^\s*(```+|~~~+)\s*\{?\.?([\w+-]*)[^`]*$")
_RULE = re.compile(r"^\s*(?:-{3,}|={3,}|_{3,}|\*{3,})\s*$")
_BULLET = re.compile(r"^\s*(?:[•◦▪‣·–—]|[-*+](?=\s)|[0-9]+[.)]\s|\|)")
_PREFIX = 40
"""How many lines of a paragraph are tried as a block where the whole of it is none."""

_INSTRUCTION = re.compile(r"^\s*(?:RUN|COPY|ADD|ENV|ARG|WORKDIR|CMD|ENTRYPOINT|EXPOSE|USER|LABEL|FROM|#)\b")
_FILE = re.compile(r"(?:^|[\s`\"'(])((?:[\w.-]+/)*(?:config\.pbtxt|model\.py|[\w-]+\.json))\b")


@dataclass(slots=True)
class _Line:
    number: int  # from 0
    start: int
    end: int
    text: str
    indent: int = field(init=False)
    blank: bool = field(init=False)

    def __post_init__(self) -> None:
        self.indent = len(self.text) - len(self.text.lstrip(" \t"))
        self.blank = not self.text.strip()


@dataclass(slots=True)
class _Run:
    """Lines of one block being collected."""

    kind: Kind
    lines: list[_Line] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Split:
    """The blocks of a text, and the lines outside of them as passages of one line."""

    blocks: tuple[Passage, ...]
    prose: tuple[Passage, ...]


def split(source: SourceFile, *, markdown: bool = False) -> Split:
    """The blocks and the prose of a text.

    ``markdown``: lines that begin with ``#`` are headings, never comments of code.
    """
    lines = [_Line(i, start, end, source.text[start:end]) for i, (start, end) in enumerate(source.lines())]
    blocks: list[Passage] = []
    prose: list[Passage] = []
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at].text)
        if fence is not None:
            end = _fence_end(lines, at, fence.group(1))
            body = lines[at + 1 : end]
            if body:
                blocks.append(_fenced(body, fence.group(2), _named_before(lines, at)))
            at = end + 1
            continue
        run = _run_at(lines, at, markdown)
        if run is None:
            if not lines[at].blank:
                prose.append(_passage("other", [lines[at]]))
            at += 1
            continue
        blocks.append(_named(_passage(run.kind, run.lines)))
        at = run.lines[-1].number + 1
    return Split(tuple(blocks), tuple(prose))


def _fence_end(lines: list[_Line], at: int, mark: str) -> int:
    for index in range(at + 1, len(lines)):
        if lines[index].text.strip().startswith(mark) and not lines[index].text.strip().strip(mark[0]):
            return index
    return len(lines)


def _fenced(body: list[_Line], word: str, path: str) -> Passage:
    made = _passage("other", body)
    made.language = word
    made.kind = recognition.kind_of_fence(word, made.text)
    _named(made)
    made.path = made.path or path
    if made.kind == "other" and made.path.endswith("config.pbtxt") and recognition.begins_config(made.text):
        made.kind = "config"
    return made


def _named_before(lines: list[_Line], at: int) -> str:
    """The file that the line above a fence names, as in ``model.py:``."""
    above = next((line for line in reversed(lines[max(0, at - 2) : at]) if not line.blank), None)
    match = _FILE.search(above.text) if above is not None and len(above.text) < 80 else None
    return match.group(1) if match is not None else ""


def _named(passage: Passage) -> Passage:
    """The passage with the file that its first comment names."""
    first = passage.text.lstrip("\n").split("\n", 1)[0].strip()
    match = _FILE.search(first) if first.startswith(("#", "//")) else None
    if match is not None:
        passage.path = match.group(1)
    return passage


def _passage(kind: Kind, lines: list[_Line]) -> Passage:
    """Lines as a passage without their common indentation."""
    filled = [line for line in lines if not line.blank]
    first = filled[0].text if filled else ""
    indent = _indent(lines)
    texts: list[str] = []
    places: list[int] = []
    for number, line in enumerate(lines):
        skipped = min(indent, line.indent)
        if number:
            texts.append("\n")
            places.append(lines[number - 1].end)
        texts.append(line.text[skipped:])
        places.extend(range(line.start + skipped, line.end))
    places.append(lines[-1].end)
    return Passage(kind, "".join(texts), places, lines[0].number + 1, first[:indent])


# passages without a fence


def _run_at(lines: list[_Line], at: int, markdown: bool) -> _Run | None:
    """The block that begins at a line; None where prose stands."""
    first = lines[at]
    if first.blank or _RULE.match(first.text) or not _may_begin(lines, at):
        return None
    if not recognition.may_begin([line.text for line in lines[at : at + _PREFIX]]):
        return None
    paragraph = _paragraph(lines, at)
    for size in (len(paragraph), *range(min(len(paragraph) - 1, _PREFIX), 0, -1)):
        kind = _kind(paragraph[:size])
        if kind is not None:
            break
    else:
        return _opened(lines, at, markdown)
    if kind == "comment" and markdown:
        return _opened(lines, at, markdown)
    run = _Run(kind, paragraph[:size])
    if size == len(paragraph) or kind in ("config", "message"):
        _grow(lines, run)
    if run.kind == "comment" and markdown:
        return None
    return run


def _may_begin(lines: list[_Line], at: int) -> bool:
    line = lines[at]
    if recognition.TREE.search(line.text):
        return True
    if _BULLET.match(line.text):
        return False
    before = lines[at - 1] if at else None
    if before is None or before.blank or _RULE.match(before.text) or _FENCE.match(before.text):
        return True
    return (
        line.indent > before.indent or bool(recognition.COMMAND.match(line.text)) or before.text.rstrip().endswith(":")
    )


def _paragraph(lines: list[_Line], at: int) -> list[_Line]:
    out: list[_Line] = []
    for line in lines[at:]:
        if line.blank or _RULE.match(line.text) or _FENCE.match(line.text):
            break
        if (
            out
            and _BULLET.match(line.text)
            and not recognition.TREE.search(line.text)
            and line.text.lstrip()[:1] in "•◦▪‣"
        ):
            break
        out.append(line)
    return out


def _kind(lines: list[_Line]) -> Kind | None:
    return recognition.kind_of(_dedented(lines))


def _dedented(lines: list[_Line]) -> str:
    """The text of a passage of these lines."""
    indent = _indent(lines)
    return "\n".join(line.text[min(indent, line.indent) :] for line in lines)


def _indent(lines: list[_Line]) -> int:
    return min((line.indent for line in lines if not line.blank), default=0)


def _opened(lines: list[_Line], at: int, markdown: bool) -> _Run | None:
    """A block whose first paragraph is only understood with those behind it: an open brace, or code after a comment."""
    run = _Run("other", _paragraph(lines, at))
    if not run.lines or not recognition.may_be_open(run.lines[0].text):
        return None
    comment = _kind(run.lines) == "comment"
    if comment and markdown and run.lines[0].indent == 0:
        return None
    text = _dedented(run.lines)
    if not comment and text.count("{") + text.count("[") <= text.count("}") + text.count("]"):
        return None
    for _ in range(12):
        following = _next_paragraph(lines, run)
        if following is None or _BULLET.match(following[0].text):
            return None
        run.lines = [*lines[run.lines[0].number : following[0].number], *following]
        kind = _kind(run.lines)
        if kind is not None and kind != "comment":
            run.kind = kind
            _grow(lines, run)
            return run
    return None


def _next_paragraph(lines: list[_Line], run: _Run) -> list[_Line] | None:
    at = run.lines[-1].number + 1
    while at < len(lines) and lines[at].blank:
        at += 1
    found = _paragraph(lines, at)
    return found or None


def _grow(lines: list[_Line], run: _Run) -> None:
    """Takes in the following paragraphs that belong to the block."""
    while (following := _next_paragraph(lines, run)) is not None:
        base = _indent(run.lines)
        first = following[0]
        if run.kind == "dockerfile" and not _INSTRUCTION.match(first.text):
            return
        if first.indent < base or (_BULLET.match(first.text) and run.kind != "tree"):
            return
        joined = [*lines[run.lines[0].number : first.number], *following]
        kind = _joined_kind(run.kind, _kind(following), _kind(joined), deeper=first.indent > base)
        if kind is None:
            return
        run.kind, run.lines = kind, joined


def _joined_kind(before: Kind, after: Kind | None, joined: Kind | None, *, deeper: bool) -> Kind | None:
    """What two paragraphs are together; None where they are two blocks."""
    if joined is None:
        return None
    if before == "dockerfile":
        return joined if joined == before and after is None else None
    python = ("model", "python")
    if before in python and joined in python and (deeper or after in (*python, "comment")):
        return joined
    if before == "comment":
        return joined if after is not None and joined != "comment" else ("comment" if joined == "comment" else None)
    if (
        before in ("config", "message")
        and joined == before
        and (after in (before, "comment") or deeper or after is None)
    ):
        return before
    if before == "command" and joined == "command" and after in ("command", "comment"):
        return before
    return None
