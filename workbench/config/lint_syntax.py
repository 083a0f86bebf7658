"""Lint of a file that does not parse: what was meant, and how to say it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from workbench.config.convert import from_json, to_text
from workbench.config.findings import Finding, Fix, Report
from workbench.config.lint_slips import explain_slip
from workbench.config.path import Edit
from workbench.config.placeholders import BARE, COMMENTED, string_placeholders
from workbench.config.schema import EnumType, types
from workbench.config.spelling import closest
from workbench.config.style import line_indent, starts_line
from workbench.config.surroundings import block_end, enclosing, scalar_after, whole_field
from workbench.config.syntax import ParseError, Parser
from workbench.config.tokens import SyntaxFault
from workbench.errors import ConfigError

_BOM = b"\xef\xbb\xbf"
_SMART = {
    "\u201c": b'"',
    "\u201d": b'"',
    "\u201e": b'"',
    "\u00ab": b'"',
    "\u00bb": b'"',
    "\u2018": b"'",
    "\u2019": b"'",
}
_SMART_PATTERN = re.compile(b"|".join(re.escape(char.encode()) for char in _SMART))
_CAPITALS = re.compile(r"[A-Z][A-Z0-9_]*\Z")
_NO_FIELD = re.compile(r'Message type "([^"]+)" has no field named "([^"]*)"')
_NO_ENUM = re.compile(r'Unknown enumeration value of "([^"]*)" for field "([^"]*)"')
_TOP = "the top level"
_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")
_WIRE_NAMES = {
    "BYTES": "TYPE_STRING",
    "TYPE_BYTES": "TYPE_STRING",
    "TYPE_FLOAT": "TYPE_FP32",
    "TYPE_DOUBLE": "TYPE_FP64",
}


def lint_syntax(data: bytes, error: ConfigError, report: Report) -> None:
    """Adds the parser's errors, each explained as far as possible, and those behind the first one."""
    faults = error.faults if isinstance(error, ParseError) else ()
    _Explainer(data, report, list(faults)).run()
    if not faults:
        report.add("parse-error", "error", (0, 0), error.message)


