"""Triton over HTTP."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import orjson

from workbench.client.http_pool import Answer, HttpPool
from workbench.client.interface import CALL_TIMEOUT_S, CONNECT_TIMEOUT_S, INFER_TIMEOUT_S, LOAD_TIMEOUT_S, Config
from workbench.errors import ConnectionFailed, InternalError, InvalidRequest, WorkbenchError
from workbench.protocol.http_codec import HEADER_LENGTH, decode_error, decode_response, encode_request
from workbench.protocol.tensors import InferenceRequest, InferenceResponse


class HttpClient:
    """A ``TritonClient`` over HTTP with keep-alive connections and binary tensors. Thread-safe.

    Args:
        url: ``http://host:port`` (also with a path before ``/v2``), ``https://...`` or ``host:port``.
        token: sent as a bearer token, where a server or a gateway wants one.
    """

    def __init__(self, url: str, token: str | None = None, *, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._pool = HttpPool(url, headers=headers, connect_timeout_s=connect_timeout_s)
        self.url = self._pool.url

    def server_metadata(self) -> dict[str, Any]:
        """``name``, ``version``, ``extensions``."""
        return self._get("/v2")

    def is_live(self) -> bool:
        """Whether the server runs; False also where nobody answers."""
        return self._healthy("/v2/health/live")

    def is_ready(self) -> bool:
        """Whether the server takes inferences; False also where nobody answers."""
        return self._healthy("/v2/health/ready")

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Whether a model takes inferences; False also for unknown ones."""
        return self._healthy(f"{model_path(name, version)}/ready")

    def repository_index(self, ready: bool = False) -> list[dict[str, str]]:
        """``name``, ``version``, ``state``, ``reason`` of every model version known."""
        answer = self._json("POST", "/v2/repository/index", {"ready": True} if ready else {})
        if not isinstance(answer, list):
            raise InternalError("the server's repository index is not a list", where=self.url)
        return [index_row(entry) for entry in answer]

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """``name``, ``versions``, ``platform``, ``inputs``, ``outputs``; shapes include the batch dimension."""
        return self._get(model_path(name, version))

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """The completed configuration as Triton's JSON."""
        return self._get(f"{model_path(name, version)}/config")

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """``{"model_stats": [...]}`` of one model, or of all."""
        return self._get(f"{model_path(name, version)}/stats" if name else "/v2/models/stats")

    def load(self, name: str, config: Config = None, files: Mapping[str, bytes] | None = None) -> None:
        """Loads or reloads a model, with another configuration for this load if one is given."""
        parameters: dict[str, Any] = {}
        if config is not None:
            parameters["config"] = config if isinstance(config, str) else encode_json(config).decode()
        for path, content in (files or {}).items():
            parameters[f"file:{path.removeprefix('file:')}"] = base64.b64encode(content).decode()
        body = {"parameters": parameters} if parameters else {}
        self._json("POST", f"/v2/repository/models/{quote(name, safe='')}/load", body, LOAD_TIMEOUT_S)

    def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Unloads a model."""
        body = {"parameters": {"unload_dependents": True}} if unload_dependents else {}
        self._json("POST", f"/v2/repository/models/{quote(name, safe='')}/unload", body, LOAD_TIMEOUT_S)

    def log_settings(self, changes: Mapping[str, bool | int | str] | None = None) -> dict[str, Any]:
        """Triton's log settings, after some of them have been changed."""
        found = self._json("POST", "/v2/logging", dict(changes)) if changes else self._get("/v2/logging")
        return dict(found)

    def register_system_shared_memory(self, name: str, key: str, byte_size: int) -> None:
        """Tells the server of a region of this machine's shared memory, ``/dev/shm`` + key."""
        path = f"/v2/systemsharedmemory/region/{quote(name, safe='')}/register"
        self._json("POST", path, {"key": key, "offset": 0, "byte_size": byte_size})

    def unregister_system_shared_memory(self, name: str) -> None:
        """The server lets go of a region."""
        self._json("POST", f"/v2/systemsharedmemory/region/{quote(name, safe='')}/unregister", {})

    def infer(self, request: InferenceRequest, timeout_s: float = INFER_TIMEOUT_S) -> InferenceResponse:
        """One inference; waits for the answer.

        Raises:
            WorkbenchError: with the server's text.
            ConnectionFailed: nobody answers, or not within ``timeout_s``.
        """
        headers, buffers = encode_request(request)
        answer = self._pool.request("POST", infer_path(request), b"".join(buffers), headers, timeout_s)
        if answer.status != 200:
            raise self._error(answer)
        length = answer.headers.get(HEADER_LENGTH.lower())
        return decode_response(answer.body, int(length) if length is not None else None)

    def close(self) -> None:
        """Closes the connections."""
        self._pool.close()

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _healthy(self, path: str) -> bool:
        try:
            return self._pool.request("GET", path, timeout_s=CALL_TIMEOUT_S).status == 200
        except ConnectionFailed:
            return False

    def _get(self, path: str) -> dict[str, Any]:
        answer = self._json("GET", path)
        if not isinstance(answer, dict):
            raise InternalError(f"the server's answer to {path} is not a JSON object", where=self.url)
        return answer

    def _json(self, method: str, path: str, body: Any = None, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        encoded = encode_json(body) if body is not None else b""
        headers = {"Content-Type": "application/json"} if encoded else {}
        answer = self._pool.request(method, path, encoded, headers, timeout_s)
        if answer.status != 200:
            raise self._error(answer)
        return parse_json(answer, self.url + path)

    def _error(self, answer: Answer) -> WorkbenchError:
        return answer_error(answer, self.url)


def answer_error(answer: Answer, where: str) -> WorkbenchError:
    """The error that an answer other than 200 stands for, with the server's text."""
    error = decode_error(answer.status, answer.body)
    error.where = error.where or where
    return error


def encode_json(value: Any) -> bytes:
    """A body. What orjson does not write (whole numbers beyond 64 bits, lone surrogates) the server is to judge.

    Raises:
        InvalidRequest: it holds something that JSON has no form for.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        pass
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"this cannot be sent as JSON: {error}",
            where=f"{value!r:.200}",
            hint="give numbers, strings, lists and dictionaries",
        ) from None


def parse_json(answer: Answer, where: str) -> Any:
    """The JSON of an answer; None for an empty body.

    Raises:
        InternalError: it is no JSON.
    """
    if not answer.body.strip():
        return None
    try:
        return orjson.loads(answer.body)
    except orjson.JSONDecodeError as error:
        raise InternalError(f"the server's answer is not JSON: {error}", where=where) from error


def model_path(name: str, version: str | int = "") -> str:
    """The path of a model, or of a version of it."""
    path = f"/v2/models/{quote(name, safe='')}"
    return f"{path}/versions/{quote(str(version), safe='')}" if version not in ("", -1) else path


def infer_path(request: InferenceRequest) -> str:
    """Where an inference request is posted."""
    return f"{model_path(request.model_name, request.model_version)}/infer"


def index_row(entry: Mapping[str, Any]) -> dict[str, str]:
    """A row of the repository index with all its fields."""
    return {key: str(entry.get(key, "")) for key in ("name", "version", "state", "reason")}
