"""The directory tree of a model repository, as people draw it (semantics 7.2, 7.4, 9.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from workbench.config.texts.recognition import TREE
from workbench.config.texts.source import Notes, Passage, line_span

_DRAWN = re.compile(r"^(?P<lead>[\s│|]*)(?P<branch>├──|└──|\|--|`--|\+--)[─-]*\s*(?P<name>[^\s#←(]+)(?P<rest>.*)$")
_MODEL_FILES = re.compile(r"model\.(?:onnx|plan|pt|pt2|py|xml|graphdef|savedmodel)/?")
_CONFIG_SLIPS = re.compile(
    r"config\.(?:pbtx|pbtext|pbxt|prototxt|pb\.txt|pb|pbtxt\.txt|textproto|proto)|configs?\.pbtxts?"
)


_INDENTED = re.compile(r"^(?P<lead>\s*)(?P<branch>)(?P<name>[^\s#(]+)(?P<rest>.*)$")


@dataclass(slots=True)
class _Entry:
    name: str
    depth: int
    start: int  # of the name
    line_start: int
    lead: str
    branch: str
    children: list[_Entry] = field(default_factory=list)

    @property
    def plain(self) -> str:
        return self.name.rstrip("/")

    @property
    def folder(self) -> bool:
        return self.name.endswith("/") or bool(self.children)

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.start + len(self.name)


def check_tree(passage: Passage, notes: Notes) -> None:
    """Models without a version directory, files in the wrong place, names that Triton does not read."""
    for entry in _walk(_parse(passage.text)):
        names = {each.plain for each in entry.children}
        if _CONFIG_SLIPS.fullmatch(entry.plain) and entry.plain != "config.pbtxt" and not entry.children:
            text = f"Triton reads config.pbtxt; {entry.plain} is ignored"
            notes.say(passage, "tree-config", entry.span, text, "Write config.pbtxt", [(*entry.span, "config.pbtxt")])
        if "config.pbtxt" in names and entry.plain != "configs":
            _model(entry, passage, notes)


def _model(entry: _Entry, passage: Passage, notes: Notes) -> None:
    if any(each.plain in ("...", "…", "..") or "*" in each.plain or "<" in each.plain for each in entry.children):
        return
    versions = [each for each in entry.children if each.plain.isdecimal()]
    for each in entry.children:
        if re.fullmatch(r"[vV](?:ersion)?[-_]?[0-9]+", each.plain) and each.folder:
            number = re.sub(r"\D", "", each.plain)
            text = f"a version directory is a number: Triton ignores {each.plain}"
            at = each.span[0]
            changes = [(at, at + len(each.plain), number)]
            notes.say(passage, "tree-version", each.span, text, f"Write {number}", changes)
            return
        if _MODEL_FILES.fullmatch(each.plain) and not versions:
            text = f"{each.plain} belongs into a version directory, as in {entry.plain}/1/{each.plain}"
            notes.say(passage, "tree-version", each.span, text)
            return
    placeholder = any(re.search(r"version|VERSION|[{$]", each.plain) for each in entry.children if each.folder)
    if versions or placeholder or any(each.folder for each in entry.children):
        return
    text = (
        f"{entry.plain} has no version directory, and every model needs one, an ensemble an empty one: at least one "
        f"version must be available under the version policy of model '{entry.plain}'"
    )
    first = entry.children[0]
    branch = first.branch.replace("└", "├").replace("`", "|")
    gap = passage.text[first.line_start + len(first.lead) + len(first.branch) : first.start]
    line = f"{first.lead}{branch}{gap}1/\n"
    notes.say(
        passage, "tree-version", entry.span, text, "Add the directory 1/", [(first.line_start, first.line_start, line)]
    )


def _parse(text: str) -> list[_Entry]:
    roots: list[_Entry] = []
    stack: list[_Entry] = []
    at = 0
    drawn = _DRAWN if any(TREE.search(line) for line in text.split("\n")) else _INDENTED
    while at < len(text):
        start, end = line_span(text, at)
        line = text[start:end].rstrip("\r\n")
        at = end
        match = drawn.match(line)
        if match is None:
            word = re.match(r"\s*([^\s#(]+)", line)
            if word is None or stack:
                if word is not None and not re.match(r"[\s│|]*$", line):
                    stack = []  # another tree begins
                else:
                    continue
            if word is not None:
                entry = _Entry(word.group(1), -1, start + word.start(1), start, "", "")
                roots.append(entry)
                stack = [entry]
            continue
        entry = _Entry(
            match["name"], match.end("lead"), start + match.start("name"), start, match["lead"], match["branch"]
        )
        while stack and stack[-1].depth >= entry.depth:
            stack.pop()
        (stack[-1].children if stack else roots).append(entry)
        stack.append(entry)
    return roots


def _walk(entries: list[_Entry]) -> list[_Entry]:
    out: list[_Entry] = []
    for each in entries:
        out += [each, *_walk(each.children)]
    return out