@dataclass(slots=True)
class _Explainer:
    data: bytes
    report: Report
    faults: list[SyntaxFault]

    def run(self) -> None:
        whole = self._bom() or self._smart_quotes() or self._cpp_comments() or self._json() or self._yaml()
        for fault in self.faults:
            self._explain(fault, whole)
        if whole is None:
            self._behind()

    def _behind(self) -> None:
        """What C++ would report only after the first error was mended."""
        parser = Parser(self.data, recover=True)
        tree = parser.parse()
        string_placeholders(tree, self.report)
        known = {(fault.start, fault.message) for fault in self.faults}
        for fault in parser.faults[:200]:
            if (fault.start, fault.message) not in known and _is_certain(fault.message):
                self._explain(fault, None)

    def _text(self, fault: SyntaxFault) -> str:
        return self.data[fault.start : fault.end].decode("utf-8", "replace")

    def _add(self, fault: SyntaxFault, rule: str, more: str, fix: Fix | None) -> None:
        message = fault.message + (f" {more}" if more else "")
        self.report.add_at(Finding(rule, "error", fault.line, fault.column, message, fix, fault.start, fault.end))

    def _explain(self, fault: SyntaxFault, whole: tuple[str, str, Fix] | None) -> None:
        if whole is not None:
            rule, more, fix = whole
            self._add(fault, rule, more, fix)
            return
        for attempt in (self._placeholder, self._field, self._enum, self._second_key, self._schedulers):
            found = attempt(fault)
            if found is not None:
                self._add(fault, *found)
                return
        self._add(fault, *(explain_slip(self.data, fault) or ("parse-error", "", None)))

    # the whole file

    def _bom(self) -> tuple[str, str, Fix] | None:
        if not self.data.startswith(_BOM):
            return None
        return "byte-order-mark", "(the file begins with a byte order mark)", Fix("Remove the mark", (), ((0, 3, b""),))

    def _smart_quotes(self) -> tuple[str, str, Fix] | None:
        codes = {char.encode()[0] for char in _SMART}
        if not any(
            fault.message == f"Interpreting non ascii codepoint {code}." for fault in self.faults for code in codes
        ):
            return None
        changes = []
        for match in _SMART_PATTERN.finditer(self.data):
            line = self.data[self.data.rfind(b"\n", 0, match.start()) + 1 : match.start()]
            if b"#" not in line and line.count(b'"') % 2 == 0:
                changes.append((match.start(), match.end(), _SMART[match.group().decode()]))
        if not changes:
            return None
        return "smart-quotes", "(typographic quotes)", Fix("Use plain quotes", (), tuple(changes))

    def _cpp_comments(self) -> tuple[str, str, Fix] | None:
        if not any(self.data[fault.start : fault.start + 2] in (b"//", b"/*") for fault in self.faults):
            return None
        changes: list[tuple[int, int, bytes]] = []
        for match in re.finditer(rb"(?m)(?:^[ \t]*|[ \t;,\]}\"'0-9A-Za-z_])(//)|/\*.*?\*/", self.data, re.DOTALL):
            begin = self.data.rfind(b"\n", 0, match.start(1) if match.group(1) else match.start()) + 1
            line = self.data[begin : match.start(1) if match.group(1) else match.start()]
            if b"#" in line or line.count(b'"') % 2:
                continue
            if match.group(1):
                changes.append((match.start(1), match.end(1), b"#"))
            else:
                body = match.group()[2:-2].replace(b"\n", b"\n#")
                changes.append((match.start(), match.end(), b"#" + body))
        if not changes:
            return None
        return "cpp-comment", "(a comment begins with #)", Fix("Turn // into #", (), tuple(changes))

    def _json(self) -> tuple[str, str, Fix] | None:
        if not self.data.lstrip().startswith(b"{"):
            return None
        try:
            mended = to_text(from_json(self.data.decode())).encode()
        except (ConfigError, ValueError):
            return None
        fix = Fix("Write it as config.pbtxt", (), ((0, len(self.data), mended),))
        return "json-style", "(the file is JSON, as the load API takes it)", fix

    def _yaml(self) -> tuple[str, str, Fix] | None:
        if not re.search(rb"(?m)^[ \t]*- +[A-Za-z_]+:", self.data):
            return None
        mended = _from_yaml(self.data)
        if mended is None:
            return None
        return (
            "yaml-style",
            "(the file looks like YAML)",
            Fix("Write it as config.pbtxt", (), ((0, len(self.data), mended),)),
        )

    # one error

    def _placeholder(self, fault: SyntaxFault) -> tuple[str, str, Fix | None] | None:
        text = self._text(fault)
        match = BARE.match(self.data, fault.start) or BARE.match(self.data, fault.end)
        commented = COMMENTED.search(self.data, 0, fault.start)
        if match is not None and not match.group().startswith(b"#"):
            found = match.group().decode("utf-8", "replace")
        elif match is not None and text.startswith("TYPE_") and match.start() == fault.end:
            found = text + match.group().decode()
        elif fault.message.startswith(("Expected integer", "Expected double")) and _CAPITALS.match(text):
            found = text
        elif commented is not None and fault.message.startswith("Expected"):
            found = commented.group(1).decode("utf-8", "replace")
        else:
            return None
        return "template-placeholder", f"(unfilled placeholder {found})", None

    def _field(self, fault: SyntaxFault) -> tuple[str, str, Fix | None] | None:
        match = _NO_FIELD.match(fault.message)
        if match is None:
            return None
        owner, name = types()[match.group(1)], match.group(2)
        better = closest(name, owner.fields)
        homes = [each for each in types().values() if name in each.fields and not each.is_entry]
        if better is None and homes:
            return self._misplaced(fault, name, sorted({_path_of(each.full_name) for each in homes}))
        if better is None:
            return "unknown-field", "", None
        fix = Fix(f"Write {better}", (), ((fault.start, fault.end, better.encode()),))
        return "unknown-field", f"Did you mean '{better}'?", fix if self._text(fault) == name else None

    def _misplaced(self, fault: SyntaxFault, name: str, homes: list[str]) -> tuple[str, str, Fix | None]:
        more = f"(it belongs to {', '.join(homes)})"
        found = scalar_after(self.data, fault.end)
        if found is None:
            return "misplaced-field", more, None
        end, value = found
        removal = (*whole_field(self.data, fault.start, end), b"")
        around = enclosing(self.data, fault.start)
        scheduler = around[0].name if around and around[0].name in _SCHEDULERS else self._scheduler()
        homes = [each for each in homes if each.partition(".")[0] == scheduler] or homes
        home = homes[0].partition(".")[0]
        if len(homes) > 1 or "[" in homes[0] or (scheduler and home in _SCHEDULERS and home != scheduler):
            return "misplaced-field", more, Fix(f"Remove {name}", (), (removal,))
        if homes[0] == _TOP:
            if re.search(rb"(?m)^" + name.encode() + rb"[ \t]*:", self.data):
                return "misplaced-field", more, Fix(f"Remove {name}: the top level has it", (), (removal,))
            return "misplaced-field", more, Fix(f"Move {name} to {_TOP}", (Edit(name, "set", value),), (removal,))
        path = f"{homes[0]}.{name}"
        return "misplaced-field", more, Fix(f"Move {name} to {homes[0]}", (Edit(path, "set", value),), (removal,))

    def _scheduler(self) -> str:
        """The scheduler that the file sets; dynamic_batching where it sets none."""
        for name in _SCHEDULERS:
            if self._scheduler_written(name) is not None:
                return name
        return _SCHEDULERS[0]

    def _second_key(self, fault: SyntaxFault) -> tuple[str, str, Fix | None] | None:
        if fault.message != 'Non-repeated field "key" is specified multiple times.':
            return None
        around = enclosing(self.data, fault.start)
        if not around:
            return None
        block = around[-1]
        inner = line_indent(self.data, fault.start)
        outer = line_indent(self.data, block.brace)
        begin = fault.start
        text = "}, { " if block.listed else f"}} {block.name} {{ "
        if starts_line(self.data, fault.start):
            begin = self.data.rfind(b"\n", 0, fault.start) + 1
            text = "},\n{" if block.listed else f"}}\n{block.name} {{"
            text = "".join(f"{outer}{line}\n" for line in text.split("\n")) + inner
        fix = Fix(f"Write one {block.name} for each key", (), ((begin, fault.start, text.encode()),))
        return "two-keys", f"(one {block.name} holds one key)", fix

    def _schedulers(self, fault: SyntaxFault) -> tuple[str, str, Fix | None] | None:
        if "another member of oneof" not in fault.message:
            return None
        return "two-schedulers", "Remove one of them.", self._scheduler_of_an_ensemble()

    def _scheduler_of_an_ensemble(self) -> Fix | None:
        """An ensemble cannot have a batcher: there is no doubt which of the two schedulers goes."""
        if self._scheduler_written("ensemble_scheduling") is None:
            return None
        for name in _SCHEDULERS[:2]:
            found = self._scheduler_written(name)
            end = None if found is None else block_end(self.data, found[1])
            if found is not None and end is not None:
                changes = ((*whole_field(self.data, found[0], end), b""),)
                return Fix(f"Remove {name}: the models of the steps have it", (), changes)
        return None

    def _scheduler_written(self, name: str) -> tuple[int, int] | None:
        """Where a scheduler's field begins and its name ends."""
        match = re.search(rb"(?m)^[ \t]*(" + name.encode() + rb")\b", self.data)
        return None if match is None else match.span(1)

    def _enum(self, fault: SyntaxFault) -> tuple[str, str, Fix | None] | None:
        match = _NO_ENUM.match(fault.message)
        if match is None:
            return None
        value = match.group(1)
        best = _closest_enum(value, match.group(2))
        if best is None:
            return "unknown-enum", "", None
        fix = Fix(f"Write {best}", (), ((fault.start, fault.end, best.encode()),))
        return "unknown-enum", f"Did you mean {best}?", fix if self._text(fault) == value else None


