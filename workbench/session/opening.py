"""The verbs that give a server: serve, Engine, connect, attach."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from workbench.client import ControlClient, HttpClient
from workbench.client import connect as connect_client
from workbench.errors import ConnectionFailed, InvalidRequest, NotFound
from workbench.server import runtime
from workbench.session.owned import NameTaken, OwnedProcess, launch
from workbench.session.remote import TritonServer, WorkbenchServer
from workbench.session.server import Server

PathLike = str | Path

_PORTS = {"http": 80, "https": 443, "grpc": 8001, "grpcs": 8001}
"""Of addresses that name none, as the clients have them."""

_KNOCK_S = 3.0
"""How long a port may take to show whether anything listens there."""

# What this kernel has opened, by the command line: the same call again gives the same server.
_OPEN: dict[tuple[str, ...], WorkbenchServer] = {}
_OPENING = threading.Lock()


def repositories(path: PathLike | Sequence[PathLike]) -> tuple[Path, ...]:
    """The directories named, resolved.

    Raises:
        NotFound: one of them is not there.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    out = []
    for item in paths:
        resolved = Path(item).expanduser().resolve()
        if not resolved.is_dir():
            raise NotFound(
                f"no model repository at {item}",
                where=str(resolved),
                hint="give the directory that holds the model directories",
            )
        out.append(resolved)
    return tuple(out)


def serve(
    path: PathLike | Sequence[PathLike],
    *,
    name: str | None = None,
    detached: bool = False,
    http_port: int = 0,
    grpc_port: int = 0,
    control_mode: Literal["none", "explicit"] = "explicit",
    models: Sequence[str] = ("*",),
    options: Mapping[str, Any] | None = None,
    timeout_s: float = 300.0,
) -> WorkbenchServer:
    """Serves one or more model repositories in a background process.

    The process shares no GIL with the notebook. The same call again in one kernel gives the same server.

    Args:
        path: the repository, or several.
        name: for ``wb.attach`` and ``workbench ps``; made from the repository's name by default.
        detached: go on when this process ends (``wb.attach(name)`` finds it again); else it ends with it.
        http_port: 0 picks a free one; so for ``grpc_port``.
        control_mode: Triton's ``--model-control-mode``.
        models: which to load, ``*`` is all.
        options: more of the server's flags, by name (``{"strict_readiness": False, "log_verbose": 1}``); a list gives
            a flag several times.
        timeout_s: how long loading may take.

    Raises:
        NotFound: there is no such directory.
        LoadFailed: the server did not come up. A model that fails to load does not stop it: see ``server.models()``.
    """
    paths = repositories(path)
    arguments = [f"--model-repository={item}" for item in paths]
    arguments += [
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        "--metrics-port=0",
        f"--model-control-mode={control_mode}",
        "--exit-on-error=false",
    ]
    if control_mode == "explicit":
        arguments += [f"--load-model={model}" for model in models]
    arguments += _flags(options or {})
    key = (*arguments, f"detached={detached}")
    with _OPENING:
        known = _OPEN.get(key)
        if known is not None and (name is None or name == known.name) and not known.closed and known.is_live():
            return known
        found, process = _launch(paths, arguments, name=name, detached=detached, timeout_s=timeout_s)
        server = _OPEN[key] = _open(found, process)
        return server


def _flags(options: Mapping[str, Any]) -> list[str]:
    out = []
    for name, value in options.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            text = str(each).lower() if isinstance(each, bool) else str(each)
            out.append(f"--{name.lstrip('-').replace('_', '-')}={text}")
    return out


def _launch(
    paths: Sequence[Path], arguments: Sequence[str], *, name: str | None, detached: bool, timeout_s: float
) -> tuple[runtime.ServerInfo, OwnedProcess | None]:
    """Launches under the name given, or under the first free one that the repository's name leads to."""
    if name is not None:
        if any(info["name"] == runtime.check_name(name) for info in runtime.list_servers()):
            raise NameTaken(f"a server named {name!r} runs already", hint=f"attach({name!r}), or another name")
        return launch(arguments, name=name, detached=detached, timeout_s=timeout_s)
    wanted = paths[0].name
    for number in range(1, 100):
        chosen = runtime.free_name(wanted if number == 1 else f"{paths[0].name}-{number}")
        with contextlib.suppress(NameTaken):  # somebody else starts one at this moment
            return launch(arguments, name=chosen, detached=detached, timeout_s=timeout_s)
    raise NameTaken(f"no name is free for a server of {wanted}", hint="give name=...")


