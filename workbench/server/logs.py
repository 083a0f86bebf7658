"""Log lines in Triton's form, on stderr or in a file.

``I1129 17:00:00.123456 4711 file.py:12] "text"``, or with ``--log-format ISO8601``
``2026-11-29T17:00:00Z I 4711 file.py:12] "text"``: the text as a JSON string, so that a line stays one line. A model's
lines name its file and line, as the real server's do.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from workbench.records import Event, LogSettings

_LETTERS = {"DEBUG": "I", "INFO": "I", "WARNING": "W", "ERROR": "E", "CRITICAL": "E"}
_NUMBERS = {"verbose": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_EVENTS = logging.getLogger("workbench.events")


class TritonFormatter(logging.Formatter):
    """Formats a record as Triton does."""

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self._settings = settings

    def format(self, record: logging.LogRecord) -> str:
        """One line; the traceback of an exception of ours follows on lines of its own."""
        moment = datetime.fromtimestamp(record.created, UTC)
        letter = _LETTERS.get(record.levelname, "I")
        if self._settings.format == "ISO8601":
            stamp = f"{moment:%Y-%m-%dT%H:%M:%S}Z {letter}"
        else:
            stamp = f"{letter}{moment:%m%d %H:%M:%S.%f}"
        text = json.dumps(record.getMessage(), ensure_ascii=False)
        line = f"{stamp} {record.process} {record.filename}:{record.lineno}] {text}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def level_of(number: int) -> str:
    """Triton's word for a level of Python's ``logging``."""
    if number >= logging.WARNING:
        return "error" if number >= logging.ERROR else "warning"
    return "info" if number >= logging.INFO else "verbose"


def start_logging(settings: LogSettings, stream: TextIO) -> logging.Handler:
    """Writes what the logger ``workbench`` gets to ``stream``, as ``settings`` allow at that moment."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TritonFormatter(settings))
    handler.addFilter(lambda record: settings.allows(level_of(record.levelno)))
    logger = logging.getLogger("workbench")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    return handler


def log_event(event: Event) -> None:
    """Writes an event of the engine to the log, as from the place that it names, else from who appended it."""
    file, line = event.data.get("file"), event.data.get("line", 0)
    if file is None:
        frame = sys._getframe(2)
        file, line = frame.f_code.co_filename, frame.f_lineno
    number = _NUMBERS.get(event.level, logging.INFO)
    _EVENTS.handle(_EVENTS.makeRecord(_EVENTS.name, number, file, line, "%s", (event.text,), None))
