"""A remote Triton under a sweep: Triton has no leases, so this user's state directory keeps what must be put back.

A journal a model and server says who sweeps it and what its configuration was. A sweep that is killed leaves its
journal; whoever sweeps the model next from here puts the configuration back first, and ``connect`` finds it, so that
``server.revert(model)`` does. Sweeps of one address from two machines do not see each other's journals: each reads back
what is loaded after every point, and ends in words when somebody else has changed it.

A server is its host and port, however they are spelled; the names and addresses of this machine are one host. Another
port of the same host is the same server where what it has counted says so (``same_server``). Where that cannot be known
yet, as a sweep there has only begun, it is waited for; sweeps of one model that begin at the same moment do so in turn.
A server of the workbench on this machine has leases of its own: they are taken in place of journals.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from workbench.clock import monotonic_ns, wall_ms
from workbench.errors import ConnectionFailed, NotReady, WorkbenchError
from workbench.records.holder import Holder
from workbench.server import runtime
from workbench.session.same_server import same_server

if TYPE_CHECKING:
    from workbench.client import TritonClient
    from workbench.session.remote_triton import TritonServer

_FAR_S = 60.0
"""A holder that cannot be seen from here (a home shared by machines) is gone when its journal is this old."""


_LOOKING_S = 20.0
"""So long a new sweep waits for a running one at another port of this host to have counted something."""

_LOOK_S = 1.0
"""After so long it looks whether that one still runs."""


class Journals:
    """The journals of one server, under whichever of its addresses they were written.

    Args:
        url: the address that it is reached by here.
        client: a client there.
    """

    def __init__(self, url: str, client: TritonClient) -> None:
        self._key = _key(url)  # once: a server that dies in the sweep is found no more
        self._url = url
        self._client = client
        self._same: set[str] = set()

    def taking(self, model: str) -> contextlib.AbstractContextManager[None]:
        """Lets one at a time take a model on this host, by whichever of its ports: who comes second finds the journal
        of the first. Which ports are one server shows only once it has answered, so they share one lock."""
        return _locked(_path(_host(self._key), model))

    def path(self, model: str, wait_s: float = 0.0) -> Path:
        """Where the journal of a model is: that of a sweep that runs, by any address; else the one of this address.

        Args:
            model: its name.
            wait_s: how long to wait for a sweep at another port of this host to show whether it is of this server.

        Raises:
            NotReady: it has not shown that, and still runs: beside it neither could be believed.
        """
        own, until = _path(self._key, model), monotonic_ns() + int(wait_s * 1e9)
        while True:
            running: list[Path] = []
            left: list[Path] = []
            unsure: list[Mapping[str, Any]] = []
            for path, entry in _entries():
                if entry["model"] == model:
                    gone = _is_gone(path, entry)
                    here = path == own or self._leads_here(entry["url"], model, 0.0 if gone else min(wait_s, _LOOK_S))
                    if here:
                        (left if gone else running).append(path)
                    elif here is None and not gone:
                        unsure.append(entry)
            if running or not unsure:
                return next(iter([*running, *(path for path in left if path == own), *left]), own)
            # one that is loading will have answered soon after
            if monotonic_ns() >= until and not any(entry["changing"] for entry in unsure):
                other = Holder.from_json(unsure[0]["holder"])
                raise NotReady(
                    f"'{model}' is being swept by {other} at {unsure[0]['url']}, and it cannot be told whether that is "
                    "this server: what it has counted does not say",
                    where=self._url,
                    hint="wait for it or stop it",
                )

    def left_behind(self) -> dict[str, dict[str, Any]]:
        """What killed sweeps of the server have left: model → the configuration that it had before."""
        found: dict[str, dict[str, Any]] = {}
        for path, entry in _entries():
            if _is_gone(path, entry) and self._leads_here(entry["url"], str(entry["model"])):
                found[str(entry["model"])] = dict(entry["original"])
        return found

    def forget(self, model: str) -> None:
        """What a killed sweep has left is overwritten: somebody has loaded another configuration on purpose."""
        for path, entry in _entries():
            known = _key(entry["url"]) in {self._key, *self._same}
            if known and entry["model"] == model and _is_gone(path, entry):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def _leads_here(self, url: str, model: str, wait_s: float = 0.0) -> bool | None:
        """Whether an address is of this server; None where that cannot be known."""
        key = _key(url)
        if key == self._key or key in self._same:
            return True
        if _host(key) != _host(self._key):
            return False
        same = same_server(self._client, url, model, wait_s)
        if same:
            self._same.add(key)
        return same


class JournalDesk:
    """Stands in for the leases of a server that has none (``profiling.hold.Desk``)."""

    def __init__(self, server: TritonServer) -> None:
        self._server = server
        self._paths: dict[str, Path] = {}

    def lease(self, name: str, holder: Mapping[str, Any], ttl_s: float, /) -> str:
        """Takes a model: puts back what a killed sweep left, and writes down what is loaded.

        Raises:
            NotReady: a sweep of it runs from here.
        """
        with self._server.journals.taking(name):
            path = self._server.journals.path(name, _LOOKING_S)
            left = _read(path)
            if left is not None:
                if not _is_gone(path, left):
                    other = Holder.from_json(left["holder"])
                    at = "" if _key(left["url"]) == _key(self._server.url) else f" at {left['url']}"
                    raise NotReady(
                        f"'{name}' is being swept by {other}{at}: its configuration is put back at the end",
                        where=self._server.url,
                        hint="wait for it or stop it",
                    )
                _put_back(self._server, name, left)
            lease, self._paths[name] = secrets.token_hex(8), path
            original = self._server.model_config(name)
            _write(
                path,
                {
                    "url": self._server.url, "model": name, "lease": lease, "holder": dict(holder),
                    "original": original, "applied": original, "changing": False,
                },
            )  # fmt: skip
        return lease

    def renew_lease(self, name: str, lease: str, /) -> None:
        """A sign of life: the journal's time.

        Raises:
            NotReady: another sweep has taken the model over.
        """
        self._own(name, lease)
        with contextlib.suppress(OSError):
            self._paths[name].touch()

    def configure(self, name: str, edits: Sequence[Any], /, *, lease: str) -> Any:
        """Applies edits by a load with override. The journal says so before, for whoever comes after a kill; and still
        where the server's answer was not waited for (an interrupt) or did not come: it may be loading.
        """
        entry = self._own(name, lease)
        path = self._paths[name]
        _write(path, {**entry, "changing": True})
        try:
            result = self._server.configure(name, *edits)
        except (ConnectionFailed, NotReady):  # of a gateway, too, that did not wait for the load
            raise
        except WorkbenchError:
            self._applied(name, entry)
            raise
        self._applied(name, entry)
        return result

    def _applied(self, name: str, entry: Mapping[str, Any]) -> None:
        with contextlib.suppress(Exception):  # "changing" says enough
            _write(self._paths[name], {**entry, "applied": self._server.model_config(name), "changing": False})

    def changed(self, name: str, lease: str, /) -> str:
        """Whether somebody else has loaded another configuration since ours was, in words; empty where not."""
        entry = self._own(name, lease)
        if entry["changing"]:
            return ""  # ours may be under way still
        now = self._server.model_config(name)
        if not (other := _differing(now, entry["applied"])):
            return ""
        return (
            f"somebody else has changed '{name}' at {self._server.url} while it was swept from here "
            f"({other}): this server keeps no two sweeps apart. Points before this one are as they were "
            "measured; what is loaded now stays"
        )

    def release_lease(self, name: str, lease: str, /) -> str:
        """Loads the configuration that was there, unless somebody else has loaded another one since; reads back what is
        loaded then, and says so where it is not what was there."""
        path = self._paths.get(name)
        entry = _read(path) if path is not None else None
        if path is None or entry is None or entry["lease"] != lease:
            return ""
        _put_back(self._server, name, entry)
        path.unlink(missing_ok=True)
        try:
            now = self._server.model_config(name)
        except ConnectionFailed:
            raise
        except WorkbenchError as error:
            return f"somebody else has unloaded it meanwhile ({error.message})"
        other = _differing(now, entry["original"])
        return (
            f"what is loaded is not what was there ({other}): somebody else has changed it, and that stays"
            if other
            else ""
        )

    def leave(self, name: str, lease: str, /) -> None:
        """What could not be put back (the server did not answer, say) is left as by a sweep that was killed, although
        this process lives on."""
        with contextlib.suppress(WorkbenchError):  # taken over, or no place to write it: the sweep has failed anyway
            entry = self._own(name, lease)
            _write(self._paths[name], {**entry, "left": True})

    def _own(self, name: str, lease: str) -> dict[str, Any]:
        path = self._paths.get(name)
        entry = _read(path) if path is not None else None
        if entry is None or entry["lease"] != lease:
            raise NotReady(f"'{name}' is not yours any more: another sweep has taken it", where=self._server.url)
        return entry


def _differing(now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """The fields in which two configurations differ."""
    return ", ".join(sorted(key for key in {*now, *before} if now.get(key) != before.get(key)))


def _put_back(server: TritonServer, model: str, entry: Mapping[str, Any]) -> None:
    try:
        now = server.model_config(model)
    except ConnectionFailed:
        raise
    except WorkbenchError:
        return  # it was unloaded: there is nothing that the sweep has left
    if entry["changing"] or now == entry["applied"]:
        server.put_back(model, entry["original"], always=bool(entry["changing"]))


def _is_gone(path: Path, entry: Mapping[str, Any]) -> bool:
    if entry.get("left"):
        return True
    holder = Holder.from_json(entry["holder"])
    if holder.here:
        return holder.gone
    try:
        return wall_ms() / 1e3 - path.stat().st_mtime > _FAR_S
    except OSError:
        return True


def _entries() -> list[tuple[Path, dict[str, Any]]]:
    """All journals that can be read, in one order."""
    try:
        paths = sorted((runtime.directory().parent / "sweeps").glob("*.json"))
    except NotReady:  # there is no place for such files: nothing was left in it
        return []
    return [(path, entry) for path in paths if (entry := _read(path)) is not None]


def _directory() -> Path:
    """Beside the runtime files, owner-only like them."""
    path = runtime.directory().parent / "sweeps"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritten(path, error) from error
    return path


def server_here(url: str) -> runtime.ServerInfo | None:
    """The server of the workbench on this machine that an address leads to, by any of its ports and names."""
    place = _place(url)
    with contextlib.suppress(NotReady):  # there is no place for such files: nothing is known of servers
        for info in runtime.list_servers():
            if place in [_place(each) for each in (info["http"], info["grpc"]) if each]:
                return info
    return None


def _key(url: str) -> str:
    """One name a server, whatever its address is spelled like."""
    info = server_here(url)
    return _place((info["http"] or info["grpc"]) if info is not None else url)


def _place(url: str) -> str:
    """Host, port and path of an address; the names and addresses of this machine are one."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    host = (parts.hostname or "").rstrip(".")
    host = "localhost" if _is_here(host) else host
    port = parts.port or (443 if parts.scheme in ("https", "grpcs") else 80)
    return f"{host}:{port}{parts.path.rstrip('/')}"


