"""The errors of the workbench.

::

    WorkbenchError
    ├── InvalidRequest       400  the request is wrong: name, dtype, shape, size
    │   └── ConfigError      400  a config.pbtxt is wrong (path, line, column)
    ├── NotFound             404  no such model, version, run, path
    ├── NotReady             503  the model or server is not ready (loading, unloading, stopping)
    ├── Rejected             503  the scheduler refused the request
    │   ├── QueueFull        503
    │   └── TimedOut         503
    ├── Cancelled            400  the client went away or cancelled
    ├── BackendError         500  the model raised, or answered nonsense
    │   └── InstanceDied     500  the process that ran the model ended
    ├── InternalError        500
    ├── Unsupported          501
    ├── AlreadyExists        400
    ├── UnknownError         400
    ├── ConnectionFailed     503  no server answers at the address (client side)
    ├── InvalidMeasurement   400  a measurement that must not be believed
    └── LoadFailed           400  a model failed to load

``message`` is what goes on the wire, Triton's text to the letter. ``where`` and ``hint`` are for people: they appear in
the Python exception, the log and the panel, never on the wire.

Source of the codes and of their HTTP and gRPC numbers: tritonserver ``HttpCodeFromError`` and ``CodeToStatus``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal

FailureReason = Literal["REJECTED", "CANCELED", "BACKEND", "OTHER"]
"""Label ``reason`` of ``nv_inference_request_failure``."""


class Code(Enum):
    """Triton's error codes (TRITONSERVER_Error_Code)."""

    UNKNOWN = "UNKNOWN"
    INTERNAL = "INTERNAL"
    NOT_FOUND = "NOT_FOUND"
    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    UNSUPPORTED = "UNSUPPORTED"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    CANCELLED = "CANCELLED"

    @property
    def http_status(self) -> int:
        """The HTTP status that Triton answers with."""
        return _WIRE[self][0]

    @property
    def grpc_status(self) -> str:
        """The name of the gRPC status that Triton answers with."""
        return _WIRE[self][1]

    @property
    def prefix(self) -> str:
        """What stands before the message in logs and in the repository index."""
        return _WIRE[self][2]


_WIRE: dict[Code, tuple[int, str, str]] = {
    Code.INTERNAL: (500, "INTERNAL", "Internal: "),
    Code.NOT_FOUND: (404, "NOT_FOUND", "Not found: "),
    Code.INVALID_ARG: (400, "INVALID_ARGUMENT", "Invalid argument: "),
    Code.UNAVAILABLE: (503, "UNAVAILABLE", "Unavailable: "),
    Code.UNSUPPORTED: (501, "UNIMPLEMENTED", "Unsupported: "),
    Code.ALREADY_EXISTS: (400, "ALREADY_EXISTS", "Already exists: "),
    Code.CANCELLED: (400, "CANCELLED", ""),
    Code.UNKNOWN: (400, "UNKNOWN", "Unknown: "),
}


