"""What every rule about a configuration that parses works with."""

from __future__ import annotations

from workbench.config.document import ConfigDocument
from workbench.config.findings import Fix, LintContext, Report
from workbench.config.path import Edit
from workbench.config.rule import Severity
from workbench.config.rules import RULES
from workbench.config.schema import Message


class Checker:
    """One file under the rules: the document, its message as written, what it is judged for, and the report."""

    def __init__(self, document: ConfigDocument, context: LintContext, report: Report) -> None:
        self.document = document
        self.message: Message = document.message
        self.context = context
        self.report = report

    @property
    def backend(self) -> str:
        """The backend as far as the text tells it: ``backend``, or that of the platform."""
        from workbench.config.normalization import backend_of_platform

        return self.message.backend or backend_of_platform(self.message.platform)

    def say(self, rule: str, path: str, text: str, fix: Fix | None = None, severity: Severity | None = None) -> None:
        """A finding at a path, or at the nearest place around it; of the rule's usual severity unless one is given."""
        span = self.document.locate(path, nearest=True)
        place = (span.start, span.end) if span is not None else (0, 0)
        self.report.add(rule, severity or RULES[rule].severity, place, text, fix=fix, path=path)


def removal(path: str, title: str = "Remove it") -> Fix:
    """The fix that takes a setting out."""
    return Fix(title, (Edit(path, "remove"),))
