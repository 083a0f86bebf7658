"""What the linter can say: one rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "hint"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its usual severity, why it matters, and what ``--fix`` does where it can (empty: there is no fix)."""

    severity: Severity
    explanation: str
    fix: str = ""