def _is_certain(message: str) -> bool:
    """Whether an error found after recovering is surely one of its own, not a consequence of an earlier one."""
    return bool(_NO_FIELD.match(message) or _NO_ENUM.match(message) or message.startswith("Expected integer, got: "))


def _path_of(full_name: str) -> str:
    """The usual path of a message type in a configuration, as in ``dynamic_batching.default_queue_policy``."""
    if full_name == "inference.ModelConfig":
        return _TOP
    root = types()["inference.ModelConfig"]
    waiting = [(name, field.message) for name, field in root.fields.items() if field.message is not None]
    seen: set[str] = set()
    while waiting:
        path, kind = waiting.pop(0)
        if kind.full_name == full_name:
            return path
        if kind.full_name in seen:
            continue
        seen.add(kind.full_name)
        for name, field in kind.fields.items():
            if field.message is not None:
                waiting.append((path if kind.is_entry else f"{path}.{name}", field.message))
    return full_name


def _closest_enum(value: str, field_name: str) -> str | None:
    enums: list[EnumType] = [
        field.enum
        for kind in types().values()
        for field in kind.fields.values()
        if field.name == field_name and field.enum is not None
    ]
    names = [name for enum in enums for name in enum.numbers]
    upper = value.upper()
    if _WIRE_NAMES.get(upper) in names:
        return _WIRE_NAMES[upper]
    for prefix in ("", "TYPE_", "KIND_", "FORMAT_"):
        for spelled in (upper, upper.replace("FLOAT", "FP")):
            if prefix + spelled in names:
                return prefix + spelled
    return closest(upper, names, cutoff=0.75)