class WorkbenchError(Exception):
    """Base of every error that the workbench raises on purpose.

    Args:
        message: what went wrong, in Triton's words where Triton has words for it.
        where: the file, model, request or address concerned.
        hint: what to do about it.
    """

    code: Code = Code.INTERNAL
    reason: FailureReason = "OTHER"

    def __init__(self, message: str, *, where: str = "", hint: str = "", code: Code | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        text = self.message
        if self.where:
            text += f"\n  where: {self.where}"
        if self.hint:
            text += f"\n  what to do: {self.hint}"
        return text

    @property
    def status_text(self) -> str:
        """The message with the code's prefix, as in Triton's logs and repository index."""
        return self.code.prefix + self.message


class InvalidRequest(WorkbenchError):
    """The request is wrong; the same request will be refused again."""

    code = Code.INVALID_ARG


class ConfigError(InvalidRequest):
    """A model configuration that cannot be read or is refused.

    ``line`` and ``column`` count from 1 and are 0 where there is no place in a text to point at.
    """

    def __init__(self, message: str, *, line: int = 0, column: int = 0, where: str = "", hint: str = "") -> None:
        super().__init__(message, where=where, hint=hint)
        self.line = line
        self.column = column


class NotFound(WorkbenchError):
    """The thing named does not exist."""

    code = Code.NOT_FOUND


class NotReady(WorkbenchError):
    """The model or the server cannot answer now; later it may."""

    code = Code.UNAVAILABLE


class Rejected(WorkbenchError):
    """The scheduler refused the request."""

    code = Code.UNAVAILABLE
    reason = "REJECTED"


class QueueFull(Rejected):
    """The queue holds as many requests as its policy allows."""


class TimedOut(Rejected):
    """The request waited in the queue for longer than its policy allows."""


class Cancelled(WorkbenchError):
    """The request was cancelled by its client."""

    code = Code.CANCELLED
    reason = "CANCELED"


class BackendError(WorkbenchError):
    """The model failed while it ran."""

    reason = "BACKEND"


class InstanceDied(BackendError):
    """The process that ran the model ended during the request."""


class InternalError(WorkbenchError):
    """Something that is Triton's INTERNAL; also JSON of the wrong type on the wire, as in Triton."""


class Unsupported(WorkbenchError):
    """Asked for something that is not offered here."""

    code = Code.UNSUPPORTED


class AlreadyExists(WorkbenchError):
    """The name is taken."""

    code = Code.ALREADY_EXISTS


class UnknownError(WorkbenchError):
    """An error of no known kind."""

    code = Code.UNKNOWN


class ConnectionFailed(WorkbenchError):
    """No server answers at the address."""

    code = Code.UNAVAILABLE


class InvalidMeasurement(WorkbenchError):
    """A measurement that must not be believed."""

    code = Code.INVALID_ARG


class LoadFailed(WorkbenchError):
    """A model could not be loaded."""

    code = Code.INVALID_ARG


_BY_CODE: dict[Code, type[WorkbenchError]] = {
    Code.INTERNAL: InternalError,
    Code.NOT_FOUND: NotFound,
    Code.INVALID_ARG: InvalidRequest,
    Code.UNAVAILABLE: NotReady,
    Code.UNSUPPORTED: Unsupported,
    Code.ALREADY_EXISTS: AlreadyExists,
    Code.CANCELLED: Cancelled,
    Code.UNKNOWN: UnknownError,
}


def from_code(code: Code, message: str, *, where: str = "") -> WorkbenchError:
    """The error that stands for a code received from elsewhere (a model, a remote server)."""
    return _BY_CODE[code](message, where=where)


def from_http_status(status: int, message: str, *, where: str = "") -> WorkbenchError:
    """The error that stands for an HTTP answer; several codes share 400, which becomes INVALID_ARG.

    429, 502 and 504 are no server's of Triton's: a gateway before it says that it does not reach it, or not now.
    """
    by_status = {
        400: Code.INVALID_ARG,
        404: Code.NOT_FOUND,
        429: Code.UNAVAILABLE,
        500: Code.INTERNAL,
        501: Code.UNSUPPORTED,
        502: Code.UNAVAILABLE,
        503: Code.UNAVAILABLE,
        504: Code.UNAVAILABLE,
    }
    return from_code(by_status.get(status, Code.UNKNOWN), message, where=where)


def to_json(error: WorkbenchError) -> dict[str, object]:
    """An error with all it says, for the workbench's own control plane (``error`` is the wire text, as Triton's)."""
    data: dict[str, object] = {
        "error": error.message,
        "kind": next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == __name__),
        "code": error.code.value,
        "where": error.where,
        "hint": error.hint,
    }
    if isinstance(error, ConfigError):
        data |= {"line": error.line, "column": error.column}
    return data


def from_json(data: Mapping[str, Any]) -> WorkbenchError | None:
    """The error that ``to_json`` was given; None where the data are something else."""
    kind = globals().get(str(data.get("kind", "")))
    if not (isinstance(kind, type) and issubclass(kind, WorkbenchError)) or "error" not in data:
        return None
    message, where, hint = (str(data.get(name) or "") for name in ("error", "where", "hint"))
    if issubclass(kind, ConfigError):
        line, column = (int(data.get(name) or 0) for name in ("line", "column"))
        return kind(message, line=line, column=column, where=where, hint=hint)
    code = str(data.get("code", ""))
    return kind(message, where=where, hint=hint, code=Code[code] if code in Code.__members__ else None)
