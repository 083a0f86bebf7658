"""A config.pbtxt in a text: whole, or the part that the text is about."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate

from workbench.config.document import ConfigDocument
from workbench.config.findings import Finding, Fix, LintContext, apply_fixes
from workbench.config.lint import lint_config
from workbench.config.schema import Message, types
from workbench.config.texts.source import Change, Notes, Passage
from workbench.config.tokens import Positions, Tokenizer
from workbench.errors import ConfigError

_INCOMPLETE = frozenset(
    {
        "batching-without-max", "io-incomplete", "no-backend", "preferred-without-delay", "unknown-backend",
        "instance-count", "warmup-input", "too-many-threads", "redundant-platform", "priority-without-levels",
        "ensemble-not-checked", "default-policy-unused", "slot-utilization-without-delay", "timeout-without-effect",
        "reshape-without-effect",
    }
)  # fmt: skip
"""What a part cannot be blamed for: the rest may stand elsewhere."""

_LONG = 2000
"""Lines."""

_ABOUT_TENSORS = re.compile(r"ensemble (?:tensor|input|output)|is not written|output '.*' for ensemble")


def check_config(passage: Passage, notes: Notes, context: LintContext) -> Message | None:
    """A passage that is a config.pbtxt or a part of one: the message that it stands for, None where it has none."""
    written = top_names(passage.text)
    names = written & set(types()["inference.ModelConfig"].fields)
    if written and not names and any(written <= set(kind.fields) for kind in types().values()):
        return None  # the inside of a message, shown without its name
    whole = "input" in names and "output" in names and bool({"platform", "backend"} & names)
    header = "" if whole else _header(names, passage.text)
    shown = re.sub(r"\.\.\.|…", lambda match: " " * len(match.group()), passage.text)  # left out, says the author
    data = (header + shown).encode("utf-8", "surrogateescape")
    found = lint_config(data, context=context)
    for finding in found:
        if not _is_of_the_rest(finding, names, whole=whole):
            _add(finding, finding.fix, data, len(header.encode()), passage, notes)
    try:
        message = ConfigDocument.parse(data).message
    except ConfigError:
        mended = apply_fixes(data, found)
        for finding in lint_config(mended, context=context):
            if not _is_of_the_rest(finding, names, whole=whole) and finding.severity != "hint":
                _add_behind(finding, data, mended, header, passage, notes)
        return None
    _instances(message, passage, notes)
    _environment(message, passage, notes)
    return message


def top_names(text: str) -> set[str]:
    """The names of the fields at the top of protobuf text, known or not."""
    data = text.encode("utf-8", "surrogateescape")
    tokens = Tokenizer(data, Positions(data))
    out: set[str] = set()
    depth = 0
    while (token := tokens.next()).kind != "end":
        if token.text in (b"{", b"[", b"<"):
            depth += 1
        elif token.text in (b"}", b"]", b">"):
            depth -= 1
        elif token.kind == "identifier" and depth == 0:
            out.add(token.text.decode())
    return out


def _header(names: set[str], text: str) -> str:
    """What a part is completed with so that it can be judged."""
    header = ""
    if "ensemble_scheduling" in names and "platform" not in names:
        header += 'platform: "ensemble"\n'
    batches = names & {"dynamic_batching", "sequence_batching"}
    if batches and not re.search(r"\bmax_batch_?size\b", text):
        lists = re.findall(r"preferred_batch_size\s*:\s*\[?([0-9,\s]+)", text)
        sizes = [int(number) for found in lists for number in re.findall(r"\b[0-9]{1,9}\b", found)]
        header += f"max_batch_size: {max([8, *sizes])}\n"
    return header


def _is_of_the_rest(finding: Finding, names: set[str], *, whole: bool) -> bool:
    """Whether a finding is about what the text leaves out."""
    if finding.rule == "template-placeholder":
        return True  # the reader of a text is meant to fill it in
    if whole:
        return False
    if finding.rule in _INCOMPLETE:
        return True
    if finding.rule in ("batch-axis-twice", "batch-axis-in-dims") and "max_batch_size" not in names:
        return True
    if "non-batching model" in finding.message and "max_batch_size" not in names:
        return True
    if "ensemble_scheduling" in names and not {"input", "output"} <= names:
        return finding.rule.startswith("ensemble") and bool(_ABOUT_TENSORS.search(finding.message))
    return finding.severity == "hint" and finding.rule not in ("batch-axis-twice", "unknown-parameter")


def _add(finding: Finding, fix: Fix | None, data: bytes, header: int, passage: Passage, notes: Notes) -> None:
    if finding.end <= header and header:
        return
    start = len(data[header : max(finding.start, header)].decode("utf-8", "surrogateescape"))
    end = len(data[header : max(finding.end, header)].decode("utf-8", "surrogateescape"))
    moved = _moved(fix, data, header, passage, notes) if fix is not None else None
    notes.add(finding.rule, finding.severity, passage.places[start], passage.places[end], finding.message, moved)


def _moved(fix: Fix, data: bytes, header: int, passage: Passage, notes: Notes) -> Fix | None:
    """A fix of the configuration as one of the file."""
    try:
        mended = fix.apply(data)
    except ConfigError:
        return None
    if mended[:header] != data[:header]:
        return None
    return notes.fix(passage, fix.title, changes_between(_text(data[header:]), _text(mended[header:])))


def _add_behind(finding: Finding, data: bytes, mended: bytes, header: str, passage: Passage, notes: Notes) -> None:
    """A finding that shows only when what does not parse is mended: said where its lines are the same in both."""
    before, after = _text(data), _text(mended)
    place = _line_map(before, after)
    start, end = len(_text(mended[: finding.start])), len(_text(mended[: finding.end]))
    at, stop = place(start), place(end)
    if at is None or stop is None or at < len(header):
        return
    fix = None
    if finding.fix is not None:
        try:
            changes = changes_between(after, _text(finding.fix.apply(mended)))
        except ConfigError:
            changes = []
        moved = [(place(first), place(last), text) for first, last, text in changes]
        known = [(a - len(header), b - len(header), text) for a, b, text in moved if a is not None and b is not None]
        if known and len(known) == len(moved):
            fix = notes.fix(passage, finding.fix.title, known)
    places = passage.places[at - len(header)], passage.places[stop - len(header)]
    notes.add(finding.rule, finding.severity, *places, finding.message, fix)


def _line_map(before: str, after: str) -> Callable[[int], int | None]:
    """From an offset in ``after`` to the same place in ``before``, where the line is the same."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    old_starts, new_starts = _starts(old), _starts(new)
    same: dict[int, int] = {}
    for tag, start, stop, at, _ in _opcodes(new, old):
        if tag == "equal":
            same.update(zip(range(start, stop), range(at, at + stop - start), strict=True))

    def place(offset: int) -> int | None:
        line = bisect_right(new_starts, offset) - 1
        return None if line not in same else old_starts[same[line]] + offset - new_starts[line]

    return place


