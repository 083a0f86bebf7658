"""Which hosts and origins may talk to the server.

A web page that a user has open must not be able to drive a server on the user's machine. A page's requests carry its
``Origin``; a page that rebinds its own name to 127.0.0.1 carries that name in ``Host``. Both are checked against the
names that the server is known by. Requests without an Origin (every program that is no browser) pass.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

_LIMIT = 1024
_LONGEST = 512


class HostGuard:
    """Decides by the ``Host`` and ``Origin`` headers; answers are remembered.

    Args:
        address: what the server is bound to. On a loopback address only loopback names and addresses are known; on
            another one also this machine's names, and any literal address (a literal cannot be rebound).
        extra: further names, ``*`` for any.
    """

    def __init__(self, address: str, extra: Iterable[str] = ()) -> None:
        self._names = {"localhost", _host_of(address)} | {name.lower() for name in extra}
        self._open = not _is_loopback(address)
        if self._open:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        self._any = "*" in self._names
        self._known: dict[tuple[bytes, bytes], str] = {}

    def refusal(self, host: bytes, origin: bytes) -> str:
        """Why a request with these headers (empty: absent) is refused; empty when it passes."""
        if len(host) + len(origin) > _LONGEST:
            return self._decide(host, origin)
        key = (host, origin)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _LIMIT:
                self._known.clear()
            found = self._known[key] = self._decide(host, origin)
        return found

    def _decide(self, host: bytes, origin: bytes) -> str:
        if self._any:
            return ""
        name = host.decode("latin-1")
        if host and not self._is_known(_host_of(name)):
            return f"host '{name}' is not served here; --allowed-host adds it"
        if origin:
            page = origin.decode("latin-1")
            _, found, rest = page.partition("://")
            if not found or not self._is_known(_host_of(rest)):
                return f"requests from the page '{page}' are not served here; --allowed-host adds its host"
        return ""

    def _is_known(self, name: str) -> bool:
        if name in self._names or name.endswith(".localhost"):
            return True
        try:
            literal = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._open or literal.is_loopback


def _host_of(text: str) -> str:
    """The name in ``name:port``, lower case; an IPv6 address without its brackets."""
    text = text.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    if text.count(":") > 1:
        return text
    return text.partition(":")[0].rstrip(".")


def _is_loopback(address: str) -> bool:
    if address.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
