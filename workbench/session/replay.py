"""``server.replay(record)``: a captured request of a Python model, run again on the calling thread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.backends.base import ModelContext
from workbench.backends.python_replay import ReplayHost
from workbench.backends.python_replay import replay as run
from workbench.config import from_json
from workbench.errors import InvalidRequest, NotFound, Unsupported
from workbench.protocol.tensors import InferenceRequest, InferenceResponse
from workbench.session.results import Result

if TYPE_CHECKING:
    from workbench.session.server import Server


def replay(server: Server, record: Any, timeout_s: float) -> Result | list[Result]:
    """See ``Server.replay``."""
    __tracebackhide__ = True
    request = server.captured_request(_seq(server, record))
    model, version = request.model_name, request.model_version
    config = server.model_config(model)
    directory = _directory(server, model, config)
    decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled", False))

    def ask(nested: InferenceRequest) -> InferenceResponse:
        return server._infer(nested, timeout_s)

    with ReplayHost(ask, print) as host:
        context = ModelContext(
            model, version, from_json(config), json.dumps(config), directory, directory / str(version), host,
            python_execution="thread",
        )  # fmt: skip
        answers = [Result(answer) for answer in run(context, request, timeout_s) if answer.outputs or not decoupled]
    return answers if decoupled else answers[0]


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


def _directory(server: Server, model: str, config: dict[str, Any]) -> Path:
    """The model's directory, where this is a Python model whose files are here."""
    if "ensemble_scheduling" in config:
        raise Unsupported(
            f"'{model}' is an ensemble: there is no code of its own to run",
            hint="replay the record of one of its steps: records() has their parent_seq",
        )
    backend = config.get("backend") or config.get("platform", "")
    if backend != "python":
        raise Unsupported(
            f"'{model}' runs on the backend '{backend}': only a model.py can be replayed", hint="infer() asks it again"
        )
    directory = server.model_directory(model)
    if directory is None:
        raise Unsupported(
            f"the files of '{model}' are not on this machine", hint="replay it where they are, or serve a copy here"
        )
    return directory