def _starts(lines: list[str]) -> list[int]:
    return [0, *accumulate(len(line) for line in lines)][: max(len(lines), 1)]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def changes_between(before: str, after: str) -> list[Change]:
    """The changes of whole lines that turn one text into another."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    starts = [0]
    for line in old:
        starts.append(starts[-1] + len(line))
    changes: list[Change] = []
    for tag, i1, i2, j1, j2 in _opcodes(old, new):
        if tag != "equal":
            changes.append(_narrowed(before[starts[i1] : starts[i2]], "".join(new[j1:j2]), starts[i1]))
    return changes


def _opcodes(old: list[str], new: list[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """What turns some lines into others, as difflib has it.

    Only the part between what is the same at both ends is compared, and where that is long, lines that repeat are not
    matched: difflib takes the square of their number.
    """
    shorter = min(len(old), len(new))
    head = next((number for number in range(shorter) if old[number] != new[number]), shorter)
    tail = next((n for n in range(shorter - head) if old[-1 - n] != new[-1 - n]), shorter - head)
    if head:
        yield "equal", 0, head, 0, head
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=max(len(a), len(b)) > _LONG)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        yield tag, i1 + head, i2 + head, j1 + head, j2 + head
    if tail:
        yield "equal", len(old) - tail, len(old), len(new) - tail, len(new)


def _narrowed(old: str, new: str, at: int) -> Change:
    """A change without what is the same at its beginning and its end."""
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    if "\n" in old or "\n" in new:
        same = old.rfind("\n", 0, same) + 1  # whole lines stay whole
        return at + same, at + len(old), new[same:]
    tail = 0
    while tail < min(len(old), len(new)) - same and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return at + same, at + len(old) - tail, new[same : len(new) - tail]


def _instances(message: Message, passage: Passage, notes: Notes) -> None:
    for index, group in enumerate(message.instance_group):
        if group.count > 1 and len(group.gpus) > 1:
            match = list(re.finditer(r"\bgpus\s*:?\s*\[[^\]]*\]|\bgpus\s*:", passage.text))
            if index < len(match):
                gpus = ", ".join(map(str, group.gpus))
                number = group.count * len(group.gpus)
                text = f"count is for each GPU: {group.count} on each of the GPUs {gpus} makes {number} instances"
                notes.say(passage, "instances-per-gpu", match[index].span(), text)


def _environment(message: Message, passage: Passage, notes: Notes) -> None:
    """A version directory given as the environment of a Python model (stub_launcher.cc, pb_env.cc)."""
    if "EXECUTION_ENV_PATH" not in message.parameters:
        return
    path = message.parameters["EXECUTION_ENV_PATH"].string_value
    at = passage.text.find(path) if path else -1
    if at >= 0 and re.search(r"/[0-9]+/?$", path):
        text = (
            f"{path} is a version directory, not an environment: Path {path.rstrip('/')}/bin/activate does not exist. "
            "Name an archive made by conda-pack, as in $$TRITON_MODEL_DIRECTORY/environment.tar.gz"
        )
        notes.say(passage, "execution-env", (at, at + len(path)), text)


def check_message(passage: Passage, notes: Notes) -> None:
    """Protobuf text whose message is no field of a model configuration."""
    match = re.search(r"(?m)^\s*(?!Model[A-Z]|\w*Re(?:quest|sponse)\b)([A-Z]\w*)\s*\{", passage.text)
    if match is not None:
        text = (
            f"{match.group(1)} is no field of config.pbtxt and nothing that Triton reads: Message type "
            f'"inference.ModelConfig" has no field named "{match.group(1)}".'
        )
        notes.say(passage, "no-triton-text", match.span(1), text)
