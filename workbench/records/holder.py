"""Who has taken something (a model for a sweep, a run for writing): a process, known again and known to be gone."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from workbench.clock import utc_now_iso


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds something.

    ``created`` is when the process started (seconds since the epoch): a number of a process is used again, the pair is
    not. ``place`` stands for the machine, its start and the process namespace: a number means something only there.
    ``doing`` is for people, ``since`` is UTC.
    """

    pid: int
    created: float
    place: str
    doing: str = ""
    since: str = ""

    @classmethod
    def this_process(cls, doing: str = "") -> Holder:
        """This process, since now."""
        import psutil

        return cls(os.getpid(), psutil.Process().create_time(), _place(), doing, utc_now_iso())

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Holder:
        """Reads what ``to_json`` gave.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        pid, created, place = int(value["pid"]), float(value["created"]), str(value["place"])
        return cls(pid, created, place, str(value.get("doing", "")), str(value.get("since", "")))

    def to_json(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        return asdict(self)

    @property
    def here(self) -> bool:
        """Whether it is, or was, a process of this machine that can be seen from here."""
        return self.place == _place()

    @property
    def gone(self) -> bool:
        """Whether it is known to have ended; False also where it cannot be known (another machine)."""
        if not self.here:
            return False
        import psutil

        try:
            process = psutil.Process(self.pid)
            ended = process.status() == psutil.STATUS_ZOMBIE
            return ended or abs(process.create_time() - self.created) >= 2.0
        except psutil.NoSuchProcess:
            return True
        except psutil.Error:
            return False

    def __str__(self) -> str:
        where = "" if self.here else " on another machine"
        since = f", since {self.since[11:19]} UTC" if self.since else ""
        return f"process {self.pid}{where} ({self.doing or 'it did not say what it does'}{since})"


@cache
def _place() -> str:
    """Names this machine, since it was started, and the process namespace; says nothing of either."""
    parts = [platform.system()]
    for path in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id"):
        with contextlib.suppress(OSError):
            parts.append(Path(path).read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    if len(parts) == 1:
        import psutil

        parts += [f"{uuid.getnode():x}", str(round(psutil.boot_time() / 60))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
