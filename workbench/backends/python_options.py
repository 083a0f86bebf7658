"""How the processes of a Python model are run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """How a model's processes are run; times in seconds.

    ``restarts`` is how often in a row a process is started again that died within ``settled_s`` of its start without
    having executed a batch; the first restart is at once, the next ones wait ``backoff_s``, doubled each time up to
    ``backoff_limit_s``.
    """

    interpreter: str
    setup: Mapping[str, Any] = field(default_factory=dict)
    finalize_s: float = 30.0
    terminate_s: float = 2.0
    restarts: int = 5
    settled_s: float = 30.0
    backoff_s: float = 0.25
    backoff_limit_s: float = 10.0
