"""A configuration as it is being typed: what is wrong with it, where, and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.config import ConfigDocument, Edit, Finding, LintContext, edits_between, fix_all, lint_config
from workbench.errors import ConfigError
from workbench.panels.html import chip, escape

TONE: dict[str, str] = {"error": "bad", "warning": "warn", "hint": "busy"}


@dataclass(frozen=True, slots=True)
class Draft:
    """A text and what is known about it; ``document`` is None where it does not parse."""

    text: str
    model: str
    document: ConfigDocument | None
    findings: tuple[Finding, ...]
    context: LintContext

    @property
    def ok(self) -> bool:
        """Whether it can be applied, as far as the text alone says."""
        return self.document is not None and all(finding.severity != "error" for finding in self.findings)

    @property
    def fixes(self) -> tuple[str, ...]:
        """What pressing Fix would do."""
        return tuple(dict.fromkeys(f.fix.title for f in self.findings if f.fix is not None))

    def fixed(self) -> str:
        """The text with every fix made that the linter knows."""
        data, _ = fix_all(self.text.encode("utf-8"), context=self.context)
        return data.decode("utf-8", "replace")

    def edits_from(self, applied: ConfigDocument) -> list[Edit]:
        """The edits that make the applied configuration equal to this one; values only, comments are not carried."""
        return [] if self.document is None else edits_between(applied.message, self.document.message)


def check(text: str, model: str, cores: int | None = None) -> Draft:
    """Parses, validates with Triton's rules, and lints. Never raises. ``cores`` are those of the server's machine."""
    data = text.encode("utf-8")
    context = LintContext(directory_name=model or None, cores=cores)
    findings = tuple(lint_config(data, path="config.pbtxt", context=context))
    try:
        document = ConfigDocument.parse(data, "config.pbtxt")
    except ConfigError as error:
        if not any(finding.severity == "error" for finding in findings):
            findings = (Finding("syntax", "error", error.line, error.column, error.message), *findings)
        return Draft(text, model, None, findings, context)
    return Draft(text, model, document, findings, context)


def findings_html(draft: Draft, limit: int = 4) -> str:
    """The findings, errors first, each with its line and the token marked."""
    if not draft.findings:
        return chip("valid", "ok")
    order = sorted(draft.findings, key=lambda finding: list(TONE).index(finding.severity))
    data = draft.text.encode("utf-8")
    out = [] if not draft.ok else [chip("valid", "ok")]
    for finding in order[:limit]:
        place = f"line {finding.line}, column {finding.column}: " if finding.line else ""
        fix = f' <span class="wb-muted">Fix: {escape(finding.fix.title)}</span>' if finding.fix is not None else ""
        rule = f' <span class="wb-muted">[{escape(finding.rule)}]</span>'
        out.append(
            f"<div>{chip(finding.severity, TONE[finding.severity])} {escape(place + finding.message)}{rule}{fix}</div>"
        )
        if finding.line and finding.severity != "hint":
            out.append(source_html(data, finding))
    if len(order) > limit:
        out.append(f'<div class="wb-muted">and {len(order) - limit} more</div>')
    return "".join(out)


def source_html(data: bytes, finding: Finding) -> str:
    """The line with the token marked, and a caret under its first character."""
    start = min(finding.start, len(data))
    line_start = data.rfind(b"\n", 0, start) + 1
    line_end = data.find(b"\n", start)
    line_end = len(data) if line_end < 0 else line_end
    end = min(max(finding.end, start), line_end)
    before = data[line_start:start].decode("utf-8", "replace").expandtabs(8)
    token = data[start:end].decode("utf-8", "replace").expandtabs(8)
    after = data[end:line_end].decode("utf-8", "replace").expandtabs(8)
    number = f"{finding.line:>3} | "
    caret = " " * (len(number) + len(before)) + "^"
    marked = f"<mark>{escape(token)}</mark>" if token else "<mark> </mark>"
    return f'<div class="wb-source">{escape(number)}{escape(before)}{marked}{escape(after)}\n{caret}</div>'
