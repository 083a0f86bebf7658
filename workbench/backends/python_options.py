"""How the processes of a Python model are run: limits, and when one that died is started again.

Triton (2.51, tried) has neither: a process that hangs hangs for ever, one that died stays dead until its model is
unloaded and loaded (a load alone does nothing where no file has changed), and every request for it fails after 1 s.
The limits are off by default; the restarts are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.backends.base import ModelContext
from workbench.clock import Clock
from workbench.errors import BackendError

EXECUTE_LIMIT = "WORKBENCH_EXECUTE_TIMEOUT_S"
INITIALIZE_LIMIT = "WORKBENCH_INITIALIZE_TIMEOUT_S"
RESTARTS = "WORKBENCH_RESTARTS"
PARAMETERS = (EXECUTE_LIMIT, INITIALIZE_LIMIT, RESTARTS)
"""What a model's ``parameters`` may say of its processes. The backend's settings of the same meaning (see ``SETTINGS``)
are for all models; a model's own parameter goes before them."""

SETTINGS = {
    EXECUTE_LIMIT: "execute-timeout-seconds",
    INITIALIZE_LIMIT: "initialize-timeout-seconds",
    RESTARTS: "restarts",
}
"""``--backend-config=python,NAME=VALUE``."""


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """How a model's processes are run; times in seconds.

    ``execute_s`` is how long a batch may take, its nested requests included; of a decoupled model, how long it may send
    no response for a request that is open, unless it waits for the client. ``initialize_s`` is how long a process may
    take to start. 0 is no limit. A process that takes longer is ended, and started again.

    ``restarts`` is how often in a row a process is started again that died within ``settled_s`` of its start without
    having executed a batch; the first restart is at once, the next ones wait ``backoff_s``, doubled each time up to
    ``backoff_limit_s``.
    """

    interpreter: str
    setup: Mapping[str, Any] = field(default_factory=dict)
    finalize_s: float = 30.0
    terminate_s: float = 2.0
    execute_s: float = 0.0
    initialize_s: float = 0.0
    restarts: int = 5
    settled_s: float = 30.0
    backoff_s: float = 0.25
    backoff_limit_s: float = 10.0


def limits(context: ModelContext) -> dict[str, Any]:
    """What the configuration and the backend's settings say, as fields of ``ProcessOptions``.

    ``stub-timeout-seconds`` is Triton's: how long a process may take to finalize.

    Raises:
        BackendError: a value is no number that makes sense.
    """
    found: dict[str, Any] = {}
    for key, name in ((EXECUTE_LIMIT, "execute_s"), (INITIALIZE_LIMIT, "initialize_s")):
        text, where = _setting(context, key)
        if text:
            found[name] = _seconds(text, where)
    text, where = _setting(context, RESTARTS)
    if text:
        found["restarts"] = _count(text, where)
    text = context.backend_config.get("stub-timeout-seconds", "")
    if text:
        found["finalize_s"] = _seconds(text, "backend setting stub-timeout-seconds", "")
    return found


def unheeded(context: ModelContext) -> list[str]:
    """The parameters of a model on threads that nothing heeds: no thread can be ended."""
    return [key for key in PARAMETERS if key in context.config.parameters]


def _setting(context: ModelContext, key: str) -> tuple[str, str]:
    """A value as it is written, and what it is called in an error."""
    if key in context.config.parameters:
        text = str(context.config.parameters[key].string_value).strip()
        return text or "''", f"parameter {key} of model '{context.name}'"
    return context.backend_config.get(SETTINGS[key], "").strip(), f"backend setting {SETTINGS[key]}"


def _seconds(text: str, where: str, off: str = ", 0 for no limit") -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise BackendError(f"{where} is {_shown(text)}, expected a number of seconds{off}")
    return seconds


def _count(text: str, where: str) -> int:
    if not text.isdecimal():
        raise BackendError(f"{where} is {_shown(text)}, expected a whole number, 0 for no restarts")
    return int(text)


def _shown(text: str) -> str:
    return text if text == "''" else f"'{text}'"


class Restarts:
    """Counts the deaths of a process in a row, and says when it is started again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = 0
        self.deaths = 0

    def started(self) -> None:
        """The model is initialized."""
        self._started = self._clock()

    def worked(self) -> None:
        """A batch has been executed: a request that kills the process now and then must not end it for all others."""
        self.deaths = 0

    def died(self, options: ProcessOptions) -> float | None:
        """How long to wait before it is started again, in seconds; None: it is given up."""
        if self._started and self._clock() - self._started > options.settled_s * 1e9:
            self.deaths = 0
        self._started = 0
        self.deaths += 1
        if self.deaths > options.restarts:
            return None
        if self.deaths == 1:
            return 0.0
        exponent = min(self.deaths - 2, 60)
        return min(options.backoff_s * 2.0**exponent, options.backoff_limit_s)