def attach(name: str | None = None) -> WorkbenchServer:
    """A running server of the workbench on this machine, by name; without one, the only one that runs.

    Raises:
        NotFound: none has that name; the text lists those that run.
        InvalidRequest: no name was given and several run.
    """
    running = runtime.list_servers()
    names = ", ".join(info["name"] for info in running) or "none"
    if name is None:
        if len(running) > 1:
            raise InvalidRequest("several servers run", hint=f"name one: {names}")
        if not running:
            raise NotFound("no server runs here", hint="start one with serve(path)")
        return _open(running[0], None)
    for info in running:
        if info["name"] == runtime.check_name(name):
            return _open(info, None)
    raise NotFound(f"no server named {name!r} runs here", hint=f"running: {names}")


def connect(url: str, *, token: str | None = None) -> Server:
    """Any running Triton or KServe v2 server: ``http://host:8000`` or ``grpc://host:8001``; ``host:8000`` is HTTP.

    With a ``token``, a server of the workbench on another machine, with everything that its control plane offers.

    Raises:
        ConnectionFailed: nothing answers there.
        InvalidRequest: the address has another scheme.
    """
    if re.fullmatch(r"[^/:]+:\d+", url):
        url = f"http://{url}"
    if not re.match(r"^(https?|grpcs?)://.", url):
        raise InvalidRequest(
            f"cannot connect to {url!r}",
            hint="write http://host:port or grpc://host:port; a server of the workbench on this machine is had by its "
            f"name: attach({url!r})",
        )
    if token is not None:
        if not url.startswith("http"):
            raise InvalidRequest(
                f"cannot connect to {url!r} with a token",
                hint="the control plane is on the HTTP port: http://host:port",
            )
        control = ControlClient(url, token)
        about = control.capabilities()
        # Its paths and process are on another machine, so they are not taken over.
        found = runtime.ServerInfo(
            name=str(about.get("name", url)),
            pid=0,
            http=url,
            grpc="",
            metrics="",
            repositories=[],
            token=token,
            started="",
            detached=True,
            version=str(about.get("workbench", "")),
            control_mode=str(about.get("control_mode", "")),
            created=0.0,
        )
        return WorkbenchServer(HttpClient(url, token), control, found)
    client = connect_client(url)
    if not client.is_live():
        client.close()
        raise _not_live(url)
    return TritonServer(client, url=url)


def _not_live(url: str) -> ConnectionFailed:
    """Why a server is not heard: whether anything listens at its port tells most."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        socket.create_connection((host, port), timeout=_KNOCK_S).close()
    except ConnectionRefusedError:
        return ConnectionFailed(
            f"nothing listens at {url}: connection refused",
            where=where,
            hint="does the server run, and are host and port right? Triton's ports are 8000 for HTTP, 8001 for gRPC, "
            "and it opens them once its models are loaded; workbench ps shows the servers of the workbench here",
        )
    except OSError as error:
        return ConnectionFailed(
            f"{url} cannot be reached: {error}",
            where=where,
            hint="check the host, its port and the way to it",
        )
    return ConnectionFailed(f"the server at {url} is not live", where=url, hint=_unheard(url))


def _unheard(url: str) -> str:
    """What may keep a server that runs from being heard."""
    if url.startswith("grpcs"):
        return (
            "start Python with GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=FILE.pem where the certificate is self-made, and name "
            "a host that it is for; where the server asks for a client's certificate, connect to its HTTP port"
        )
    if url.startswith("grpc"):
        return "is it the gRPC port (Triton: 8001)? A server with --grpc-use-ssl is grpcs://host:port"
    return "is it the HTTP port (Triton: 8000), and the health API not restricted?"


def _open(found: runtime.ServerInfo, process: OwnedProcess | None) -> WorkbenchServer:
    url, token = found["http"], found["token"]
    return WorkbenchServer(HttpClient(url, token), ControlClient(url, token), found, process)
