"""TraceSetting and LogSettings: Triton's checks and texts over gRPC, in front of the settings that HTTP changes too."""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import service_pb2 as pb

from workbench.errors import InvalidRequest
from workbench.server.settings import LOG_FORMATS, LogControl, TraceSettings

_ONE_VALUE = ("trace_rate", "trace_count", "log_frequency")
_LOG_TYPES = {
    "log_info": ("bool_param", "boolean"),
    "log_warning": ("bool_param", "boolean"),
    "log_error": ("bool_param", "boolean"),
    "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}


def update_trace(settings: TraceSettings, request: Any) -> None:
    """Applies the settings of a ``TraceSettingRequest``; one without a value goes back to its parent's.

    Raises:
        WorkbenchError: with Triton's text.
    """
    new: dict[str, Any] = {}
    for key, setting in request.settings.items():
        values = list(setting.value)
        if key in ("trace_file", "trace_level"):
            new[key] = values or None
        elif key in _ONE_VALUE:
            if len(values) > 1:
                raise InvalidRequest(f"expect only 1 value for '{key}'")
            new[key] = values[0] if values else None
    count = new.get("trace_count")
    if count is not None and count.lstrip("-").isdigit() and -(2**31) <= int(count) < -1:
        raise InvalidRequest(f"Unable to parse 'trace_count'. Expecting value >= -1, got: {count}")
    settings.update(new, request.model_name)


def trace_answer(settings: TraceSettings, model: str) -> Any:
    """The settings that hold for a model, or the global ones, as a ``TraceSettingResponse``."""
    answer = pb.TraceSettingResponse()
    for key, value in settings.current(model).items():
        answer.settings[key].value.extend(value if isinstance(value, list) else [value])
    return answer


def update_log(settings: LogControl, request: Any) -> None:
    """Applies the settings of a ``LogSettingsRequest``, in Triton's order; those before a wrong one are applied.

    Raises:
        WorkbenchError: with Triton's text.
    """
    given = request.settings
    if "log_file" in given:
        settings.update({"log_file": ""})
    for key, (kind, name) in _LOG_TYPES.items():
        if key not in given:
            continue
        if given[key].WhichOneof("parameter_choice") != kind:
            raise InvalidRequest(f"expect {name} for '{key}'")
        value = getattr(given[key], kind)
        if key == "log_format" and value not in LOG_FORMATS:
            raise InvalidRequest(f"invalid argument for log_format, got: {value}")
        settings.update({key: value})


def log_answer(settings: LogControl) -> Any:
    """The settings now, as a ``LogSettingsResponse``."""
    answer = pb.LogSettingsResponse()
    for key, value in settings.current().items():
        setattr(answer.settings[key], _LOG_TYPES.get(key, ("string_param", ""))[0], value)
    return answer
