"""Host policies: the CPU cores and the NUMA node of an instance, by ``--host-policy=<policy>,<setting>=<value>``.

As in Triton a policy holds for the thread that makes an instance (what a framework starts there inherits it, so does
the process of a Python model) and for the thread that executes. Source: core ``numa_utils.cc``.

Cores are pinned by ``sched_setaffinity``, memory is bound by ``set_mempolicy``; where a system has none of the two (not
Linux), a policy is without effect.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import InternalError, InvalidRequest, Unsupported

SETTINGS = ("numa-node", "cpu-cores")
_SYSCALLS = {"x86_64": (238, 239), "aarch64": (237, 236)}
_MPOL_DEFAULT, _MPOL_BIND = 0, 2
_MASK_WORDS, _WORD = 16, 64
_MOST_CORES = 65535
_LEADING_INT = re.compile(r"\s*[+-]?\d+")


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """A policy by its name; without settings it changes nothing. ``settings``: numa-node, cpu-cores, as given."""

    name: str = ""
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)

    def cores(self) -> frozenset[int] | None:
        """The cores to run on; None for all.

        Raises:
            InvalidRequest: ``cpu-cores`` cannot be read (Triton's text).
        """
        text = self.settings.get("cpu-cores")
        return None if text is None else _parse_cores(text)

    def node(self) -> int | None:
        """The NUMA node to take memory from; None for any.

        Raises:
            InvalidRequest: ``numa-node`` cannot be read (Triton's text).
        """
        text = self.settings.get("numa-node")
        return None if text is None else _integer("numa-node", text)

    def pin(self) -> None:
        """Puts the calling thread under the policy for good.

        Raises:
            InvalidRequest: a setting cannot be read.
            InternalError: the system refuses (Triton's text).
        """
        cores, node = self.cores(), self.node()
        if cores is not None and hasattr(os, "sched_setaffinity"):
            try:
                os.sched_setaffinity(0, cores)
            except (OSError, ValueError, OverflowError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                raise InternalError(
                    f"Unable to set NUMA thread affinity: {reason}",
                    where=f"host policy '{self.name}'",
                    hint=f"cpu-cores={self.settings['cpu-cores']}: this process may use {_allowed()}",
                ) from error
        if node is not None:
            _bind_memory(node, self.name)

    @contextlib.contextmanager
    def pinned(self) -> Iterator[None]:
        """The calling thread under the policy for a while; afterwards as before.

        Raises:
            WorkbenchError: see ``pin``.
        """
        if not self.settings:
            yield
            return
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        memory = _memory_policy()
        try:
            self.pin()
            yield
        finally:
            if cores is not None:
                os.sched_setaffinity(0, cores)
            if memory is not None:
                _set_memory_policy(*memory)


def without_effect() -> str:
    """What of a host policy cannot be done on this system, in words; empty where everything can."""
    missing = []
    if not hasattr(os, "sched_setaffinity"):
        missing.append("cpu-cores")
    if _syscalls() is None:
        missing.append("numa-node")
    return f"{' and '.join(missing)} of a host policy cannot be set on this system" if missing else ""


def check_setting(setting: str) -> None:
    """Refuses a setting that is none of a host policy's.

    Raises:
        Unsupported: Triton's text.
    """
    if setting not in SETTINGS:
        raise Unsupported(
            f"Unsupported host policy setting '{setting}' is specified, supported settings are 'numa-node', 'cpu-cores'"
        )


def _integer(setting: str, text: str) -> int:
    """A leading number, as C++ ``stoi`` reads it: what follows it does not count."""
    found = _LEADING_INT.match(text)
    if found is None:
        raise InvalidRequest(f"Parsing '{setting}' value: Can't parse '{text}' to integer")
    return int(found[0])


def _parse_cores(text: str) -> frozenset[int]:
    """Ranges ``<lower>-<upper>``, comma-separated; one core is ``3-3``."""
    cores: set[int] = set()
    start = 0
    comma = text.find(",")
    while True:
        dash = text.find("-", start)
        if dash < 0:
            got = text[start:] if comma < 0 else text[start:comma]
            raise InvalidRequest(
                "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got " + got,
                hint=f"one core alone is written {got}-{got}" if got.isdecimal() else "",
            )
        lower = _integer("cpu-cores", text[start:dash])
        # Triton looks for the dash behind the comma too: 0,2-3 is the range 0-3 to it
        end = comma if comma > dash else len(text)
        upper = _integer("cpu-cores", text[dash + 1 : end])
        cores.update(range(lower, min(upper, _MOST_CORES) + 1))
        if comma < 0:
            return frozenset(cores)
        start = comma + 1
        comma = text.find(",", start)


def _allowed() -> str:
    return "cores " + ", ".join(map(str, sorted(os.sched_getaffinity(0))))


def _syscalls() -> tuple[int, int] | None:
    return _SYSCALLS.get(platform.machine()) if sys.platform == "linux" else None


def _libc() -> Callable[..., int]:
    library: Any = ctypes.CDLL(None, use_errno=True)
    call: Callable[..., int] = library.syscall
    return call


def _bind_memory(node: int, name: str) -> None:
    if _syscalls() is None:
        return
    if not 0 <= node < _MASK_WORDS * _WORD:
        raise InternalError("Unable to set NUMA memory policy: Invalid argument", where=f"host policy '{name}'")
    mask = (ctypes.c_ulong * _MASK_WORDS)()
    mask[node // _WORD] = 1 << node % _WORD
    reason = _set_memory_policy(_MPOL_BIND, mask)
    if reason:
        raise InternalError(
            f"Unable to set NUMA memory policy: {reason}",
            where=f"host policy '{name}'",
            hint="is there such a node (/sys/devices/system/node)? In a container it takes the capability SYS_NICE",
        )


def _set_memory_policy(mode: int, mask: Any) -> str:
    """Sets the calling thread's policy; why it cannot be done, or nothing."""
    numbers = _syscalls()
    assert numbers is not None
    size = 0 if mode == _MPOL_DEFAULT else _MASK_WORDS * _WORD
    if _libc()(numbers[0], mode, mask if size else None, ctypes.c_ulong(size)) == 0:
        return ""
    return os.strerror(ctypes.get_errno())


def _memory_policy() -> tuple[int, Any] | None:
    """The calling thread's policy; None where the system has none or does not tell."""
    numbers = _syscalls()
    if numbers is None:
        return None
    mode, mask = ctypes.c_int(), (ctypes.c_ulong * _MASK_WORDS)()
    if _libc()(numbers[1], ctypes.byref(mode), mask, ctypes.c_ulong(_MASK_WORDS * _WORD), None, ctypes.c_ulong(0)):
        return None
    return mode.value, mask
