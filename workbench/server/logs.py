"""Log lines in Triton's form, on stderr or in a file.

``I1129 17:00:00.123456 4711 file.py:12] "text"``, or ISO 8601 times with ``--log-format ISO8601``.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TextIO

from workbench.records import Event
from workbench.server.settings import LogSettings

_LETTERS = {"DEBUG": "I", "INFO": "I", "WARNING": "W", "ERROR": "E", "CRITICAL": "E"}
_LEVELS = {"verbose": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class TritonFormatter(logging.Formatter):
    """Formats a record as Triton does."""

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self._settings = settings

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback follows on lines of its own."""
        moment = datetime.fromtimestamp(record.created, UTC)
        letter = _LETTERS.get(record.levelname, "I")
        if self._settings.current()["log_format"] == "ISO8601":
            stamp = f"{moment:%Y-%m-%dT%H:%M:%S}Z {letter}"
        else:
            stamp = f"{letter}{moment:%m%d %H:%M:%S.%f}"
        text = record.getMessage().replace('"', '\\"')
        line = f'{stamp} {record.process} {record.filename}:{record.lineno}] "{text}"'
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def start_logging(settings: LogSettings, stream: TextIO) -> logging.Handler:
    """Writes what the logger ``workbench`` gets to ``stream``, as ``settings`` allow at that moment."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TritonFormatter(settings))
    handler.addFilter(lambda record: settings.allows(record.levelno))
    logger = logging.getLogger("workbench")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    return handler


def log_event(event: Event) -> None:
    """Writes an event of the engine to the log, as from whoever appended it (two calls up)."""
    logger = logging.getLogger(f"workbench.{event.kind}")
    logger.log(_LEVELS.get(event.level, logging.INFO), "%s", event.text, stacklevel=3)