@lru_cache(maxsize=256)
def _is_here(host: str) -> bool:
    """Whether a name or address is this machine's."""
    import psutil

    names = {socket.gethostname().lower(), "localhost", ""}
    if host in names or host.endswith(".localhost"):
        return True
    found = [host]
    with contextlib.suppress(OSError, UnicodeError):
        found += [str(each[4][0]) for each in socket.getaddrinfo(host, None)]
    own = {entry.address.partition("%")[0] for entries in psutil.net_if_addrs().values() for entry in entries}
    for text in found:
        with contextlib.suppress(ValueError):
            address = ipaddress.ip_address(text.partition("%")[0])
            if address.is_loopback or address.is_unspecified or str(address) in own:
                return True
    return False


def _host(key: str) -> str:
    return key.partition("/")[0].rpartition(":")[0]


def _path(key: str, model: str) -> Path:
    digest = hashlib.sha256(f"{key}\0{model}".encode()).hexdigest()[:24]
    return _directory() / f"{digest}.json"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        entry = json.loads(path.read_text())
        Holder.from_json(entry["holder"])
        complete = {"url", "model", "lease", "original", "applied", "changing"} <= entry.keys()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return dict(entry) if complete else None


def _write(path: Path, entry: Mapping[str, Any]) -> None:
    """All or nothing: a kill leaves the journal before or the one after."""
    draft = path.with_suffix(f".{os.getpid()}.{secrets.token_hex(4)}")
    try:
        draft.write_text(json.dumps(entry))
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise _unwritten(path, error) from error


def _unwritten(path: Path, error: OSError) -> NotReady:
    return NotReady(
        f"cannot write down what must be put back after the sweep: {error}",
        where=str(path),
        hint="set XDG_STATE_HOME to a directory that you may write",
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One at a time takes a model; the lock goes with the process."""
    try:
        opened = path.with_suffix(".lock").open("w")
    except OSError as error:
        raise _unwritten(path, error) from error
    with opened as file:
        with contextlib.suppress(ImportError, OSError):  # not on Windows, nor on every network home
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
