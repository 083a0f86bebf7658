"""The linter of one config.pbtxt."""

from __future__ import annotations

from workbench.config.document import ConfigDocument
from workbench.config.findings import Finding, LintContext, Report, apply_fixes
from workbench.config.lint_batching import lint_batching
from workbench.config.lint_checker import Checker
from workbench.config.lint_message import lint_message
from workbench.config.lint_refused import lint_refused
from workbench.config.lint_release import lint_release
from workbench.config.lint_syntax import lint_syntax
from workbench.config.lint_warmup import lint_warmup
from workbench.errors import ConfigError

_PARTS = (lint_refused, lint_message, lint_batching, lint_warmup, lint_release)


def lint_config(
    document: ConfigDocument | bytes,
    *,
    triton_release: str = "25.03",
    directory_name: str | None = None,
    cores: int | None = None,
    path: str = "",
    context: LintContext | None = None,
) -> list[Finding]:
    """Everything that is wrong or questionable in a config.pbtxt, in the order of the file; never raises for the file.

    Args:
        document: a parsed file, or the bytes of one that need not parse.
        triton_release: the release that it is meant for, as in ``25.03``.
        directory_name: the model directory's name, where known.
        cores: CPU cores of the machine that it is meant for, where known.
        path: the file's name for error texts.
        context: all of that and more in one; then the others are ignored.
    """
    context = context or LintContext(triton_release, directory_name, cores)
    data = document if isinstance(document, bytes) else document.data
    report = Report(data)
    try:
        parsed = ConfigDocument.parse(document, path) if isinstance(document, bytes) else document
    except ConfigError as error:
        lint_syntax(data, error, report)
        return report.sorted()
    checker = Checker(parsed, context, report)
    for part in _PARTS:
        part(checker)
    return report.sorted()


def fix_all(data: bytes, *, rounds: int = 20, context: LintContext | None = None) -> tuple[bytes, list[Finding]]:
    """Applies fixes until none is left (or ``rounds`` is over): the file, and the findings that remain."""
    findings = lint_config(data, context=context)
    for _ in range(rounds):
        mended = apply_fixes(data, findings)
        if mended == data:
            break
        data = mended
        findings = lint_config(data, context=context)
    return data, findings
