"""The logging and trace settings that a client may read and change (`/v2/logging`, `/v2/trace/setting`).

Keys, checks and texts are Triton's (http_server.cc ``HandleLogging``, ``HandleTrace``).
"""

from __future__ import annotations

from typing import Any

from workbench.errors import InternalError, InvalidRequest, NotReady, Unsupported
from workbench.protocol.json_data import NOT_ARRAY, NOT_BOOL, NOT_STRING, NOT_UINT
from workbench.records import LogSettings

_INT32_MAX = 2**31 - 1
_UINT32_MAX = 2**32 - 1
LOG_FORMATS = ("default", "ISO8601")


class LogControl:
    """An engine's log settings as clients see and change them, over HTTP and gRPC; changes take effect at once."""

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings

    @property
    def verbose(self) -> bool:
        """Whether verbose lines are logged."""
        return self._settings.verbose_level > 0

    def current(self) -> dict[str, Any]:
        """The settings now, by Triton's names and in its order."""
        settings = self._settings
        return {
            "log_file": settings.file,
            "log_info": settings.info,
            "log_warning": settings.warning,
            "log_error": settings.error,
            "log_verbose_level": settings.verbose_level,
            "log_format": settings.format,
        }

    def update(self, request: Any) -> None:
        """Applies a POST body; null leaves a setting as it is, and so does a name that is none.

        Triton keeps the verbose level in 32 bits with a sign: 2**32 + 1 is 1, and what comes out negative is 0.

        Raises:
            WorkbenchError: with Triton's text; settings before the wrong one are applied, as in Triton.
        """
        if not isinstance(request, dict):
            return
        settings = self._settings
        if request.get("log_file") is not None:
            raise Unsupported("log file location can not be updated through network protocol")
        for name in ("info", "warning", "error"):
            value = request.get(f"log_{name}")
            if value is not None:
                if not isinstance(value, bool):
                    raise InternalError(NOT_BOOL)
                setattr(settings, name, value)
        level = request.get("log_verbose_level")
        if level is not None:
            if type(level) is not int or not 0 <= level < 2**64:
                raise InternalError(NOT_UINT)
            level &= _UINT32_MAX
            settings.verbose_level = level if level <= _INT32_MAX else 0
        form = request.get("log_format")
        if form is not None:
            if not isinstance(form, str):
                raise InternalError(NOT_STRING)
            if form not in LOG_FORMATS:
                raise NotReady(f"invalid argument for --log_format, got: {form}")
            settings.format = form


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
        target = dict(self._models.get(model, {}) if model else self._global)
        for key, value in new.items():
            if value is None:
                target.pop(key, None)
            else:
                target[key] = value
        _check({**self._defaults, **(self._global if model else {}), **target})
        if model:
            self._models[model] = target
        else:
            self._global = target


def _check(settings: dict[str, Any]) -> None:
    """What traces needs a rate and a file, and no client can name a file (tracer.cc)."""
    if settings["trace_level"] == ["OFF"]:
        return
    reason = "sample rate must be non-zero" if int(settings["trace_rate"]) == 0 else ""
    if not reason and not settings["trace_file"]:
        reason = "trace file name is not given"
    if reason:
        raise InvalidRequest(f"Attempting to set invalid trace setting :{reason}")


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
