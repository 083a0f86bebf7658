"""``server.replay(record)``: a captured request of a Python model, run again on the calling thread.

``server.resend(record)``: the same request, sent to the server again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from workbench.backends.base import ModelContext
from workbench.backends.python import PythonBackend
from workbench.backends.python_replay import ReplayHost
from workbench.backends.python_replay import replay as run
from workbench.backends.search import find_backend
from workbench.config import from_json
from workbench.errors import InvalidRequest, NotFound, Unsupported, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse
from workbench.session.hints import explain
from workbench.session.results import Result

if TYPE_CHECKING:
    from workbench.engine import InferenceEngine
    from workbench.session.server import Server


def replay(server: Server, record: Any, timeout_s: float) -> Result | list[Result]:
    """See ``Server.replay``."""
    __tracebackhide__ = True
    request = server.captured_request(_seq(server, record))
    model, version = request.model_name, request.model_version
    config = server.model_config(model)
    directory, shared = _files(server, model, version, config)
    decoupled = _is_decoupled(config)
    others = _Others(server, timeout_s)
    with ReplayHost(others.ask, print, others) as host:
        context = ModelContext(
            model, version, from_json(config), json.dumps(config), directory, directory / str(version), host,
            python_execution="thread",
        )  # fmt: skip
        found = run(context, request, timeout_s, shared=shared)
        answers = [Result(answer) for answer in found if answer.outputs or not decoupled]
    return answers if decoupled else answers[0]


def resend(server: Server, record: Any, timeout_s: float) -> Result | list[Result]:
    """See ``Server.resend``."""
    kept = server.captured_request(_seq(server, record))
    # a mended model may serve as another version
    still = _Others(server, timeout_s).is_ready(kept.model_name, kept.model_version)
    version = kept.model_version if still else -1
    request = replace(kept, model_version=version, client="python", parent_seq=-1)
    try:
        engine = _engine(server)
        if engine is not None and _is_decoupled(server.model_config(request.model_name)):
            return [Result(answer) for answer in engine.infer_stream(request, timeout_s) if answer.outputs]
        return Result(server._infer(request, timeout_s))
    except WorkbenchError as error:
        explain(server, request.model_name, error, request)
        raise


class _Others:
    """The models that a replayed one asks: those of the live server."""

    def __init__(self, server: Server, timeout_s: float) -> None:
        self._server = server
        self._timeout_s = timeout_s

    def ask(self, request: InferenceRequest) -> Iterable[InferenceResponse]:
        """A nested request."""
        engine = _engine(self._server)
        if engine is not None:
            return engine.infer_stream(request, self._timeout_s)
        if self.is_decoupled(request.model_name, request.model_version):
            raise Unsupported(
                f"'{request.model_name}' answers any number of times, which a server in another process does not pass "
                "on to a replay",
                hint="replay the request in this kernel: wb.Engine(repository)",
            )
        return [self._server._infer(request, self._timeout_s)]

    def is_decoupled(self, name: str, version: int) -> bool:
        """Whether a model answers any number of times."""
        try:
            return _is_decoupled(self._server.model_config(name))
        except WorkbenchError:
            return False

    def is_ready(self, name: str, version: int) -> bool:
        """Whether a model, or this version of it, takes requests."""
        index = self._server.repository_index(ready=True)
        return any(row["name"] == name and version in (-1, int(row.get("version") or -1)) for row in index)


def _engine(server: Server) -> InferenceEngine | None:
    """The engine of a server in this kernel."""
    found: InferenceEngine | None = getattr(server, "engine", None)
    return found


def _is_decoupled(config: dict[str, Any]) -> bool:
    return bool(config.get("model_transaction_policy", {}).get("decoupled", False))


def _seq(server: Server, record: Any) -> int:
    if record is None:
        failed = [row.seq for row in server.captured() if row.why == "failed"]
        if not failed:
            raise NotFound("no request that failed is kept", hint="name one: captured() lists the slow ones too")
        return failed[-1]
    found = record if isinstance(record, int | np.integer) else getattr(record, "seq", None)
    if found is None and hasattr(record, "__getitem__") and not isinstance(record, str | bytes | list | tuple):
        found = record["seq"]
    numbers = np.asarray(found).reshape(-1)
    if found is None or numbers.size != 1 or numbers.dtype.kind not in "iu":
        raise InvalidRequest(
            "replay() takes one record", where=f"{record!r:.80}", hint="a seq, or one row of records() or captured()"
        )
    return int(numbers[0])


def _files(server: Server, model: str, version: int, config: dict[str, Any]) -> tuple[Path, Path | None]:
    """The model's directory, and the model.py of its Python-based backend, where it has one; all of it on this machine.

    Raises:
        Unsupported: there is no model.py, or it is not here.
    """
    if "ensemble_scheduling" in config:
        raise Unsupported(
            f"'{model}' is an ensemble: there is no code of its own to run",
            hint="replay the record of one of its steps: records() has their parent_seq",
        )
    backend = config.get("backend") or config.get("platform", "")
    directory = server.model_directory(model)
    if directory is None:
        if backend == "python":
            raise Unsupported(
                f"the files of '{model}' are not on this machine", hint="replay it where they are, or serve a copy here"
            )
        _refuse(model, backend)
    if backend == "python":
        return directory, None
    try:
        found = find_backend(backend, config.get("runtime", ""), model, directory, version, _backend_directory(server))
    except WorkbenchError:
        _refuse(model, backend)
    if not isinstance(found, PythonBackend) or found.shared is None:
        _refuse(model, backend)
    return directory, found.shared


def _backend_directory(server: Server) -> Path:
    engine = _engine(server)
    if engine is not None:
        return engine.options.backend_directory
    return Path(server._control.capabilities().get("backend_directory", ""))  # type: ignore[attr-defined]


def _refuse(model: str, backend: str) -> NoReturn:
    raise Unsupported(
        f"'{model}' runs on the backend '{backend}': only a model.py can be replayed", hint="resend() asks it again"
    )
