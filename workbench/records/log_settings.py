"""What a server logs: Triton's log settings, which may change while it serves."""

from __future__ import annotations

from dataclasses import dataclass

LEVELS = ("verbose", "info", "warning", "error")
"""The levels of a line, the least important first."""


@dataclass(slots=True)
class LogSettings:
    """Triton's log settings; whoever logs asks ``allows`` at that moment.

    ``verbose_level`` 0 logs no verbose lines. ``format`` is ``default`` or ``ISO8601``; ``file`` is where lines go,
    empty for the standard error stream.
    """

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose_level: int = 0
    format: str = "default"
    file: str = ""

    def allows(self, level: str) -> bool:
        """Whether a line of one of ``LEVELS`` is to be logged now."""
        if level == "verbose":
            return self.verbose_level > 0
        return bool(getattr(self, level))
