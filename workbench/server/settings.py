"""The logging and trace settings that a client may read and change (`/v2/logging`, `/v2/trace/setting`).

Keys, checks and texts are Triton's (http_server.cc ``HandleLogging``, ``HandleTrace``).
"""

from __future__ import annotations

import logging
from typing import Any

from workbench.errors import InternalError, InvalidRequest, NotReady, Unsupported
from workbench.protocol.json_data import NOT_ARRAY, NOT_BOOL, NOT_STRING, NOT_UINT

_INT32_MAX = 2**31 - 1
_UINT32_MAX = 2**32 - 1


class LogSettings:
    """What is logged; changes take effect at once. ``verbose`` is the verbosity, 0 for none."""

    def __init__(self, verbose: int = 0, *, info: bool = True, warning: bool = True, error: bool = True) -> None:
        self._values: dict[str, Any] = {
            "log_file": "",
            "log_info": info,
            "log_warning": warning,
            "log_error": error,
            "log_verbose_level": verbose,
            "log_format": "default",
        }
        self.verbose = verbose

    def current(self) -> dict[str, Any]:
        """The settings now."""
        return dict(self._values)

    def allows(self, level: int) -> bool:
        """Whether a record of this ``logging`` level is to be written."""
        if level >= logging.ERROR:
            return bool(self._values["log_error"])
        if level >= logging.WARNING:
            return bool(self._values["log_warning"])
        if level >= logging.INFO:
            return bool(self._values["log_info"])
        return self.verbose > 0

    def update(self, request: Any) -> None:
        """Applies a POST body; null leaves a setting as it is.

        Raises:
            WorkbenchError: with Triton's text; settings before the wrong one are applied, as in Triton.
        """
        if not isinstance(request, dict):
            return
        if request.get("log_file") is not None:
            raise Unsupported("log file location can not be updated through network protocol")
        for key in ("log_info", "log_warning", "log_error"):
            value = request.get(key)
            if value is not None:
                if not isinstance(value, bool):
                    raise InternalError(NOT_BOOL)
                self._values[key] = value
        level = request.get("log_verbose_level")
        if level is not None:
            if type(level) is not int or not 0 <= level < 2**64:
                raise InternalError(NOT_UINT)
            self._values["log_verbose_level"] = self.verbose = level
        form = request.get("log_format")
        if form is not None:
            if not isinstance(form, str):
                raise InternalError(NOT_STRING)
            if form not in ("default", "ISO8601"):
                raise NotReady(f"invalid argument for --log_format, got: {form}")
            self._values["log_format"] = form


class TraceSettings:
    """Trace settings, global and per model; a model's unset fields follow the global ones."""

    def __init__(self) -> None:
        self._defaults: dict[str, Any] = {
            "trace_level": ["OFF"],
            "trace_rate": "1000",
            "trace_count": "-1",
            "log_frequency": "0",
            "trace_file": "",
            "trace_mode": "triton",
        }
        self._global: dict[str, Any] = {}
        self._models: dict[str, dict[str, Any]] = {}

    def current(self, model: str = "") -> dict[str, Any]:
        """The settings that hold for a model, or the global ones."""
        return {**self._defaults, **self._global, **self._models.get(model, {})}

    def update(self, request: Any, model: str = "") -> None:
        """Applies a POST body; null clears a setting to its parent's.

        Raises:
            WorkbenchError: with Triton's text; then nothing is changed.
        """
        if not isinstance(request, dict):
            return
        if "trace_file" in request:
            raise Unsupported("trace file location can not be updated through network protocol")
        new: dict[str, Any] = {}
        if "trace_level" in request:
            new["trace_level"] = _levels(request["trace_level"])
        for key, low, high in (
            ("trace_rate", 0, _UINT32_MAX),
            ("trace_count", -1, _INT32_MAX),
            ("log_frequency", 0, _UINT32_MAX),
        ):
            if key in request:
                new[key] = _number(key, request[key], low, high)
        target = self._models.setdefault(model, {}) if model else self._global
        for key, value in new.items():
            if value is None:
                target.pop(key, None)
            else:
                target[key] = value


def _levels(value: Any) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise InternalError(NOT_ARRAY)
    found = []
    for level in value:
        if not isinstance(level, str):
            raise InternalError(NOT_STRING)
        if level == "OFF" and len(value) > 1:
            raise InvalidRequest("Expect only one trace level 'OFF' is specified")
        if level in ("TIMESTAMPS", "TENSORS") and level not in found:
            found.append(level)
    return sorted(found, reverse=True) or ["OFF"]


def _number(key: str, value: Any, low: int, high: int) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InternalError(NOT_STRING)
    digits = value.strip()
    try:
        number = int(digits)
    except ValueError:
        raise InvalidRequest(f"Unable to parse '{key}', got: {value}") from None
    if key == "trace_count" and number < low:
        raise InvalidRequest(f"Unable to parse 'trace_count'. Expecting value >= -1, got:{value}")
    if not low <= number <= high or number > _INT32_MAX:
        raise InvalidRequest(f"Unable to parse '{key}', value is out of range [ {low}, {high} ], got: {value}")
    return str(number)