# YAML

_YAML_LINE = re.compile(r"^(?P<indent> *)(?P<dash>(?:- +)?)(?P<key>[A-Za-z_][A-Za-z0-9_]*) *:(?: +(?P<value>.*))?$")


def _from_yaml(data: bytes) -> bytes | None:
    """A config.pbtxt from simple YAML (maps, lists of maps, scalars); None where it is anything else."""
    try:
        tree = _yaml_tree([line for line in data.decode().splitlines() if line.strip() and line.strip()[0] != "#"])
        return to_text(from_json(tree)).encode()
    except (ConfigError, ValueError):
        return None


def _yaml_tree(lines: list[str]) -> dict[str, object]:
    rows: list[tuple[int, bool, str, str]] = []
    for line in lines:
        match = _YAML_LINE.match(line.rstrip())
        if match is None:
            raise ValueError(line)
        dash = match["dash"]
        rows.append((len(match["indent"]) + len(dash), bool(dash), match["key"], (match["value"] or "").strip()))
    value, rest = _yaml_map(rows, 0)
    if rest != len(rows):
        raise ValueError("indentation")
    return value


def _yaml_map(rows: list[tuple[int, bool, str, str]], at: int) -> tuple[dict[str, object], int]:
    out: dict[str, object] = {}
    indent = rows[at][0] if at < len(rows) else 0
    first = True
    while at < len(rows) and rows[at][0] == indent and (first or not rows[at][1]):
        first = False
        _, _, key, text = rows[at]
        at += 1
        if text:
            out[key] = _yaml_scalar(text)
        elif at < len(rows) and rows[at][1] and rows[at][0] > indent:
            items: list[object] = []
            level = rows[at][0]
            while at < len(rows) and rows[at][1] and rows[at][0] == level:
                item, at = _yaml_map(rows, at)
                items.append(item)
            out[key] = items
        elif at < len(rows) and rows[at][0] > indent:
            out[key], at = _yaml_map(rows, at)
        else:
            out[key] = {}
    return out, at


def _yaml_scalar(text: str) -> object:
    text = re.sub(r"\s+#.*$", "", text)
    if text.startswith("[") and text.endswith("]"):
        return [_yaml_scalar(part.strip()) for part in text[1:-1].split(",") if part.strip()]
    try:
        value: object = json.loads(text)
        return value
    except ValueError:
        return text.strip("'")
