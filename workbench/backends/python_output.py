"""What a model's process prints, as log lines: bounded, however much it is."""

from __future__ import annotations

from collections.abc import Callable

from workbench.backends.base import LogLevel
from workbench.clock import Clock

LINES_PER_SECOND = 200
LINE_LIMIT = 8192


class LineForwarder:
    """Turns a stream's bytes into log lines: a bounded number a second, each of a bounded length."""

    def __init__(self, log: Callable[[LogLevel, str], None], level: LogLevel, clock: Clock) -> None:
        self._log = log
        self._level: LogLevel = level
        self._clock = clock
        self._rest = b""
        self._tokens = float(LINES_PER_SECOND)
        self._refilled = clock()
        self._dropped = 0

    def feed(self, data: bytes) -> None:
        """Takes what was read; b"" at the end of the stream."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[:LINE_LIMIT] if data else b""
        if not data and lines and not lines[-1]:
            lines.pop()
        now = self._clock()
        self._tokens = min(LINES_PER_SECOND, self._tokens + (now - self._refilled) * LINES_PER_SECOND / 1e9)
        self._refilled = now
        room = int(self._tokens)
        shown, dropped = lines[:room], len(lines) - room
        self._tokens -= len(shown)
        if shown and self._dropped:
            self._log("warning", f"{self._dropped} lines of output were dropped")
            self._dropped = 0
        for line in shown:
            if text := line[:LINE_LIMIT].decode("utf-8", "replace").rstrip("\r"):
                self._log(self._level, text)
        self._dropped += max(0, dropped)
        if not data and self._dropped:
            self._log("warning", f"{self._dropped} lines of output were dropped")
            self._dropped = 0
