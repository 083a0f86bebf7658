"""The verbs that give a server: serve, Engine, connect, attach."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from workbench.client import ControlClient, HttpClient
from workbench.client import connect as connect_client
from workbench.errors import ConnectionFailed, InvalidRequest, NotFound
from workbench.server import runtime
from workbench.session.owned import OwnedProcess, launch
from workbench.session.remote import TritonServer, WorkbenchServer
from workbench.session.server import Server

PathLike = str | Path

_OPEN: dict[tuple[str, ...], WorkbenchServer] = {}


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
    control_mode: Literal["none", "explicit"] = "explicit",
    models: Sequence[str] = ("*",),
    options: Mapping[str, Any] | None = None,
    timeout_s: float = 300.0,
) -> WorkbenchServer:
    """Serves one or more model repositories in a background process.

    The process shares no GIL with the notebook. Twice the same path in one kernel gives the same server.

    Args:
        path: the repository, or several.
        name: for ``wb.attach`` and ``workbench ps``; made from the repository's name by default.
        detached: go on when this process ends (``wb.attach(name)`` finds it again); else it ends with it.
        http_port: 0 picks a free one.
        control_mode: Triton's ``--model-control-mode``.
        models: which to load, ``*`` is all.
        options: more of the server's flags, by name without dashes (``{"exit-on-error": "true"}``).
        timeout_s: how long loading may take.

    Raises:
        NotFound: there is no such directory.
        LoadFailed: the server did not come up. A model that fails to load does not stop it: see ``server.models()``.
    """
    paths = repositories(path)
    key = tuple(str(item) for item in paths)
    known = _OPEN.get(key)
    if known is not None and not known.closed and (name is None or name == known.name) and _answers(known):
        return known
    chosen = runtime.free_name(paths[0].name) if name is None else runtime.check_name(name)
    if name is not None and any(info["name"] == name for info in runtime.list_servers()):
        raise InvalidRequest(f"a server named {name!r} runs already", hint=f"wb.attach({name!r}), or give another name")
    arguments = [f"--model-repository={item}" for item in paths]
    arguments += [
        f"--http-port={http_port}",
        "--metrics-port=0",
        f"--model-control-mode={control_mode}",
        "--exit-on-error=false",
    ]
    if control_mode == "explicit":
        arguments += [f"--load-model={model}" for model in models]
    arguments += [f"--{flag}={value}" for flag, value in (options or {}).items()]
    found, process = launch(arguments, name=chosen, detached=detached, timeout_s=timeout_s)
    server = _open(found, process)
    _OPEN[key] = server
    return server


def attach(name: str) -> WorkbenchServer:
    """A running server of the workbench on this machine, by name.

    Raises:
        NotFound: none has that name; the text lists those that run.
    """
    try:
        found = runtime.read(name)
    except NotFound as error:
        running = ", ".join(info["name"] for info in runtime.list_servers()) or "none"
        raise NotFound(error.message, hint=f"running: {running}") from error
    return _open(found, None)


def connect(url: str, *, token: str | None = None) -> Server:
    """Any running Triton or KServe v2 server: ``http://host:8000`` or ``grpc://host:8001``.

    With a ``token``, a server of the workbench on another machine, with everything that its control plane offers.

    Raises:
        ConnectionFailed: nothing answers there.
        InvalidRequest: the address has another scheme.
    """
    if not re.match(r"^(http|grpc)://", url):
        raise InvalidRequest(f"cannot connect to {url!r}", hint="write http://host:port or grpc://host:port")
    if token is not None:
        control = ControlClient(url, token)
        about = control.capabilities()
        # Its paths and process are on another machine, so they are not taken over.
        found = runtime.ServerInfo(
            name=str(about.get("name", url)),
            pid=0,
            http=url,
            metrics="",
            repositories=[],
            token=token,
            started="",
            detached=True,
            version=str(about.get("workbench", "")),
            control_mode=str(about.get("control_mode", "")),
            created=0.0,
        )
        return WorkbenchServer(HttpClient(url), control, found)
    client = connect_client(url)
    if not client.is_live():
        client.close()
        raise ConnectionFailed(f"the server at {url} is not live", where=url)
    return TritonServer(client, url=url)


def _open(found: runtime.ServerInfo, process: OwnedProcess | None) -> WorkbenchServer:
    return WorkbenchServer(HttpClient(found["http"]), ControlClient(found["http"], found["token"]), found, process)


def _answers(server: WorkbenchServer) -> bool:
    try:
        return server.is_live()
    except ConnectionFailed:
        return False
