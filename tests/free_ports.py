"""Ports for a server that has to be told its ports: the real tritonserver, JupyterLab."""

from __future__ import annotations

import random
import socket
import threading

_BELOW = range(10_000, 32_000)
"""Below what Linux gives out by itself (from 32768 on): a server that binds its port seconds after it was looked for
finds it taken now and then by one of the thousands of connections that the tests of the other process open."""

_RANDOM = random.SystemRandom()
_GIVEN: set[int] = set()
_LOCK = threading.Lock()


def free_ports(count: int) -> list[int]:
    """So many ports on which nobody listens; none is given twice in this process.

    Raises:
        RuntimeError: there are none.
    """
    found: list[int] = []
    with _LOCK:
        for port in _RANDOM.sample(_BELOW, len(_BELOW)):
            if len(found) == count:
                break
            if port not in _GIVEN and _is_free(port):
                found.append(port)
                _GIVEN.add(port)
    if len(found) < count:
        raise RuntimeError(f"no {count} free ports in {_BELOW}")
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
