"""What the linter reports, and applying its fixes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from workbench.config.path import Edit
from workbench.config.rule import Severity
from workbench.config.tokens import Positions
from workbench.errors import ConfigError

Replacement = tuple[int, int, bytes]
"""Bytes ``start``..``end`` of the file become the third."""


@dataclass(frozen=True, slots=True)
class Fix:
    """A way to mend a finding: edits, or where the file cannot be read as a configuration, changes of its bytes."""

    title: str
    edits: tuple[Edit, ...] = ()
    replacements: tuple[Replacement, ...] = ()

    def apply(self, data: bytes) -> bytes:
        """The file with this fix.

        Raises:
            ConfigError: the edits do not fit the file (any more).
        """
        from workbench.config.document import ConfigDocument

        for start, end, text in sorted(self.replacements, reverse=True):
            data = data[:start] + text + data[end:]
        return ConfigDocument.parse(data).edit(self.edits).data if self.edits else data


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the linter has to say; line and column count from 1, ``start``..``end`` are the bytes to mark."""

    rule: str
    severity: Severity
    line: int
    column: int
    message: str
    fix: Fix | None = None
    start: int = 0
    end: int = 0
    path: str = ""

    def to_json(self) -> dict[str, Any]:
        """As ``workbench lint --json`` prints it; a textual fix has ``replacements`` ``{start, end, text}``."""
        fix: dict[str, Any] | None = None
        if self.fix is not None:
            fix = {"title": self.fix.title, "edits": [edit.to_json() for edit in self.fix.edits]}
            if self.fix.replacements:
                fix["replacements"] = [
                    {"start": start, "end": end, "text": text.decode("utf-8", "replace")}
                    for start, end, text in self.fix.replacements
                ]
        return {
            "rule": self.rule,
            "severity": self.severity,
            "line": self.line,
            "column": self.column,
            "message": self.message,
            "fix": fix,
        }


@dataclass(frozen=True, slots=True)
class LintContext:
    """What the file is judged for; None where it is not known.

    Args:
        triton_release: as in ``25.03``.
        directory_name: of the model directory.
        cores: CPU cores of the machine that it is meant for.
        gpus: ids of its GPUs.
        files: names in the first version directory.
        latency_goal_ms: what a request may take, in ms.
        auto_complete: whether backends may complete what is missing (not so with --disable-auto-complete-config).
    """

    triton_release: str = "25.03"
    directory_name: str | None = None
    cores: int | None = None
    gpus: tuple[int, ...] | None = None
    files: tuple[str, ...] | None = None
    latency_goal_ms: float | None = None
    auto_complete: bool = True

    @property
    def release(self) -> tuple[int, int]:
        """The release as numbers; (0, 0) where it cannot be read."""
        year, _, month = self.triton_release.partition(".")
        return (int(year), int(month)) if year.isdecimal() and month.isdecimal() else (0, 0)


class Findings:
    """The findings of one file; the same thing is said once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, str], Finding] = {}

    def add_at(self, finding: Finding) -> None:
        """A finding whose line and column are known."""
        self._found.setdefault((finding.rule, finding.start, finding.message), finding)

    def sorted(self) -> list[Finding]:
        """In the order of the file."""
        return sorted(self._found.values(), key=lambda each: (each.line, each.column, _WEIGHT[each.severity]))


class Report(Findings):
    """Collects the findings of one configuration, whose bytes tell line and column."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._positions = Positions(data)

    def add(
        self,
        rule: str,
        severity: Severity,
        span: tuple[int, int],
        message: str,
        *,
        fix: Fix | None = None,
        path: str = "",
    ) -> None:
        """A finding at the bytes of ``span``."""
        line, column = self._positions.at(span[0])
        self.add_at(Finding(rule, severity, line, column, message, fix, span[0], span[1], path))


_WEIGHT = {"error": 0, "warning": 1, "hint": 2}


def apply_fixes(data: bytes, findings: Iterable[Finding]) -> bytes:
    """The file with the fixes of the findings, textual ones first; a fix that no longer fits is left out whole.

    Fixes can uncover more findings (a file that now parses is checked further): lint again, or use ``fix_all``.
    """
    chosen = [finding.fix for finding in findings if finding.fix is not None]
    taken: list[Replacement] = []
    for fix in chosen:
        if not fix.edits and not any(_overlap(one, other) for one in fix.replacements for other in taken):
            taken += fix.replacements
    for start, end, text in sorted(taken, reverse=True):
        data = data[:start] + text + data[end:]
    for fix in chosen:
        if fix.edits and not any(_overlap(one, other) for one in fix.replacements for other in taken):
            moved = tuple((_moved(start, taken), _moved(end, taken), text) for start, end, text in fix.replacements)
            try:
                data = Fix(fix.title, fix.edits, moved).apply(data)
            except ConfigError:
                continue
            taken += fix.replacements
    return data


def _moved(offset: int, taken: list[Replacement]) -> int:
    return offset + sum(len(text) - (end - start) for start, end, text in taken if end <= offset)


def _overlap(one: Replacement, other: Replacement) -> bool:
    return one == other or (one[0] < other[1] and other[0] < one[1])
