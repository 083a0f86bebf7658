"""The linter of files on disk: one config.pbtxt, a model directory, or every model of a repository.

The rules of one file are the config room's; here they get what only the directory tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.config import Finding, LintContext, fix_all, lint_config
from workbench.engine.configure import write_atomically
from workbench.errors import ConfigError, NotFound

DEFAULT_RELEASE = "25.03"
"""The Triton release that files are meant for unless one is named."""


@dataclass(frozen=True, slots=True)
class FileReport:
    """What was found in one file."""

    path: Path
    findings: tuple[Finding, ...]
    fixed: tuple[str, ...] = ()
    """What was written into the file, in words (``lint(..., fix=True)``)."""

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """As ``workbench lint --json`` prints it."""
        return {
            "path": str(self.path),
            "ok": self.ok,
            "findings": [finding.to_json() for finding in self.findings],
            "fixed": list(self.fixed),
        }


@dataclass(frozen=True, slots=True, repr=False)
class LintReport(Sequence[FileReport]):
    """The files that were checked."""

    files: tuple[FileReport, ...]

    @property
    def ok(self) -> bool:
        """Whether no file has an error."""
        return all(report.ok for report in self.files)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: Any) -> Any:
        return self.files[index]

    def __repr__(self) -> str:
        lines = []
        for report in self.files:
            lines += [f"{report.path}: fixed: {text}" for text in report.fixed]
            for finding in report.findings:
                place = f"{report.path}:{finding.line}:{finding.column}"
                lines.append(f"{place}: {finding.severity}: {finding.message} [{finding.rule}]")
                if finding.fix is not None:
                    lines.append(f"    fix: {finding.fix.title}")
        number = sum(len(report.findings) for report in self.files)
        failed = sum(1 for report in self.files if not report.ok)
        lines.append(f"{_count(len(self), 'file')}, {_count(number, 'finding')}, {failed} with errors")
        return "\n".join(lines)


def lint(path: str | Path, *, triton_release: str = DEFAULT_RELEASE, fix: bool = False) -> LintReport:
    """Checks a config.pbtxt, a model directory or a repository.

    Args:
        path: which.
        triton_release: what the files are meant for (``25.03``).
        fix: write the fixes that are offered, atomically; the report has what is left then.

    Raises:
        NotFound: there is no configuration at ``path``.
        ConfigError: a file cannot be read or written.
    """
    root = Path(path)
    files = list(config_files(root))
    if not files:
        hint = "give a config.pbtxt, a model directory or a repository"
        raise NotFound(f"no config.pbtxt at {root}", where=str(root), hint=hint)
    return LintReport(tuple(_check(file, triton_release, fix=fix) for file in files))


def config_files(root: Path) -> Iterator[Path]:
    """The configurations to check: the file itself, a model's, or every model's of a repository.

    Raises:
        NotFound: ``root`` does not exist.
    """
    if root.is_file():
        yield root
    elif (root / "config.pbtxt").is_file():
        yield root / "config.pbtxt"
    elif root.is_dir():
        yield from (path for path in sorted(root.glob("*/config.pbtxt")) if path.is_file())
    else:
        raise NotFound(f"{root} does not exist", where=str(root))


def _check(path: Path, release: str, *, fix: bool) -> FileReport:
    name = path.parent.resolve().name if path.name == "config.pbtxt" else None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}", where=str(path)) from error
    findings = lint_config(data, triton_release=release, directory_name=name, path=str(path))
    fixed: list[str] = []
    if fix and any(finding.fix for finding in findings):
        found = findings
        mended, findings = fix_all(data, context=LintContext(triton_release=release, directory_name=name))
        if mended != data:
            try:
                write_atomically(path, mended)
            except OSError as error:
                raise ConfigError(
                    f"cannot write {path}: {error.strerror or error}", where=str(path), hint="is it writable?"
                ) from error
            left = {(finding.rule, finding.message) for finding in findings}
            fixed = [
                f"{finding.fix.title} [{finding.rule}]"
                for finding in found
                if finding.fix is not None and (finding.rule, finding.message) not in left
            ]
    return FileReport(path, tuple(findings), tuple(fixed))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
