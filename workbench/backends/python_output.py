"""What a model's process writes to its standard output and error, as log lines: bounded, however much it is."""

from __future__ import annotations

from collections.abc import Callable

from workbench.backends.base import LogLevel
from workbench.clock import Clock

LINES_PER_SECOND = 200
LINE_LIMIT = 8192
BYTES_PER_SECOND = 256 * 1024


class LineForwarder:
    """Turns a stream's bytes into log lines: a bounded number a second, each of a bounded length.

    What does not fit is counted and never cut into lines, so a flood costs its reader little more than the reading.
    """

    def __init__(self, log: Callable[[LogLevel, str], None], level: LogLevel, clock: Clock) -> None:
        self._log = log
        self._level: LogLevel = level
        self._clock = clock
        self._rest = b""
        self._left_out = 0  # bytes of the line that goes on
        self._lines = float(LINES_PER_SECOND)
        self._bytes = float(BYTES_PER_SECOND)
        self._refilled = clock()
        self._dropped = 0

    def feed(self, data: bytes) -> None:
        """Takes what was read; b"" at the end of the stream."""
        self._refill()
        end = not data
        room = int(self._lines) if self._bytes > 0 else 0
        *lines, rest = (self._rest + data).split(b"\n", room) if room else (self._rest + data,)
        if end and rest:
            lines.append(rest)
            rest = b""
        if lines and self._dropped:
            self._confess()
        for line in lines:
            self._forward(line)
        whole, newline, rest = rest.rpartition(b"\n")
        if newline:
            self._dropped += whole.count(b"\n") + 1
            self._left_out = 0
        self._left_out += max(0, len(rest) - LINE_LIMIT)
        self._rest = rest[:LINE_LIMIT]
        if end and self._dropped:
            self._confess()

    def _forward(self, line: bytes) -> None:
        self._lines -= 1
        left_out, self._left_out = self._left_out + max(0, len(line) - LINE_LIMIT), 0
        line = line[:LINE_LIMIT]
        self._bytes -= len(line)
        if text := line.decode("utf-8", "replace").rstrip("\r"):
            self._log(self._level, f"{text} ... ({left_out} bytes left out)" if left_out else text)

    def _confess(self) -> None:
        dropped, self._dropped = self._dropped, 0
        self._log("warning", f"{dropped} lines of output were dropped")

    def _refill(self) -> None:
        now = self._clock()
        passed = (now - self._refilled) / 1e9
        self._lines = min(LINES_PER_SECOND, self._lines + passed * LINES_PER_SECOND)
        self._bytes = min(BYTES_PER_SECOND, self._bytes + passed * BYTES_PER_SECOND)
        self._refilled = now
