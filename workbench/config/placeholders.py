"""Places of a template that nobody has filled in."""

from __future__ import annotations

import re

from workbench.config.findings import Report
from workbench.config.rule import Severity
from workbench.config.syntax import MessageNode, ScalarNode, walk

BARE = re.compile(rb"\$\{[^}\n]*\}|\$[A-Za-z_][A-Za-z0-9_]*|\{\{[^}\n]*\}\}|#[A-Z][A-Z0-9_]{2,}|<[A-Z_]{3,}>|@[A-Z_]+@")
"""A placeholder where a value is expected. ``#`` begins a comment for the parser."""

COMMENTED = re.compile(rb"[\[,:][ \t]*(#[A-Za-z_][A-Za-z0-9_]*)[^\n]*\n\s*\Z")
"""A placeholder that the parser has skipped as a comment, where a value was to follow."""

# $$TRITON_MODEL_DIRECTORY is no placeholder: Triton's Python backend replaces it.
_IN_STRING = re.compile(rb"\$\{[^}]*\}|(?<!\$)\$[A-Z][A-Z0-9_]*|\{\{[^}]*\}\}|\A#[A-Za-z][A-Za-z0-9_]*\Z|\A@[A-Z_]+@\Z")


def string_placeholders(tree: MessageNode, report: Report) -> None:
    """Adds those inside strings: the file parses, but nobody means ``${backend}``."""
    for node in walk(tree):
        for item in node.items():
            match = (
                _IN_STRING.search(item.value)
                if isinstance(item, ScalarNode) and isinstance(item.value, bytes)
                else None
            )
            if match is not None:
                found = match.group().decode("utf-8", "replace")
                text = f"unfilled placeholder {found} in {node.type.name}"
                severity: Severity = "error" if node.type.name in ("name", "backend", "platform") else "warning"
                report.add("template-placeholder", severity, (item.start, item.end), text)
